/* check_order.c - the shuffled order of an epoch. */
#include <check.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "src/order.h"

static const uint64_t seeds[] = {0, 1, 2, 12345, UINT64_MAX};
enum {
    N_SEEDS = sizeof(seeds) / sizeof(seeds[0]),
    SMALL_MAX = 2000
};

/* No ck_assert in the loops: each one costs more than the call it looks at. */
static bool is_permutation(uint64_t seed, uint64_t epoch, uint64_t n,
                           unsigned char *seen)
{
    memset(seen, 0, n);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t place = cf_order_shuffled(seed, epoch, n, i);

        if (place >= n || seen[place])
            return false;
        seen[place] = 1;
    }
    return true;
}

START_TEST(every_epoch_is_a_permutation)
{
    static unsigned char seen[SMALL_MAX];

    for (uint64_t n = 1; n <= SMALL_MAX; n++)
        ck_assert(is_permutation(seeds[_i], n % 3, n, seen));
}
END_TEST

START_TEST(a_large_epoch_is_a_permutation)
{
    const uint64_t n = 300007;
    unsigned char *seen = malloc(n);

    ck_assert_ptr_nonnull(seen);
    ck_assert(is_permutation(7, 3, n, seen));
    free(seen);
}
END_TEST

START_TEST(huge_epochs_stay_in_range_and_do_not_collide)
{
    static const uint64_t sizes[] = {1ULL << 40, (1ULL << 40) - 1,
                                     (1ULL << 40) + 1, 1ULL << 63, UINT64_MAX};

    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        uint64_t previous = UINT64_MAX;

        for (uint64_t i = 0; i < 1000; i++) {
            uint64_t place = cf_order_shuffled(1, 1, sizes[s], i);

            ck_assert_uint_lt(place, sizes[s]);
            ck_assert_uint_ne(place, previous);
            previous = place;
        }
    }
}
END_TEST

/* For each index, the place over many epochs is uniform: chi-square with n - 1
 * degrees of freedom, five standard deviations. */
START_TEST(an_index_goes_everywhere_equally_often)
{
    static const uint64_t sizes[] = {2, 3, 4, 5, 7, 17, 64, 100};
    enum {
        N_EPOCHS = 10000
    };
    const uint64_t n = sizes[_i];

    for (uint64_t index = 0; index<n; index += n> 8 ? n / 4 : 1) {
        double counts[128] = {0};
        double chi_square = 0;
        const double expected = (double)N_EPOCHS / (double)n;
        const double freedom = (double)(n - 1);

        for (uint64_t epoch = 0; epoch < N_EPOCHS; epoch++)
            counts[cf_order_shuffled(42, epoch, n, index)]++;
        for (uint64_t place = 0; place < n; place++)
            chi_square += (counts[place] - expected) *
                          (counts[place] - expected) / expected;
        ck_assert_double_lt((chi_square - freedom) * (chi_square - freedom),
                            25 * 2 * freedom + 25);
    }
}
END_TEST

/* All 24 orders of four come up over seeds and epochs alike. */
START_TEST(every_order_of_four_is_equally_likely)
{
    enum {
        N_TRIALS = 24000
    };
    double counts[256] = {0};
    double chi_square = 0;
    int n_orders = 0;

    for (uint64_t trial = 0; trial < N_TRIALS; trial++) {
        uint64_t code = 0;

        for (uint64_t i = 0; i < 4; i++)
            code = code * 4 + cf_order_shuffled(trial / 3, trial % 3, 4, i);
        counts[code]++;
    }
    for (int code = 0; code < 256; code++) {
        if (counts[code] == 0)
            continue;
        n_orders++;
        chi_square += (counts[code] - 1000) * (counts[code] - 1000) / 1000;
    }
    ck_assert_int_eq(n_orders, 24);
    ck_assert_double_lt(chi_square, 23 + 5 * 6.8);
}
END_TEST

/* Neighbours do not stay neighbours, and two orders agree in about one place. */
START_TEST(orders_of_other_seeds_and_epochs_have_nothing_in_common)
{
    enum {
        N = 4096
    };
    unsigned neighbours = 0;
    unsigned same_epoch = 0;
    unsigned same_seed = 0;
    unsigned same_swapped = 0;

    for (uint64_t i = 0; i < N; i++) {
        uint64_t place = cf_order_shuffled(5, 1, N, i);

        if (i + 1 < N)
            neighbours += cf_order_shuffled(5, 1, N, i + 1) == place + 1;
        same_epoch += place == cf_order_shuffled(5, 2, N, i);
        same_seed += place == cf_order_shuffled(6, 1, N, i);
        same_swapped += place == cf_order_shuffled(1, 5, N, i);
    }
    ck_assert_uint_le(neighbours, 8);
    ck_assert_uint_le(same_epoch, 8);
    ck_assert_uint_le(same_seed, 8);
    ck_assert_uint_le(same_swapped, 8);
}
END_TEST

/* A resumed run relies on these never changing. */
START_TEST(the_order_is_the_one_of_version_0_1)
{
    static const struct {
        uint64_t seed, epoch, n, index, place;
    } golden[] = {
        {0U, 0, 10, 0, 2},
        {0U, 0, 10, 1, 0},
        {0U, 0, 10, 9, 9},
        {0U, 1, 10, 0, 4},
        {1U, 0, 10, 0, 5},
        {0U, 0, 2188, 0, 2021},
        {0U, 0, 2188, 1000, 483},
        {42U, 3, 1000000, 999999, 534477},
        {18446744073709551615U, 7, 1099511627776, 123456789, 865690168400},
    };

    for (size_t i = 0; i < sizeof(golden) / sizeof(golden[0]); i++)
        ck_assert_uint_eq(cf_order_shuffled(golden[i].seed, golden[i].epoch,
                                            golden[i].n, golden[i].index),
                          golden[i].place);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("order");
    TCase *shuffled = tcase_create("cf_order_shuffled");
    SRunner *runner;
    int failed;

    tcase_set_timeout(shuffled, 120);
    tcase_add_loop_test(shuffled, every_epoch_is_a_permutation, 0, N_SEEDS);
    tcase_add_test(shuffled, a_large_epoch_is_a_permutation);
    tcase_add_test(shuffled, huge_epochs_stay_in_range_and_do_not_collide);
    tcase_add_loop_test(shuffled, an_index_goes_everywhere_equally_often, 0, 8);
    tcase_add_test(shuffled, every_order_of_four_is_equally_likely);
    tcase_add_test(shuffled,
                   orders_of_other_seeds_and_epochs_have_nothing_in_common);
    tcase_add_test(shuffled, the_order_is_the_one_of_version_0_1);
    suite_add_tcase(suite, shuffled);

    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
