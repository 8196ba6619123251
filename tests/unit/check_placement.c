/* check_placement.c - sequences onto replicas. */
#include <check.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/placement.h"
#include "tests/lib/scratch.h"

enum {
    SEQUENCES_MAX = 64,
    REPLICAS_MAX = 16
};

typedef struct placement {
    uint32_t replica_of[SEQUENCES_MAX];
    double load[REPLICAS_MAX];
} placement;

/* With scratch of exactly the bound, for the sanitizers. */
static cf_status place(const double *cost, size_t n_sequences,
                       uint32_t n_replicas, placement *placed)
{
    size_t scratch_bytes;
    void *scratch;
    cf_status status;

    ck_assert_int_eq(
        cf_placement_bound(n_sequences, n_replicas, &scratch_bytes), CF_OK);
    scratch = malloc(scratch_bytes);
    ck_assert(scratch != NULL);
    status =
        cf_placement_build(cost, n_sequences, n_replicas, scratch,
                           scratch_bytes, placed->replica_of, placed->load);
    free(scratch);
    return status;
}

/* The rule in its plain words: quadratic, and shares no code. */
static void place_plainly(const double *cost, size_t n_sequences,
                          uint32_t n_replicas, placement *placed)
{
    bool is_placed[SEQUENCES_MAX] = {false};

    memset(placed->load, 0, sizeof(placed->load));
    for (size_t k = 0; k < n_sequences; k++) {
        size_t longest = SEQUENCES_MAX;
        uint32_t least = 0;

        for (size_t i = 0; i < n_sequences; i++) {
            if (!is_placed[i] &&
                (longest == SEQUENCES_MAX || cost[i] > cost[longest]))
                longest = i;
        }
        for (uint32_t r = 1; r < n_replicas; r++) {
            if (placed->load[r] < placed->load[least])
                least = r;
        }
        is_placed[longest] = true;
        placed->replica_of[longest] = least;
        placed->load[least] += cost[longest];
    }
}

START_TEST(the_longest_goes_first_onto_the_least_loaded)
{
    static const struct {
        double cost[6];
        size_t n_sequences;
        uint32_t n_replicas;
        uint32_t replica_of[6];
    } cases[] = {
        {{5, 1, 4, 3, 2}, 5, 2, {0, 0, 1, 1, 0}},
        {{5, 1, 4, 3, 2}, 5, 1, {0, 0, 0, 0, 0}},
        {{2, 2, 2, 2}, 4, 2, {0, 1, 0, 1}},
        {{2, 2, 2, 2, 2, 2}, 6, 3, {0, 1, 2, 0, 1, 2}},
        {{9, 1, 1, 1, 1}, 5, 3, {0, 1, 2, 1, 2}},
        {{3, 7}, 2, 4, {1, 0}},
        {{0, 0, 1}, 3, 2, {1, 1, 0}},
        {{0}, 0, 3, {0}},
    };

    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        placement placed;

        ck_assert_int_eq(place(cases[c].cost, cases[c].n_sequences,
                               cases[c].n_replicas, &placed),
                         CF_OK);
        for (size_t i = 0; i < cases[c].n_sequences; i++)
            ck_assert_msg(placed.replica_of[i] == cases[c].replica_of[i],
                          "case %zu: sequence %zu is on %u", c, i,
                          (unsigned)placed.replica_of[i]);
    }
}
END_TEST

START_TEST(a_replica_without_sequences_has_no_load)
{
    const double cost[] = {3, 7};
    placement placed;

    ck_assert_int_eq(place(cost, 2, 4, &placed), CF_OK);
    ck_assert(placed.load[0] == 7 && placed.load[1] == 3);
    ck_assert(placed.load[2] == 0 && placed.load[3] == 0);
}
END_TEST

