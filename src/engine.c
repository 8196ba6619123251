/* engine.c - see engine.h. */
#include "src/engine.h"

#include <string.h>

#include "src/clock.h"
#include "src/engine_chunk.h"

/* ---- begin and end ---- */

static cf_status begin(cf_engine *engine, const cf_engine_batch *batch,
                       const cf_chunk_plan *plan, cf_schedule_kind kind,
                       const cf_stage_work *work)
{
    engine->batch = *batch;
    engine->busy_s = engine->span_s = 0;
    engine->begin_s = cf_clock_s();
    memset(engine->piece_loss, 0, plan->n_pieces * sizeof(double));
    engine->inputs_come_again = kind == CF_SCHEDULE_PAPER;
    cf_kv_state_begin_step(&engine->kv, plan, kind == CF_SCHEDULE_LONG_FIRST);
    cf_pool_begin_step(&engine->acts.pool);
    cf_pool_begin_step(&engine->dropped.pool);
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
    engine->op_begin = cf_clock_s() - engine->begin_s;
}

/* Returns the status that the op ended with. */
static cf_status op_end(cf_engine *engine, cf_status status)
{
    engine->span_s = cf_clock_s() - engine->begin_s;
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

double cf_engine_loss(const cf_engine *engine, const cf_chunk_plan *plan)
{
    double sum = 0;

    for (size_t i = 0; i < plan->n_pieces; i++)
        sum += engine->piece_loss[i];
    return sum;
}

/* ---- forward ---- */

/* A chunk's place among the dropped ones, from its forward to its recompute. */
static cf_status dropped_place(cf_engine *engine, uint32_t chunk, cf_keep keep,
                               bool again, uint32_t *place_p)
{
    *place_p = CF_DROPPED_NOWHERE;
    if (engine->inputs_come_again)
        return CF_OK;
    if (again)
        *place_p = cf_dropped_find(&engine->dropped, chunk);
    else if (keep == CF_KEEP_NO && cf_engine_has_backward(engine))
        return cf_dropped_keep(&engine->dropped, chunk, place_p);
    return CF_OK;
}

/* Write a chunk's input to x, which the first layer reads; that of a dropped
 * chunk stays in its place, too. */
static cf_status input_place(cf_engine *engine, const cf_chunk_plan *plan,
                             uint32_t chunk, uint32_t dropped, bool again,
                             void *x)
{
    const cf_kernels *k = engine->kernels;
    void *kept = cf_dropped_stream(&engine->dropped, dropped);

    if (engine->model->stage.is_first) {
        cf_engine_embed(engine, plan->chunks[chunk].n_tok, x);
        return CF_OK;
    }
    if (again && !engine->inputs_come_again) {
        k->copy(k, kept, x, cf_exchange_bytes(&engine->exchange, chunk));
        return CF_OK;
    }
    if (kept != NULL)
        cf_exchange_copy(&engine->exchange, CF_HOP_ACT_IN, chunk, kept);
    cf_exchange_copy(&engine->exchange, CF_HOP_ACT_IN, chunk, x);
    return cf_exchange_free(&engine->exchange, CF_HOP_ACT_IN);
}

static cf_status forward(cf_engine *engine, const cf_chunk_plan *plan,
                         uint32_t chunk, cf_keep keep)
{
    const bool again = cf_kv_state_has(&engine->kv, plan, chunk);
    cf_slot *slot = NULL;
    uint32_t dropped = CF_DROPPED_NOWHERE;
    cf_status status = CF_OK;

    if (keep == CF_KEEP_YES)
        status = cf_activations_keep(&engine->acts, chunk, &slot);
    if (status != CF_OK || (again && !engine->inputs_come_again &&
                            !cf_engine_has_backward(engine)))
        return status;
    status = cf_engine_chunk_begin(engine, plan, chunk);
    if (status == CF_OK)
        status = dropped_place(engine, chunk, keep, again, &dropped);
    if (status == CF_OK)
        status = input_place(engine, plan, chunk, dropped, again,
                             cf_engine_input_at(engine, slot));
    if (status != CF_OK)
        return status;
    engine->stream_out = cf_engine_layers_forward(
        engine, plan, chunk, slot, dropped,
        keep == CF_KEEP_YES ? CF_STREAM_OUT_WANTED : CF_STREAM_OUT_DROP);
    if (again)
        cf_dropped_release(&engine->dropped, dropped);
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
            cf_engine_layer_call(engine, plan, chunk, layer, CF_GRADIENTS_YES);

        cf_engine_stay_alive(engine);
        if (cf_group_ends(plan, chunk))
            cf_kv_state_zero_gradients(&engine->kv, plan, chunk,
                                       layer - stage->first_layer);
        cf_layer_backward(&call, &acts, missing, &engine->grads);
        status = cf_engine_gradient_check(engine, plan, chunk, layer);
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
    cf_status status = cf_engine_chunk_begin(engine, plan, chunk);

    if (status == CF_OK && model->stage.is_last)
        status = cf_engine_head_backward(engine, plan, chunk, slot);
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

static cf_status evaluate(cf_engine *engine, const cf_chunk_plan *plan,
                          uint32_t chunk)
{
    const cf_stage *stage = &engine->model->stage;
    cf_exchange *exchange = &engine->exchange;
    void *x = cf_engine_input_at(engine, NULL), *x_out;
    cf_status status = cf_engine_chunk_begin(engine, plan, chunk);

    if (status == CF_OK)
        status = cf_exchange_receive(exchange, CF_HOP_ACT_IN);
    if (status != CF_OK)
        return status;
    if (stage->is_first)
        cf_engine_embed(engine, plan->chunks[chunk].n_tok, x);
    else
        cf_exchange_copy(exchange, CF_HOP_ACT_IN, chunk, x);
    x_out = cf_engine_layers_forward(engine, plan, chunk, NULL,
                                     CF_DROPPED_NOWHERE, CF_STREAM_OUT_WANTED);
    if (stage->is_last)
        status = cf_engine_head_forward(engine, plan, chunk, x_out);
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

/* ---- generation ---- */

static cf_status last_row(cf_engine *engine, const cf_chunk_plan *plan,
                          uint32_t chunk)
{
    cf_status status = cf_engine_chunk_begin(engine, plan, chunk);

    if (status != CF_OK)
        return status;
    cf_engine_embed(engine, plan->chunks[chunk].n_tok,
                    cf_engine_input_at(engine, NULL));
    cf_engine_head_rows(engine, cf_engine_layers_forward(
                                    engine, plan, chunk, NULL,
                                    CF_DROPPED_NOWHERE, CF_STREAM_OUT_WANTED));
    return engine->kernels->status(engine->kernels);
}

cf_status cf_engine_last_row(cf_engine *engine, const cf_chunk_plan *plan,
                             uint32_t chunk)
{
    cf_status status;

    op_begin(engine, chunk, "generate");
    status = last_row(engine, plan, chunk);
    return compute_end(engine, status);
}
