/* adapter.c - see adapter.h. */
#include "src/adapter.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/hash.h"
#include "src/log.h"

const char *const cf_adapter_target_names[CF_ADAPTER_TARGETS] = {
    "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
};

/* The GEMM groups of a layer, as runs of targets. */
enum {
    N_GROUPS = 4
};

static const struct {
    unsigned first, end; /* targets */
    const char *module;
} groups[N_GROUPS] = {
    {0, 3, "self_attn"},
    {3, 4, "self_attn"},
    {4, 6, "mlp"},
    {6, 7, "mlp"},
};

static cf_linear *linear_of(cf_model *model, uint32_t layer, size_t group)
{
    cf_layer *l = &model->layers[layer];
    cf_linear *const linears[N_GROUPS] = {&l->qkv, &l->o, &l->gate_up,
                                          &l->down};

    return linears[group];
}

static bool is_target(const cf_model *model, unsigned target)
{
    return (model->adapter.targets & 1U << target) != 0;
}

static size_t n_targets(const cf_model *model, size_t group)
{
    size_t n = 0;

    for (unsigned t = groups[group].first; t < groups[group].end; t++)
        n += is_target(model, t);
    return n;
}

/* The weight of the model folder that a target is. */
static const cf_param *weight_of(const cf_model *model, uint32_t layer,
                                 size_t group, unsigned target)
{
    char name[CF_PARAM_NAME_MAX];
    const cf_param *weight;

    snprintf(name, sizeof(name), "model.layers.%u.%s.%s.weight",
             (unsigned)layer, groups[group].module,
             cf_adapter_target_names[target]);
    weight = cf_model_find_param(model, name);
    assert(weight != NULL);
    return weight;
}

/* ---- the table ---- */

static void param_append(cf_model *model, uint32_t layer, size_t group,
                         unsigned target, char which, cf_param_place place)
{
    const cf_param *weight = weight_of(model, layer, group, target);
    const uint64_t rank = model->adapter.rank;
    const bool is_a = which == 'A';
    cf_param *p = cf_model_append_param(
        model, place, is_a ? rank : weight->dims[0],
        is_a ? weight->dims[1] : rank,
        "base_model.model.model.layers.%u.%s.%s.lora_%c.weight",
        (unsigned)layer, groups[group].module, cf_adapter_target_names[target],
        which);

    p->layer = layer;
}

/* All A of a group, then all B. */
static void group_append(cf_model *model, uint32_t layer, size_t group)
{
    cf_param_place place = CF_PARAM_ALIGNED;

    for (unsigned t = groups[group].first; t < groups[group].end; t++) {
        if (!is_target(model, t))
            continue;
        param_append(model, layer, group, t, 'A', place);
        place = CF_PARAM_BEHIND;
    }
    for (unsigned t = groups[group].first; t < groups[group].end; t++)
        if (is_target(model, t))
            param_append(model, layer, group, t, 'B', CF_PARAM_ALIGNED);
}

static size_t n_layer_params(const cf_model *model)
{
    size_t n = 0;

    for (size_t group = 0; group < N_GROUPS; group++)
        n += 2 * n_targets(model, group);
    return n;
}

cf_status cf_model_adapt(cf_model *model, const cf_adapter_spec *spec)
{
    const cf_stage stage = model->stage;
    cf_param *longer;
    size_t n;

    model->adapter = *spec;
    n = model->n_params + model->config.n_layers * n_layer_params(model);
    longer = realloc(model->params, n * sizeof(*longer));
    if (longer == NULL)
        return cf_log_no_memory("the tensors of the adapter");
    model->params = longer;
    for (size_t i = 0; i < model->n_params; i++)
        model->params[i].trained = model->params[i].in_state = false;
    for (uint32_t layer = 0; layer < model->config.n_layers; layer++)
        for (size_t group = 0; group < N_GROUPS; group++)
            group_append(model, layer, group);
    cf_model_take_stage(model, &stage);
    return CF_OK;
}

/* ---- views ---- */

/* The first tensor of a group: its A are there, its B behind them. */
static const cf_param *group_params(const cf_model *model, uint32_t layer,
                                    size_t group)
{
    size_t before = 0;

    for (size_t g = 0; g < group; g++)
        before += 2 * n_targets(model, g);
    return &model->params[model->n_folder_params +
                          layer * n_layer_params(model) + before];
}

