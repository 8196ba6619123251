/* linear.c - linear layers, by the libraries' GEMMs.
 *
 * Those of OpenBLAS read the masters, so nothing is packed; in bf16 they are the
 * fp32 ones on widened activations (widen.h), and a weight is never rounded.
 * With oneDNN (gemm.h) weights are rounded to act when they are packed, once a
 * step; a product that it lacks is OpenBLAS's.  Either way sums are fp32, and
 * each result is rounded once.
 */
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/widen.h"

/* Vectors in a strip of columns that one thread sums: 4 cache lines' worth. */
enum {
    STRIP = 4
};

size_t CF_CPU(weight_packed_bytes)(const cf_kernels *k, size_t n_out,
                                   size_t n_in)
{
    cf_onednn *library = onednn_of(k);
    size_t forward, backward;

    if (library == NULL)
        return 0;
    forward = packed_forward_bytes(library, n_out, n_in);
    backward = packed_backward_bytes(library, n_out, n_in);
    return forward > 0 && backward > 0 ? forward + backward : 0;
}

void CF_CPU(weight_pack)(const cf_kernels *k, cf_weight *w)
{
    const size_t n_out = w->n_out, n_in = w->n_in;
    cf_onednn *library = onednn_of(k);

    if (CF_CPU(weight_packed_bytes)(k, n_out, n_in) == 0)
        return;
    cf_onednn_pack(library, CF_GEMM_ACT, n_in, n_out, 1, n_in, w->master,
                   w->packed);
    cf_onednn_pack(library, CF_GEMM_ACT, n_out, n_in, n_in, 1, w->master,
                   (char *)w->packed +
                       packed_forward_bytes(library, n_out, n_in));
}

/* ---- room ---- */

/* One tile of an op, widened: what lies on the side of n_in and of n_out. */
typedef struct linear_room {
    acc *in;  /* [rows, n_in] */
    acc *out; /* [rows, n_out] */
} linear_room;

size_t CF_CPU(linear_scratch_bytes)(const cf_kernels *k, size_t n_tok,
                                    size_t n_out, size_t n_in)
{
    size_t n_rows = smaller(n_tok, CF_TILE_ROWS);
    size_t n = room_for(n_rows * (n_in + n_out));

    /* No smaller than what oneDNN's rows need, whose elements are no larger. */
    if (onednn_of(k) != NULL)
        n = cf_onednn_rest_rows(n_tok) * (n_in + n_out);
    return n * sizeof(acc);
}

static linear_room room_of(const cf_weight *w, size_t n_tok, void *scratch)
{
    size_t n_rows = smaller(n_tok, CF_TILE_ROWS);
    acc *room = scratch;

    return (linear_room){room, room + room_for(n_rows * w->n_in)};
}

/* ---- forward ---- */

/* y [n_tok, n_out] += bias in every row. */
static void add_bias(size_t n_tok, size_t n_out, const acc *bias, acc *y)
{
#pragma omp parallel for schedule(static) if (n_tok * n_out > CF_PARALLEL_MIN)
    for (size_t row = 0; row < n_tok; row++) {
        acc *out = y + row * n_out;

        for (size_t i = 0; i < n_out; i += VL)
            store_acc(out + i, n_out - i,
                      load_acc(out + i, n_out - i) +
                          load_acc(bias + i, n_out - i));
    }
}

/* y [n_rows, n_out] = x W^T + b + beta y. */
static void forward(const cf_weight *w, size_t n_rows, const acc *x, acc beta,
                    acc *y)
{
    gemm_forward(n_rows, w->n_out, w->n_in, x, w->master, beta, y);
    if (w->bias != NULL)
        add_bias(n_rows, w->n_out, w->bias, y);
}

/* y = x W^T + b, or +=, by oneDNN; returns whether it has that. */
static bool forward_packed(const cf_kernels *k, const cf_weight *w,
                           size_t n_tok, const void *x, cf_gemm_type out,
                           bool add, void *y, void *scratch)
{
    cf_onednn *library = onednn_of(k);
    cf_product product = forward_product(w, n_tok, out);

    product.bias = w->bias != NULL;
    product.add = add;
    return library != NULL && w->packed != NULL &&
           cf_onednn_rows_multiply(library, &product, n_tok, x, w->packed,
                                   w->bias, y, scratch);
}

void CF_CPU(linear_forward)(const cf_kernels *k, const cf_weight *w,
                            size_t n_tok, const void *x, void *y, void *scratch)
{
    const linear_room room = room_of(w, n_tok, scratch);
    const act *in = x;
    act *out = y;

    if (forward_packed(k, w, n_tok, x, CF_GEMM_ACT, false, y, scratch))
        return;
    for (size_t row = 0; row < n_tok; row += CF_TILE_ROWS) {
        size_t n = smaller(n_tok - row, CF_TILE_ROWS);
        const acc *tile = widened(n * w->n_in, in + row * w->n_in, room.in);
        act *to = out + row * w->n_out;

        forward(w, n, tile, 0, wide(to, room.out));
        narrow(n * w->n_out, room.out, to);
    }
}

