/* embedding.c - rows of the embedding, and their gradients.
 *
 * Two tokens may share a row of dw, so the backward deals columns to the
 * threads: every thread walks all tokens in ascending order.
 */
#include "kernels/cpu/loops.h"

/* Columns of a strip: a whole number of cache lines and vectors. */
enum {
    STRIP = 16
};

void CF_CPU(embedding_forward)(const cf_kernels *k, size_t n_tok, size_t n,
                               const uint32_t *ids, const void *w, void *x)
{
    CF_CPU(rows_gather)(k, n_tok, n, ids, w, x);
}

void CF_CPU(embedding_backward)(const cf_kernels *k, size_t n_tok, size_t n,
                                const uint32_t *ids, const void *dx, void *dw)
{
    const acc *dout = dx;
    acc *d = dw;
    size_t n_strips = n_blocks(n, STRIP);

    (void)k;
#pragma omp parallel if (n_tok * n > CF_PARALLEL_MIN)
    {
        range strips = thread_range(n_strips);
        size_t begin = strips.begin * STRIP;
        size_t end = smaller(strips.end * STRIP, n);

        for (size_t tok = 0; tok < n_tok; tok++) {
            const acc *from = dout + tok * n;
            acc *to = d + ids[tok] * n;

            for (size_t i = begin; i < end; i += VL)
                store_acc(to + i, end - i,
                          load_acc(to + i, end - i) +
                              load_acc(from + i, end - i));
        }
    }
}
