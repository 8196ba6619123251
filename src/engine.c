/* engine.c - see engine.h. */
#include "src/engine.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "src/log.h"

/* ---- begin and end ---- */

static cf_status begin(cf_engine *engine, const cf_engine_batch *batch,
                       const cf_chunk_plan *plan, cf_schedule_kind kind,
                       const cf_stage_work *work)
{
    engine->batch = *batch;
    engine->busy_s = engine->span_s = 0;
    engine->begin_s = cf_exchange_clock_s();
    memset(engine->piece_loss, 0, plan->n_pieces * sizeof(double));
    engine->inputs_come_again = kind == CF_SCHEDULE_PAPER;
    cf_kv_state_begin_step(&engine->kv, plan, kind == CF_SCHEDULE_LONG_FIRST);
    cf_pool_begin_step(&engine->acts.pool);
    cf_pool_begin_step(&engine->inputs.pool);
    return cf_exchange_begin(&engine->exchange, batch->comm, plan, work);
}

cf_status cf_engine_begin_step(cf_engine *engine, const cf_engine_batch *batch,
                               const cf_chunk_plan *plan,
                               const cf_schedule *schedule)
{
    const size_t *first_op = &schedule->first_op[batch->stage];
    const cf_stage_work work = {.ops = schedule->ops + first_op[0],
                                .n_ops = first_op[1] - first_op[0]};

    return begin(engine, batch, plan, schedule->params.kind, &work);
}

cf_status cf_engine_begin_pass(cf_engine *engine, const cf_engine_batch *batch,
                               const cf_chunk_plan *plan, uint32_t first_chunk,
                               uint32_t end_chunk)
{
    const cf_stage_work work = {.first_chunk = first_chunk,
                                .end_chunk = end_chunk};

    return begin(engine, batch, plan, CF_SCHEDULE_STATE_AWARE, &work);
}

cf_status cf_engine_end_step(cf_engine *engine)
{
    return cf_exchange_end(&engine->exchange);
}

/* Every op stands between these two. */
static void op_begin(cf_engine *engine, uint32_t chunk, const char *what)
{
    const cf_engine_batch *batch = &engine->batch;

    if (batch->comm != NULL)
        cf_comm_note(batch->comm, batch->step, chunk, what);
    engine->op_begin = cf_exchange_clock_s() - engine->begin_s;
}

/* Returns the status that the op ended with. */
static cf_status op_end(cf_engine *engine, cf_status status)
{
    engine->span_s = cf_exchange_clock_s() - engine->begin_s;
    if (status == CF_OK && engine->observe != NULL)
        engine->observe(engine->observer);
    return status;
}

static cf_status compute_end(cf_engine *engine, cf_status status)
{
    status = op_end(engine, status);
    engine->busy_s += engine->span_s - engine->op_begin;
    return status;
}

/* Between the layers of a long op. */
static void stay_alive(const cf_engine *engine)
{
    if (engine->batch.comm != NULL)
        cf_comm_poll(engine->batch.comm);
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
        .scratch = engine->scratch,
    };
}

/* Whether anybody reads the stream out of the last layer. */
typedef enum stream_out {
    STREAM_OUT_DROP,
    STREAM_OUT_WANTED
} stream_out;

/* The layers of a chunk are run in order, from its input on.  Returns the stream
 * out of this one; NULL when it was not computed: a dropped forward of the last
 * stage leaves only K and V behind, and those of the last layer need neither its
 * attention nor its MLP. */
