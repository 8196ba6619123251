/* engine_chunk.c - see engine_chunk.h. */
#include "src/engine_chunk.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "src/log.h"

/* Between the layers of a long op. */
void cf_engine_stay_alive(const cf_engine *engine)
{
    if (engine->batch.comm != NULL)
        cf_comm_poll(engine->batch.comm);
}

/* ---- layers ---- */

cf_status cf_engine_chunk_begin(cf_engine *engine, const cf_chunk_plan *plan,
                                uint32_t chunk)
{
    const cf_kernels *k = engine->kernels;
    const cf_model *model = engine->model;
    const cf_time_mark mark = cf_op_times_mark(engine->times);

    if (engine->batch.tokens != NULL)
        cf_chunk_input_take(&engine->input, engine->batch.tokens, plan, chunk);
    else
        cf_chunk_input_read(&engine->input, engine->batch.dataset,
                            engine->batch.sequences, plan, chunk);
    cf_op_times_count(engine->times, CF_TIME_DATA, mark);
    k->rope_table(k, plan->chunks[chunk].n_tok, engine->input.positions,
                  model->config.head_dim / 2, model->inv_freq,
                  model->rope_factor, engine->cos, engine->sin);
    return cf_kv_state_append(&engine->kv, plan, chunk);
}

cf_layer_call cf_engine_layer_call(cf_engine *engine, const cf_chunk_plan *plan,
                                   uint32_t chunk, uint32_t layer,
                                   cf_gradients gradients)
{
    const cf_model *model = engine->model;
    const cf_layer *l = &model->layers[layer];
    const uint32_t held = layer - model->stage.first_layer;

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
        .batch = cf_kv_state_batch(&engine->kv, plan, chunk, held, gradients),
        .adapter_rows = engine->adapter_rows,
        .scratch = engine->scratch,
    };
}

/* What attention leaves of a dropped chunk in a layer; NULL where nothing is
 * kept. */
typedef struct kept_attention {
    void *o, *lse;
} kept_attention;

static kept_attention attention_of(const cf_engine *engine, uint32_t dropped,
                                   uint32_t layer)
{
    const uint32_t held = layer - engine->model->stage.first_layer;

    if (dropped == CF_DROPPED_NOWHERE)
        return (kept_attention){NULL, NULL};
    return (kept_attention){cf_dropped_o(&engine->dropped, dropped, held),
                            cf_dropped_lse(&engine->dropped, dropped, held)};
}

static void attention_restore(const cf_engine *engine, size_t n_tok,
                              kept_attention kept, const cf_layer_acts *acts)
{
    const cf_kernels *k = engine->kernels;
    const cf_attn_shape *shape = &engine->kv.shape;
    const size_t n = n_tok * shape->n_heads;

    k->copy(k, kept.o, acts->o, n * shape->head_dim * k->act_bytes);
    k->copy(k, kept.lse, acts->lse, n * k->acc_bytes);
}

/* The layers of a chunk are run in order, from its input on.  Returns the stream
 * out of this one; NULL when it was not computed: a dropped forward of the last
 * stage leaves only K and V behind, and those of the last layer need neither its
 * MLP nor, where it is not kept, its attention. */
static void *layer_forward(cf_engine *engine, const cf_chunk_plan *plan,
                           uint32_t chunk, uint32_t layer, const cf_slot *slot,
                           uint32_t dropped, cf_stream_out wanted)
{
    const cf_stage *stage = &engine->model->stage;
    const kept_attention kept = attention_of(engine, dropped, layer);
    cf_layer_call call =
        cf_engine_layer_call(engine, plan, chunk, layer, CF_GRADIENTS_NO);
    void *x_next;
    cf_layer_acts acts = cf_activations_of(&engine->acts, slot, layer, &x_next);

    cf_engine_stay_alive(engine);
    if (kept.o != NULL && slot != NULL) {
        attention_restore(engine, call.batch.n_tok, kept, &acts);
        cf_layer_forward_attended(&call, &acts, x_next);
        return x_next;
    }
    if (kept.o != NULL) {
        acts.o = kept.o;
        acts.lse = kept.lse;
    }
    if (stage->is_last && layer + 1 == stage->end_layer &&
        wanted == CF_STREAM_OUT_DROP) {
        if (kept.o != NULL)
            cf_layer_forward_attention(&call, &acts);
        else
            cf_layer_forward_kv(&call, &acts);
        return NULL;
    }
    cf_layer_forward(&call, &acts, x_next);
    return x_next;
}

