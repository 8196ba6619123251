/* split.c - a long sequence into dependent chunks.
 *
 * (1) A sequence of L tokens gives ceil(L / ChunkSize) chunks, adjacent and in
 *     sequence order; all but the last are full (Yuan et al. 2025, Alg. 1).
 * (2) The chunk has one piece, and its prefix is every token before it.
 * (3) Groups follow in the order of their sequences in the batch.
 */
#include "chunker.h"

static void append_group(uint32_t seq, uint32_t len_tok, cf_chunk_plan *plan)
{
    uint32_t in_group = 0;
    uint32_t n_tok;

    for (uint32_t first = 0; first < len_tok; first += n_tok) {
        uint32_t left = len_tok - first;

        n_tok = left < plan->chunk_size_tok ? left : plan->chunk_size_tok;
        plan->pieces[plan->n_pieces] =
            (cf_piece){.seq = seq, .first_tok = first, .n_tok = n_tok};
        plan->chunks[plan->n_chunks] =
            (cf_chunk){.kind = CF_CHUNK_DEPENDENT,
                       .first_piece = (uint32_t)plan->n_pieces,
                       .n_pieces = 1,
                       .n_tok = n_tok,
                       .prefix_tok = first,
                       .group = plan->n_groups,
                       .in_group = in_group++};
        plan->n_pieces++;
        plan->n_chunks++;
    }
    plan->n_groups++;
}

/* Contract in chunker.h. */
void cf_chunk_split(const cf_chunk_input *input, cf_chunk_plan *plan)
{
    for (size_t seq = 0; seq < input->n_seqs; seq++)
        if (input->len_tok[seq] > input->chunk_size_tok)
            append_group((uint32_t)seq, input->len_tok[seq], plan);
}