static void *layer_forward(cf_engine *engine, const cf_chunk_plan *plan,
                           uint32_t chunk, uint32_t layer, const cf_slot *slot,
                           stream_out wanted)
{
    const cf_stage *stage = &engine->model->stage;
    cf_layer_call call =
        layer_call(engine, plan, chunk, layer, CF_GRADIENTS_NO);
    void *x_next;
    cf_layer_acts acts = cf_activations_of(&engine->acts, slot, layer, &x_next);

    stay_alive(engine);
    if (stage->is_last && layer + 1 == stage->end_layer &&
        wanted == STREAM_OUT_DROP) {
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
    const cf_stage *stage = &engine->model->stage;
    void *x_next = NULL;

    for (uint32_t layer = stage->first_layer; layer < stage->end_layer; layer++)
        x_next = layer_forward(engine, plan, chunk, layer, slot, wanted);
    return x_next;
}

/* Where the first layer of the stage reads its input. */
static void *input_at(const cf_engine *engine, const cf_slot *slot)
{
    void *x_next;

    return cf_activations_of(&engine->acts, slot,
                             engine->model->stage.first_layer, &x_next)
        .x;
}

static void embed(const cf_engine *engine, size_t n_tok, void *x)
{
    const cf_kernels *k = engine->kernels;

    k->embedding_forward(k, n_tok, engine->model->config.hidden,
                         engine->input.ids, engine->model->embedding, x);
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
                                   STREAM_OUT_WANTED);
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
    void *x = input_at(engine, slot), *x_next;

    if (stage->is_first) {
        embed(engine, n_tok, x);
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
                          "a layer below layer", from);
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
    return not_finite(engine, plan, piece_of_row(plan, chunk, row),
                      "the gradient", "layer", layer);
}

/* ---- forward ---- */

/* The input of a dropped chunk stays here for its recompute. */
static cf_status input_keep(cf_engine *engine, uint32_t chunk)
{
    void *stream;
    cf_status status = cf_stage_inputs_keep(&engine->inputs, chunk, &stream);

    if (status == CF_OK)
        cf_exchange_copy(&engine->exchange, CF_HOP_ACT_IN, chunk, stream);
    return status;
}

/* The input of a recompute on the spot. */
static void input_restore(cf_engine *engine, uint32_t chunk, void *x)
{
    const cf_kernels *k = engine->kernels;

    k->copy(k, cf_stage_inputs_find(&engine->inputs, chunk), x,
            cf_exchange_bytes(&engine->exchange, chunk));
    cf_stage_inputs_release(&engine->inputs, chunk);
}

/* Write a chunk's input to x, which the first layer reads. */
static cf_status input_place(cf_engine *engine, const cf_chunk_plan *plan,
                             uint32_t chunk, cf_keep keep, bool again, void *x)
{
    cf_status status = CF_OK;

    if (engine->model->stage.is_first) {
        embed(engine, plan->chunks[chunk].n_tok, x);
        return CF_OK;
    }
    if (again && !engine->inputs_come_again) {
        input_restore(engine, chunk, x);
        return CF_OK;
    }
    if (keep == CF_KEEP_NO && !engine->inputs_come_again &&
        cf_engine_has_backward(engine))
        status = input_keep(engine, chunk);
    if (status != CF_OK)
        return status;
    cf_exchange_copy(&engine->exchange, CF_HOP_ACT_IN, chunk, x);
    return cf_exchange_free(&engine->exchange, CF_HOP_ACT_IN);
}

static cf_status forward(cf_engine *engine, const cf_chunk_plan *plan,
                         uint32_t chunk, cf_keep keep)
{
    const bool again = cf_kv_state_has(&engine->kv, plan, chunk);
    cf_slot *slot = NULL;
    cf_status status = CF_OK;

    if (keep == CF_KEEP_YES)
        status = cf_activations_keep(&engine->acts, chunk, &slot);
    if (status != CF_OK || (again && !engine->inputs_come_again &&
                            !cf_engine_has_backward(engine)))
        return status;
    status = chunk_begin(engine, plan, chunk);
    if (status == CF_OK)
        status = input_place(engine, plan, chunk, keep, again,
                             input_at(engine, slot));
    if (status != CF_OK)
        return status;
    engine->stream_out = layers_forward(engine, plan, chunk, slot,
                                        keep == CF_KEEP_YES ? STREAM_OUT_WANTED
                                                            : STREAM_OUT_DROP);
    return engine->kernels->status(engine->kernels);
}