void *cf_engine_layers_forward(cf_engine *engine, const cf_chunk_plan *plan,
                               uint32_t chunk, const cf_slot *slot,
                               uint32_t dropped, cf_stream_out wanted)
{
    const cf_stage *stage = &engine->model->stage;
    void *x_next = NULL;

    for (uint32_t layer = stage->first_layer; layer < stage->end_layer; layer++)
        x_next =
            layer_forward(engine, plan, chunk, layer, slot, dropped, wanted);
    return x_next;
}

void *cf_engine_input_at(const cf_engine *engine, const cf_slot *slot)
{
    void *x_next;

    return cf_activations_of(&engine->acts, slot,
                             engine->model->stage.first_layer, &x_next)
        .x;
}

void cf_engine_embed(const cf_engine *engine, size_t n_tok, void *x)
{
    const cf_kernels *k = engine->kernels;

    k->embedding_forward(k, n_tok, engine->model->config.hidden,
                         engine->input.ids, engine->model->embedding, x);
}

/* ---- the head ---- */

void cf_engine_head_rows(cf_engine *engine, const void *x_out)
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
    return cf_n_backward_layers(model) > 0;
}

/* Losses of the chunk, and the gradient of the stream out of the last layer,
 * where a layer wants it. */
static void head_backward(cf_engine *engine, size_t n_tok, const void *x_out)
{
    const cf_kernels *k = engine->kernels;
    cf_model *model = engine->model;
    const cf_chunk_input *in = &engine->input;
    const size_t hidden = model->config.hidden;

    cf_engine_head_rows(engine, x_out);
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
                            uint32_t piece, const char *what, const char *place,
                            uint32_t layer)
{
    const cf_engine_batch *batch = &engine->batch;
    uint32_t sequence = batch->sequences[plan->pieces[piece].seq];
    char where[256], number[16] = "";

    cf_dataset_where(batch->dataset, sequence, where, sizeof(where));
    if (layer < engine->model->config.n_layers)
        snprintf(number, sizeof(number), " %u", (unsigned)layer);
    cf_log_error("step %" PRIu64 ": %s is not finite, first in %s%s, sequence "
                 "%u (%s): %s",
                 batch->step, what, place, number, (unsigned)sequence, where,
                 engine->gradients == CF_GRADIENTS_NO
                     ? "look at that sequence, or take an earlier model"
                     : "lower --learning-rate, or look at that sequence");
    return CF_NOT_FINITE;
}

static bool has_bad_row(const cf_engine *engine, size_t n_tok, const void *x)
{
    const cf_kernels *k = engine->kernels;

    return k->first_bad_row(k, n_tok, engine->model->config.hidden, x) < n_tok;
}

/* The first layer whose output has a bad row; n_layers: only the head has.
 * Where the streams were not kept, the layers run once more: all of them without
 * a slot, else those without a backward.  But an input that came from another
 * stage may be gone: then layers below `from` are not looked at. */
