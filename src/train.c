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
#include <unistd.h>

#include "src/adapter.h"
#include "src/file_write.h"
#include "src/files.h"
#include "src/log.h"
#include "src/machine.h"
#include "src/model_export.h"
#include "src/output.h"
#include "src/planning.h"
#include "src/signals.h"
#include "src/tfevents.h"
#include "src/training.h"

/* A file or folder of the run; the caller frees. */
static char *output_path(const cf_training *t, const char *name)
{
    return cf_path_join(t->options->output, "/", name);
}

/* ---- the run folder ---- */

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
static cf_status output_prepare(cf_training *t, const char *config,
                                const char *metrics)
{
    cf_status status = cf_output_open(
        t->options->output, output_mode(t->options), t->options->model);

    if (status == CF_OK)
        status = cf_file_write(config, config_fill, t->options);
    if (status == CF_OK)
        status = cf_metrics_cut(metrics, t->saver.start.step);
    if (status == CF_OK)
        status = cf_tfevents_cut(t->options->output, t->saver.start.step);
    if (status == CF_OK)
        status =
            cf_best_read(metrics, t->saver.start.step, &t->validation.best);
    return status;
}

/* All ranks count; rank 0 writes and shows. */
static cf_status metrics_open(cf_training *t, const char *path)
{
    const cf_metrics_params params = {
        .path = cf_training_is_root(t) ? path : NULL,
        .n_steps = t->batches.n_steps,
        .log_every = t->options->log_every,
        .quiet = t->options->quiet || !cf_training_is_root(t),
        .n_stages = t->run.grid.n_stages,
        .n_replicas = t->run.grid.n_replicas,
        .events = cf_training_is_root(t) ? t->options->output : NULL,
    };

    return cf_metrics_open(&params, &t->metrics);
}

/* Every rank writes its part of states and model where rank 0 made the folder:
 * one that cannot is found now, not when the training is over. */
static cf_status output_seen(const cf_training *t, const char *config)
{
    const char *output = t->options->output;

    if (access(config, F_OK) == 0 && access(output, W_OK | X_OK) == 0)
        return CF_OK;
    cf_log_error("--output '%s' is not the folder that rank 0 writes to, or "
                 "cannot be written to here: %s; name one that all hosts share",
                 output, strerror(errno));
    return CF_INVALID;
}

static cf_status output_begin(cf_training *t)
{
    char *config = output_path(t, "config.yaml");
    char *metrics = output_path(t, "metrics.jsonl");
    char *facts = output_path(t, "run.json");
    cf_status status = config != NULL && metrics != NULL && facts != NULL
                           ? CF_OK
                           : CF_NO_MEMORY;

    if (status == CF_OK && cf_training_is_root(t))
        status = output_prepare(t, config, metrics);
    if (status == CF_OK && cf_training_is_root(t))
        status = cf_training_write_facts(t, facts);
    if (status == CF_OK)
        status = metrics_open(t, metrics);
    if (status == CF_OK)
        status = cf_pictures_open(t->options->output, t->comm, &t->run.grid,
                                  t->need.schedule.n_ops, &t->pictures);
    if (status == CF_OK)
        status = cf_trace_open(t->options->trace, t->comm, &t->run.grid,
                               t->need.schedule.n_ops, &t->trace);
    status = cf_comm_agree(t->comm, status);
    if (status == CF_OK)
        status = cf_comm_agree(t->comm, output_seen(t, config));
    if (status == CF_OK)
        status = cf_comm_broadcast(t->comm, 0, &t->validation.best,
                                   sizeof(t->validation.best));
    free(facts);
    free(metrics);
    free(config);
    return status;
}

/* ---- after the last step ---- */

static void delivered_print(const cf_training *t)
{
    const char *output = t->options->output;

    if (!cf_model_has_adapter(&t->run.model))
        cf_log_info("the fine-tuned model is in %s/model", output);
    else if (!t->options->merge)
        cf_log_info("the adapter is in %s/adapter", output);
    else
        cf_log_info("the adapter is in %s/adapter, the merged model in "
                    "%s/model",
                    output, output);
}

static cf_status output_end(cf_training *t)
{
    char *ledger = output_path(t, "ledger.json");
    cf_status status = CF_NO_MEMORY;

    if (ledger != NULL)
        status = cf_validation_restore_best(&t->validation);
    if (status == CF_OK)
        status = cf_trained_deliver(t->comm, &t->run.model, t->options->model,
                                    t->options->output, t->options);
    if (status == CF_OK && cf_training_is_root(t))
        status = cf_ledger_write(&t->ledger, ledger);
    status = cf_comm_agree(t->comm, status);
    if (status == CF_OK && !t->options->quiet && cf_training_is_root(t)) {
        char line[256], used[32], predicted[32], resident[32];

        cf_ledger_format(&t->ledger, line, sizeof(line));
        cf_log_info("%s", line);
        cf_log_info(
            "memory: %s used of %s predicted; %s resident at most",
            cf_bytes_format(t->peak_bytes, used, sizeof(used)),
            cf_bytes_format(t->predicted_bytes, predicted, sizeof(predicted)),
            cf_bytes_format(cf_machine_resident_peak_bytes(), resident,
                            sizeof(resident)));
        delivered_print(t);
    }
    free(ledger);
    return status;
}

