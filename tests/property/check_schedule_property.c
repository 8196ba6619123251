/* check_schedule_property.c - what holds for every schedule: all small ones,
 * random large ones, and random damage to both.
 *
 * The judge is lib/schedule_oracle.c, which shares no code with the checker.
 * CF_TEST_SEED repeats a random run.
 */
#include <check.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../lib/plan_builder.h"
#include "../lib/schedule_oracle.h"

#define GROUPS_MAX       5
#define GROUP_CHUNKS_MAX 4

/* The next list of up to GROUPS_MAX groups with 1 to GROUP_CHUNKS_MAX chunks
 * each, starting from none; false behind the last. */
static bool next_groups(uint32_t *groups, size_t *n_groups)
{
    for (size_t g = 0; g < *n_groups; g++) {
        if (groups[g] < GROUP_CHUNKS_MAX) {
            groups[g]++;
            return true;
        }
        groups[g] = 1;
    }
    if (*n_groups == GROUPS_MAX)
        return false;
    groups[(*n_groups)++] = 1;
    return true;
}

/* How plan and parameters read in a failure. */
static const char *describe(const cf_chunk_plan *plan,
                            const cf_schedule *schedule)
{
    static char text[4096];

    snprintf(text, sizeof(text), "%s, %u groups, %zu chunks, K = %u\n",
             cf_schedule_kind_str(schedule->params.kind), plan->n_groups,
             plan->n_chunks, schedule->params.retained_chunks_max);
    cf_schedule_format(schedule, text + strlen(text),
                       sizeof(text) - strlen(text));
    return text;
}

static void assert_legal(const cf_chunk_plan *plan, const cf_schedule *schedule)
{
    const char *broken = oracle_judge(plan, schedule);
    cf_op_ref where;
    cf_status status = cf_schedule_check(plan, schedule, &where);

    ck_assert_msg(broken == NULL, "oracle: %s\n%s", broken,
                  describe(plan, schedule));
    ck_assert_msg(status == CF_OK, "checker: %s at %u:%zu\n%s", where.rule,
                  where.stage, where.op, describe(plan, schedule));
}

/* Whether the kind can run these groups. */
static bool fits(const cf_chunk_plan *plan, int kind)
{
    return kind < CF_SCHEDULE_1F1B || plan->n_groups == plan->n_chunks;
}

static void check_small(const cf_chunk_plan *plan, cf_schedule_params params,
                        size_t *n_schedules)
{
    cf_schedule_need need;
    cf_schedule schedule;

    if (!fits(plan, (int)params.kind)) {
        ck_assert_int_eq(cf_schedule_bound(plan, &params, &need), CF_INVALID);
        return;
    }
    schedule = schedule_open_built(plan, params);
    ck_assert_uint_eq(schedule.first_op[params.n_stages],
                      schedule.ops_capacity);
    assert_legal(plan, &schedule);
    schedule_close(&schedule);
    (*n_schedules)++;
}

START_TEST(every_small_schedule_is_legal)
{
    uint32_t groups[GROUPS_MAX] = {0};
    size_t n_groups = 0;
    size_t n_schedules = 0;

    do {
        cf_chunk_plan plan = plan_open(groups, n_groups, 8);

        for (int kind = 0; kind < CF_SCHEDULE_KIND_COUNT; kind++) {
            for (uint32_t k = 1; k <= GROUP_CHUNKS_MAX; k++) {
                for (uint32_t p = 1; p <= 5; p++)
                    check_small(
                        &plan,
                        (cf_schedule_params){p, k, (cf_schedule_kind)kind},
                        &n_schedules);
            }
        }
        plan_close(&plan);
    } while (next_groups(groups, &n_groups));
    ck_assert_uint_eq(n_schedules,
                      (3 * (1 + 4 + 16 + 64 + 256 + 1024) + 2 * 6) * 4 * 5);
}
END_TEST

