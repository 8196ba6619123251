/* Fits of costs: what went in comes out, and nothing is negative. */
#include <check.h>
#include <math.h>
#include <stdlib.h>

#include "src/cost_fit.h"
#include "tests/lib/scratch.h"

enum {
    N_MAX = 32
};

static double between(uint64_t *state, double low, double high)
{
    return low + (high - low) * (double)scratch_random_below(state, 1 << 20) /
                     (1 << 20);
}

static void check_near(double is, double wanted, double within)
{
    ck_assert_msg(fabs(is - wanted) <= within, "%.9g, not %.9g", is, wanted);
}

/* Terms as kernels have them: microseconds an op, a token, nanoseconds a pair. */
START_TEST(exact_samples_give_their_terms_back)
{
    uint64_t state = scratch_seed();

    for (int round = 0; round < 500; round++) {
        const cf_cost_terms terms = {
            .per_op = round % 3 == 0 ? 0 : between(&state, 1e-5, 1e-2),
            .per_tok = between(&state, 1e-6, 1e-4),
            .per_pair = round % 2 == 0 ? 0 : between(&state, 1e-10, 1e-8)};
        cf_cost_sample samples[N_MAX];
        cf_cost_terms found;

        for (int i = 0; i < N_MAX; i++) {
            const double n = between(&state, 16, 4096);
            const double pairs = n * between(&state, 0, 16384);

            samples[i] =
                (cf_cost_sample){n, pairs, cf_cost_terms_s(&terms, n, pairs)};
        }
        found = cf_cost_fit(samples, N_MAX);
        check_near(found.per_op, terms.per_op, 1e-7);
        check_near(found.per_tok, terms.per_tok, 1e-6 * terms.per_tok);
        check_near(found.per_pair, terms.per_pair, 1e-13);
    }
}
END_TEST

/* Where noise would make a term negative, it is left out. */
START_TEST(no_term_is_negative_and_the_sums_agree)
{
    uint64_t state = scratch_seed();

    for (int round = 0; round < 500; round++) {
        cf_cost_sample samples[N_MAX];
        cf_cost_terms found;
        double measured = 0, fitted = 0;

        for (int i = 0; i < N_MAX; i++) {
            const double n = between(&state, 16, 4096);

            samples[i] =
                (cf_cost_sample){n, 0, 1e-5 * n * between(&state, 0.9, 1.1)};
            measured += samples[i].seconds;
        }
        found = cf_cost_fit(samples, N_MAX);
        ck_assert(found.per_op >= 0 && found.per_tok >= 0);
        ck_assert(found.per_pair >= 0 && found.per_pair <= 0);
        for (int i = 0; i < N_MAX; i++)
            fitted += cf_cost_terms_s(&found, samples[i].n_tok, 0);
        check_near(fitted, measured, 0.02 * measured);
    }
}
END_TEST

START_TEST(few_samples_are_met_and_none_is_nothing)
{
    const cf_cost_sample one = {64, 0, 2e-3};
    const cf_cost_sample two[] = {{64, 0, 2e-3}, {256, 0, 5e-3}};
    cf_cost_terms found = cf_cost_fit(&one, 1);

    check_near(cf_cost_terms_s(&found, 64, 0), 2e-3, 1e-12);
    found = cf_cost_fit(two, 2);
    check_near(cf_cost_terms_s(&found, 64, 0), 2e-3, 1e-9);
    check_near(cf_cost_terms_s(&found, 256, 0), 5e-3, 1e-9);
    found = cf_cost_fit(NULL, 0);
    check_near(cf_cost_terms_s(&found, 64, 64), 0, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cost fit");
    TCase *tcase = tcase_create("cost fit");
    SRunner *runner = srunner_create(suite);
    int n_failed;

    tcase_add_test(tcase, exact_samples_give_their_terms_back);
    tcase_add_test(tcase, no_term_is_negative_and_the_sums_agree);
    tcase_add_test(tcase, few_samples_are_met_and_none_is_nothing);
    suite_add_tcase(suite, tcase);
    srunner_run_all(runner, CK_NORMAL);
    n_failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return n_failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
