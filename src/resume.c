/* resume.c - see resume.h. */
#include "src/resume.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "src/convert.h"
#include "src/files.h"
#include "src/hash.h"
#include "src/json.h"
#include "src/log.h"
#include "src/safetensors.h"

/* ---- options ---- */

static cf_status option_add(cf_checkpoint_state *run, const char *name,
                            const char *value)
{
    cf_checkpoint_option *option = &run->options[run->n_options];

    if (run->n_options == CF_CHECKPOINT_OPTIONS_MAX ||
        strlen(name) >= sizeof(option->name) ||
        strlen(value) >= sizeof(option->value)) {
        cf_log_error("--%s: too long to be kept in a training state", name);
        return CF_INVALID;
    }
    memcpy(option->name, name, strlen(name) + 1);
    memcpy(option->value, value, strlen(value) + 1);
    run->n_options++;
    return CF_OK;
}

/* The adapter that the run begins with, told by content. */
static cf_status adapter_add(cf_checkpoint_state *run, const char *folder)
{
    char text[40];
    uint64_t hash;
    cf_status status;

    if (folder == NULL)
        return option_add(run, "init-adapter", "");
    status = cf_resume_hash_adapter(folder, &hash);
    if (status != CF_OK)
        return status;
    (void)snprintf(text, sizeof(text), "one of content %016" PRIx64, hash);
    return option_add(run, "init-adapter", text);
}

cf_status cf_resume_describe(const cf_options *options, uint64_t n_steps,
                             cf_checkpoint_state *run_p)
{
    cf_option_text text;
    cf_status status = CF_OK;

    *run_p = (cf_checkpoint_state){.n_steps = n_steps};
    for (size_t i = 0;
         status == CF_OK && cf_options_identity(options, i, &text); i++)
        status = option_add(run_p, text.name, text.value);
    return status == CF_OK ? adapter_add(run_p, options->adapter) : status;
}

static const char *value_of(const cf_checkpoint_state *state, const char *name)
{
    for (size_t i = 0; i < state->n_options; i++)
        if (strcmp(state->options[i].name, name) == 0)
            return state->options[i].value;
    return NULL;
}

/* A version that did not have an option yet did what its default does. */
static cf_status describe_defaults(cf_checkpoint_state *defaults_p)
{
    char *line[] = {"chunkflow", "train",      "--model=.",
                    "--data=.",  "--output=.", NULL};
    cf_options options;
    cf_options_outcome outcome;
    cf_status status = cf_options_open(5, line, &options, &outcome);

    if (status != CF_OK)
        return status;
    status = cf_resume_describe(&options, 0, defaults_p);
    cf_options_close(&options);
    return status;
}

/* Differences, told in one line. */
typedef struct differences {
    char text[1024];
    size_t n;
} differences;

static void CF_PRINTF(2, 3)
    add_difference(differences *d, const char *format, ...)
{
    size_t room;
    va_list args;

    if (d->n > 0 && d->n < sizeof(d->text))
        d->n += (size_t)snprintf(d->text + d->n, sizeof(d->text) - d->n, ", ");
    if (d->n >= sizeof(d->text))
        return;
    room = sizeof(d->text) - d->n;
    va_start(args, format);
    d->n += (size_t)vsnprintf(d->text + d->n, room, format, args);
    va_end(args);
}

static cf_status refuse(const differences *d, const char *path)
{
    if (d->n == 0)
        return CF_OK;
    cf_log_error("--resume: this is not the run of '%s': %s; give what it had, "
                 "or another --output",
                 path, d->text);
    return CF_INVALID;
}

static const char *shown(const char *value)
{
    return value[0] != '\0' ? value : "not given";
}

static void compare_option(differences *d, const char *name, const char *was,
                           const char *is, const cf_checkpoint_state *defaults)
{
    if (was == NULL)
        was = value_of(defaults, name);
    if (is == NULL)
        is = "unknown to this version";
    if (was == NULL || strcmp(was, is) != 0)
        add_difference(d, "--%s was %s, is %s", name,
                       shown(was != NULL ? was : ""), shown(is));
}

