/* linear.c - linear layers, by the library's GEMM.
 *
 * act and acc are one type here and the GEMM reads the masters, so nothing is
 * packed.  A bf16 variant brings its own library and its own file for this; the
 * other files of this folder serve it as they are.
 */
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/loops.h"

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

static void forward(const cf_weight *w, size_t n_tok, const act *x, acc beta,
                    acc *y)
{
    for (size_t row = 0; row < n_tok; row += CF_GEMM_ROWS)
        gemm_forward(smaller(n_tok - row, CF_GEMM_ROWS), w->n_out, w->n_in,
                     x + row * w->n_in, w->master, beta, y + row * w->n_out);
    if (w->bias != NULL)
        add_bias(n_tok, w->n_out, w->bias, y);
}

void CF_CPU(linear_forward)(const cf_kernels *k, const cf_weight *w,
                            size_t n_tok, const void *x, void *y)
{
    (void)k;
    forward(w, n_tok, x, 0, y);
}

void CF_CPU(linear_forward_residual)(const cf_kernels *k, const cf_weight *w,
                                     size_t n_tok, const void *x, void *y)
{
    (void)k;
    forward(w, n_tok, x, 1, y);
}

void CF_CPU(linear_backward_input)(const cf_kernels *k, const cf_weight *w,
                                   size_t n_tok, const void *dy, void *dx)
{
    const act *dout = dy;
    act *din = dx;

    (void)k;
    for (size_t row = 0; row < n_tok; row += CF_GEMM_ROWS)
        gemm_backward_input(smaller(n_tok - row, CF_GEMM_ROWS), w->n_out,
                            w->n_in, dout + row * w->n_out, w->master,
                            din + row * w->n_in);
}

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

void CF_CPU(linear_backward_weight)(const cf_kernels *k, size_t n_tok,
                                    size_t n_out, size_t n_in, const void *dy,
                                    const void *x, void *dw, void *db)
{
    const act *dout = dy;
    const act *in = x;

    (void)k;
    for (size_t row = 0; row < n_tok; row += CF_GEMM_ROWS)
        gemm_backward_weight(smaller(n_tok - row, CF_GEMM_ROWS), n_out, n_in,
                             dout + row * n_out, in + row * n_in, dw);
    if (db != NULL)
        bias_gradient(n_tok, n_out, dout, db);
}
