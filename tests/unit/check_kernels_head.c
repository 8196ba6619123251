/* check_kernels_head.c - the fused head: linear layer and cross-entropy.
 *
 * Held against a naive loop in double, whose gradients are held against finite
 * differences.  _i is the cf_compute.
 */
#include <check.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/arrays.h"
#include "tests/lib/close.h"

typedef struct head_case {
    size_t n_rows, n_vocab, n_in;
    double scale;
    double *x, *w;
    uint32_t *targets;
} head_case;

static head_case head_case_of(const cf_kernels *k, uint64_t *state,
                              size_t n_rows, size_t n_vocab, size_t n_in,
                              double limit)
{
    head_case c = {
        .n_rows = n_rows,
        .n_vocab = n_vocab,
        .n_in = n_in,
        .scale = 0.25,
        .x = random_acts(k, state, n_rows * n_in, limit),
        .w = random_values(state, n_vocab * n_in, 1),
        .targets = array_u32(n_rows),
    };

    for (size_t row = 0; row < n_rows; row++)
        c.targets[row] = random_below(state, (uint32_t)n_vocab);
    return c;
}

/* The loss of one row; p [n_vocab] gets its probabilities. */
static double row_loss(const head_case *c, size_t row, double *p)
{
    const double *x = c->x + row * c->n_in;
    double max = -INFINITY, sum = 0;

    for (size_t o = 0; o < c->n_vocab; o++) {
        p[o] = 0;
        for (size_t i = 0; i < c->n_in; i++)
            p[o] += x[i] * c->w[o * c->n_in + i];
        max = p[o] > max ? p[o] : max;
    }

    double at_target = p[c->targets[row]] - max;

    for (size_t o = 0; o < c->n_vocab; o++)
        sum += p[o] = exp(p[o] - max);
    for (size_t o = 0; o < c->n_vocab; o++)
        p[o] /= sum;
    return log(sum) - at_target;
}

static double scaled_loss(const void *context)
{
    const head_case *c = context;
    double *p = malloc(c->n_vocab * sizeof(double));
    double sum = 0;

    ck_assert_ptr_nonnull(p);
    for (size_t row = 0; row < c->n_rows; row++)
        sum += row_loss(c, row, p);
    free(p);
    return sum * c->scale;
}

/* loss, dx; dw +=. */
static void head_reference(const head_case *c, double *loss, double *dx,
                           double *dw)
{
    double *p = array_double(c->n_vocab);

    memset(dx, 0, c->n_rows * c->n_in * sizeof(double));
    for (size_t row = 0; row < c->n_rows; row++) {
        loss[row] = row_loss(c, row, p);
        p[c->targets[row]] -= 1;
        for (size_t o = 0; o < c->n_vocab; o++)
            for (size_t i = 0; i < c->n_in; i++) {
                size_t xi = row * c->n_in + i, wi = o * c->n_in + i;

                dx[xi] += c->scale * p[o] * c->w[wi];
                dw[wi] += c->scale * p[o] * c->x[xi];
            }
    }
}

/* What a backend makes of a case; dw NULL when it is not wanted. */
typedef struct head_result {
    double *loss_forward, *loss;
    void *dx, *dw;
} head_result;

static head_result run_head(const cf_kernels *k, const head_case *c,
                            const double *dw)
{
    size_t n_x = c->n_rows * c->n_in, n_w = c->n_vocab * c->n_in;
    cf_weight w = weight_of(k, c->n_vocab, c->n_in, c->w, NULL);
    void *x = act_of(k, n_x, c->x);
    void *scratch =
        array_bytes(k->head_scratch_bytes(k, c->n_rows, c->n_vocab, c->n_in));
    head_result r = {
        .loss_forward = array_double(c->n_rows),
        .loss = array_double(c->n_rows),
        .dx = act_out(k, n_x),
        .dw = dw != NULL ? array_of(k, n_w, dw) : NULL,
    };

    k->head_forward(k, &w, c->n_rows, x, c->targets, r.loss_forward, scratch);
    k->head_backward(k, &w, c->n_rows, x, c->targets, c->scale, r.loss, r.dx,
                     r.dw, scratch);
    return r;
}

static const struct {
    size_t n_rows, n_vocab, n_in;
} shapes[] = {
    {0, 50, 20},  {1, 50, 20},   {1, 1, 1},    {7, 2, 6},      {70, 50, 20},
    {33, 7, 5},   {20, 1031, 8}, {511, 50, 6}, {512, 50, 6},   {513, 50, 6},
    {1100, 9, 5}, {3, 4100, 16}, {5, 8, 8},    {600, 130, 20},
};
enum {
    N_SHAPES = sizeof(shapes) / sizeof(shapes[0])
};

