/* check_sampling.c - greedy, temperature, top-p, and what a draw depends on. */
#include <check.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "src/sampling.h"
#include "tests/lib/scratch.h"

enum {
    N_MAX = 400,
    DRAWS = 40000
};

static uint32_t choose(const cf_sampling *s, size_t n, const double *logits,
                       uint64_t position)
{
    cf_candidate candidates[N_MAX];

    for (size_t i = 0; i < n; i++)
        candidates[i] = (cf_candidate){logits[i], (uint32_t)i};
    return cf_sampling_choose(s, n, candidates, position);
}

static const struct {
    size_t n;
    double logits[4];
    uint32_t token;
} greedy_cases[] = {
    {1, {-3}, 0},           {4, {0, 1, 3, 2}, 2},   {4, {5, 1, 5, 5}, 0},
    {3, {-1, -1, -0.5}, 2}, {4, {-2, 7, 7, -9}, 1}, {2, {1e30, 2e30}, 1},
};

START_TEST(the_likeliest_is_taken_and_of_equals_the_first)
{
    const cf_sampling greedy = {.temperature = 0, .top_p = 1};
    /* So cold, or so few, that there is nothing to draw. */
    const cf_sampling cold = {.temperature = 1e-300, .top_p = 1e-300};

    ck_assert_uint_eq(
        choose(&greedy, greedy_cases[_i].n, greedy_cases[_i].logits, 7),
        greedy_cases[_i].token);
    ck_assert_uint_eq(
        choose(&cold, greedy_cases[_i].n, greedy_cases[_i].logits, 7),
        greedy_cases[_i].token);
}
END_TEST

/* softmax(logit / temperature), and of it the fewest and likeliest that have
 * top_p together, by sorting all of them. */
static void reference(const cf_sampling *s, size_t n, const double *logits,
                      double *p)
{
    bool taken[N_MAX] = {false};
    double sum = 0, kept = 0, max = logits[0];

    for (size_t i = 1; i < n; i++)
        max = fmax(max, logits[i]);
    for (size_t i = 0; i < n; i++)
        sum += p[i] = exp((logits[i] - max) / s->temperature);
    while (kept < s->top_p * sum) {
        size_t best = n;

        for (size_t i = 0; i < n; i++)
            if (!taken[i] && (best == n || p[i] > p[best]))
                best = i;
        if (best == n)
            break;
        taken[best] = true;
        kept += p[best];
    }
    for (size_t i = 0; i < n; i++)
        p[i] = taken[i] ? p[i] / kept : 0;
}

static const cf_sampling samplings[] = {
    {1, 1, 0},     {0.5, 1, 1},  {2, 1, 2},        {1, 0.9, 3},   {1, 0.5, 4},
    {0.7, 0.8, 5}, {3, 0.01, 6}, {1, 0.999999, 7}, {100, 0.3, 8},
};

/* Every count within five of its own deviations. */
START_TEST(tokens_come_as_often_as_their_probability_says)
{
    const cf_sampling *s = &samplings[_i];
    uint64_t random = scratch_seed();

    for (size_t n = 1; n < 12; n++) {
        double logits[N_MAX], p[N_MAX];
        size_t counts[N_MAX] = {0};

        for (size_t i = 0; i < n; i++)
            logits[i] = (double)scratch_random_below(&random, 9) / 2 - 2;
        reference(s, n, logits, p);
        for (uint64_t position = 0; position < DRAWS; position++)
            counts[choose(s, n, logits, position)]++;
        for (size_t i = 0; i < n; i++) {
            const double wanted = p[i] * DRAWS;

            ck_assert_msg(fabs((double)counts[i] - wanted) <=
                              5 * sqrt(wanted * (1 - p[i])) + 1e-6,
                          "token %zu of %zu: %zu times, not %g", i, n,
                          counts[i], wanted);
        }
    }
}
END_TEST

/* Also with ties on the edge, which go to the smaller number. */
START_TEST(nothing_outside_the_likeliest_is_ever_drawn)
{
    uint64_t random = scratch_seed();

    for (int round = 0; round < 300; round++) {
        const size_t n = 1 + scratch_random_below(&random, N_MAX);
        const cf_sampling s = {
            .temperature = 0.1 + (double)scratch_random_below(&random, 30) / 10,
            .top_p = (1 + (double)scratch_random_below(&random, 999)) / 1000,
            .seed = (uint64_t)round};
        double logits[N_MAX], p[N_MAX];

        for (size_t i = 0; i < n; i++)
            logits[i] = (double)scratch_random_below(&random, 5);
        reference(&s, n, logits, p);
        for (uint64_t position = 0; position < 20; position++)
            ck_assert(p[choose(&s, n, logits, position)] > 0);
    }
}
END_TEST

START_TEST(a_draw_is_a_function_of_seed_and_position)
{
    static const double logits[] = {0, 0, 0, 0, 0, 0, 0, 0};
    const cf_sampling one = {1, 1, 1}, two = {1, 1, 2};
    size_t n_positions = 0, n_seeds = 0;

    for (uint64_t position = 0; position < 100; position++) {
        const uint32_t token = choose(&one, 8, logits, position);

        ck_assert_uint_eq(choose(&one, 8, logits, position), token);
        n_positions += choose(&one, 8, logits, position + 1) != token;
        n_seeds += choose(&two, 8, logits, position) != token;
    }
    /* 87.5 of 100 are to be expected. */
    ck_assert_uint_gt(n_positions, 70);
    ck_assert_uint_gt(n_seeds, 70);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("sampling");
    TCase *tcase = tcase_create("sampling");
    SRunner *runner = srunner_create(suite);
    int n_failed;

    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, the_likeliest_is_taken_and_of_equals_the_first,
                        0, sizeof(greedy_cases) / sizeof(greedy_cases[0]));
    tcase_add_loop_test(tcase, tokens_come_as_often_as_their_probability_says,
                        0, sizeof(samplings) / sizeof(samplings[0]));
    tcase_add_test(tcase, nothing_outside_the_likeliest_is_ever_drawn);
    tcase_add_test(tcase, a_draw_is_a_function_of_seed_and_position);
    suite_add_tcase(suite, tcase);
    srunner_run_all(runner, CK_NORMAL);
    n_failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return n_failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