/* Every stage recomputes as often as K demands of the last. */
START_TEST(every_stage_recomputes_as_often_as_k_demands)
{
    uint32_t groups[GROUPS_MAX] = {0};
    size_t n_groups = 0;

    while (next_groups(groups, &n_groups)) {
        cf_chunk_plan plan = plan_open(groups, n_groups, 8);

        for (uint32_t k = 1; k <= GROUP_CHUNKS_MAX; k++) {
            cf_schedule schedule =
                schedule_open_built(&plan, state_aware(3, k));
            size_t expected = 0;
            size_t n_recomputes[3] = {0};

            for (size_t g = 0; g < n_groups; g++)
                expected += groups[g] > k ? groups[g] - k : 0;
            for (uint32_t s = 0; s < 3; s++) {
                for (size_t i = schedule.first_op[s];
                     i < schedule.first_op[s + 1]; i++)
                    n_recomputes[s] += schedule.ops[i].kind == CF_OP_RECOMPUTE;
                ck_assert_uint_eq(n_recomputes[s], expected);
            }
            schedule_close(&schedule);
        }
        plan_close(&plan);
    }
}
END_TEST

/* Up to n_groups_max groups, two in three of them of one chunk. */
static cf_chunk_plan open_random(uint64_t *random, uint32_t n_groups_max,
                                 uint32_t group_chunks_max)
{
    uint32_t n_groups = test_random(random, n_groups_max + 1);
    uint32_t *groups = calloc(n_groups + (size_t)1, sizeof(*groups));
    cf_chunk_plan plan;

    for (uint32_t g = 0; g < n_groups; g++)
        groups[g] = test_random(random, 3) > 0
                        ? 1
                        : 1 + test_random(random, group_chunks_max);
    plan = plan_open(groups, n_groups, 8);
    free(groups);
    return plan;
}

/* Up to these, of any kind that can run the plan. */
static cf_schedule_params random_params(uint64_t *random,
                                        const cf_chunk_plan *plan,
                                        uint32_t n_stages_max, uint32_t k_max)
{
    cf_schedule_params params = state_aware(
        1 + test_random(random, n_stages_max), 1 + test_random(random, k_max));

    do {
        params.kind =
            (cf_schedule_kind)test_random(random, CF_SCHEDULE_KIND_COUNT);
    } while (!fits(plan, (int)params.kind));
    return params;
}

START_TEST(random_large_schedules_are_legal)
{
    uint64_t random = test_seed("random_large_schedules_are_legal");

    for (int run = 0; run < 60; run++) {
        cf_chunk_plan plan = open_random(&random, 100, 40);
        cf_schedule_params params = random_params(&random, &plan, 12, 20);
        cf_schedule schedule = schedule_open_built(&plan, params);

        assert_legal(&plan, &schedule);
        schedule_close(&schedule);
        plan_close(&plan);
    }
}
END_TEST

START_TEST(equal_inputs_give_equal_lists)
{
    uint64_t random = test_seed("equal_inputs_give_equal_lists");

    for (int run = 0; run < 50; run++) {
        cf_chunk_plan plan = open_random(&random, 40, 20);
        cf_schedule_params params = random_params(&random, &plan, 5, 6);
        cf_schedule a = schedule_open_built(&plan, params);
        cf_schedule b = schedule_open_built(&plan, params);

        memset(b.ops, 0x5a, b.ops_capacity * sizeof(cf_op));
        memset(b.scratch, 0x5a, b.scratch_bytes);
        ck_assert_int_eq(cf_schedule_build(&plan, &params, &b), CF_OK);
        ck_assert_mem_eq(a.ops, b.ops, a.ops_capacity * sizeof(cf_op));
        ck_assert_mem_eq(a.first_op, b.first_op,
                         (params.n_stages + 1) * sizeof(size_t));
        schedule_close(&a);
        schedule_close(&b);
        plan_close(&plan);
    }
}
END_TEST

/* ---- damage: the checker has to see what the oracle sees ---- */

struct score {
    size_t n_legal;
    size_t n_broken;
    size_t n_deadlocks;
};

static void compare(const cf_chunk_plan *plan, const cf_schedule *schedule,
                    struct score *score)
{
    const char *broken = oracle_judge(plan, schedule);
    cf_op_ref where;
    cf_status status = cf_schedule_check(plan, schedule, &where);

