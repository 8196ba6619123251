/* check_cuda.c - the CUDA backend on the simulated GPU: products and the head held
 * against the CPU's bf16, failures, and what the simulated GPU itself catches.
 *
 * Arrays are in device memory, which the host cannot touch.
 */
#include <check.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/context.h"
#include "tests/cuda/broken.h"
#include "tests/cuda/cuda_open.h"
#include "tests/cuda/sim.h"
#include "tests/lib/arrays.h"
#include "tests/lib/close.h"

/* A result is rounded to bf16, on both sides perhaps to different neighbours. */
#define ACT_BOUND 0x1p-7

static cf_kernels cpu, cuda;

static void both_open(void)
{
    cpu = kernels_of(CF_COMPUTE_BF16);
    cuda = cuda_open(1 << 20);
}

static void both_close(void)
{
    ck_assert_int_eq(cuda.status(&cuda), CF_OK);
    cf_cuda_close(&cuda);
    arrays_close();
}

/* ---- arrays on both sides ---- */

static void *device_of(const void *from, size_t bytes)
{
    void *x = NULL;

    ck_assert_int_eq(cf_cuda_alloc(&cuda, bytes + 1, &x), CF_OK);
    cf_cuda_upload(&cuda, from, bytes, x);
    return x;
}

static void *host_of(const void *from, size_t bytes)
{
    void *x = array_bytes(bytes);

    cf_cuda_download(&cuda, from, bytes, x);
    return x;
}

/* The same n elements in both memories. */
typedef struct both {
    void *cpu, *cuda;
    size_t n, elem_bytes;
} both;

static both both_of(void *host, size_t n, size_t elem_bytes)
{
    return (both){host, device_of(host, n * elem_bytes), n, elem_bytes};
}

static both acts(uint64_t *state, size_t n, double limit)
{
    return both_of(act_of(&cpu, n, random_acts(&cpu, state, n, limit)), n,
                   cpu.act_bytes);
}

static both accs(uint64_t *state, size_t n, double limit)
{
    return both_of(array_of(&cpu, n, random_values(state, n, limit)), n,
                   cpu.acc_bytes);
}

static both act_results(size_t n)
{
    return both_of(act_out(&cpu, n), n, cpu.act_bytes);
}

/* Whether CUDA's results are close to the CPU's. */
static bool agree(const char *name, both x, double bound)
{
    void *got = host_of(x.cuda, x.n * x.elem_bytes);

    if (x.elem_bytes == sizeof(float))
        return close_arrays(name, x.n, values_of(&cpu, x.n, got),
                            values_of(&cpu, x.n, x.cpu), bound, 0);
    return close_arrays(name, x.n, act_values_of(&cpu, x.n, got),
                        act_values_of(&cpu, x.n, x.cpu), bound, 0);
}

/* A weight for both: values that bf16 has, or any. */
typedef struct both_weight {
    cf_weight cpu, cuda;
} both_weight;

static both_weight weight_open(uint64_t *state, bool exact, size_t n_out,
                               size_t n_in, bool has_bias)
{
    size_t n = n_out * n_in;
    double *master =
        exact ? random_acts(&cpu, state, n, 1) : random_values(state, n, 1);
    double *bias = has_bias ? random_acts(&cpu, state, n_out, 1) : NULL;
    both_weight w = {.cpu = weight_of(&cpu, n_out, n_in, master, bias)};
    size_t packed_bytes = cuda.weight_packed_bytes(&cuda, n_out, n_in);

    w.cuda = w.cpu;
    w.cuda.master = device_of(w.cpu.master, n * sizeof(float));
    if (has_bias)
        w.cuda.bias = device_of(w.cpu.bias, n_out * sizeof(float));
    w.cuda.packed = device_of(array_bytes(packed_bytes), packed_bytes);
    cuda.weight_pack(&cuda, &w.cuda);
    return w;
}

static void *scratch_open(size_t bytes)
{
    return device_of(array_bytes(bytes), bytes);
}

