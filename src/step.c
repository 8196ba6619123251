/* step.c - one optimizer step, top to bottom.
 *
 * The loss of a step is the sum of the cross-entropy of all its target tokens,
 * divided by their count, which is known before the first backward.
 */
#include "src/step.h"

#include <inttypes.h>
#include <math.h>

#include "src/log.h"
#include "src/optimizer.h"

cf_status cf_step_gradients(const cf_step *step, uint64_t number,
                            double *loss_p)
{
    const cf_step_plan *plan = step->plan;
    const double loss_scale = 1 / (double)plan->target_tokens;
    const cf_engine_batch batch = {
        .dataset = step->dataset,
        .sequences = plan->sequences,
        .step = number,
        .loss_scale = loss_scale,
    };
    cf_op_ref where;
    cf_status status;

    cf_model_zero_gradients(step->model);
    status = cf_engine_begin_step(step->engine, &batch, &plan->chunks,
                                  &plan->schedule);
    if (status != CF_OK)
        return status;
    status = cf_execute(&plan->chunks, &plan->schedule, batch.stage,
                        &cf_engine_callbacks, step->engine, &where);
    if (status == CF_OK)
        status = cf_engine_end_step(step->engine);
    if (status != CF_OK) {
        if (status != CF_NOT_FINITE)
            cf_log_error("step %" PRIu64 ": op %zu failed (%s)", number,
                         where.op, cf_status_str(status));
        return status;
    }
    cf_model_finish_gradients(step->model);
    *loss_p = cf_engine_loss(step->engine, &plan->chunks) * loss_scale;
    return CF_OK;
}

static cf_status norm_check(const cf_step *step, uint64_t number, double norm)
{
    const char *name;

    if (isfinite(norm))
        return CF_OK;
    name = cf_model_first_bad_gradient(step->model);
    cf_log_error("step %" PRIu64 ": the gradient of '%s' is not finite: lower "
                 "--learning-rate",
                 number, name != NULL ? name : "all tensors together");
    return CF_NOT_FINITE;
}

static void report_counts(const cf_step_plan *plan, cf_step_report *report)
{
    const cf_schedule *s = &plan->schedule;

    report->sequences = plan->n_batch;
    report->tokens = plan->tokens;
    report->target_tokens = plan->target_tokens;
    report->chunks = plan->chunks.n_chunks;
    for (size_t i = 0; i < s->first_op[1]; i++)
        report->recomputed_chunks += s->ops[i].kind == CF_OP_RECOMPUTE;
}

cf_status cf_step_run(const cf_step *step, const cf_options *options,
                      uint64_t number, uint64_t n_steps, uint64_t *n_updates,
                      cf_step_report *report)
{
    cf_status status =
        cf_step_plan_build(step->plan, step->dataset, step->need);

    if (status != CF_OK)
        return status;
    *report = (cf_step_report){
        .step = number,
        .learning_rate = cf_learning_rate(options, number, n_steps),
    };
    report_counts(step->plan, report);
    if (step->plan->target_tokens == 0)
        return CF_OK;

    status = cf_step_gradients(step, number, &report->loss);
    if (status != CF_OK)
        return status;
    report->has_loss = true;
    report->peak_bytes = cf_engine_peak_bytes(step->engine);
    cf_model_norm_partials(step->model);
    report->grad_norm = cf_model_norm(step->model);
    status = norm_check(step, number, report->grad_norm);
    if (status != CF_OK)
        return status;
    if (step->before_update != NULL)
        step->before_update(step->context);
    *n_updates += 1;
    cf_optimizer_update(
        step->model, options, report->learning_rate,
        cf_clip_coefficient(report->grad_norm, options->grad_clip), *n_updates);
    return CF_OK;
}