static uint32_t first_bad_layer(cf_engine *engine, const cf_chunk_plan *plan,
                                uint32_t chunk, const cf_slot *slot,
                                uint32_t from)
{
    const cf_stage *stage = &engine->model->stage;
    const uint32_t first_kept =
        slot == NULL ? stage->end_layer : engine->acts.first_kept_layer;
    const size_t n_tok = plan->chunks[chunk].n_tok;

    for (uint32_t layer = from; layer < stage->end_layer; layer++) {
        void *x_next;

        if (layer < first_kept)
            x_next = layer_forward(engine, plan, chunk, layer, slot,
                                   CF_DROPPED_NOWHERE, CF_STREAM_OUT_WANTED);
        else
            (void)cf_activations_of(&engine->acts, slot, layer, &x_next);
        if (has_bad_row(engine, n_tok, x_next))
            return layer;
    }
    return engine->model->config.n_layers;
}

/* Say where a loss of the last stage that is not finite comes from. */
static cf_status loss_not_finite(cf_engine *engine, const cf_chunk_plan *plan,
                                 uint32_t chunk, const cf_slot *slot,
                                 uint32_t piece)
{
    const cf_stage *stage = &engine->model->stage;
    const size_t n_tok = plan->chunks[chunk].n_tok;
    uint32_t from = stage->first_layer, layer;
    void *x = cf_engine_input_at(engine, slot), *x_next;

    if (stage->is_first) {
        cf_engine_embed(engine, n_tok, x);
    } else if (slot == NULL) {
        cf_exchange_copy(&engine->exchange, CF_HOP_ACT_IN, chunk, x);
    } else {
        from = engine->acts.first_kept_layer;
        x = from < stage->end_layer
                ? cf_activations_of(&engine->acts, slot, from, &x_next).x
                : slot->x_out;
    }
    if (!stage->is_first && has_bad_row(engine, n_tok, x))
        return not_finite(engine, plan, piece, "the loss",
                          from < stage->end_layer ? "a layer below layer"
                                                  : "a layer below the head",
                          from);
    layer = first_bad_layer(engine, plan, chunk, slot, from);
    return not_finite(engine, plan, piece, "the loss",
                      layer < stage->end_layer ? "layer" : "the head", layer);
}

static cf_status losses_check(cf_engine *engine, const cf_chunk_plan *plan,
                              uint32_t chunk, const cf_slot *slot)
{
    const cf_chunk *c = &plan->chunks[chunk];

    for (uint32_t i = 0; i < c->n_pieces; i++)
        if (!isfinite(engine->piece_loss[c->first_piece + i]))
            return loss_not_finite(engine, plan, chunk, slot,
                                   c->first_piece + i);
    return CF_OK;
}

cf_status cf_engine_gradient_check(const cf_engine *engine,
                                   const cf_chunk_plan *plan, uint32_t chunk,
                                   uint32_t layer)
{
    const cf_kernels *k = engine->kernels;
    const size_t n_tok = plan->chunks[chunk].n_tok;
    size_t row = k->first_bad_row(k, n_tok, engine->model->config.hidden,
                                  engine->grads.dx);

    if (row == n_tok)
        return CF_OK;
    return not_finite(engine, plan, piece_of_row(plan, chunk, row),
                      "the gradient", "layer", layer);
}

/* ---- what ends in a loss ---- */

cf_status cf_engine_head_forward(cf_engine *engine, const cf_chunk_plan *plan,
                                 uint32_t chunk, const void *x_out)
{
    const cf_kernels *k = engine->kernels;

    cf_engine_head_rows(engine, x_out);
    k->head_forward(k, &engine->model->head.weight, engine->input.n_targets,
                    engine->head.n, engine->input.targets, engine->head.loss,
                    engine->scratch);
    piece_losses_add(engine, plan, chunk);
    return losses_check(engine, plan, chunk, NULL);
}

cf_status cf_engine_head_backward(cf_engine *engine, const cf_chunk_plan *plan,
                                  uint32_t chunk, const cf_slot *slot)
{
    head_backward(engine, plan->chunks[chunk].n_tok, slot->x_out);
    piece_losses_add(engine, plan, chunk);
    return losses_check(engine, plan, chunk, slot);
}