/* ---- products ---- */

static const struct {
    size_t n_tok, n_out, n_in;
} shapes[] = {
    {1, 8, 8},   {1, 1, 1},    {33, 20, 52},   {7, 36, 20},
    {70, 50, 3}, {40, 64, 96}, {130, 257, 33}, {300, 33, 72},
};
enum {
    N_SHAPES = sizeof(shapes) / sizeof(shapes[0])
};

START_TEST(linear_layers_are_the_cpus)
{
    const bool exact = _i % 2 == 0, has_bias = _i / 2 % 2 == 0;
    const size_t n_tok = shapes[_i / 4].n_tok, n_out = shapes[_i / 4].n_out;
    const size_t n_in = shapes[_i / 4].n_in;
    /* Rounding a weight moves a sum of many by less than it moves each. */
    const double bound = exact ? 2e-6 : 0x1p-8;
    uint64_t state = (uint64_t)_i + 1;
    both_weight w = weight_open(&state, exact, n_out, n_in, has_bias);
    both x = acts(&state, n_tok * n_in, 1), dy = acts(&state, n_tok * n_out, 1);
    both y = act_results(n_tok * n_out), dx = act_results(n_tok * n_in);
    both sum = accs(&state, n_tok * n_out, 1),
         dw = accs(&state, n_out * n_in, 1);
    both db = accs(&state, n_out, 1);
    void *room =
        array_bytes(cpu.linear_scratch_bytes(&cpu, n_tok, n_out, n_in));
    void *scratch =
        scratch_open(cuda.linear_scratch_bytes(&cuda, n_tok, n_out, n_in));

    cpu.linear_forward(&cpu, &w.cpu, n_tok, x.cpu, y.cpu, room);
    cuda.linear_forward(&cuda, &w.cuda, n_tok, x.cuda, y.cuda, scratch);
    ck_assert(agree("y", y, ACT_BOUND));
    cpu.linear_forward_add(&cpu, &w.cpu, n_tok, x.cpu, y.cpu, room);
    cuda.linear_forward_add(&cuda, &w.cuda, n_tok, x.cuda, y.cuda, scratch);
    ck_assert(agree("y + y", y, 2 * ACT_BOUND));
    cpu.linear_forward_residual(&cpu, &w.cpu, n_tok, x.cpu, sum.cpu, room);
    cuda.linear_forward_residual(&cuda, &w.cuda, n_tok, x.cuda, sum.cuda,
                                 scratch);
    ck_assert(agree("x + y", sum, bound));
    cpu.linear_backward(&cpu, &w.cpu, n_tok, dy.cpu, x.cpu, dx.cpu, dw.cpu,
                        db.cpu, room);
    cuda.linear_backward(&cuda, &w.cuda, n_tok, dy.cuda, x.cuda, dx.cuda,
                         dw.cuda, db.cuda, scratch);
    ck_assert(agree("dx", dx, ACT_BOUND));
    ck_assert(agree("dw", dw, 2e-6));
    ck_assert(agree("db", db, 2e-6));
    /* cuBLASLt wants rows of whole words. */
    ck_assert_int_eq(cf_cuda_n_refused(&cuda) > 0, n_in % 2 || n_out % 2);
}
END_TEST

START_TEST(the_plain_product_is_cublaslts_to_the_last_rounding)
{
    const size_t m = 40, n = 36, k = 70;
    uint64_t state = 3;
    cf_cuda_context *c = cf_cuda_context_of(&cuda);
    both a = acts(&state, m * k, 1), b = acts(&state, n * k, 1);
    both bias = acts(&state, n, 1);

    for (int form = 0; form < 8; form++) {
        both lt = accs(&state, m * n, 1);
        both plain = both_of(lt.cpu, m * n, sizeof(float));
        cf_cuda_product p = {.m = m,
                             .n = n,
                             .k = k,
                             .a = {a.cuda, form & 1 ? m : k, form & 1},
                             .b = {b.cuda, form & 2 ? k : n, form & 2},
                             .c = lt.cuda,
                             .c_type = CF_CUDA_ACC,
                             .add = form & 4,
                             .bias = form & 4 ? NULL : bias.cuda};

        ck_assert_int_eq(cf_cuda_lt_run(&c->lt, c->stream, &p), 0);
        p.c = plain.cuda;
        cf_cuda_product_run(c->stream, &p);
        plain.cpu = host_of(lt.cuda, m * n * sizeof(float));
        ck_assert(agree("c", plain, 1e-6));
    }
    ck_assert_uint_eq(c->lt.n_made, 8);
}
END_TEST

