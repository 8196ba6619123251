/* planner.h - the search for ChunkSize, K, recompute policy and stages.
 *
 * Yuan et al. 2025 find (ChunkSize, K) by a grid of runs; here every point of the
 * grid is sized and timed on paper.
 *
 * (1) Pure: what a point needs and how long it takes is told by the caller.
 * (2) A point over the budget is never timed and never chosen.
 * (3) The choice is a function of the points alone: the fastest, of equals the
 *     one with the least memory, of these the first.
 */
#ifndef CF_PLANNER_H
#define CF_PLANNER_H

#include <chunkflow/base.h>

#include <stdbool.h>

#include "src/options.h"

enum {
    CF_PLANNER_SIZE_MIN = 256
};

/* What may be chosen: 0 is free. */
typedef struct cf_planner_range {
    uint32_t longest_tok; /* of all sequences */
    uint32_t chunk_size_tok;
    uint32_t retained_chunks_max;
    bool recompute_is_free;
    cf_recompute recompute;
    bool attention_is_free;
    bool keep_attention;
    uint32_t n_ranks;
    uint32_t n_stages;
    uint32_t n_layers; /* a stage has one at least */
} cf_planner_range;

typedef struct cf_planner_point {
    uint32_t n_stages; /* of n_ranks / n_stages replicas */
    uint32_t chunk_size_tok;
    uint32_t retained_chunks_max;
    cf_recompute recompute;
    bool keep_attention; /* of dropped chunks */
    size_t bytes;        /* of the rank that needs most */
    bool fits;
    double time;      /* of those that fit, as the next two */
    double compute_s; /* of that, what the ops take */
    double bubble_ratio;
} cf_planner_point;

/* What tells about a point; each sets its own fields.  Errors end the search. */
typedef struct cf_planner_oracle {
    cf_status (*size)(void *context, cf_planner_point *point);
    cf_status (*time)(void *context, cf_planner_point *point);
    void *context;
} cf_planner_oracle;

/* Stages are the divisors of the ranks, with a layer each.  ChunkSizes are the
 * powers of two from 256 up to the longest sequence, and that; Ks the powers of two
 * up to its number of chunks, and that; attention is kept, where that is free and
 * the longest sequence has chunks that are dropped, or not.  Points of a number of stages are together.
 * points may be NULL, to count.  Returns how many. */
size_t cf_planner_list(const cf_planner_range *range, cf_planner_point *points);

/* Size all points, then time those that fit.  *best_p: the choice; n when none
 * fits.  Errors: those of the oracle. */
CF_MUST_USE cf_status cf_planner_search(cf_planner_point *points, size_t n,
                                        uint64_t budget,
                                        const cf_planner_oracle *oracle,
                                        size_t *best_p);

/* The one that needs the least memory, the first of equals; n > 0. */
size_t cf_planner_smallest(const cf_planner_point *points, size_t n);

/* Whether a is a better choice than b; both fit. */
bool cf_planner_is_better(const cf_planner_point *a, const cf_planner_point *b);

#endif
