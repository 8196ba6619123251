/* pack.c - short sequences into standalone chunks.
 *
 * Yuan et al. 2025, Alg. 1 tries 1, 2, 3, ... bins until the sequences fit.  We
 * come from both ends: a lower bound from below, first-fit-decreasing from
 * above, and a bounded search for what is between.
 *
 * (1) Never more bins than first-fit-decreasing, and at most 9 sequences are
 *     packed into as few as can be (pack_search.c).
 * (2) Sequences of one length that fill chunks fill them, unless that would
 *     cost a chunk: of two packings of equal count the one that was tried
 *     first stays, and that rule is tried first.
 * (3) A sequence of exactly ChunkSize tokens is alone in its chunk.
 * (4) Inside a chunk the sequences are in batch order.
 * (5) Time O(n log n) and linear space; the search has a fixed limit.
 */
#include "chunker.h"

#define RADIX_BITS 11
#define RADIX_SIZE (1u << RADIX_BITS)

/* The caller's scratch, cut up.  All but the tree have n_seqs entries. */
typedef struct pack_scratch {
    uint32_t *seq;
    uint32_t *len_tok;
    uint32_t *bin;
    uint32_t *bin_tried;
    uint32_t *tree;
    size_t n_leaves;
} pack_scratch;

/* Contract in chunker.h. */
uint64_t cf_pack_scratch_bytes(const cf_chunk_input *input)
{
    if (input->n_short == 0)
        return 0;

    uint64_t n_leaves = cf_pack_tree_leaves(cf_pack_bins_max(input));

    return (4 * (uint64_t)input->n_seqs + 2 * n_leaves) * sizeof(uint32_t);
}

static pack_scratch cut_scratch(const cf_chunk_input *input, void *scratch)
{
    uint32_t *at = scratch;
    size_t n = input->n_seqs;

    return (pack_scratch){.seq = at,
                          .len_tok = at + n,
                          .bin = at + 2 * n,
                          .bin_tried = at + 3 * n,
                          .tree = at + 4 * n,
                          .n_leaves =
                              cf_pack_tree_leaves(cf_pack_bins_max(input))};
}

static void swap(uint32_t **a, uint32_t **b)
{
    uint32_t *was = *a;

    *a = *b;
    *b = was;
}

/* RADIX_BITS bits of (chunk size - length): the key that puts the longest
 * first. */
static uint32_t digit_of(const cf_chunk_input *input, uint32_t seq,
                         unsigned shift)
{
    uint32_t key = input->chunk_size_tok - input->len_tok[seq];

    return key >> shift & (RADIX_SIZE - 1);
}

/* One stable pass. */
static void sort_pass(const cf_chunk_input *input, unsigned shift,
                      const uint32_t *from, uint32_t *to)
{
    uint32_t first[RADIX_SIZE] = {0};
    uint32_t sum = 0;

    for (size_t i = 0; i < input->n_short; i++)
        first[digit_of(input, from[i], shift)]++;
    for (uint32_t digit = 0; digit < RADIX_SIZE; digit++) {
        uint32_t n = first[digit];

        first[digit] = sum;
        sum += n;
    }
    for (size_t i = 0; i < input->n_short; i++)
        to[first[digit_of(input, from[i], shift)]++] = from[i];
}

/* The short sequences, longest first. */
static cf_pack_items sort_items(const cf_chunk_input *input,
                                pack_scratch *scratch)
{
    size_t n = 0;

    for (size_t seq = 0; seq < input->n_seqs; seq++)
        if (input->len_tok[seq] <= input->chunk_size_tok)
            scratch->seq[n++] = (uint32_t)seq;

    for (unsigned shift = 0;
         shift < 32 && (input->chunk_size_tok - 1) >> shift != 0;
         shift += RADIX_BITS) {
        sort_pass(input, shift, scratch->seq, scratch->bin);
        swap(&scratch->seq, &scratch->bin);
    }
    for (size_t i = 0; i < n; i++)
        scratch->len_tok[i] = input->len_tok[scratch->seq[i]];

    return (cf_pack_items){.seq = scratch->seq,
                           .len_tok = scratch->len_tok,
                           .n = n,
                           .chunk_size_tok = input->chunk_size_tok,
                           .sum_tok = input->short_tok};
}

/* No packing has fewer bins (bound L2 of Martello and Toth 1990).
 *
 * The large items, above half a bin, need a bin each.  For any limit, those
 * that leave less room than it are of no use to the items from the limit up to
 * half a bin; what these need beyond the room in the other large items' bins
 * costs bins of its own.  Every length up to half a bin is tried as limit. */