START_TEST(plans_are_made_once_and_the_oldest_goes)
{
    uint64_t state = 4;
    cf_cuda_context *c = cf_cuda_context_of(&cuda);
    both a = acts(&state, 600, 1), b = acts(&state, 16, 1);
    both y = act_results(600);

    for (size_t round = 0; round < 3; round++)
        for (size_t m = 1; m <= CF_CUDA_LT_KEPT + round / 2; m++) {
            cf_cuda_product p = {.m = m,
                                 .n = 4,
                                 .k = 4,
                                 .a = {a.cuda, 4, 0},
                                 .b = {b.cuda, 4, 1},
                                 .c = y.cuda};

            ck_assert_int_eq(cf_cuda_lt_run(&c->lt, c->stream, &p), 0);
        }
    ck_assert_uint_eq(c->lt.n_made, CF_CUDA_LT_KEPT + 1);
}
END_TEST

/* ---- the head ---- */

static const struct {
    size_t n_rows, n_vocab, n_in;
    double limit;
} heads[] = {
    {1, 8, 8, 1},    {7, 2, 6, 1},     {70, 50, 20, 30},  {33, 7, 5, 1},
    {513, 50, 6, 1}, {3, 4100, 16, 1}, {20, 1031, 8, 10},
};
enum {
    N_HEADS = sizeof(heads) / sizeof(heads[0])
};

/* Gradients of logits are rounded to bf16 here, and not on the CPU. */
START_TEST(the_head_is_the_cpus_but_for_a_rounding)
{
    const size_t n_rows = heads[_i].n_rows, n_vocab = heads[_i].n_vocab;
    const size_t n_in = heads[_i].n_in;
    uint64_t state = (uint64_t)_i + 1;
    both_weight w = weight_open(&state, true, n_vocab, n_in, false);
    both x = acts(&state, n_rows * n_in, heads[_i].limit);
    both dx = act_results(n_rows * n_in), dw = accs(&state, n_vocab * n_in, 0);
    double *want = array_double(n_rows), *got = array_double(n_rows);
    double *forward = array_double(n_rows);
    uint32_t *targets = array_u32(n_rows);
    void *room =
        array_bytes(cpu.head_scratch_bytes(&cpu, n_rows, n_vocab, n_in));
    void *scratch =
        scratch_open(cuda.head_scratch_bytes(&cuda, n_rows, n_vocab, n_in));

    for (size_t i = 0; i < n_rows; i++)
        targets[i] = random_below(&state, (uint32_t)n_vocab);
    cpu.head_backward(&cpu, &w.cpu, n_rows, x.cpu, targets, 0.125, want, dx.cpu,
                      dw.cpu, room);
    cuda.head_forward(&cuda, &w.cuda, n_rows, x.cuda, targets, forward,
                      scratch);
    cuda.head_backward(&cuda, &w.cuda, n_rows, x.cuda, targets, 0.125, got,
                       dx.cuda, dw.cuda, scratch);
    ck_assert_mem_eq(got, forward, n_rows * sizeof(double));
    ck_assert(close_arrays("loss", n_rows, got, want, 4e-6, 0));
    ck_assert(agree("dx", dx, ACT_BOUND + 0x1p-8));
    ck_assert(agree("dw", dw, 0x1p-8));
}
END_TEST

