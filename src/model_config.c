/* model_config.c - config.json to the shape of a model.
 *
 * (1) What a config leaves out takes the default of transformers' LlamaConfig,
 *     Qwen2Config or Qwen3Config; the sizes of the model itself must be there.
 * (2) What transformers reads and we do not compute is an error.  What
 *     transformers does not read for the family is not read here either.
 * (3) Two fields that say different things are an error, whichever of the two
 *     transformers would believe.
 */
#include "src/model_config.h"

#include "src/files.h"
#include "src/json.h"
#include "src/rope_config.h"

#include <stdlib.h>
#include <string.h>

enum {
    SIZE_MAX_CONFIG = 1 << 24,
    LAYERS_MAX = 1 << 12, /* all sizes together stay below 2^64 elements */
    HEAD_DIM_MAX = 256
};

/* The defaults in which the families differ. */
typedef struct family_defaults {
    const char *model_type;
    cf_family family;
    uint32_t n_kv_heads; /* 0: n_heads */
    uint32_t head_dim;   /* 0: hidden / n_heads */
    double max_position;
    uint32_t max_window_layers;
} family_defaults;

static const family_defaults FAMILIES[] = {
    {"llama", CF_FAMILY_LLAMA, 0, 0, 2048, 0},
    {"qwen2", CF_FAMILY_QWEN2, 32, 0, 32768, 28},
    {"qwen3", CF_FAMILY_QWEN3, 32, 128, 32768, 28},
};

static const family_defaults *read_family(cf_json_reader *reader)
{
    const char *model_type = "";

    cf_json_require(reader, "model_type");
    cf_json_read_string(reader, "model_type", &model_type);
    for (size_t i = 0; i < sizeof(FAMILIES) / sizeof(FAMILIES[0]); i++)
        if (strcmp(model_type, FAMILIES[i].model_type) == 0)
            return &FAMILIES[i];
    cf_json_error(reader, "model_type",
                  "is \"%s\", which is not supported; use a llama, qwen2 or "
                  "qwen3 model",
                  model_type);
    return NULL;
}

/* ---- sizes ---- */

static void read_size(cf_json_reader *reader, const char *field,
                      uint32_t *size_p)
{
    cf_json_require(reader, field);
    cf_json_read_uint(reader, field, 1, SIZE_MAX_CONFIG, size_p);
}

static void read_head_dim(cf_json_reader *reader,
                          const family_defaults *defaults,
                          cf_model_config *config)
{
    config->head_dim = defaults->head_dim;
    cf_json_read_uint(reader, "head_dim", 1, SIZE_MAX_CONFIG,
                      &config->head_dim);
    if (reader->status != CF_OK)
        return;
    if (config->head_dim == 0) {
        if (config->hidden % config->n_heads != 0)
            cf_json_error(reader, "hidden_size",
                          "is %u, not a multiple of num_attention_heads %u, "
                          "and head_dim is left out; correct one of them",
                          config->hidden, config->n_heads);
        config->head_dim = config->hidden / config->n_heads;
    }
    if (config->head_dim % 2 != 0 || config->head_dim > HEAD_DIM_MAX)
        cf_json_error(reader, "head_dim",
                      "is %u, but must be even and at most %d; use another "
                      "model",
                      config->head_dim, HEAD_DIM_MAX);
    if ((uint64_t)config->head_dim * config->n_heads > SIZE_MAX_CONFIG)
        cf_json_error(reader, "num_attention_heads",
                      "is %u, too many for a head_dim of %u; correct one of "
                      "them",
                      config->n_heads, config->head_dim);
}

static void read_sizes(cf_json_reader *reader, const family_defaults *defaults,
                       cf_model_config *config)
{
    const char *kv = "num_key_value_heads";

    read_size(reader, "vocab_size", &config->vocab);
    read_size(reader, "hidden_size", &config->hidden);
    read_size(reader, "intermediate_size", &config->ffn);
    cf_json_require(reader, "num_hidden_layers");
    cf_json_read_uint(reader, "num_hidden_layers", 1, LAYERS_MAX,
                      &config->n_layers);
    read_size(reader, "num_attention_heads", &config->n_heads);

    /* For the Qwen families null and left out are not the same. */
    config->n_kv_heads = defaults->n_kv_heads;
    if (config->n_kv_heads == 0 ||
        json_is_null(json_object_get(reader->object, kv)))
        config->n_kv_heads = config->n_heads;
    cf_json_read_uint(reader, kv, 1, SIZE_MAX_CONFIG, &config->n_kv_heads);
    if (reader->status == CF_OK && config->n_heads % config->n_kv_heads != 0)
        cf_json_error(reader, kv,
                      "is %u%s, which does not divide num_attention_heads %u; "
                      "correct one of them",
                      config->n_kv_heads,
                      cf_json_get(reader, kv) ? "" : " when left out",
                      config->n_heads);
    read_head_dim(reader, defaults, config);
}

/* ---- what is not supported ---- */

