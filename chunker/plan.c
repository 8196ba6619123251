/* plan.c - lengths in, chunks out (Yuan et al. 2025, Algorithm 1).
 *
 * Validates, asks for the space, and lets pack.c and split.c fill it.
 *
 * (1) Nothing is written before everything was validated and every capacity
 *     found sufficient.
 * (2) The plan is the standalone chunks in packing order, then the groups of
 *     the long sequences in batch order; groups are numbered in that order and
 *     a standalone chunk is a group of one.
 * (3) Every index and token count of a plan fits its uint32_t, every size in
 *     bytes fits a size_t: cf_chunk_plan_bound refuses what would not.
 * (4) Equal inputs give equal plans: no clock, no address, no thread matters.
 */
#include "chunker.h"

/* Walk over the lengths once: sums in 64 bits cannot overflow, since there are
 * fewer than 2^32 sequences of fewer than 2^32 tokens. */
static cf_status survey(const uint32_t *len_tok, size_t n_seqs,
                        uint32_t chunk_size_tok, cf_chunk_input *input_p)
{
    if (chunk_size_tok == 0)
        return CF_INVALID;
    if (n_seqs > UINT32_MAX)
        return CF_OVERFLOW;

    cf_chunk_input input = {
        .len_tok = len_tok, .n_seqs = n_seqs, .chunk_size_tok = chunk_size_tok};

    for (size_t seq = 0; seq < n_seqs; seq++) {
        uint32_t len = len_tok[seq];

        if (len == 0)
            return CF_INVALID;
        if (len <= chunk_size_tok) {
            input.n_short++;
            input.short_tok += len;
        } else {
            input.n_long_parts += (len - 1) / chunk_size_tok + 1;
        }
    }
    *input_p = input;
    return CF_OK;
}

static cf_status bound_of(const cf_chunk_input *input, cf_chunk_bound *bound_p)
{
    uint64_t n_chunks = cf_pack_bins_max(input) + input->n_long_parts;
    uint64_t n_pieces = input->n_short + input->n_long_parts;
    uint64_t scratch_bytes = cf_pack_scratch_bytes(input);
    uint64_t check_bytes = cf_plan_check_scratch_bytes(input->n_seqs);

    if (scratch_bytes < check_bytes)
        scratch_bytes = check_bytes; /* one scratch serves both */

    if (n_pieces > UINT32_MAX || n_chunks > SIZE_MAX / sizeof(cf_chunk) ||
        n_pieces > SIZE_MAX / sizeof(cf_piece) || scratch_bytes > SIZE_MAX)
        return CF_OVERFLOW; /* (3); chunks never outnumber pieces */

    bound_p->n_chunks = (size_t)n_chunks;
    bound_p->n_pieces = (size_t)n_pieces;
    bound_p->scratch_bytes = (size_t)scratch_bytes;
    return CF_OK;
}

/* Contract in chunk.h.  One walk over the lengths. */
cf_status cf_chunk_plan_bound(const uint32_t *len_tok, size_t n_seqs,
                              uint32_t chunk_size_tok, cf_chunk_bound *bound_p)
{
    cf_chunk_input input;
    cf_status status = survey(len_tok, n_seqs, chunk_size_tok, &input);

    if (status != CF_OK)
        return status;
    return bound_of(&input, bound_p);
}

/* Contract in chunk.h.  Invariants (1) and (2) are made here. */
cf_status cf_chunk_plan_build(const uint32_t *len_tok, size_t n_seqs,
                              uint32_t chunk_size_tok, cf_chunk_plan *plan)
{
    cf_chunk_input input;
    cf_chunk_bound bound;
    cf_status status = survey(len_tok, n_seqs, chunk_size_tok, &input);

    if (status != CF_OK)
        return status;
    status = bound_of(&input, &bound);
    if (status != CF_OK)
        return status;
    if (plan->capacity.n_chunks < bound.n_chunks ||
        plan->capacity.n_pieces < bound.n_pieces ||
        plan->capacity.scratch_bytes < bound.scratch_bytes)
        return CF_NO_SPACE;

    plan->chunk_size_tok = chunk_size_tok;
    cf_chunk_pack(&input, plan);
    cf_chunk_split(&input, plan);
    return CF_OK;
}
