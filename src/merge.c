/* merge.c - the merge command: a model folder whose weights have an adapter in
 * them.
 */
#include "src/commands.h"

#include <dirent.h>
#include <string.h>

#include "src/adapter.h"
#include "src/adapter_options.h"
#include "src/log.h"
#include "src/model_export.h"
#include "src/run.h"

typedef struct merging {
    const cf_options *options;
    cf_kernels kernels;
    cf_model model;
    cf_arena arena;
} merging;

/* Nothing that is there is replaced: it could be anything. */
static cf_status output_check(const char *path)
{
    DIR *dir = opendir(path);
    const struct dirent *entry;
    bool is_empty = true;

    if (dir == NULL)
        return CF_OK;
    while ((entry = readdir(dir)) != NULL)
        is_empty &=
            strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
    closedir(dir);
    if (is_empty)
        return CF_OK;
    cf_log_error("--output '%s' is not empty: name another folder", path);
    return CF_INVALID;
}

static cf_status model_open(merging *m)
{
    const char *why = "";
    cf_adapter_spec spec;
    cf_status status = cf_cpu_kernels(CF_COMPUTE_FP32, &m->kernels, &why);

    if (status != CF_OK) {
        cf_log_error("the CPU backend cannot run: %s", why);
        return status;
    }
    status = cf_adapter_options_spec(m->options, &spec);
    if (status == CF_OK)
        status = cf_model_open(m->options->model, &m->kernels, &m->model);
    return status == CF_OK ? cf_model_adapt(&m->model, &spec) : status;
}

static cf_status weights_load(merging *m)
{
    cf_arena sizes;
    cf_status status;

    cf_arena_open_dry(&sizes);
    cf_model_carve(&m->model, CF_MODEL_EVAL, &sizes);
    status = cf_arena_open(sizes.used, &m->arena);
    if (status != CF_OK)
        return status;
    cf_model_carve(&m->model, CF_MODEL_EVAL, &m->arena);
    status = cf_model_load(&m->model, m->options->model);
    return status == CF_OK ? cf_adapter_load(&m->model, m->options->adapter)
                           : status;
}

int cf_command_merge(const cf_options *options, cf_comm *comm)
{
    merging m = {.options = options};
    cf_status status = output_check(options->output);

    if (status == CF_OK)
        status = model_open(&m);
    if (status == CF_OK)
        status = weights_load(&m);
    if (status == CF_OK)
        status = cf_adapter_merge(&m.model);
    if (status == CF_OK)
        status = cf_model_export(comm, &m.model, options->model,
                                 options->output, options->export_dtype);
    if (status == CF_OK && !options->quiet)
        cf_log_info("the merged model is in %s", options->output);
    cf_arena_close(&m.arena);
    cf_model_close(&m.model);
    return cf_exit_code(status);
}
