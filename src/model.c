/* model.c - the parameter table and the typed views into the flat arrays.  See
 * model.h for the invariants. */
#include "src/model.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/adapter.h"
#include "src/log.h"

/* Most parameters that one layer can have: 7 weights, 7 biases, 4 norms. */
enum {
    LAYER_PARAMS_MAX = 18,
    OTHER_PARAMS = 3
};

/* ---- the table ---- */

cf_param *cf_model_append_param(cf_model *model, cf_param_place place,
                                uint64_t n_rows, uint64_t n_cols,
                                const char *format, ...)
{
    cf_param *p = &model->params[model->n_params];
    size_t offset = model->n_elements;
    va_list args;

    if (place == CF_PARAM_ALIGNED)
        offset += (CF_PARAM_ALIGN - offset % CF_PARAM_ALIGN) % CF_PARAM_ALIGN;
    *p = (cf_param){
        .n_dims = n_cols > 0 ? 2 : 1,
        .dims = {n_rows, n_cols},
        .n = n_rows * (n_cols > 0 ? n_cols : 1),
        .offset = offset,
        .layer = UINT32_MAX,
        .trained = true,
        .in_state = true,
        .file_dtype = CF_DTYPE_F32,
    };
    va_start(args, format);
    vsnprintf(p->name, sizeof(p->name), format, args);
    va_end(args);
    model->n_elements = offset + p->n;
    model->n_params++;
    return p;
}

static void layer_params_append(cf_model *model, unsigned layer)
{
    const cf_model_config *c = &model->config;
    const uint64_t q = (uint64_t)c->n_heads * c->head_dim;
    const uint64_t kv = (uint64_t)c->n_kv_heads * c->head_dim;
    const unsigned norms = CF_PART_NORMS, biases = CF_PART_BIASES;
    const unsigned attention = CF_PART_ATTENTION, mlp = CF_PART_MLP;
    const cf_param_place aligned = CF_PARAM_ALIGNED, behind = CF_PARAM_BEHIND;
    const struct {
        const char *name;
        uint64_t n_rows, n_cols;
        cf_param_place place;
        unsigned parts;
        bool present;
    } rows[] = {
        {"input_layernorm.weight", c->hidden, 0, aligned, norms, true},
        {"self_attn.q_proj.weight", q, c->hidden, aligned, attention, true},
        {"self_attn.k_proj.weight", kv, c->hidden, behind, attention, true},
        {"self_attn.v_proj.weight", kv, c->hidden, behind, attention, true},
        {"self_attn.q_proj.bias", q, 0, aligned, attention | biases,
         c->attention_bias},
        {"self_attn.k_proj.bias", kv, 0, behind, attention | biases,
         c->attention_bias},
        {"self_attn.v_proj.bias", kv, 0, behind, attention | biases,
         c->attention_bias},
        {"self_attn.q_norm.weight", c->head_dim, 0, aligned, attention | norms,
         c->qk_norm},
        {"self_attn.k_norm.weight", c->head_dim, 0, aligned, attention | norms,
         c->qk_norm},
        {"self_attn.o_proj.weight", c->hidden, q, aligned, attention, true},
        {"self_attn.o_proj.bias", c->hidden, 0, aligned, attention | biases,
         c->attention_o_bias},
        {"post_attention_layernorm.weight", c->hidden, 0, aligned, norms, true},
        {"mlp.gate_proj.weight", c->ffn, c->hidden, aligned, mlp, true},
        {"mlp.up_proj.weight", c->ffn, c->hidden, behind, mlp, true},
        {"mlp.gate_proj.bias", c->ffn, 0, aligned, mlp | biases, c->mlp_bias},
        {"mlp.up_proj.bias", c->ffn, 0, behind, mlp | biases, c->mlp_bias},
        {"mlp.down_proj.weight", c->hidden, c->ffn, aligned, mlp, true},
        {"mlp.down_proj.bias", c->hidden, 0, aligned, mlp | biases,
         c->mlp_bias},
    };

    static_assert(sizeof(rows) / sizeof(rows[0]) == LAYER_PARAMS_MAX,
                  "the table has room for these");
    for (size_t i = 0; i < LAYER_PARAMS_MAX; i++) {
        cf_param *p;

        if (!rows[i].present)
            continue;
        p = cf_model_append_param(model, rows[i].place, rows[i].n_rows,
                                  rows[i].n_cols, "model.layers.%u.%s", layer,
                                  rows[i].name);
        p->parts = rows[i].parts;
        p->layer = layer;
    }
}

