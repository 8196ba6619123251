/* engine_carve.c - the memory of an engine; see engine.h. */
#include "src/engine.h"

#include <math.h>
#include <string.h>

#include "src/adapter_gemms.h"

static cf_attn_shape attention_shape(const cf_model_config *c)
{
    return (cf_attn_shape){
        .n_heads = c->n_heads,
        .n_kv_heads = c->n_kv_heads,
        .head_dim = c->head_dim,
        .softmax_scale = 1 / sqrt((double)c->head_dim),
    };
}

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t linear_scratch_bytes(const cf_kernels *k,
                                   const cf_model_config *c, size_t n_tok)
{
    const size_t n_q = (size_t)c->n_heads * c->head_dim;
    const size_t n_kv = (size_t)c->n_kv_heads * c->head_dim;
    const struct {
        size_t n_out, n_in;
    } layers[] = {
        {n_q + 2 * n_kv, c->hidden},
        {c->hidden, n_q},
        {2 * (size_t)c->ffn, c->hidden},
        {c->hidden, c->ffn},
    };
    size_t bytes = 0;

    for (size_t i = 0; i < sizeof(layers) / sizeof(layers[0]); i++)
        bytes = max_size(bytes, k->linear_scratch_bytes(
                                    k, n_tok, layers[i].n_out, layers[i].n_in));
    return bytes;
}

/* Ops run one after the other, so one piece of scratch serves them all. */
static size_t scratch_bytes(const cf_engine *engine, const cf_engine_need *need)
{
    const cf_kernels *k = engine->kernels;
    const cf_model_config *c = &engine->model->config;
    const cf_attn_shape shape = attention_shape(c);
    const size_t n_tok = need->kv.chunk_tok;
    size_t bytes;

    bytes = k->attention_scratch_bytes(k, &shape, n_tok, need->kv.n_pieces);
    bytes = max_size(bytes, linear_scratch_bytes(k, c, n_tok));
    bytes = max_size(bytes, cf_adapter_scratch_bytes(engine->model, n_tok));
    bytes = max_size(bytes, k->qkv_backward_scratch_bytes(k, &shape, n_tok));
    bytes =
        max_size(bytes, k->rmsnorm_backward_scratch_bytes(k, n_tok, c->hidden));
    if (!engine->model->stage.is_last)
        return bytes;
    return max_size(bytes,
                    k->head_scratch_bytes(k, n_tok, c->vocab, c->hidden));
}

static void layer_grads_carve(cf_engine *engine, uint32_t chunk_tok,
                              cf_arena *arena)
{
    const cf_kernels *k = engine->kernels;
    const cf_model_config *c = &engine->model->config;
    const size_t n_q = (size_t)c->n_heads * c->head_dim;
    const size_t n_qkv = n_q + 2 * (size_t)c->n_kv_heads * c->head_dim;
    cf_layer_grads *g = &engine->grads;
    const struct {
        void **at;
        size_t width, elem_bytes;
    } buffers[] = {
        {&g->dx, c->hidden, k->acc_bytes},
        {&g->da, c->ffn, k->act_bytes},
        {&g->dn, c->hidden, k->act_bytes},
        {&g->d_o, n_q, k->act_bytes},
        {&g->dq, n_q, k->acc_bytes},
        {&g->dqkv, n_qkv, k->act_bytes},
        /* as_act needs no copy where the types are one. */
        {&g->dy, k->act_bytes == k->acc_bytes ? 0 : c->hidden, k->act_bytes},
    };

    for (size_t i = 0; i < sizeof(buffers) / sizeof(buffers[0]); i++)
        *buffers[i].at = cf_arena_take(
            arena, CF_LIFETIME_OP, "gradients of one layer's activations",
            buffers[i].width * chunk_tok, buffers[i].elem_bytes);
}

