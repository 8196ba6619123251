/* step.h - one optimizer step over one global batch. */
#ifndef CF_STEP_H
#define CF_STEP_H

#include "src/engine.h"
#include "src/metrics.h"
#include "src/step_plan.h"

typedef struct cf_step {
    const cf_dataset *dataset; /* borrowed, as all of these */
    const cf_step_plan_need *need;
    cf_model *model;
    cf_engine *engine;
    cf_step_plan *plan;
    /* Called when the gradients are there, before weights and moments change;
     * may be NULL. */
    void (*before_update)(void *context);
    void *context;
} cf_step;

/* Loss and gradients of the planned batch: the loss per target token, and in
 * the model's gradients that of it.  Errors, logged. */
CF_MUST_USE cf_status cf_step_gradients(const cf_step *step, uint64_t number,
                                        double *loss_p);

/* The whole of it: plan the sequences in plan->batch, gradients, clip, update.
 * n_updates counts the updates so far: a step without targets changes nothing.
 * Fills the report but for the times.  Errors, logged. */
CF_MUST_USE cf_status cf_step_run(const cf_step *step,
                                  const cf_options *options, uint64_t number,
                                  uint64_t n_steps, uint64_t *n_updates,
                                  cf_step_report *report);

#endif
