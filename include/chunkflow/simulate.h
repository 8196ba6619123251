/* simulate.h - a schedule run on paper: how long, how idle, how much memory.
 *
 * Every stage works its list off in order, as cf_execute does.  A compute op
 * takes the time that the cost model says.  A send takes none; its message
 * arrives after the time of the message.  A receive waits for its message, and
 * with it the stage.  Messages of one link and direction arrive in the order in
 * which they were sent, and any number may be on their way.
 *
 * Times are in the unit of the cost model, which may be anything; memory is
 * counted in tokens and chunks.  Nothing is allocated; equal inputs give equal
 * bits.
 */
#ifndef CHUNKFLOW_SIMULATE_H
#define CHUNKFLOW_SIMULATE_H

#include <chunkflow/base.h>
#include <chunkflow/chunk.h>
#include <chunkflow/schedule.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A time for each op: finite, not negative, and a function of the arguments
 * alone.  op may be asked about ops that the schedule does not have.  context is
 * the caller's, passed through. */
typedef struct cf_cost_model {
    /* F, K, R and B on this stage. */
    double (*compute)(const void *context, const cf_chunk_plan *plan,
                      uint32_t stage, cf_op op);
    /* From a send on this stage to where it can be received; NULL: free. */
    double (*message)(const void *context, const cf_chunk_plan *plan,
                      uint32_t stage, cf_op op);
    const void *context;
} cf_cost_model;

/* A cost for every stage alike: per op, per token and per pair of a token and
 * one that it attends to, counting those of the prefix in full and half of the
 * square of each piece.  A chunk of fewer than least_tok tokens costs per_tok as
 * if it had these. */
typedef struct cf_cost_terms {
    double per_op;
    double per_tok;
    double per_pair;
} cf_cost_terms;

typedef struct cf_cost_table {
    cf_cost_terms forward; /* and recompute */
    cf_cost_terms backward;
    uint32_t least_tok;
} cf_cost_table;

/* The cost of the toy of Yuan et al. 2025: 1 a token forward, 2 backward. */
cf_cost_table cf_cost_linear(void);

/* A cost_model.compute whose context is a cf_cost_table. */
double cf_cost_compute(const void *table, const cf_chunk_plan *plan,
                       uint32_t stage, cf_op op);

/* When an op began and ended.  A receive begins when the stage is ready for it
 * and ends when the message is there; a send takes no time. */
typedef struct cf_op_time {
    double start;
    double end;
} cf_op_time;

/* The most that a stage held at one time. */
typedef struct cf_stage_peak {
    uint64_t kept_tok;    /* tokens whose activations are kept */
    uint64_t kept_chunks; /* and their chunks */
    uint64_t kv_tok;    /* KV state of groups of several chunks, each chunk from
                             its forward to its backward */
    uint64_t input_tok; /* dropped chunks whose input waits for a recompute on
                             the spot; none on the first stage, which embeds */
    uint64_t messages;  /* on their way to the stage over one link, the one
                             being received included */
} cf_stage_peak;

/* peaks, times and scratch are the caller's; simulate sets the rest. */
typedef struct cf_simulation {
    cf_stage_peak *peaks; /* [n_stages] */
    cf_op_time *times;    /* [n_ops], one for each of schedule->ops; or NULL */
    void *scratch;        /* aligned to 8 bytes; free again after the call */
    size_t scratch_bytes;

    double makespan;     /* until the last stage is done */
    double bubble_ratio; /* idle stage-time / all stage-time; a recompute is not
                            idle */
    double useful;       /* one forward and one backward of every chunk on every
                            stage / all stage-time; a recompute is not useful */
} cf_simulation;

/* Scratch for a simulation of this schedule: 16 bytes a message.
 * Errors: CF_OVERFLOW. */
CF_MUST_USE cf_status cf_simulate_bound(const cf_schedule *schedule,
                                        size_t *scratch_bytes_p);

/* Run a schedule that cf_schedule_check accepts.  Linear in the ops.  A step
 * without chunks takes no time, and both its ratios are 0.  *where_p, written in
 * any case, names the op and the rule when something is wrong.
 * Errors: CF_NO_SPACE (scratch; nothing else was written), CF_INVALID (the cost
 * of an op is not finite, or negative), CF_MALFORMED and CF_DEADLOCK (the check
 * was left out, and would have said so); of these three the results are
 * undefined. */
CF_MUST_USE cf_status cf_simulate(const cf_chunk_plan *plan,
                                  const cf_schedule *schedule,
                                  const cf_cost_model *cost,
                                  cf_simulation *simulation,
                                  cf_op_ref *where_p);

#ifdef __cplusplus
}
#endif

#endif
