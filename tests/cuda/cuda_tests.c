/* cuda_tests.c - makes a test of the CPU's ops a test of CUDA's.
 *
 * Linked with --wrap, a program of tests/unit gets the CUDA backend, over the
 * simulated GPU, wherever it asks for the backend of bf16; its other types are left
 * out.  So both backends are held to the same references by the same bounds.
 * Arrays of these tests are in host memory, which the simulated device may touch,
 * and are read as soon as an op returns: streams do their work at once.
 *
 * What a bound of the CPU's cannot allow is left out by name, here, and tested in
 * check_cuda.c: that weights and gradients of logits are rounded to bf16, and what NaN becomes.
 */
#include <assert.h>
#include <check.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda/cuda_open.h"
#include "tests/cuda/sim.h"
#include "tests/lib/arrays.h"

/* Tests of what only the CPU has, and of what CUDA's bounds differ in. */
static const char *const left_out[] = {
    "a_forced_instruction_set_is_obeyed_or_refused",
    "a_linear_layer_is_x_times_w_transposed_plus_bias",
    "a_linear_layer_has_the_gradients_of_its_input_weight_and_bias",
    "bf16_is_the_nearest_to_the_bit",
    "every_bf16_survives_widening",
    "the_head_has_the_loss_and_gradients_of_cross_entropy",
};

cf_kernels __wrap_kernels_of(cf_compute compute);
cf_kernels __real_kernels_of(cf_compute compute);
void __wrap__tcase_add_test(TCase *tc, const TTest *test, int signal, int exit,
                            int start, int end);
void __real__tcase_add_test(TCase *tc, const TTest *test, int signal, int exit,
                            int start, int end);

cf_kernels __wrap_kernels_of(cf_compute compute)
{
    static cf_kernels kernels;

    if (compute != CF_COMPUTE_BF16)
        return __real_kernels_of(compute);
    if (kernels.backend == NULL)
        kernels = cuda_open(1 << 20);
    return kernels;
}

static bool is_left_out(const char *name)
{
    for (size_t i = 0; i < sizeof(left_out) / sizeof(left_out[0]); i++)
        if (strcmp(name, left_out[i]) == 0)
            return true;
    return strstr(name, "number_of_threads") != NULL;
}

/* ---- orders of threads ---- */

/* What a missing barrier spoils shows in one of three orders.  Each round of a loop
 * has one of them, the next round another. */
enum {
    TESTS_MAX = 32,
    ROUNDS_MAX = 1000
};

static const TTest *tests[TESTS_MAX];
static TTest in_orders[TESTS_MAX];
static int n_tests;

static void run_in_an_order(int i)
{
    static const long orders[] = {0, 1, 7};
    const int round = i % ROUNDS_MAX;

    gpusim_set_order(orders[(round / 3 + i / ROUNDS_MAX) % 3]);
    tests[i / ROUNDS_MAX]->fn(round);
}

/* A round of minutes here, whose law a shorter round of the same test holds too. */
static bool is_too_long(const char *name, int i)
{
    return strcmp(name, "outputs_ignore_how_a_sequence_is_cut") == 0 && i != 8;
}

/* Loops go over the types, fastest: fp32, fp64, bf16.  A test without a loop, and
 * one of two types, is not of bf16.  One round of a test alone is run three times,
 * in all orders. */
void __wrap__tcase_add_test(TCase *tc, const TTest *test, int signal, int exit,
                            int start, int end)
{
    const int n_copies = end - start == 3 ? 3 : 1;

    if (is_left_out(test->name) || (end - start) % 3 != 0)
        return;
    for (int copy = 0; copy < n_copies; copy++) {
        const int slot = n_tests++;

        assert(slot < TESTS_MAX);
        tests[slot] = test;
        in_orders[slot] = *test;
        in_orders[slot].fn = run_in_an_order;
        for (int i = start + CF_COMPUTE_BF16; i < end; i += 3)
            if (!is_too_long(test->name, i))
                __real__tcase_add_test(tc, &in_orders[slot], signal, exit,
                                       slot * ROUNDS_MAX + i,
                                       slot * ROUNDS_MAX + i + 1);
    }
}
