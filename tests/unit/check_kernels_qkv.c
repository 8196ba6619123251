/* check_kernels_qkv.c - the table of rotations, and q, k, v on their way from
 * the projection to attention and back.
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

/* ---- rotations ---- */

START_TEST(rotations_are_exact_to_16_million_positions)
{
    static const uint32_t positions[] = {0,       1,       4095,    48000,
                                         262144,  999983,  1048576, 4000000,
                                         4194303, 4194304, 16777215};
    enum {
        N_TOK = sizeof(positions) / sizeof(positions[0]),
        N_FREQ = 37
    };
    static const double thetas[] = {1e4, 5e5, 1e6};
    cf_kernels k = kernels_of((cf_compute)_i);
    double bound = bound_of(&k, 6e-8, 3e-16);

    for (size_t t = 0; t < 3; t++) {
        const double factor = t == 2 ? 1.1386 : 1;
        double inv_freq[N_FREQ];
        double *c = array_double(N_TOK * N_FREQ);
        double *s = array_double(N_TOK * N_FREQ);
        void *got_c = array_out(&k, N_TOK * N_FREQ);
        void *got_s = array_out(&k, N_TOK * N_FREQ);

        for (size_t i = 0; i < N_FREQ; i++)
            inv_freq[i] = pow(thetas[t], -(double)i / N_FREQ);
        for (size_t j = 0; j < N_TOK * N_FREQ; j++) {
            /* In two parts whose products with a position are exact. */
            double f = inv_freq[j % N_FREQ];
            long double high = (long double)(float)f * positions[j / N_FREQ];
            long double low =
                (long double)(f - (float)f) * positions[j / N_FREQ];

            c[j] = (double)(factor *
                            (cosl(high) * cosl(low) - sinl(high) * sinl(low)));
            s[j] = (double)(factor *
                            (sinl(high) * cosl(low) + cosl(high) * sinl(low)));
        }
        k.rope_table(&k, N_TOK, positions, N_FREQ, inv_freq, factor, got_c,
                     got_s);
        ck_assert(close_arrays("cos", N_TOK * N_FREQ,
                               values_of(&k, N_TOK * N_FREQ, got_c), c, bound,
                               0));
        ck_assert(close_arrays("sin", N_TOK * N_FREQ,
                               values_of(&k, N_TOK * N_FREQ, got_s), s, bound,
                               0));
    }
}
END_TEST

/* ---- the reference ---- */

typedef enum layout {
    PAGE_LOCAL, /* every page an array of its own: [n_kv_heads, 256, head_dim] */
    CHUNK_LOCAL /* adjacent pages share one: [n_kv_heads, tokens, head_dim] */
} layout;

enum {
    PIECES_MAX = 4,
    PAGES_MAX = 8
};

/* out and d_out have the shape of qkv: a row's q, k and v heads. */
typedef struct qkv_case {
    cf_attn_shape shape;
    size_t n_tok, n_heads; /* n_heads: of q, k and v */
    double eps;
    double *cos, *sin, *qkv, *d_out;
    double *q_norm, *k_norm; /* or NULL */
    double *out;             /* written by qkv_reference */
    size_t n_pieces;
    struct {
        uint32_t row, n_tok, prefix_tok;
    } pieces[PIECES_MAX];
} qkv_case;

static double *norm_of(const qkv_case *c, size_t head)
{
    if (head < c->shape.n_heads)
        return c->q_norm;
    return head < c->shape.n_heads + c->shape.n_kv_heads ? c->k_norm : NULL;
}

static bool is_v(const qkv_case *c, size_t head)
{
    return head >= c->shape.n_heads + c->shape.n_kv_heads;
}

static double rstd_of(const qkv_case *c, const double *x)
{
    double sum = 0;

    for (size_t i = 0; i < c->shape.head_dim; i++)
        sum += x[i] * x[i];
    return 1 / sqrt(sum / c->shape.head_dim + c->eps);
}

static void qkv_reference(const qkv_case *c)
{
    size_t n = c->shape.head_dim, half = n / 2;

    for (size_t i = 0; i < c->n_tok * c->n_heads; i++) {
        const double *x = c->qkv + i * n, *w = norm_of(c, i % c->n_heads);
        const double *cs = c->cos + i / c->n_heads * half;
        const double *sn = c->sin + i / c->n_heads * half;
        double rstd = w != NULL ? rstd_of(c, x) : 1;
        double *y = c->out + i * n;
        double h[256];

        for (size_t j = 0; j < n; j++)
            h[j] = w != NULL ? w[j] * x[j] * rstd : x[j];
        for (size_t j = 0; j < half; j++) {
            bool v = is_v(c, i % c->n_heads);

            y[j] = v ? x[j] : h[j] * cs[j] - h[j + half] * sn[j];
            y[j + half] = v ? x[j + half] : h[j + half] * cs[j] + h[j] * sn[j];
        }
    }
}

