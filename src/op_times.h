/* op_times.h - where the time of a step goes, by kind of operation.
 *
 * A table of operations is replaced by one whose operations call the first and
 * count their time; a run that does not ask for it keeps the first, and pays
 * nothing.  What is no operation is counted between a mark and a count.
 *
 * (1) Every moment of a step is counted once: a count leaves out what was
 *     counted since its mark.  What nothing counted is CF_TIME_OTHER, so that the
 *     kinds add up to the step.
 * (2) The operations get the arguments of their caller, and change no bits.
 * (3) Times are of the calling thread, on a clock that only goes forward.  (A
 *     backend that only launches would have to wait for its operations here.)
 */
#ifndef CF_OP_TIMES_H
#define CF_OP_TIMES_H

#include "kernels/kernels.h"

typedef enum cf_time_kind {
    CF_TIME_GEMM_FORWARD,
    CF_TIME_GEMM_BACKWARD,
    CF_TIME_ATTENTION_FORWARD,
    CF_TIME_ATTENTION_BACKWARD,
    CF_TIME_HEAD,
    CF_TIME_NORMS,
    CF_TIME_ROPE_QKV,
    CF_TIME_SWIGLU,
    CF_TIME_EMBEDDING,
    CF_TIME_OPTIMIZER,  /* and packing of the weights */
    CF_TIME_REDUCTIONS, /* norm of the gradient, sums over replicas */
    CF_TIME_COPIES,     /* clearing, gathering, conversions, looking for NaN */
    CF_TIME_MESSAGES,
    CF_TIME_SAVING, /* waited for */
    CF_TIME_DATA,   /* batch, plan, tokens */
    CF_TIME_OTHER,
    CF_TIME_KINDS
} cf_time_kind;

typedef struct cf_op_times {
    cf_kernels inner;
    double counted_s;           /* of the step so far */
    double step[CF_TIME_KINDS]; /* seconds of the step */
    double run[CF_TIME_KINDS];  /* of all steps that ended */
    uint64_t n_steps;
} cf_op_times;

typedef struct cf_time_mark {
    double at_s;
    double counted_s;
} cf_time_mark;

/* As in "GEMM forward"; static. */
const char *cf_time_kind_str(cf_time_kind kind);

/* Replace a table by one that counts here.  times is kept as its context: it
 * stays where it is as long as the table is used. */
void cf_op_times_install(cf_op_times *times, cf_kernels *kernels);

/* Everything below does nothing where times is NULL. */

void cf_op_times_begin_step(cf_op_times *times);

/* The rest of a step of step_s seconds is CF_TIME_OTHER. */
void cf_op_times_end_step(cf_op_times *times, double step_s);

cf_time_mark cf_op_times_mark(const cf_op_times *times);

/* The time since the mark, less what was counted since, is of this kind. */
void cf_op_times_count(cf_op_times *times, cf_time_kind kind,
                       cf_time_mark mark);

/* Seconds that someone else measured, outside of all operations. */
void cf_op_times_add(cf_op_times *times, cf_time_kind kind, double seconds);

/* One line of the kinds that took any time: "GEMM forward 0.8120 s 19.2 %, ...".
 * Returns buf. */
const char *cf_op_times_format(const double seconds[CF_TIME_KINDS], char *buf,
                               size_t size);

/* One line of the table at the end of a run, for one or more stages' seconds;
 * CF_TIME_KINDS is the line of the sums.  all [n_stages, CF_TIME_KINDS].
 * Returns buf; "" for a kind that took no time anywhere. */
const char *cf_op_times_format_row(const double *all, uint32_t n_stages,
                                   cf_time_kind kind, char *buf, size_t size);

#endif
