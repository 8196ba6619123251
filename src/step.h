/* step.h - one optimizer step over one global batch, on all ranks together. */
#ifndef CF_STEP_H
#define CF_STEP_H

#include "src/engine.h"
#include "src/metrics.h"
#include "src/reduction.h"
#include "src/step_plan.h"
#include "src/step_share.h"

typedef struct cf_step {
    const cf_dataset *dataset; /* borrowed, as all of these */
    const cf_step_plan_need *need;
    cf_comm *comm; /* NULL, as shares and reduction: gradients only */
    const cf_step_shares *shares;
    cf_model *model;
    cf_engine *engine;
    cf_step_plan *plan;
    cf_reduction *reduction;
    /* Called when the gradients are there, before weights and moments change;
     * may be NULL. */
    void (*before_update)(void *context);
    void *context;
} cf_step;

/* Loss and gradients of the planned batch, of what this rank runs of it: its
 * share of the loss per target token (0 but on a last stage), and in the model's
 * gradients that of it.  Errors, logged. */
CF_MUST_USE cf_status cf_step_gradients(const cf_step *step, uint64_t number,
                                        double *loss_p);

/* The whole of it: plan the sequences in plan->batch, those of this replica by
 * plan->replica_of, gradients, clip, update.  n_updates counts the updates so
 * far: a step without targets changes nothing.  Fills the report, equal on all
 * ranks, but for the times.  Errors, logged. */
CF_MUST_USE cf_status cf_step_run(const cf_step *step,
                                  const cf_options *options, uint64_t number,
                                  uint64_t n_steps, uint64_t *n_updates,
                                  cf_step_report *report);

#endif
