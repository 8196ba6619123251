/* rehearsal.h - a global batch run on paper: placed on replicas, planned,
 * scheduled, checked and timed.  No model, no ranks, no kernels.
 *
 * (1) Placement, plan, schedule and check are those of `train`: what is rehearsed
 *     is what would run.
 * (2) The step is as long as its slowest replica; the others wait for it, which
 *     is idle time as well.
 */
#ifndef CF_REHEARSAL_H
#define CF_REHEARSAL_H

#include <chunkflow/simulate.h>

#include <stdbool.h>

typedef struct cf_rehearsal_input {
    const uint32_t *len_tok; /* [n_sequences], borrowed */
    size_t n_sequences;
    uint32_t n_replicas;
    uint32_t chunk_size_tok; /* of no meaning where sequences stay whole */
    cf_schedule_params params;
    cf_cost_model cost;
    cf_cost_terms sequence; /* what placement counts of a sequence, on a stage;
                               per_op is not read */
} cf_rehearsal_input;

/* What one replica does; its arrays are owned. */
typedef struct cf_rehearsed_pipeline {
    uint32_t *len_tok; /* [n_sequences], in batch order */
    size_t n_sequences;
    cf_chunk_plan plan;
    cf_schedule schedule;
    cf_simulation simulation; /* with times */
    size_t bytes;             /* of all this */
} cf_rehearsed_pipeline;

typedef struct cf_rehearsed_replica {
    size_t n_sequences;
    double load; /* what the placement predicts: all work, on one stage */
    double makespan;
    double bubble_ratio;
} cf_rehearsed_replica;

typedef struct cf_rehearsal {
    cf_rehearsed_pipeline slowest;  /* the first of the slowest replicas */
    cf_rehearsed_replica *replicas; /* [n_replicas], owned */
    cf_stage_peak *peaks;           /* [n_stages], owned: of any replica */
    double makespan;
    double bubble_ratio; /* over all replicas, and so is useful */
    double useful;
    double load_ratio; /* the largest load over the mean of all; 1 when there is
                          no load */
} cf_rehearsal;

/* Whether this kind takes every sequence whole. */
bool cf_rehearsal_is_whole(const cf_rehearsal_input *input);

/* Close what comes back.  Errors, logged: CF_NO_MEMORY, with the number; what
 * else the library returns would be a bug. */
CF_MUST_USE cf_status cf_rehearsal_open(const cf_rehearsal_input *input,
                                        cf_rehearsal *rehearsal);
void cf_rehearsal_close(cf_rehearsal *rehearsal);

/* ---- inside: rehearsal_pipeline.c ---- */

/* Plan, schedule, check and time pipeline->len_tok.  Close it in any case. */
CF_MUST_USE cf_status cf_rehearsed_pipeline_open(
    const cf_rehearsal_input *input, cf_rehearsed_pipeline *pipeline);
void cf_rehearsed_pipeline_close(cf_rehearsed_pipeline *pipeline);

#endif
