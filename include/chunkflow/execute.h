/* execute.h - walk one stage's operations and call the engine for each.
 * The executor owns the order and nothing else. */
#ifndef CHUNKFLOW_EXECUTE_H
#define CHUNKFLOW_EXECUTE_H

#include <chunkflow/base.h>
#include <chunkflow/chunk.h>
#include <chunkflow/schedule.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum cf_keep {
    CF_KEEP_NO, /* drop the activations once the outputs exist */
    CF_KEEP_YES /* keep them for the backward */
} cf_keep;

/* What an engine must provide.  chunk is an index into plan->chunks; engine is
 * the caller's own context, passed through.  With one stage the four message
 * callbacks are never called and may be NULL. */
typedef struct cf_engine_ops {
    cf_status (*forward)(void *engine, const cf_chunk_plan *plan,
                         uint32_t chunk, cf_keep keep);
    cf_status (*backward)(void *engine, const cf_chunk_plan *plan,
                          uint32_t chunk);
    cf_status (*send_act)(void *engine, const cf_chunk_plan *plan,
                          uint32_t chunk);
    cf_status (*recv_act)(void *engine, const cf_chunk_plan *plan,
                          uint32_t chunk);
    cf_status (*send_grad)(void *engine, const cf_chunk_plan *plan,
                           uint32_t chunk);
    cf_status (*recv_grad)(void *engine, const cf_chunk_plan *plan,
                           uint32_t chunk);
} cf_engine_ops;

/* Run one stage's list.  Stops at the first failing callback, returns its
 * status and says where.  A recompute is a forward with CF_KEEP_YES: the engine
 * cannot tell the two apart, by design; it counts the loss in the backward and
 * writes KV state idempotently.  Errors: CF_INVALID (no such stage, a needed
 * callback is NULL), or what a callback returned. */
CF_MUST_USE cf_status cf_execute(const cf_chunk_plan *plan,
                                 const cf_schedule *schedule, uint32_t stage,
                                 const cf_engine_ops *ops, void *engine,
                                 cf_op_ref *where_p);

#ifdef __cplusplus
}
#endif

#endif
