/* check_kernels_layers.c - linear layers, RMSNorm, SwiGLU, embedding.
 *
 * Each op is held against a naive loop in double, and the naive backward against
 * finite differences of the naive forward.  _i is the cf_compute.
 */
#include <check.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/arrays.h"
#include "tests/lib/close.h"

/* Rows and row lengths, most of them no multiple of anything. */
static const struct {
    size_t n_tok, n, n_out;
} shapes[] = {
    {0, 20, 36},    {1, 20, 36},    {1, 1, 1},       {3, 6, 50},
    {7, 36, 20},    {32, 16, 8},    {33, 20, 52},    {70, 36, 20},
    {65, 130, 257}, {300, 576, 33}, {520, 12, 1030},
};
enum {
    N_SHAPES = sizeof(shapes) / sizeof(shapes[0])
};

static double dot(size_t n, const double *x, const double *y)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += x[i] * y[i];
    return sum;
}

/* Whether the values of a backend's array are close to want: of acc, and of act
 * after its rounding. */
static bool close_to(const cf_kernels *k, const char *name, size_t n,
                     const void *got, const double *want, double bound)
{
    return close_arrays(name, n, values_of(k, n, got), want, bound, 0);
}

static bool act_close_to(const cf_kernels *k, const char *name, size_t n,
                         const void *got, const double *want, double bound)
{
    return close_arrays(name, n, act_values_of(k, n, got), want,
                        act_bound_of(k, bound, bound), 0);
}

/* ---- linear ---- */

static void linear(size_t n_tok, size_t n_out, size_t n_in, const double *x,
                   const double *w, const double *b, double *y)
{
    for (size_t t = 0; t < n_tok; t++)
        for (size_t o = 0; o < n_out; o++)
            y[t * n_out + o] =
                dot(n_in, x + t * n_in, w + o * n_in) + (b != NULL ? b[o] : 0);
}

static void linear_backward(size_t n_tok, size_t n_out, size_t n_in,
                            const double *x, const double *w, const double *dy,
                            double *dx, double *dw, double *db)
{
    memset(dx, 0, n_tok * n_in * sizeof(double));
    for (size_t t = 0; t < n_tok; t++)
        for (size_t o = 0; o < n_out; o++) {
            double d = dy[t * n_out + o];

            db[o] += d;
            for (size_t i = 0; i < n_in; i++) {
                dx[t * n_in + i] += d * w[o * n_in + i];
                dw[o * n_in + i] += d * x[t * n_in + i];
            }
        }
}

START_TEST(a_linear_layer_is_x_times_w_transposed_plus_bias)
{
    cf_kernels k = kernels_of((cf_compute)_i);
    double bound = bound_of(&k, 1e-6, 1e-14);
    uint64_t state = 1, other = 6;

    for (size_t i = 0; i < 2 * N_SHAPES; i++) {
        size_t n_tok = shapes[i / 2].n_tok;
        size_t n_in = shapes[i / 2].n, n_out = shapes[i / 2].n_out;
        size_t n_y = n_tok * n_out;
        double *x = random_acts(&k, &state, n_tok * n_in, 1);
        double *master = random_values(&state, n_out * n_in, 1);
        double *bias = i % 2 ? random_values(&state, n_out, 1) : NULL;
        double *residual = random_values(&state, n_y, 1);
        double *want = array_double(n_y);
        void *in = act_of(&k, n_tok * n_in, x);
        void *y = act_out(&k, n_y);
        void *sum = array_of(&k, n_y, residual);
        double *before = random_acts(&k, &other, n_y, 1);
        void *act_sum = act_of(&k, n_y, before);
        cf_weight w = weight_of(&k, n_out, n_in, master, bias);
        void *scratch =
            array_bytes(k.linear_scratch_bytes(&k, n_tok, n_out, n_in));

        ck_assert_uint_eq(k.weight_packed_bytes(&k, n_out, n_in), 0);
        linear(n_tok, n_out, n_in, x, master, bias, want);
        k.linear_forward(&k, &w, n_tok, in, y, scratch);
        ck_assert(act_close_to(&k, "y", n_y, y, want, bound));
        for (size_t j = 0; j < n_y; j++)
            want[j] += before[j];
        k.linear_forward_add(&k, &w, n_tok, in, act_sum, scratch);
        ck_assert(act_close_to(&k, "y + act", n_y, act_sum, want, bound));
        for (size_t j = 0; j < n_y; j++)
            want[j] += residual[j] - before[j];
        k.linear_forward_residual(&k, &w, n_tok, in, sum, scratch);
        ck_assert(close_to(&k, "y + x", n_y, sum, want, bound));
    }
}
END_TEST