static cf_status table_build(cf_model *model)
{
    const cf_model_config *c = &model->config;
    const cf_stage whole = {
        .end_layer = c->n_layers, .is_first = true, .is_last = true};
    size_t capacity = (size_t)c->n_layers * LAYER_PARAMS_MAX + OTHER_PARAMS;

    model->params = calloc(capacity, sizeof(*model->params));
    model->layers = calloc(c->n_layers, sizeof(*model->layers));
    model->inv_freq = calloc(c->head_dim / 2, sizeof(*model->inv_freq));
    if (model->params == NULL || model->layers == NULL ||
        model->inv_freq == NULL)
        return CF_NO_MEMORY;

    cf_model_append_param(model, CF_PARAM_ALIGNED, c->vocab, c->hidden,
                          "model.embed_tokens.weight")
        ->parts = CF_PART_EMBEDDINGS | (c->tied ? CF_PART_HEAD : 0);
    for (uint32_t layer = 0; layer < c->n_layers; layer++)
        layer_params_append(model, layer);
    cf_model_append_param(model, CF_PARAM_ALIGNED, c->hidden, 0,
                          "model.norm.weight")
        ->parts = CF_PART_NORMS;
    if (!c->tied)
        cf_model_append_param(model, CF_PARAM_ALIGNED, c->vocab, c->hidden,
                              "lm_head.weight")
            ->parts = CF_PART_HEAD;
    model->n_folder_params = model->n_params;
    cf_model_take_stage(model, &whole);
    return CF_OK;
}

cf_status cf_model_open(const char *folder, const cf_kernels *kernels,
                        cf_model *model)
{
    cf_status status;

    memset(model, 0, sizeof(*model));
    model->kernels = kernels;
    status = cf_model_config_read(folder, &model->config);
    if (status != CF_OK)
        return status;
    status = table_build(model);
    if (status != CF_OK) {
        cf_log_error("no memory for the parameter table of '%s'", folder);
        cf_model_close(model);
        return status;
    }
    cf_rope_frequencies(&model->config.rope, model->config.head_dim,
                        model->inv_freq, &model->rope_factor);
    return CF_OK;
}

void cf_model_close(cf_model *model)
{
    free(model->inv_freq);
    free(model->layers);
    free(model->params);
    memset(model, 0, sizeof(*model));
}

/* ---- views ---- */

const cf_param *cf_model_find_param(const cf_model *model, const char *name)
{
    for (size_t i = 0; i < model->n_params; i++)
        if (strcmp(model->params[i].name, name) == 0)
            return &model->params[i];
    return NULL;
}

/* The parameter of a layer, or NULL when this model has none of that name. */
static const cf_param *layer_param(const cf_model *model, uint32_t layer,
                                   const char *name)
{
    const cf_model_config *c = &model->config;
    const size_t n = (model->n_folder_params - (c->tied ? 2 : 3)) / c->n_layers;
    const cf_param *p =
        &model->params[1 + layer * n]; /* behind the embedding */
    char full[CF_PARAM_NAME_MAX];

    snprintf(full, sizeof(full), "model.layers.%u.%s", (unsigned)layer, name);
    for (size_t i = 0; i < n; i++)
        if (strcmp(p[i].name, full) == 0)
            return &p[i];
    return NULL;
}

void *cf_model_at(const cf_model *model, void *flat, const cf_param *p)
{
    const size_t acc_bytes = model->kernels->acc_bytes;

    if (flat == model->masters)
        return p->held ? cf_at(flat, p->offset * acc_bytes) : NULL;
    return p->trained && p->owned ? cf_at(flat, p->trained_offset * acc_bytes)
                                  : NULL;
}

/* NULL when this model has no such parameter, or no such array. */
static void *master_of(const cf_model *model, const cf_param *p)
{
    return p == NULL ? NULL : cf_model_at(model, model->masters, p);
}