START_TEST(acts_are_the_nearest_bf16)
{
    const size_t n = 4 << 16;
    float *x = array_bytes(n * sizeof(float));
    both y = act_results(n);

    /* Every upper half, with lower halves around the middle between two bf16. */
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)(i >> 2 << 16) + 0x7fff + (uint32_t)(i & 3);

        memcpy(&x[i], &bits, sizeof(bits));
    }
    (void)cuda.as_act(&cuda, n, device_of(x, n * sizeof(float)), y.cuda);
    y.cpu = host_of(y.cuda, n * y.elem_bytes);
    for (size_t i = 0; i < n; i++) {
        double got = act_get(&cpu, y.cpu, i), want = nearest_bf16(x[i]);

        ck_assert(isnan(want) ? isnan(got) : got == want);
        ck_assert(isnan(want) || signbit(got) == signbit(want));
    }
}
END_TEST

START_TEST(adamw_leaves_a_rounded_copy)
{
    const size_t n = 5001;
    const cf_adamw_params p = {.learning_rate = 0.1,
                               .beta1 = 0.9,
                               .beta2 = 0.99,
                               .eps = 1e-8,
                               .weight_decay = 0.1,
                               .correction1 = 0.1,
                               .correction2 = 0.01,
                               .g_scale = 0.5};
    uint64_t state = 9;
    both g = accs(&state, n, 1), w = accs(&state, n, 1);
    both m = accs(&state, n, 0), v = accs(&state, n, 0);
    both copy = act_results(n);

    cpu.adamw(&cpu, n, &p, g.cpu, w.cpu, m.cpu, v.cpu);
    cf_cuda_adamw(cf_cuda_context_of(&cuda)->stream, n, &p, g.cuda, w.cuda,
                  m.cuda, v.cuda, copy.cuda);
    (void)cpu.as_act(&cpu, n, host_of(w.cuda, n * sizeof(float)), copy.cpu);
    ck_assert(agree("w", w, 1e-6));
    ck_assert(agree("m", m, 1e-6));
    ck_assert(agree("v", v, 1e-6));
    ck_assert(agree("copy", copy, 0));
}
END_TEST

/* ---- failures ---- */

START_TEST(a_failure_of_the_runtime_leaves_nothing_behind)
{
    const cf_cuda_config config = {.staging_bytes = 1 << 12,
                                   .workspace_bytes = 1 << 10};
    size_t held = simrt_device_bytes();
    void *room = array_bytes(cf_cuda_backend_bytes());
    size_t calls = 0;

    for (;; calls++) {
        const char *why = NULL;
        cf_kernels k;
        cf_status status;

        simrt_fail(cudaErrorMemoryAllocation, calls);
        status = cf_cuda_open(room, &config, &k, &why);
        if (status == CF_OK) {
            simrt_fail(cudaSuccess, 0);
            cf_cuda_close(&k);
            break;
        }
        ck_assert_ptr_nonnull(why);
        ck_assert_uint_eq(simrt_device_bytes(), held);
    }
    ck_assert_uint_ge(calls, 9);
}
END_TEST

START_TEST(the_first_failure_is_told_once_and_later)
{
    uint64_t state = 1;
    both x = accs(&state, 100, 1), y = accs(&state, 100, 1);

    simrt_fail(cudaErrorLaunchFailure, 0);
    cuda.add(&cuda, 100, x.cuda, y.cuda);
    cuda.add(&cuda, 100, x.cuda, y.cuda);
    ck_assert_int_eq(cuda.status(&cuda), CF_DEVICE);
    ck_assert_int_eq(cuda.status(&cuda), CF_OK);
    simrt_fail(cudaErrorMemoryAllocation, 0);
    cuda.zero(&cuda, y.cuda, 100);
    ck_assert_int_eq(cuda.status(&cuda), CF_NO_MEMORY);
}
END_TEST