START_TEST(activations_add_up)
{
    cf_kernels k = kernels_of((cf_compute)_i);
    uint64_t state = 5;

    for (size_t i = 0; i < N_SHAPES; i++) {
        size_t n = shapes[i].n_tok * shapes[i].n;
        double *x = random_acts(&k, &state, n, 1);
        double *y = random_acts(&k, &state, n, 1);
        void *got = act_of(&k, n, y);

        k.add_act(&k, n, act_of(&k, n, x), got);
        for (size_t j = 0; j < n; j++)
            y[j] += x[j];
        ck_assert(act_close_to(&k, "sum", n, got, y, 1e-7));
    }
}
END_TEST

START_TEST(a_linear_layer_has_the_gradients_of_its_input_weight_and_bias)
{
    cf_kernels k = kernels_of((cf_compute)_i);
    double bound = bound_of(&k, 1e-6, 1e-14);
    uint64_t state = 2;

    for (size_t i = 0; i < 2 * N_SHAPES; i++) {
        size_t n_tok = shapes[i / 2].n_tok;
        size_t n_in = shapes[i / 2].n, n_out = shapes[i / 2].n_out;
        double *x = random_acts(&k, &state, n_tok * n_in, 1);
        double *master = random_values(&state, n_out * n_in, 1);
        double *dy = random_acts(&k, &state, n_tok * n_out, 1);
        double *want_dx = array_double(n_tok * n_in);
        double *want_dw = random_values(&state, n_out * n_in, 1);
        double *want_db = random_values(&state, n_out, 1);
        void *dout = act_of(&k, n_tok * n_out, dy);
        void *in = act_of(&k, n_tok * n_in, x);
        void *dx = act_out(&k, n_tok * n_in);
        void *frozen = act_out(&k, n_tok * n_in);
        void *dw = array_of(&k, n_out * n_in, want_dw);
        void *db = array_of(&k, n_out, want_db);
        cf_weight w = weight_of(&k, n_out, n_in, master, NULL);
        void *scratch =
            array_bytes(k.linear_scratch_bytes(&k, n_tok, n_out, n_in));

        linear_backward(n_tok, n_out, n_in, x, master, dy, want_dx, want_dw,
                        want_db);
        k.linear_backward(&k, &w, n_tok, dout, in, dx, dw, i % 2 ? db : NULL,
                          scratch);
        k.linear_backward(&k, &w, n_tok, dout, in, frozen, NULL, NULL, scratch);
        ck_assert_mem_eq(dx, frozen, n_tok * n_in * k.act_bytes);
        ck_assert(act_close_to(&k, "dx", n_tok * n_in, dx, want_dx, bound));
        ck_assert(close_to(&k, "dw", n_out * n_in, dw, want_dw, bound));
        if (i % 2)
            ck_assert(close_to(&k, "db", n_out, db, want_db, bound));
    }
}
END_TEST

/* ---- RMSNorm ---- */

typedef struct norm_case {
    size_t n_tok, n;
    double eps;
    double *x, *weight, *dy;
    double *rstd, *y; /* written by rmsnorm */
} norm_case;

static norm_case norm_case_of(const cf_kernels *k, uint64_t *state,
                              size_t n_tok, size_t n)
{
    return (norm_case){
        .n_tok = n_tok,
        .n = n,
        .eps = 1e-5,
        .x = random_values(state, n_tok * n, 3),
        .weight = random_values(state, n, 2),
        .dy = random_acts(k, state, n_tok * n, 1),
        .rstd = array_double(n_tok),
        .y = array_double(n_tok * n),
    };
}

static void rmsnorm(const norm_case *c)
{
    for (size_t t = 0; t < c->n_tok; t++) {
        const double *x = c->x + t * c->n;

        c->rstd[t] = 1 / sqrt(dot(c->n, x, x) / (double)c->n + c->eps);
        for (size_t i = 0; i < c->n; i++)
            c->y[t * c->n + i] = c->weight[i] * x[i] * c->rstd[t];
    }
}

static double rmsnorm_loss(const void *context)
{
    const norm_case *c = context;

    rmsnorm(c);
    return dot(c->n_tok * c->n, c->y, c->dy);
}

