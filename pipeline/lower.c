/* lower.c - a stage's compute-only order becomes one with sends and receives.
 *
 * Messages are derived, never scheduled: a receive stands right before the op
 * that consumes it, a send right behind the op that produces it.  Both ends of
 * a link run the same two orders (forwards, backwards), so messages pair up by
 * position, and both know every shape from the plan: no tags, no sizes.
 *
 * (1) A forward passes activations on whether it keeps its own or drops them.
 * (2) A local recompute sends and receives nothing: the stage retained its
 *     input.  It stands before the receive of its backward, so that it can run
 *     while the gradient is still on its way; the baseline that recomputes
 *     everything has it behind.
 * (3) A recompute that travels is to its neighbours one more forward.
 */
#include "pipeline.h"

typedef struct lowering {
    bool has_previous;
    bool has_next;
    bool recompute_travels;
    bool recompute_waits;
} lowering;

/* Whether the op takes and gives activations as a forward does. */
static bool carries_act(const lowering *l, cf_op_kind kind)
{
    return kind == CF_OP_FORWARD || kind == CF_OP_FORWARD_KEEP ||
           (kind == CF_OP_RECOMPUTE && l->recompute_travels);
}

/* Whether the gradient of the next stage is received before this op. */
static bool takes_grad(const lowering *l, cf_op_kind kind)
{
    return kind == (l->recompute_waits ? CF_OP_RECOMPUTE : CF_OP_BACKWARD);
}

size_t cf_lower(const cf_op *compute, size_t n_compute,
                const cf_schedule_params *params, uint32_t stage, cf_op *ops)
{
    const lowering l = {.has_previous = stage > 0,
                        .has_next = stage + 1 < params->n_stages,
                        .recompute_travels = cf_recompute_travels(params),
                        .recompute_waits = cf_recompute_waits(params)};
    cf_op *out = ops;

    /* One op becomes one to three.  With the result inside the range that
     * compute ends, the writes stay behind the reads. */
    for (size_t i = 0; i < n_compute; i++) {
        const cf_op op = compute[i];

        if (carries_act(&l, op.kind) && l.has_previous)
            *out++ = (cf_op){CF_OP_RECV_ACT, op.chunk};
        if (takes_grad(&l, op.kind) && l.has_next)
            *out++ = (cf_op){CF_OP_RECV_GRAD, op.chunk};

        *out++ = op;

        if (carries_act(&l, op.kind) && l.has_next)
            *out++ = (cf_op){CF_OP_SEND_ACT, op.chunk};
        if (op.kind == CF_OP_BACKWARD && l.has_previous)
            *out++ = (cf_op){CF_OP_SEND_GRAD, op.chunk};
    }
    return (size_t)(out - ops);
}
