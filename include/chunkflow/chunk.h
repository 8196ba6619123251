/* chunk.h - lengths in, chunks out (Yuan et al. 2025, Algorithm 1).
 *
 * A sequence longer than the chunk size is cut every chunk_size_tok tokens into
 * dependent chunks, which form a group; the others are packed into standalone
 * chunks, each a group of one.  The plan lists the standalone chunks first, in
 * packing order, then the groups in the order of their sequences.  Groups are
 * numbered in that order.  The pieces of a standalone chunk are in rising order
 * of their sequences.
 *
 * All functions are pure: equal inputs give equal plans on every rank.  Nothing
 * is allocated: ask for the bound, bring the arrays, build.  All token counts
 * are in tokens, all indices from 0.
 */
#ifndef CHUNKFLOW_CHUNK_H
#define CHUNKFLOW_CHUNK_H

#include <chunkflow/base.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum cf_chunk_kind {
    CF_CHUNK_STANDALONE, /* one or more whole sequences */
    CF_CHUNK_DEPENDENT   /* one part of one long sequence */
} cf_chunk_kind;

/* A run of consecutive tokens of one sequence. */
typedef struct cf_piece {
    uint32_t seq;       /* index into the caller's lengths array */
    uint32_t first_tok; /* offset of the run inside that sequence */
    uint32_t n_tok;     /* >= 1 */
} cf_piece;

/* The unit of work: one micro-batch. */
typedef struct cf_chunk {
    cf_chunk_kind kind;
    uint32_t first_piece; /* pieces[first_piece .. first_piece + n_pieces) */
    uint32_t n_pieces;    /* 1 for a dependent chunk */
    uint32_t n_tok;       /* sum over the pieces, <= chunk_size_tok */
    uint32_t prefix_tok;  /* tokens of KV state in front of this chunk */
    uint32_t group;       /* chunks of one long sequence share a group */
    uint32_t in_group;    /* position in the group */
} cf_chunk;

/* What the caller must bring for a build. */
typedef struct cf_chunk_bound {
    size_t n_chunks;
    size_t n_pieces;
    size_t scratch_bytes;
} cf_chunk_bound;

/* Arrays, scratch and capacity are the caller's; build sets the rest.  Chunks
 * of a group are adjacent and in sequence order.  scratch is aligned to 8 bytes
 * and may be reused as soon as build returns. */
typedef struct cf_chunk_plan {
    cf_chunk *chunks;
    cf_piece *pieces;
    void *scratch;
    cf_chunk_bound capacity;
    size_t n_chunks;
    size_t n_pieces;
    uint32_t n_groups;
    uint32_t chunk_size_tok;
} cf_chunk_plan;

/* Capacities that always suffice for these lengths, and are tight enough to be
 * allocated: never more than about one chunk and one piece a sequence over what
 * the lengths need.
 * Errors: CF_INVALID (chunk size 0, a length of 0), CF_OVERFLOW. */
CF_MUST_USE cf_status cf_chunk_plan_bound(const uint32_t *len_tok,
                                          size_t n_seqs,
                                          uint32_t chunk_size_tok,
                                          cf_chunk_bound *bound_p);

/* Build the plan.  Zero sequences give an empty plan.  Never more standalone
 * chunks than first-fit-decreasing needs, the fewest possible for up to nine
 * short sequences; sequences of one length that fill chunks fill them unless
 * that would cost a chunk.  A million sequences take a fraction of a second.
 * Errors: CF_INVALID, CF_OVERFLOW, CF_NO_SPACE (then nothing was written). */
CF_MUST_USE cf_status cf_chunk_plan_build(const uint32_t *len_tok,
                                          size_t n_seqs,
                                          uint32_t chunk_size_tok,
                                          cf_chunk_plan *plan);

/* The same without chunks to choose: every sequence is one standalone chunk, in
 * batch order, however long.  This is the plan of the 1F1B baseline.  The chunk
 * size of the plan becomes the longest length (1 without sequences).
 * Capacities: n_seqs chunks and pieces; cf_chunk_plan_bound_whole has them.
 * Errors: CF_INVALID (a length of 0), CF_OVERFLOW, CF_NO_SPACE (then nothing was
 * written). */
CF_MUST_USE cf_status cf_chunk_plan_bound_whole(size_t n_seqs,
                                                cf_chunk_bound *bound_p);
CF_MUST_USE cf_status cf_chunk_plan_build_whole(const uint32_t *len_tok,
                                                size_t n_seqs,
                                                cf_chunk_plan *plan);

/* CF_OK iff every token of every sequence is in the plan exactly once, in
 * order, within capacity, and kinds, prefixes and groups are as chunk.h says.
 * Safe on any content of the arrays; scratch as for a build.
 * Errors: CF_INVALID, CF_OVERFLOW, CF_NO_SPACE, CF_MALFORMED. */
CF_MUST_USE cf_status cf_chunk_plan_check(const cf_chunk_plan *plan,
                                          const uint32_t *len_tok,
                                          size_t n_seqs);

#ifdef __cplusplus
}
#endif

#endif
