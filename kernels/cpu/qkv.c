/* qkv.c - from the fused projection to q and the pages of K and V, and back.
 *
 * A head is normalised (where the model does so) and rotated in one go, from
 * where the GEMM left it to where attention reads it.  The backward undoes the
 * rotation by its transpose; the statistics of a norm are computed again.
 *
 * Weight gradients of the norms are summed over blocks of CF_SUM_ROWS rows of
 * the call, each into a partial of its own in scratch: [q or k, head_dim].
 */
#include <assert.h>

#include "kernels/cpu/loops.h"

enum {
    HEAD_DIM_MAX = 256
};

/* What all heads of q, or of k, in one row have in common. */
typedef struct head_op {
    size_t n;          /* head_dim */
    const acc *weight; /* NULL: no norm */
    acc eps;
    const acc *cos, *sin; /* of the row */
} head_op;

static head_op head_op_of(const cf_qkv_params *p, const void *weight,
                          size_t row)
{
    size_t n = p->shape.head_dim;

    assert(n % 2 == 0 && n <= HEAD_DIM_MAX);
    return (head_op){
        .n = n,
        .weight = weight,
        .eps = (acc)p->norm_eps,
        .cos = (const acc *)p->cos + row * (n / 2),
        .sin = (const acc *)p->sin + row * (n / 2),
    };
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* The rows of a piece that lie within rows. */
static range piece_rows(const cf_attn_piece *piece, range rows)
{
    size_t first = piece->row;

    return (range){
        larger(rows.begin, first),
        smaller(rows.end, first + piece->n_tok),
    };
}

/* Where head 0 of a row lies in the pages of its piece: which page, and which
 * element of it; its other heads follow every head_stride elements. */
typedef struct page_place {
    size_t page;
    size_t element;
} page_place;

static page_place place_of(const cf_attn_piece *piece, size_t row,
                           size_t head_dim)
{
    size_t position = piece->prefix_tok + (row - piece->row);

    return (page_place){position / CF_PAGE_TOK,
                        position % CF_PAGE_TOK * head_dim};
}

static acc head_rstd(const head_op *op, const act *x)
{
    vec sum = {0};

    for (size_t i = 0; i < op->n; i += VL) {
        vec xi = load_act(x + i, op->n - i);

        sum += xi * xi;
    }

    acc mean = vec_sum(sum) / (acc)op->n + op->eps;

#if CF_DOUBLE
    return 1 / sqrt(mean);
#else
    return 1 / sqrtf(mean);
#endif
}

static void forward_head(const head_op *op, const act *x, act *y)
{
    size_t half = op->n / 2;
    vec rstd = {0};

    if (op->weight != NULL)
        rstd = vec_splat(head_rstd(op, x));
    for (size_t i = 0; i < half; i += VL) {
        size_t left = half - i;
        vec a = load_act(x + i, left);
        vec b = load_act(x + half + i, left);
        vec c = load_acc(op->cos + i, left);
        vec s = load_acc(op->sin + i, left);

        if (op->weight != NULL) {
            a = load_acc(op->weight + i, left) * (a * rstd);
            b = load_acc(op->weight + half + i, left) * (b * rstd);
        }
        store_act(y + i, left, a * c - b * s);
        store_act(y + half + i, left, b * c + a * s);
    }
}

static void forward_row(const cf_qkv_params *p, const cf_attn_piece *piece,
                        size_t row, const act *x, act *q)
{
    size_t n = p->shape.head_dim;
    size_t n_kv_heads = p->shape.n_kv_heads;
    head_op q_op = head_op_of(p, p->q_norm, row);
    head_op k_op = head_op_of(p, p->k_norm, row);
    const page_place at = place_of(piece, row, n);
    act *k = (act *)piece->k[at.page] + at.element;
    act *v = (act *)piece->v[at.page] + at.element;

    for (size_t head = 0; head < p->shape.n_heads; head++, x += n)
        forward_head(&q_op, x, q + head * n);
    for (size_t head = 0; head < n_kv_heads; head++, x += n)
        forward_head(&k_op, x, k + head * piece->head_stride);
    for (size_t head = 0; head < n_kv_heads; head++, x += n)
        memcpy(v + head * piece->head_stride, x, n * sizeof(act));
}

static size_t row_elements(const cf_attn_shape *shape)
{
    return (shape->n_heads + 2 * (size_t)shape->n_kv_heads) * shape->head_dim;
}

void CF_CPU(qkv_forward)(const cf_kernels *k, const cf_qkv_params *p,
                         const cf_attn_batch *batch, const void *qkv,
                         void *q_out)
{
    const act *x = qkv;
    act *q = q_out;
    size_t n = row_elements(&p->shape);
    size_t n_q = (size_t)p->shape.n_heads * p->shape.head_dim;

    (void)k;
#pragma omp parallel if (batch->n_tok * n > CF_PARALLEL_MIN)
    {
        range mine = thread_range(batch->n_tok);

        for (size_t i = 0; i < batch->n_pieces; i++) {
            const cf_attn_piece *piece = &batch->pieces[i];
            range rows = piece_rows(piece, mine);

            for (size_t row = rows.begin; row < rows.end; row++)
                forward_row(p, piece, row, x + row * n, q + row * n_q);
        }
    }
}

/* d = the transposed rotation of dy. */
static void rotate_back(const head_op *op, const acc *dy, acc *d)
{
    size_t half = op->n / 2;

    for (size_t i = 0; i < half; i += VL) {
        size_t left = half - i;
        vec a = load_acc(dy + i, left);
        vec b = load_acc(dy + half + i, left);
        vec c = load_acc(op->cos + i, left);
        vec s = load_acc(op->sin + i, left);

        store_acc(d + i, left, a * c + b * s);
        store_acc(d + half + i, left, b * c - a * s);
    }
}

/* dx from dy; x is read and dweight += only when there is a norm.  The algebra
 * is that of rmsnorm.c. */
static void backward_head(const head_op *op, const act *x, const acc *dy,
                          act *dx, acc *dweight)
{
    acc d[HEAD_DIM_MAX];

    rotate_back(op, dy, d);
    if (op->weight == NULL) {
        for (size_t i = 0; i < op->n; i += VL)
            store_act(dx + i, op->n - i, load_acc(d + i, op->n - i));
        return;
    }

    acc rstd = head_rstd(op, x);
    vec sum = {0};

    for (size_t i = 0; i < op->n; i += VL) {
        size_t left = op->n - i;
        vec t = load_acc(d + i, left) * load_act(x + i, left);

        sum += t * load_acc(op->weight + i, left);
        store_acc(dweight + i, left,
                  load_acc(dweight + i, left) + t * vec_splat(rstd));
    }

    vec c = vec_splat(vec_sum(sum) * rstd * rstd / (acc)op->n);

    for (size_t i = 0; i < op->n; i += VL) {
        size_t left = op->n - i;
        vec t = load_acc(d + i, left) * load_acc(op->weight + i, left);

        store_act(dx + i, left,
                  vec_splat(rstd) * (t - c * load_act(x + i, left)));
    }
}

/* The arrays of a backward. */
typedef struct backward_arrays {
    const act *qkv; /* not read without norms, and then any pointer */
    const acc *dq;
    act *dqkv;
    acc *partials;
} backward_arrays;

static void backward_row(const cf_qkv_params *p, const cf_attn_piece *piece,
                         size_t row, const backward_arrays *a)
{
    size_t n = p->shape.head_dim;
    size_t n_heads = p->shape.n_heads;
    size_t n_kv_heads = p->shape.n_kv_heads;
    size_t first = row * row_elements(&p->shape);
    head_op q_op = head_op_of(p, p->q_norm, row);
    head_op k_op = head_op_of(p, p->k_norm, row);
    const acc *dq = a->dq + row * n_heads * n;
    const page_place at = place_of(piece, row, n);
    const acc *dk = (const acc *)piece->dk[at.page] + at.element;
    const acc *dv = (const acc *)piece->dv[at.page] + at.element;
    acc *dweight = a->partials + row / CF_SUM_ROWS * 2 * n;
    const act *x = a->qkv + first;
    act *dx = a->dqkv + first;

    for (size_t head = 0; head < n_heads; head++, x += n, dx += n)
        backward_head(&q_op, x, dq + head * n, dx, dweight);
    for (size_t head = 0; head < n_kv_heads; head++, x += n, dx += n)
        backward_head(&k_op, x, dk + head * piece->head_stride, dx,
                      dweight + n);
    for (size_t head = 0; head < n_kv_heads; head++, dx += n)
        for (size_t i = 0; i < n; i += VL)
            store_act(dx + i, n - i,
                      load_acc(dv + head * piece->head_stride + i, n - i));
}

size_t CF_CPU(qkv_backward_scratch_bytes)(const cf_kernels *k,
                                          const cf_attn_shape *shape,
                                          size_t n_tok)
{
    (void)k;
    return n_blocks(n_tok, CF_SUM_ROWS) * 2 * shape->head_dim * sizeof(acc);
}

/* dweight [n] += the partials, in ascending order. */
static void add_partials(size_t n_partials, size_t n, const acc *partials,
                         acc *dweight)
{
    for (size_t i = 0; i < n; i += VL) {
        vec sum = {0};

        for (size_t b = 0; b < n_partials; b++)
            sum += load_acc(partials + b * 2 * n + i, n - i);
        store_acc(dweight + i, n - i, load_acc(dweight + i, n - i) + sum);
    }
}

void CF_CPU(qkv_backward)(const cf_kernels *k, const cf_qkv_params *p,
                          const cf_attn_batch *batch, const void *qkv,
                          const void *dq, void *dqkv, void *d_q_norm,
                          void *d_k_norm, void *scratch)
{
    size_t n = p->shape.head_dim;
    size_t n_partials = n_blocks(batch->n_tok, CF_SUM_ROWS);
    acc *partials = scratch;
    const backward_arrays a = {
        .qkv = qkv != NULL ? qkv : dqkv,
        .dq = dq,
        .dqkv = dqkv,
        .partials = partials,
    };

    (void)k;
#pragma omp parallel if (batch->n_tok * row_elements(&p->shape) > \
                         CF_PARALLEL_MIN)
    {
        range mine = thread_range(n_partials);
        range share = {
            mine.begin * CF_SUM_ROWS,
            smaller(mine.end * CF_SUM_ROWS, batch->n_tok),
        };

        memset(partials + mine.begin * 2 * n, 0,
               (mine.end - mine.begin) * 2 * n * sizeof(acc));
        for (size_t i = 0; i < batch->n_pieces; i++) {
            const cf_attn_piece *piece = &batch->pieces[i];
            range rows = piece_rows(piece, share);

            for (size_t row = rows.begin; row < rows.end; row++)
                backward_row(p, piece, row, &a);
        }
    }
    if (d_q_norm != NULL)
        add_partials(n_partials, n, partials, d_q_norm);
    if (d_k_norm != NULL)
        add_partials(n_partials, n, partials + n, d_k_norm);
}
