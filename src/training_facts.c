/* training_facts.c - what is written of a run for the eye: run.json, which
 * `report` reads, and its pictures. */
#include "src/training.h"

#include <inttypes.h>
#include <jansson.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>

#include "src/file_write.h"
#include "src/log.h"

/* ---- run.json ---- */

static json_t *count_json(const cf_ledger_count *count)
{
    return json_pack("{s:I, s:I}", "sequences", (json_int_t)count->sequences,
                     "tokens", (json_int_t)count->tokens);
}

/* What an epoch will read, in the words of ledger.json. */
static json_t *epoch_json(const cf_training *t)
{
    cf_ledger ledger = {0};

    cf_batches_count_epoch(&t->batches, &ledger);
    return json_pack("{s:o, s:o, s:o, s:o, s:I}", "read",
                     count_json(&ledger.read), "trained",
                     count_json(&ledger.trained), "masked",
                     count_json(&ledger.masked), "skipped",
                     count_json(&ledger.skipped_max_length), "target_tokens",
                     (json_int_t)ledger.trained_target_tokens);
}

static json_t *memory_json(const cf_training *t)
{
    json_t *parts = json_array();

    for (size_t i = 0; i < t->sizes.n_lines; i++)
        (void)json_array_append_new(
            parts, json_pack("{s:s, s:I}", "what", t->sizes.lines[i].what,
                             "bytes", (json_int_t)t->sizes.lines[i].bytes));
    return json_pack("{s:I, s:o}", "predicted_bytes",
                     (json_int_t)t->predicted_bytes, "parts", parts);
}

static json_t *plan_json(const cf_training *t)
{
    const cf_grid *grid = &t->run.grid;
    char layers[512];

    return json_pack("{s:s, s:i, s:i, s:i, s:s, s:i, s:i, s:s, s:i, s:I}",
                     "schedule", cf_schedule_kind_str(t->options->schedule),
                     "ranks", (int)cf_comm_size(t->comm), "replicas",
                     (int)grid->n_replicas, "stages", (int)grid->n_stages,
                     "layers",
                     cf_run_stages_format(&t->run, layers, sizeof(layers)),
                     "chunk_size", (int)t->need.chunk_size_tok, "retain_chunks",
                     (int)t->need.params.retained_chunks_max, "choice",
                     t->choice, "longest_sequence", (int)t->need.longest_tok,
                     "steps", (json_int_t)t->batches.n_steps);
}

/* A path need not be UTF-8, JSON has to be. */
static json_t *path_json(const char *path)
{
    json_t *text = json_string(path);

    return text != NULL ? text : json_string("(a name that is not UTF-8)");
}

static json_t *model_json(const cf_training *t)
{
    const cf_model *model = &t->run.model;
    size_t n = 0, n_trained = 0;

    for (size_t i = 0; i < model->n_params; i++) {
        n += model->params[i].n;
        n_trained += model->params[i].trained ? model->params[i].n : 0;
    }
    return json_pack("{s:o, s:i, s:i, s:i, s:I, s:I}", "path",
                     path_json(t->options->model), "layers",
                     (int)model->config.n_layers, "hidden",
                     (int)model->config.hidden, "vocabulary",
                     (int)model->config.vocab, "parameters", (json_int_t)n,
                     "trained_parameters", (json_int_t)n_trained);
}

/* Numbers alone say little when two runs differ. */
static json_t *versions_json(const cf_training *t)
{
    struct utsname host = {0};

    (void)uname(&host);
    return json_pack("{s:s, s:s, s:s, s:s, s:s}", "chunkflow", CF_VERSION,
                     "compiler", __VERSION__, "kernels", t->run.kernels.name,
                     "system", host.release, "host", host.nodename);
}

static json_t *facts_json(const cf_training *t)
{
    char began[32] = "";
    const time_t now = time(NULL);
    struct tm utc;

    if (gmtime_r(&now, &utc) != NULL)
        (void)strftime(began, sizeof(began), "%Y-%m-%dT%H:%M:%SZ", &utc);
    return json_pack("{s:s, s:I, s:o, s:o, s:o, s:o, s:f, s:o}", "began", began,
                     "resumed_from", (json_int_t)t->saver.start.step, "model",
                     model_json(t), "plan", plan_json(t), "epoch",
                     epoch_json(t), "memory", memory_json(t), "forecast_s",
                     cf_forecast_remaining_s(&t->forecast), "versions",
                     versions_json(t));
}

static cf_status facts_fill(FILE *file, const void *facts)
{
    if (json_dumpf(facts, file, JSON_INDENT(2) | JSON_REAL_PRECISION(6)) != 0 ||
        fputc('\n', file) == EOF)
        return CF_IO;
    return CF_OK;
}

cf_status cf_training_write_facts(const cf_training *t, const char *path)
{
    json_t *facts = facts_json(t);
    cf_status status;

    if (facts == NULL)
        return cf_log_no_memory("run.json");
    status = cf_file_write(path, facts_fill, facts);
    json_decref(facts);
    return status;
}

/* ---- pictures ---- */

void cf_training_draw_lengths(cf_training *t)
{
    const cf_picture_lengths lengths = {
        .len_tok = cf_dataset_lengths(t->run.dataset),
        .sequences = t->batches.eligible,
        .n = t->batches.n_eligible,
        .chunk_size_tok = t->options->chunk_size_tok,
    };

    cf_pictures_draw_lengths(&t->pictures, &lengths);
}

void cf_training_draw_curves(cf_training *t)
{
    const cf_picture_memory memory = {
        .sizes = &t->sizes,
        .predicted_bytes = t->predicted_bytes,
        .n_ranks = cf_comm_size(t->comm),
    };

    cf_pictures_draw_curves(&t->pictures, t->batches.n_steps, &memory);
}
