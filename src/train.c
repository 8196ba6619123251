/* train.c - the training command, from options to a fine-tuned folder.
 *
 * Everything that can be found wrong is found before the run folder is touched,
 * and everything that can be sized is sized before a weight is loaded.
 */
#include "src/commands.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "src/file_write.h"
#include "src/files.h"
#include "src/forecast.h"
#include "src/log.h"
#include "src/machine.h"
#include "src/model_export.h"
#include "src/output.h"
#include "src/run.h"
#include "src/saver.h"
#include "src/signals.h"
#include "src/step.h"
#include "src/validation.h"

typedef struct training {
    const cf_options *options;
    cf_comm *comm;
    cf_run run;
    cf_batches batches;
    cf_step_plan_need need;
    cf_step_plan plan;
    cf_engine engine;
    cf_validation validation;
    cf_forecast forecast;
    cf_arena sizes; /* what was predicted */
    cf_metrics *metrics;
    cf_saver saver;
    cf_ledger ledger;
    uint64_t n_updates;
    struct {
        uint64_t step;
        size_t ops_done;
    } progress;
    size_t peak_bytes;
} training;

static double seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* A file or folder of the run; the caller frees. */
static char *output_path(const training *t, const char *name)
{
    return cf_path_join(t->options->output, "/", name);
}

/* ---- before step 1 ---- */

static cf_status warmup_check(const training *t)
{
    if (t->options->warmup_steps <= t->batches.n_steps)
        return CF_OK;
    cf_log_error("--warmup-steps %" PRIu64 " is more than the %" PRIu64
                 " steps of this run: use fewer",
                 t->options->warmup_steps, t->batches.n_steps);
    return CF_INVALID;
}

static void observe(void *context)
{
    training *t = context;

    t->progress.ops_done++;
    cf_metrics_progress(t->metrics, t->progress.step, t->progress.ops_done,
                        t->plan.schedule.first_op[1]);
}

static void engine_carve(void *context, cf_arena *arena)
{
    training *t = context;

    cf_engine_carve(&t->engine, &t->run.model, &t->need.engine,
                    t->options->recompute, CF_GRADIENTS_YES, arena);
    t->engine.observe = observe;
    t->engine.observer = t;
}

static void carve(void *context, cf_arena *arena)
{
    training *t = context;
    size_t engine_from;

    cf_model_carve(&t->run.model, CF_MODEL_TRAIN, arena);
    cf_step_plan_carve(&t->plan, &t->need, arena);
    engine_from = arena->used;
    engine_carve(t, arena);
    cf_validation_carve(&t->validation, engine_from, arena);
}

/* The longest sequence is what a message about memory names. */
static cf_status memory_size(training *t)
{
    cf_step_plan_need need = t->need;

    if (t->validation.evaluation.need.longest_tok > need.longest_tok)
        need.longest_tok = t->validation.evaluation.need.longest_tok;
    return cf_run_size(&t->run, carve, t, &need, &t->sizes);
}

static cf_status bounds_set(training *t)
{
    const cf_step_plan_params params = {
        .n_batch = t->batches.global_batch,
        .chunk_size_tok = t->options->chunk_size_tok,
        .schedule = {.n_stages = 1,
                     .retained_chunks_max = t->options->retained_chunks_max}};

    return cf_step_plan_bound(t->run.dataset, t->batches.drawable,
                              t->batches.n_drawable, &params, &t->need);
}

static cf_status size_up(training *t)
{
    cf_status status = cf_batches_open(t->run.dataset, t->options, &t->batches);

    if (status == CF_OK)
        status = warmup_check(t);
    if (status == CF_OK)
        status = bounds_set(t);
    if (status == CF_OK)
        status = cf_validation_open(t->options, &t->run, &t->validation);
    if (status == CF_OK)
        status = memory_size(t);
    return status;
}

/* What is left of the run will take, told from the lengths of its sequences. */
static cf_status forecast_open(training *t)
{
    const uint64_t first_step = t->saver.start.step + 1;
    uint32_t *batch = calloc(t->need.n_batch, sizeof(*batch));
    cf_status status;

    if (batch == NULL) {
        cf_log_error("no memory for a batch of %zu sequences", t->need.n_batch);
        return CF_NO_MEMORY;
    }
    status = cf_forecast_open(&t->run.model, &t->need, t->options->recompute,
                              1, &t->forecast);
    if (status == CF_OK) {
        cf_forecast_add_steps(&t->forecast, &t->batches, first_step,
                              t->batches.n_steps, batch);
        cf_validation_forecast(&t->validation, first_step, t->batches.n_steps,
                               &t->forecast);
    }
    free(batch);
    return status;
}