static void refuse_window(cf_json_reader *reader,
                          const family_defaults *defaults,
                          const cf_model_config *config)
{
    const json_t *types = cf_json_get(reader, "layer_types");
    uint32_t first_layer = defaults->max_window_layers;
    bool used = false;
    size_t i;
    const json_t *type;

    cf_json_read_bool(reader, "use_sliding_window", &used);
    if (types != NULL && !json_is_array(types))
        cf_json_error(reader, "layer_types", "must be an array; correct it");
    json_array_foreach (types, i, type) {
        const char *name = json_string_value(type);

        if (name == NULL || strcmp(name, "full_attention") != 0)
            cf_json_error(reader, "layer_types",
                          "gives layer %zu the type \"%s\", which is not "
                          "supported; use a model with full_attention in "
                          "every layer",
                          i, name == NULL ? "(not a string)" : name);
    }
    if (types != NULL && json_array_size(types) != config->n_layers)
        cf_json_error(reader, "layer_types",
                      "has %zu entries for num_hidden_layers %u; correct one "
                      "of them",
                      json_array_size(types), config->n_layers);

    /* Without layer_types the window begins at a layer; with them it does not
     * matter, nor does a window that is null. */
    cf_json_read_uint(reader, "max_window_layers", 0, SIZE_MAX_CONFIG,
                      &first_layer);
    if (json_is_null(json_object_get(reader->object, "sliding_window")))
        used = false;
    if (used && types == NULL && first_layer < config->n_layers)
        cf_json_error(reader, "use_sliding_window",
                      "is true (from layer %u on): sliding-window attention is "
                      "not supported; use a model with full attention",
                      first_layer);
}

/* Mixture-of-experts under the names that models have for it. */
static void refuse_experts(cf_json_reader *reader)
{
    static const char *const FIELDS[] = {
        "num_experts",         "num_local_experts",     "n_routed_experts",
        "num_experts_per_tok", "moe_intermediate_size",
    };

    for (size_t i = 0; i < sizeof(FIELDS) / sizeof(FIELDS[0]); i++) {
        const json_t *value = cf_json_get(reader, FIELDS[i]);

        if (value == NULL ||
            (json_is_integer(value) && json_integer_value(value) == 0))
            continue;
        cf_json_error(reader, FIELDS[i],
                      "makes this a mixture of experts, which is not "
                      "supported; use a dense model");
    }
}

static void refuse_unsupported(cf_json_reader *reader)
{
    const char *act = "silu";
    const json_t *dropout = cf_json_get(reader, "attention_dropout");
    uint32_t pretraining_tp = 1;

    if (cf_json_get(reader, "quantization_config") != NULL)
        cf_json_error(reader, "quantization_config",
                      "says that the weights are quantised, which is not "
                      "supported; use the model in bfloat16 or float32");
    refuse_experts(reader);
    cf_json_read_string(reader, "hidden_act", &act);
    /* transformers has SiLU under both names. */
    if (strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0)
        cf_json_error(reader, "hidden_act",
                      "is \"%s\", which is not supported; use a model with "
                      "silu",
                      act);
    if (dropout != NULL &&
        (!json_is_number(dropout) || json_number_value(dropout) != 0))
        cf_json_error(reader, "attention_dropout",
                      "is not 0: dropout is not supported; set it to 0");
    cf_json_read_uint(reader, "pretraining_tp", 0, SIZE_MAX_CONFIG,
                      &pretraining_tp);
    if (pretraining_tp > 1)
        cf_json_error(reader, "pretraining_tp",
                      "is %u: sliced linear layers are not supported; set it "
                      "to 1",
                      pretraining_tp);
}

/* ---- the whole ---- */

static void read_flags(cf_json_reader *reader, cf_model_config *config)
{
    bool attention_bias = false;

    config->rms_norm_eps = 1e-6;
    cf_json_read_above(reader, "rms_norm_eps", 0, &config->rms_norm_eps);
    cf_json_read_bool(reader, "tie_word_embeddings", &config->tied);
    if (config->family != CF_FAMILY_QWEN2)
        cf_json_read_bool(reader, "attention_bias", &attention_bias);
    config->attention_bias =
        attention_bias || config->family == CF_FAMILY_QWEN2;
    config->attention_o_bias = attention_bias;
    if (config->family == CF_FAMILY_LLAMA)
        cf_json_read_bool(reader, "mlp_bias", &config->mlp_bias);
    config->qk_norm = config->family == CF_FAMILY_QWEN3;
}

static cf_status read_config(cf_json_reader *reader, cf_model_config *config_p)
{
    const family_defaults *defaults = read_family(reader);
    cf_model_config config = {0};

    if (defaults == NULL)
        return reader->status;
    config.family = defaults->family;
    refuse_unsupported(reader);
    read_sizes(reader, defaults, &config);
    refuse_window(reader, defaults, &config);
    read_flags(reader, &config);
    cf_rope_config_read(reader, defaults->max_position, &config.rope);
    if (reader->status == CF_OK)
        *config_p = config;
    return reader->status;
}

cf_status cf_model_config_read(const char *folder, cf_model_config *config_p)
{
    char *path = cf_path_join(folder, "/", "config.json");
    json_t *object;
    cf_status status = CF_NO_MEMORY;

    if (path == NULL)
        return status;
    status = cf_json_load(path, &object);
    if (status == CF_OK) {
        cf_json_reader reader = {path, "", object, CF_OK};

        status = read_config(&reader, config_p);
        json_decref(object);
    }
    free(path);
    return status;
}
