/* sums.c - additions over flat arrays: gradients, and their norm. */
#include "kernels/cpu/loops.h"

/* A vector of doubles, and as many elements of acc. */
enum {
    DL = CF_VB / (int)sizeof(double)
};
typedef double dvec __attribute__((vector_size(CF_VB)));
typedef acc narrow
    __attribute__((vector_size(CF_VB / sizeof(double) * sizeof(acc)),
                   aligned(sizeof(acc)), may_alias));

static double block_squares(size_t n, const acc *x)
{
    dvec sum[4] = {{0}};
    double total = 0;
    size_t i = 0;

    for (; i + 4 * DL <= n; i += 4 * DL)
        for (size_t j = 0; j < 4; j++) {
            narrow xi = *(const narrow *)(x + i + j * DL);
            dvec wide = __builtin_convertvector(xi, dvec);

            sum[j] += wide * wide;
        }
    sum[0] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    for (size_t j = 0; j < DL; j++)
        total += sum[0][j];
    for (; i < n; i++)
        total += (double)x[i] * (double)x[i];
    return total;
}

void CF_CPU(sum_squares)(const cf_kernels *k, size_t n, const void *x,
                         double *partials)
{
    const acc *p = x;

    (void)k;
#pragma omp parallel for schedule(static) if (n > CF_PARALLEL_MIN)
    for (size_t b = 0; b < n_blocks(n, CF_NORM_BLOCK); b++) {
        size_t begin = b * CF_NORM_BLOCK;

        partials[b] =
            block_squares(smaller(n - begin, CF_NORM_BLOCK), p + begin);
    }
}

void CF_CPU(add_act)(const cf_kernels *k, size_t n, const void *x, void *y)
{
    const act *from = x;
    act *to = y;

    (void)k;
#pragma omp parallel for schedule(static) if (n > CF_PARALLEL_MIN)
    for (size_t begin = 0; begin < n; begin += CF_FLAT_BLOCK) {
        size_t end = begin + smaller(n - begin, CF_FLAT_BLOCK);

        for (size_t i = begin; i < end; i += VL)
            store_act(to + i, end - i,
                      load_act(to + i, end - i) + load_act(from + i, end - i));
    }
}

void CF_CPU(add)(const cf_kernels *k, size_t n, const void *x, void *y)
{
    const acc *from = x;
    acc *to = y;

    (void)k;
#pragma omp parallel for schedule(static) if (n > CF_PARALLEL_MIN)
    for (size_t begin = 0; begin < n; begin += CF_FLAT_BLOCK) {
        size_t end = begin + smaller(n - begin, CF_FLAT_BLOCK);

        for (size_t i = begin; i < end; i += VL)
            store_acc(to + i, end - i,
                      load_acc(to + i, end - i) + load_acc(from + i, end - i));
    }
}
