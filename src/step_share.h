/* step_share.h - what the ranks tell each other at the two ends of a step.
 *
 * Everybody computes plans and placements alone; a hash of them, compared before
 * the first op, shows that the results are equal.  After the last op every rank
 * tells what it counted, so that all of them report the same.
 */
#ifndef CF_STEP_SHARE_H
#define CF_STEP_SHARE_H

#include "src/comm.h"
#include "src/grid.h"
#include "src/metrics.h"
#include "src/step_plan.h"

/* What one rank did in a step. */
typedef struct cf_step_share {
    double loss;         /* of a last stage; else 0 */
    double busy_s;       /* in ops */
    double span_s;       /* from the first op to the end of the last */
    double waited_s;     /* for messages, of the span */
    uint64_t chunks;     /* of a first stage, as the next; else 0 */
    uint64_t recomputed; /* chunks */
    uint64_t sent_bytes;
    uint64_t peak_bytes;
} cf_step_share;

typedef struct cf_step_shares {
    cf_comm *comm;       /* borrowed */
    const cf_grid *grid; /* borrowed */
    void *all;           /* arena: what was gathered, of all ranks */
} cf_step_shares;

void cf_step_shares_carve(cf_step_shares *shares, cf_comm *comm,
                          const cf_grid *grid, cf_arena *arena);

/* Whether the stages of each replica have one plan and schedule, and all ranks
 * one placement.  Errors, logged: CF_INVALID on all ranks, CF_COMM. */
CF_MUST_USE cf_status cf_step_shares_plan(const cf_step_shares *shares,
                                          const cf_step_plan *plan,
                                          uint64_t step);

/* Add up what all ranks did: loss in the order of replicas.  Errors, logged:
 * CF_COMM. */
CF_MUST_USE cf_status cf_step_shares_results(const cf_step_shares *shares,
                                             const cf_step_share *mine,
                                             cf_step_report *report);

#endif
