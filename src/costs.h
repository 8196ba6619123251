/* costs.h - what the ops of a model cost: built in, or measured on this machine.
 *
 * A cost is of one layer, so that it tells about any number of layers and any
 * split of them over stages; the head, and what a chunk costs beside layers and
 * head, stand apart.
 *
 * (1) Built-in costs are flops over a nominal speed: the same everywhere and
 *     every time.  Measured ones are seconds on this machine (calibration.h).
 * (2) Plain data, equal on all ranks once rank 0 has sent its own.
 */
#ifndef CF_COSTS_H
#define CF_COSTS_H

#include <stdbool.h>

#include "src/cost_file.h"
#include "src/model.h"
#include "src/options.h"

enum {
    CF_RECOMPUTES = CF_RECOMPUTE_LAYER + 1
};

/* As --recompute has it. */
const char *cf_recompute_str(cf_recompute recompute);

/* Seconds; nominal ones where they are built in. */
typedef struct cf_costs {
    cf_cost_terms forward;   /* of a layer: kept, or computed again */
    cf_cost_terms attention; /* of that, attention: not in a recompute that
                                 finds it kept */
    cf_cost_terms
        forward_kv; /* of a forward, what K and V need: all that a dropped
                                 forward does in the last layer of a model */
    cf_cost_terms backward[CF_RECOMPUTES]; /* of a layer, by policy */
    cf_cost_terms head;          /* in a backward; per_tok: a target */
    cf_cost_terms chunk_forward; /* beside them, on a stage */
    cf_cost_terms chunk_backward;
    double update_element_s; /* of the optimizer */
    double error;            /* of a step it was not fitted to, or of the fit
                                when that is more; 0: built in */
    bool is_measured;
} cf_costs;

/* A nominal core. */
#define CF_NOMINAL_FLOP_PER_S 4e10

cf_costs cf_costs_built_in(const cf_model *model);

/* What of a forward of one layer K and V need, by flops of its GEMMs. */
double cf_costs_kv_share(const cf_model_config *config);

/* How a chunk is kept, and what a dropped one leaves behind. */
typedef struct cf_kept {
    cf_recompute recompute;
    bool attention;
} cf_kept;

/* The ops of the stage that the model has taken; target_share of the tokens are
 * targets. */
cf_stage_cost cf_costs_stage(const cf_costs *costs, const cf_model *model,
                             cf_kept kept, double target_share);

/* A message between stages, and what follows the last op of a step: the sum over
 * n_replicas and the update of what the stage trains.  Between two ranks of a
 * node: not measured. */
cf_cost_terms cf_costs_message(const cf_model *model);
double cf_costs_step_end_s(const cf_costs *costs, const cf_model *model,
                           uint32_t n_replicas);

#endif