/* dx and dweight +=. */
static void rmsnorm_backward(const norm_case *c, double *dx, double *dweight)
{
    for (size_t t = 0; t < c->n_tok; t++) {
        const double *x = c->x + t * c->n, *dy = c->dy + t * c->n;
        double r = c->rstd[t], sum = 0;

        for (size_t i = 0; i < c->n; i++)
            sum += dy[i] * c->weight[i] * x[i];
        for (size_t i = 0; i < c->n; i++) {
            dweight[i] += dy[i] * x[i] * r;
            dx[t * c->n + i] += r * dy[i] * c->weight[i] -
                                x[i] * r * r * r * sum / (double)c->n;
        }
    }
}

START_TEST(rmsnorm_and_its_gradients_are_right)
{
    cf_kernels k = kernels_of((cf_compute)_i);
    double bound = bound_of(&k, 2e-6, 1e-14);
    uint64_t state = 3;

    for (size_t i = 0; i < N_SHAPES; i++) {
        size_t n_tok = shapes[i].n_tok, n = shapes[i].n, all = n_tok * n;
        norm_case c = norm_case_of(&k, &state, n_tok, n);
        double *want_dx = random_values(&state, all, 1);
        double *want_dw = random_values(&state, n, 1);
        void *x = array_of(&k, all, c.x), *weight = array_of(&k, n, c.weight);
        void *y = act_out(&k, all), *rstd = array_out(&k, n_tok);
        void *dx = array_of(&k, all, want_dx);
        void *dw = array_of(&k, n, want_dw);
        void *scratch =
            array_bytes(k.rmsnorm_backward_scratch_bytes(&k, n_tok, n));

        rmsnorm(&c);
        rmsnorm_backward(&c, want_dx, want_dw);
        k.rmsnorm_forward(&k, n_tok, n, c.eps, x, weight, y, rstd);
        k.rmsnorm_backward(&k, n_tok, n, x, weight, rstd, act_of(&k, all, c.dy),
                           dx, dw, scratch);
        ck_assert(act_close_to(&k, "y", all, y, c.y, bound));
        ck_assert(close_to(&k, "rstd", n_tok, rstd, c.rstd, bound));
        ck_assert(close_to(&k, "dx", all, dx, want_dx, bound));
        ck_assert(close_to(&k, "dweight", n, dw, want_dw, bound));
    }
}
END_TEST

START_TEST(rmsnorm_gives_the_same_dx_where_dweight_is_not_wanted)
{
    cf_kernels k = kernels_of((cf_compute)_i);
    uint64_t state = 3;

    for (size_t i = 0; i < N_SHAPES; i++) {
        size_t n_tok = shapes[i].n_tok, n = shapes[i].n, all = n_tok * n;
        norm_case c = norm_case_of(&k, &state, n_tok, n);
        void *x = array_of(&k, all, c.x), *weight = array_of(&k, n, c.weight);
        void *dy = act_of(&k, all, c.dy);
        void *y = act_out(&k, all), *rstd = array_out(&k, n_tok);
        void *dx[2] = {array_of(&k, all, c.x), array_of(&k, all, c.x)};
        void *dw = array_of(&k, n, c.weight);
        void *scratch =
            array_bytes(k.rmsnorm_backward_scratch_bytes(&k, n_tok, n));

        k.rmsnorm_forward(&k, n_tok, n, c.eps, x, weight, y, rstd);
        for (int wanted = 0; wanted < 2; wanted++)
            k.rmsnorm_backward(&k, n_tok, n, x, weight, rstd, dy, dx[wanted],
                               wanted ? dw : NULL, scratch);
        ck_assert_mem_eq(dx[0], dx[1], all * k.acc_bytes);
    }
}
END_TEST

START_TEST(the_reference_of_rmsnorm_agrees_with_finite_differences)
{
    cf_kernels k = kernels_of(CF_COMPUTE_FP64);
    uint64_t state = 4;
    norm_case c = norm_case_of(&k, &state, 5, 6);
    double dx[30] = {0}, dweight[6] = {0};
    double want_dx[30], want_dweight[6];

    rmsnorm(&c);
    rmsnorm_backward(&c, dx, dweight);
    finite_difference(rmsnorm_loss, &c, 30, c.x, want_dx);
    finite_difference(rmsnorm_loss, &c, 6, c.weight, want_dweight);
    ck_assert(close_arrays("dx", 30, dx, want_dx, 1e-9, 4));
    ck_assert(close_arrays("dweight", 6, dweight, want_dweight, 1e-9, 4));
}
END_TEST

/* ---- SwiGLU ---- */

typedef struct glu_case {
    size_t n_tok, n;
    double *gate_up, *da;
    double *a; /* written by swiglu */
} glu_case;