    ck_assert_msg(
        (broken == NULL) == (status == CF_OK), "oracle: %s, checker: %s\n%s",
        broken != NULL ? broken : "legal",
        where.rule != NULL ? where.rule : "legal", describe(plan, schedule));
    ck_assert_int_eq(where.rule == NULL, status == CF_OK);
    if (status == CF_OK) {
        score->n_legal++;
        return;
    }
    ck_assert(status == CF_MALFORMED || status == CF_DEADLOCK);
    ck_assert_uint_lt(where.stage, schedule->params.n_stages);
    ck_assert_uint_le(where.op, schedule->first_op[where.stage + 1] -
                                    schedule->first_op[where.stage]);
    score->n_broken++;
    score->n_deadlocks += status == CF_DEADLOCK;
}

static uint32_t stage_of(const cf_schedule *schedule, size_t i)
{
    uint32_t s = 0;

    while (i >= schedule->first_op[s + 1])
        s++;
    return s;
}

/* Take the op at index from out and put it in again at index to, where the list
 * of stage is; what lies between moves up or down. */
static void move_op(cf_schedule *schedule, size_t from, size_t to,
                    uint32_t stage)
{
    cf_op op = schedule->ops[from];
    uint32_t from_stage = stage_of(schedule, from);

    if (from < to)
        memmove(schedule->ops + from, schedule->ops + from + 1,
                (to - from) * sizeof(cf_op));
    else
        memmove(schedule->ops + to + 1, schedule->ops + to,
                (from - to) * sizeof(cf_op));
    schedule->ops[to] = op;
    for (uint32_t s = from_stage; s < stage; s++)
        schedule->first_op[s + 1]--;
    for (uint32_t s = stage; s < from_stage; s++)
        schedule->first_op[s + 1]++;
}

/* The schedule without the op at this index, or with it twice. */
static cf_schedule open_copy(const cf_chunk_plan *plan,
                             const cf_schedule *schedule, size_t i,
                             bool duplicate)
{
    const uint32_t p = schedule->params.n_stages;
    const size_t n_ops = schedule->first_op[p];
    const size_t n_copy = duplicate ? n_ops + 1 : n_ops - 1;
    cf_schedule copy = schedule_open(plan, schedule->params, n_copy);
    size_t n_head = duplicate ? i + 1 : i;
    size_t tail = duplicate ? i : i + 1;

    memcpy(copy.ops, schedule->ops, n_head * sizeof(cf_op));
    memcpy(copy.ops + n_head, schedule->ops + tail,
           (n_ops - tail) * sizeof(cf_op));
    for (uint32_t s = 0; s < p; s++) {
        copy.first_op[s + 1] = schedule->first_op[s + 1];
        if (copy.first_op[s + 1] > i)
            copy.first_op[s + 1] += duplicate ? 1 : (size_t)-1;
    }
    return copy;
}

static void drop_and_duplicate(const cf_chunk_plan *plan,
                               const cf_schedule *schedule, size_t i,
                               struct score *score)
{
    for (int duplicate = 0; duplicate <= 1; duplicate++) {
        cf_schedule copy = open_copy(plan, schedule, i, duplicate == 1);

        compare(plan, &copy, score);
        schedule_close(&copy);
    }
}

static void change_kind_and_chunk(const cf_chunk_plan *plan,
                                  cf_schedule *schedule, size_t i,
                                  struct score *score)
{
    const cf_op op = schedule->ops[i];
    const uint32_t far_chunks[] = {(uint32_t)plan->n_chunks, UINT32_MAX};

    for (int kind = 0; kind <= CF_OP_KIND_COUNT; kind++) {
        schedule->ops[i].kind = (cf_op_kind)kind;
        compare(plan, schedule, score);
    }
    schedule->ops[i] = op;
    for (uint32_t chunk = 0; chunk < plan->n_chunks; chunk++) {
        schedule->ops[i].chunk = chunk;
        compare(plan, schedule, score);
    }
    for (int far = 0; far < 2; far++) {
        schedule->ops[i].chunk = far_chunks[far];
        compare(plan, schedule, score);
    }
    schedule->ops[i] = op;
}

static void swap_ops(cf_op *a, cf_op *b)
{
    cf_op op = *a;

    *a = *b;
    *b = op;
}

static void swap_and_move(const cf_chunk_plan *plan, cf_schedule *schedule,
                          size_t i, struct score *score)
{
    uint32_t s = stage_of(schedule, i);

    for (size_t j = i + 1; j < schedule->first_op[s + 1]; j++) {
        swap_ops(&schedule->ops[i], &schedule->ops[j]);
        compare(plan, schedule, score);
        swap_ops(&schedule->ops[i], &schedule->ops[j]);

        move_op(schedule, i, j, s);
        compare(plan, schedule, score);
        move_op(schedule, j, i, s);

        move_op(schedule, j, i, s);
        compare(plan, schedule, score);
        move_op(schedule, i, j, s);
    }
}

