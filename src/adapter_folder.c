/* adapter_folder.c - see adapter_folder.h. */
#include "src/adapter_folder.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/files.h"
#include "src/folder_write.h"
#include "src/json.h"
#include "src/log.h"
#include "src/model_export.h"

static const char config_name[] = "adapter_config.json";

/* ---- the configuration, in ---- */

/* Fields that change nothing here: they name things, or belong to others that
 * are off. */
static const char *const no_matter[] = {
    "auto_mapping",
    "base_model_name_or_path",
    "inference_mode",
    "layers_pattern",
    "lora_alpha",
    "lora_dropout",
    "megatron_core",
    "peft_type",
    "peft_version",
    "qalora_group_size",
    "r",
    "revision",
    "runtime_config",
    "target_modules",
    "task_type",
};

static bool is_no_matter(const char *field)
{
    for (size_t i = 0; i < sizeof(no_matter) / sizeof(no_matter[0]); i++)
        if (strcmp(field, no_matter[i]) == 0)
            return true;
    return false;
}

/* The other ways to begin change the weights of the model too. */
static bool is_plain_init(const json_t *value)
{
    const char *name = json_string_value(value);

    return json_is_boolean(value) || json_is_null(value) ||
           (name != NULL &&
            (strcmp(name, "gaussian") == 0 || strcmp(name, "orthogonal") == 0));
}

/* null, false, an empty list or object, or "none". */
static bool is_off(const json_t *value)
{
    return json_is_null(value) || json_is_false(value) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0) ||
           (json_is_string(value) &&
            strcmp(json_string_value(value), "none") == 0);
}

static void others_check(cf_json_reader *reader)
{
    const char *field;
    json_t *value;

    json_object_foreach ((json_t *)reader->object, field, value) {
        if (is_no_matter(field) || is_off(value) ||
            (strcmp(field, "init_lora_weights") == 0 && is_plain_init(value)))
            continue;
        cf_json_error(reader, field,
                      "asks for what chunkflow does not have: use an adapter "
                      "without it");
    }
}

static void target_add(cf_json_reader *reader, const char *name,
                       unsigned *targets)
{
    for (unsigned t = 0; t < CF_ADAPTER_TARGETS; t++)
        if (strcmp(name, cf_adapter_target_names[t]) == 0) {
            *targets |= 1U << t;
            return;
        }
    cf_json_error(
        reader, "target_modules",
        "names '%.60s': chunkflow has q_proj, k_proj, v_proj, o_proj, "
        "gate_proj, up_proj, down_proj, in all layers",
        name);
}

static void targets_read(cf_json_reader *reader, unsigned *targets)
{
    const json_t *list = cf_json_get(reader, "target_modules");
    const json_t *name;
    size_t i;

    if (json_is_string(list) &&
        strcmp(json_string_value(list), "all-linear") == 0)
        *targets = CF_ADAPTER_ALL_TARGETS;
    else if (!json_is_array(list) || json_array_size(list) == 0)
        cf_json_error(reader, "target_modules",
                      "must be a list of names such as [\"q_proj\", "
                      "\"v_proj\"]");
    json_array_foreach (list, i, name)
        target_add(reader, json_is_string(name) ? json_string_value(name) : "",
                   targets);
}

static void type_check(cf_json_reader *reader)
{
    const char *type = "";

    cf_json_read_string(reader, "peft_type", &type);
    if (reader->status == CF_OK && strcmp(type, "LORA") != 0)
        cf_json_error(reader, "peft_type", "must be \"LORA\"");
}

static void dropout_check(cf_json_reader *reader, cf_adapter_use use)
{
    const json_t *dropout = cf_json_get(reader, "lora_dropout");

    if (use == CF_ADAPTER_TRAIN && dropout != NULL &&
        !(json_is_number(dropout) && json_number_value(dropout) == 0))
        cf_json_error(reader, "lora_dropout",
                      "must be 0: chunkflow trains without dropout");
}

