/* step_plan.h - from the sequences of one step to a checked op list.
 *
 * Sequences without a target are left out: they contribute exactly nothing.
 * Every plan and every schedule is proved before it is used.
 */
#ifndef CF_STEP_PLAN_H
#define CF_STEP_PLAN_H

#include <chunkflow/chunk.h>
#include <chunkflow/schedule.h>

#include "src/arena.h"
#include "src/batches.h"
#include "src/engine.h"

typedef struct cf_step_plan {
    uint32_t *batch;     /* [n_batch]: data set indices, all of the step */
    uint32_t *sequences; /* [n_sequences]: those with a target */
    uint32_t *len_tok;   /* [n_sequences] */
    size_t n_batch;
    size_t n_sequences;
    uint64_t tokens; /* of the batch */
    uint64_t target_tokens;
    cf_chunk_plan chunks;
    cf_schedule schedule;
} cf_step_plan;

/* The capacities of a plan that suffice for every step of a run, and what the
 * engine needs for them. */
typedef struct cf_step_plan_need {
    size_t n_batch;
    cf_chunk_bound chunks;
    cf_schedule_need schedule;
    cf_schedule_params params;
    uint32_t chunk_size_tok;
    uint32_t longest_tok;
    cf_engine_need engine;
} cf_step_plan_need;

/* n_seqs sequences at most in a step, drawn from these.  retained_chunks_max 0
 * means evaluation: nothing is kept.  Errors, logged: CF_NO_MEMORY,
 * CF_OVERFLOW. */
CF_MUST_USE cf_status cf_step_plan_bound(const cf_dataset *dataset,
                                         const uint32_t *sequences,
                                         size_t n_sequences, size_t n_batch,
                                         uint32_t chunk_size_tok,
                                         uint32_t retained_chunks_max,
                                         cf_step_plan_need *need_p);

void cf_step_plan_carve(cf_step_plan *plan, const cf_step_plan_need *need,
                        cf_arena *arena);

/* Chunk and schedule the n_batch sequences in plan->batch, and check both.
 * Errors, logged: a status other than CF_OK is a bug. */
CF_MUST_USE cf_status cf_step_plan_build(cf_step_plan *plan,
                                         const cf_dataset *dataset,
                                         const cf_step_plan_need *need);

/* The same with every sequence whole: one chunk each, nothing packed, nothing
 * cut.  The need must come from a chunk size of at least the longest. */
CF_MUST_USE cf_status cf_step_plan_build_whole(cf_step_plan *plan,
                                               const cf_dataset *dataset,
                                               const cf_step_plan_need *need);

#endif
