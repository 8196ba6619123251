/* exchange.h - the messages between a stage of a pipeline and its neighbours.
 *
 * A hop is one direction of one link: activations go to the next stage, gradients
 * to the previous one, both as the residual stream is stored (acc), so that depth
 * changes no bits.
 *
 * (1) Every hop has one buffer at either end.  A receive is posted as soon as the
 *     buffer is free, for the message that the stage's list names next: both ends
 *     know chunk and size from the plan, and schedule_check.c has shown that one
 *     buffered message is enough.
 * (2) A send copies into its buffer and returns; the next one on that hop waits
 *     for it.
 * (3) Gradients that nobody below would use are not sent, and their hop has no
 *     buffer.
 */
#ifndef CF_EXCHANGE_H
#define CF_EXCHANGE_H

#include <chunkflow/schedule.h>

#include "src/arena.h"
#include "src/comm.h"
#include "src/kv_state.h"
#include "src/model.h"

typedef enum cf_hop {
    CF_HOP_ACT_IN,   /* from the previous stage */
    CF_HOP_ACT_OUT,  /* to the next */
    CF_HOP_GRAD_IN,  /* from the next */
    CF_HOP_GRAD_OUT, /* to the previous */
    CF_HOP_COUNT
} cf_hop;

/* What a stage will do, in order: its op list, or, when ops is NULL, a forward of
 * each of these chunks. */
typedef struct cf_stage_work {
    const cf_op *ops;
    size_t n_ops;
    uint32_t first_chunk;
    uint32_t end_chunk;
} cf_stage_work;

/* The end of a hop at this stage. */
typedef struct cf_hop_end {
    bool is_open;
    void *buffer;    /* acc [chunk_tok, hidden] */
    uint32_t peer;   /* rank */
    size_t position; /* of a receive: how much of the work was looked through */
    cf_request request;
} cf_hop_end;

typedef struct cf_exchange {
    const cf_kernels *kernels; /* borrowed, as the next three */
    cf_comm *comm;
    const cf_chunk_plan *plan;
    cf_stage_work work;
    size_t tok_bytes; /* of one token in a message */
    cf_hop_end hops[CF_HOP_COUNT];
    uint64_t sent_bytes; /* since begin */
    double waited_s;     /* likewise: for messages */
} cf_exchange;

/* The buffers of the hops that the model's stage has. */
void cf_exchange_carve(cf_exchange *exchange, const cf_model *model,
                       uint32_t chunk_tok, cf_gradients gradients,
                       cf_arena *arena);

/* Start a step or a pass: post the first receives.  comm may be NULL when the
 * stage has no neighbour.  Nothing happens on a hop that is not open.  Errors,
 * logged, here and below: CF_COMM. */
CF_MUST_USE cf_status cf_exchange_begin(cf_exchange *exchange, cf_comm *comm,
                                        const cf_chunk_plan *plan,
                                        const cf_stage_work *work);

/* Wait for the next message of a hop.  It stays in the buffer until that is free
 * again. */
CF_MUST_USE cf_status cf_exchange_receive(cf_exchange *exchange, cf_hop hop);

/* Copy the message that was received, which is the one of this chunk. */
void cf_exchange_copy(const cf_exchange *exchange, cf_hop hop, uint32_t chunk,
                      void *to);

/* The buffer is free: post the next receive. */
CF_MUST_USE cf_status cf_exchange_free(cf_exchange *exchange, cf_hop hop);

CF_MUST_USE cf_status cf_exchange_send(cf_exchange *exchange, cf_hop hop,
                                       uint32_t chunk, const void *from);

/* Bytes of the message of a chunk on any hop. */
size_t cf_exchange_bytes(const cf_exchange *exchange, uint32_t chunk);

/* Wait for all sends. */
CF_MUST_USE cf_status cf_exchange_end(cf_exchange *exchange);

#endif
