/* check_attention.c - CPU attention against a naive reference in double, and
 * the bits that it promises.
 *
 * Every call gets scratch of exactly the bytes it asked for, full of NaN, with
 * a guard behind it; outputs, and the tokens of a page behind the last one, are
 * NaN beforehand.
 */
#include <check.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/arrays.h"
#include "tests/lib/close.h"

enum {
    N_TYPES = 3,
    PARTS_MAX = 64,
    PAGES_MAX = 80,
    GUARD_BYTES = 64
};

/* A sequence: its values, and its KV state on pages. */
typedef struct sequence {
    uint32_t n_tok;
    double *q, *d_o; /* [n_tok, n_heads, head_dim] */
    double *k, *v;   /* [n_tok, n_kv_heads, head_dim] */
    size_t head_stride;
    void *k_pages[PAGES_MAX], *v_pages[PAGES_MAX];
    void *dk_pages[PAGES_MAX], *dv_pages[PAGES_MAX];
} sequence;

/* Rows of a sequence that take part in a call. */
typedef struct part {
    sequence *s;
    uint32_t prefix_tok, n_tok;
} part;

typedef struct call {
    const cf_kernels *k;
    cf_attn_shape shape;
    cf_attn_batch batch;
    cf_attn_piece pieces[PARTS_MAX];
    uint32_t key_begin, key_end;
    void *q, *o, *lse, *d_o, *dq;
} call;

static cf_kernels types[N_TYPES];