static void group_view_set(cf_model *model, uint32_t layer, size_t group)
{
    const cf_linear *linear = linear_of(model, layer, group);
    const size_t n_parts = n_targets(model, group);
    const cf_param *a = group_params(model, layer, group), *b = a + n_parts;
    cf_adapter *adapter = &linear_of(model, layer, group)->adapter;
    size_t row = 0;

    *adapter = (cf_adapter){
        .rank = model->adapter.rank,
        .n_rank = n_parts * model->adapter.rank,
        .scale = model->adapter.alpha / model->adapter.rank,
    };
    for (unsigned t = groups[group].first; t < groups[group].end; t++) {
        const cf_param *weight = weight_of(model, layer, group, t);
        const size_t n_rows = (size_t)weight->dims[0];

        if (is_target(model, t)) {
            adapter->parts[adapter->n_parts++] = (cf_adapter_part){
                .first_row = row,
                .n_rows = n_rows,
                .weight = cf_model_at(model, model->masters, weight),
                .b = cf_model_at(model, model->masters, b),
                .d_b = cf_model_at(model, model->gradients, b),
            };
            b++;
        }
        row += n_rows;
    }
    if (n_parts == 0)
        return;
    adapter->a = (cf_weight){.master = cf_model_at(model, model->masters, a),
                             .n_out = adapter->n_rank,
                             .n_in = linear->weight.n_in};
    adapter->b =
        (cf_weight){.n_out = linear->weight.n_out, .n_in = adapter->n_rank};
    adapter->d_a = cf_model_at(model, model->gradients, a);
}

void cf_adapter_views_set(cf_model *model, uint32_t layer)
{
    for (size_t group = 0; group < N_GROUPS; group++)
        if (cf_model_has_adapter(model))
            group_view_set(model, layer, group);
}

size_t cf_adapter_rank_max(const cf_model *model)
{
    size_t most = 0;

    for (size_t group = 0; group < N_GROUPS; group++)
        if (n_targets(model, group) > most)
            most = n_targets(model, group);
    return most * model->adapter.rank;
}

size_t cf_adapter_input_max(const cf_model *model)
{
    const cf_model_config *c = &model->config;
    const size_t n_in[N_GROUPS] = {c->hidden, (size_t)c->n_heads * c->head_dim,
                                   c->hidden, c->ffn};
    size_t most = 0;

    for (size_t group = 0; group < N_GROUPS; group++)
        if (n_targets(model, group) > 0 && n_in[group] > most)
            most = n_in[group];
    return most;
}

/* Outputs of the linear layer that a group of targets shares. */
static size_t n_out_of(const cf_model *model, size_t group)
{
    const cf_model_config *c = &model->config;
    const size_t n_qkv = ((size_t)c->n_heads + 2 * c->n_kv_heads) * c->head_dim;
    const size_t n_out[N_GROUPS] = {n_qkv, c->hidden, 2 * (size_t)c->ffn,
                                    c->hidden};

    return n_out[group];
}

size_t cf_adapter_output_max(const cf_model *model)
{
    size_t most = 0;

    for (size_t group = 0; group < N_GROUPS; group++)
        if (n_targets(model, group) > 0 && n_out_of(model, group) > most)
            most = n_out_of(model, group);
    return most;
}

size_t cf_adapter_blocks_max(const cf_model *model)
{
    size_t most = 0;

    for (size_t group = 0; group < N_GROUPS; group++) {
        const size_t n_rank = n_targets(model, group) * model->adapter.rank;

        if (n_out_of(model, group) * n_rank > most)
            most = n_out_of(model, group) * n_rank;
    }
    return most;
}

/* ---- every adapter of the stage ---- */

typedef void (*visitor)(const cf_model *model, cf_adapter *adapter,
                        void *context);

static void visit(cf_model *model, visitor visited, void *context)
{
    const cf_stage *stage = &model->stage;

    if (!cf_model_has_adapter(model))
        return;
    for (uint32_t i = stage->first_layer; i < stage->end_layer; i++)
        for (size_t group = 0; group < N_GROUPS; group++) {
            cf_adapter *adapter = &linear_of(model, i, group)->adapter;

            if (adapter->n_rank > 0)
                visited(model, adapter, context);
        }
}

static void carve(const cf_model *model, cf_adapter *adapter, void *arena)
{
    adapter->b_blocks = cf_arena_take(
        arena, CF_LIFETIME_RUN, "adapter, as its GEMMs read it",
        adapter->b.n_out * adapter->n_rank, model->kernels->acc_bytes);
    adapter->b.master = adapter->b_blocks;
}

void cf_adapter_carve(cf_model *model, cf_arena *arena)
{
    visit(model, carve, arena);
}

static double load(const void *x, size_t i, size_t acc_bytes)
{
    return acc_bytes == sizeof(double) ? ((const double *)x)[i]
                                       : (double)((const float *)x)[i];
}

static void store(double value, void *x, size_t i, size_t acc_bytes)
{
    if (acc_bytes == sizeof(double))
        ((double *)x)[i] = value;
    else
        ((float *)x)[i] = (float)value;
}