START_TEST(the_head_has_the_loss_and_gradients_of_cross_entropy)
{
    static const double limits[] = {0.1, 1, 30};
    cf_kernels k = kernels_of((cf_compute)_i);
    double bound = bound_of(&k, 4e-6, 1e-13);
    uint64_t state = 1;

    for (size_t i = 0; i < 3 * N_SHAPES; i++) {
        head_case c = head_case_of(&k, &state, shapes[i / 3].n_rows,
                                   shapes[i / 3].n_vocab, shapes[i / 3].n_in,
                                   limits[i % 3]);
        size_t n_x = c.n_rows * c.n_in, n_w = c.n_vocab * c.n_in;
        double *loss = array_double(c.n_rows), *dx = array_double(n_x);
        double *dw = random_values(&state, n_w, 1);
        head_result r = run_head(&k, &c, dw);
        head_result frozen = run_head(&k, &c, NULL);
        double wider = i % 3 == 2 ? 10 * bound : bound;

        head_reference(&c, loss, dx, dw);
        ck_assert_mem_eq(r.loss, r.loss_forward, c.n_rows * sizeof(double));
        ck_assert_mem_eq(r.loss, frozen.loss, c.n_rows * sizeof(double));
        ck_assert_mem_eq(r.dx, frozen.dx, n_x * k.act_bytes);
        ck_assert(close_arrays("loss", c.n_rows, r.loss, loss, bound, 1));
        ck_assert(close_arrays("dx", n_x, act_values_of(&k, n_x, r.dx), dx,
                               act_bound_of(&k, wider, wider), 1));
        ck_assert(
            close_arrays("dw", n_w, values_of(&k, n_w, r.dw), dw, wider, 1));
        arrays_close();
    }
}
END_TEST

START_TEST(the_reference_of_the_head_agrees_with_finite_differences)
{
    cf_kernels k = kernels_of(CF_COMPUTE_FP64);
    uint64_t state = 2;
    head_case c = head_case_of(&k, &state, 5, 7, 6, 1);
    double loss[5], dx[30], dw[42] = {0};
    double want_dx[30], want_dw[42];

    head_reference(&c, loss, dx, dw);
    finite_difference(scaled_loss, &c, 30, c.x, want_dx);
    finite_difference(scaled_loss, &c, 42, c.w, want_dw);
    ck_assert(close_arrays("dx", 30, dx, want_dx, 1e-9, 2));
    ck_assert(close_arrays("dw", 42, dw, want_dw, 1e-9, 2));
}
END_TEST

/* Rows whose logits are given: n_in = 1, x = 1, w = the logits. */
START_TEST(extreme_logits_give_the_right_loss_or_nan)
{
    static const struct {
        double logits[11]; /* beyond a vector; the rest are 0 */
        uint32_t target;
        double loss;
    } cases[] = {
        {{1e30, -1e30}, 0, 0},
        {{-1e30, -1e30, -1e30}, 3, 2.0794415416798357 /* log 8 */},
        {{300, 200}, 1, 100},
        {{80, 80, 80, 80, 80, 80, 80, 80, 80, 80, 80}, 9, 2.3978952727983707},
        {{0, -INFINITY, 0}, 0, 2.302585092994046 /* log 10 */},
        {{0, -INFINITY, 0}, 1, INFINITY},
        {{0, INFINITY}, 0, NAN},
        {{0, INFINITY}, 1, NAN},
        {{NAN}, 1, NAN},
        {{0, 0, NAN}, 0, NAN},
        {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, NAN}, 0, NAN},
        {{NAN, INFINITY, -INFINITY}, 5, NAN},
        {{-INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY,
          -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY},
         2,
         NAN},
    };
    cf_kernels k = kernels_of((cf_compute)_i);
    double one = 1;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        head_case c = {
            .n_rows = 1,
            .n_vocab = 11,
            .n_in = 1,
            .scale = 1,
            .x = &one,
            .w = copy_of(11, cases[i].logits),
            .targets = array_u32(1),
        };
        double zero[11] = {0};

        c.targets[0] = cases[i].target;

        head_result r = run_head(&k, &c, zero);
        double want = cases[i].loss;

        ck_assert_mem_eq(r.loss, r.loss_forward, sizeof(double));
        ck_assert_msg(close_arrays("loss", 1, r.loss, &want,
                                   bound_of(&k, 1e-7, 1e-15), i),
                      "case %zu", i);
        for (size_t j = 0; isfinite(want) && j < 11; j++)
            ck_assert(isfinite(values_of(&k, 11, r.dw)[j]));
    }
}
END_TEST

