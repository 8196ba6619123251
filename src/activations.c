/* activations.c - see activations.h. */
#include "src/activations.h"

#include <assert.h>

/* Every buffer of cf_layer_acts: its place, its element type, its width. */
enum {
    N_BUFFERS = 12
};

typedef struct buffer {
    void **at;
    size_t elem_bytes;
    size_t width; /* elements a token */
    bool kept[3]; /* by policy: none, selective, layer */
} buffer;

static void buffers_of(cf_layer_acts *a, const cf_kernels *k,
                       const cf_model_config *c, buffer list[N_BUFFERS])
{
    const size_t act = k->act_bytes, acc = k->acc_bytes;
    const size_t heads = c->n_heads, head_dim = c->head_dim;
    const size_t n_q = heads * head_dim;
    const size_t n_qkv = (heads + 2 * c->n_kv_heads) * head_dim;
    const bool norms = c->qk_norm;
    /* Without q/k norms nothing reads qkv after it was split, so it is never
     * worth keeping; with them q follows from it by a cheap pass. */
    const buffer all[N_BUFFERS] = {
        {&a->x, acc, c->hidden, {true, true, true}},
        {&a->rstd1, acc, 1, {true, false, false}},
        {&a->n1, act, c->hidden, {true, false, false}},
        {&a->qkv, act, n_qkv, {norms, norms, false}},
        {&a->q, act, n_q, {true, !norms, false}},
        {&a->o, act, n_q, {true, true, true}},
        {&a->lse, acc, heads, {true, true, true}},
        {&a->x2, acc, c->hidden, {true, true, false}},
        {&a->rstd2, acc, 1, {true, false, false}},
        {&a->n2, act, c->hidden, {true, false, false}},
        {&a->gate_up, act, 2 * (size_t)c->ffn, {true, true, false}},
        {&a->a, act, c->ffn, {true, false, false}},
    };

    for (size_t i = 0; i < N_BUFFERS; i++)
        list[i] = all[i];
}

size_t cf_activations_kept_bytes(const cf_model *model, cf_recompute policy)
{
    cf_layer_acts unused;
    buffer list[N_BUFFERS];
    size_t sum = 0;

    buffers_of(&unused, model->kernels, &model->config, list);
    for (size_t i = 0; i < N_BUFFERS; i++)
        sum += list[i].kept[policy] ? list[i].width * list[i].elem_bytes : 0;
    return sum;
}

size_t cf_activations_layer_bytes(const cf_model *model)
{
    cf_layer_acts unused;
    buffer list[N_BUFFERS];
    size_t sum = 0;

    buffers_of(&unused, model->kernels, &model->config, list);
    for (size_t i = 0; i < N_BUFFERS; i++)
        sum += list[i].width * list[i].elem_bytes;
    return sum;
}

uint32_t cf_n_backward_layers(const cf_model *model)
{
    const cf_stage *stage = &model->stage;
    const uint32_t first = model->first_backward_layer;

    if (first >= stage->end_layer)
        return 0;
    return stage->end_layer -
           (first > stage->first_layer ? first : stage->first_layer);
}

static uint32_t n_kept_layers(const cf_activations *acts)
{
    return acts->stage.end_layer - acts->first_kept_layer;
}

static void slot_carve(cf_activations *acts, const cf_kernels *k,
                       uint32_t chunk_tok, cf_slot *layout, cf_arena *arena)
{
    const cf_model_config *c = acts->config;

    for (uint32_t i = 0; i < n_kept_layers(acts); i++) {
        buffer list[N_BUFFERS];
        cf_layer_acts unused;
        cf_layer_acts *at = layout->layers ? &layout->layers[i] : &unused;

        buffers_of(at, k, c, list);
        for (size_t b = 0; b < N_BUFFERS; b++) {
            *list[b].at = NULL;
            if (list[b].kept[acts->policy])
                *list[b].at = cf_arena_take(
                    arena, CF_LIFETIME_CHUNK, "activations of retained chunks",
                    list[b].width * chunk_tok, list[b].elem_bytes);
        }
    }
    layout->x_out = NULL;
    if (acts->stage.is_last)
        layout->x_out = cf_arena_take(
            arena, CF_LIFETIME_CHUNK, "activations of retained chunks",
            (size_t)c->hidden * chunk_tok, k->acc_bytes);
}

static void scratch_carve(cf_activations *acts, const cf_kernels *k,
                          uint32_t chunk_tok, cf_arena *arena)
{
    buffer list[N_BUFFERS];

    buffers_of(&acts->scratch, k, acts->config, list);
    for (size_t i = 0; i < N_BUFFERS; i++)
        *list[i].at =
            cf_arena_take(arena, CF_LIFETIME_OP, "activations of one layer",
                          list[i].width * chunk_tok, list[i].elem_bytes);
    acts->x_alternate =
        cf_arena_take(arena, CF_LIFETIME_OP, "activations of one layer",
                      (size_t)acts->config->hidden * chunk_tok, k->acc_bytes);
}