static double qkv_loss(const void *context)
{
    const qkv_case *c = context;
    double sum = 0;

    qkv_reference(c);
    for (size_t i = 0; i < c->n_tok * c->n_heads * c->shape.head_dim; i++)
        sum += c->out[i] * c->d_out[i];
    return sum;
}

/* dqkv; dq_norm and dk_norm +=. */
static void qkv_backward_reference(const qkv_case *c, double *dqkv,
                                   double *dq_norm, double *dk_norm)
{
    size_t n = c->shape.head_dim, half = n / 2;

    for (size_t i = 0; i < c->n_tok * c->n_heads; i++) {
        size_t head = i % c->n_heads;
        const double *x = c->qkv + i * n, *d = c->d_out + i * n;
        const double *w = norm_of(c, head);
        const double *cs = c->cos + i / c->n_heads * half;
        const double *sn = c->sin + i / c->n_heads * half;
        double *dx = dqkv + i * n;
        double *dw = head < c->shape.n_heads ? dq_norm : dk_norm;
        double rstd = rstd_of(c, x), sum = 0;

        for (size_t j = 0; j < half; j++) {
            bool v = is_v(c, head);

            dx[j] = v ? d[j] : d[j] * cs[j] + d[j + half] * sn[j];
            dx[j + half] = v ? d[j + half] : d[j + half] * cs[j] - d[j] * sn[j];
        }
        if (w == NULL)
            continue;
        for (size_t j = 0; j < n; j++)
            sum += dx[j] * w[j] * x[j];
        for (size_t j = 0; j < n; j++) {
            dw[j] += dx[j] * x[j] * rstd;
            dx[j] = rstd * dx[j] * w[j] -
                    x[j] * rstd * rstd * rstd * sum / (double)n;
        }
    }
}

/* ---- the backend ---- */

/* The pages of one kind (K, V, dK or dV) of one piece: K and V are act, their
 * gradients acc. */
typedef struct pages {
    size_t elem_bytes;
    void *page[PAGES_MAX];
    size_t head_stride;
    void *base[PAGES_MAX]; /* the arrays behind them */
    size_t n_base, base_elements;
} pages;

static pages pages_of(const qkv_case *c, size_t piece, layout kind,
                      size_t elem_bytes)
{
    size_t n = c->shape.head_dim, n_kv = c->shape.n_kv_heads;
    size_t end = c->pieces[piece].prefix_tok + c->pieces[piece].n_tok;
    size_t n_pages = (end + CF_PAGE_TOK - 1) / CF_PAGE_TOK;
    size_t page = CF_PAGE_TOK * n;
    pages p = {
        .elem_bytes = elem_bytes,
        .head_stride = kind == PAGE_LOCAL ? page : n_pages * page,
    };

    ck_assert_uint_le(n_pages, PAGES_MAX);
    p.n_base = kind == PAGE_LOCAL ? n_pages : 1;
    p.base_elements = n_kv * p.head_stride;
    for (size_t i = 0; i < p.n_base; i++)
        p.base[i] = array_bytes(p.base_elements * elem_bytes);
    for (size_t i = 0; i < n_pages; i++)
        p.page[i] = kind == PAGE_LOCAL
                        ? p.base[i]
                        : (char *)p.base[0] + i * page * elem_bytes;
    return p;
}

/* Where a head of a piece's row lies. */
static char *in_pages(const qkv_case *c, const pages *p, size_t position,
                      size_t head)
{
    return (char *)p->page[position / CF_PAGE_TOK] +
           (head * p->head_stride +
            position % CF_PAGE_TOK * c->shape.head_dim) *
               p->elem_bytes;
}

static size_t n_written(const cf_kernels *k, const pages *p)
{
    size_t n = 0;

    for (size_t i = 0; i < p->n_base; i++) {
        double *x = p->elem_bytes == k->acc_bytes
                        ? values_of(k, p->base_elements, p->base[i])
                        : act_values_of(k, p->base_elements, p->base[i]);

        for (size_t j = 0; j < p->base_elements; j++)
            n += !isnan(x[j]);
    }
    return n;
}