static void swiglu(const glu_case *c)
{
    for (size_t i = 0; i < c->n_tok * c->n; i++) {
        double g = c->gate_up[i / c->n * 2 * c->n + i % c->n];
        double u = c->gate_up[i / c->n * 2 * c->n + c->n + i % c->n];

        c->a[i] = g / (1 + exp(-g)) * u;
    }
}

static double swiglu_loss(const void *context)
{
    const glu_case *c = context;

    swiglu(c);
    return dot(c->n_tok * c->n, c->a, c->da);
}

static void swiglu_backward(const glu_case *c, double *d)
{
    for (size_t i = 0; i < c->n_tok * c->n; i++) {
        size_t gate = i / c->n * 2 * c->n + i % c->n, up = gate + c->n;
        double g = c->gate_up[gate], u = c->gate_up[up];
        double s = 1 / (1 + exp(-g));

        d[gate] = c->da[i] * u * s * (1 + g / (1 + exp(g)));
        d[up] = c->da[i] * g * s;
    }
}

START_TEST(swiglu_and_its_gradient_are_right_also_in_place)
{
    static const double limits[] = {1, 20, 1e4};
    cf_kernels k = kernels_of((cf_compute)_i);
    double bound = bound_of(&k, 1e-6, 1e-14);
    uint64_t state = 5;

    for (size_t i = 0; i < 3 * N_SHAPES; i++) {
        size_t n_tok = shapes[i / 3].n_tok, n = shapes[i / 3].n;
        size_t all = n_tok * n;
        glu_case c = {
            .n_tok = n_tok,
            .n = n,
            .gate_up = random_acts(&k, &state, 2 * all, limits[i % 3]),
            .da = random_acts(&k, &state, all, 1),
            .a = array_double(all),
        };
        double *want = array_double(2 * all);
        void *gate_up = act_of(&k, 2 * all, c.gate_up);
        void *da = act_of(&k, all, c.da);
        void *a = act_out(&k, all), *d = act_out(&k, 2 * all);

        swiglu(&c);
        swiglu_backward(&c, want);
        k.swiglu_forward(&k, n_tok, n, gate_up, a);
        k.swiglu_backward(&k, n_tok, n, gate_up, da, d);
        ck_assert(act_close_to(&k, "a", all, a, c.a, bound));
        ck_assert(act_close_to(&k, "d", 2 * all, d, want, bound));
        k.swiglu_backward(&k, n_tok, n, gate_up, da, gate_up);
        ck_assert_mem_eq(gate_up, d, 2 * all * k.act_bytes);
    }
}
END_TEST

START_TEST(the_reference_of_swiglu_agrees_with_finite_differences)
{
    uint64_t state = 6;
    glu_case c = {
        .n_tok = 3,
        .n = 7,
        .gate_up = random_values(&state, 42, 4),
        .da = random_values(&state, 21, 1),
        .a = array_double(21),
    };
    double d[42], want[42];

    swiglu_backward(&c, d);
    finite_difference(swiglu_loss, &c, 42, c.gate_up, want);
    ck_assert(close_arrays("d", 42, d, want, 1e-9, 6));
}
END_TEST

/* ---- embedding ---- */

START_TEST(an_embedding_reads_rows_and_adds_gradients_to_them)
{
    enum {
        N_VOCAB = 50
    };
    cf_kernels k = kernels_of((cf_compute)_i);
    uint64_t state = 7;

    for (size_t i = 0; i < N_SHAPES; i++) {
        size_t n_tok = shapes[i].n_tok, n = shapes[i].n;
        uint32_t *ids = array_u32(n_tok);
        double *w = random_values(&state, N_VOCAB * n, 1);
        double *x = array_double(n_tok * n);
        double *dx = random_values(&state, n_tok * n, 1);
        double *dw = random_values(&state, N_VOCAB * n, 1);
        void *got_x = array_out(&k, n_tok * n);
        void *got_dw = array_of(&k, N_VOCAB * n, dw);

        for (size_t t = 0; t < n_tok; t++) {
            ids[t] = random_below(&state, t % 2 ? N_VOCAB : 3);
            for (size_t j = 0; j < n; j++) {
                double *d = &dw[ids[t] * n + j];

                x[t * n + j] = w[ids[t] * n + j];
                *d = _i == CF_COMPUTE_FP64 ? *d + dx[t * n + j]
                                           : (float)(*d + dx[t * n + j]);
            }
        }
        k.embedding_forward(&k, n_tok, n, ids, array_of(&k, N_VOCAB * n, w),
                            got_x);
        k.embedding_backward(&k, n_tok, n, ids, array_of(&k, n_tok * n, dx),
                             got_dw);
        ck_assert(close_to(&k, "x", n_tok * n, got_x, x, 0));
        ck_assert(close_to(&k, "dw", N_VOCAB * n, got_dw, dw, 0));
    }
}
END_TEST