START_TEST(an_array_beyond_the_staging_is_a_failure)
{
    cf_kernels k = cuda_open(4096);
    uint64_t state = 1;
    uint32_t rows[1000] = {0};
    both x = accs(&state, 1000, 1), y = accs(&state, 1000, 1);

    k.rows_gather(&k, 512, 1, rows, x.cuda, y.cuda);
    ck_assert_int_eq(k.status(&k), CF_OK);
    k.rows_gather(&k, 513, 1, rows, x.cuda, y.cuda);
    ck_assert_int_eq(k.status(&k), CF_NO_MEMORY);
    cf_cuda_close(&k);
}
END_TEST

/* ---- what the simulated GPU catches ---- */

START_TEST(a_broken_kernel_ends_the_program)
{
    broken_run((broken)_i);
}
END_TEST

START_TEST(the_host_cannot_touch_device_memory)
{
    uint64_t state = 1;
    both x = accs(&state, 16, 1);

    printf("%g\n", (double)((volatile float *)x.cuda)[3]);
}
END_TEST

START_TEST(a_kernel_that_lacks_a_barrier_gives_other_results_in_some_order)
{
    static const long orders[] = {0, 1, 7};
    int n_wrong = 0;

    for (size_t i = 0; i < 3; i++) {
        gpusim_set_order(orders[i]);
        ck_assert_uint_eq(broken_sum(BROKEN_NOTHING), 256 * 255 / 2);
        n_wrong += broken_sum(BROKEN_NO_BARRIER) != 256 * 255 / 2;
    }
    ck_assert_int_ge(n_wrong, 1);
}
END_TEST

static Suite *cuda_suite(void)
{
    Suite *suite = suite_create("cuda");
    TCase *ops = tcase_create("ops"), *failures = tcase_create("failures");
    TCase *sim = tcase_create("gpusim");

    tcase_add_checked_fixture(ops, both_open, both_close);
    tcase_add_loop_test(ops, linear_layers_are_the_cpus, 0, 4 * N_SHAPES);
    tcase_add_test(ops, the_plain_product_is_cublaslts_to_the_last_rounding);
    tcase_add_test(ops, plans_are_made_once_and_the_oldest_goes);
    tcase_add_loop_test(ops, the_head_is_the_cpus_but_for_a_rounding, 0,
                        N_HEADS);
    tcase_add_test(ops, acts_are_the_nearest_bf16);
    tcase_add_test(ops, adamw_leaves_a_rounded_copy);
    tcase_set_timeout(ops, 60);
    suite_add_tcase(suite, ops);

    tcase_add_checked_fixture(failures, both_open, both_close);
    tcase_add_test(failures, a_failure_of_the_runtime_leaves_nothing_behind);
    tcase_add_test(failures, the_first_failure_is_told_once_and_later);
    tcase_add_test(failures, an_array_beyond_the_staging_is_a_failure);
    suite_add_tcase(suite, failures);

    tcase_add_checked_fixture(sim, both_open, NULL);
    tcase_add_loop_test_raise_signal(sim, a_broken_kernel_ends_the_program,
                                     SIGABRT, BROKEN_EARLY_RETURN,
                                     BROKEN_COUNT);
    tcase_add_test_raise_signal(sim, the_host_cannot_touch_device_memory,
                                SIGSEGV);
    tcase_add_test(
        sim, a_kernel_that_lacks_a_barrier_gives_other_results_in_some_order);
    suite_add_tcase(suite, sim);
    return suite;
}

/* All tests in three orders of threads: what a missing barrier spoils shows in one
 * of them. */
int main(void)
{
    static const long orders[] = {0, 1, 7};
    SRunner *runner = srunner_create(cuda_suite());

    for (size_t i = 0; i < sizeof(orders) / sizeof(orders[0]); i++) {
        gpusim_set_order(orders[i]);
        srunner_run_all(runner, CK_ENV);
    }

    int n_failed = srunner_ntests_failed(runner);

    srunner_free(runner);
    return n_failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
