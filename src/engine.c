/* engine.c - see engine.h. */
#include "src/engine.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "src/log.h"

/* ---- memory ---- */

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

/* Ops run one after the other, so one piece of scratch serves them all. */
static size_t scratch_bytes(const cf_engine *engine, const cf_engine_need *need)
{
    const cf_kernels *k = engine->kernels;
    const cf_model_config *c = &engine->model->config;
    const cf_attn_shape shape = attention_shape(c);
    const size_t n_tok = need->kv.chunk_tok;
    size_t bytes;

    bytes = k->attention_scratch_bytes(k, &shape, n_tok, need->kv.n_pieces);
    bytes = max_size(bytes, k->qkv_backward_scratch_bytes(k, &shape, n_tok));
    bytes =
        max_size(bytes, k->rmsnorm_backward_scratch_bytes(k, n_tok, c->hidden));
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

void cf_engine_carve(cf_engine *engine, cf_model *model,
                     const cf_engine_need *need, cf_recompute policy,
                     cf_gradients gradients, cf_arena *arena)
{
    const cf_model_config *c = &model->config;
    const cf_kernels *k = model->kernels;
    const cf_attn_shape shape = attention_shape(c);
    const uint32_t n_tok = need->kv.chunk_tok;
    const size_t n_angles = (size_t)n_tok * (c->head_dim / 2);
    const uint32_t n_backward_layers =
        gradients == CF_GRADIENTS_YES
            ? c->n_layers - model->first_backward_layer
            : 0;

    memset(engine, 0, sizeof(*engine));
    engine->kernels = k;
    engine->model = model;
    engine->gradients = gradients;
    cf_kv_state_carve(&engine->kv, k, &shape, c->n_layers, n_backward_layers,
                      &need->kv, arena);
    cf_activations_carve(&engine->acts, k, c, policy,
                         model->first_backward_layer, need->n_slots, n_tok,
                         arena);
    cf_chunk_input_carve(&engine->input, n_tok, need->kv.n_pieces, arena);
    if (n_backward_layers > 0)
        layer_grads_carve(engine, n_tok, arena);
    head_carve(engine, n_tok, arena);
    engine->cos = cf_arena_take(arena, CF_LIFETIME_OP, "rotary angles",
                                n_angles, k->acc_bytes);
    engine->sin = cf_arena_take(arena, CF_LIFETIME_OP, "rotary angles",
                                n_angles, k->acc_bytes);
    engine->scratch_bytes = scratch_bytes(engine, need);
    engine->scratch = cf_arena_take(arena, CF_LIFETIME_OP, "kernel scratch",
                                    engine->scratch_bytes, 1);
    engine->piece_loss = cf_arena_take(arena, CF_LIFETIME_RUN, "bookkeeping",
                                       need->n_plan_pieces, sizeof(double));
    engine->fixed_bytes = arena->used -
                          cf_kv_state_bytes(&engine->kv, need->kv.n_pages) -
                          engine->acts.slot_bytes * need->n_slots;
}

size_t cf_engine_peak_bytes(const cf_engine *engine)
{
    return engine->fixed_bytes +
           cf_kv_state_bytes(&engine->kv, engine->kv.pages.n_taken_max) +
           engine->acts.slot_bytes * engine->acts.pool.n_taken_max;
}

void cf_engine_begin_step(cf_engine *engine, const cf_engine_batch *batch,
                          const cf_chunk_plan *plan)
{
    engine->batch = *batch;
    memset(engine->piece_loss, 0, plan->n_pieces * sizeof(double));
    cf_pool_begin_step(&engine->kv.pages);
    cf_pool_begin_step(&engine->acts.pool);
}

double cf_engine_loss(const cf_engine *engine, const cf_chunk_plan *plan)
{
    double sum = 0;

    for (size_t i = 0; i < plan->n_pieces; i++)
        sum += engine->piece_loss[i];
    return sum;
}

/* ---- the parts of a chunk ---- */

/* Tokens, angles and pages of a chunk: what every op on it begins with. */
static cf_status chunk_begin(cf_engine *engine, const cf_chunk_plan *plan,
                             uint32_t chunk)
{
    const cf_kernels *k = engine->kernels;
    const cf_model *model = engine->model;

    cf_chunk_input_read(&engine->input, engine->batch.dataset,
                        engine->batch.sequences, plan, chunk);
    k->rope_table(k, plan->chunks[chunk].n_tok, engine->input.positions,
                  model->config.head_dim / 2, model->inv_freq,
                  model->rope_factor, engine->cos, engine->sin);
    return cf_kv_state_append(&engine->kv, plan, chunk);
}

static cf_layer_call layer_call(cf_engine *engine, const cf_chunk_plan *plan,
                                uint32_t chunk, uint32_t layer,
                                cf_gradients gradients)
{
    const cf_model *model = engine->model;
    const cf_layer *l = &model->layers[layer];

    return (cf_layer_call){
        .kernels = engine->kernels,
        .config = &model->config,
        .layer = l,
        .qkv = {.shape = engine->kv.shape,
                .q_norm = l->q_norm.weight,
                .k_norm = l->k_norm.weight,
                .norm_eps = model->config.rms_norm_eps,
                .cos = engine->cos,
                .sin = engine->sin},
        .batch = cf_kv_state_batch(&engine->kv, plan, chunk, layer, gradients),
        .scratch = engine->scratch,
    };
}

/* Whether anybody reads the stream out of the last layer. */
typedef enum stream_out {
    STREAM_OUT_DROP,
    STREAM_OUT_WANTED
} stream_out;

/* The layers of a chunk are run in order.  Returns the stream out of this one;
 * NULL when it was not computed: a dropped forward leaves only K and V behind,
 * and those of the last layer need neither its attention nor its MLP. */
static void *layer_forward(cf_engine *engine, const cf_chunk_plan *plan,
                           uint32_t chunk, uint32_t layer, const cf_slot *slot,
                           stream_out wanted)
{
    const cf_kernels *k = engine->kernels;
    const cf_model_config *c = &engine->model->config;
    cf_layer_call call =
        layer_call(engine, plan, chunk, layer, CF_GRADIENTS_NO);
    void *x_next;
    cf_layer_acts acts = cf_activations_of(&engine->acts, slot, layer, &x_next);

    if (layer == 0)
        k->embedding_forward(k, call.batch.n_tok, c->hidden, engine->input.ids,
                             engine->model->embedding, acts.x);
    if (layer + 1 == c->n_layers && wanted == STREAM_OUT_DROP) {
        cf_layer_forward_kv(&call, &acts);
        return NULL;
    }
    cf_layer_forward(&call, &acts, x_next);
    return x_next;
}

static void *layers_forward(cf_engine *engine, const cf_chunk_plan *plan,
                            uint32_t chunk, const cf_slot *slot,
                            stream_out wanted)
{
    void *x_next = NULL;

    for (uint32_t layer = 0; layer < engine->model->config.n_layers; layer++)
        x_next = layer_forward(engine, plan, chunk, layer, slot, wanted);
    return x_next;
}

/* The rows with a target, normalised, ready for the head. */
static void head_rows(cf_engine *engine, const void *x_out)
{
    const cf_kernels *k = engine->kernels;
    const cf_model *model = engine->model;
    const size_t hidden = model->config.hidden;

    k->rows_gather(k, engine->input.n_targets, hidden, engine->input.rows,
                   x_out, engine->head.x);
    k->rmsnorm_forward(k, engine->input.n_targets, hidden,
                       model->config.rms_norm_eps, engine->head.x,
                       model->final_norm.weight, engine->head.n,
                       engine->head.rstd);
}

static void piece_losses_add(cf_engine *engine, const cf_chunk_plan *plan,
                             uint32_t chunk)
{
    const cf_chunk *c = &plan->chunks[chunk];
    const cf_chunk_input *in = &engine->input;

    for (uint32_t i = 0; i < c->n_pieces; i++) {
        double *sum = &engine->piece_loss[c->first_piece + i];

        for (uint32_t t = in->first[i]; t < in->first[i + 1]; t++)
            *sum += engine->head.loss[t];
    }
}

/* Whether anything in the layers or below them is trained. */
static bool reaches_layers(const cf_model *model)
{
    return model->first_backward_layer < model->config.n_layers;
}

/* Losses of the chunk, and the gradient of the stream out of the last layer,
 * where a layer wants it. */
static void head_backward(cf_engine *engine, size_t n_tok, const void *x_out)
{
    const cf_kernels *k = engine->kernels;
    cf_model *model = engine->model;
    const cf_chunk_input *in = &engine->input;
    const size_t hidden = model->config.hidden;

    head_rows(engine, x_out);
    k->head_backward(k, &model->head.weight, in->n_targets, engine->head.n,
                     in->targets, engine->batch.loss_scale, engine->head.loss,
                     engine->head.dn, model->head.d_weight, engine->scratch);
    if (!reaches_layers(model) && model->final_norm.d_weight == NULL)
        return;
    k->zero(k, engine->head.dx, in->n_targets * hidden * k->acc_bytes);
    k->rmsnorm_backward(k, in->n_targets, hidden, engine->head.x,
                        model->final_norm.weight, engine->head.rstd,
                        engine->head.dn, engine->head.dx,
                        model->final_norm.d_weight, engine->scratch);
    if (reaches_layers(model))
        k->rows_scatter(k, in->n_targets, n_tok, hidden, in->rows,
                        engine->head.dx, engine->grads.dx);
}

/* ---- what is not finite ---- */

/* The piece of a chunk that a row belongs to, as an index into the plan. */
static uint32_t piece_of_row(const cf_chunk_plan *plan, uint32_t chunk,
                             size_t row)
{
    uint32_t piece = plan->chunks[chunk].first_piece;

    while (row >= plan->pieces[piece].n_tok)
        row -= plan->pieces[piece++].n_tok;
    return piece;
}

static cf_status not_finite(const cf_engine *engine, const cf_chunk_plan *plan,
                            uint32_t piece, uint32_t layer, const char *what)
{
    const cf_engine_batch *batch = &engine->batch;
    uint32_t sequence = batch->sequences[plan->pieces[piece].seq];
    char where[256], place[32] = "the head";

    cf_dataset_where(batch->dataset, sequence, where, sizeof(where));
    if (layer < engine->model->config.n_layers)
        snprintf(place, sizeof(place), "layer %u", (unsigned)layer);
    cf_log_error("step %" PRIu64 ": %s is not finite, first in %s, sequence "
                 "%u (%s): %s",
                 batch->step, what, place, (unsigned)sequence, where,
                 engine->gradients == CF_GRADIENTS_NO
                     ? "look at that sequence, or take an earlier model"
                     : "lower --learning-rate, or look at that sequence");
    return CF_NOT_FINITE;
}

/* The first layer whose output has a bad row; n_layers: only the head has.
 * Where the streams were not kept, the layers run once more: all of them without
 * a slot, else those without a backward. */
static uint32_t first_bad_layer(cf_engine *engine, const cf_chunk_plan *plan,
                                uint32_t chunk, const cf_slot *slot)
{
    const cf_kernels *k = engine->kernels;
    const cf_model_config *c = &engine->model->config;
    const uint32_t first_kept =
        slot == NULL ? c->n_layers : engine->model->first_backward_layer;
    const size_t n_tok = plan->chunks[chunk].n_tok;
    uint32_t layer;

    for (layer = 0; layer < c->n_layers; layer++) {
        void *x_next;

        if (layer < first_kept)
            x_next = layer_forward(engine, plan, chunk, layer, slot,
                                   STREAM_OUT_WANTED);
        else
            (void)cf_activations_of(&engine->acts, slot, layer, &x_next);
        if (k->first_bad_row(k, n_tok, c->hidden, x_next) < n_tok)
            break;
    }
    return layer;
}

static cf_status losses_check(cf_engine *engine, const cf_chunk_plan *plan,
                              uint32_t chunk, const cf_slot *slot)
{
    const cf_chunk *c = &plan->chunks[chunk];

    for (uint32_t i = 0; i < c->n_pieces; i++) {
        uint32_t piece = c->first_piece + i;

        if (!isfinite(engine->piece_loss[piece]))
            return not_finite(engine, plan, piece,
                              first_bad_layer(engine, plan, chunk, slot),
                              "the loss");
    }
    return CF_OK;
}

static cf_status gradient_check(const cf_engine *engine,
                                const cf_chunk_plan *plan, uint32_t chunk,
                                uint32_t layer)
{
    const cf_kernels *k = engine->kernels;
    const size_t n_tok = plan->chunks[chunk].n_tok;
    size_t row = k->first_bad_row(k, n_tok, engine->model->config.hidden,
                                  engine->grads.dx);

    if (row == n_tok)
        return CF_OK;
    return not_finite(engine, plan, piece_of_row(plan, chunk, row), layer,
                      "the gradient");
}

/* ---- the callbacks ---- */

static void observe(const cf_engine *engine)
{
    if (engine->observe != NULL)
        engine->observe(engine->observer);
}

static cf_status engine_forward(void *context, const cf_chunk_plan *plan,
                                uint32_t chunk, cf_keep keep)
{
    cf_engine *engine = context;
    cf_slot *slot = NULL;
    cf_status status = chunk_begin(engine, plan, chunk);

    if (status == CF_OK && keep == CF_KEEP_YES)
        status = cf_activations_keep(&engine->acts, chunk, &slot);
    if (status != CF_OK)
        return status;
    layers_forward(engine, plan, chunk, slot,
                   keep == CF_KEEP_YES ? STREAM_OUT_WANTED : STREAM_OUT_DROP);
    observe(engine);
    return engine->kernels->status(engine->kernels);
}

static cf_status layers_backward(cf_engine *engine, const cf_chunk_plan *plan,
                                 uint32_t chunk, const cf_slot *slot)
{
    const cf_layer_missing missing = cf_activations_missing(&engine->acts);
    cf_status status = CF_OK;

    for (uint32_t layer = engine->model->config.n_layers;
         layer-- > engine->model->first_backward_layer && status == CF_OK;) {
        void *x_next;
        cf_layer_acts acts =
            cf_activations_of(&engine->acts, slot, layer, &x_next);
        cf_layer_call call =
            layer_call(engine, plan, chunk, layer, CF_GRADIENTS_YES);

        if (cf_group_ends(plan, chunk))
            cf_kv_state_zero_gradients(&engine->kv, plan, chunk, layer);
        cf_layer_backward(&call, &acts, missing, &engine->grads);
        status = gradient_check(engine, plan, chunk, layer);
    }
    return status;
}

static cf_status engine_backward(void *context, const cf_chunk_plan *plan,
                                 uint32_t chunk)
{
    cf_engine *engine = context;
    const cf_kernels *k = engine->kernels;
    const size_t n_tok = plan->chunks[chunk].n_tok;
    cf_slot *slot = cf_activations_find(&engine->acts, chunk);
    cf_status status = chunk_begin(engine, plan, chunk);

    if (status != CF_OK)
        return status;
    head_backward(engine, n_tok, slot->x_out);
    piece_losses_add(engine, plan, chunk);
    status = losses_check(engine, plan, chunk, slot);
    if (status == CF_OK)
        status = layers_backward(engine, plan, chunk, slot);
    if (status != CF_OK)
        return status;
    if (engine->model->d_embedding != NULL)
        k->embedding_backward(k, n_tok, engine->model->config.hidden,
                              engine->input.ids, engine->grads.dx,
                              engine->model->d_embedding);

    cf_activations_release(&engine->acts, slot);
    if (plan->chunks[chunk].in_group == 0)
        cf_kv_state_release(&engine->kv, plan, chunk);
    observe(engine);
    return k->status(k);
}

const cf_engine_ops cf_engine_callbacks = {
    .forward = engine_forward,
    .backward = engine_backward,
};

cf_status cf_engine_evaluate(cf_engine *engine, const cf_chunk_plan *plan,
                             uint32_t chunk)
{
    const cf_kernels *k = engine->kernels;
    cf_status status = chunk_begin(engine, plan, chunk);
    void *x_out;

    if (status != CF_OK)
        return status;
    x_out = layers_forward(engine, plan, chunk, NULL, STREAM_OUT_WANTED);
    head_rows(engine, x_out);
    k->head_forward(k, &engine->model->head.weight, engine->input.n_targets,
                    engine->head.n, engine->input.targets, engine->head.loss,
                    engine->scratch);
    piece_losses_add(engine, plan, chunk);
    status = losses_check(engine, plan, chunk, NULL);
    if (status != CF_OK)
        return status;
    if (cf_group_ends(plan, chunk))
        cf_kv_state_release(&engine->kv, plan, chunk);
    observe(engine);
    return k->status(k);
}
