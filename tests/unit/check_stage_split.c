/* Layers over stages: every layer has one stage, and no other split is faster. */
#include <check.h>

#include <stdlib.h>

#include "src/log.h"
#include "src/stage_split.h"

/* The slowest stage of a split, as the split means it. */
static double slowest(const cf_stage *stages, uint32_t n, cf_stage_costs costs)
{
    double most = 0;

    for (uint32_t i = 0; i < n; i++) {
        double cost =
            (stages[i].end_layer - stages[i].first_layer) * costs.layer +
            (stages[i].is_last ? costs.head : 0);

        most = cost > most ? cost : most;
    }
    return most;
}

/* The fastest split there is, by trying every number of layers on the last
 * stage and every cut of the others. */
static double best(uint32_t n_layers, uint32_t n_stages, cf_stage_costs costs)
{
    double found = 1e300;

    if (n_stages == 1)
        return n_layers * costs.layer + costs.head;
    for (uint32_t last = 1; last + n_stages - 1 <= n_layers; last++) {
        uint32_t rest = n_layers - last, n = n_stages - 1;
        uint32_t most = (rest + n - 1) / n;
        double a = most * costs.layer, b = last * costs.layer + costs.head;

        found = (a > b ? a : b) < found ? (a > b ? a : b) : found;
    }
    return found;
}

START_TEST(every_layer_has_one_stage_and_no_split_is_faster)
{
    static const double heads[] = {0, 0.3, 1, 2.5, 40};

    for (uint32_t n_layers = 1; n_layers <= 12; n_layers++)
        for (uint32_t n = 1; n <= n_layers; n++)
            for (size_t h = 0; h < sizeof(heads) / sizeof(heads[0]); h++) {
                const cf_stage_costs costs = {.layer = 1, .head = heads[h]};
                cf_stage stages[12];
                uint32_t at = 0;

                for (uint32_t i = 0; i < n; i++) {
                    ck_assert_int_eq(
                        cf_stage_split(n_layers, n, NULL, costs, i, &stages[i]),
                        CF_OK);
                    ck_assert_uint_eq(stages[i].first_layer, at);
                    ck_assert_uint_gt(stages[i].end_layer, at);
                    ck_assert_int_eq(stages[i].is_first, i == 0);
                    ck_assert_int_eq(stages[i].is_last, i + 1 == n);
                    at = stages[i].end_layer;
                }
                ck_assert_uint_eq(at, n_layers);
                ck_assert_double_eq_tol(slowest(stages, n, costs),
                                        best(n_layers, n, costs), 1e-12);
            }
}
END_TEST

START_TEST(earlier_stages_have_fewer_layers)
{
    const cf_stage_costs costs = {.layer = 1, .head = 2};
    static const uint32_t wanted[] = {7, 8, 8, 5};
    cf_stage stage;

    for (uint32_t i = 0; i < 4; i++) {
        ck_assert_int_eq(cf_stage_split(28, 4, NULL, costs, i, &stage), CF_OK);
        ck_assert_uint_eq(stage.end_layer - stage.first_layer, wanted[i]);
    }
}
END_TEST

START_TEST(a_list_is_taken_as_it_stands)
{
    const cf_stage_costs costs = {.layer = 1};
    cf_stage stage;

    ck_assert_int_eq(cf_stage_split(6, 3, "3,1,2", costs, 1, &stage), CF_OK);
    ck_assert_uint_eq(stage.first_layer, 3);
    ck_assert_uint_eq(stage.end_layer, 4);
    ck_assert_int_eq(cf_stage_split(6, 3, "3,1,2", costs, 2, &stage), CF_OK);
    ck_assert_uint_eq(stage.first_layer, 4);
    ck_assert_uint_eq(stage.end_layer, 6);
}
END_TEST

static const char *const bad_lists[] = {
    "",
    "3,3",
    "3,2,2",
    "3,1,1",
    "3,0,3",
    "3,1,2,",
    "3,1,2,0",
    "a,b,c",
    "3 ,1,2",
    "-1,4,3",
    "3,1,2x",
    "99999999999999999999,1,1",
    "4294967299,1,2",
};

START_TEST(a_list_that_does_not_fit_is_refused)
{
    const cf_stage_costs costs = {.layer = 1};

    for (uint32_t i = 0; i < 3; i++) {
        cf_stage stage;

        ck_assert_int_eq(cf_stage_split(6, 3, bad_lists[_i], costs, i, &stage),
                         CF_INVALID);
    }
}
END_TEST

START_TEST(more_stages_than_layers_are_refused)
{
    const cf_stage_costs costs = {.layer = 1};
    cf_stage stage;

    ck_assert_int_eq(cf_stage_split(3, 4, NULL, costs, 0, &stage), CF_INVALID);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("stage split");
    TCase *tcase = tcase_create("stage split");
    SRunner *runner = srunner_create(suite);
    int n_failed;

    tcase_add_test(tcase, every_layer_has_one_stage_and_no_split_is_faster);
    tcase_add_test(tcase, earlier_stages_have_fewer_layers);
    tcase_add_test(tcase, a_list_is_taken_as_it_stands);
    tcase_add_loop_test(tcase, a_list_that_does_not_fit_is_refused, 0,
                        sizeof(bad_lists) / sizeof(bad_lists[0]));
    tcase_add_test(tcase, more_stages_than_layers_are_refused);
    suite_add_tcase(suite, tcase);
    srunner_run_all(runner, CK_NORMAL);
    n_failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return n_failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
