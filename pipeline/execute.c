/* execute.c - walk one stage's list and call the engine for each op.
 *
 * (1) The order is the list's; nothing is reordered, merged or skipped.
 * (2) The list is looked through before the first call, so an engine that lacks
 *     a callback is not left half-way.
 * (3) A recompute is a keeping forward: an engine cannot tell the two apart.
 */
#include <stdbool.h>

#include <chunkflow/execute.h>

static bool has_callback(const cf_engine_ops *ops, cf_op_kind kind)
{
    switch (kind) {
    case CF_OP_FORWARD:
    case CF_OP_FORWARD_KEEP:
    case CF_OP_RECOMPUTE:
        return ops->forward != NULL;
    case CF_OP_BACKWARD:
        return ops->backward != NULL;
    case CF_OP_SEND_ACT:
        return ops->send_act != NULL;
    case CF_OP_RECV_ACT:
        return ops->recv_act != NULL;
    case CF_OP_SEND_GRAD:
        return ops->send_grad != NULL;
    case CF_OP_RECV_GRAD:
        return ops->recv_grad != NULL;
    case CF_OP_KIND_COUNT:
        break;
    }
    return false;
}

static cf_status call(const cf_engine_ops *ops, void *engine,
                      const cf_chunk_plan *plan, cf_op op)
{
    switch (op.kind) {
    case CF_OP_FORWARD:
        return ops->forward(engine, plan, op.chunk, CF_KEEP_NO);
    case CF_OP_FORWARD_KEEP:
    case CF_OP_RECOMPUTE:
        return ops->forward(engine, plan, op.chunk, CF_KEEP_YES);
    case CF_OP_BACKWARD:
        return ops->backward(engine, plan, op.chunk);
    case CF_OP_SEND_ACT:
        return ops->send_act(engine, plan, op.chunk);
    case CF_OP_RECV_ACT:
        return ops->recv_act(engine, plan, op.chunk);
    case CF_OP_SEND_GRAD:
        return ops->send_grad(engine, plan, op.chunk);
    case CF_OP_RECV_GRAD:
        return ops->recv_grad(engine, plan, op.chunk);
    case CF_OP_KIND_COUNT:
        break;
    }
    return CF_INVALID;
}

cf_status cf_execute(const cf_chunk_plan *plan, const cf_schedule *schedule,
                     uint32_t stage, const cf_engine_ops *ops, void *engine,
                     cf_op_ref *where_p)
{
    const cf_op *list;
    size_t n_ops;

    *where_p = (cf_op_ref){.stage = stage};
    if (stage >= schedule->params.n_stages) {
        where_p->rule = "the schedule has no such stage";
        return CF_INVALID;
    }
    list = schedule->ops + schedule->first_op[stage];
    n_ops = schedule->first_op[stage + 1] - schedule->first_op[stage];

    for (size_t i = 0; i < n_ops; i++) {
        where_p->op = i;
        if (list[i].chunk >= plan->n_chunks) {
            where_p->rule = "the plan has no such chunk";
            return CF_INVALID;
        }
        if (!has_callback(ops, list[i].kind)) {
            where_p->rule = "the engine has no callback for this operation";
            return CF_INVALID;
        }
    }

    for (size_t i = 0; i < n_ops; i++) {
        cf_status status = call(ops, engine, plan, list[i]);

        if (status != CF_OK) {
            where_p->op = i;
            where_p->rule = "the engine's callback failed";
            return status;
        }
    }
    *where_p = (cf_op_ref){.stage = stage};
    return CF_OK;
}
