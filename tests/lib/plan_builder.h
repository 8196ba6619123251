/* plan_builder.h - chunk plans and schedules on the heap, for tests.
 *
 * Plans are made by hand from the number of chunks of each group, so that tests
 * of the schedule do not lean on the chunker.  All arrays have exactly the
 * capacity that is needed: a write past the end is seen by the sanitizers.
 */
#ifndef PLAN_BUILDER_H
#define PLAN_BUILDER_H

#include <chunkflow/schedule.h>

/* A plan of groups with these numbers of chunks, every chunk full. */
cf_chunk_plan plan_open(const uint32_t *group_chunks, size_t n_groups,
                        uint32_t chunk_size_tok);
void plan_close(cf_chunk_plan *plan);

/* Parameters of the kind that nobody has to name. */
cf_schedule_params state_aware(uint32_t n_stages, uint32_t k);

/* A schedule with room for n_ops ops, no op in it yet. */
cf_schedule schedule_open(const cf_chunk_plan *plan, cf_schedule_params params,
                          size_t n_ops);
/* A schedule as cf_schedule_build makes it. */
cf_schedule schedule_open_built(const cf_chunk_plan *plan,
                                cf_schedule_params params);
void schedule_close(cf_schedule *schedule);

/* The seed of a random test: CF_TEST_SEED or the clock; printed. */
uint64_t test_seed(const char *test);

/* A number in [0, limit), from and into *state. */
uint32_t test_random(uint64_t *state, uint32_t limit);

#endif
