/* plan_check.c - every token once, in order, within capacity.
 *
 * Trusts nothing of the plan but its pointers, and shares no code with the
 * files that build plans.
 *
 * (1) Pieces are used once each, in order: a chunk's first piece is the one
 *     after the last of the chunk before it.
 * (2) A standalone chunk holds whole short sequences, each for the first time,
 *     in rising order, together not more than the chunk size.
 * (3) After them every long sequence, in batch order, has its chunks: full ones
 *     and a last one, prefixes and positions counting up.
 * (4) Every short sequence was seen, and nothing is left over.
 *
 * Together: every token of every sequence exactly once.  How well the chunks
 * are packed is not a matter of being right.
 */
#include <string.h>

#include "chunker.h"

/* Contract in chunker.h. */
size_t cf_plan_check_scratch_bytes(size_t n_seqs)
{
    return (n_seqs / 64 + (n_seqs % 64 != 0)) * sizeof(uint64_t);
}

/* Where the walk stands. */
typedef struct check_walk {
    const cf_chunk_plan *plan;
    const uint32_t *len_tok;
    size_t n_seqs;
    uint64_t *seen; /* one bit a sequence */
    size_t chunk;   /* next one to look at */
    size_t piece;
    uint32_t group;
} check_walk;

static int was_seen(const check_walk *walk, size_t seq)
{
    return (walk->seen[seq / 64] >> (seq % 64) & 1) != 0;
}

/* (2) for one piece; adds its tokens to *sum_tok. */
static cf_status check_whole(check_walk *walk, const cf_piece *piece,
                             uint64_t *sum_tok)
{
    if (piece->seq >= walk->n_seqs || was_seen(walk, piece->seq))
        return CF_MALFORMED;

    uint32_t len = walk->len_tok[piece->seq];

    /* One that is long would break the capacity of its chunk. */
    if (piece->first_tok != 0 || piece->n_tok != len)
        return CF_MALFORMED;
    walk->seen[piece->seq / 64] |= UINT64_C(1) << (piece->seq % 64);
    *sum_tok += len;
    return CF_OK;
}

/* (1) and (2) for the next chunk. */
static cf_status check_standalone(check_walk *walk)
{
    const cf_chunk *chunk = &walk->plan->chunks[walk->chunk];
    const cf_piece *pieces = walk->plan->pieces;
    uint64_t sum_tok = 0;

    if (chunk->first_piece != walk->piece || chunk->n_pieces == 0 ||
        chunk->n_pieces > walk->plan->n_pieces - walk->piece ||
        chunk->prefix_tok != 0 || chunk->group != walk->group ||
        chunk->in_group != 0)
        return CF_MALFORMED;

    size_t end = walk->piece + chunk->n_pieces;

    for (size_t i = walk->piece; i < end; i++) {
        if (i > walk->piece && pieces[i].seq <= pieces[i - 1].seq)
            return CF_MALFORMED;

        cf_status status = check_whole(walk, &pieces[i], &sum_tok);

        if (status != CF_OK)
            return status;
    }
    if (sum_tok != chunk->n_tok || sum_tok > walk->plan->chunk_size_tok)
        return CF_MALFORMED;
    walk->chunk++;
    walk->piece = end;
    walk->group++;
    return CF_OK;
}

/* (1) and (3) for the chunks of one long sequence. */
static cf_status check_group(check_walk *walk, uint32_t seq)
{
    const cf_chunk_plan *plan = walk->plan;
    uint32_t len = walk->len_tok[seq];
    uint32_t in_group = 0;
    uint32_t n_tok;

    for (uint32_t first = 0; first < len; first += n_tok) {
        n_tok = len - first < plan->chunk_size_tok ? len - first
                                                   : plan->chunk_size_tok;
        if (walk->chunk == plan->n_chunks || walk->piece == plan->n_pieces)
            return CF_MALFORMED;

        const cf_chunk *chunk = &plan->chunks[walk->chunk++];
        const cf_piece *piece = &plan->pieces[walk->piece];

        if (chunk->kind != CF_CHUNK_DEPENDENT ||
            chunk->first_piece != walk->piece || chunk->n_pieces != 1 ||
            chunk->n_tok != n_tok || chunk->prefix_tok != first ||
            chunk->group != walk->group || chunk->in_group != in_group)
            return CF_MALFORMED;
        if (piece->seq != seq || piece->first_tok != first ||
            piece->n_tok != n_tok)
            return CF_MALFORMED;
        walk->piece++;
        in_group++;
    }
    walk->group++;
    return CF_OK;
}

/* Arguments and space, before anything is read through the plan. */
static cf_status check_arguments(const cf_chunk_plan *plan,
                                 const uint32_t *len_tok, size_t n_seqs)
{
    if (plan->chunk_size_tok == 0)
        return CF_INVALID;
    if (n_seqs > UINT32_MAX)
        return CF_OVERFLOW;
    for (size_t seq = 0; seq < n_seqs; seq++)
        if (len_tok[seq] == 0)
            return CF_INVALID;
    if (plan->n_chunks > plan->capacity.n_chunks ||
        plan->n_pieces > plan->capacity.n_pieces || plan->n_pieces > UINT32_MAX)
        return CF_MALFORMED;
    return CF_OK;
}

/* Contract in chunk.h.  One walk over the plan and one over the sequences. */
cf_status cf_chunk_plan_check(const cf_chunk_plan *plan,
                              const uint32_t *len_tok, size_t n_seqs)
{
    cf_status status = check_arguments(plan, len_tok, n_seqs);

    if (status != CF_OK)
        return status;

    check_walk walk = {.plan = plan,
                       .len_tok = len_tok,
                       .n_seqs = n_seqs,
                       .seen = plan->scratch};
    size_t seen_bytes = cf_plan_check_scratch_bytes(n_seqs);

    if (plan->capacity.scratch_bytes < seen_bytes)
        return CF_NO_SPACE;
    if (seen_bytes > 0)
        memset(walk.seen, 0, seen_bytes);

    while (walk.chunk < plan->n_chunks &&
           plan->chunks[walk.chunk].kind == CF_CHUNK_STANDALONE) {
        status = check_standalone(&walk);
        if (status != CF_OK)
            return status;
    }
    for (size_t seq = 0; seq < n_seqs; seq++) {
        if (len_tok[seq] > plan->chunk_size_tok)
            status = check_group(&walk, (uint32_t)seq);
        else if (!was_seen(&walk, seq)) /* (4) */
            status = CF_MALFORMED;
        if (status != CF_OK)
            return status;
    }
    if (walk.chunk != plan->n_chunks || walk.piece != plan->n_pieces ||
        walk.group != plan->n_groups)
        return CF_MALFORMED; /* (4) */
    return CF_OK;
}