/* ---- threads ---- */

/* Every output of our own loops, for one number of threads, in one array. */
static void *all_outputs(const cf_kernels *k, int n_threads, size_t *bytes_p)
{
    enum {
        N_TOK = 333,
        N = 100,
        ALL = N_TOK * N
    };
    uint64_t state = 10;
    double *values = random_acts(k, &state, ALL, 1);
    double *gradients = random_acts(k, &state, ALL, 1);
    void *stream = array_of(k, ALL, values), *x = act_of(k, ALL, values);
    void *dy = act_of(k, ALL, gradients);
    void *weight = array_of(k, N, random_values(&state, N, 1));
    double *matrix = random_values(&state, N * N, 1);
    cf_weight w = weight_of(k, N, N, matrix, NULL);
    void *dw = array_of(k, N * N, matrix), *dx_linear = act_out(k, ALL);
    void *scratch = array_bytes(k->rmsnorm_backward_scratch_bytes(k, N_TOK, N));
    void *room = array_bytes(k->linear_scratch_bytes(k, N_TOK, N, N));
    uint32_t *ids = array_u32(N_TOK);
    size_t bytes = k->acc_bytes;
    char *out = array_bytes(8 * ALL * bytes);
    char *y = out, *rstd = y + ALL * bytes, *dx = rstd + N_TOK * bytes;
    char *dweight = dx + ALL * bytes, *db = dweight + N * bytes;
    char *a = db + N * bytes, *d = a + ALL * bytes;
    char *table = d + 2 * ALL * bytes;

    for (size_t t = 0; t < N_TOK; t++)
        ids[t] = random_below(&state, N);
    omp_set_num_threads(n_threads);
    k->zero(k, out, 8 * ALL * bytes);
    k->rmsnorm_forward(k, N_TOK, N, 1e-6, stream, weight, y, rstd);
    k->rmsnorm_backward(k, N_TOK, N, stream, weight, rstd, dy, dx, dweight,
                        scratch);
    k->linear_backward(k, &w, N_TOK, dy, x, dx_linear, dw, db, room);
    k->swiglu_forward(k, N_TOK / 2, N, x, a);
    k->swiglu_backward(k, N_TOK / 2, N, x, dy, d);
    k->embedding_backward(k, N_TOK, N, ids, array_of(k, ALL, gradients), table);
    *bytes_p = 8 * ALL * bytes;
    return out;
}

START_TEST(our_loops_give_the_same_bits_for_any_number_of_threads)
{
    cf_kernels k = kernels_of((cf_compute)_i);
    int n_threads = omp_get_max_threads();
    size_t bytes;
    void *want = all_outputs(&k, 1, &bytes);

    for (int threads = 2; threads <= 5; threads++)
        ck_assert_mem_eq(all_outputs(&k, threads, &bytes), want, bytes);
    omp_set_num_threads(n_threads);
}
END_TEST

static Suite *layers_suite(void)
{
    Suite *suite = suite_create("kernels of layers");
    TCase *tc = tcase_create("ops");

    tcase_add_checked_fixture(tc, NULL, arrays_close);
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, a_linear_layer_is_x_times_w_transposed_plus_bias, 0,
                        3);
    tcase_add_loop_test(tc, activations_add_up, 0, 3);
    tcase_add_loop_test(
        tc, a_linear_layer_has_the_gradients_of_its_input_weight_and_bias, 0,
        3);
    tcase_add_loop_test(tc, rmsnorm_and_its_gradients_are_right, 0, 3);
    tcase_add_loop_test(
        tc, rmsnorm_gives_the_same_dx_where_dweight_is_not_wanted, 0, 3);
    tcase_add_test(tc, the_reference_of_rmsnorm_agrees_with_finite_differences);
    tcase_add_loop_test(tc, swiglu_and_its_gradient_are_right_also_in_place, 0,
                        3);
    tcase_add_test(tc, the_reference_of_swiglu_agrees_with_finite_differences);
    tcase_add_loop_test(tc, an_embedding_reads_rows_and_adds_gradients_to_them,
                        0, 3);
    tcase_add_loop_test(
        tc, our_loops_give_the_same_bits_for_any_number_of_threads, 0, 3);
    suite_add_tcase(suite, tc);
    return suite;
}

int main(void)
{
    SRunner *runner = srunner_create(layers_suite());

    srunner_run_all(runner, CK_NORMAL);

    int failed = srunner_ntests_failed(runner);

    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