static void types_open(void)
{
    types[2] = kernels_of(CF_COMPUTE_BF16);
    types[0] = kernels_of(CF_COMPUTE_FP32);
    types[1] = kernels_of(CF_COMPUTE_FP64);
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

static cf_attn_shape shape_of(uint32_t n_heads, uint32_t n_kv_heads,
                              uint32_t head_dim)
{
    return (cf_attn_shape){.n_heads = n_heads,
                           .n_kv_heads = n_kv_heads,
                           .head_dim = head_dim,
                           .softmax_scale = 1 / sqrt(head_dim)};
}

static size_t q_elements(const cf_attn_shape *shape, size_t n_tok)
{
    return n_tok * shape->n_heads * shape->head_dim;
}

static size_t k_elements(const cf_attn_shape *shape, size_t n_tok)
{
    return n_tok * shape->n_kv_heads * shape->head_dim;
}

static double get(const cf_kernels *k, const void *x, size_t i)
{
    return k->acc_bytes == sizeof(double) ? ((const double *)x)[i]
                                          : ((const float *)x)[i];
}

static void put(const cf_kernels *k, void *x, size_t i, double value)
{
    if (k->acc_bytes == sizeof(double))
        ((double *)x)[i] = value;
    else
        ((float *)x)[i] = (float)value;
}

/* ---- sequences ---- */

/* Element of [n_tok, n_kv_heads, head_dim] on its page. */
static void *key_at(const cf_attn_shape *shape, const sequence *s,
                    void *const *pages, size_t i, size_t elem_bytes)
{
    size_t row = i / shape->head_dim, token = row / shape->n_kv_heads;
    size_t at = row % shape->n_kv_heads * s->head_stride +
                token % CF_PAGE_TOK * shape->head_dim + i % shape->head_dim;

    return (char *)pages[token / CF_PAGE_TOK] + at * elem_bytes;
}

/* Copies the values of k and v to the pages. */
static void sequence_store(const cf_kernels *k, const cf_attn_shape *shape,
                           sequence *s)
{
    for (size_t i = 0; i < k_elements(shape, s->n_tok); i++) {
        act_put(k, key_at(shape, s, s->k_pages, i, k->act_bytes), 0, s->k[i]);
        act_put(k, key_at(shape, s, s->v_pages, i, k->act_bytes), 0, s->v[i]);
    }
}

/* Sets every element of the gradient pages. */
static void gradients_set(const cf_kernels *k, const cf_attn_shape *shape,
                          sequence *s, double value)
{
    for (size_t i = 0; i < k_elements(shape, s->n_tok); i++) {
        put(k, key_at(shape, s, s->dk_pages, i, k->acc_bytes), 0, value);
        put(k, key_at(shape, s, s->dv_pages, i, k->acc_bytes), 0, value);
    }
}

static double *gradients_of(const cf_kernels *k, const cf_attn_shape *shape,
                            const sequence *s, void *const *pages)
{
    double *x = array_double(k_elements(shape, s->n_tok));

    for (size_t i = 0; i < k_elements(shape, s->n_tok); i++)
        x[i] = get(k, key_at(shape, s, pages, i, k->acc_bytes), 0);
    return x;
}

static sequence *sequence_open(const cf_kernels *k, const cf_attn_shape *shape,
                               uint32_t n_tok, uint64_t seed)
{
    sequence *s = array_bytes(sizeof(*s));
    size_t n_q = q_elements(shape, n_tok), n_k = k_elements(shape, n_tok);

    s->n_tok = n_tok;
    s->q = random_acts(k, &seed, n_q, 2);
    s->d_o = random_acts(k, &seed, n_q, 1);
    s->k = random_acts(k, &seed, n_k, 2);
    s->v = random_acts(k, &seed, n_k, 1);
    s->head_stride = (size_t)CF_PAGE_TOK * shape->head_dim + 16;
    ck_assert_uint_le(n_tok, (uint32_t)PAGES_MAX * CF_PAGE_TOK);
    for (size_t page = 0; page * CF_PAGE_TOK < n_tok; page++) {
        size_t tokens = smaller(CF_PAGE_TOK, n_tok - page * CF_PAGE_TOK);
        size_t n =
            (shape->n_kv_heads - 1) * s->head_stride + tokens * shape->head_dim;

        s->k_pages[page] = act_out(k, n);
        s->v_pages[page] = act_out(k, n);
        s->dk_pages[page] = array_out(k, n);
        s->dv_pages[page] = array_out(k, n);
    }
    sequence_store(k, shape, s);
    gradients_set(k, shape, s, 0);
    return s;
}

/* ---- calls ---- */

static void rows_store(const call *c, const part *parts)
{
    size_t row = 0, width = q_elements(&c->shape, 1);

    for (size_t p = 0; p < c->batch.n_pieces; p++) {
        const sequence *s = parts[p].s;
        size_t from = parts[p].prefix_tok * width;

        for (size_t i = 0; i < parts[p].n_tok * width; i++) {
            act_put(c->k, c->q, row * width + i, s->q[from + i]);
            act_put(c->k, c->d_o, row * width + i, s->d_o[from + i]);
        }
        row += parts[p].n_tok;
    }
}

static call *call_open(const cf_kernels *k, const cf_attn_shape *shape,
                       size_t n_parts, const part *parts)
{
    call *c = array_bytes(sizeof(*c));
    uint32_t row = 0;

    ck_assert_uint_le(n_parts, PARTS_MAX);
    for (size_t p = 0; p < n_parts; p++) {
        const sequence *s = parts[p].s;

        c->pieces[p] = (cf_attn_piece){.row = row,
                                       .n_tok = parts[p].n_tok,
                                       .prefix_tok = parts[p].prefix_tok,
                                       .head_stride = s->head_stride,
                                       .k = s->k_pages,
                                       .v = s->v_pages,
                                       .dk = s->dk_pages,
                                       .dv = s->dv_pages};
        row += parts[p].n_tok;
    }
    c->k = k;
    c->shape = *shape;
    c->batch = (cf_attn_batch){c->pieces, n_parts, row};
    c->key_begin = 0;
    c->key_end = UINT32_MAX;
    c->q = act_out(k, q_elements(shape, row));
    c->o = act_out(k, q_elements(shape, row));
    c->d_o = act_out(k, q_elements(shape, row));
    c->dq = array_out(k, q_elements(shape, row));
    c->lse = array_out(k, (size_t)row * shape->n_heads);
    rows_store(c, parts);
    return c;
}

static void *scratch_open(const call *c)
{
    size_t bytes = c->k->attention_scratch_bytes(
        c->k, &c->shape, c->batch.n_tok, c->batch.n_pieces);

    return array_bytes(bytes + GUARD_BYTES);
}

static void guard_check(const call *c, const unsigned char *scratch)
{
    size_t bytes = c->k->attention_scratch_bytes(
        c->k, &c->shape, c->batch.n_tok, c->batch.n_pieces);

    for (size_t i = 0; i < GUARD_BYTES; i++)
        ck_assert_uint_eq(scratch[bytes + i], 0xff);
}

static void forward(const call *c)
{
    void *scratch = scratch_open(c);

    c->k->attention_forward(c->k, &c->shape, &c->batch, c->key_begin,
                            c->key_end, c->q, c->o, c->lse, scratch);
    guard_check(c, scratch);
}

/* o and lse are those over all keys. */
static void backward(const call *c, const void *o, const void *lse)
{
    void *scratch = scratch_open(c);

    c->k->attention_backward(c->k, &c->shape, &c->batch, c->key_begin,
                             c->key_end, c->q, o, lse, c->d_o, c->dq, scratch);
    guard_check(c, scratch);
}

static bool same_bytes(const void *x, size_t row_x, const void *y, size_t row_y,
                       size_t n_rows, size_t row_bytes)
{
    return memcmp((const char *)x + row_x * row_bytes,
                  (const char *)y + row_y * row_bytes, n_rows * row_bytes) == 0;
}

/* Whether rows of two calls have the same bits, in [rows, width]: of acc, and of
 * act. */
static bool same_rows(const call *a, const void *x, size_t row_x, const void *y,
                      size_t row_y, size_t n_rows, size_t width)
{
    return same_bytes(x, row_x, y, row_y, n_rows, width * a->k->acc_bytes);
}

static bool same_acts(const call *a, const void *x, size_t row_x, const void *y,
                      size_t row_y, size_t n_rows, size_t width)
{
    return same_bytes(x, row_x, y, row_y, n_rows, width * a->k->act_bytes);
}

/* ---- reference ---- */

typedef struct gradient {
    double *dq, *dk, *dv;
} gradient;

static double score(const cf_attn_shape *shape, const double *q,
                    const double *k)
{
    double sum = 0;

    for (size_t e = 0; e < shape->head_dim; e++)
        sum += q[e] * k[e];
    return sum * shape->softmax_scale;
}

/* One row of o and lse, over the keys from begin to its own that lie in front
 * of end. */
static void reference_row(const cf_attn_shape *shape, const sequence *s,
                          size_t token, size_t head, size_t begin, size_t end,
                          double *o, double *lse_p)
{
    size_t dim = shape->head_dim;
    size_t kv_head = head / (shape->n_heads / shape->n_kv_heads);
    const double *q = s->q + (token * shape->n_heads + head) * dim;
    double largest = -INFINITY, sum = 0;

    end = smaller(end, token + 1);
    for (size_t j = begin; j < end; j++)
        largest = fmax(
            largest,
            score(shape, q, s->k + (j * shape->n_kv_heads + kv_head) * dim));
    memset(o, 0, dim * sizeof(*o));
    for (size_t j = begin; j < end; j++) {
        size_t at = (j * shape->n_kv_heads + kv_head) * dim;
        double weight = exp(score(shape, q, s->k + at) - largest);

        sum += weight;
        for (size_t e = 0; e < dim; e++)
            o[e] += weight * s->v[at + e];
    }
    for (size_t e = 0; e < dim && sum > 0; e++)
        o[e] /= sum;
    *lse_p = largest + log(sum);
}

/* A backend reads an o that was rounded to act. */
static void reference_row_backward(const cf_kernels *k,
                                   const cf_attn_shape *shape,
                                   const sequence *s, size_t token, size_t head,
                                   size_t begin, size_t end, gradient g)
{
    size_t dim = shape->head_dim;
    size_t kv_head = head / (shape->n_heads / shape->n_kv_heads);
    size_t row = (token * shape->n_heads + head) * dim;
    const double *q = s->q + row, *d_o = s->d_o + row;
    double o[256], lse = 0, delta = 0;

    reference_row(shape, s, token, head, 0, SIZE_MAX, o, &lse);
    for (size_t e = 0; e < dim; e++)
        delta += d_o[e] *
                 (k->compute == CF_COMPUTE_BF16 ? nearest_bf16(o[e]) : o[e]);
    for (size_t j = begin; j < smaller(end, token + 1); j++) {
        size_t at = (j * shape->n_kv_heads + kv_head) * dim;
        double p = exp(score(shape, q, s->k + at) - lse), dp = 0;

        for (size_t e = 0; e < dim; e++)
            dp += d_o[e] * s->v[at + e];
        for (size_t e = 0; e < dim; e++) {
            double ds = p * (dp - delta) * shape->softmax_scale;

            g.dq[row + e] += ds * s->k[at + e];
            g.dk[at + e] += ds * q[e];
            g.dv[at + e] += p * d_o[e];
        }
    }
}

static double *zeros(size_t n)
{
    return memset(array_double(n), 0, n * sizeof(double));
}

/* Compares o, lse, dq and the gradient pages of a finished call. */
static void check_part(const call *c, size_t p, const part *x, uint64_t seed)
{
    const cf_attn_shape *shape = &c->shape;
    const sequence *s = x->s;
    size_t width = q_elements(shape, 1), row = c->pieces[p].row;
    size_t n_q = q_elements(shape, s->n_tok), n_k = k_elements(shape, s->n_tok);
    double *o = zeros(n_q), *lse = zeros((size_t)s->n_tok * shape->n_heads);
    gradient g = {zeros(n_q), zeros(n_k), zeros(n_k)};
    size_t first = x->prefix_tok, n = x->n_tok;

    for (size_t i = first; i < first + n; i++)
        for (size_t h = 0; h < shape->n_heads; h++) {
            size_t at = i * shape->n_heads + h;

            reference_row(shape, s, i, h, c->key_begin, c->key_end,
                          o + at * shape->head_dim, &lse[at]);
            reference_row_backward(c->k, shape, s, i, h, c->key_begin,
                                   c->key_end, g);
        }

    double *got_o =
        act_values_of(c->k, q_elements(shape, c->batch.n_tok), c->o);
    double *got_dq = values_of(c->k, q_elements(shape, c->batch.n_tok), c->dq);
    double *got_lse = values_of(c->k, c->batch.n_tok * shape->n_heads, c->lse);
    double bound = bound_of(c->k, 4e-6, 1e-14);
    /* o may have been rounded to the other side. */
    double wider = act_bound_of(c->k, bound, bound);

    ck_assert(close_arrays("o", n * width, got_o + row * width,
                           o + first * width, act_bound_of(c->k, bound, bound),
                           seed));
    ck_assert(close_arrays("lse", n * shape->n_heads,
                           got_lse + row * shape->n_heads,
                           lse + first * shape->n_heads, bound, seed));
    ck_assert(close_arrays("dq", n * width, got_dq + row * width,
                           g.dq + first * width, wider, seed));
    ck_assert(close_arrays("dk", n_k, gradients_of(c->k, shape, s, s->dk_pages),
                           g.dk, wider, seed));
    ck_assert(close_arrays("dv", n_k, gradients_of(c->k, shape, s, s->dv_pages),
                           g.dv, bound, seed));
}

/* Forward and backward of parts, over all keys or a range, against the
 * reference. */
static void check_parts(const cf_kernels *k, const cf_attn_shape *shape,
                        size_t n_parts, const part *parts, uint32_t key_begin,
                        uint32_t key_end, uint64_t seed)
{
    call *all = call_open(k, shape, n_parts, parts);
    call *c = call_open(k, shape, n_parts, parts);

    c->key_begin = key_begin;
    c->key_end = key_end;
    forward(all);
    forward(c);
    backward(c, all->o, all->lse);
    for (size_t p = 0; p < n_parts; p++)
        check_part(c, p, &parts[p], seed);
}

/* ---- tests ---- */

static const struct reference_case {
    uint32_t n_heads, n_kv_heads, head_dim;
    uint32_t pieces[6][2]; /* prefix_tok, n_tok; ends with n_tok 0 */
    uint32_t key_begin, key_end;
} reference_cases[] = {
    {1, 1, 2, {{0, 1}}, 0, UINT32_MAX},
    {1, 1, 6, {{0, 70}}, 0, UINT32_MAX},
    {2, 1, 8, {{0, 65}, {0, 1}, {3, 2}}, 0, UINT32_MAX},
    {6, 2, 12, {{0, 37}, {0, 5}, {75, 130}}, 0, UINT32_MAX},
    {4, 4, 20, {{0, 129}, {250, 20}}, 0, UINT32_MAX},
    {9, 3, 64, {{0, 37}, {0, 5}, {75, 130}}, 0, UINT32_MAX},
    {9, 3, 64, {{0, 300}}, 0, UINT32_MAX},
    {8, 1, 64, {{500, 40}}, 0, UINT32_MAX},
    {14, 2, 64, {{0, 33}, {64, 64}, {63, 65}, {0, 1}, {1, 1}}, 0, UINT32_MAX},
    {5, 1, 80, {{0, 90}, {10, 7}}, 0, UINT32_MAX},
    {3, 3, 96, {{0, 66}, {256, 3}}, 0, UINT32_MAX},
    {4, 2, 128, {{0, 100}, {300, 64}}, 0, UINT32_MAX},
    {2, 1, 256, {{0, 50}, {255, 2}}, 0, UINT32_MAX},
    {2, 2, 18, {{4090, 30}}, 0, UINT32_MAX},
    {128, 1, 4, {{0, 3}, {70, 2}}, 0, UINT32_MAX},
    {6, 2, 12, {{0, 200}}, 64, 128},
    {6, 2, 12, {{0, 200}}, 77, 130},
    {9, 3, 64, {{300, 90}}, 100, 101},
    {9, 3, 64, {{300, 90}, {0, 40}}, 310, UINT32_MAX},
    {4, 1, 16, {{300, 90}, {0, 40}}, 1000, UINT32_MAX},
    {4, 1, 16, {{300, 90}}, 50, 50},
};

enum {
    N_REFERENCE_CASES = sizeof(reference_cases) / sizeof(reference_cases[0])
};

START_TEST(equals_the_reference)
{
    const struct reference_case *x = &reference_cases[_i / N_TYPES];
    const cf_kernels *k = &types[_i % N_TYPES];
    cf_attn_shape shape = shape_of(x->n_heads, x->n_kv_heads, x->head_dim);
    part parts[6];
    size_t n = 0;

    for (; n < 6 && x->pieces[n][1] > 0; n++) {
        parts[n].prefix_tok = x->pieces[n][0];
        parts[n].n_tok = x->pieces[n][1];
        parts[n].s =
            sequence_open(k, &shape, parts[n].prefix_tok + parts[n].n_tok, n);
    }
    check_parts(k, &shape, n, parts, x->key_begin, x->key_end, 0);
}
END_TEST

START_TEST(equals_the_reference_for_random_shapes)
{
    const char *text = getenv("CF_TEST_SEED");
    uint64_t seed = text != NULL ? strtoull(text, NULL, 10) : (uint64_t)_i + 1;
    uint64_t r = seed;
    const cf_kernels *k = &types[_i % N_TYPES];
    uint32_t n_kv_heads = 1 + random_below(&r, 3);
    uint32_t n_heads = n_kv_heads * (1 + random_below(&r, 5));
    cf_attn_shape shape =
        shape_of(n_heads, n_kv_heads, 2 * (1 + random_below(&r, 50)));
    size_t n = 1 + random_below(&r, 8);
    uint32_t key_begin = random_below(&r, 2) * random_below(&r, 300);
    uint32_t key_end = random_below(&r, 2) ? UINT32_MAX : random_below(&r, 500);
    part parts[8];

    shape.softmax_scale *= 1 + random_below(&r, 3);
    for (size_t p = 0; p < n; p++) {
        parts[p].prefix_tok = random_below(&r, 2) * random_below(&r, 400);
        parts[p].n_tok = 1 + random_below(&r, random_below(&r, 4) ? 20 : 150);
        parts[p].s = sequence_open(
            k, &shape, parts[p].prefix_tok + parts[p].n_tok, seed + p);
    }
    check_parts(k, &shape, n, parts, key_begin, key_end, seed);
}
END_TEST

START_TEST(ranges_merge_to_the_whole)
{
    static const uint32_t cuts[] = {1, 64, 100, 128, 231, 350};
    const cf_kernels *k = &types[_i % N_TYPES];
    cf_attn_shape shape = shape_of(6, 2, 20);
    sequence *s = sequence_open(k, &shape, 360, 1);
    part x = {s, 120, 240};
    call *whole = call_open(k, &shape, 1, &x);
    call *low = call_open(k, &shape, 1, &x),
         *high = call_open(k, &shape, 1, &x);
    size_t n = q_elements(&shape, x.n_tok), n_k = k_elements(&shape, s->n_tok);
    double *o = array_double(n), *dq = array_double(n);
    double bound = bound_of(k, 4e-6, 1e-14);

    low->key_end = high->key_begin = cuts[_i / N_TYPES];
    forward(whole);
    forward(low);
    forward(high);
    for (size_t i = 0; i < n; i++) {
        double lse = get(k, whole->lse, i / shape.head_dim);
        double a = get(k, low->lse, i / shape.head_dim);
        double b = get(k, high->lse, i / shape.head_dim);

        ck_assert_double_lt(fabs(log(exp(a - lse) + exp(b - lse))), 1e-5);
        o[i] = exp(a - lse) * act_get(k, low->o, i) +
               exp(b - lse) * act_get(k, high->o, i);
    }
    ck_assert(close_arrays("o", n, o, act_values_of(k, n, whole->o),
                           2 * act_bound_of(k, bound, bound),
                           cuts[_i / N_TYPES]));

    backward(whole, whole->o, whole->lse);
    double *dk = gradients_of(k, &shape, s, s->dk_pages);
    double *dv = gradients_of(k, &shape, s, s->dv_pages);

    gradients_set(k, &shape, s, 0);
    backward(low, whole->o, whole->lse);
    backward(high, whole->o, whole->lse);
    for (size_t i = 0; i < n; i++)
        dq[i] = get(k, low->dq, i) + get(k, high->dq, i);
    ck_assert(close_arrays("dq", n, dq, values_of(k, n, whole->dq), bound, 1));
    ck_assert(close_arrays("dk", n_k, gradients_of(k, &shape, s, s->dk_pages),
                           dk, bound, 1));
    ck_assert(close_arrays("dv", n_k, gradients_of(k, &shape, s, s->dv_pages),
                           dv, bound, 1));
}
END_TEST

START_TEST(rows_that_see_no_key_are_empty)
{
    const cf_kernels *k = &types[_i];
    cf_attn_shape shape = shape_of(3, 1, 12);
    part x = {sequence_open(k, &shape, 90, 1), 10, 80};
    call *c = call_open(k, &shape, 1, &x), *all = call_open(k, &shape, 1, &x);

    c->key_begin = 70; /* rows 0 .. 59 */
    forward(all);
    forward(c);
    backward(c, all->o, all->lse);
    for (size_t i = 0; i < 60 * shape.n_heads; i++)
        ck_assert(get(k, c->lse, i) == -INFINITY);
    for (size_t i = 0; i < q_elements(&shape, 60); i++) {
        ck_assert(act_get(k, c->o, i) == 0);
        ck_assert(get(k, c->dq, i) == 0);
    }
    for (size_t i = 60 * shape.n_heads; i < 80 * shape.n_heads; i++)
        ck_assert(isfinite(get(k, c->lse, i)));
}
END_TEST

/* Sum of o * d_o as a function of one sequence's values. */
typedef struct loss_context {
    call *c;
    part x;
} loss_context;

static double loss_of(const void *context)
{
    const loss_context *x = context;
    double sum = 0;

    rows_store(x->c, &x->x);
    sequence_store(x->c->k, &x->c->shape, x->x.s);
    forward(x->c);
    for (size_t i = 0; i < q_elements(&x->c->shape, x->x.n_tok); i++)
        sum += act_get(x->c->k, x->c->o, i) * act_get(x->c->k, x->c->d_o, i);
    return sum;
}

START_TEST(gradients_are_finite_differences)
{
    const cf_kernels *k = &types[1];
    cf_attn_shape shape = shape_of(2, 1, 6);
    sequence *s = sequence_open(k, &shape, 9, 3);
    loss_context x = {NULL, {s, 3, 6}};
    size_t n_q = q_elements(&shape, 6), n_k = k_elements(&shape, 9);
    double *dq = array_double(n_q), *dk = array_double(n_k);
    double *dv = array_double(n_k);

    x.c = call_open(k, &shape, 1, &x.x);
    forward(x.c);
    backward(x.c, x.c->o, x.c->lse);
    finite_difference(loss_of, &x, n_q, s->q + q_elements(&shape, 3), dq);
    finite_difference(loss_of, &x, n_k, s->k, dk);
    finite_difference(loss_of, &x, n_k, s->v, dv);
    ck_assert(close_arrays("dq", n_q, values_of(k, n_q, x.c->dq), dq, 1e-9, 3));
    ck_assert(close_arrays("dk", n_k, gradients_of(k, &shape, s, s->dk_pages),
                           dk, 1e-9, 3));
    ck_assert(close_arrays("dv", n_k, gradients_of(k, &shape, s, s->dv_pages),
                           dv, 1e-9, 3));
}
END_TEST

static const struct bits_case {
    uint32_t n_heads, n_kv_heads, head_dim, n_tok;
} bits_cases[] = {
    {9, 3, 64, 700},
    {2, 2, 20, 700},
    {7, 1, 128, 333},
    {16, 2, 6, 500},
};

enum {
    N_BITS_CASES = sizeof(bits_cases) / sizeof(bits_cases[0])
};

START_TEST(outputs_ignore_how_a_sequence_is_cut)
{
    static const uint32_t sizes[] = {1, 16, 64, 100, 128, 333, 500};
    const struct bits_case *x = &bits_cases[_i / N_TYPES];
    const cf_kernels *k = &types[_i % N_TYPES];
    cf_attn_shape shape = shape_of(x->n_heads, x->n_kv_heads, x->head_dim);
    sequence *s = sequence_open(k, &shape, x->n_tok, 5);
    part all = {s, 0, x->n_tok};
    call *whole = call_open(k, &shape, 1, &all);
    size_t width = q_elements(&shape, 1);

    forward(whole);
    for (size_t z = 0; z < sizeof(sizes) / sizeof(sizes[0]); z++) {
        /* Of the smallest size, the last few are enough. */
        uint32_t first = sizes[z] == 1 ? x->n_tok - 20 : 0;

        for (uint32_t at = first; at < x->n_tok; at += sizes[z]) {
            part cut = {s, at, (uint32_t)smaller(sizes[z], x->n_tok - at)};
            call *c = call_open(k, &shape, 1, &cut);

            forward(c);
            ck_assert(same_acts(c, c->o, 0, whole->o, at, cut.n_tok, width));
            ck_assert(same_rows(c, c->lse, 0, whole->lse, at, cut.n_tok,
                                shape.n_heads));
        }
    }
}
END_TEST

START_TEST(outputs_and_gradients_ignore_packing)
{
    static const uint32_t lengths[] = {3, 150, 1, 31, 200, 2, 65};
    enum {
        N = sizeof(lengths) / sizeof(lengths[0])
    };
    const struct bits_case *x = &bits_cases[_i / N_TYPES];
    const cf_kernels *k = &types[_i % N_TYPES];
    cf_attn_shape shape = shape_of(x->n_heads, x->n_kv_heads, x->head_dim);
    size_t width = q_elements(&shape, 1);
    part parts[N];

    for (size_t p = 0; p < N; p++)
        parts[p] = (part){sequence_open(k, &shape, lengths[p] + 40, p), 40,
                          lengths[p]};

    call *packed = call_open(k, &shape, N, parts);

    forward(packed);
    backward(packed, packed->o, packed->lse);
    for (size_t p = 0; p < N; p++) {
        sequence *s = parts[p].s;
        size_t n_k = k_elements(&shape, s->n_tok), row = packed->pieces[p].row;
        double *dk = gradients_of(k, &shape, s, s->dk_pages);
        double *dv = gradients_of(k, &shape, s, s->dv_pages);
        call *alone = call_open(k, &shape, 1, &parts[p]);

        gradients_set(k, &shape, s, 0);
        forward(alone);
        backward(alone, alone->o, alone->lse);
        ck_assert(
            same_acts(alone, alone->o, 0, packed->o, row, lengths[p], width));
        ck_assert(
            same_rows(alone, alone->dq, 0, packed->dq, row, lengths[p], width));
        ck_assert(same_rows(alone, alone->lse, 0, packed->lse, row, lengths[p],
                            shape.n_heads));
        ck_assert_mem_eq(gradients_of(k, &shape, s, s->dk_pages), dk,
                         n_k * sizeof(*dk));
        ck_assert_mem_eq(gradients_of(k, &shape, s, s->dv_pages), dv,
                         n_k * sizeof(*dv));
    }
}
END_TEST

START_TEST(results_ignore_the_number_of_threads)
{
    const struct bits_case *x = &bits_cases[_i / N_TYPES];
    const cf_kernels *k = &types[_i % N_TYPES];
    cf_attn_shape shape = shape_of(x->n_heads, x->n_kv_heads, x->head_dim);
    sequence *long_one = sequence_open(k, &shape, x->n_tok, 1);
    sequence *short_one = sequence_open(k, &shape, 40, 2);
    part parts[] = {{long_one, x->n_tok / 2, x->n_tok - x->n_tok / 2},
                    {short_one, 0, 40}};
    size_t n_k = k_elements(&shape, x->n_tok);
    call *first = NULL;
    double *dk = NULL, *dv = NULL;

    for (int threads = 1; threads <= 3; threads++) {
        call *c = call_open(k, &shape, 2, parts);

        omp_set_num_threads(threads);
        gradients_set(k, &shape, long_one, 0);
        gradients_set(k, &shape, short_one, 0);
        forward(c);
        backward(c, c->o, c->lse);
        if (threads == 1) {
            first = c;
            dk = gradients_of(k, &shape, long_one, long_one->dk_pages);
            dv = gradients_of(k, &shape, long_one, long_one->dv_pages);
            continue;
        }
        ck_assert(same_acts(c, c->o, 0, first->o, 0, c->batch.n_tok,
                            q_elements(&shape, 1)));
        ck_assert(same_rows(c, c->lse, 0, first->lse, 0, c->batch.n_tok,
                            shape.n_heads));
        ck_assert(same_rows(c, c->dq, 0, first->dq, 0, c->batch.n_tok,
                            q_elements(&shape, 1)));
        ck_assert_mem_eq(gradients_of(k, &shape, long_one, long_one->dk_pages),
                         dk, n_k * sizeof(*dk));
        ck_assert_mem_eq(gradients_of(k, &shape, long_one, long_one->dv_pages),
                         dv, n_k * sizeof(*dv));
    }
}
END_TEST

START_TEST(key_gradients_accumulate)
{
    const cf_kernels *k = &types[_i];
    cf_attn_shape shape = shape_of(6, 2, 20);
    part x = {sequence_open(k, &shape, 300, 1), 200, 100};
    sequence *s = x.s;
    call *c = call_open(k, &shape, 1, &x);
    size_t n_k = k_elements(&shape, 300);

    forward(c);
    backward(c, c->o, c->lse);
    double *dk = gradients_of(k, &shape, s, s->dk_pages);
    double *dv = gradients_of(k, &shape, s, s->dv_pages);

    gradients_set(k, &shape, s, 0.75);
    backward(c, c->o, c->lse);
    double *dk_twice = gradients_of(k, &shape, s, s->dk_pages);
    double *dv_twice = gradients_of(k, &shape, s, s->dv_pages);

    for (size_t i = 0; i < n_k; i++) {
        double base = 0.75;

        if (k->acc_bytes == sizeof(float)) {
            ck_assert(dk_twice[i] == (float)(base + dk[i]));
            ck_assert(dv_twice[i] == (float)(base + dv[i]));
        } else {
            ck_assert(dk_twice[i] == base + dk[i]);
            ck_assert(dv_twice[i] == base + dv[i]);
        }
    }
}
END_TEST

/* The chunks of a sequence, last one first, give the gradients of the whole. */
START_TEST(chunked_gradients_equal_unsplit)
{
    enum {
        N = 500,
        CHUNK = 130
    };
    const cf_kernels *k = &types[_i];
    cf_attn_shape shape = shape_of(6, 2, 20);
    sequence *s = sequence_open(k, &shape, N, 1);
    part all = {s, 0, N};
    call *whole = call_open(k, &shape, 1, &all);
    size_t n_k = k_elements(&shape, N), width = q_elements(&shape, 1);
    double bound = bound_of(k, 2e-6, 1e-14);

    forward(whole);
    backward(whole, whole->o, whole->lse);
    double *dq = values_of(k, N * width, whole->dq);
    double *dk = gradients_of(k, &shape, s, s->dk_pages);
    double *dv = gradients_of(k, &shape, s, s->dv_pages);

    gradients_set(k, &shape, s, 0);
    for (uint32_t at = N / CHUNK * CHUNK;; at -= CHUNK) {
        part cut = {s, at, (uint32_t)smaller(CHUNK, N - at)};
        call *c = call_open(k, &shape, 1, &cut);

        forward(c);
        backward(c, c->o, c->lse);
        ck_assert(close_arrays("dq", cut.n_tok * width,
                               values_of(k, cut.n_tok * width, c->dq),
                               dq + at * width, bound, at));
        if (at == 0)
            break;
    }
    ck_assert(close_arrays("dk", n_k, gradients_of(k, &shape, s, s->dk_pages),
                           dk, bound, 1));
    ck_assert(close_arrays("dv", n_k, gradients_of(k, &shape, s, s->dv_pages),
                           dv, bound, 1));
}
END_TEST

/* Three packed pieces; the middle one's values change, or are spoiled by
 * `value` at one token, and the others must keep their bits. */
static void check_leak(const cf_kernels *k, double value, bool spoil_key)
{
    cf_attn_shape shape = shape_of(6, 2, 12);
    part parts[3];
    call *before, *after;
    double *dk[3];

    for (size_t p = 0; p < 3; p++)
        parts[p] = (part){sequence_open(k, &shape, 75, p), 0, 75};
    before = call_open(k, &shape, 3, parts);
    forward(before);
    backward(before, before->o, before->lse);
    for (size_t p = 0; p < 3; p++) {
        dk[p] = gradients_of(k, &shape, parts[p].s, parts[p].s->dk_pages);
        gradients_set(k, &shape, parts[p].s, 0);
    }

    sequence *s = parts[1].s;

    if (spoil_key)
        s->k[k_elements(&shape, 20)] = value;
    else
        s->v[k_elements(&shape, 20)] = value;
    s->q[q_elements(&shape, 30)] = value;
    sequence_store(k, &shape, s);
    after = call_open(k, &shape, 3, parts);
    forward(after);
    backward(after, after->o, after->lse);

    for (size_t p = 0; p < 3; p += 2) {
        size_t row = after->pieces[p].row;

        ck_assert(same_acts(after, after->o, row, before->o, row, 75,
                            q_elements(&shape, 1)));
        ck_assert(same_rows(after, after->dq, row, before->dq, row, 75,
                            q_elements(&shape, 1)));
        ck_assert_mem_eq(
            gradients_of(k, &shape, parts[p].s, parts[p].s->dk_pages), dk[p],
            k_elements(&shape, 75) * sizeof(double));
    }
    ck_assert(!same_acts(after, after->o, 75 + 20, before->o, 75 + 20, 1,
                         q_elements(&shape, 1)));

    /* Heads 0 .. 2 of the rows from token 20 on see what was spoiled. */
    if (isnan(value))
        for (size_t i = 20; i < 75; i++) {
            size_t at = (75 + i) * shape.n_heads;

            ck_assert(isnan(act_get(k, after->o, at * shape.head_dim)));
            ck_assert(!spoil_key || isnan(get(k, after->lse, at)));
        }
}

START_TEST(a_token_changes_its_own_piece_only)
{
    check_leak(&types[_i], 0.625, true);
    check_leak(&types[_i], 0.625, false);
}
END_TEST

START_TEST(nan_comes_out_of_its_own_piece)
{
    check_leak(&types[_i], NAN, true);
    check_leak(&types[_i], NAN, false);
}
END_TEST

START_TEST(inf_comes_out_of_its_own_piece)
{
    check_leak(&types[_i], INFINITY, true);
    check_leak(&types[_i], -INFINITY, true);
    check_leak(&types[_i], INFINITY, false);
}
END_TEST

START_TEST(a_row_of_infinitely_small_scores_is_nan)
{
    const cf_kernels *k = &types[_i];
    cf_attn_shape shape = shape_of(1, 1, 2);
    part x = {sequence_open(k, &shape, 3, 1), 0, 3};
    call *c;

    for (size_t i = 0; i < 6; i++) {
        x.s->q[i] = 1;
        x.s->k[i] = -INFINITY;
    }
    sequence_store(k, &shape, x.s);
    c = call_open(k, &shape, 1, &x);
    forward(c);
    for (size_t i = 0; i < 6; i++)
        ck_assert(isnan(act_get(k, c->o, i)));
}
END_TEST

START_TEST(large_scores_do_not_overflow)
{
    const cf_kernels *k = &types[_i];
    cf_attn_shape shape = shape_of(1, 1, 2);
    part x = {sequence_open(k, &shape, 100, 1), 0, 100};
    call *c;

    for (size_t i = 0; i < 200; i++)
        x.s->k[i] *= 1e15;
    sequence_store(k, &shape, x.s);
    c = call_open(k, &shape, 1, &x);
    forward(c);
    for (size_t i = 0; i < 200; i++)
        ck_assert(fabs(act_get(k, c->o, i)) <= 1);
}
END_TEST

START_TEST(scratch_grows_with_every_count)
{
    const cf_kernels *k = &types[_i];
    cf_attn_shape shape = shape_of(9, 3, 64);

    for (size_t n_tok = 1; n_tok < 200; n_tok += 7)
        for (size_t n_pieces = 1; n_pieces < 20; n_pieces++) {
            size_t bytes =
                k->attention_scratch_bytes(k, &shape, n_tok, n_pieces);

            ck_assert_uint_le(bytes, k->attention_scratch_bytes(
                                         k, &shape, n_tok + 1, n_pieces));
            ck_assert_uint_le(bytes, k->attention_scratch_bytes(
                                         k, &shape, n_tok, n_pieces + 1));
        }
}
END_TEST

static TCase *case_open(Suite *suite, const char *name)
{
    TCase *tc = tcase_create(name);

    tcase_add_checked_fixture(tc, types_open, arrays_close);
    tcase_set_timeout(tc, 120);
    suite_add_tcase(suite, tc);
    return tc;
}

static Suite *attention_suite(void)
{
    Suite *suite = suite_create("attention");
    TCase *values = case_open(suite, "values");
    TCase *bits = case_open(suite, "bits");
    TCase *edges = case_open(suite, "edges");

    tcase_add_loop_test(values, equals_the_reference, 0,
                        N_TYPES * N_REFERENCE_CASES);
    tcase_add_loop_test(values, equals_the_reference_for_random_shapes, 0, 90);
    tcase_add_loop_test(values, ranges_merge_to_the_whole, 0, 18);
    tcase_add_test(values, gradients_are_finite_differences);
    tcase_add_loop_test(values, chunked_gradients_equal_unsplit, 0, N_TYPES);
    tcase_add_loop_test(values, key_gradients_accumulate, 0, N_TYPES);

    tcase_add_loop_test(bits, outputs_ignore_how_a_sequence_is_cut, 0,
                        N_TYPES * N_BITS_CASES);
    tcase_add_loop_test(bits, outputs_and_gradients_ignore_packing, 0,
                        N_TYPES * N_BITS_CASES);
    tcase_add_loop_test(bits, results_ignore_the_number_of_threads, 0,
                        N_TYPES * N_BITS_CASES);
    tcase_add_loop_test(bits, a_token_changes_its_own_piece_only, 0, N_TYPES);

    tcase_add_loop_test(edges, rows_that_see_no_key_are_empty, 0, N_TYPES);
    tcase_add_loop_test(edges, nan_comes_out_of_its_own_piece, 0, N_TYPES);
    tcase_add_loop_test(edges, inf_comes_out_of_its_own_piece, 0, N_TYPES);
    tcase_add_loop_test(edges, a_row_of_infinitely_small_scores_is_nan, 0,
                        N_TYPES);
    tcase_add_loop_test(edges, large_scores_do_not_overflow, 0, N_TYPES);
    tcase_add_loop_test(edges, scratch_grows_with_every_count, 0, N_TYPES);
    return suite;
}

int main(void)
{
    SRunner *runner = srunner_create(attention_suite());

    srunner_run_all(runner, CK_ENV);

    int n_failed = srunner_ntests_failed(runner);

    srunner_free(runner);
    return n_failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
