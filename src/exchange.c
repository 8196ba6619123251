/* exchange.c - see exchange.h. */
#include "src/exchange.h"

#include <assert.h>

#include "src/clock.h"

#define NO_CHUNK UINT32_MAX

/* Whether a stage below this layer has anything to train. */
static bool trains_below(const cf_model *model, uint32_t layer)
{
    return model->first_backward_layer < layer;
}

void cf_exchange_carve(cf_exchange *exchange, const cf_model *model,
                       uint32_t chunk_tok, cf_gradients gradients,
                       cf_arena *arena)
{
    const cf_stage *stage = &model->stage;
    const bool trains = gradients == CF_GRADIENTS_YES;
    const size_t tok_bytes = model->config.hidden * model->kernels->acc_bytes;
    const bool is_open[CF_HOP_COUNT] = {
        [CF_HOP_ACT_IN] = !stage->is_first,
        [CF_HOP_ACT_OUT] = !stage->is_last,
        [CF_HOP_GRAD_IN] =
            trains && !stage->is_last && trains_below(model, stage->end_layer),
        [CF_HOP_GRAD_OUT] = trains && !stage->is_first &&
                            trains_below(model, stage->first_layer),
    };

    *exchange =
        (cf_exchange){.kernels = model->kernels, .tok_bytes = tok_bytes};
    for (int hop = 0; hop < CF_HOP_COUNT; hop++) {
        if (!is_open[hop])
            continue;
        exchange->hops[hop].is_open = true;
        exchange->hops[hop].buffer =
            cf_arena_take(arena, CF_LIFETIME_OP, "messages between stages",
                          chunk_tok, tok_bytes);
    }
}

size_t cf_exchange_bytes(const cf_exchange *exchange, uint32_t chunk)
{
    return exchange->plan->chunks[chunk].n_tok * exchange->tok_bytes;
}

/* The chunk of the next receive of a hop; NO_CHUNK behind the last. */
static uint32_t next_chunk(cf_exchange *exchange, cf_hop hop)
{
    const cf_stage_work *work = &exchange->work;
    const cf_op_kind kind =
        hop == CF_HOP_ACT_IN ? CF_OP_RECV_ACT : CF_OP_RECV_GRAD;
    size_t *position = &exchange->hops[hop].position;

    if (work->ops == NULL) {
        if (*position == work->end_chunk - work->first_chunk)
            return NO_CHUNK;
        return work->first_chunk + (uint32_t)(*position)++;
    }
    while (*position < work->n_ops)
        if (work->ops[(*position)++].kind == kind)
            return work->ops[*position - 1].chunk;
    return NO_CHUNK;
}

cf_status cf_exchange_free(cf_exchange *exchange, cf_hop hop)
{
    cf_hop_end *end = &exchange->hops[hop];
    uint32_t chunk;

    if (!end->is_open)
        return CF_OK;
    chunk = next_chunk(exchange, hop);
    if (chunk == NO_CHUNK)
        return CF_OK;
    return cf_comm_recv(exchange->comm, end->peer, end->buffer,
                        cf_exchange_bytes(exchange, chunk), &end->request);
}

cf_status cf_exchange_begin(cf_exchange *exchange, cf_comm *comm,
                            const cf_chunk_plan *plan,
                            const cf_stage_work *work)
{
    cf_hop_end *hops = exchange->hops;
    cf_status status;

    exchange->comm = comm;
    exchange->plan = plan;
    exchange->work = *work;
    exchange->sent_bytes = 0;
    exchange->waited_s = 0;
    for (int hop = 0; hop < CF_HOP_COUNT; hop++) {
        const bool is_above = hop == CF_HOP_ACT_OUT || hop == CF_HOP_GRAD_IN;

        hops[hop].position = 0;
        hops[hop].request = (cf_request){0};
        if (hops[hop].is_open)
            hops[hop].peer =
                cf_comm_rank(comm) + (is_above ? 1 : 0) - (is_above ? 0 : 1);
    }
    status = cf_exchange_free(exchange, CF_HOP_ACT_IN);
    if (status == CF_OK)
        status = cf_exchange_free(exchange, CF_HOP_GRAD_IN);
    return status;
}

static cf_status hop_wait(cf_exchange *exchange, cf_hop hop)
{
    cf_hop_end *end = &exchange->hops[hop];
    double start;
    cf_status status;

    if (!end->is_open)
        return CF_OK;
    start = cf_clock_s();
    status = cf_comm_wait(exchange->comm, &end->request);
    exchange->waited_s += cf_clock_s() - start;
    return status;
}

cf_status cf_exchange_receive(cf_exchange *exchange, cf_hop hop)
{
    return hop_wait(exchange, hop);
}

void cf_exchange_copy(const cf_exchange *exchange, cf_hop hop, uint32_t chunk,
                      void *to)
{
    const cf_kernels *k = exchange->kernels;

    assert(exchange->hops[hop].is_open);
    k->copy(k, exchange->hops[hop].buffer, to,
            cf_exchange_bytes(exchange, chunk));
}

cf_status cf_exchange_send(cf_exchange *exchange, cf_hop hop, uint32_t chunk,
                           const void *from)
{
    const cf_kernels *k = exchange->kernels;
    const size_t bytes = cf_exchange_bytes(exchange, chunk);
    cf_hop_end *end = &exchange->hops[hop];
    cf_status status = hop_wait(exchange, hop);

    if (status != CF_OK || !end->is_open)
        return status;
    k->copy(k, from, end->buffer, bytes);
    exchange->sent_bytes += bytes;
    return cf_comm_send(exchange->comm, end->peer, end->buffer, bytes,
                        &end->request);
}

cf_status cf_exchange_end(cf_exchange *exchange)
{
    cf_status status = hop_wait(exchange, CF_HOP_ACT_OUT);

    if (status == CF_OK)
        status = hop_wait(exchange, CF_HOP_GRAD_OUT);
    return status;
}