static void damage(const cf_chunk_plan *plan, cf_schedule_params params,
                   struct score *score)
{
    cf_schedule schedule = schedule_open_built(plan, params);

    for (size_t i = 0; i < schedule.first_op[params.n_stages]; i++) {
        drop_and_duplicate(plan, &schedule, i, score);
        change_kind_and_chunk(plan, &schedule, i, score);
        swap_and_move(plan, &schedule, i, score);
    }
    assert_legal(plan, &schedule); /* all was put back */
    schedule_close(&schedule);
}

START_TEST(all_damage_to_small_schedules_is_seen)
{
    uint32_t groups[GROUPS_MAX] = {0};
    size_t n_groups = 0;
    struct score score = {0};

    while (next_groups(groups, &n_groups)) {
        cf_chunk_plan plan = plan_open(groups, n_groups, 8);

        for (int kind = 0; kind < CF_SCHEDULE_KIND_COUNT; kind++) {
            if (plan.n_chunks > 4 || !fits(&plan, kind))
                continue;
            for (uint32_t k = 1; k <= 2; k++) {
                for (uint32_t p = 1; p <= 3; p++)
                    damage(&plan,
                           (cf_schedule_params){p, k, (cf_schedule_kind)kind},
                           &score);
            }
        }
        plan_close(&plan);
    }
    printf("all_damage_to_small_schedules_is_seen: %zu legal, %zu broken, %zu "
           "of them deadlocks\n",
           score.n_legal, score.n_broken, score.n_deadlocks);
    ck_assert_uint_gt(score.n_legal, 0);
    ck_assert_uint_gt(score.n_broken, 0);
}
END_TEST

/* Several moves of one op each: most are legal alone, so that order, retention
 * and deadlock are tried rather than completeness. */
START_TEST(random_walks_away_from_legal_schedules_are_judged_alike)
{
    uint64_t random =
        test_seed("random_walks_away_from_legal_schedules_are_judged_alike");
    struct score score = {0};

    for (int run = 0; run < 800; run++) {
        cf_chunk_plan plan = open_random(&random, 5, 4);
        cf_schedule_params params = random_params(&random, &plan, 4, 4);
        cf_schedule schedule = schedule_open_built(&plan, params);
        size_t n_ops = schedule.first_op[params.n_stages];

        for (int step = 0; n_ops > 0 && step < 20; step++) {
            size_t i = test_random(&random, (uint32_t)n_ops);
            uint32_t s = stage_of(&schedule, i);
            size_t first = schedule.first_op[s];
            size_t n = schedule.first_op[s + 1] - first;
            size_t reach = 1 + test_random(&random, 3);
            size_t j = i - first + reach < n ? i + reach : first + n - 1;

            move_op(&schedule, i, j, s);
            compare(&plan, &schedule, &score);
            if (oracle_judge(&plan, &schedule) != NULL &&
                test_random(&random, 2) == 0)
                move_op(&schedule, j, i, s);
        }
        schedule_close(&schedule);
        plan_close(&plan);
    }
    printf("random_walks_away_from_legal_schedules_are_judged_alike: %zu "
           "legal, %zu broken, %zu of them deadlocks\n",
           score.n_legal, score.n_broken, score.n_deadlocks);
    ck_assert_uint_gt(score.n_legal, 0);
    ck_assert_uint_gt(score.n_deadlocks, 0);
}
END_TEST

/* An op handed to the neighbouring stage. */
START_TEST(an_op_on_the_wrong_stage_is_seen)
{
    static const uint32_t groups[] = {1, 3};
    cf_chunk_plan plan = plan_open(groups, 2, 8);
    struct score score = {0};

    for (uint32_t p = 2; p <= 4; p++) {
        cf_schedule schedule = schedule_open_built(&plan, state_aware(p, 2));

        for (uint32_t s = 0; s + 1 < p; s++) {
            size_t last = schedule.first_op[s + 1] - 1;

            move_op(&schedule, last, last, s + 1);
            compare(&plan, &schedule, &score);
            move_op(&schedule, last, last, s);
            assert_legal(&plan, &schedule);
        }
        schedule_close(&schedule);
    }
    ck_assert_uint_eq(score.n_legal, 0);
    plan_close(&plan);
}
END_TEST