static void *gradient_of(const cf_model *model, const cf_param *p)
{
    return p == NULL ? NULL : cf_model_at(model, model->gradients, p);
}

static cf_scale scale_view(const cf_model *model, const cf_param *p)
{
    return (cf_scale){
        .weight = master_of(model, p),
        .d_weight = gradient_of(model, p),
    };
}

/* A GEMM group: it starts at `weight` and has n_out rows. */
static cf_linear linear_view(const cf_model *model, const cf_param *weight,
                             const cf_param *bias, size_t n_out)
{
    return (cf_linear){
        .weight = {.master = master_of(model, weight),
                   .bias = master_of(model, bias),
                   .n_out = n_out,
                   .n_in = (size_t)weight->dims[1]},
        .d_weight = gradient_of(model, weight),
        .d_bias = gradient_of(model, bias),
    };
}

static void layer_views_set(cf_model *model, uint32_t index)
{
    const cf_model_config *c = &model->config;
    const size_t n_qkv = ((size_t)c->n_heads + 2 * c->n_kv_heads) * c->head_dim;
    cf_layer *layer = &model->layers[index];

#define PARAM(name) layer_param(model, index, name)
    layer->attention_norm = scale_view(model, PARAM("input_layernorm.weight"));
    layer->qkv = linear_view(model, PARAM("self_attn.q_proj.weight"),
                             PARAM("self_attn.q_proj.bias"), n_qkv);
    layer->q_norm = scale_view(model, PARAM("self_attn.q_norm.weight"));
    layer->k_norm = scale_view(model, PARAM("self_attn.k_norm.weight"));
    layer->o = linear_view(model, PARAM("self_attn.o_proj.weight"),
                           PARAM("self_attn.o_proj.bias"), c->hidden);
    layer->mlp_norm =
        scale_view(model, PARAM("post_attention_layernorm.weight"));
    layer->gate_up =
        linear_view(model, PARAM("mlp.gate_proj.weight"),
                    PARAM("mlp.gate_proj.bias"), 2 * (size_t)c->ffn);
    layer->down = linear_view(model, PARAM("mlp.down_proj.weight"),
                              PARAM("mlp.down_proj.bias"), c->hidden);
#undef PARAM
}

static void packing_carve(cf_model *model, cf_linear *linear, cf_arena *arena)
{
    const cf_kernels *k = model->kernels;
    size_t bytes =
        k->weight_packed_bytes(k, linear->weight.n_out, linear->weight.n_in);

    linear->weight.packed = NULL;
    if (bytes > 0)
        linear->weight.packed =
            cf_arena_take(arena, CF_LIFETIME_RUN, "packed weights", bytes, 1);
}

/* The arrays that a backward adds to. */
static void gradients_carve(cf_model *model, cf_arena *arena)
{
    const cf_param *embedding = &model->params[0];
    const cf_stage *stage = &model->stage;

    model->gradients =
        cf_arena_take(arena, CF_LIFETIME_RUN, "gradients",
                      model->n_trained_elements, model->kernels->acc_bytes);
    if (model->config.tied && embedding->trained &&
        (stage->is_first || stage->is_last))
        model->d_head = cf_arena_take(arena, CF_LIFETIME_RUN, "gradients",
                                      embedding->n, model->kernels->acc_bytes);
    model->norm_partials =
        cf_arena_take(arena, CF_LIFETIME_RUN, "bookkeeping",
                      model->n_norm_partials, sizeof(double));
}

static void views_set(cf_model *model)
{
    const cf_model_config *c = &model->config;
    const cf_stage *stage = &model->stage;
    const cf_param *embedding = &model->params[0];
    const cf_param *head =
        c->tied ? embedding : cf_model_find_param(model, "lm_head.weight");

    if (stage->is_first) {
        model->embedding = master_of(model, embedding);
        model->d_embedding = gradient_of(model, embedding);
    }
    for (uint32_t i = stage->first_layer; i < stage->end_layer; i++) {
        layer_views_set(model, i);
        cf_adapter_views_set(model, i);
    }
    if (stage->is_last) {
        model->final_norm =
            scale_view(model, cf_model_find_param(model, "model.norm.weight"));
        model->head = linear_view(model, head, NULL, c->vocab);
        if (c->tied)
            model->head.d_weight = model->d_head;
    }
}

