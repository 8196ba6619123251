/* schedule_oracle.h - a second opinion on schedules, for tests.
 *
 * Written from the rules and not from cf_schedule_check: it first notes where
 * in its stage each operation stands, and then states the rules as comparisons
 * of places; freedom of deadlock is that a graph has no circle.
 */
#ifndef SCHEDULE_ORACLE_H
#define SCHEDULE_ORACLE_H

#include <chunkflow/schedule.h>

/* NULL if the schedule is legal, else static text: the first broken rule.
 * first_op must be sound. */
const char *oracle_judge(const cf_chunk_plan *plan,
                         const cf_schedule *schedule);

#endif
