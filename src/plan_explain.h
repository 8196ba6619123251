/* plan_explain.h - the memory of a setting as a formula with its numbers. */
#ifndef CF_PLAN_EXPLAIN_H
#define CF_PLAN_EXPLAIN_H

#include <stdio.h>

#include "src/planning.h"

/* One line for each kind of memory of the stage that needs most: its bytes, the
 * product that they are, and what the factors are.  Buffers begin at multiples of
 * 64 bytes, which is a line of its own, so that the sum is the point's bytes.  The
 * point is the one that was sized last.  Errors, logged: as of cf_planning_size. */
CF_MUST_USE cf_status cf_plan_explain(cf_planning *planning,
                                      const cf_planner_point *point,
                                      FILE *file);

#endif