/* ---- backward ---- */

static cf_status layers_backward(cf_engine *engine, const cf_chunk_plan *plan,
                                 uint32_t chunk, const cf_slot *slot)
{
    const cf_layer_missing missing = cf_activations_missing(&engine->acts);
    const cf_stage *stage = &engine->model->stage;
    cf_status status = CF_OK;

    for (uint32_t layer = stage->end_layer;
         layer-- > engine->acts.first_kept_layer && status == CF_OK;) {
        void *x_next;
        cf_layer_acts acts =
            cf_activations_of(&engine->acts, slot, layer, &x_next);
        cf_layer_call call =
            layer_call(engine, plan, chunk, layer, CF_GRADIENTS_YES);

        stay_alive(engine);
        if (cf_group_ends(plan, chunk))
            cf_kv_state_zero_gradients(&engine->kv, plan, chunk,
                                       layer - stage->first_layer);
        cf_layer_backward(&call, &acts, missing, &engine->grads);
        status = gradient_check(engine, plan, chunk, layer);
    }
    return status;
}

/* From the head, or from the gradient that was received, down to the lowest layer
 * of the stage that has a backward. */
static cf_status gradients_add(cf_engine *engine, const cf_chunk_plan *plan,
                               uint32_t chunk, const cf_slot *slot)
{
    const cf_kernels *k = engine->kernels;
    const cf_model *model = engine->model;
    const size_t n_tok = plan->chunks[chunk].n_tok;
    cf_status status = chunk_begin(engine, plan, chunk);

    if (status == CF_OK && model->stage.is_last) {
        head_backward(engine, n_tok, slot->x_out);
        piece_losses_add(engine, plan, chunk);
        status = losses_check(engine, plan, chunk, slot);
    }
    if (status == CF_OK)
        status = layers_backward(engine, plan, chunk, slot);
    if (status == CF_OK && model->d_embedding != NULL)
        k->embedding_backward(k, n_tok, model->config.hidden, engine->input.ids,
                              engine->grads.dx, model->d_embedding);
    return status;
}

static cf_status backward(cf_engine *engine, const cf_chunk_plan *plan,
                          uint32_t chunk)
{
    cf_slot *slot = cf_activations_find(&engine->acts, chunk);

    if (cf_engine_has_backward(engine)) {
        cf_status status = gradients_add(engine, plan, chunk, slot);

        if (status != CF_OK)
            return status;
    }
    cf_activations_release(&engine->acts, slot);
    if (plan->chunks[chunk].in_group == 0)
        cf_kv_state_release(&engine->kv, plan, chunk);
    return engine->kernels->status(engine->kernels);
}

/* ---- the callbacks ---- */

static cf_status engine_forward(void *context, const cf_chunk_plan *plan,
                                uint32_t chunk, cf_keep keep)
{
    cf_engine *engine = context;
    cf_status status;

    op_begin(engine, chunk, "forward");
    status = forward(engine, plan, chunk, keep);
    return compute_end(engine, status);
}

static cf_status engine_backward(void *context, const cf_chunk_plan *plan,
                                 uint32_t chunk)
{
    cf_engine *engine = context;
    cf_status status;

    op_begin(engine, chunk, "backward");
    status = backward(engine, plan, chunk);
    return compute_end(engine, status);
}

static cf_status engine_send_act(void *context, const cf_chunk_plan *plan,
                                 uint32_t chunk)
{
    cf_engine *engine = context;
    cf_status status;

    (void)plan;
    op_begin(engine, chunk, "send activations");
    status = cf_exchange_send(&engine->exchange, CF_HOP_ACT_OUT, chunk,
                              engine->stream_out);
    return op_end(engine, status);
}

