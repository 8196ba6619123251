/* linear.c - linear layers, by the library's GEMM.
 *
 * GEMMs read the masters, so nothing is packed; in bf16 they are the fp32 ones on
 * widened activations (widen.h): sums are fp32, each result is rounded once, and
 * a weight is never rounded.
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
    (void)k, (void)n_out, (void)n_in;
    return 0;
}

void CF_CPU(weight_pack)(const cf_kernels *k, cf_weight *w)
{
    (void)k, (void)w;
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
    (void)k;
    return room_for(smaller(n_tok, CF_TILE_ROWS) * (n_in + n_out)) *
           sizeof(acc);
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

void CF_CPU(linear_forward)(const cf_kernels *k, const cf_weight *w,
                            size_t n_tok, const void *x, void *y, void *scratch)
{
    const linear_room room = room_of(w, n_tok, scratch);
    const act *in = x;
    act *out = y;

    (void)k;
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

    (void)k;
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

void CF_CPU(linear_backward)(const cf_kernels *k, const cf_weight *w,
                             size_t n_tok, const void *dy, const void *x,
                             void *dx, void *dw, void *db, void *scratch)
{
    const linear_room room = room_of(w, n_tok, scratch);
    const act *dout = dy, *in = x;
    act *din = dx;

    (void)k;
    for (size_t row = 0; row < n_tok; row += CF_TILE_ROWS) {
        size_t n = smaller(n_tok - row, CF_TILE_ROWS), first = row * w->n_in;
        const acc *d = widened(n * w->n_out, dout + row * w->n_out, room.out);

        gemm_backward_input(n, w->n_out, w->n_in, d, w->master,
                            wide(din + first, room.in));
        narrow(n * w->n_in, room.in, din + first);
        if (dw != NULL)
            gemm_backward_weight(n, w->n_out, w->n_in, d,
                                 widened(n * w->n_in, in + first, room.in), dw);
    }
    if (db != NULL)
        bias_gradient(n_tok, w->n_out, dout, db);
}
