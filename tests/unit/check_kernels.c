/* check_kernels.c - the CPU backend: choice of a variant, memory, sums, AdamW.
 *
 * Loop tests run once a type: _i is the cf_compute.
 */
#include <check.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/arrays.h"
#include "tests/lib/close.h"

static const size_t sizes[] = {0, 1, 7, 8, 9, 63, 4095, 4096, 4097, 50001};
enum {
    N_SIZES = sizeof(sizes) / sizeof(sizes[0])
};

/* ---- choice ---- */

START_TEST(a_forced_instruction_set_is_obeyed_or_refused)
{
    static const struct {
        const char *isa;
        bool valid;
    } cases[] = {{"avx2", true}, {"", true}, {"sse", false}, {"AVX2", false}};
    static const char *const names[] = {
        [CF_COMPUTE_FP32] = "cpu fp32 avx2",
        [CF_COMPUTE_FP64] = "cpu fp64 avx2",
        [CF_COMPUTE_BF16] = "cpu bf16 avx2",
    };
    static const char *const amx_names[] = {
        [CF_COMPUTE_FP32] = "cpu fp32 avx512",
        [CF_COMPUTE_FP64] = "cpu fp64 avx512",
        [CF_COMPUTE_BF16] = "cpu bf16 amx",
    };
    cf_kernels k;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *why = NULL;

        setenv("CF_CPU_ISA", cases[i].isa, 1);

        cf_status status = cf_cpu_kernels((cf_compute)_i, &k, &why);

        ck_assert_int_eq(status, cases[i].valid ? CF_OK : CF_INVALID);
        ck_assert_int_eq(why == NULL, cases[i].valid);
    }

    setenv("CF_CPU_ISA", "avx2", 1);
    k = kernels_of((cf_compute)_i);
    ck_assert_str_eq(k.name, names[_i]);
    setenv("CF_CPU_ISA", "avx512", 1);

    const char *why = NULL;
    cf_status status = cf_cpu_kernels((cf_compute)_i, &k, &why);

    if (__builtin_cpu_supports("avx512vl"))
        ck_assert_str_eq(k.name + strlen(k.name) - 6, "avx512");
    else
        ck_assert_int_eq(status, CF_INVALID);

    /* fp32 and fp64 have AVX-512 for it; bf16 wants oneDNN, too. */
    setenv("CF_CPU_ISA", "amx", 1);
    why = NULL;
    status = cf_cpu_kernels((cf_compute)_i, &k, &why);
    if (status == CF_OK)
        ck_assert_str_eq(k.name, amx_names[_i]);
    else
        ck_assert_ptr_nonnull(why);
    unsetenv("CF_CPU_ISA");
}
END_TEST

START_TEST(a_table_is_complete_and_says_its_type)
{
    cf_kernels k = kernels_of((cf_compute)_i);
    static const size_t act_bytes[] = {4, 8, 2}, acc_bytes[] = {4, 8, 4};
    void *op = NULL;

    ck_assert_int_eq((int)k.compute, _i);
    ck_assert_uint_eq(k.act_bytes, act_bytes[_i]);
    ck_assert_uint_eq(k.acc_bytes, acc_bytes[_i]);
    if (strstr(k.name, "amx") == NULL)
        ck_assert_int_eq(k.advice != NULL, _i == CF_COMPUTE_BF16);
    ck_assert_int_eq(k.status(&k), CF_OK);
    for (const char *p = (const char *)&k.status;
         p < (const char *)(&k.adamw + 1); p += sizeof(op)) {
        memcpy(&op, p, sizeof(op));
        ck_assert_ptr_nonnull(op);
    }
}
END_TEST

/* ---- memory ---- */

START_TEST(memory_is_cleared_and_copied_to_the_byte)
{
    cf_kernels k = kernels_of((cf_compute)_i);

    for (size_t i = 0; i < N_SIZES; i++) {
        size_t n = 9 * sizes[i];
        unsigned char *x = array_bytes(n + 1);
        unsigned char *y = array_bytes(n + 1);

        k.zero(&k, x, n);
        for (size_t j = 0; j < n; j++) {
            ck_assert_uint_eq(x[j], 0);
            x[j] = (unsigned char)(j * 31);
        }
        k.copy(&k, x, y, n);
        ck_assert_mem_eq(x, y, n);
        ck_assert_uint_eq(y[n], 0xff);
    }
}
END_TEST

START_TEST(equal_types_need_no_conversion)
{
    cf_kernels k = kernels_of((cf_compute)_i);
    void *x = array_out(&k, 5);

    ck_assert_ptr_eq(k.as_act(&k, 5, x, NULL), x);
}
END_TEST

