/* training_steps.c - the steps of a run, and what stands between two of them. */
#include "src/clock.h"
#include "src/training.h"

#include <inttypes.h>
#include <string.h>

#include "src/log.h"
#include "src/placement.h"
#include "src/signals.h"

/* The op list of a step, cut off where the line gets too long to read. */
static void schedule_print(const cf_training *t)
{
    char line[4096];
    size_t n = cf_schedule_format(&t->plan.schedule, line, sizeof(line));

    cf_log_info("%.*s%s", (int)strcspn(line, "\n"), line,
                n < sizeof(line) ? "" : " ...");
}

/* The sequences of a step, read. */
static cf_status batch_read(cf_training *t)
{
    const cf_time_mark mark = cf_op_times_mark(t->engine.times);
    cf_status status =
        cf_dataset_prepare(t->run.dataset, t->plan.batch, t->plan.n_batch);

    cf_op_times_count(t->engine.times, CF_TIME_DATA, mark);
    return status;
}

/* The state that is being saved is complete. */
static void saver_settle(cf_training *t)
{
    const cf_time_mark mark = cf_op_times_mark(t->engine.times);

    cf_saver_settle(&t->saver);
    cf_op_times_count(t->engine.times, CF_TIME_SAVING, mark);
}

/* The evaluation that follows a step, if one does. */
cf_status cf_training_validate(cf_training *t, uint64_t step)
{
    const double start = cf_clock_s();
    cf_status status;

    if (!cf_validation_is_due(&t->validation, step, t->batches.n_steps))
        return CF_OK;
    status = cf_validation_run(&t->validation, step, t->metrics);
    cf_arena_take_turn(&t->run.arena, t->validation.arena_from,
                       cf_training_carve_engine, t);
    cf_forecast_pass(&t->forecast, t->validation.forecast_s,
                     cf_clock_s() - start);
    if (t->validation.peak_bytes > t->peak_bytes)
        t->peak_bytes = t->validation.peak_bytes;
    return status;
}

/* The signal that ends the run: with several ranks one that all know of. */
int cf_training_signal(const cf_training *t)
{
    return cf_comm_size(t->comm) > 1 ? t->signal : cf_signals_noted();
}

bool cf_training_goes_on(const cf_training *t, uint64_t number)
{
    return number <= t->batches.n_steps && cf_training_signal(t) == 0 &&
           !cf_validation_is_over(&t->validation);
}

/* Which replica runs which sequence of the batch. */
static cf_status place(cf_training *t, double *max_over_mean_p)
{
    const cf_dataset *dataset = t->run.dataset;
    const uint32_t *len_tok = cf_dataset_lengths(dataset);
    const uint32_t *targets = cf_dataset_target_counts(dataset);
    const uint32_t n_replicas = t->run.grid.n_replicas;
    double sum = 0, most = 0;
    cf_status status;

    if (n_replicas == 1)
        return CF_OK;
    for (size_t i = 0; i < t->plan.n_batch; i++) {
        uint32_t sequence = t->plan.batch[i];

        t->placing.cost[i] = cf_forecast_sequence_flop(
            &t->forecast, len_tok[sequence], targets[sequence]);
    }
    status = cf_placement_build(t->placing.cost, t->plan.n_batch, n_replicas,
                                t->placing.scratch, t->placing.scratch_bytes,
                                t->plan.replica_of, t->placing.load);
    if (status != CF_OK) {
        cf_log_error("the sequences of a step could not be placed (%s): please "
                     "report it with the lengths of the batch",
                     cf_status_str(status));
        return status;
    }
    for (uint32_t i = 0; i < n_replicas; i++) {
        sum += t->placing.load[i];
        most = t->placing.load[i] > most ? t->placing.load[i] : most;
    }
    *max_over_mean_p = sum > 0 ? most * n_replicas / sum : 1;
    return CF_OK;
}

/* One step, but for what is told of it. */
static cf_status step_run(cf_training *t, const cf_step *step, uint64_t number,
                          cf_step_report *report)
{
    double max_over_mean = 1;
    cf_status status;

    t->progress.step = number;
    t->progress.ops_done = t->progress.chunks_done = 0;
    t->progress.flop_done = t->progress.flop = 0;
    cf_pictures_begin_step(&t->pictures);
    status = place(t, &max_over_mean);
    if (status == CF_OK)
        status = batch_read(t);
    if (status == CF_OK)
        status = cf_step_run(step, t->options, number, t->batches.n_steps,
                             &t->n_updates, report);
    report->load_max_over_mean = max_over_mean;
    return status;
}

/* What the ranks have to agree on before the next step: whether a signal came,
 * and whether a state, or pictures, are due by rank 0's clock. */
