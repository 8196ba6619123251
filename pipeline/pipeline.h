/* pipeline.h - what the files of this room share.
 *
 * Chunks of a plan are adjacent by group and ascending inside a group, so the
 * order of all forwards is simply 0, 1, 2, ...: a chunk index is also a
 * position in the stream of forwards.
 */
#ifndef CF_PIPELINE_H
#define CF_PIPELINE_H

#include <stdbool.h>

#include <chunkflow/schedule.h>

/* A group as the scheduler sees it. */
typedef struct cf_group {
    uint32_t first_chunk;
    uint32_t n_chunks;  /* 0 behind the last group */
    uint32_t n_dropped; /* the first max(0, n_chunks - K) */
} cf_group;

/* state_aware.c: the order inside one group. */

/* The group that starts at first_chunk, which may be plan->n_chunks. */
cf_group cf_group_at(const cf_chunk_plan *plan, uint32_t first_chunk,
                     uint32_t retained_chunks_max);

/* The first chunk behind the group. */
uint32_t cf_group_end(const cf_group *group);

/* Whether the forward of this chunk of the group drops its activations. */
bool cf_group_drops(const cf_group *group, uint32_t chunk);

/* The forward of this chunk, dropping or keeping. */
cf_op cf_group_forward(const cf_group *group, uint32_t chunk);

/* schedule_kind.c: in what the kinds differ. */

/* The group that runs first, and the one that runs behind a group: plan order,
 * or the groups of several chunks before those of one.  n_chunks is 0 where there
 * is none.  A walk over all groups is linear in the chunks. */
cf_group cf_group_first(const cf_chunk_plan *plan,
                        const cf_schedule_params *params);
cf_group cf_group_next(const cf_chunk_plan *plan,
                       const cf_schedule_params *params, const cf_group *group);

/* How many chunks of a group keep the activations of their forward: K, and
 * under 1F1B one or none. */
uint32_t cf_kept_of_group(const cf_schedule_params *params);

/* The most chunks that a stage may hold at one time. */
uint64_t cf_retained_max(const cf_schedule_params *params, uint32_t stage);

/* Whether a recompute sends and receives as its forward did. */
bool cf_recompute_travels(const cf_schedule_params *params);

/* Whether a local recompute runs only once the gradient is there. */
bool cf_recompute_waits(const cf_schedule_params *params);

/* one_f_one_b.c: write the compute-only order of one stage, 2 ops a chunk and
 * one more for each dropped chunk, to ops. */
void cf_one_f_one_b(const cf_chunk_plan *plan, const cf_schedule_params *params,
                    uint32_t stage, cf_op *ops);

/* lower.c: write the compute-only order of one stage to ops, with its sends and
 * receives.  Returns how many ops that made.  compute may lie at the end of the
 * range that ops starts, provided the result fits into that range. */
size_t cf_lower(const cf_op *compute, size_t n_compute,
                const cf_schedule_params *params, uint32_t stage, cf_op *ops);

/* schedule_check.c: what cf_schedule_check needs.  Errors: CF_OVERFLOW. */
CF_MUST_USE cf_status cf_schedule_check_scratch(size_t n_chunks,
                                                uint32_t n_stages,
                                                size_t *scratch_bytes_p);

#endif
