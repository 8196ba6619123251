/* step_plan.h - from the sequences of one step to a checked op list.
 *
 * Sequences without a target are left out: they contribute exactly nothing.
 * Every plan and every schedule is proved before it is used, and what it needs on
 * this stage is held against the memory that there is.
 */
#ifndef CF_STEP_PLAN_H
#define CF_STEP_PLAN_H

#include <chunkflow/chunk.h>
#include <chunkflow/schedule.h>

#include "src/arena.h"
#include "src/batches.h"
#include "src/engine.h"
#include "src/stage_need.h"

typedef struct cf_step_plan {
    uint32_t *batch;     /* [n_batch]: data set indices, all of the step */
    uint32_t *sequences; /* [n_sequences]: those with a target that it runs */
    uint32_t *len_tok;   /* [n_sequences] */
    /* [n_batch]: the replica that runs each; NULL: this one runs all. */
    uint32_t *replica_of;
    uint32_t replica; /* this one */
    size_t n_batch;
    size_t n_sequences;
    uint64_t tokens; /* of the batch, over all replicas */
    uint64_t target_tokens;
    cf_chunk_plan chunks;
    cf_schedule schedule;
    cf_stage_need peak; /* what the step will hold on this stage */
} cf_step_plan;

/* The capacities of a plan that suffice for every step of a run, and what the
 * engine needs for them. */
typedef struct cf_step_plan_need {
    size_t n_batch;
    cf_chunk_bound chunks;
    cf_schedule_need schedule;
    cf_schedule_params params;
    uint32_t stage; /* this one */
    uint32_t chunk_size_tok;
    uint32_t longest_tok;
    cf_stage_need most; /* of this stage, in any step */
    cf_engine_need engine;
} cf_step_plan_need;

/* What of a run a bound needs to know. */
typedef struct cf_step_plan_params {
    size_t n_batch; /* sequences of a step, at most */
    uint32_t
        chunk_size_tok; /* under 1F1B every sequence is one chunk instead */
    cf_schedule_params schedule; /* retained_chunks_max 0: evaluation */
    uint32_t stage;
    bool keep_attention; /* of dropped chunks */
} cf_step_plan_params;

/* Of the sequences that a step may get, those that decide what it needs: the
 * longest that have a target, as many as it may get. */
typedef struct cf_longest {
    uint32_t *len_tok; /* owned, longest first */
    size_t n;
} cf_longest;

/* Of these sequences the longest, n_batch at most.  Errors, logged:
 * CF_NO_MEMORY. */
CF_MUST_USE cf_status cf_longest_open(const cf_dataset *dataset,
                                      const uint32_t *sequences,
                                      size_t n_sequences, size_t n_batch,
                                      cf_longest *longest);
void cf_longest_close(cf_longest *longest);

/* For steps that may get no longer sequences than these, which are at least one.
 * Errors, logged: CF_NO_MEMORY, CF_OVERFLOW. */
CF_MUST_USE cf_status cf_step_plan_bound_of(const cf_longest *longest,
                                            const cf_step_plan_params *params,
                                            cf_step_plan_need *need_p);

/* For steps of sequences that are drawn from these.  Errors, logged:
 * CF_NO_MEMORY, CF_OVERFLOW. */
CF_MUST_USE cf_status cf_step_plan_bound(const cf_dataset *dataset,
                                         const uint32_t *sequences,
                                         size_t n_sequences,
                                         const cf_step_plan_params *params,
                                         cf_step_plan_need *need_p);

void cf_step_plan_carve(cf_step_plan *plan, const cf_step_plan_need *need,
                        cf_arena *arena);

/* Chunk and schedule the n_batch sequences in plan->batch, and check both.
 * Errors, logged: a status other than CF_OK is a bug. */
CF_MUST_USE cf_status cf_step_plan_build(cf_step_plan *plan,
                                         const cf_dataset *dataset,
                                         const cf_step_plan_need *need);

#endif
