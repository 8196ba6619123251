/* export.c - the export command: a training state out as a Hugging Face folder, or
 * as an adapter.
 *
 * The state has the weights; what goes with them (config, tokenizer, types) is
 * in the model folder that the run started from.
 */
#include "src/commands.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/adapter.h"
#include "src/adapter_options.h"
#include "src/checkpoint.h"
#include "src/files.h"
#include "src/log.h"
#include "src/model_export.h"
#include "src/resume.h"
#include "src/run.h"

typedef struct exporting {
    const cf_options *options;
    cf_comm *comm;
    char *path; /* owned: of the state */
    cf_checkpoint_state state;
    char *model_folder; /* owned */
    cf_kernels kernels;
    cf_model model;
    cf_arena arena;
} exporting;

static cf_status state_find(exporting *e)
{
    cf_status status = cf_checkpoint_find(e->options->output, e->options->step,
                                          &e->path, &e->state);

    if (status != CF_OK || e->path != NULL)
        return status;
    if (e->options->step != CF_CHECKPOINT_NEWEST)
        cf_log_error("--output '%s' has no training state of step %" PRIu64
                     ": see its folder checkpoints/",
                     e->options->output, e->options->step);
    else
        cf_log_error("--output '%s' has no complete training state: name the "
                     "folder that train wrote",
                     e->options->output);
    return CF_INVALID;
}

/* --model, or else the one that the run's own configuration names. */
static cf_status model_find(exporting *e)
{
    char *config = cf_path_join(e->options->output, "/", "config.yaml");
    char *line[] = {"chunkflow", "train", "--config", config, NULL};
    cf_options run = {0};
    cf_options_outcome outcome;
    cf_status status = CF_NO_MEMORY;

    if (e->options->model != NULL) {
        e->model_folder = strdup(e->options->model);
        status = e->model_folder != NULL ? CF_OK : CF_NO_MEMORY;
    } else if (config != NULL) {
        status = cf_options_open(4, line, &run, &outcome);
        if (status == CF_OK) {
            e->model_folder = run.model;
            run.model = NULL;
        }
        cf_options_close(&run);
    }
    if (status == CF_NO_MEMORY)
        cf_log_error("no memory to read '%s'", e->options->output);
    free(config);
    return status;
}

/* NULL: not given, or not known to the version that wrote the state. */
static char *option_of(cf_checkpoint_state *state, const char *name)
{
    for (size_t i = 0; i < state->n_options; i++)
        if (strcmp(state->options[i].name, name) == 0 &&
            state->options[i].value[0] != '\0')
            return state->options[i].value;
    return NULL;
}

static bool is_fp64(cf_checkpoint_state *state)
{
    const char *compute = option_of(state, "compute");

    return compute != NULL && strcmp(compute, "fp64") == 0;
}

/* The adapter of the run, if it had one. */
static cf_status adapter_open(exporting *e)
{
    const char *rank = option_of(&e->state, "lora-rank");
    const char *alpha = option_of(&e->state, "lora-alpha");
    const cf_options run = {
        .lora_rank = rank != NULL ? (uint32_t)strtoul(rank, NULL, 10) : 0,
        .lora_alpha = alpha != NULL ? strtod(alpha, NULL) : -1,
        .lora_targets = option_of(&e->state, "lora-targets"),
    };
    cf_adapter_spec spec;
    cf_status status = cf_adapter_options_spec(&run, &spec);

    if (status == CF_OK && spec.rank > 0)
        return cf_model_adapt(&e->model, &spec);
    if (status != CF_OK || !e->options->merge)
        return status;
    cf_log_error("--merge: the run in '%s' has no adapter; leave it out",
                 e->options->output);
    return CF_INVALID;
}

/* Masters are fp32 in all but fp64, so any other backend will do. */
static cf_status model_open(exporting *e)
{
    const char *why = "";
    cf_status status =
        cf_cpu_kernels(is_fp64(&e->state) ? CF_COMPUTE_FP64 : CF_COMPUTE_FP32,
                       &e->kernels, &why);

    if (status != CF_OK) {
        cf_log_error("the CPU backend cannot run: %s", why);
        return status;
    }
    status = cf_model_open(e->model_folder, &e->kernels, &e->model);
    return status == CF_OK ? adapter_open(e) : status;
}

static cf_status model_check(const exporting *e)
{
    uint64_t hash;
    cf_status status = cf_resume_hash_model(e->model_folder, &hash);

    if (status != CF_OK || hash == e->state.model_hash)
        return status;
    cf_log_error("'%s' is not the model that '%s' started from: name that one "
                 "with --model",
                 e->model_folder, e->path);
    return CF_INVALID;
}

static cf_status weights_load(exporting *e)
{
    cf_arena sizes;
    cf_status status;

    cf_arena_open_dry(&sizes);
    cf_model_carve(&e->model, CF_MODEL_EVAL, &sizes);
    status = cf_arena_open(sizes.used, &e->arena);
    if (status != CF_OK)
        return status;
    cf_model_carve(&e->model, CF_MODEL_EVAL, &e->arena);
    /* The folder's own weights first: they are checked, and tell the types. */
    status = cf_model_load(&e->model, e->model_folder);
    if (status == CF_OK)
        status = cf_checkpoint_load(e->path, &e->model);
    return status;
}

static cf_status weights_write(exporting *e)
{
    const char *output = e->options->output;
    const char *what = cf_model_has_adapter(&e->model) ? "adapter" : "model";
    cf_status status = cf_trained_deliver(e->comm, &e->model, e->model_folder,
                                          output, e->options);

    if (status == CF_OK && !e->options->quiet)
        cf_log_info("the %s of step %" PRIu64 " is in %s/%s%s", what,
                    e->state.step, output, what,
                    e->options->merge ? ", and merged in its model/" : "");
    return status;
}

int cf_command_export(const cf_options *options, cf_comm *comm)
{
    exporting e = {.options = options, .comm = comm};
    cf_status status = state_find(&e);

    if (status == CF_OK)
        status = model_find(&e);
    if (status == CF_OK)
        status = model_open(&e);
    if (status != CF_OK)
        goto free_paths;
    status = model_check(&e);
    if (status == CF_OK)
        status = weights_load(&e);
    if (status == CF_OK)
        status = weights_write(&e);
    cf_arena_close(&e.arena);
    cf_model_close(&e.model);
free_paths:
    free(e.model_folder);
    free(e.path);
    return cf_exit_code(status);
}
