/* rmsnorm.c - RMSNorm over the rows of the residual stream.
 *
 * dweight is summed over blocks of CF_SUM_ROWS rows, each into a partial of its
 * own in scratch; the partials are added in ascending order.
 */
#include "kernels/cpu/loops.h"

static acc root(acc x)
{
#if CF_DOUBLE
    return sqrt(x);
#else
    return sqrtf(x);
#endif
}

static void forward_row(size_t n, acc eps, const acc *x, const acc *weight,
                        act *y, acc *rstd_p)
{
    vec sum = {0};

    for (size_t i = 0; i < n; i += VL) {
        vec xi = load_acc(x + i, n - i);

        sum += xi * xi;
    }

    acc rstd = 1 / root(vec_sum(sum) / (acc)n + eps);

    for (size_t i = 0; i < n; i += VL)
        store_act(y + i, n - i,
                  load_acc(weight + i, n - i) *
                      (load_acc(x + i, n - i) * vec_splat(rstd)));
    *rstd_p = rstd;
}

void CF_CPU(rmsnorm_forward)(const cf_kernels *k, size_t n_tok, size_t n,
                             double eps, const void *x, const void *weight,
                             void *y, void *rstd)
{
    const acc *in = x;
    act *out = y;
    acc *rstds = rstd;

    (void)k;
#pragma omp parallel for schedule(static) if (n_tok * n > CF_PARALLEL_MIN)
    for (size_t row = 0; row < n_tok; row++)
        forward_row(n, (acc)eps, in + row * n, weight, out + row * n,
                    rstds + row);
}

/* y = w x r, so with c = sum(dy w x) r^2 / n: dx += r (dy w - c x), and the
 * row's share of dweight is dy x r. */
static void backward_row(size_t n, const acc *x, const acc *weight, acc rstd,
                         const act *dy, acc *dx, acc *dweight)
{
    vec sum = {0};

    for (size_t i = 0; i < n; i += VL) {
        vec t = load_act(dy + i, n - i) * load_acc(x + i, n - i);
        vec dw = load_acc(dweight + i, n - i) + t * vec_splat(rstd);

        sum += t * load_acc(weight + i, n - i);
        store_acc(dweight + i, n - i, dw);
    }

    vec c = vec_splat(vec_sum(sum) * rstd * rstd / (acc)n);

    for (size_t i = 0; i < n; i += VL) {
        vec d = load_act(dy + i, n - i) * load_acc(weight + i, n - i) -
                c * load_acc(x + i, n - i);

        store_acc(dx + i, n - i, load_acc(dx + i, n - i) + vec_splat(rstd) * d);
    }
}

size_t CF_CPU(rmsnorm_backward_scratch_bytes)(const cf_kernels *k, size_t n_tok,
                                              size_t n)
{
    (void)k;
    return n_blocks(n_tok, CF_SUM_ROWS) * n * sizeof(acc);
}

void CF_CPU(rmsnorm_backward)(const cf_kernels *k, size_t n_tok, size_t n,
                              const void *x, const void *weight,
                              const void *rstd, const void *dy, void *dx,
                              void *dweight, void *scratch)
{
    const acc *in = x;
    const acc *rstds = rstd;
    const act *dout = dy;
    acc *din = dx;
    acc *dw = dweight;
    acc *partials = scratch;
    size_t n_partials = n_blocks(n_tok, CF_SUM_ROWS);
    size_t n_summed = dw != NULL ? n : 0;

    (void)k;
#pragma omp parallel if (n_tok * n > CF_PARALLEL_MIN)
    {
#pragma omp for schedule(static)
        for (size_t b = 0; b < n_partials; b++) {
            size_t begin = b * CF_SUM_ROWS;
            size_t end = begin + smaller(n_tok - begin, CF_SUM_ROWS);

            memset(partials + b * n, 0, n * sizeof(acc));
            for (size_t row = begin; row < end; row++)
                backward_row(n, in + row * n, weight, rstds[row],
                             dout + row * n, din + row * n, partials + b * n);
        }
#pragma omp for schedule(static)
        for (size_t i = 0; i < n_summed; i += VL) {
            vec sum = {0};

            for (size_t b = 0; b < n_partials; b++)
                sum += load_acc(partials + b * n + i, n - i);
            store_acc(dw + i, n - i, load_acc(dw + i, n - i) + sum);
        }
    }
}
