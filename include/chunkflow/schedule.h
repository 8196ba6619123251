/* schedule.h - chunks in, one list of operations per pipeline stage out
 * (Yuan et al. 2025, Algorithm 2 and its extension of 1F1B).
 *
 * For one group of N chunks with K retained, one stage runs all forwards in
 * ascending order, dropping the activations of the first N - K chunks, then the
 * backwards in descending order, each dropped chunk recomputed right before its
 * backward.  Descending, because dK and dV of a chunk are complete only when
 * every later chunk of its group has added its share.
 *
 * With several stages, backwards run in the same order everywhere: groups in
 * plan order (CF_SCHEDULE_LONG_FIRST has another), chunks of a group descending.  Forwards run ahead of them as in
 * 1F1B.  A single stage has no bubble to fill and runs one group at a time.
 *
 * A recompute is local to its stage: the stage retains the input of a dropped
 * chunk, so a recompute sends and receives nothing.
 *
 * That is the state-aware schedule.  The other kinds are there to be compared
 * with; docs/scheduling.md tells them apart.  Every kind is generated, checked,
 * simulated and executed by the same calls.
 */
#ifndef CHUNKFLOW_SCHEDULE_H
#define CHUNKFLOW_SCHEDULE_H

#include <chunkflow/base.h>
#include <chunkflow/chunk.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum cf_op_kind {
    CF_OP_FORWARD,      /* F: run, then drop the activations  */
    CF_OP_FORWARD_KEEP, /* K: run, and keep the activations   */
    CF_OP_RECOMPUTE,    /* R: run again, keep the activations */
    CF_OP_BACKWARD,     /* B: consume the activations         */
    CF_OP_SEND_ACT,     /* activations to stage + 1           */
    CF_OP_RECV_ACT,     /* activations from stage - 1         */
    CF_OP_SEND_GRAD,    /* gradients to stage - 1             */
    CF_OP_RECV_GRAD,    /* gradients from stage + 1           */
    CF_OP_KIND_COUNT
} cf_op_kind;

typedef struct cf_op {
    cf_op_kind kind;
    uint32_t chunk; /* index into the plan's chunks */
} cf_op;

typedef enum cf_schedule_kind {
    CF_SCHEDULE_STATE_AWARE, /* a recompute is local to its stage */
    CF_SCHEDULE_PAPER,       /* a recompute travels through the pipeline as a
                                forward does: its input is sent once more */
    /* State-aware, but groups of several chunks run before those of one.  Often
     * faster, because the pipeline empties on short chunks; gradients are summed
     * in another order than under the other kinds. */
    CF_SCHEDULE_LONG_FIRST,
    /* One whole sequence a micro-batch, the usual baseline: every group is one
     * chunk (cf_chunk_plan_build_whole), and K does not matter. */
    CF_SCHEDULE_1F1B,
    CF_SCHEDULE_1F1B_RECOMPUTE, /* ... with every chunk dropped, and recomputed
                                   when its gradient has arrived */
    CF_SCHEDULE_KIND_COUNT
} cf_schedule_kind;

typedef struct cf_schedule_params {
    uint32_t n_stages;            /* >= 1 */
    uint32_t retained_chunks_max; /* K >= 1: of the last stage; stage s of p
                                     holds up to K + (p - 1 - s).  Under 1F1B
                                     that is 1 + (p - 1 - s), or 1 when every
                                     chunk is recomputed */
    cf_schedule_kind kind;
} cf_schedule_params;

/* ops[first_op[s] .. first_op[s + 1]) is what stage s does, in order.  Arrays,
 * scratch and their capacities are the caller's; build sets the rest. */
typedef struct cf_schedule {
    cf_op *ops;
    size_t *first_op; /* n_stages + 1 entries */
    void *scratch;    /* aligned to 8 bytes; free again when the call returns */
    size_t ops_capacity;
    size_t scratch_bytes;
    cf_schedule_params params;
} cf_schedule;

typedef struct cf_schedule_need {
    size_t n_ops;
    size_t scratch_bytes; /* suffices for build and for check */
} cf_schedule_need;

/* Where a check or an execution stopped. */
typedef struct cf_op_ref {
    uint32_t stage;
    size_t op;        /* index into the stage's own list */
    const char *rule; /* static text: what is broken there; NULL when nothing */
} cf_op_ref;

/* What to bring for a build: exact for ops.
 * Errors: CF_INVALID (a parameter is 0, there is no such kind, groups and
 * positions in the plan are not those chunk.h describes, or a group has several
 * chunks under 1F1B), CF_OVERFLOW. */
CF_MUST_USE cf_status cf_schedule_bound(const cf_chunk_plan *plan,
                                        const cf_schedule_params *params,
                                        cf_schedule_need *need_p);

/* Build the op list of every stage for one step.  plan and params are read
 * only.  Equal inputs give equal lists on every rank, so ranks need not talk.
 * Errors: CF_INVALID, CF_OVERFLOW, CF_NO_SPACE; nothing was written then. */
CF_MUST_USE cf_status cf_schedule_build(const cf_chunk_plan *plan,
                                        const cf_schedule_params *params,
                                        cf_schedule *schedule);

/* CF_OK iff the list is complete, ordered, within K, has the KV state and the
 * gradients of the KV state where they are needed, and is free of deadlock with
 * one buffered message a link and direction.  Else CF_MALFORMED or CF_DEADLOCK,
 * and *where_p, written in any case, names the op and the rule; op may be the
 * length of the list, when something is missing at its end.
 * Errors besides, without a rule: CF_INVALID and CF_OVERFLOW as a bound with
 * schedule->params has them, CF_NO_SPACE when scratch is too small. */
CF_MUST_USE cf_status cf_schedule_check(const cf_chunk_plan *plan,
                                        const cf_schedule *schedule,
                                        cf_op_ref *where_p);

/* The kind's name on a command line, such as "state-aware".  Static text, never
 * NULL, also for a value outside the list. */
const char *cf_schedule_kind_str(cf_schedule_kind kind);

/* One op as text: stage, letter, chunk, as in "2R7"; messages are "2>7" (send
 * activations), "2<7" (receive them), "2{7" (send gradients), "2}7" (receive
 * them).  snprintf rules: returns the length needed, writes at most size
 * bytes. */
size_t cf_op_format(const cf_op *op, uint32_t stage, char *buf, size_t size);

/* The whole schedule as a text grid, one line a stage, compute ops only, as in
 * "stage 0: F0 F1 K2 K3 B3 B2 R1 B1 R0 B0".  snprintf rules. */
size_t cf_schedule_format(const cf_schedule *schedule, char *buf, size_t size);

#ifdef __cplusplus
}
#endif

#endif