static void head_carve(cf_engine *engine, uint32_t chunk_tok, cf_arena *arena)
{
    static const char what[] = "rows of the head";
    const cf_kernels *k = engine->kernels;
    const size_t n = (size_t)engine->model->config.hidden * chunk_tok;
    const size_t act = k->act_bytes, acc = k->acc_bytes;

    engine->head.x = cf_arena_take(arena, CF_LIFETIME_OP, what, n, acc);
    engine->head.n = cf_arena_take(arena, CF_LIFETIME_OP, what, n, act);
    engine->head.rstd =
        cf_arena_take(arena, CF_LIFETIME_OP, what, chunk_tok, acc);
    engine->head.loss =
        cf_arena_take(arena, CF_LIFETIME_OP, what, chunk_tok, sizeof(double));
    if (engine->gradients == CF_GRADIENTS_NO)
        return;
    engine->head.dn = cf_arena_take(arena, CF_LIFETIME_OP, what, n, act);
    engine->head.dx = cf_arena_take(arena, CF_LIFETIME_OP, what, n, acc);
}

static void dropped_carve(cf_engine *engine, const cf_engine_need *need,
                          cf_arena *arena)
{
    const cf_kernels *k = engine->kernels;
    const cf_stage *stage = &engine->model->stage;
    const cf_attn_shape *shape = &engine->kv.shape;
    const size_t n_tok = need->kv.chunk_tok, n_rows = n_tok * shape->n_heads;
    const cf_dropped_size size = {
        .stream = stage->is_first ? 0 : n_tok * engine->exchange.tok_bytes,
        .o = need->keep_attention ? n_rows * shape->head_dim * k->act_bytes : 0,
        .lse = need->keep_attention ? n_rows * k->acc_bytes : 0,
        .n_layers = stage->end_layer - stage->first_layer,
    };

    cf_dropped_carve(&engine->dropped,
                     cf_engine_has_backward(engine) ? need->n_dropped : 0,
                     &size, arena);
}

void cf_engine_carve(cf_engine *engine, cf_model *model,
                     const cf_engine_need *need, cf_recompute policy,
                     cf_gradients gradients, cf_arena *arena)
{
    const cf_model_config *c = &model->config;
    const cf_kernels *k = model->kernels;
    const cf_attn_shape shape = attention_shape(c);
    const uint32_t n_tok = need->kv.chunk_tok;
    const size_t n_angles = (size_t)n_tok * (c->head_dim / 2);
    const cf_stage *stage = &model->stage;
    const uint32_t n_backward_layers =
        gradients == CF_GRADIENTS_YES ? cf_n_backward_layers(model) : 0;

    memset(engine, 0, sizeof(*engine));
    engine->kernels = k;
    engine->model = model;
    engine->gradients = gradients;
    cf_kv_state_carve(&engine->kv, k, &shape,
                      stage->end_layer - stage->first_layer, n_backward_layers,
                      &need->kv, arena);
    cf_activations_carve(&engine->acts, model, policy, need->n_slots, n_tok,
                         arena);
    cf_chunk_input_carve(&engine->input, n_tok, need->kv.n_pieces, arena);
    if (n_backward_layers > 0)
        layer_grads_carve(engine, n_tok, arena);
    cf_adapter_rows_carve(&engine->adapter_rows, model, n_tok, gradients,
                          arena);
    if (stage->is_last)
        head_carve(engine, n_tok, arena);
    cf_exchange_carve(&engine->exchange, model, n_tok, gradients, arena);
    dropped_carve(engine, need, arena);
    engine->cos = cf_arena_take(arena, CF_LIFETIME_OP, "rotary angles",
                                n_angles, k->acc_bytes);
    engine->sin = cf_arena_take(arena, CF_LIFETIME_OP, "rotary angles",
                                n_angles, k->acc_bytes);
    engine->scratch_bytes = scratch_bytes(engine, need);
    engine->scratch = cf_arena_take(arena, CF_LIFETIME_OP, "kernel scratch",
                                    engine->scratch_bytes, 1);
    engine->piece_loss = cf_arena_take(arena, CF_LIFETIME_RUN, "bookkeeping",
                                       need->n_plan_pieces, sizeof(double));
    engine->fixed_bytes =
        arena->used - cf_kv_state_bytes(&engine->kv, need->kv.n_pages) -
        engine->acts.slot_bytes * need->n_slots -
        cf_dropped_bytes(&engine->dropped, engine->dropped.pool.n_blocks);
}

size_t cf_engine_peak_bytes(const cf_engine *engine)
{
    return engine->fixed_bytes +
           cf_kv_state_bytes(&engine->kv, engine->kv.pages.n_taken_max) +
           engine->acts.slot_bytes * engine->acts.pool.n_taken_max +
           cf_dropped_bytes(&engine->dropped, engine->dropped.pool.n_taken_max);
}