/* A case on a backend. */
typedef struct run {
    cf_qkv_params params;
    cf_attn_piece pieces[PIECES_MAX];
    pages kv[4][PIECES_MAX]; /* K, V, dK, dV */
    void *qkv, *q;
} run;

/* Fills a run in place: its pieces point to its pages. */
static void run_open(const cf_kernels *k, const qkv_case *c, layout kind,
                     run *r)
{
    size_t n = c->shape.head_dim, n_tab = c->n_tok * n / 2;

    r->params = (cf_qkv_params){
        .shape = c->shape,
        .q_norm = c->q_norm != NULL ? array_of(k, n, c->q_norm) : NULL,
        .k_norm = c->k_norm != NULL ? array_of(k, n, c->k_norm) : NULL,
        .norm_eps = c->eps,
        .cos = array_of(k, n_tab, c->cos),
        .sin = array_of(k, n_tab, c->sin),
    };
    r->qkv = act_of(k, c->n_tok * c->n_heads * n, c->qkv);
    r->q = act_out(k, c->n_tok * c->shape.n_heads * n);
    for (size_t i = 0; i < c->n_pieces; i++) {
        for (size_t j = 0; j < 4; j++)
            r->kv[j][i] =
                pages_of(c, i, kind, j < 2 ? k->act_bytes : k->acc_bytes);
        r->pieces[i] = (cf_attn_piece){
            .row = c->pieces[i].row,
            .n_tok = c->pieces[i].n_tok,
            .prefix_tok = c->pieces[i].prefix_tok,
            .head_stride = r->kv[0][i].head_stride,
            .k = r->kv[0][i].page,
            .v = r->kv[1][i].page,
            .dk = r->kv[2][i].page,
            .dv = r->kv[3][i].page,
        };
    }
}

/* Copies the heads of all rows between x, of the shape of qkv, and where the
 * backend has them: q, and pages of two kinds. */
static void exchange(const qkv_case *c, const run *r, size_t first_kind,
                     char *x, char *q, bool to_backend)
{
    size_t head_bytes = c->shape.head_dim * r->kv[first_kind][0].elem_bytes;
    size_t n_q = c->shape.n_heads, n_kv = c->shape.n_kv_heads;

    for (size_t i = 0; i < c->n_pieces; i++)
        for (size_t j = 0; j < c->pieces[i].n_tok * c->n_heads; j++) {
            size_t tok = j / c->n_heads, head = j % c->n_heads;
            size_t row = c->pieces[i].row + tok;
            size_t kv_head = head >= n_q ? (head - n_q) % n_kv : 0;
            const pages *p = &r->kv[first_kind + is_v(c, head)][i];
            char *there =
                head < n_q
                    ? q + (row * n_q + head) * head_bytes
                    : in_pages(c, p, c->pieces[i].prefix_tok + tok, kv_head);
            char *here = x + (row * c->n_heads + head) * head_bytes;

            memcpy(to_backend ? there : here, to_backend ? here : there,
                   head_bytes);
        }
}

static qkv_case case_of(const cf_kernels *k, uint64_t *state, uint32_t n_heads,
                        uint32_t n_kv_heads, uint32_t head_dim, bool q_norm,
                        bool k_norm)
{
    static const struct {
        uint32_t n_tok, prefix_tok;
    } sizes[] = {{1, 255}, {70, 220}, {3, 0}, {19, 700}};
    qkv_case c = {
        .shape = {n_heads, n_kv_heads, head_dim, 1},
        .n_heads = n_heads + 2 * n_kv_heads,
        .eps = 1e-6,
        .n_pieces = 4,
    };

    for (size_t i = 0; i < c.n_pieces; i++) {
        c.pieces[i].row = (uint32_t)c.n_tok;
        c.pieces[i].n_tok = sizes[i].n_tok;
        c.pieces[i].prefix_tok = sizes[i].prefix_tok;
        c.n_tok += sizes[i].n_tok;
    }

    size_t all = c.n_tok * c.n_heads * head_dim;

    c.cos = random_values(state, c.n_tok * head_dim / 2, 1);
    c.sin = random_values(state, c.n_tok * head_dim / 2, 1);
    c.qkv = random_acts(k, state, all, 2);
    c.d_out = random_values(state, all, 1);
    c.out = array_double(all);
    c.q_norm = q_norm ? random_values(state, head_dim, 2) : NULL;
    c.k_norm = k_norm ? random_values(state, head_dim, 2) : NULL;
    return c;
}