cf_status cf_resume_check_options(const cf_checkpoint_state *run,
                                  const cf_checkpoint_state *found,
                                  const char *path)
{
    const char *schedule = value_of(run, "lr-schedule");
    cf_checkpoint_state defaults;
    differences d = {.n = 0};
    cf_status status = describe_defaults(&defaults);

    if (status != CF_OK)
        return status;
    for (size_t i = 0; i < run->n_options; i++)
        compare_option(&d, run->options[i].name,
                       value_of(found, run->options[i].name),
                       run->options[i].value, &defaults);
    for (size_t i = 0; i < found->n_options; i++)
        if (value_of(run, found->options[i].name) == NULL)
            compare_option(&d, found->options[i].name, found->options[i].value,
                           NULL, &defaults);
    if (run->n_steps != found->n_steps && schedule != NULL &&
        strcmp(schedule, "constant") != 0)
        add_difference(&d,
                       "its steps were %" PRIu64 ", are %" PRIu64
                       ", and belong to --lr-schedule %s",
                       found->n_steps, run->n_steps, schedule);
    return refuse(&d, path);
}

cf_status cf_resume_check_content(const cf_checkpoint_state *run,
                                  const cf_checkpoint_state *found,
                                  const char *path)
{
    differences d = {.n = 0};

    if (run->model_hash != found->model_hash)
        add_difference(&d, "--model has another content");
    if (run->data_hash != found->data_hash)
        add_difference(&d, "--data has another content");
    return refuse(&d, path);
}

/* ---- model and adapter ---- */

/* config.json whatever its layout, and without what changes no number. */
static cf_status hash_config(cf_hash *hash, const char *folder)
{
    static const char *const no_matter[] = {
        "_name_or_path", "dtype", "torch_dtype", "transformers_version",
        "use_cache"};
    char *path = cf_path_join(folder, "/", "config.json");
    char *text = NULL;
    json_t *config;
    cf_status status = CF_NO_MEMORY;

    if (path == NULL)
        return status;
    status = cf_json_load(path, &config);
    free(path);
    if (status != CF_OK)
        return status;
    for (size_t i = 0; i < sizeof(no_matter) / sizeof(no_matter[0]); i++)
        (void)json_object_del(config, no_matter[i]);
    text = json_dumps(config, JSON_COMPACT | JSON_SORT_KEYS);
    json_decref(config);
    if (text == NULL)
        return CF_NO_MEMORY;
    cf_hash_append(hash, text, strlen(text));
    free(text);
    return CF_OK;
}

/* In the order of names, so that shards make no difference. */
static void hash_tensors(cf_hash *hash, const cf_tensors *tensors)
{
    for (size_t i = 0; i < cf_tensors_count(tensors); i++) {
        const cf_tensor *tensor = cf_tensors_at(tensors, i);
        const char *dtype = cf_dtype_name(tensor->dtype);

        cf_hash_append(hash, tensor->name, strlen(tensor->name) + 1);
        cf_hash_append(hash, dtype, strlen(dtype) + 1);
        cf_hash_append(hash, tensor->dims,
                       tensor->n_dims * sizeof(tensor->dims[0]));
        cf_hash_append(hash, tensor->data,
                       tensor->n * cf_dtype_bytes(tensor->dtype));
        cf_tensor_release(tensor);
    }
}

cf_status cf_resume_hash_model(const char *folder, uint64_t *hash_p)
{
    cf_tensors *tensors;
    cf_hash hash;
    cf_status status;

    cf_hash_begin(&hash);
    status = hash_config(&hash, folder);
    if (status == CF_NO_MEMORY)
        cf_log_error("no memory to read config.json of '%s'", folder);
    if (status != CF_OK)
        return status;
    status = cf_tensors_open_folder(folder, &tensors);
    if (status != CF_OK)
        return status;
    hash_tensors(&hash, tensors);
    cf_tensors_close(tensors);
    *hash_p = cf_hash_end(&hash);
    return CF_OK;
}

cf_status cf_resume_hash_adapter(const char *folder, uint64_t *hash_p)
{
    char *path = cf_path_join(folder, "/", "adapter_model.safetensors");
    cf_tensors *tensors;
    cf_hash hash;
    cf_status status = CF_NO_MEMORY;

    if (path != NULL)
        status = cf_tensors_open_file(path, &tensors);
    free(path);
    if (status != CF_OK)
        return status;
    cf_hash_begin(&hash);
    hash_tensors(&hash, tensors);
    cf_tensors_close(tensors);
    *hash_p = cf_hash_end(&hash);
    return CF_OK;
}
