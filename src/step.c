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
        .comm = step->comm,
        .stage = step->need->stage,
    };
    cf_op_ref where = {0};
    cf_status status;

    cf_model_zero_gradients(step->model);
    status = cf_engine_begin_step(step->engine, &batch, &plan->chunks,
                                  &plan->schedule);
    if (status == CF_OK)
        status = cf_execute(&plan->chunks, &plan->schedule, batch.stage,
                            &cf_engine_callbacks, step->engine, &where);
    if (status == CF_OK)
        status = cf_engine_end_step(step->engine);
    cf_op_times_add(step->engine->times, CF_TIME_MESSAGES,
                    step->engine->exchange.waited_s);
    if (status != CF_OK) {
        if (status != CF_NOT_FINITE && status != CF_COMM)
            cf_log_error("step %" PRIu64 ": op %zu failed (%s)", number,
                         where.op, cf_status_str(status));
        return status;
    }
    *loss_p = cf_engine_loss(step->engine, &plan->chunks) * loss_scale;
    return CF_OK;
}

/* The norm is one on all ranks; a tensor to blame may be on any of them, or on
 * none, when finite gradients have too large a norm. */
static cf_status norm_check(const cf_step *step, uint64_t number, double norm)
{
    cf_comm *comm = step->comm;
    const char *name;
    cf_status status = CF_OK;

    if (isfinite(norm))
        return CF_OK;
    name = cf_model_first_bad_gradient(step->model);
    if (name != NULL) {
        cf_log_error("step %" PRIu64 ": the gradient of '%s' is not finite: "
                     "lower --learning-rate",
                     number, name);
        status = CF_NOT_FINITE;
    }
    status = cf_comm_agree(comm, status);
    if (status != CF_OK)
        return status;
    cf_log_error("step %" PRIu64 ": the norm of the gradient is not finite: "
                 "lower --learning-rate",
                 number);
    return cf_comm_agree(comm, CF_NOT_FINITE);
}

static uint64_t recomputed_chunks(const cf_step_plan *plan, uint32_t stage)
{
    const cf_schedule *s = &plan->schedule;
    uint64_t n = 0;

    for (size_t i = s->first_op[stage]; i < s->first_op[stage + 1]; i++)
        n += s->ops[i].kind == CF_OP_RECOMPUTE;
    return n;
}

/* What this rank did; all of them together are the report. */
static cf_status results_share(const cf_step *step, double loss,
                               cf_step_report *report)
{
    const cf_engine *engine = step->engine;
    cf_step_share mine = {
        .loss = loss,
        .busy_s = engine->busy_s,
        .span_s = engine->span_s,
        .waited_s = engine->exchange.waited_s,
        .sent_bytes = engine->exchange.sent_bytes + step->reduction->sent_bytes,
        .peak_bytes = cf_engine_peak_bytes(engine),
    };

    if (step->model->stage.is_first) {
        mine.chunks = step->plan->chunks.n_chunks;
        mine.recomputed = recomputed_chunks(step->plan, step->need->stage);
    }
    return cf_step_shares_results(step->shares, &mine, report);
}

/* What a reduction does beside its operations: with several ranks, messages. */
static void reduction_count(const cf_step *step, cf_time_mark mark)
{
    const bool is_alone = cf_comm_size(step->comm) == 1;

    cf_op_times_count(step->engine->times,
                      is_alone ? CF_TIME_REDUCTIONS : CF_TIME_MESSAGES, mark);
}

/* Forward, backward, and the exchange with other ranks. */
static cf_status gradients_run(const cf_step *step, uint64_t number,
                               cf_step_report *report, double *loss_p)
{
    cf_time_mark mark;
    cf_status status;

    cf_reduction_begin_step(step->reduction, number);
    status = cf_step_gradients(step, number, loss_p);
    mark = cf_op_times_mark(step->engine->times);
    if (status == CF_OK)
        status = cf_reduction_gradients(step->reduction);
    if (status == CF_OK)
        status = cf_reduction_norm(step->reduction, &report->grad_norm);
    reduction_count(step, mark);
    if (status == CF_OK)
        status = norm_check(step, number, report->grad_norm);
    return status;
}

/* The chunks and the schedule of the step, and what the ranks tell each other of
 * them. */
static cf_status plan_build(const cf_step *step, uint64_t number)
{
    cf_op_times *times = step->engine->times;
    cf_time_mark mark = cf_op_times_mark(times);
    cf_status status =
        cf_step_plan_build(step->plan, step->dataset, step->need);

    cf_op_times_count(times, CF_TIME_DATA, mark);
    mark = cf_op_times_mark(times);
    if (status == CF_OK)
        status = cf_step_shares_plan(step->shares, step->plan, number);
    cf_op_times_count(times, CF_TIME_MESSAGES, mark);
    return status;
}

/* A state that is being saved reads what the update changes. */
static void before_update(const cf_step *step)
{
    const cf_time_mark mark = cf_op_times_mark(step->engine->times);

    if (step->before_update != NULL)
        step->before_update(step->context);
    cf_op_times_count(step->engine->times, CF_TIME_SAVING, mark);
}

/* The new weights everywhere, and the report. */
static cf_status weights_share(const cf_step *step, double loss,
                               cf_step_report *report)
{
    cf_time_mark mark = cf_op_times_mark(step->engine->times);
    cf_status status = cf_reduction_weights(step->reduction);

    reduction_count(step, mark);
    if (status != CF_OK)
        return status;
    mark = cf_op_times_mark(step->engine->times);
    status = results_share(step, loss, report);
    cf_op_times_count(step->engine->times, CF_TIME_MESSAGES, mark);
    return status;
}

cf_status cf_step_run(const cf_step *step, const cf_options *options,
                      uint64_t number, uint64_t n_steps, uint64_t *n_updates,
                      cf_step_report *report)
{
    const cf_step_plan *plan = step->plan;
    double loss;
    cf_status status = plan_build(step, number);

    if (status != CF_OK)
        return status;
    *report = (cf_step_report){
        .step = number,
        .learning_rate = cf_learning_rate(options, number, n_steps),
        .sequences = plan->n_batch,
        .tokens = plan->tokens,
        .target_tokens = plan->target_tokens,
        .has_loss = plan->target_tokens > 0,
    };
    if (!report->has_loss)
        return CF_OK;

    status = gradients_run(step, number, report, &loss);
    if (status != CF_OK)
        return status;
    before_update(step);
    *n_updates += 1;
    cf_optimizer_update(
        step->model, options, report->learning_rate,
        cf_clip_coefficient(report->grad_norm, options->grad_clip), *n_updates);
    return weights_share(step, loss, report);
}