/* The message stays in its buffer until the forward. */
static cf_status engine_recv_act(void *context, const cf_chunk_plan *plan,
                                 uint32_t chunk)
{
    cf_engine *engine = context;
    cf_status status;

    (void)plan;
    op_begin(engine, chunk, "receive activations");
    status = cf_exchange_receive(&engine->exchange, CF_HOP_ACT_IN);
    return op_end(engine, status);
}

static cf_status engine_send_grad(void *context, const cf_chunk_plan *plan,
                                  uint32_t chunk)
{
    cf_engine *engine = context;
    cf_status status;

    (void)plan;
    op_begin(engine, chunk, "send gradients");
    status = cf_exchange_send(&engine->exchange, CF_HOP_GRAD_OUT, chunk,
                              engine->grads.dx);
    return op_end(engine, status);
}

/* Nothing but a recompute comes before the backward, and that leaves grads
 * alone. */
static cf_status engine_recv_grad(void *context, const cf_chunk_plan *plan,
                                  uint32_t chunk)
{
    cf_engine *engine = context;
    cf_exchange *exchange = &engine->exchange;
    cf_status status;

    (void)plan;
    op_begin(engine, chunk, "receive gradients");
    status = cf_exchange_receive(exchange, CF_HOP_GRAD_IN);
    if (status == CF_OK && exchange->hops[CF_HOP_GRAD_IN].is_open) {
        cf_exchange_copy(exchange, CF_HOP_GRAD_IN, chunk, engine->grads.dx);
        status = cf_exchange_free(exchange, CF_HOP_GRAD_IN);
    }
    return op_end(engine, status);
}

const cf_engine_ops cf_engine_callbacks = {
    .forward = engine_forward,
    .backward = engine_backward,
    .send_act = engine_send_act,
    .recv_act = engine_recv_act,
    .send_grad = engine_send_grad,
    .recv_grad = engine_recv_grad,
};

/* ---- evaluation ---- */

static cf_status head_evaluate(cf_engine *engine, const cf_chunk_plan *plan,
                               uint32_t chunk, const void *x_out)
{
    const cf_kernels *k = engine->kernels;

    head_rows(engine, x_out);
    k->head_forward(k, &engine->model->head.weight, engine->input.n_targets,
                    engine->head.n, engine->input.targets, engine->head.loss,
                    engine->scratch);
    piece_losses_add(engine, plan, chunk);
    return losses_check(engine, plan, chunk, NULL);
}

static cf_status evaluate(cf_engine *engine, const cf_chunk_plan *plan,
                          uint32_t chunk)
{
    const cf_stage *stage = &engine->model->stage;
    cf_exchange *exchange = &engine->exchange;
    void *x = input_at(engine, NULL), *x_out;
    cf_status status = chunk_begin(engine, plan, chunk);

    if (status == CF_OK)
        status = cf_exchange_receive(exchange, CF_HOP_ACT_IN);
    if (status != CF_OK)
        return status;
    if (stage->is_first)
        embed(engine, plan->chunks[chunk].n_tok, x);
    else
        cf_exchange_copy(exchange, CF_HOP_ACT_IN, chunk, x);
    x_out = layers_forward(engine, plan, chunk, NULL, STREAM_OUT_WANTED);
    if (stage->is_last)
        status = head_evaluate(engine, plan, chunk, x_out);
    else
        status = cf_exchange_send(exchange, CF_HOP_ACT_OUT, chunk, x_out);
    if (status == CF_OK)
        status = cf_exchange_free(exchange, CF_HOP_ACT_IN);
    if (status == CF_OK && cf_group_ends(plan, chunk))
        cf_kv_state_release(&engine->kv, plan, chunk);
    return status == CF_OK ? engine->kernels->status(engine->kernels) : status;
}

cf_status cf_engine_evaluate(cf_engine *engine, const cf_chunk_plan *plan,
                             uint32_t chunk)
{
    cf_status status;

    op_begin(engine, chunk, "evaluate");
    status = evaluate(engine, plan, chunk);
    return compute_end(engine, status);
}
