/* stage_need.h - what one stage of a pipeline holds at one time, at most.
 *
 * A bound, told before a run from the longest sequences alone, and the figure of
 * one step, counted along its op list.  A stage holds chunks whose activations
 * are kept, dropped chunks until their recompute (dropped.h), and the KV state of
 * every group from its first forward to its last backward.
 */
#ifndef CF_STAGE_NEED_H
#define CF_STAGE_NEED_H

#include <chunkflow/chunk.h>
#include <chunkflow/schedule.h>

typedef struct cf_stage_need {
    uint32_t n_slots;      /* retained chunks */
    uint32_t n_dropped;    /* chunks between their forward and recompute */
    uint32_t n_pages;      /* of KV state */
    uint32_t n_groups;     /* that have pages */
    uint32_t n_standalone; /* of them, standalone chunks */
} cf_stage_need;

/* What a bound is told from. */
typedef struct cf_stage_load {
    cf_schedule_params params; /* retained_chunks_max 0: evaluation */
    uint32_t stage;
    uint32_t chunk_size_tok;
    const uint32_t *len_tok; /* [n]: the longest of all that a step may get, */
    size_t n;                /* longest first, and as many as it may get */
} cf_stage_load;

/* No step of such sequences needs more.  With one stage it is what a step that
 * has the longest of them needs. */
cf_stage_need cf_stage_need_bound(const cf_stage_load *load);

/* What this step needs on a stage.  The schedule must have been checked. */
cf_stage_need cf_stage_need_of(const cf_chunk_plan *plan,
                               const cf_schedule *schedule, uint32_t stage);

/* Whether all of it is within the bound. */
int cf_stage_need_fits(const cf_stage_need *need, const cf_stage_need *bound);

#endif
