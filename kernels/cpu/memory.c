/* memory.c - clear, convert, move and inspect rows. */
#include "kernels/cpu/widen.h"

/* Bytes in one block of a pass over plain memory. */
#define BLOCK_BYTES (CF_FLAT_BLOCK * sizeof(acc))

void CF_CPU(zero)(const cf_kernels *k, void *x, size_t bytes)
{
    char *p = x;

    (void)k;
#pragma omp parallel for schedule(static) if (bytes > 4 * BLOCK_BYTES)
    for (size_t i = 0; i < bytes; i += BLOCK_BYTES)
        memset(p + i, 0, smaller(bytes - i, BLOCK_BYTES));
}

void CF_CPU(copy)(const cf_kernels *k, const void *src, void *dst, size_t bytes)
{
    const char *from = src;
    char *to = dst;

    (void)k;
#pragma omp parallel for schedule(static) if (bytes > 4 * BLOCK_BYTES)
    for (size_t i = 0; i < bytes; i += BLOCK_BYTES)
        memcpy(to + i, from + i, smaller(bytes - i, BLOCK_BYTES));
}

const void *CF_CPU(as_act)(const cf_kernels *k, size_t n, const void *src,
                           void *dst)
{
    (void)k;
#if CF_ACT_BF16
    narrow(n, src, dst);
    return dst;
#else
    (void)n, (void)dst;
    return src;
#endif
}

void CF_CPU(rows_gather)(const cf_kernels *k, size_t n_rows, size_t n,
                         const uint32_t *rows, const void *x, void *y)
{
    const acc *from = x;
    acc *to = y;

    (void)k;
#pragma omp parallel for schedule(static) if (n_rows * n > CF_PARALLEL_MIN)
    for (size_t i = 0; i < n_rows; i++)
        memcpy(to + i * n, from + rows[i] * n, n * sizeof(acc));
}

/* Item i is rows[i] and the gap in front of it; item n_rows is the gap behind
 * the last row. */
void CF_CPU(rows_scatter)(const cf_kernels *k, size_t n_rows, size_t n_tok,
                          size_t n, const uint32_t *rows, const void *x,
                          void *y)
{
    const acc *from = x;
    acc *to = y;

    (void)k;
#pragma omp parallel for schedule(static) if (n_tok * n > CF_PARALLEL_MIN)
    for (size_t i = 0; i <= n_rows; i++) {
        size_t begin = i > 0 ? (size_t)rows[i - 1] + 1 : 0;
        size_t end = i < n_rows ? rows[i] : n_tok;

        memset(to + begin * n, 0, (end - begin) * n * sizeof(acc));
        if (i < n_rows)
            memcpy(to + end * n, from + i * n, n * sizeof(acc));
    }
}

/* x - x is 0 for a finite x and NaN for any other. */
static int row_is_finite(size_t n, const acc *x)
{
    vec sum = {0};

    for (size_t i = 0; i < n; i += VL) {
        vec xi = load_acc(x + i, n - i);

        sum += xi - xi;
    }
    return vec_sum(sum) == 0;
}

size_t CF_CPU(first_bad_row)(const cf_kernels *k, size_t n_rows, size_t n,
                             const void *x)
{
    const acc *p = x;
    size_t first = n_rows;

    (void)k;
#pragma omp parallel for schedule(static) \
    reduction(min                         \
              : first) if (n_rows * n > CF_PARALLEL_MIN)
    for (size_t row = 0; row < n_rows; row++)
        if (row < first && !row_is_finite(n, p + row * n))
            first = row;
    return first;
}