/* Few values, so that most are equal, and many, so that few are. */
START_TEST(it_is_the_plain_rule_for_random_costs)
{
    uint64_t state = scratch_seed();

    for (int round = 0; round < 20000; round++) {
        const size_t n = scratch_random_below(&state, SEQUENCES_MAX + 1);
        const uint32_t n_replicas =
            1 + (uint32_t)scratch_random_below(&state, REPLICAS_MAX);
        const uint64_t n_values = round % 2 == 0 ? 4 : 1000000;
        double cost[SEQUENCES_MAX];
        placement placed;
        placement plain;

        for (size_t i = 0; i < n; i++)
            cost[i] = (double)scratch_random_below(&state, n_values) * 0.1;
        if (place(cost, n, n_replicas, &placed) != CF_OK)
            ck_abort_msg("round %d", round);
        place_plainly(cost, n, n_replicas, &plain);
        if (memcmp(placed.replica_of, plain.replica_of, n * sizeof(uint32_t)) !=
                0 ||
            memcmp(placed.load, plain.load, n_replicas * sizeof(double)) != 0)
            ck_abort_msg("round %d: %zu sequences, %u replicas", round, n,
                         (unsigned)n_replicas);
    }
}
END_TEST

START_TEST(what_cannot_be_placed_is_refused_and_nothing_written)
{
    static const struct {
        double cost;
        uint32_t n_replicas;
        size_t missing_bytes; /* of the scratch */
        cf_status status;
    } cases[] = {
        {1, 0, 0, CF_INVALID},         {-1, 2, 0, CF_INVALID},
        {NAN, 2, 0, CF_INVALID},       {INFINITY, 2, 0, CF_INVALID},
        {-INFINITY, 2, 0, CF_INVALID}, {1, 2, 1, CF_NO_SPACE},
    };

    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        const double cost[] = {1, cases[c].cost};
        uint32_t replica_of[2] = {77, 77};
        double load[2] = {77, 77};
        size_t scratch_bytes;
        unsigned char *scratch;

        ck_assert_int_eq(
            cf_placement_bound(2, cases[c].n_replicas, &scratch_bytes), CF_OK);
        scratch_bytes -= cases[c].missing_bytes;
        scratch = malloc(scratch_bytes);
        ck_assert(scratch != NULL);
        memset(scratch, 0x5a, scratch_bytes);
        ck_assert_int_eq(cf_placement_build(cost, 2, cases[c].n_replicas,
                                            scratch, scratch_bytes, replica_of,
                                            load),
                         cases[c].status);
        ck_assert_uint_eq(replica_of[0], 77);
        ck_assert_uint_eq(replica_of[1], 77);
        ck_assert(load[0] == 77 && load[1] == 77);
        for (size_t i = 0; i < scratch_bytes; i++)
            ck_assert_uint_eq(scratch[i], 0x5a);
        free(scratch);
    }
}
END_TEST

START_TEST(sizes_that_do_not_fit_are_an_overflow)
{
    size_t scratch_bytes = 77;

    ck_assert_int_eq(
        cf_placement_bound((size_t)UINT32_MAX + 1, 1, &scratch_bytes),
        CF_OVERFLOW);
    ck_assert_int_eq(cf_placement_bound(SIZE_MAX, 1, &scratch_bytes),
                     CF_OVERFLOW);
    ck_assert_uint_eq(scratch_bytes, 77);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("placement");
    TCase *build = tcase_create("cf_placement_build");
    SRunner *runner;
    int failed;

    tcase_set_timeout(build, 60);
    tcase_add_test(build, the_longest_goes_first_onto_the_least_loaded);
    tcase_add_test(build, a_replica_without_sequences_has_no_load);
    tcase_add_test(build, it_is_the_plain_rule_for_random_costs);
    tcase_add_test(build, what_cannot_be_placed_is_refused_and_nothing_written);
    tcase_add_test(build, sizes_that_do_not_fit_are_an_overflow);
    suite_add_tcase(suite, build);

    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
