/* trace.h - every operation of every rank of a run, as a trace for
 * ui.perfetto.dev or chrome://tracing: --trace of train.
 *
 * Replicas are processes of the trace, stages its threads.  Rank 0 collects the
 * times after each step and writes them, so that the file of a run that was
 * killed holds all steps but the last.  Within a step the clocks of the ranks
 * start together, when they have compared their plans.
 */
#ifndef CF_TRACE_H
#define CF_TRACE_H

#include <stdio.h>

#include "src/comm.h"
#include "src/grid.h"
#include "src/step_plan.h"

/* One op as it is sent to rank 0. */
typedef struct cf_trace_op {
    double start_s, end_s; /* since the step began */
    cf_op op;
    uint32_t n_tok;
    uint32_t prefix_tok;
    uint32_t group;
    uint32_t unused; /* no byte of a message is undefined */
} cf_trace_op;

typedef struct cf_trace {
    cf_comm *comm; /* borrowed; NULL: there is no trace */
    cf_grid grid;
    char *path;     /* owned, as all of these */
    FILE *file;     /* rank 0 */
    double begin_s; /* by cf_clock_s: of the run */
    double step_s;  /* of the step, since then */
    size_t n_ops;   /* of this step so far */
    size_t capacity;
    cf_trace_op *ops;      /* [capacity] of this rank */
    cf_trace_op *received; /* [capacity] of another; rank 0 */
    uint64_t *counts;      /* [n_ranks] */
} cf_trace;

/* path NULL: no trace, and the calls below do nothing.  A step has at most
 * capacity ops.  Errors, logged: CF_NO_MEMORY; rank 0: CF_IO. */
CF_MUST_USE cf_status cf_trace_open(const char *path, cf_comm *comm,
                                    const cf_grid *grid, size_t capacity,
                                    cf_trace *trace);
/* Ends the file.  Errors, logged: CF_IO. */
CF_MUST_USE cf_status cf_trace_close(cf_trace *trace);

/* The next op of this rank's list ran. */
void cf_trace_op_done(cf_trace *trace, double start_s, double end_s);

/* A step, which began at this time of cf_clock_s, is over: all ranks'
 * ops into the file.  Errors, logged: CF_COMM, CF_IO. */
CF_MUST_USE cf_status cf_trace_step(cf_trace *trace, uint64_t step,
                                    const cf_step_plan *plan, double begin_s);

#endif