static void forecast_print(const training *t, const char *basis)
{
    char line[128];

    if (t->options->quiet)
        return;
    if (t->metrics != NULL)
        cf_metrics_end_line(t->metrics);
    cf_log_info("forecast %s: %s", basis,
                cf_forecast_format(&t->forecast, line, sizeof(line)));
}

/* What one epoch will read, so that a person sees it before the first step. */
static void data_print(const training *t)
{
    cf_ledger ledger = {0};
    char line[256];

    cf_batches_count_epoch(&t->batches, &ledger);
    cf_ledger_format(&ledger, line, sizeof(line));
    cf_log_info("an epoch: %s", line);
}

/* Parameters, all or the trained ones. */
static double millions(const cf_model *model, bool trained_only)
{
    size_t n = 0;

    for (size_t i = 0; i < model->n_params; i++)
        if (model->params[i].trained || !trained_only)
            n += model->params[i].n;
    return (double)n * 1e-6;
}

static void frozen_print(const cf_model *model, const char *list)
{
    /* The table begins with the embedding. */
    const bool both = model->config.tied && !model->params[0].trained;
    const uint32_t first = model->first_backward_layer;
    char stop[48] = "";

    if (first == model->config.n_layers)
        snprintf(stop, sizeof(stop), "; no backward below the head");
    else if (first > 0)
        snprintf(stop, sizeof(stop), "; no backward below layer %u",
                 (unsigned)first);
    cf_log_info("frozen %s: %.1f M parameters are trained%s%s", list,
                millions(model, true), stop,
                both ? "; embeddings and head are one weight, frozen" : "");
}

/* The size of a batch, as in "32 sequences". */
static const char *batch_format(const cf_batches *batches, char *buf,
                                size_t size)
{
    if (batches->tokens_per_batch > 0)
        (void)snprintf(
            buf, size, "at least %" PRIu64 " tokens, %u sequences at most",
            batches->tokens_per_batch, (unsigned)batches->global_batch);
    else
        (void)snprintf(buf, size, "%u sequences",
                       (unsigned)batches->global_batch);
    return buf;
}

static void introduce(const training *t)
{
    const cf_model_config *c = &t->run.model.config;
    char batch[96];

    if (t->options->quiet)
        return;
    cf_log_info("model %s: %.1f M parameters, %u layers; backend %s",
                t->options->model, millions(&t->run.model, false),
                (unsigned)c->n_layers, t->run.kernels.name);
    if (t->options->freeze != NULL)
        frozen_print(&t->run.model, t->options->freeze);
    data_print(t);
    cf_log_info("%" PRIu64 " steps of %s; chunks of %u tokens, %u "
                "retained; longest sequence %u tokens",
                t->batches.n_steps,
                batch_format(&t->batches, batch, sizeof(batch)),
                (unsigned)t->need.chunk_size_tok,
                (unsigned)t->need.params.retained_chunks_max,
                (unsigned)t->need.longest_tok);
    cf_validation_introduce(&t->validation);
    cf_arena_print(&t->sizes, stderr);
    forecast_print(t, "from the speed of one GEMM");
}

static cf_status config_fill(FILE *file, const void *options)
{
    return cf_options_write(options, file);
}

static cf_output_mode output_mode(const cf_options *options)
{
    if (options->resume)
        return CF_OUTPUT_RESUME;
    return options->overwrite ? CF_OUTPUT_OVERWRITE : CF_OUTPUT_NEW;
}

static cf_status output_begin(training *t)
{
    cf_metrics_params params = {.n_steps = t->batches.n_steps,
                                .log_every = t->options->log_every,
                                .quiet = t->options->quiet};
    char *config, *metrics;
    cf_status status = cf_output_open(
        t->options->output, output_mode(t->options), t->options->model);

    if (status != CF_OK)
        return status;
    config = output_path(t, "config.yaml");
    metrics = output_path(t, "metrics.jsonl");
    if (config == NULL || metrics == NULL)
        status = CF_NO_MEMORY;
    if (status == CF_OK)
        status = cf_file_write(config, config_fill, t->options);
    params.path = metrics;
    if (status == CF_OK)
        status = cf_metrics_cut(metrics, t->saver.start.step);
    if (status == CF_OK)
        status =
            cf_best_read(metrics, t->saver.start.step, &t->validation.best);
    if (status == CF_OK)
        status = cf_metrics_open(&params, &t->metrics);
    free(metrics);
    free(config);
    return status;
}