cf_status cf_adapter_config_read(const char *folder, cf_adapter_use use,
                                 cf_adapter_spec *spec_p)
{
    char *path = cf_path_join(folder, "/", config_name);
    cf_adapter_spec spec = {0};
    cf_json_reader reader = {.path = path, .prefix = ""};
    json_t *config;
    cf_status status = CF_NO_MEMORY;

    if (path == NULL)
        return status;
    status = cf_json_load(path, &config);
    if (status != CF_OK)
        goto free_path;
    reader.object = config;
    type_check(&reader);
    cf_json_require(&reader, "r");
    cf_json_read_uint(&reader, "r", 1, CF_ADAPTER_RANK_MAX, &spec.rank);
    cf_json_require(&reader, "lora_alpha");
    cf_json_read_above(&reader, "lora_alpha", 0, &spec.alpha);
    targets_read(&reader, &spec.targets);
    dropout_check(&reader, use);
    others_check(&reader);
    status = reader.status;
    if (status == CF_OK)
        *spec_p = spec;
    json_decref(config);
free_path:
    free(path);
    return status;
}

/* ---- out ---- */

typedef struct writing {
    cf_comm *comm;
    const cf_model *model;
    const char *base;
    const cf_tensor_source *sources;
    size_t n_sources;
} writing;

static json_t *targets_json(unsigned targets)
{
    json_t *list = json_array();

    for (unsigned t = 0; t < CF_ADAPTER_TARGETS; t++)
        if ((targets & 1U << t) != 0)
            (void)json_array_append_new(
                list, json_string(cf_adapter_target_names[t]));
    return list;
}

static json_t *alpha_json(double alpha)
{
    return alpha == floor(alpha) && alpha < 1e15
               ? json_integer((json_int_t)alpha)
               : json_real(alpha);
}

/* As little as PEFT, of any version, needs: all else is at its defaults. */
static char *config_format(const cf_adapter_spec *spec, const char *base)
{
    json_t *config =
        json_pack("{s:s, s:s, s:s, s:i, s:o, s:f, s:o, s:s, s:b, s:b, s:b}",
                  "base_model_name_or_path", base, "peft_type", "LORA",
                  "task_type", "CAUSAL_LM", "r", (int)spec->rank, "lora_alpha",
                  alpha_json(spec->alpha), "lora_dropout", 0.0,
                  "target_modules", targets_json(spec->targets), "bias", "none",
                  "fan_in_fan_out", 0, "use_rslora", 0, "inference_mode", 1);
    char *text = json_dumps(config, JSON_INDENT(2) | JSON_PRESERVE_ORDER);

    json_decref(config);
    return text;
}

static cf_status config_write(const writing *w, const char *folder)
{
    char *text = config_format(&w->model->adapter, w->base);
    cf_status status = text == NULL ? cf_log_no_memory(config_name)
                                    : cf_folder_write_text(folder, config_name,
                                                           text, strlen(text));

    free(text);
    return status;
}

static cf_status fill(const void *context, const char *folder)
{
    const writing *w = context;
    char *path = cf_path_join(folder, "/", "adapter_model.safetensors");
    cf_status status = path != NULL ? CF_OK : CF_NO_MEMORY;

    if (status == CF_OK && cf_comm_rank(w->comm) == 0)
        status = config_write(w, folder);
    status = cf_comm_agree(w->comm, status);
    if (status == CF_OK)
        status = cf_tensors_write(w->comm, path, w->model->kernels->compute,
                                  w->sources, w->n_sources);
    free(path);
    return status;
}

cf_status cf_adapter_write(cf_comm *comm, const cf_model *model,
                           const char *base, const char *to,
                           cf_export_dtype dtype)
{
    writing w = {.comm = comm, .model = model, .base = base};
    cf_tensor_source *sources;
    cf_status status = cf_model_export_list(comm, model, model->n_folder_params,
                                            model->n_params, dtype, &sources);

    if (status != CF_OK)
        return status;
    w.sources = sources;
    w.n_sources = model->n_params - model->n_folder_params;
    status = cf_folder_write(comm, to, fill, &w);
    free(sources);
    return status;
}
