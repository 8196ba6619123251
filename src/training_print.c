/* training_print.c - what a person is told before the first step. */
#include "src/training.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "src/adapter_options.h"
#include "src/log.h"

void cf_training_print_forecast(const cf_training *t, const char *basis)
{
    char line[128];

    if (t->options->quiet || !cf_training_is_root(t))
        return;
    if (t->metrics != NULL)
        cf_metrics_end_line(t->metrics);
    cf_log_info("forecast %s: %s", basis,
                cf_forecast_format(&t->forecast, line, sizeof(line)));
}

/* What one epoch will read, so that a person sees it before the first step. */
static void data_print(const cf_training *t)
{
    cf_ledger ledger = {0};
    char line[256];

    cf_batches_count_epoch(&t->batches, &ledger);
    cf_ledger_format(&ledger, line, sizeof(line));
    cf_log_info("an epoch: %s", line);
}

/* Parameters of the model folder, or the trained ones. */
static double millions(const cf_model *model, bool trained_only)
{
    size_t n = 0;

    for (size_t i = 0; i < model->n_params; i++)
        if (trained_only ? model->params[i].trained
                         : i < model->n_folder_params)
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

static void adapter_print(const cf_model *model)
{
    const cf_adapter_spec *spec = &model->adapter;
    char targets[CF_ADAPTER_TARGETS_BYTES_MAX];

    cf_log_info("LoRA rank %u, alpha %g on %s: %.2f M parameters are trained",
                (unsigned)spec->rank, spec->alpha,
                cf_adapter_targets_format(spec->targets, targets),
                millions(model, true));
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

static void grid_print(const cf_training *t)
{
    const cf_grid *grid = &t->run.grid;
    char layers[512], most[32];

    cf_log_info(
        "%u ranks: %u replica%s of %u stage%s, schedule %s; layers of the "
        "stages: %s; memory of a rank: at most %s",
        (unsigned)cf_comm_size(t->comm), (unsigned)grid->n_replicas,
        grid->n_replicas == 1 ? "" : "s", (unsigned)grid->n_stages,
        grid->n_stages == 1 ? "" : "s",
        cf_schedule_kind_str(t->options->schedule),
        cf_run_stages_format(&t->run, layers, sizeof(layers)),
        cf_bytes_format(t->predicted_bytes, most, sizeof(most)));
}

/* Of this rank, which stands for the others. */
static void kv_file_print(const cf_training *t)
{
    const cf_stage *stage = &t->run.model.stage;
    char bytes[32];

    cf_log_info(
        "KV state of %u of %u layers, %s, is in a file in '%s'",
        (unsigned)t->need.engine.kv.n_file_layers,
        (unsigned)(stage->end_layer - stage->first_layer),
        cf_bytes_format(cf_training_kv_file_bytes(t), bytes, sizeof(bytes)),
        t->options->kv_dir);
}

void cf_training_introduce(const cf_training *t)
{
    const cf_model_config *c = &t->run.model.config;
    char batch[96];

    if (t->options->quiet || !cf_training_is_root(t))
        return;
    cf_log_info("model %s: %.1f M parameters, %u layers; backend %s",
                t->options->model, millions(&t->run.model, false),
                (unsigned)c->n_layers, t->run.kernels.name);
    if (t->run.kernels.advice != NULL)
        cf_log_info("%s", t->run.kernels.advice);
    if (cf_model_has_adapter(&t->run.model))
        adapter_print(&t->run.model);
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
    if (t->choice[0] != '\0')
        cf_log_info("chosen %s", t->choice);
    cf_validation_introduce(&t->validation);
    if (t->options->kv_dir != NULL)
        kv_file_print(t);
    cf_arena_print(&t->sizes, stderr);
    cf_training_print_forecast(t, t->basis);
}

/* ---- after the last step ---- */

enum {
    STAGES_SHOWN_MAX = 8 /* as many as fit on a line */
};

static void times_print(const cf_training *t, const double *all)
{
    uint32_t n_stages = t->run.grid.n_stages;
    char line[512];

    cf_metrics_end_line(t->metrics);
    if (n_stages > STAGES_SHOWN_MAX)
        n_stages = STAGES_SHOWN_MAX;
    if (n_stages == 1)
        cf_log_info("time of the steps run, %" PRIu64 " in all:",
                    t->times.n_steps);
    else
        cf_log_info("time of the steps run, %" PRIu64 " in all, on stages 0 to "
                    "%u of the first replica:",
                    t->times.n_steps, (unsigned)n_stages - 1);
    for (int kind = 0; kind <= CF_TIME_KINDS; kind++) {
        cf_op_times_format_row(all, n_stages, (cf_time_kind)kind, line,
                               sizeof(line));
        if (line[0] != '\0')
            cf_log_info("%s", line);
    }
}

cf_status cf_training_print_times(const cf_training *t)
{
    double *all;
    cf_status status;

    if (!t->options->verbose || t->times.n_steps == 0)
        return CF_OK;
    all = calloc(cf_comm_size(t->comm), sizeof(t->times.run));
    status = all != NULL ? CF_OK : cf_log_no_memory("the times of all ranks");
    status = cf_comm_agree(t->comm, status);
    if (status == CF_OK)
        status =
            cf_comm_gather(t->comm, t->times.run, sizeof(t->times.run), all);
    if (status == CF_OK && cf_training_is_root(t))
        times_print(t, all);
    free(all);
    return status;
}