/* ---- the steps ---- */

/* The op list of a step, cut off where the line gets too long to read. */
static void schedule_print(const training *t)
{
    char line[4096];
    size_t n = cf_schedule_format(&t->plan.schedule, line, sizeof(line));

    cf_log_info("%.*s%s", (int)strcspn(line, "\n"), line,
                n < sizeof(line) ? "" : " ...");
}

/* The evaluation that follows a step, if one does. */
static cf_status validate(training *t, uint64_t step)
{
    const double start = seconds();
    cf_status status;

    if (!cf_validation_is_due(&t->validation, step, t->batches.n_steps))
        return CF_OK;
    status = cf_validation_run(&t->validation, step, t->metrics);
    cf_arena_take_turn(&t->run.arena, t->validation.arena_from, engine_carve,
                       t);
    cf_forecast_pass(&t->forecast, t->validation.forecast_s, seconds() - start);
    if (t->validation.peak_bytes > t->peak_bytes)
        t->peak_bytes = t->validation.peak_bytes;
    return status;
}

static bool goes_on(const training *t, uint64_t number)
{
    return number <= t->batches.n_steps && cf_signals_noted() == 0 &&
           !cf_validation_is_over(&t->validation);
}

/* Runs up to the last step, to the one in which a signal comes, or to where
 * --patience ends.  A state is begun before the evaluation of its step, which
 * a resumed run makes up for. */
static cf_status steps_run(training *t)
{
    const cf_step step = {.dataset = t->run.dataset,
                          .need = &t->need,
                          .model = &t->run.model,
                          .engine = &t->engine,
                          .plan = &t->plan,
                          .before_update = cf_saver_release,
                          .context = &t->saver};
    const uint64_t first = t->saver.start.step + 1;
    cf_status status = validate(t, t->saver.start.step);

    t->ledger = t->saver.start.ledger;
    t->n_updates = t->saver.start.n_updates;
    t->progress.step = t->saver.start.step;
    for (uint64_t number = first; status == CF_OK && goes_on(t, number);
         number++) {
        double start = seconds(), forecast_s;
        cf_step_report report;

        t->progress.step = number;
        t->progress.ops_done = 0;
        t->plan.n_batch = cf_batches_at(&t->batches, number, t->plan.batch);
        forecast_s = cf_forecast_step_s(&t->forecast, t->run.dataset,
                                        t->plan.batch, t->plan.n_batch);
        status =
            cf_dataset_prepare(t->run.dataset, t->plan.batch, t->plan.n_batch);
        if (status != CF_OK)
            break;
        status = cf_step_run(&step, t->options, number, t->batches.n_steps,
                             &t->n_updates, &report);
        if (status != CF_OK)
            break;
        cf_saver_settle(&t->saver);
        cf_batches_count(&t->batches, number, t->plan.batch, t->plan.n_batch,
                         &t->ledger);
        report.step_s = seconds() - start;
        cf_forecast_pass(&t->forecast, forecast_s, report.step_s);
        report.eta_s = cf_forecast_remaining_s(&t->forecast);
        if (report.peak_bytes > t->peak_bytes)
            t->peak_bytes = report.peak_bytes;
        status = cf_metrics_append(t->metrics, &report);
        if (status != CF_OK)
            break;
        if (t->options->verbose && report.has_loss)
            schedule_print(t);
        if (cf_saver_is_due(&t->saver, number))
            cf_saver_begin(&t->saver, number, t->n_updates, &t->ledger);
        if (number == first)
            forecast_print(t, "after its first step");
        status = validate(t, number);
    }
    return status;
}

/* ---- after the last step ---- */