/* Only rows with a target enter: gathered rows give the losses of their own. */
START_TEST(a_row_does_not_depend_on_the_rows_beside_it)
{
    enum {
        N = 96,
        N_VOCAB = 50,
        N_IN = 20
    };
    cf_kernels k = kernels_of((cf_compute)_i);
    uint64_t state = 4;
    head_case all = head_case_of(&k, &state, N, N_VOCAB, N_IN, 2);
    double *zero = random_values(&state, N_VOCAB * N_IN, 0);
    head_result want = run_head(&k, &all, zero);
    double *want_dx = act_values_of(&k, N * N_IN, want.dx);

    for (uint32_t density = 0; density <= 8; density++) {
        head_case some = all;
        uint32_t rows[N];

        some.n_rows = 0;
        some.x = array_double(N * N_IN);
        some.targets = array_u32(N);
        for (uint32_t row = 0; row < N; row++) {
            if (random_below(&state, 8) >= density)
                continue;
            memcpy(some.x + some.n_rows * N_IN, all.x + row * N_IN,
                   N_IN * sizeof(double));
            some.targets[some.n_rows] = all.targets[row];
            rows[some.n_rows++] = row;
        }

        head_result r = run_head(&k, &some, zero);
        double *dx = act_values_of(&k, some.n_rows * N_IN, r.dx);

        for (size_t i = 0; i < some.n_rows; i++) {
            double bound = bound_of(&k, 1e-6, 1e-14);

            ck_assert(close_arrays("loss", 1, &r.loss[i], &want.loss[rows[i]],
                                   bound, 4));
            ck_assert(close_arrays("dx", N_IN, dx + i * N_IN,
                                   want_dx + rows[i] * N_IN,
                                   2 * act_bound_of(&k, bound, bound), 4));
        }
    }
}
END_TEST

START_TEST(losses_have_the_same_bits_for_any_number_of_threads)
{
    cf_kernels k = kernels_of((cf_compute)_i);
    int n_threads = omp_get_max_threads();
    uint64_t state = 5;
    /* Products of one term: the GEMM cannot differ. */
    head_case c = head_case_of(&k, &state, 530, 1031, 1, 20);
    double *zero = random_values(&state, 1031, 0);
    double *want = NULL;

    for (int threads = 1; threads <= 5; threads++) {
        omp_set_num_threads(threads);

        head_result r = run_head(&k, &c, zero);

        if (threads == 1)
            want = r.loss;
        ck_assert_mem_eq(r.loss, want, 530 * sizeof(double));
    }
    omp_set_num_threads(n_threads);
}
END_TEST

START_TEST(scratch_grows_with_every_count_and_stays_near_128_mib)
{
    cf_kernels k = kernels_of((cf_compute)_i);
    size_t last = 0;

    for (size_t n_rows = 0; n_rows < 2000; n_rows += 100) {
        size_t bytes = k.head_scratch_bytes(&k, n_rows, 49152, 576);

        ck_assert_uint_ge(bytes, last);
        ck_assert_uint_ge(k.head_scratch_bytes(&k, n_rows, 49153, 576), bytes);
        last = bytes;
    }
    ck_assert_uint_le(last, (size_t)32 * k.acc_bytes << 20);
}
END_TEST

static Suite *head_suite(void)
{
    Suite *suite = suite_create("kernels of the head");
    TCase *tc = tcase_create("head");

    tcase_add_checked_fixture(tc, NULL, arrays_close);
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(
        tc, the_head_has_the_loss_and_gradients_of_cross_entropy, 0, 3);
    tcase_add_test(tc,
                   the_reference_of_the_head_agrees_with_finite_differences);
    tcase_add_loop_test(tc, extreme_logits_give_the_right_loss_or_nan, 0, 3);
    tcase_add_loop_test(tc, a_row_does_not_depend_on_the_rows_beside_it, 0, 3);
    tcase_add_loop_test(tc, losses_have_the_same_bits_for_any_number_of_threads,
                        0, 3);
    tcase_add_loop_test(
        tc, scratch_grows_with_every_count_and_stays_near_128_mib, 0, 3);
    suite_add_tcase(suite, tc);
    return suite;
}

int main(void)
{
    SRunner *runner = srunner_create(head_suite());

    srunner_run_all(runner, CK_NORMAL);

    int failed = srunner_ntests_failed(runner);

    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