void CF_CPU(linear_forward_residual)(const cf_kernels *k, const cf_weight *w,
                                     size_t n_tok, const void *x, void *y,
                                     void *scratch)
{
    const linear_room room = room_of(w, n_tok, scratch);
    const act *in = x;
    acc *out = y;

    if (forward_packed(k, w, n_tok, x, CF_GEMM_FP32, true, y, scratch))
        return;
    for (size_t row = 0; row < n_tok; row += CF_TILE_ROWS) {
        size_t n = smaller(n_tok - row, CF_TILE_ROWS);
        const acc *tile = widened(n * w->n_in, in + row * w->n_in, room.in);

        forward(w, n, tile, 1, out + row * w->n_out);
    }
}

void CF_CPU(linear_forward_add)(const cf_kernels *k, const cf_weight *w,
                                size_t n_tok, const void *x, void *y,
                                void *scratch)
{
    const linear_room room = room_of(w, n_tok, scratch);
    const act *in = x;
    act *out = y;

    (void)k;
    for (size_t row = 0; row < n_tok; row += CF_TILE_ROWS) {
        size_t n = smaller(n_tok - row, CF_TILE_ROWS);
        const acc *tile = widened(n * w->n_in, in + row * w->n_in, room.in);
        act *to = out + row * w->n_out;

        (void)widened(n * w->n_out, to, room.out);
        forward(w, n, tile, 1, wide(to, room.out));
        narrow(n * w->n_out, room.out, to);
    }
}

/* ---- backward ---- */

/* Column sums of one strip, its rows in blocks of CF_SUM_ROWS: short chains of
 * additions lose less than one long one. */
static void strip_sums(size_t n_tok, size_t n_out, size_t first, const act *dy,
                       acc *db)
{
    size_t left = n_out - first;
    vec total[STRIP] = {{0}};

    for (size_t begin = 0; begin < n_tok; begin += CF_SUM_ROWS) {
        size_t end = begin + smaller(n_tok - begin, CF_SUM_ROWS);
        vec sum[STRIP] = {{0}};

        for (size_t row = begin; row < end; row++)
            for (size_t j = 0; j < STRIP && j * VL < left; j++)
                sum[j] +=
                    load_act(dy + row * n_out + first + j * VL, left - j * VL);
        for (size_t j = 0; j < STRIP; j++)
            total[j] += sum[j];
    }
    for (size_t j = 0; j < STRIP && j * VL < left; j++) {
        acc *out = db + first + j * VL;

        store_acc(out, left - j * VL, load_acc(out, left - j * VL) + total[j]);
    }
}

static void bias_gradient(size_t n_tok, size_t n_out, const act *dy, acc *db)
{
#pragma omp parallel for schedule(static) if (n_tok * n_out > CF_PARALLEL_MIN)
    for (size_t first = 0; first < n_out; first += STRIP * VL)
        strip_sums(n_tok, n_out, first, dy, db);
}

/* dx and dw by oneDNN; returns whether it has that. */
static bool dx_packed(const cf_kernels *k, const cf_weight *w, size_t n_tok,
                      const void *dy, void *dx, void *scratch)
{
    cf_onednn *library = onednn_of(k);
    const cf_product product = input_product(w, n_tok);

    return library != NULL && w->packed != NULL &&
           cf_onednn_rows_multiply(library, &product, n_tok, dy,
                                   packed_backward(library, w), NULL, dx,
                                   scratch);
}

static bool dw_packed(const cf_kernels *k, const cf_weight *w, size_t n_tok,
                      const void *dy, const void *x, void *dw, void *scratch)
{
    cf_onednn *library = onednn_of(k);

    return library != NULL && w->packed != NULL &&
           cf_onednn_rows_gradient(library, CF_GEMM_ACT, n_tok, w->n_out,
                                   w->n_in, dy, x, dw, scratch);
}

/* dx and dw by OpenBLAS; NULL where one is not wanted. */
static void backward(const cf_weight *w, size_t n_tok, const act *dy,
                     const act *x, act *dx, acc *dw, const linear_room *room)
{
    for (size_t row = 0; row < n_tok; row += CF_TILE_ROWS) {
        size_t n = smaller(n_tok - row, CF_TILE_ROWS), first = row * w->n_in;
        const acc *d = widened(n * w->n_out, dy + row * w->n_out, room->out);

        if (dx != NULL) {
            gemm_backward_input(n, w->n_out, w->n_in, d, w->master,
                                wide(dx + first, room->in));
            narrow(n * w->n_in, room->in, dx + first);
        }
        if (dw != NULL)
            gemm_backward_weight(n, w->n_out, w->n_in, d,
                                 widened(n * w->n_in, x + first, room->in), dw);
    }
}

void CF_CPU(linear_backward)(const cf_kernels *k, const cf_weight *w,
                             size_t n_tok, const void *dy, const void *x,
                             void *dx, void *dw, void *db, void *scratch)
{
    const linear_room room = room_of(w, n_tok, scratch);

    if (dx_packed(k, w, n_tok, dy, dx, scratch))
        dx = NULL;
    if (dw != NULL && dw_packed(k, w, n_tok, dy, x, dw, scratch))
        dw = NULL;
    if (dx != NULL || dw != NULL)
        backward(w, n_tok, dy, x, dx, dw, &room);
    if (db != NULL)
        bias_gradient(n_tok, w->n_out, dy, db);
}