static uint32_t lower_bound(const cf_pack_items *items)
{
    const uint32_t *len = items->len_tok;
    uint64_t size = items->chunk_size_tok;
    uint64_t most = (items->sum_tok - 1) / size + 1;
    uint64_t room = 0;   /* in the bins of large items that leave >= limit */
    uint64_t medium = 0; /* sum of the items from limit to half a bin */
    size_t n_large = 0;

    while (n_large < items->n && 2 * (uint64_t)len[n_large] > size)
        n_large++;
    most = n_large > most ? n_large : most;

    size_t roomy = n_large; /* large[roomy ..] leave >= limit */

    for (size_t i = n_large; i < items->n; i++) {
        uint64_t limit = len[i];

        medium += limit;
        while (roomy > 0 && size - len[roomy - 1] >= limit)
            room += size - len[--roomy];
        if (medium > room) {
            uint64_t bins = n_large + (medium - room - 1) / size + 1;

            most = bins > most ? bins : most;
        }
    }
    return (uint32_t)most;
}

/* Leaves the best packing in scratch->bin, returns its number of bins. */
static uint32_t pack_items(const cf_pack_items *items, pack_scratch *scratch)
{
    uint32_t enough = lower_bound(items);
    uint32_t n_bins =
        cf_pack_first_fit(items, CF_PACK_FILL_EQUAL, scratch->n_leaves,
                          scratch->tree, scratch->bin);

    if (n_bins > enough) {
        uint32_t n_plain =
            cf_pack_first_fit(items, CF_PACK_PLAIN, scratch->n_leaves,
                              scratch->tree, scratch->bin_tried);

        if (n_plain < n_bins) {
            swap(&scratch->bin, &scratch->bin_tried);
            n_bins = n_plain;
        }
    }
    while (n_bins > enough && cf_pack_search(items, n_bins - 1, scratch->tree,
                                             scratch->bin_tried)) {
        swap(&scratch->bin, &scratch->bin_tried);
        n_bins--;
    }
    return n_bins;
}

/* Bins to chunks.  bin_of_seq is by sequence; entries of long ones are not
 * read. */
static void emit(const cf_chunk_input *input, const uint32_t *bin_of_seq,
                 uint32_t n_bins, cf_chunk_plan *plan)
{
    uint32_t n_pieces = 0;

    for (uint32_t b = 0; b < n_bins; b++)
        plan->chunks[b] = (cf_chunk){.kind = CF_CHUNK_STANDALONE, .group = b};
    for (size_t seq = 0; seq < input->n_seqs; seq++) {
        if (input->len_tok[seq] <= input->chunk_size_tok) {
            cf_chunk *chunk = &plan->chunks[bin_of_seq[seq]];

            chunk->n_pieces++;
            chunk->n_tok += input->len_tok[seq];
        }
    }
    for (uint32_t b = 0; b < n_bins; b++) {
        plan->chunks[b].first_piece = n_pieces;
        n_pieces += plan->chunks[b].n_pieces;
        plan->chunks[b].n_pieces = 0; /* counted again as pieces arrive */
    }
    for (size_t seq = 0; seq < input->n_seqs; seq++) { /* (4) */
        if (input->len_tok[seq] <= input->chunk_size_tok) {
            cf_chunk *chunk = &plan->chunks[bin_of_seq[seq]];

            plan->pieces[chunk->first_piece + chunk->n_pieces++] =
                (cf_piece){.seq = (uint32_t)seq, .n_tok = input->len_tok[seq]};
        }
    }
    plan->n_chunks = n_bins;
    plan->n_pieces = n_pieces;
    plan->n_groups = n_bins;
}

/* Contract in chunker.h. */
void cf_chunk_pack(const cf_chunk_input *input, cf_chunk_plan *plan)
{
    plan->n_chunks = 0;
    plan->n_pieces = 0;
    plan->n_groups = 0;
    if (input->n_short == 0)
        return;

    pack_scratch scratch = cut_scratch(input, plan->scratch);
    cf_pack_items items = sort_items(input, &scratch);
    uint32_t n_bins = pack_items(&items, &scratch);
    uint32_t *bin_of_seq = scratch.bin_tried; /* free by now */

    for (size_t i = 0; i < items.n; i++)
        bin_of_seq[items.seq[i]] = scratch.bin[i];
    emit(input, bin_of_seq, n_bins, plan);
}
