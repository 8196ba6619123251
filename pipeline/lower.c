/* lower.c - a stage's compute-only order becomes one with sends and receives.
 *
 * Messages are derived, never scheduled: a receive stands right before the op
 * that consumes it, a send right behind the op that produces it.  Both ends of
 * a link run the same two orders (forwards, backwards), so messages pair up by
 * position, and both know every shape from the plan: no tags, no sizes.
 *
 * (1) A forward passes activations on whether it keeps its own or drops them.
 * (2) A recompute sends and receives nothing: the stage retained its input.  It
 *     stands before the receive of its backward, so that it can run while the
 *     gradient is still on its way.
 */
#include "pipeline.h"

static bool is_forward(cf_op_kind kind)
{
    return kind == CF_OP_FORWARD || kind == CF_OP_FORWARD_KEEP;
}

size_t cf_lower(const cf_op *compute, size_t n_compute, uint32_t stage,
                uint32_t n_stages, cf_op *ops)
{
    const bool has_previous = stage > 0;
    const bool has_next = stage + 1 < n_stages;
    cf_op *out = ops;

    /* One op becomes one to three.  With the result inside the range that
     * compute ends, the writes stay behind the reads. */
    for (size_t i = 0; i < n_compute; i++) {
        const cf_op op = compute[i];

        if (is_forward(op.kind) && has_previous)
            *out++ = (cf_op){CF_OP_RECV_ACT, op.chunk};
        if (op.kind == CF_OP_BACKWARD && has_next)
            *out++ = (cf_op){CF_OP_RECV_GRAD, op.chunk};

        *out++ = op;

        if (is_forward(op.kind) && has_next)
            *out++ = (cf_op){CF_OP_SEND_ACT, op.chunk};
        if (op.kind == CF_OP_BACKWARD && has_previous)
            *out++ = (cf_op){CF_OP_SEND_GRAD, op.chunk};
    }
    return (size_t)(out - ops);
}
