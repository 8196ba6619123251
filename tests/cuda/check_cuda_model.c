/* check_cuda_model.c - a small model trained by the whole CUDA path on the simulated
 * GPU: held against the CPU's bf16, and against itself in other orders of threads
 * and streams.
 */
#include <check.h>
#include <math.h>
#include <stdlib.h>

#include "kernels/cuda/backend.h"
#include "tests/cuda/cuda_open.h"
#include "tests/cuda/sim.h"
#include "tests/cuda/tiny_model.h"
#include "tests/lib/arrays.h"

enum {
    N_STEPS = 20
};

static void *device_take(const cf_kernels *k, size_t bytes)
{
    void *x = NULL;

    ck_assert_int_eq(cf_cuda_alloc(k, bytes, &x), CF_OK);
    return x;
}

static const tiny_memory device = {device_take, cf_cuda_upload,
                                   cf_cuda_download};

START_TEST(twenty_steps_have_the_loss_curve_of_the_cpus_bf16)
{
    cf_kernels cpu = kernels_of(CF_COMPUTE_BF16), cuda = cuda_open(1 << 20);
    tiny_model *want = tiny_model_open(&cpu, &tiny_host);
    tiny_model *got = tiny_model_open(&cuda, &device);
    size_t n_allocations = simrt_n_allocations();
    double first = 0, last = 0;

    for (int step = 0; step < N_STEPS; step++) {
        double on_cpu = tiny_model_step(want);

        last = tiny_model_step(got);
        first = step == 0 ? last : first;
        ck_assert_msg(fabs(last - on_cpu) <= 0.01 * on_cpu,
                      "step %d: %.6f, on the CPU %.6f", step, last, on_cpu);
    }
    ck_assert_double_lt(last, 0.6 * first);
    ck_assert_uint_eq(simrt_n_allocations(), n_allocations);
    ck_assert_int_eq(cuda.status(&cuda), CF_OK);
    ck_assert_uint_eq(cf_cuda_n_refused(&cuda), 0);
}
END_TEST

/* After `steps` steps; with little room for staging, so that the ring turns. */
static float *trained(long order, uint64_t seed, int steps)
{
    float *masters = array_bytes(tiny_model_n() * sizeof(float));
    cf_kernels k;
    tiny_model *model;

    gpusim_set_order(order);
    simrt_set_seed(seed);
    k = cuda_open(3 * 1024);
    model = tiny_model_open(&k, &device);
    for (int step = 0; step < steps; step++)
        (void)tiny_model_step(model);
    tiny_model_get(model, masters);
    ck_assert_int_eq(k.status(&k), CF_OK);
    cf_cuda_close(&k);
    gpusim_set_order(0);
    simrt_set_seed(0);
    return masters;
}

START_TEST(weights_have_the_same_bits_whatever_the_order_of_work)
{
    static const struct {
        long order;
        uint64_t seed;
    } cases[] = {{0, 0}, {1, 0}, {7, 0}, {0, 1}, {1, 2}, {8, 3}};
    float *want = trained(0, 0, 1);

    for (size_t i = 0; i < tiny_model_n(); i++)
        ck_assert(isfinite(want[i]));
    ck_assert_mem_eq(trained(cases[_i].order, cases[_i].seed, 1), want,
                     tiny_model_n() * sizeof(float));
}
END_TEST

static Suite *model_suite(void)
{
    Suite *suite = suite_create("cuda model");
    TCase *training = tcase_create("training");
    TCase *orders = tcase_create("orders");

    tcase_add_checked_fixture(training, NULL, arrays_close);
    tcase_add_test(training, twenty_steps_have_the_loss_curve_of_the_cpus_bf16);
    tcase_set_timeout(training, 300);
    suite_add_tcase(suite, training);
    tcase_add_checked_fixture(orders, NULL, arrays_close);
    tcase_add_loop_test(
        orders, weights_have_the_same_bits_whatever_the_order_of_work, 0, 6);
    tcase_set_timeout(orders, 60);
    suite_add_tcase(suite, orders);
    return suite;
}

int main(void)
{
    SRunner *runner = srunner_create(model_suite());

    srunner_run_all(runner, CK_ENV);

    int n_failed = srunner_ntests_failed(runner);

    srunner_free(runner);
    return n_failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
