/* forecast.h - how long a run will take.
 *
 * A sequence costs its linear layers, which grow with its tokens, and its
 * attention, which grows with their square; what is recomputed is counted again.
 * Before anything has run, that is divided by the speed of one small GEMM,
 * measured for a moment: expect it to be off by a third or so, more for a model
 * of toy size.  As soon as a step has run, what it took over what was forecast
 * corrects all that is to come, so that a step with one long sequence does not
 * mislead about the short ones.
 *
 * Times only: nothing that is computed depends on it.
 */
#ifndef CF_FORECAST_H
#define CF_FORECAST_H

#include "src/batches.h"
#include "src/model.h"
#include "src/stage_split.h"
#include "src/step_plan.h"

/* The backward of attention, in forwards: five products of matrices to two. */
#define CF_ATTENTION_BACKWARD 2.5

typedef struct cf_forecast {
    double token_flop;      /* linear layers, one token, forward */
    double target_flop;     /* head, one target, forward */
    double pair_flop;       /* attention, one query and key, forward */
    double trained;         /* share of the layers that have a backward */
    double linear_backward; /* of linear layers and head, in forwards */
    double
        linear_again; /* linear layers recomputed in a kept chunk, forwards */
    uint32_t retained_tok; /* of a long sequence, not recomputed as a whole */
    double
        attention_again; /* of what is recomputed: 1, or 0 where it is kept */
    double update_s;     /* the optimizer */
    double flop_per_s;   /* measured */
    uint64_t n_steps;    /* to run */
    double steps_s;      /* of them, as first forecast */
    double run_s;        /* of all that is to run, as first forecast */
    double passed_s;     /* of what has run, as first forecast */
    double measured_s;   /* of what has run, by the clock */
} cf_forecast;

/* The flops of a model, without its machine and without a plan. */
cf_forecast cf_forecast_flops(const cf_model *model);

/* What the optimizer takes for one trained element, by the bytes that it moves. */
double cf_forecast_update_element_s(const cf_model *model);

/* The costs of a model, with the plan's limits; measures the machine for about
 * 50 ms, and takes n_ranks to be as many times as fast.  Errors, logged:
 * CF_NO_MEMORY. */
CF_MUST_USE cf_status cf_forecast_open(const cf_model *model,
                                       const cf_step_plan_need *need,
                                       cf_recompute policy, uint32_t n_ranks,
                                       cf_forecast *forecast);

/* What training on one sequence costs: equal on every rank, whatever its
 * speed. */
double cf_forecast_sequence_flop(const cf_forecast *forecast, uint32_t len_tok,
                                 uint32_t n_targets);

/* What an op of a chunk costs, in the same unit: to tell how much of a step is
 * done.  The head counts where the stage has it. */
double cf_forecast_op_flop(const cf_forecast *forecast, const cf_chunk *chunk,
                           cf_op_kind kind, bool has_head);

/* What layers and head cost with data of these lengths. */
cf_stage_costs cf_forecast_stage_costs(const cf_model *model,
                                       const cf_dataset *dataset);
/* The same with a batch whose every token but the first is a target. */
cf_stage_costs cf_forecast_stage_costs_of(const cf_model *model,
                                          const uint32_t *len_tok, size_t n);

/* What a training step, or an evaluation, over these sequences will take, as
 * first forecast. */
double cf_forecast_step_s(const cf_forecast *forecast,
                          const cf_dataset *dataset, const uint32_t *sequences,
                          size_t n);
double cf_forecast_evaluation_s(const cf_forecast *forecast,
                                const cf_dataset *dataset,
                                const uint32_t *sequences, size_t n);

/* Add steps first_step .. last_step to what is to run; nothing when there are
 * none.  More than a few thousand are told from the first of them.  scratch has
 * room for one batch. */
void cf_forecast_add_steps(cf_forecast *forecast, const cf_batches *batches,
                           uint64_t first_step, uint64_t last_step,
                           uint32_t *scratch);

/* Add something else that is to run. */
void cf_forecast_add(cf_forecast *forecast, double forecast_s);

/* Something forecast has run. */
void cf_forecast_pass(cf_forecast *forecast, double forecast_s,
                      double measured_s);

/* What is still to run, corrected by what has. */
double cf_forecast_remaining_s(const cf_forecast *forecast);

/* The same without what this much of it will take, as first forecast. */
double cf_forecast_remaining_after_s(const cf_forecast *forecast,
                                     double forecast_s);

/* "about 31 s a step, 1h20m to the end", corrected likewise.  Returns buf. */
const char *cf_forecast_format(const cf_forecast *forecast, char *buf,
                               size_t size);

#endif
