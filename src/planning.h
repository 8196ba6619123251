/* planning.h - settings for a training run, sized and timed: what plan prints, and
 * what train takes where an option is auto.
 *
 * (1) Bytes are those of train's own dry carve, to the byte, of every stage.
 * (2) Times are a simulation of real batches, evenly spread over the first epoch,
 *     planned, placed and scheduled as train would.
 * (3) The choice depends on model, data, options and costs alone.  Built-in costs
 *     are the same everywhere; measured ones are a file.
 * (4) No weight is loaded.
 */
#ifndef CF_PLANNING_H
#define CF_PLANNING_H

#include "src/planner.h"
#include "src/training.h"

enum {
    CF_PLANNING_BATCHES_MAX = 16 /* that are timed */
};

/* Of one number of stages, what does not depend on the rest of a point. */
typedef struct cf_layout {
    uint32_t n_stages; /* 0: none yet */
    uint32_t n_replicas;
    cf_stage *stages;       /* [n_stages], owned */
    uint32_t *largest;      /* [n_stages]: the replica with the most moments */
    size_t *bytes;          /* [n_stages]: of the point sized last */
    cf_stage_cost *costs;   /* [CF_RECOMPUTES, 2, n_stages]: attention kept or
                               not */
    cf_cost_terms sequence; /* for placement */
    double step_end_s;
} cf_layout;

typedef struct cf_planning {
    /* Borrowed.  Its data is open; its resolved options, grid, model table and
     * bounds are those of the point that was looked at last. */
    cf_training *t;
    uint32_t n_ranks;
    cf_stage_costs split;
    cf_layout layout;
    uint32_t *len_tok; /* owned: of the batches, one behind another */
    size_t first[CF_PLANNING_BATCHES_MAX + 1];
    uint64_t step[CF_PLANNING_BATCHES_MAX]; /* that they are */
    /* Of each, those without a target included. */
    uint64_t tokens[CF_PLANNING_BATCHES_MAX];
    size_t n_batches;
    double target_share;
    cf_planner_point *points; /* owned */
    size_t n_points;
    size_t best; /* n_points: none fits */
} cf_planning;

/* Into t->costs, what measured costs there are for this run, or built-in ones: of
 * rank 0, sent to all.  All ranks call it.  Errors, logged. */
CF_MUST_USE cf_status cf_planning_costs(cf_training *t);

/* Collect the batches, to plan with t->costs for so many ranks.  Close it in any
 * case, which gives the model back the part that this rank has.  Errors,
 * logged. */
CF_MUST_USE cf_status cf_planning_open(cf_training *t, uint32_t n_ranks,
                                       cf_planning *planning);
void cf_planning_close(cf_planning *planning);

/* Size and time every point of the range, whose longest_tok and n_layers are
 * filled in.  Errors, logged. */
CF_MUST_USE cf_status cf_planning_search(cf_planning *planning,
                                         cf_planner_range range,
                                         uint64_t budget);

/* One point: its bytes, and with t->sizes the table of the stage that needs most;
 * its time. */
CF_MUST_USE cf_status cf_planning_size(cf_planning *planning,
                                       cf_planner_point *point);
CF_MUST_USE cf_status cf_planning_time(cf_planning *planning,
                                       cf_planner_point *point);

/* Of the point sized last, one stage: the table of the rank that needs most, whose
 * bounds and part of the model t then has. */
CF_MUST_USE cf_status cf_planning_size_stage(cf_planning *planning,
                                             uint32_t stage, cf_arena *sizes);

/* A mean step of a point that was timed.  scale is 1 for measured costs, and
 * for built-in ones how much slower this machine is than a nominal one. */
double cf_planning_step_s(const cf_planning *planning,
                          const cf_planner_point *point, double scale);

double cf_planning_tokens_per_s(const cf_planning *planning,
                                const cf_planner_point *point, double scale);

/* Log that no point of the range fits, which needs least, and why; after a
 * search.  Returns CF_NO_MEMORY, or what went wrong before, logged. */
CF_MUST_USE cf_status cf_planning_refuse(cf_planning *planning,
                                         uint64_t budget);

/* KV state and its gradients in a table of sizes. */
size_t cf_planning_kv_bytes(const cf_arena *sizes);

#endif