static const struct {
    uint32_t n_heads, n_kv_heads, head_dim;
    bool q_norm, k_norm;
} shapes[] = {
    {1, 1, 2, false, false}, {2, 1, 6, true, true},    {4, 2, 6, false, false},
    {9, 3, 64, true, true},  {9, 3, 64, false, false}, {3, 3, 40, true, true},
    {4, 1, 128, true, true}, {2, 2, 256, true, false}, {6, 2, 18, false, true},
};
enum {
    N_SHAPES = sizeof(shapes) / sizeof(shapes[0])
};

static qkv_case shape_case(const cf_kernels *k, uint64_t *state, size_t i)
{
    return case_of(k, state, shapes[i].n_heads, shapes[i].n_kv_heads,
                   shapes[i].head_dim, shapes[i].q_norm, shapes[i].k_norm);
}

START_TEST(q_k_and_v_arrive_normalised_and_rotated_in_pages_of_any_stride)
{
    cf_kernels k = kernels_of((cf_compute)_i);
    double bound = bound_of(&k, 1e-6, 1e-14);
    uint64_t state = 1;

    for (size_t i = 0; i < 2 * N_SHAPES; i++) {
        qkv_case c = shape_case(&k, &state, i / 2);
        size_t n = c.n_tok * c.n_heads * c.shape.head_dim;
        cf_attn_batch batch = {NULL, c.n_pieces, c.n_tok};
        void *got = act_out(&k, n), *again = act_out(&k, n);
        run r;

        run_open(&k, &c, i % 2 ? CHUNK_LOCAL : PAGE_LOCAL, &r);
        batch.pieces = r.pieces;
        qkv_reference(&c);
        k.qkv_forward(&k, &r.params, &batch, r.qkv, r.q);
        exchange(&c, &r, 0, got, r.q, false);
        ck_assert(close_arrays("q, k, v", n, act_values_of(&k, n, got), c.out,
                               act_bound_of(&k, bound, bound), 1));
        for (size_t j = 0; j < c.n_pieces; j++)
            for (size_t kind = 0; kind < 4; kind++)
                ck_assert_uint_eq(n_written(&k, &r.kv[kind][j]),
                                  kind < 2 ? (size_t)c.pieces[j].n_tok *
                                                 c.shape.n_kv_heads *
                                                 c.shape.head_dim
                                           : 0);
        k.qkv_forward(&k, &r.params, &batch, r.qkv, r.q);
        exchange(&c, &r, 0, again, r.q, false);
        ck_assert_mem_eq(again, got, n * k.act_bytes);
        arrays_close();
    }
}
END_TEST

START_TEST(gradients_come_back_to_the_projection_and_the_norms)
{
    cf_kernels k = kernels_of((cf_compute)_i);
    double bound = bound_of(&k, 3e-6, 1e-13);
    uint64_t state = 2;

    for (size_t i = 0; i < 2 * N_SHAPES; i++) {
        qkv_case c = shape_case(&k, &state, i / 2);
        size_t hd = c.shape.head_dim, n = c.n_tok * c.n_heads * hd;
        bool norms = c.q_norm != NULL || c.k_norm != NULL;
        double *want = array_double(n);
        double *dq_norm = random_values(&state, hd, 1);
        double *dk_norm = random_values(&state, hd, 1);
        void *got_dq_norm = c.q_norm ? array_of(&k, hd, dq_norm) : NULL;
        void *got_dk_norm = c.k_norm ? array_of(&k, hd, dk_norm) : NULL;
        void *dqkv = act_out(&k, n), *frozen = act_out(&k, n);
        void *dq = array_out(&k, c.n_tok * c.shape.n_heads * hd);
        void *scratch =
            array_bytes(k.qkv_backward_scratch_bytes(&k, &c.shape, c.n_tok));
        run r;

        run_open(&k, &c, i % 2 ? CHUNK_LOCAL : PAGE_LOCAL, &r);
        qkv_backward_reference(&c, want, dq_norm, dk_norm);
        exchange(&c, &r, 2, array_of(&k, n, c.d_out), dq, true);
        k.qkv_backward(
            &k, &r.params, &(cf_attn_batch){r.pieces, c.n_pieces, c.n_tok},
            norms ? r.qkv : NULL, dq, dqkv, got_dq_norm, got_dk_norm, scratch);
        k.qkv_backward(&k, &r.params,
                       &(cf_attn_batch){r.pieces, c.n_pieces, c.n_tok},
                       norms ? r.qkv : NULL, dq, frozen, NULL, NULL, scratch);
        ck_assert_mem_eq(dqkv, frozen, n * k.act_bytes);
        ck_assert(close_arrays("dqkv", n, act_values_of(&k, n, dqkv), want,
                               act_bound_of(&k, bound, bound), 2));
        if (c.q_norm != NULL)
            ck_assert(close_arrays("d_q_norm", hd,
                                   values_of(&k, hd, got_dq_norm), dq_norm,
                                   bound, 2));
        if (c.k_norm != NULL)
            ck_assert(close_arrays("d_k_norm", hd,
                                   values_of(&k, hd, got_dk_norm), dk_norm,
                                   bound, 2));
        arrays_close();
    }
}
END_TEST