void cf_model_carve(cf_model *model, cf_model_use use, cf_arena *arena)
{
    const size_t n_moments = model->shard_end - model->shard_begin;
    const size_t acc_bytes = model->kernels->acc_bytes;
    const cf_stage *stage = &model->stage;

    model->masters = cf_arena_take(arena, CF_LIFETIME_RUN, "master weights",
                                   model->n_elements, acc_bytes);
    if (use >= CF_MODEL_GRADIENTS)
        gradients_carve(model, arena);
    if (use >= CF_MODEL_TRAIN) {
        model->moment1 = cf_arena_take(arena, CF_LIFETIME_RUN, "Adam moments",
                                       n_moments, acc_bytes);
        model->moment2 = cf_arena_take(arena, CF_LIFETIME_RUN, "Adam moments",
                                       n_moments, acc_bytes);
    }
    views_set(model);
    for (uint32_t i = stage->first_layer; i < stage->end_layer; i++) {
        packing_carve(model, &model->layers[i].qkv, arena);
        packing_carve(model, &model->layers[i].o, arena);
        packing_carve(model, &model->layers[i].gate_up, arena);
        packing_carve(model, &model->layers[i].down, arena);
    }
    if (stage->is_last)
        packing_carve(model, &model->head, arena);
    cf_adapter_carve(model, arena);
}

/* ---- gradients ---- */

void cf_model_pack(cf_model *model)
{
    const cf_kernels *k = model->kernels;
    const cf_stage *stage = &model->stage;

    for (uint32_t i = stage->first_layer; i < stage->end_layer; i++) {
        cf_layer *layer = &model->layers[i];

        k->weight_pack(k, &layer->qkv.weight);
        k->weight_pack(k, &layer->o.weight);
        k->weight_pack(k, &layer->gate_up.weight);
        k->weight_pack(k, &layer->down.weight);
    }
    if (stage->is_last)
        k->weight_pack(k, &model->head.weight);
    cf_adapter_pack(model);
}

void cf_model_zero_gradients(cf_model *model)
{
    const cf_kernels *k = model->kernels;

    k->zero(k, model->gradients, model->n_trained_elements * k->acc_bytes);
    if (model->d_head != NULL && model->stage.is_last)
        k->zero(k, model->d_head, model->params[0].n * k->acc_bytes);
}

void cf_model_finish_gradients(cf_model *model)
{
    const cf_kernels *k = model->kernels;

    if (model->d_head != NULL && model->d_embedding != NULL)
        k->add(k, model->params[0].n, model->d_head, model->d_embedding);
}

/* The part of a gradient that is in the shard; NULL where there is none. */
static void *shard_gradient_of(const cf_model *model, const cf_param *p,
                               cf_extent part)
{
    return part.n == 0 ? NULL
                       : cf_at(gradient_of(model, p),
                               part.first * model->kernels->acc_bytes);
}

void cf_model_norm_partials(cf_model *model)
{
    const cf_kernels *k = model->kernels;

    memset(model->norm_partials, 0,
           model->n_norm_partials * sizeof(*model->norm_partials));
    for (size_t i = 0; i < model->n_params; i++) {
        const cf_param *p = &model->params[i];
        const cf_extent part = cf_model_shard_of(model, p);

        if (part.n > 0)
            k->sum_squares(k, part.n, shard_gradient_of(model, p, part),
                           model->norm_partials + p->first_partial +
                               part.first / CF_NORM_BLOCK);
    }
}

double cf_model_norm(const cf_model *model)
{
    double sum = 0;

    for (size_t i = 0; i < model->n_norm_partials; i++)
        sum += model->norm_partials[i];
    return sqrt(sum);
}

const char *cf_model_first_bad_gradient(const cf_model *model)
{
    const cf_kernels *k = model->kernels;

    for (size_t i = 0; i < model->n_params; i++) {
        const cf_param *p = &model->params[i];
        const cf_extent part = cf_model_shard_of(model, p);

        if (part.n > 0 &&
            k->first_bad_row(k, 1, part.n, shard_gradient_of(model, p, part)) ==
                0)
            return p->name;
    }
    return NULL;
}