/* Leave the state behind, and say what was read and how to go on. */
static void stopped(const cf_training *t, int signal)
{
    char line[256];

    if (!t->options->quiet) {
        cf_ledger_format(&t->ledger, line, sizeof(line));
        cf_log_info("so far: %s", line);
    }
    cf_log_info("stopped by %s after step %" PRIu64 " of %" PRIu64
                ", whose state is in '%s/checkpoints'; the same command with "
                "--resume goes on",
                cf_signal_name(signal), t->progress.step, t->batches.n_steps,
                t->options->output);
}

/* The state is safe before the export, which needs as much room again.  Where
 * both fail, the export tells why: a run ends with one error. */
static cf_status train_steps(cf_training *t)
{
    cf_status settled, status;
    int signal;

    cf_signals_open();
    cf_training_draw_lengths(t);
    status = cf_training_run_steps(t);
    if (status != CF_OK)
        return status;
    cf_training_draw_curves(t);
    cf_saver_finish(&t->saver, t->progress.step, t->n_updates, &t->ledger);
    signal = cf_training_signal(t);
    cf_signals_close();
    status = cf_training_print_times(t);
    if (status == CF_OK && signal == 0)
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

/* Whether the result of this very state was written: a ledger.json of it stands
 * behind. */
static cf_status find_output(const cf_training *t, bool *found_p)
{
    const bool adapter = cf_model_has_adapter(&t->run.model);
    char *ledger = output_path(t, "ledger.json");
    char *config = output_path(t, "model/config.json");
    char *adapter_config = output_path(t, "adapter/adapter_config.json");
    cf_status status = CF_NO_MEMORY;

    if (ledger != NULL && config != NULL && adapter_config != NULL) {
        *found_p =
            (!adapter || access(adapter_config, F_OK) == 0) &&
            ((adapter && !t->options->merge) || access(config, F_OK) == 0) &&
            cf_ledger_is_written(&t->ledger, ledger);
        status = CF_OK;
    }
    free(adapter_config);
    free(config);
    free(ledger);
    return status;
}

static cf_status already_trained(cf_training *t)
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
        status = cf_training_validate(t, t->saver.start.step);
        if (status == CF_OK)
            status = output_end(t);
    }
    return status;
}

/* ---- the command ---- */

/* What all ranks must have been started with, as text to compare. */
static cf_status start_agree(const cf_training *t)
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

/* Neither the model nor the adapter to go on from may be in its way. */
static cf_status output_check(const cf_training *t)
{
    const char *const inputs[] = {t->options->model, t->options->adapter};
    cf_status status = CF_OK;

    for (size_t i = 0; i < 2 && inputs[i] != NULL && status == CF_OK; i++)
        status = cf_output_check(t->options->output, output_mode(t->options),
                                 inputs[i]);
    return status;
}

/* Everything that tells whether the run can be made, on every rank. */
static cf_status prepare(cf_training *t)
{
    char text[128];
    cf_status status = cf_training_is_root(t) ? output_check(t) : CF_OK;

    status = cf_comm_agree(t->comm, status);
    if (status == CF_OK)
        status = cf_comm_agree(t->comm, cf_training_open_data(t));
    if (status == CF_OK)
        status = cf_comm_agree_text(
            t->comm, "--eval-data",
            cf_validation_describe(&t->validation, text, sizeof(text)));
    if (status == CF_OK)
        status =
            cf_saver_find(t->options, t->batches.n_steps, t->comm, &t->saver);
    if (status == CF_OK)
        status = cf_planning_costs(t);
    if (status == CF_OK)
        status = cf_training_choose(t);
    /* One stage alone may not fit; all must know before they go on. */
    if (status == CF_OK)
        status = cf_comm_agree(t->comm, cf_training_size_up(t));
    if (status == CF_OK)
        status = cf_training_open_forecast(t);
    status = cf_comm_agree(t->comm, status);
    return status == CF_OK ? cf_training_share_predicted(t) : status;
}

static cf_status train(cf_training *t)
{
    cf_status status = start_agree(t), closed;

    if (status == CF_OK)
        status = prepare(t);
    if (status != CF_OK)
        return status;
    cf_training_introduce(t);
    if (t->options->dry_run)
        return CF_OK;
    status = cf_saver_identify(&t->saver, t->run.dataset);
    if (status == CF_OK)
        status = cf_training_open_kv_file(t);
    if (status == CF_OK)
        status = cf_run_place(&t->run, &t->sizes, cf_training_carve, t);
    if (status == CF_OK)
        status = cf_run_load(&t->run);
    status = cf_comm_agree(t->comm, status);
    if (status == CF_OK)
        status = output_begin(t);
    if (status == CF_OK)
        status = cf_saver_open(&t->saver, &t->run.model);
    if (status == CF_OK)
        status = cf_training_goes_on(t, t->saver.start.step + 1)
                     ? train_steps(t)
                     : already_trained(t);
    closed = cf_trace_close(&t->trace);
    cf_pictures_close(&t->pictures);
    cf_metrics_close(t->metrics);
    return status == CF_OK ? closed : status;
}

int cf_command_train(const cf_options *options, cf_comm *comm)
{
    cf_training t;
    cf_status status;

    cf_training_begin(options, comm, &t);
    cf_comm_set_stall_timeout(comm, options->stall_timeout_s);
    status = cf_comm_agree(comm, cf_run_open(t.options, comm, &t.run));
    if (options->verbose)
        cf_op_times_install(&t.times, &t.run.kernels);
    if (status == CF_OK) {
        status = train(&t);
        cf_comm_leave_alone(comm, cf_exit_code(status));
    }
    cf_training_end(&t);
    return cf_exit_code(status);
}