START_TEST(the_reference_agrees_with_finite_differences)
{
    cf_kernels k = kernels_of(CF_COMPUTE_FP64);
    uint64_t state = 3;
    qkv_case c = case_of(&k, &state, 2, 1, 6, true, true);

    c.n_tok = 3;

    size_t n = c.n_tok * c.n_heads * 6;
    double *dqkv = array_double(n), *want = array_double(n);
    double dq_norm[6] = {0}, dk_norm[6] = {0};
    double want_dq_norm[6], want_dk_norm[6];

    qkv_backward_reference(&c, dqkv, dq_norm, dk_norm);
    finite_difference(qkv_loss, &c, n, c.qkv, want);
    finite_difference(qkv_loss, &c, 6, c.q_norm, want_dq_norm);
    finite_difference(qkv_loss, &c, 6, c.k_norm, want_dk_norm);
    ck_assert(close_arrays("dqkv", n, dqkv, want, 1e-9, 3));
    ck_assert(close_arrays("d_q_norm", 6, dq_norm, want_dq_norm, 1e-9, 3));
    ck_assert(close_arrays("d_k_norm", 6, dk_norm, want_dk_norm, 1e-9, 3));
}
END_TEST

START_TEST(the_bits_do_not_depend_on_the_number_of_threads)
{
    cf_kernels k = kernels_of((cf_compute)_i);
    int n_threads = omp_get_max_threads();
    uint64_t state = 4;
    qkv_case c = case_of(&k, &state, 9, 3, 64, true, true);
    size_t n = c.n_tok * c.n_heads * 64;
    void *d_out = array_of(&k, n, c.d_out);
    void *dq = array_out(&k, c.n_tok * 9 * 64);
    double zero[64] = {0};
    void *want[4] = {NULL};

    for (int threads = 1; threads <= 5; threads++) {
        void *scratch =
            array_bytes(k.qkv_backward_scratch_bytes(&k, &c.shape, c.n_tok));
        void *got[4] = {act_out(&k, n), act_out(&k, n), array_of(&k, 64, zero),
                        array_of(&k, 64, zero)};
        run r;

        run_open(&k, &c, PAGE_LOCAL, &r);

        cf_attn_batch batch = {r.pieces, c.n_pieces, c.n_tok};

        omp_set_num_threads(threads);
        k.qkv_forward(&k, &r.params, &batch, r.qkv, r.q);
        exchange(&c, &r, 0, got[0], r.q, false);
        exchange(&c, &r, 2, d_out, dq, true);
        k.qkv_backward(&k, &r.params, &batch, r.qkv, dq, got[1], got[2], got[3],
                       scratch);
        for (size_t i = 0; threads > 1 && i < 4; i++)
            ck_assert_mem_eq(got[i], want[i],
                             i < 2 ? n * k.act_bytes : 64 * k.acc_bytes);
        if (threads == 1)
            memcpy(want, got, sizeof(want));
    }
    omp_set_num_threads(n_threads);
}
END_TEST

static Suite *qkv_suite(void)
{
    Suite *suite = suite_create("kernels around attention");
    TCase *tc = tcase_create("ops");

    tcase_add_checked_fixture(tc, NULL, arrays_close);
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, rotations_are_exact_to_16_million_positions, 0, 3);
    tcase_add_loop_test(
        tc, q_k_and_v_arrive_normalised_and_rotated_in_pages_of_any_stride, 0,
        3);
    tcase_add_loop_test(tc, gradients_come_back_to_the_projection_and_the_norms,
                        0, 3);
    tcase_add_test(tc, the_reference_agrees_with_finite_differences);
    tcase_add_loop_test(tc, the_bits_do_not_depend_on_the_number_of_threads, 0,
                        3);
    suite_add_tcase(suite, tc);
    return suite;
}

int main(void)
{
    SRunner *runner = srunner_create(qkv_suite());

    srunner_run_all(runner, CK_NORMAL);

    int failed = srunner_ntests_failed(runner);

    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
