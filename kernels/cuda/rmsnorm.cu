/* rmsnorm.cu - RMSNorm over the rows of the residual stream.
 *
 * What a row is added to is part of the GEMM in front (linear_forward_residual),
 * so the norm only reads it.  The second read of a row finds it in the L1.
 */
#include "kernels/cuda/common.cuh"

enum {
    COLUMNS = WARP * STRIP
};

static __global__ void forward(size_t n, float eps, const float *x,
                               const float *weight, bf16 *y, float *rstd)
{
    const float *in = x + blockIdx.x * n;
    bf16 *out = y + blockIdx.x * n;
    float sum = 0;

    for (size_t i = threadIdx.x * STRIP; i < n; i += THREADS * STRIP) {
        const strip s = load(in + i, n - i);

        for (int e = 0; e < STRIP; e++)
            sum += s.x[e] * s.x[e];
    }

    const float r = 1 / sqrtf(block_sum(sum) / (float)n + eps);

    if (threadIdx.x == 0)
        rstd[blockIdx.x] = r;
    for (size_t i = threadIdx.x * STRIP; i < n; i += THREADS * STRIP) {
        const strip w = load(weight + i, n - i);
        strip s = load(in + i, n - i);

        for (int e = 0; e < STRIP; e++)
            s.x[e] = w.x[e] * (s.x[e] * r);
        store(out + i, n - i, s);
    }
}

/* y = w x r, so with c = sum(dy w x) r^2 / n: dx += r (dy w - c x). */
static __global__ void backward(size_t n, const float *x, const float *weight,
                                const float *rstd, const bf16 *dy, float *dx)
{
    const size_t first = blockIdx.x * n;
    const float r = rstd[blockIdx.x];
    float sum = 0;

    for (size_t i = threadIdx.x * STRIP; i < n; i += THREADS * STRIP) {
        const strip s = load(x + first + i, n - i);
        const strip w = load(weight + i, n - i);
        const strip d = load(dy + first + i, n - i);

        for (int e = 0; e < STRIP; e++)
            sum += d.x[e] * s.x[e] * w.x[e];
    }

    const float c = block_sum(sum) * r * r / (float)n;

    for (size_t i = threadIdx.x * STRIP; i < n; i += THREADS * STRIP) {
        const strip s = load(x + first + i, n - i);
        const strip w = load(weight + i, n - i);
        const strip d = load(dy + first + i, n - i);
        strip out = load(dx + first + i, n - i);

        for (int e = 0; e < STRIP; e++)
            out.x[e] += r * (d.x[e] * w.x[e] - c * s.x[e]);
        store(dx + first + i, n - i, out);
    }
}

/* A row's share of dweight is dy x r; blocks and warps as in columns.cu. */
static __global__ void backward_weight(size_t n_tok, size_t n, const float *x,
                                       const float *rstd, const bf16 *dy,
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
        const strip d = load(dy + row * n + i, n - i);

        for (int e = 0; e < STRIP; e++)
            sum.x[e] += d.x[e] * s.x[e] * rstd[row];
    }
    sum = warps_sum(sum);
    if (threadIdx.x < WARP && i < n)
        store(partials + part * n + i, n - i, sum);
}

void cf_cuda_rmsnorm_forward(cf_cuda_stream stream, size_t n_tok, size_t n,
                             double eps, const void *x, const void *weight,
                             void *y, void *rstd)
{
    if (n_tok > 0)
        CF_LAUNCH(forward, n_tok, THREADS, 0, stream, n, (float)eps,
                  (const float *)x, (const float *)weight, (bf16 *)y,
                  (float *)rstd);
}

void cf_cuda_rmsnorm_backward(cf_cuda_stream stream, size_t n_tok, size_t n,
                              const void *x, const void *weight,
                              const void *rstd, const void *dy, void *dx,
                              void *dweight, void *partials)
{
    const size_t n_partials = cf_cuda_n_blocks(n_tok, CF_CUDA_SUM_ROWS);

    if (n_tok == 0)
        return;
    CF_LAUNCH(backward, n_tok, THREADS, 0, stream, n, (const float *)x,
              (const float *)weight, (const float *)rstd, (const bf16 *)dy,
              (float *)dx);
    if (dweight == NULL)
        return;
    CF_LAUNCH(backward_weight, n_partials * cf_cuda_n_blocks(n, COLUMNS),
              THREADS, 0, stream, n_tok, n, (const float *)x,
              (const float *)rstd, (const bf16 *)dy, (float *)partials);
    cf_cuda_partials_add(stream, n_partials, n, n, partials, dweight);
}
