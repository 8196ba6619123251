/* plan_builder.c - chunk plans and schedules on the heap, for tests. */
#include "plan_builder.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void *allocate(size_t n, size_t size)
{
    void *memory = calloc(n > 0 ? n : 1, size);

    ck_assert_ptr_nonnull(memory);
    return memory;
}

cf_chunk_plan plan_open(const uint32_t *group_chunks, size_t n_groups,
                        uint32_t chunk_size_tok)
{
    cf_chunk_plan plan = {.n_groups = (uint32_t)n_groups,
                          .chunk_size_tok = chunk_size_tok};
    uint32_t chunk = 0;

    for (size_t g = 0; g < n_groups; g++)
        plan.n_chunks += group_chunks[g];
    plan.n_pieces = plan.n_chunks;
    plan.capacity.n_chunks = plan.n_chunks;
    plan.capacity.n_pieces = plan.n_pieces;
    plan.chunks = allocate(plan.n_chunks, sizeof(*plan.chunks));
    plan.pieces = allocate(plan.n_pieces, sizeof(*plan.pieces));

    for (uint32_t g = 0; g < n_groups; g++) {
        for (uint32_t i = 0; i < group_chunks[g]; i++, chunk++) {
            plan.chunks[chunk] = (cf_chunk){
                .kind = group_chunks[g] > 1 ? CF_CHUNK_DEPENDENT
                                            : CF_CHUNK_STANDALONE,
                .first_piece = chunk,
                .n_pieces = 1,
                .n_tok = chunk_size_tok,
                .prefix_tok = i * chunk_size_tok,
                .group = g,
                .in_group = i,
            };
            plan.pieces[chunk] =
                (cf_piece){g, i * chunk_size_tok, chunk_size_tok};
        }
    }
    return plan;
}

void plan_close(cf_chunk_plan *plan)
{
    free(plan->chunks);
    free(plan->pieces);
}

cf_schedule_params state_aware(uint32_t n_stages, uint32_t k)
{
    return (cf_schedule_params){n_stages, k, CF_SCHEDULE_STATE_AWARE};
}

cf_schedule schedule_open(const cf_chunk_plan *plan, cf_schedule_params params,
                          size_t n_ops)
{
    cf_schedule schedule = {.params = params, .ops_capacity = n_ops};
    cf_schedule_need need;

    ck_assert_int_eq(cf_schedule_bound(plan, &params, &need), CF_OK);
    schedule.ops = allocate(n_ops, sizeof(*schedule.ops));
    schedule.first_op =
        allocate(params.n_stages + (size_t)1, sizeof(*schedule.first_op));
    schedule.scratch = allocate(need.scratch_bytes, 1);
    schedule.scratch_bytes = need.scratch_bytes;
    return schedule;
}

cf_schedule schedule_open_built(const cf_chunk_plan *plan,
                                cf_schedule_params params)
{
    cf_schedule_need need;
    cf_schedule schedule;

    ck_assert_int_eq(cf_schedule_bound(plan, &params, &need), CF_OK);
    schedule = schedule_open(plan, params, need.n_ops);
    ck_assert_int_eq(cf_schedule_build(plan, &params, &schedule), CF_OK);
    return schedule;
}

void schedule_close(cf_schedule *schedule)
{
    free(schedule->ops);
    free(schedule->first_op);
    free(schedule->scratch);
}

uint64_t test_seed(const char *test)
{
    const char *text = getenv("CF_TEST_SEED");
    uint64_t seed =
        text != NULL ? strtoull(text, NULL, 0) : (uint64_t)time(NULL);

    printf("%s: CF_TEST_SEED=%llu\n", test, (unsigned long long)seed);
    fflush(stdout);
    return seed;
}

/* splitmix64 */
uint32_t test_random(uint64_t *state, uint32_t limit)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ (z >> 31)) % limit);
}