/* Outside the blocks the arena's zeros stay. */
static void pack(const cf_model *model, cf_adapter *adapter, void *unused)
{
    const size_t acc_bytes = model->kernels->acc_bytes;
    const size_t rank = adapter->rank, n_rank = adapter->n_rank;

    (void)unused;
    for (size_t i = 0; i < adapter->n_parts; i++) {
        const cf_adapter_part *part = &adapter->parts[i];

        for (size_t row = 0; row < part->n_rows; row++)
            for (size_t j = 0; j < rank; j++)
                store(adapter->scale * load(part->b, row * rank + j, acc_bytes),
                      adapter->b_blocks,
                      (part->first_row + row) * n_rank + i * rank + j,
                      acc_bytes);
    }
}

void cf_adapter_pack(cf_model *model)
{
    visit(model, pack, NULL);
}

void cf_adapter_part_add(const cf_kernels *k, const cf_adapter *adapter,
                         size_t index, const void *blocks)
{
    const cf_adapter_part *part = &adapter->parts[index];
    const size_t rank = adapter->rank, n_rank = adapter->n_rank;

    for (size_t row = 0; row < part->n_rows; row++)
        for (size_t j = 0; j < rank; j++) {
            const size_t from =
                (part->first_row + row) * n_rank + index * rank + j;
            const size_t to = row * rank + j;

            store(load(part->d_b, to, k->acc_bytes) +
                      adapter->scale * load(blocks, from, k->acc_bytes),
                  part->d_b, to, k->acc_bytes);
        }
}

/* ---- first values ---- */

/* Number i of those that belong to a tensor: uniform in [-1, 1). */
static double uniform(uint64_t key, uint64_t i)
{
    return ldexp((double)(cf_hash_of(&i, sizeof(i), key) >> 11), -52) - 1;
}

void cf_adapter_init(cf_model *model, uint64_t seed)
{
    const cf_kernels *k = model->kernels;

    for (size_t i = model->n_folder_params; i < model->n_params; i++) {
        const cf_param *p = &model->params[i];
        const bool is_a = strstr(p->name, ".lora_A.") != NULL;
        const uint64_t key = cf_hash_of(p->name, strlen(p->name), seed);
        const double bound = 1 / sqrt((double)p->dims[1]);
        void *to = cf_model_at(model, model->masters, p);

        if (to == NULL)
            continue;
        k->zero(k, to, p->n * k->acc_bytes);
        for (size_t j = 0; is_a && j < p->n; j++)
            store(bound * uniform(key, j), to, j, k->acc_bytes);
    }
    cf_model_pack(model);
}

/* ---- merging ---- */

/* What merge() works with. */
typedef struct merger {
    cf_kernels kernels; /* act and acc are the type of the masters */
    void *a_t;          /* room for A transposed */
} merger;

/* W += (scale B) A, as a linear layer adds its output to the residual stream: rows
 * of B go in, and A transposed is its weight. */
static void merge(const cf_model *model, cf_adapter *adapter, void *context)
{
    const merger *m = context;
    const cf_kernels *k = &m->kernels;
    const size_t n_rank = adapter->n_rank, n_in = adapter->a.n_in;
    const cf_weight weight = {.master = m->a_t, .n_out = n_in, .n_in = n_rank};

    (void)model;
    for (size_t i = 0; i < n_rank; i++)
        for (size_t j = 0; j < n_in; j++)
            store(load(adapter->a.master, i * n_in + j, k->acc_bytes), m->a_t,
                  j * n_rank + i, k->acc_bytes);
    for (size_t i = 0; i < adapter->n_parts; i++) {
        const cf_adapter_part *part = &adapter->parts[i];

        k->linear_forward_residual(
            k, &weight, part->n_rows,
            cf_at(adapter->b_blocks, part->first_row * n_rank * k->acc_bytes),
            part->weight, NULL);
    }
}

/* Kernels whose activations are of the masters' type: no value is rounded, and
 * they need no scratch. */
static cf_status merger_open(const cf_model *model, merger *m)
{
    const cf_compute compute = model->kernels->compute;
    const char *why = "";
    cf_status status =
        cf_cpu_kernels(compute == CF_COMPUTE_BF16 ? CF_COMPUTE_FP32 : compute,
                       &m->kernels, &why);

    if (status != CF_OK) {
        cf_log_error("the adapter cannot be merged: %s", why);
        return status;
    }
    m->a_t = malloc(cf_adapter_input_max(model) * cf_adapter_rank_max(model) *
                    m->kernels.acc_bytes);
    return m->a_t != NULL ? CF_OK : cf_log_no_memory("merging the adapter");
}

cf_status cf_adapter_merge(cf_model *model)
{
    merger m;
    cf_status status = merger_open(model, &m);

    if (status != CF_OK)
        return status;
    visit(model, merge, &m);
    free(m.a_t);
    return CF_OK;
}
