/* columns.cu - sums over rows, in two passes of a fixed order.
 *
 * A block takes CF_CUDA_SUM_ROWS rows of as many columns as a warp has elements
 * in strips; its warps take turns at the rows, and their sums are added in order.
 */
#include "kernels/cuda/common.cuh"

enum {
    COLUMNS = WARP * STRIP
};

static __global__ void bias_add(size_t n, const float *bias, float *y)
{
    float *row = y + blockIdx.x * n;

    for (size_t i = threadIdx.x * STRIP; i < n; i += THREADS * STRIP) {
        const strip b = load(bias + i, n - i);
        strip s = load(row + i, n - i);

        for (int e = 0; e < STRIP; e++)
            s.x[e] += b.x[e];
        store(row + i, n - i, s);
    }
}

static __global__ void column_sums(size_t n_tok, size_t n, const bf16 *x,
                                   float *partials)
{
    const size_t n_columns = (n + COLUMNS - 1) / COLUMNS;
    const size_t part = blockIdx.x / n_columns;
    const size_t i =
        blockIdx.x % n_columns * COLUMNS + threadIdx.x % WARP * STRIP;
    const size_t end = (part + 1) * CF_CUDA_SUM_ROWS;
    strip sum = {{0}};

    for (size_t row = part * CF_CUDA_SUM_ROWS + threadIdx.x / WARP;
         row < end && row < n_tok && i < n; row += WARPS) {
        const strip s = load(x + row * n + i, n - i);

        for (int e = 0; e < STRIP; e++)
            sum.x[e] += s.x[e];
    }
    sum = warps_sum(sum);
    if (threadIdx.x < WARP && i < n)
        store(partials + part * n + i, n - i, sum);
}

static __global__ void partials_add(size_t n_partials, size_t n, size_t stride,
                                    const float *partials, float *y)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    float sum = 0;

    if (i >= n)
        return;
    for (size_t part = 0; part < n_partials; part++)
        sum += partials[part * stride + i];
    y[i] += sum;
}

void cf_cuda_bias_add(cf_cuda_stream stream, size_t n_tok, size_t n,
                      const void *bias, void *y)
{
    if (n_tok > 0)
        CF_LAUNCH(bias_add, n_tok, THREADS, 0, stream, n, (const float *)bias,
                  (float *)y);
}

void cf_cuda_bias_backward(cf_cuda_stream stream, size_t n_tok, size_t n,
                           const void *dy, void *partials, void *db)
{
    const size_t n_partials = cf_cuda_n_blocks(n_tok, CF_CUDA_SUM_ROWS);

    if (n_tok > 0)
        CF_LAUNCH(column_sums, n_partials * cf_cuda_n_blocks(n, COLUMNS),
                  THREADS, 0, stream, n_tok, n, (const bf16 *)dy,
                  (float *)partials);
    cf_cuda_partials_add(stream, n_partials, n, n, partials, db);
}

void cf_cuda_partials_add(cf_cuda_stream stream, size_t n_partials, size_t n,
                          size_t stride, const void *partials, void *y)
{
    if (n > 0)
        CF_LAUNCH(partials_add, cf_cuda_n_blocks(n, THREADS), THREADS, 0,
                  stream, n_partials, n, stride, (const float *)partials,
                  (float *)y);
}