static float float_of(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

static const uint16_t *rounded(const cf_kernels *k, size_t n, const float *x)
{
    void *y = act_out(k, n);

    ck_assert_ptr_eq(k->as_act(k, n, x, y), y);
    return y;
}

START_TEST(bf16_is_the_nearest_to_the_bit)
{
    static const struct {
        uint32_t from;
        uint16_t to;
    } cases[] = {
        {0x3f808000, 0x3f80}, /* a tie goes to the even one */
        {0x3f818000, 0x3f82}, {0x3f808001, 0x3f81}, {0x3f807fff, 0x3f80},
        {0xbf818000, 0xbf82}, {0x00000000, 0x0000}, {0x80000000, 0x8000},
        {0x00008000, 0x0000}, /* denormals are no exception */
        {0x00008001, 0x0001}, {0x00018000, 0x0002}, {0x807f8000, 0x8080},
        {0x00000001, 0x0000}, {0x7f7f7fff, 0x7f7f}, /* the largest */
        {0x7f7f8000, 0x7f80},                       /* and beyond it Inf */
        {0xff7fffff, 0xff80}, {0x7f800000, 0x7f80}, {0xff800000, 0xff80},
        {0x7f800001, 0x7fc0}, /* a NaN stays one */
        {0x7fffffff, 0x7fff}, {0xffc00000, 0xffc0}, {0xff80ffff, 0xffc0},
    };
    enum {
        N_CASES = sizeof(cases) / sizeof(cases[0]),
        N = 5 * N_CASES + 20003
    };
    cf_kernels k = kernels_of(CF_COMPUTE_BF16);
    float *x = array_bytes(N * sizeof(*x));
    const uint16_t *got;
    uint64_t state = 12;

    for (size_t i = 0; i < N; i++)
        x[i] = float_of(i < 5 * N_CASES ? cases[i % N_CASES].from
                                        : random_below(&state, UINT32_MAX));
    got = rounded(&k, N, x);
    for (size_t i = 0; i < N; i++) {
        if (i < 5 * N_CASES)
            ck_assert_uint_eq(got[i], cases[i % N_CASES].to);
        if (isnan(x[i]))
            ck_assert(isnan(act_get(&k, got, i)));
        else
            ck_assert(act_get(&k, got, i) == nearest_bf16(x[i]));
    }
}
END_TEST

START_TEST(every_bf16_survives_widening)
{
    enum {
        N = 1 << 16
    };
    cf_kernels k = kernels_of(CF_COMPUTE_BF16);
    float *x = array_bytes(N * sizeof(*x));
    const uint16_t *got;

    for (uint32_t i = 0; i < N; i++)
        x[i] = float_of(i << 16);
    got = rounded(&k, N, x);
    for (uint32_t i = 0; i < N; i++)
        ck_assert_uint_eq(got[i], isnan(x[i]) ? i | 0x40 : i);
}
END_TEST

START_TEST(rows_scatter_and_gather_undo_each_other)
{
    cf_kernels k = kernels_of((cf_compute)_i);
    uint64_t state = 11;

    for (size_t round = 0; round < 60; round++) {
        size_t n = round % 3 == 0 ? 576 : 1 + random_below(&state, 40);
        size_t n_tok = 1 + random_below(&state, 70);
        size_t n_rows = 0;
        uint32_t *rows = array_u32(n_tok);

        for (uint32_t tok = 0; tok < n_tok; tok++)
            if (random_below(&state, 4) < round % 5)
                rows[n_rows++] = tok;

        double *x = random_values(&state, n_rows * n, 1);
        double *want = array_double(n_tok * n);
        void *y = array_out(&k, n_tok * n);
        void *back = array_out(&k, n_rows * n);

        memset(want, 0, n_tok * n * sizeof(double));
        for (size_t i = 0; i < n_rows; i++)
            memcpy(want + rows[i] * n, x + i * n, n * sizeof(double));
        k.rows_scatter(&k, n_rows, n_tok, n, rows, array_of(&k, n_rows * n, x),
                       y);
        k.rows_gather(&k, n_rows, n, rows, y, back);
        ck_assert(close_arrays("scattered", n_tok * n,
                               values_of(&k, n_tok * n, y), want, 0, 11));
        ck_assert(close_arrays("gathered", n_rows * n,
                               values_of(&k, n_rows * n, back), x, 0, 11));
        arrays_close();
    }
}
END_TEST

START_TEST(the_first_row_that_is_not_finite_is_found)
{
    static const double bad[] = {NAN, INFINITY, -INFINITY};
    cf_kernels k = kernels_of((cf_compute)_i);
    uint64_t state = 5;

    for (size_t round = 0; round < 40; round++) {
        size_t n = 1 + random_below(&state, 40);
        size_t n_rows = random_below(&state, 1500);
        double *x = random_values(&state, n_rows * n, 1e38);
        size_t want = n_rows;

        for (size_t i = 0; n_rows > 0 && i < round % 4; i++) {
            size_t row = random_below(&state, (uint32_t)n_rows);

            x[row * n + random_below(&state, (uint32_t)n)] = bad[i];
            want = row < want ? row : want;
        }
        ck_assert_uint_eq(
            k.first_bad_row(&k, n_rows, n, array_of(&k, n_rows * n, x)), want);
        arrays_close();
    }
}
END_TEST

/* ---- sums ---- */

START_TEST(a_sum_of_squares_is_right_to_double_and_one_a_block)
{
    cf_kernels k = kernels_of((cf_compute)_i);
    uint64_t state = 3;

    for (size_t i = 0; i < N_SIZES; i++) {
        size_t n = sizes[i];
        size_t n_parts = (n + CF_NORM_BLOCK - 1) / CF_NORM_BLOCK;
        double *x = random_values(&state, n, 1e15);
        double *got = array_double(n_parts + 1);
        double *want = array_double(n_parts);

        for (size_t b = 0; b < n_parts; b++) {
            long double sum = 0;

            for (size_t j = b * CF_NORM_BLOCK;
                 j < n && j < (b + 1) * CF_NORM_BLOCK; j++)
                sum += (long double)x[j] * x[j];
            want[b] = (double)sum;
        }
        k.sum_squares(&k, n, array_of(&k, n, x), got);
        ck_assert(close_arrays("sum of squares", n_parts, got, want, 1e-14, 3));
        ck_assert(isnan(got[n_parts]));
    }
}
END_TEST

START_TEST(arrays_add_up)
{
    cf_kernels k = kernels_of((cf_compute)_i);
    uint64_t state = 4;

    for (size_t i = 0; i < N_SIZES; i++) {
        size_t n = sizes[i];
        double *x = random_values(&state, n, 1);
        double *y = random_values(&state, n, 1);
        void *got = array_of(&k, n, y);

        k.add(&k, n, array_of(&k, n, x), got);
        for (size_t j = 0; j < n; j++)
            y[j] = _i == CF_COMPUTE_FP64 ? x[j] + y[j] : (float)(x[j] + y[j]);
        ck_assert(close_arrays("sum", n, values_of(&k, n, got), y, 0, 4));
    }
}
END_TEST

/* ---- optimizer ---- */

/* torch.optim.AdamW, line by line, in double. */
static void adamw_reference(size_t n, const cf_adamw_params *p, const double *g,
                            double *w, double *m, double *v)
{
    for (size_t i = 0; i < n; i++) {
        double grad = g[i] * p->g_scale;
        double denom;

        w[i] *= 1 - p->learning_rate * p->weight_decay;
        m[i] += (1 - p->beta1) * (grad - m[i]);
        v[i] = v[i] * p->beta2 + (1 - p->beta2) * grad * grad;
        denom = sqrt(v[i]) / sqrt(p->correction2) + p->eps;
        w[i] -= p->learning_rate / p->correction1 * m[i] / denom;
    }
}

START_TEST(five_steps_of_adamw_follow_pytorch)
{
    cf_kernels k = kernels_of((cf_compute)_i);
    double bound = bound_of(&k, 2e-6, 1e-14);
    uint64_t state = 8;

    for (size_t i = 0; i < N_SIZES; i++) {
        size_t n = sizes[i];
        double *w = random_values(&state, n, 1);
        double *m = random_values(&state, n, 0);
        double *v = random_values(&state, n, 0);
        void *got_w = array_of(&k, n, w);
        void *got_m = array_of(&k, n, m);
        void *got_v = array_of(&k, n, v);
        cf_adamw_params p = {
            .learning_rate = 3e-3,
            .beta1 = 0.9,
            .beta2 = 0.95,
            .eps = 1e-8,
            .weight_decay = 0.1,
        };

        for (int step = 1; step <= 5; step++) {
            double *g = random_values(&state, n, pow(10, step - 3));

            p.learning_rate *= 0.9;
            p.g_scale = step % 2 == 0 ? 0.37 : 1;
            p.correction1 = 1 - pow(p.beta1, step);
            p.correction2 = 1 - pow(p.beta2, step);
            adamw_reference(n, &p, g, w, m, v);
            k.adamw(&k, n, &p, array_of(&k, n, g), got_w, got_m, got_v);
        }
        ck_assert(close_arrays("w", n, values_of(&k, n, got_w), w, bound, 8));
        ck_assert(close_arrays("m", n, values_of(&k, n, got_m), m, bound, 8));
        ck_assert(close_arrays("v", n, values_of(&k, n, got_v), v, bound, 8));
    }
}
END_TEST

START_TEST(a_zero_gradient_moves_a_weight_by_its_decay_only)
{
    cf_kernels k = kernels_of((cf_compute)_i);
    double w[3] = {1, -2, 4}, zero[3] = {0};
    double want[3] = {0.5, -1, 2};
    void *got = array_of(&k, 3, w);
    void *m = array_of(&k, 3, zero);
    void *v = array_of(&k, 3, zero);
    cf_adamw_params p = {0.5, 0.9, 0.999, 1e-8, 1, 0.1, 0.001, 1};

    k.adamw(&k, 3, &p, array_of(&k, 3, zero), got, m, v);
    ck_assert(close_arrays("w", 3, values_of(&k, 3, got), want, 0, 0));
}
END_TEST

/* ---- threads ---- */

START_TEST(sums_and_adamw_have_the_same_bits_for_any_number_of_threads)
{
    enum {
        N = 50001,
        N_PARTS = (N + CF_NORM_BLOCK - 1) / CF_NORM_BLOCK
    };
    cf_kernels k = kernels_of((cf_compute)_i);
    int n_threads = omp_get_max_threads();
    uint64_t state = 9;
    double *x = random_values(&state, N, 1);
    double *y = random_values(&state, N, 1);
    double *squares = array_double(N);
    cf_adamw_params p = {1e-3, 0.9, 0.999, 1e-8, 0.1, 0.1, 0.001, 0.7};
    void *want_y = NULL, *want_w = NULL;
    double *want_parts = NULL;

    for (size_t i = 0; i < N; i++)
        squares[i] = x[i] * x[i];
    for (int threads = 1; threads <= 5; threads++) {
        void *got_y = array_of(&k, N, y), *got_w = array_of(&k, N, y);
        void *m = array_of(&k, N, y), *v = array_of(&k, N, squares);
        void *in = array_of(&k, N, x);
        double *parts = array_double(N_PARTS);

        omp_set_num_threads(threads);
        k.add(&k, N, in, got_y);
        k.adamw(&k, N, &p, in, got_w, m, v);
        k.sum_squares(&k, N, in, parts);
        if (threads == 1) {
            want_y = got_y, want_w = got_w, want_parts = parts;
        } else {
            ck_assert_mem_eq(got_y, want_y, N * k.acc_bytes);
            ck_assert_mem_eq(got_w, want_w, N * k.acc_bytes);
            ck_assert_mem_eq(parts, want_parts, sizeof(double) * N_PARTS);
        }
    }
    omp_set_num_threads(n_threads);
}
END_TEST

static Suite *kernels_suite(void)
{
    Suite *suite = suite_create("kernels");
    TCase *tc = tcase_create("ops");

    tcase_add_checked_fixture(tc, NULL, arrays_close);
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, a_forced_instruction_set_is_obeyed_or_refused, 0,
                        3);
    tcase_add_loop_test(tc, a_table_is_complete_and_says_its_type, 0, 3);
    tcase_add_test(tc, bf16_is_the_nearest_to_the_bit);
    tcase_add_test(tc, every_bf16_survives_widening);
    tcase_add_loop_test(tc, memory_is_cleared_and_copied_to_the_byte, 0, 3);
    tcase_add_loop_test(tc, equal_types_need_no_conversion, 0, 2);
    tcase_add_loop_test(tc, rows_scatter_and_gather_undo_each_other, 0, 3);
    tcase_add_loop_test(tc, the_first_row_that_is_not_finite_is_found, 0, 3);
    tcase_add_loop_test(tc, a_sum_of_squares_is_right_to_double_and_one_a_block,
                        0, 3);
    tcase_add_loop_test(tc, arrays_add_up, 0, 3);
    tcase_add_loop_test(tc, five_steps_of_adamw_follow_pytorch, 0, 3);
    tcase_add_loop_test(tc, a_zero_gradient_moves_a_weight_by_its_decay_only, 0,
                        3);
    tcase_add_loop_test(
        tc, sums_and_adamw_have_the_same_bits_for_any_number_of_threads, 0, 3);
    suite_add_tcase(suite, tc);
    return suite;
}

int main(void)
{
    SRunner *runner = srunner_create(kernels_suite());

    srunner_run_all(runner, CK_NORMAL);

    int failed = srunner_ntests_failed(runner);

    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