static cf_status step_end_agree(cf_training *t, uint64_t number,
                                cf_step_end *end_p)
{
    const cf_step_end mine = {
        .signal = (uint64_t)cf_signals_noted(),
        .save_due = cf_saver_is_due(&t->saver, number),
        .draw_due =
            number == t->batches.n_steps || cf_pictures_are_due(&t->pictures),
    };
    cf_status status;

    cf_comm_note(t->comm, number, UINT32_MAX, "end of the step");
    status = cf_comm_gather(t->comm, &mine, sizeof(mine), t->ends);
    cf_comm_note(t->comm, 0, UINT32_MAX, NULL);
    if (status != CF_OK)
        return status;
    *end_p = t->ends[0];
    for (uint32_t i = 0; i < cf_comm_size(t->comm) && t->signal == 0; i++)
        t->signal = (int)t->ends[i].signal;
    return CF_OK;
}

/* Where the time of a step went on this rank, which is rank 0. */
static void times_print(const cf_training *t, uint64_t number, double step_s)
{
    char line[2048];

    cf_log_info("step %" PRIu64 " took %.4f s: %s", number, step_s,
                cf_op_times_format(t->times.step, line, sizeof(line)));
}

/* What --verbose wants of a step. */
static void step_print(const cf_training *t, uint64_t number,
                       const cf_step_report *report)
{
    cf_metrics_end_line(t->metrics);
    if (report->has_loss)
        schedule_print(t);
    times_print(t, number, report->step_s);
}

/* The pictures, this step's schedule among them when it had ops. */
static cf_status draw(cf_training *t, uint64_t number, bool has_ops)
{
    cf_status status = CF_OK;

    if (has_ops)
        status = cf_pictures_collect(&t->pictures, number, &t->plan);
    if (status != CF_OK)
        return status;
    if (has_ops)
        cf_pictures_draw_schedule(&t->pictures, number, &t->plan);
    cf_training_draw_curves(t);
    return CF_OK;
}

/* Told, counted, drawn and saved. */
static cf_status step_done(cf_training *t, uint64_t number,
                           const cf_step_report *report)
{
    cf_step_end end = {0};
    cf_status status = cf_metrics_append(t->metrics, report);

    if (status != CF_OK)
        return status;
    if (t->options->verbose)
        step_print(t, number, report);
    if (report->has_loss)
        status = cf_trace_step(&t->trace, number, &t->plan, t->engine.begin_s);
    if (status != CF_OK)
        return status;
    status = step_end_agree(t, number, &end);
    if (status == CF_OK && end.draw_due)
        status = draw(t, number, report->has_loss);
    if (status != CF_OK)
        return status;
    if (end.save_due)
        cf_saver_begin(&t->saver, number, t->n_updates, &t->ledger);
    return CF_OK;
}

/* Runs up to the last step, to the one in which a signal comes, or to where
 * --patience ends.  A state is begun before the evaluation of its step, which
 * a resumed run makes up for. */
cf_status cf_training_run_steps(cf_training *t)
{
    const cf_step step = {.dataset = t->run.dataset,
                          .need = &t->need,
                          .comm = t->comm,
                          .shares = &t->shares,
                          .model = &t->run.model,
                          .engine = &t->engine,
                          .plan = &t->plan,
                          .reduction = &t->reduction,
                          .before_update = cf_saver_release,
                          .context = &t->saver};
    const uint64_t first = t->saver.start.step + 1;
    cf_status status = cf_training_validate(t, t->saver.start.step);

    t->ledger = t->saver.start.ledger;
    t->n_updates = t->saver.start.n_updates;
    t->progress.step = t->saver.start.step;
    for (uint64_t number = first;
         status == CF_OK && cf_training_goes_on(t, number); number++) {
        double start = cf_clock_s();
        cf_step_report report = {0};

        cf_op_times_begin_step(t->engine.times);
        t->plan.n_batch = cf_batches_at(&t->batches, number, t->plan.batch);
        t->progress.forecast_s = cf_forecast_step_s(
            &t->forecast, t->run.dataset, t->plan.batch, t->plan.n_batch);
        status = step_run(t, &step, number, &report);
        if (status != CF_OK)
            break;
        saver_settle(t);
        cf_batches_count(&t->batches, number, t->plan.batch, t->plan.n_batch,
                         &t->ledger);
        report.step_s = cf_clock_s() - start;
        cf_op_times_end_step(t->engine.times, report.step_s);
        cf_forecast_pass(&t->forecast, t->progress.forecast_s, report.step_s);
        report.eta_s = cf_forecast_remaining_s(&t->forecast);
        if (report.peak_bytes > t->peak_bytes)
            t->peak_bytes = report.peak_bytes;
        status = step_done(t, number, &report);
        if (status != CF_OK)
            break;
        if (number == first)
            cf_training_print_forecast(t, "after its first step");
        status = cf_training_validate(t, number);
    }
    return status;
}