void cf_activations_carve(cf_activations *acts, const cf_model *model,
                          cf_recompute policy, uint32_t n_slots,
                          uint32_t chunk_tok, cf_arena *arena)
{
    const cf_kernels *kernels = model->kernels;
    cf_slot dry = {0};

    *acts = (cf_activations){.config = &model->config,
                             .policy = policy,
                             .stage = model->stage,
                             .first_kept_layer = model->stage.end_layer -
                                                 cf_n_backward_layers(model)};
    cf_pool_carve(arena, n_slots, &acts->pool);
    acts->slots = cf_arena_take(arena, CF_LIFETIME_RUN, "bookkeeping", n_slots,
                                sizeof(*acts->slots));
    for (uint32_t i = 0; i < n_slots; i++) {
        cf_slot *slot = acts->slots ? &acts->slots[i] : &dry;
        size_t before;

        slot->layers =
            cf_arena_take(arena, CF_LIFETIME_RUN, "bookkeeping",
                          n_kept_layers(acts), sizeof(*slot->layers));
        before = arena->used;
        slot_carve(acts, kernels, chunk_tok, slot, arena);
        acts->slot_bytes = arena->used - before;
    }
    scratch_carve(acts, kernels, chunk_tok, arena);
}

cf_status cf_activations_keep(cf_activations *acts, uint32_t chunk,
                              cf_slot **slot_p)
{
    uint32_t index;
    cf_status status = cf_pool_take(&acts->pool, 1, &index);

    if (status != CF_OK)
        return status;
    acts->slots[index].chunk = chunk;
    *slot_p = &acts->slots[index];
    return CF_OK;
}

cf_slot *cf_activations_find(cf_activations *acts, uint32_t chunk)
{
    for (uint32_t i = 0; i < acts->pool.n_blocks; i++)
        if (acts->pool.taken[i] && acts->slots[i].chunk == chunk)
            return &acts->slots[i];
    assert(0 && "the schedule keeps a chunk before its backward");
    return NULL;
}

void cf_activations_release(cf_activations *acts, cf_slot *slot)
{
    cf_pool_release(&acts->pool, (uint32_t)(slot - acts->slots), 1);
}

static void *kept_or(void *kept, void *scratch)
{
    return kept != NULL ? kept : scratch;
}

/* The stream into a layer, or out of the last one. */
static void *stream_of(const cf_activations *acts, const cf_slot *slot,
                       uint32_t layer)
{
    void *scratch = layer % 2 == 0 ? acts->scratch.x : acts->x_alternate;

    if (slot == NULL || layer < acts->first_kept_layer)
        return scratch;
    if (layer == acts->stage.end_layer)
        return kept_or(slot->x_out, scratch);
    return slot->layers[layer - acts->first_kept_layer].x;
}

cf_layer_acts cf_activations_of(const cf_activations *acts, const cf_slot *slot,
                                uint32_t layer, void **x_next_p)
{
    const cf_layer_acts *s = &acts->scratch;
    const cf_layer_acts *kept;
    cf_layer_acts a = *s;

    a.x = stream_of(acts, slot, layer);
    *x_next_p = stream_of(acts, slot, layer + 1);
    if (slot == NULL || layer < acts->first_kept_layer)
        return a;
    kept = &slot->layers[layer - acts->first_kept_layer];
    a.rstd1 = kept_or(kept->rstd1, s->rstd1);
    a.n1 = kept_or(kept->n1, s->n1);
    a.qkv = kept_or(kept->qkv, s->qkv);
    a.q = kept_or(kept->q, s->q);
    a.o = kept->o;
    a.lse = kept->lse;
    a.x2 = kept_or(kept->x2, s->x2);
    a.rstd2 = kept_or(kept->rstd2, s->rstd2);
    a.n2 = kept_or(kept->n2, s->n2);
    a.gate_up = kept_or(kept->gate_up, s->gate_up);
    a.a = kept_or(kept->a, s->a);
    return a;
}

cf_layer_missing cf_activations_missing(const cf_activations *acts)
{
    static const cf_layer_missing missing[] = {
        [CF_RECOMPUTE_NONE] = CF_LAYER_MISSING_NOTHING,
        [CF_RECOMPUTE_SELECTIVE] = CF_LAYER_MISSING_POINTWISE,
        [CF_RECOMPUTE_LAYER] = CF_LAYER_MISSING_LINEAR,
    };

    return missing[acts->policy];
}
