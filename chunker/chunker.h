/* chunker.h - what the files of the chunker share, and nobody else sees.
 *
 *     plan.c ──► pack.c ──► pack_first_fit.c   standalone chunks
 *        │          └─────► pack_search.c
 *        └─────► split.c                       dependent chunks
 *
 * A sequence is short when it is not longer than the chunk size, else long.
 * While it is being packed a chunk-to-be is called a bin, as in the literature.
 */
#ifndef CF_CHUNKER_H
#define CF_CHUNKER_H

#include <chunkflow/chunk.h>

/* The caller's lengths, and what one walk over them told. */
typedef struct cf_chunk_input {
    const uint32_t *len_tok; /* [n_seqs] */
    size_t n_seqs;           /* <= UINT32_MAX */
    uint32_t chunk_size_tok;
    size_t n_short;
    uint64_t short_tok;    /* sum over the short sequences */
    uint64_t n_long_parts; /* chunks that the long ones are cut into */
} cf_chunk_input;

/* The short sequences, longest first, equal ones in batch order. */
typedef struct cf_pack_items {
    const uint32_t *seq;     /* [n] */
    const uint32_t *len_tok; /* [n], never rising, 1 .. chunk_size_tok */
    size_t n;
    uint32_t chunk_size_tok;
    uint64_t sum_tok;
} cf_pack_items;

/* What to do with a length that divides the chunk size. */
typedef enum cf_pack_rule {
    CF_PACK_FILL_EQUAL, /* as many as fill bins alone do so */
    CF_PACK_PLAIN       /* nothing special */
} cf_pack_rule;

/* Most bins that packing can need: never more than n_short. */
size_t cf_pack_bins_max(const cf_chunk_input *input);

/* Scratch of cf_chunk_pack in bytes; 0 without short sequences. */
uint64_t cf_pack_scratch_bytes(const cf_chunk_input *input);

/* Scratch of cf_chunk_plan_check in bytes. */
size_t cf_plan_check_scratch_bytes(size_t n_seqs);

/* Write the standalone chunks to the front of the plan.  Every capacity is
 * the bound's.  Sets n_chunks, n_pieces, n_groups. */
void cf_chunk_pack(const cf_chunk_input *input, cf_chunk_plan *plan);

/* Append the dependent chunks.  Capacities as above. */
void cf_chunk_split(const cf_chunk_input *input, cf_chunk_plan *plan);

/* Leaves of the tree that cf_pack_first_fit needs: a power of two. */
size_t cf_pack_tree_leaves(size_t bins_max);

/* Pack by first-fit-decreasing.  tree has 2 * n_leaves entries and needs no
 * values.  Returns the number of bins; bin[i] is the bin of item i. */
uint32_t cf_pack_first_fit(const cf_pack_items *items, cf_pack_rule rule,
                           size_t n_leaves, uint32_t *tree, uint32_t *bin);

/* Look for a packing into n_bins bins, with a fixed limit on the work.
 * n_bins * chunk_size_tok >= sum_tok >= 1; room_tok has n_bins entries.
 * Returns 1 and fills bin[0 .. n), or 0 when none was found. */
int cf_pack_search(const cf_pack_items *items, uint32_t n_bins,
                   uint32_t *room_tok, uint32_t *bin);

#endif
