/* whole.c - every sequence whole, in batch order: the micro-batches of an engine
 * that neither packs nor cuts.
 *
 * (1) Chunk i is sequence i, a group of one: what cf_chunk_plan_check proves of
 *     any plan holds, with the longest length as the chunk size.
 */
#include "chunker.h"

/* Contract in chunk.h. */
cf_status cf_chunk_plan_bound_whole(size_t n_seqs, cf_chunk_bound *bound_p)
{
    if (n_seqs > UINT32_MAX || n_seqs > SIZE_MAX / sizeof(cf_chunk))
        return CF_OVERFLOW;
    *bound_p =
        (cf_chunk_bound){.n_chunks = n_seqs,
                         .n_pieces = n_seqs,
                         .scratch_bytes = cf_plan_check_scratch_bytes(n_seqs)};
    return CF_OK;
}

/* Contract in chunk.h.  The scratch is for the check alone. */
cf_status cf_chunk_plan_build_whole(const uint32_t *len_tok, size_t n_seqs,
                                    cf_chunk_plan *plan)
{
    uint32_t longest = 1;

    if (n_seqs > UINT32_MAX)
        return CF_OVERFLOW;
    for (size_t seq = 0; seq < n_seqs; seq++) {
        if (len_tok[seq] == 0)
            return CF_INVALID;
        if (longest < len_tok[seq])
            longest = len_tok[seq];
    }
    if (plan->capacity.n_chunks < n_seqs || plan->capacity.n_pieces < n_seqs)
        return CF_NO_SPACE;

    for (uint32_t seq = 0; seq < n_seqs; seq++) {
        plan->pieces[seq] = (cf_piece){.seq = seq, .n_tok = len_tok[seq]};
        plan->chunks[seq] = (cf_chunk){.kind = CF_CHUNK_STANDALONE,
                                       .first_piece = seq,
                                       .n_pieces = 1,
                                       .n_tok = len_tok[seq],
                                       .group = seq};
    }
    plan->n_chunks = n_seqs;
    plan->n_pieces = n_seqs;
    plan->n_groups = (uint32_t)n_seqs;
    plan->chunk_size_tok = longest;
    return CF_OK;
}