static cf_status output_end(training *t)
{
    char *ledger = output_path(t, "ledger.json");
    char *model = output_path(t, "model");
    cf_status status = CF_NO_MEMORY;

    if (ledger != NULL && model != NULL)
        status = cf_validation_restore_best(&t->validation);
    if (status == CF_OK)
        status = cf_model_export(t->comm, &t->run.model, t->options->model,
                                 model, t->options->export_dtype);
    if (status == CF_OK)
        status = cf_ledger_write(&t->ledger, ledger);
    if (status == CF_OK && !t->options->quiet) {
        char line[256], used[32], predicted[32], resident[32];

        cf_ledger_format(&t->ledger, line, sizeof(line));
        cf_log_info("%s", line);
        cf_log_info(
            "memory: %s used of %s predicted; %s resident at most",
            cf_bytes_format(t->peak_bytes, used, sizeof(used)),
            cf_bytes_format(t->sizes.used, predicted, sizeof(predicted)),
            cf_bytes_format(cf_machine_resident_peak_bytes(), resident,
                            sizeof(resident)));
        cf_log_info("the fine-tuned model is in %s", model);
    }
    free(model);
    free(ledger);
    return status;
}

/* Leave the state behind and say how to go on. */
static void stopped(const training *t)
{
    cf_log_info("stopped by %s after step %" PRIu64 " of %" PRIu64
                ", whose state is in '%s/checkpoints'; the same command with "
                "--resume goes on",
                cf_signal_name(cf_signals_noted()), t->progress.step,
                t->batches.n_steps, t->options->output);
}

/* The state is safe before the export, which needs as much room again. */
static cf_status train_steps(training *t)
{
    cf_status saved, status;
    bool is_stopped;

    cf_signals_open();
    status = steps_run(t);
    if (status != CF_OK)
        return status;
    saved =
        cf_saver_finish(&t->saver, t->progress.step, t->n_updates, &t->ledger);
    if (saved == CF_OK)
        saved = cf_metrics_settle(t->metrics);
    is_stopped = cf_signals_noted() != 0;
    cf_signals_close();
    if (!is_stopped)
        status = output_end(t);
    else if (saved == CF_OK)
        stopped(t);
    return status == CF_OK ? saved : status;
}

/* A ledger.json of this very state stands behind the model that was written
 * before it. */
static cf_status already_trained(training *t)
{
    char *ledger = output_path(t, "ledger.json");
    char *config = output_path(t, "model/config.json");
    cf_status status = CF_NO_MEMORY;

    t->ledger = t->saver.start.ledger;
    if (ledger != NULL && config != NULL) {
        cf_log_info("this run is finished: step %" PRIu64 " of %" PRIu64
                    " is done%s",
                    t->saver.start.step, t->batches.n_steps,
                    cf_validation_is_over(&t->validation)
                        ? ", and more --patience would go on"
                    : t->options->lr_schedule == CF_LR_CONSTANT
                        ? "; more --steps would go on"
                        : "");
        status = CF_OK;
        if (access(config, F_OK) != 0 ||
            !cf_ledger_is_written(&t->ledger, ledger)) {
            status = validate(t, t->saver.start.step);
            if (status == CF_OK)
                status = output_end(t);
        }
    }
    free(config);
    free(ledger);
    return status;
}

static cf_status train(training *t)
{
    cf_status status = size_up(t);

    if (status == CF_OK)
        status =
            cf_saver_find(t->options, t->batches.n_steps, t->comm, &t->saver);
    if (status == CF_OK)
        status = forecast_open(t);
    if (status != CF_OK)
        return status;
    introduce(t);
    if (t->options->dry_run)
        return CF_OK;
    status = cf_saver_identify(&t->saver, t->run.dataset);
    if (status == CF_OK)
        status = cf_run_place(&t->run, &t->sizes, carve, t);
    if (status == CF_OK)
        status = cf_model_load(&t->run.model, t->options->model);
    if (status == CF_OK)
        status = output_begin(t);
    if (status == CF_OK)
        status = cf_saver_open(&t->saver, &t->run.model);
    if (status == CF_OK)
        status = goes_on(t, t->saver.start.step + 1) ? train_steps(t)
                                                     : already_trained(t);
    cf_metrics_close(t->metrics);
    return status;
}

int cf_command_train(const cf_options *options, cf_comm *comm)
{
    training t = {.options = options, .comm = comm};
    cf_status status;

    if (cf_comm_size(comm) > 1) {
        cf_log_error("train runs on one rank so far, and mpirun started %u: "
                     "start it without mpirun",
                     cf_comm_size(comm));
        return cf_exit_code(cf_comm_agree(comm, CF_INVALID));
    }
    status = cf_run_open(options, comm, &t.run);

    if (status == CF_OK) {
        status = train(&t);
        cf_saver_close(&t.saver);
        cf_validation_close(&t.validation);
        cf_batches_close(&t.batches);
        cf_run_close(&t.run);
    }
    return cf_exit_code(status);
}
