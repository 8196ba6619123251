/* sums.cu - additions over flat arrays: gradients, and their norm. */
#include "kernels/cuda/common.cuh"

/* A block of the norm, which is a block of the grid. */
static __global__ void sum_squares(size_t n, const float *x, double *partials)
{
    const size_t begin = (size_t)blockIdx.x * CF_NORM_BLOCK;
    const size_t end = begin + CF_NORM_BLOCK < n ? begin + CF_NORM_BLOCK : n;
    double sum = 0;

    for (size_t i = begin + threadIdx.x * STRIP; i < end;
         i += THREADS * STRIP) {
        const strip s = load(x + i, end - i);

        for (int e = 0; e < STRIP; e++)
            sum += (double)s.x[e] * (double)s.x[e];
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        partials[blockIdx.x] = sum;
}

template <typename T> static __global__ void add(size_t n, const T *x, T *y)
{
    const size_t i = flat_strip();

    if (i >= n)
        return;

    const strip d = load(x + i, n - i);
    strip s = load(y + i, n - i);

    for (int e = 0; e < STRIP; e++)
        s.x[e] += d.x[e];
    store(y + i, n - i, s);
}

void cf_cuda_sum_squares(cf_cuda_stream stream, size_t n, const void *x,
                         double *partials)
{
    if (n > 0)
        CF_LAUNCH(sum_squares, cf_cuda_n_blocks(n, CF_NORM_BLOCK), THREADS, 0,
                  stream, n, (const float *)x, partials);
}

void cf_cuda_add(cf_cuda_stream stream, size_t n, const void *x, void *y)
{
    if (n > 0)
        CF_LAUNCH(add<float>, flat_blocks(n), THREADS, 0, stream, n,
                  (const float *)x, (float *)y);
}

void cf_cuda_add_act(cf_cuda_stream stream, size_t n, const void *x, void *y)
{
    if (n > 0)
        CF_LAUNCH(add<bf16>, flat_blocks(n), THREADS, 0, stream, n,
                  (const bf16 *)x, (bf16 *)y);
}
