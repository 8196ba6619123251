/* The search against plain enumeration, with made-up bytes and times. */
#include <check.h>

#include <stdlib.h>

#include "src/planner.h"

enum {
    POINTS_MAX = 24 * 33 * 3 * 2
};

/* Everything free, on one rank. */
static cf_planner_range free_range(uint32_t longest_tok)
{
    return (cf_planner_range){.longest_tok = longest_tok,
                              .recompute_is_free = true,
                              .attention_is_free = true,
                              .n_ranks = 1,
                              .n_layers = 1};
}

typedef struct made_up {
    unsigned seed;
    size_t n_over_timed; /* points over the budget that were timed */
    uint64_t budget;
} made_up;

/* Few values, so that there are ties. */
static unsigned draw(const made_up *m, const cf_planner_point *p, unsigned n)
{
    unsigned x = m->seed * 2654435761u + p->chunk_size_tok * 40503u +
                 p->retained_chunks_max * 9973u + (unsigned)p->recompute * 31u +
                 p->keep_attention * 17u + n;

    x ^= x >> 15;
    x *= 2246822519u;
    return (x ^ x >> 13) % n;
}

static cf_status size(void *context, cf_planner_point *point)
{
    point->bytes = draw(context, point, 11);
    return CF_OK;
}

static cf_status time_of(void *context, cf_planner_point *point)
{
    made_up *m = context;

    m->n_over_timed += point->bytes > m->budget;
    point->time = draw(m, point, 7);
    return CF_OK;
}

static cf_status refuse(void *context, cf_planner_point *point)
{
    (void)context;
    (void)point;
    return CF_MALFORMED;
}

/* No other fitting point is faster, nor as fast with fewer bytes, nor the same
 * and before it. */
static size_t enumerate(const cf_planner_point *points, size_t n,
                        const made_up *m)
{
    size_t best = n;

    for (size_t i = n; i-- > 0;) {
        const unsigned bytes = draw(m, &points[i], 11);
        const unsigned time = draw(m, &points[i], 7);

        if (bytes > m->budget)
            continue;
        if (best == n || time < draw(m, &points[best], 7) ||
            (time == draw(m, &points[best], 7) &&
             bytes <= draw(m, &points[best], 11)))
            best = i;
    }
    return best;
}

START_TEST(the_choice_is_that_of_plain_enumeration)
{
    static cf_planner_point points[POINTS_MAX];

    for (unsigned seed = 0; seed < 2000; seed++) {
        made_up m = {.seed = seed, .budget = seed % 12};
        const cf_planner_oracle oracle = {size, time_of, &m};
        const cf_planner_range range = free_range(1 + seed * 7);
        const size_t n = cf_planner_list(&range, points);
        size_t best;

        if (seed % 12 == 11)
            m.budget = UINT64_MAX;
        ck_assert_int_eq(cf_planner_search(points, n, m.budget, &oracle, &best),
                         CF_OK);
        ck_assert_msg(best == enumerate(points, n, &m), "seed %u", seed);
        ck_assert_uint_eq(m.n_over_timed, 0);
    }
}
END_TEST

START_TEST(a_failure_of_the_oracle_ends_the_search)
{
    cf_planner_point points[POINTS_MAX];
    made_up m = {.budget = UINT64_MAX};
    const cf_planner_oracle no_size = {refuse, time_of, &m};
    const cf_planner_oracle no_time = {size, refuse, &m};
    const cf_planner_range range = free_range(1000);
    const size_t n = cf_planner_list(&range, points);
    size_t best;

    ck_assert_int_eq(cf_planner_search(points, n, m.budget, &no_size, &best),
                     CF_MALFORMED);
    ck_assert_int_eq(cf_planner_search(points, n, m.budget, &no_time, &best),
                     CF_MALFORMED);
}
END_TEST

START_TEST(the_list_goes_up_to_the_longest_and_is_without_doubles)
{
    static cf_planner_point points[POINTS_MAX];
    static const uint32_t longest[] = {0,   1,    255,  256,     257,
                                       512, 1500, 4096, 1 << 20, UINT32_MAX};
    const uint32_t len = longest[_i] > 0 ? longest[_i] : 1;
    const cf_planner_range range = free_range(longest[_i]);
    const size_t n = cf_planner_list(&range, points);

    ck_assert_uint_eq(cf_planner_list(&range, NULL), n);
    ck_assert_uint_ge(n, 3);
    ck_assert_uint_le(n, POINTS_MAX);
    ck_assert_uint_eq(points[n - 1].chunk_size_tok, len);
    for (size_t i = 0; i < n; i++) {
        ck_assert_uint_le(points[i].chunk_size_tok, len);
        ck_assert_uint_ge(points[i].retained_chunks_max, 1);
        ck_assert_uint_le(points[i].retained_chunks_max,
                          (len - 1) / points[i].chunk_size_tok + 1);
        for (size_t j = 0; j < i; j++)
            ck_assert(points[i].chunk_size_tok != points[j].chunk_size_tok ||
                      points[i].retained_chunks_max !=
                          points[j].retained_chunks_max ||
                      points[i].recompute != points[j].recompute ||
                      points[i].keep_attention != points[j].keep_attention);
    }
}
END_TEST

START_TEST(what_is_given_is_in_every_point)
{
    static cf_planner_point points[POINTS_MAX];
    cf_planner_range range = free_range(3000);
    size_t n;

    range.chunk_size_tok = 700;
    n = cf_planner_list(&range, points);
    /* K 1, 2 and 4, with attention or without, and 5, which drops none. */
    ck_assert_uint_eq(n, (3 * 2 + 1) * 3);
    for (size_t i = 0; i < n; i++)
        ck_assert_uint_eq(points[i].chunk_size_tok, 700);
    range.retained_chunks_max = 3;
    range.recompute_is_free = false;
    range.recompute = CF_RECOMPUTE_LAYER;
    range.attention_is_free = false;
    range.keep_attention = true;
    n = cf_planner_list(&range, points);
    ck_assert_uint_eq(n, 1);
    ck_assert_uint_eq(points[0].retained_chunks_max, 3);
    ck_assert_int_eq(points[0].recompute, CF_RECOMPUTE_LAYER);
    ck_assert(points[0].keep_attention);
}
END_TEST

START_TEST(stages_divide_the_ranks_and_have_a_layer_each)
{
    static cf_planner_point points[16];
    cf_planner_range range = free_range(1);
    size_t n;

    range.recompute_is_free = false;
    range.n_ranks = 12;
    range.n_layers = 5;
    n = cf_planner_list(&range, points);
    ck_assert_uint_eq(n, 4);
    for (size_t i = 0; i < n; i++)
        ck_assert_uint_eq(points[i].n_stages, i + 1);
    range.n_stages = 3;
    n = cf_planner_list(&range, points);
    ck_assert_uint_eq(n, 1);
    ck_assert_uint_eq(points[0].n_stages, 3);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("planner");
    TCase *tcase = tcase_create("planner");
    SRunner *runner = srunner_create(suite);
    int n_failed;

    tcase_add_test(tcase, the_choice_is_that_of_plain_enumeration);
    tcase_add_test(tcase, a_failure_of_the_oracle_ends_the_search);
    tcase_add_loop_test(
        tcase, the_list_goes_up_to_the_longest_and_is_without_doubles, 0, 10);
    tcase_add_test(tcase, what_is_given_is_in_every_point);
    tcase_add_test(tcase, stages_divide_the_ranks_and_have_a_layer_each);
    tcase_set_timeout(tcase, 120);
    suite_add_tcase(suite, tcase);
    srunner_run_all(runner, CK_NORMAL);
    n_failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return n_failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
