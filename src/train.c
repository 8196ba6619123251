/* train.c - the training command, from options to a fine-tuned folder.
 *
 * Everything that can be found wrong is found before the run folder is touched,
 * and everything that can be sized is sized before a weight is loaded.
 */
#include "src/commands.h"

#include <errno.h>
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
#include "src/placement.h"
#include "src/run.h"
#include "src/saver.h"
#include "src/signals.h"
#include "src/step.h"
#include "src/trace.h"
#include "src/validation.h"

/* What each rank says between two steps. */
typedef struct step_end {
    uint64_t signal;   /* that it has noted; 0: none */
    uint64_t save_due; /* rank 0 decides */
} step_end;

typedef struct training {
    const cf_options *options;
    cf_comm *comm;
    cf_run run;
    cf_batches batches;
    cf_step_plan_need need;
    cf_step_plan plan;
    cf_engine engine;
    cf_step_shares shares;
    cf_reduction reduction;
    struct {
        double *cost; /* [n_batch]; NULL with one replica, as the next two */
        double *load; /* [n_replicas] */
        void *scratch;
        size_t scratch_bytes;
    } placing;
    step_end *ends; /* [n_ranks] */
    int signal;     /* that ends the run, agreed on */
    cf_validation validation;
    cf_forecast forecast;
    cf_arena sizes;         /* what was predicted */
    size_t predicted_bytes; /* most over ranks */
    cf_metrics *metrics;
    cf_trace trace;
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

/* Rank 0 writes what has one writer, and speaks. */
static bool is_root(const training *t)
{
    return cf_comm_rank(t->comm) == 0;
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

    cf_trace_op_done(&t->trace, t->engine.op_begin, t->engine.span_s);
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

static void placing_carve(training *t, cf_arena *arena)
{
    static const char what[] = "plan and schedule";
    const size_t n = t->need.n_batch;
    const uint32_t n_replicas = t->run.grid.n_replicas;

    t->plan.replica = t->run.grid.replica;
    if (n_replicas == 1)
        return;
    t->plan.replica_of = cf_arena_take(arena, CF_LIFETIME_RUN, what, n,
                                       sizeof(*t->plan.replica_of));
    t->placing.cost = cf_arena_take(arena, CF_LIFETIME_RUN, what, n,
                                    sizeof(*t->placing.cost));
    t->placing.load = cf_arena_take(arena, CF_LIFETIME_RUN, what, n_replicas,
                                    sizeof(*t->placing.load));
    t->placing.scratch = cf_arena_take(arena, CF_LIFETIME_RUN, what,
                                       t->placing.scratch_bytes, 1);
}

static void carve(void *context, cf_arena *arena)
{
    training *t = context;
    size_t engine_from;

    cf_model_carve(&t->run.model, CF_MODEL_TRAIN, arena);
    cf_step_plan_carve(&t->plan, &t->need, arena);
    placing_carve(t, arena);
    cf_step_shares_carve(&t->shares, t->comm, &t->run.grid, arena);
    t->ends = cf_arena_take(arena, CF_LIFETIME_RUN, "bookkeeping",
                            cf_comm_size(t->comm), sizeof(*t->ends));
    cf_reduction_carve(&t->reduction, t->comm, &t->run.grid, &t->run.model,
                       arena);
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
        .schedule = {.n_stages = t->run.grid.n_stages,
                     .retained_chunks_max = t->options->retained_chunks_max,
                     .kind = t->options->schedule},
        .stage = t->run.grid.stage,
    };
    cf_status status =
        cf_step_plan_bound(t->run.dataset, t->batches.drawable,
                           t->batches.n_drawable, &params, &t->need);

    if (status != CF_OK)
        return status;
    return cf_placement_bound(t->need.n_batch, t->run.grid.n_replicas,
                              &t->placing.scratch_bytes);
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
                              cf_comm_size(t->comm), &t->forecast);
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

    if (t->options->quiet || !is_root(t))
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

static void grid_print(const training *t)
{
    const cf_grid *grid = &t->run.grid;
    char layers[512], most[32];

    cf_log_info(
        "%u ranks: %u replicas of %u stages, schedule %s; layers of the stages: "
        "%s; memory of a rank: at most %s",
        (unsigned)cf_comm_size(t->comm), (unsigned)grid->n_replicas,
        (unsigned)grid->n_stages, cf_schedule_kind_str(t->options->schedule),
        cf_run_stages_format(&t->run, layers, sizeof(layers)),
        cf_bytes_format(t->predicted_bytes, most, sizeof(most)));
}

static void introduce(const training *t)
{
    const cf_model_config *c = &t->run.model.config;
    char batch[96];

    if (t->options->quiet || !is_root(t))
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
    if (cf_comm_size(t->comm) > 1)
        grid_print(t);
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

/* The run folder, and what of the metrics a resumed run stands behind. */
static cf_status output_prepare(training *t, const char *config,
                                const char *metrics)
{
    cf_status status = cf_output_open(
        t->options->output, output_mode(t->options), t->options->model);

    if (status == CF_OK)
        status = cf_file_write(config, config_fill, t->options);
    if (status == CF_OK)
        status = cf_metrics_cut(metrics, t->saver.start.step);
    if (status == CF_OK)
        status =
            cf_best_read(metrics, t->saver.start.step, &t->validation.best);
    return status;
}

/* All ranks count; rank 0 writes and shows. */
static cf_status metrics_open(training *t, const char *path)
{
    const cf_metrics_params params = {
        .path = is_root(t) ? path : NULL,
        .n_steps = t->batches.n_steps,
        .log_every = t->options->log_every,
        .quiet = t->options->quiet || !is_root(t),
        .n_stages = t->run.grid.n_stages,
        .n_replicas = t->run.grid.n_replicas,
    };

    return cf_metrics_open(&params, &t->metrics);
}

/* Every rank writes its part of states and model where rank 0 made the folder:
 * one that cannot is found now, not when the training is over. */
static cf_status output_seen(const training *t, const char *config)
{
    const char *output = t->options->output;

    if (access(config, F_OK) == 0 && access(output, W_OK | X_OK) == 0)
        return CF_OK;
    cf_log_error("--output '%s' is not the folder that rank 0 writes to, or "
                 "cannot be written to here: %s; name one that all hosts share",
                 output, strerror(errno));
    return CF_INVALID;
}

static cf_status output_begin(training *t)
{
    char *config = output_path(t, "config.yaml");
    char *metrics = output_path(t, "metrics.jsonl");
    cf_status status = config != NULL && metrics != NULL ? CF_OK : CF_NO_MEMORY;

    if (status == CF_OK && is_root(t))
        status = output_prepare(t, config, metrics);
    if (status == CF_OK)
        status = metrics_open(t, metrics);
    if (status == CF_OK)
        status = cf_trace_open(t->options->trace, t->comm, &t->run.grid,
                               t->need.schedule.n_ops, &t->trace);
    status = cf_comm_agree(t->comm, status);
    if (status == CF_OK)
        status = cf_comm_agree(t->comm, output_seen(t, config));
    if (status == CF_OK)
        status = cf_comm_broadcast(t->comm, 0, &t->validation.best,
                                   sizeof(t->validation.best));
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

/* The signal that ends the run: with several ranks one that all know of. */
static int signal_noted(const training *t)
{
    return cf_comm_size(t->comm) > 1 ? t->signal : cf_signals_noted();
}

static bool goes_on(const training *t, uint64_t number)
{
    return number <= t->batches.n_steps && signal_noted(t) == 0 &&
           !cf_validation_is_over(&t->validation);
}

/* Which replica runs which sequence of the batch. */
static cf_status place(training *t, double *max_over_mean_p)
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
static cf_status step_run(training *t, const cf_step *step, uint64_t number,
                          cf_step_report *report)
{
    double max_over_mean = 1;
    cf_status status;

    t->progress.step = number;
    t->progress.ops_done = 0;
    status = place(t, &max_over_mean);
    if (status == CF_OK)
        status =
            cf_dataset_prepare(t->run.dataset, t->plan.batch, t->plan.n_batch);
    if (status == CF_OK)
        status = cf_step_run(step, t->options, number, t->batches.n_steps,
                             &t->n_updates, report);
    report->load_max_over_mean = max_over_mean;
    return status;
}

/* What the ranks have to agree on before the next step: whether a signal came,
 * and whether a state is due by rank 0's clock. */
static cf_status step_end_agree(training *t, uint64_t number, bool *save_due_p)
{
    const step_end mine = {
        .signal = (uint64_t)cf_signals_noted(),
        .save_due = cf_saver_is_due(&t->saver, number),
    };
    cf_status status;

    cf_comm_note(t->comm, number, UINT32_MAX, "end of the step");
    status = cf_comm_gather(t->comm, &mine, sizeof(mine), t->ends);
    cf_comm_note(t->comm, 0, UINT32_MAX, NULL);
    if (status != CF_OK)
        return status;
    *save_due_p = t->ends[0].save_due;
    for (uint32_t i = 0; i < cf_comm_size(t->comm) && t->signal == 0; i++)
        t->signal = (int)t->ends[i].signal;
    return CF_OK;
}

/* Told, counted and saved. */
static cf_status step_done(training *t, uint64_t number,
                           const cf_step_report *report)
{
    bool save_due = false;
    cf_status status = cf_metrics_append(t->metrics, report);

    if (status != CF_OK)
        return status;
    if (t->options->verbose && report->has_loss)
        schedule_print(t);
    if (report->has_loss)
        status = cf_trace_step(&t->trace, number, &t->plan, t->engine.begin_s);
    if (status != CF_OK)
        return status;
    status = step_end_agree(t, number, &save_due);
    if (status != CF_OK)
        return status;
    if (save_due)
        cf_saver_begin(&t->saver, number, t->n_updates, &t->ledger);
    return CF_OK;
}

/* Runs up to the last step, to the one in which a signal comes, or to where
 * --patience ends.  A state is begun before the evaluation of its step, which
 * a resumed run makes up for. */
static cf_status steps_run(training *t)
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
    cf_status status = validate(t, t->saver.start.step);

    t->ledger = t->saver.start.ledger;
    t->n_updates = t->saver.start.n_updates;
    t->progress.step = t->saver.start.step;
    for (uint64_t number = first; status == CF_OK && goes_on(t, number);
         number++) {
        double start = seconds(), forecast_s;
        cf_step_report report = {0};

        t->plan.n_batch = cf_batches_at(&t->batches, number, t->plan.batch);
        forecast_s = cf_forecast_step_s(&t->forecast, t->run.dataset,
                                        t->plan.batch, t->plan.n_batch);
        status = step_run(t, &step, number, &report);
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
        status = step_done(t, number, &report);
        if (status != CF_OK)
            break;
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
    if (status == CF_OK && is_root(t))
        status = cf_ledger_write(&t->ledger, ledger);
    status = cf_comm_agree(t->comm, status);
    if (status == CF_OK && !t->options->quiet && is_root(t)) {
        char line[256], used[32], predicted[32], resident[32];

        cf_ledger_format(&t->ledger, line, sizeof(line));
        cf_log_info("%s", line);
        cf_log_info(
            "memory: %s used of %s predicted; %s resident at most",
            cf_bytes_format(t->peak_bytes, used, sizeof(used)),
            cf_bytes_format(t->predicted_bytes, predicted, sizeof(predicted)),
            cf_bytes_format(cf_machine_resident_peak_bytes(), resident,
                            sizeof(resident)));
        cf_log_info("the fine-tuned model is in %s", model);
    }
    free(model);
    free(ledger);
    return status;
}

/* Leave the state behind and say how to go on. */
static void stopped(const training *t, int signal)
{
    cf_log_info("stopped by %s after step %" PRIu64 " of %" PRIu64
                ", whose state is in '%s/checkpoints'; the same command with "
                "--resume goes on",
                cf_signal_name(signal), t->progress.step, t->batches.n_steps,
                t->options->output);
}

/* The state is safe before the export, which needs as much room again.  Where
 * both fail, the export tells why: a run ends with one error. */
static cf_status train_steps(training *t)
{
    cf_status settled, status;
    int signal;

    cf_signals_open();
    status = steps_run(t);
    if (status != CF_OK)
        return status;
    cf_saver_finish(&t->saver, t->progress.step, t->n_updates, &t->ledger);
    signal = signal_noted(t);
    cf_signals_close();
    if (signal == 0)
        status = output_end(t);
    settled = cf_metrics_settle(t->metrics);
    if (status == CF_OK)
        status = settled;
    if (status == CF_OK)
        status = cf_saver_check(&t->saver, t->progress.step);
    status = cf_comm_agree(t->comm, status);
    if (status == CF_OK && signal != 0)
        stopped(t, signal);
    return status;
}

/* Whether the model of this very state was written: a ledger.json of it stands
 * behind. */
static cf_status find_output(const training *t, bool *found_p)
{
    char *ledger = output_path(t, "ledger.json");
    char *config = output_path(t, "model/config.json");
    cf_status status = CF_NO_MEMORY;

    if (ledger != NULL && config != NULL) {
        *found_p = access(config, F_OK) == 0 &&
                   cf_ledger_is_written(&t->ledger, ledger);
        status = CF_OK;
    }
    free(config);
    free(ledger);
    return status;
}

static cf_status already_trained(training *t)
{
    bool found = false;
    cf_status status;

    t->ledger = t->saver.start.ledger;
    cf_log_info("this run is finished: step %" PRIu64 " of %" PRIu64
                " is done%s",
                t->saver.start.step, t->batches.n_steps,
                cf_validation_is_over(&t->validation)
                    ? ", and more --patience would go on"
                : t->options->lr_schedule == CF_LR_CONSTANT
                    ? "; more --steps would go on"
                    : "");
    status = find_output(t, &found);
    status = cf_comm_agree(t->comm, status);
    if (status == CF_OK)
        status = cf_comm_broadcast(t->comm, 0, &found, sizeof(found));
    if (status == CF_OK && !found) {
        status = validate(t, t->saver.start.step);
        if (status == CF_OK)
            status = output_end(t);
    }
    return status;
}

/* What all ranks must have been started with, as text to compare. */
static cf_status start_agree(const training *t)
{
    char *config = NULL;
    char data[512];
    size_t n;
    FILE *file = open_memstream(&config, &n);
    cf_status status = CF_NO_MEMORY;

    if (file != NULL) {
        status = cf_options_write(t->options, file);
        if (fclose(file) != 0 && status == CF_OK)
            status = CF_NO_MEMORY;
    }
    status = cf_comm_agree(t->comm, status);
    if (status == CF_OK)
        status = cf_comm_agree_text(t->comm, "options", config);
    if (status == CF_OK)
        status =
            cf_comm_agree_text(t->comm, "model and data",
                               cf_run_describe(&t->run, data, sizeof(data)));
    free(config);
    return status;
}

/* What the ranks need, so that rank 0 can tell the most of them. */
static cf_status predicted_share(training *t)
{
    const uint32_t n_ranks = cf_comm_size(t->comm);
    const uint64_t mine = t->sizes.used;
    uint64_t *all = calloc(n_ranks, sizeof(*all));
    cf_status status =
        cf_comm_agree(t->comm, all != NULL ? CF_OK : CF_NO_MEMORY);

    if (status == CF_OK)
        status = cf_comm_gather(t->comm, &mine, sizeof(mine), all);
    for (uint32_t i = 0; i < n_ranks && status == CF_OK; i++)
        if (all[i] > t->predicted_bytes)
            t->predicted_bytes = (size_t)all[i];
    free(all);
    return status;
}

/* Everything that tells whether the run can be made, on every rank. */
static cf_status prepare(training *t)
{
    cf_status status =
        is_root(t) ? cf_output_check(t->options->output,
                                     output_mode(t->options), t->options->model)
                   : CF_OK;

    status = cf_comm_agree(t->comm, status);
    /* One stage alone may not fit; all must know before they go on. */
    if (status == CF_OK)
        status = cf_comm_agree(t->comm, size_up(t));
    if (status == CF_OK)
        status =
            cf_saver_find(t->options, t->batches.n_steps, t->comm, &t->saver);
    if (status == CF_OK)
        status = forecast_open(t);
    status = cf_comm_agree(t->comm, status);
    return status == CF_OK ? predicted_share(t) : status;
}

static cf_status train(training *t)
{
    cf_status status = start_agree(t), closed;

    if (status == CF_OK)
        status = prepare(t);
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
    status = cf_comm_agree(t->comm, status);
    if (status == CF_OK)
        status = output_begin(t);
    if (status == CF_OK)
        status = cf_saver_open(&t->saver, &t->run.model);
    if (status == CF_OK)
        status = goes_on(t, t->saver.start.step + 1) ? train_steps(t)
                                                     : already_trained(t);
    closed = cf_trace_close(&t->trace);
    cf_metrics_close(t->metrics);
    return status == CF_OK ? closed : status;
}

int cf_command_train(const cf_options *options, cf_comm *comm)
{
    training t = {.options = options, .comm = comm};
    cf_status status;

    cf_comm_set_stall_timeout(comm, options->stall_timeout_s);
    status = cf_comm_agree(comm, cf_run_open(options, comm, &t.run));
    if (status == CF_OK) {
        status = train(&t);
        cf_comm_leave_alone(comm, cf_exit_code(status));
        cf_saver_close(&t.saver);
        cf_validation_close(&t.validation);
        cf_batches_close(&t.batches);
    }
    cf_run_close(&t.run);
    return cf_exit_code(status);
}