/* ---- size ---- */

static double now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

/* One sequence in ten is long, with 2 to 9 chunks; anything worse than linear
 * would run into the time limit of the test. */
START_TEST(a_hundred_thousand_sequences_are_scheduled_and_checked)
{
    const size_t n_groups = 100000;
    uint32_t *groups = calloc(n_groups, sizeof(*groups));
    uint64_t random = 1;
    cf_chunk_plan plan;

    for (size_t g = 0; g < n_groups; g++)
        groups[g] =
            test_random(&random, 10) > 0 ? 1 : 2 + test_random(&random, 8);
    plan = plan_open(groups, n_groups, 8);
    for (uint32_t p = 1; p <= 8; p++) {
        cf_schedule_params params = state_aware(p, 2);
        cf_schedule schedule = schedule_open_built(&plan, params);
        double start_ms = now_ms();
        double built_ms;
        cf_op_ref where;

        ck_assert_int_eq(cf_schedule_build(&plan, &params, &schedule), CF_OK);
        built_ms = now_ms();
        ck_assert_int_eq(cf_schedule_check(&plan, &schedule, &where), CF_OK);
        printf("%zu sequences, %zu chunks, p = %u: %zu ops, build %.1f ms, "
               "check %.1f ms\n",
               n_groups, plan.n_chunks, p, schedule.first_op[p],
               built_ms - start_ms, now_ms() - built_ms);
        schedule_close(&schedule);
    }
    plan_close(&plan);
    free(groups);
}
END_TEST

/* Sizes at which only linear time is good enough: one group of all chunks, and
 * many stages. */
START_TEST(one_huge_group_and_many_stages_take_linear_time)
{
    static const uint32_t huge[] = {300000};
    static const uint32_t small[] = {1, 7, 2, 1, 1, 1};
    static const struct {
        const uint32_t *groups;
        size_t n_groups;
        cf_schedule_params params;
    } cases[] = {
        {huge, 1, {2, 1, CF_SCHEDULE_STATE_AWARE}},
        {huge, 1, {2, 150000, CF_SCHEDULE_STATE_AWARE}},
        {small, 6, {20000, 2, CF_SCHEDULE_STATE_AWARE}},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        cf_chunk_plan plan = plan_open(cases[i].groups, cases[i].n_groups, 8);
        cf_schedule schedule = schedule_open_built(&plan, cases[i].params);
        cf_op_ref where;

        ck_assert_int_eq(cf_schedule_check(&plan, &schedule, &where), CF_OK);
        schedule_close(&schedule);
        plan_close(&plan);
    }
}
END_TEST

static Suite *schedule_property_suite(void)
{
    Suite *suite = suite_create("schedule properties");
    TCase *legal = tcase_create("legal");
    TCase *damage = tcase_create("damage");
    TCase *size = tcase_create("size");

    tcase_set_timeout(legal, 120);
    tcase_add_test(legal, every_small_schedule_is_legal);
    tcase_add_test(legal, every_stage_recomputes_as_often_as_k_demands);
    tcase_add_test(legal, random_large_schedules_are_legal);
    tcase_add_test(legal, equal_inputs_give_equal_lists);
    suite_add_tcase(suite, legal);

    tcase_set_timeout(damage, 240);
    tcase_add_test(damage, all_damage_to_small_schedules_is_seen);
    tcase_add_test(damage,
                   random_walks_away_from_legal_schedules_are_judged_alike);
    tcase_add_test(damage, an_op_on_the_wrong_stage_is_seen);
    suite_add_tcase(suite, damage);

    tcase_set_timeout(size, 60);
    tcase_add_test(size,
                   a_hundred_thousand_sequences_are_scheduled_and_checked);
    tcase_add_test(size, one_huge_group_and_many_stages_take_linear_time);
    suite_add_tcase(suite, size);
    return suite;
}

int main(void)
{
    SRunner *runner = srunner_create(schedule_property_suite());
    int n_failed;

    srunner_run_all(runner, CK_NORMAL);
    n_failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return n_failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
