/* memory.cu - convert, move and inspect rows. */
#include "kernels/cuda/common.cuh"

static __global__ void narrow_flat(size_t n, const float *x, bf16 *y)
{
    const size_t i = flat_strip();

    if (i < n)
        store(y + i, n - i, load(x + i, n - i));
}

/* A row a block. */
static __device__ void copy_row(size_t n, const float *x, float *y)
{
    for (size_t i = threadIdx.x * STRIP; i < n; i += THREADS * STRIP)
        store(y + i, n - i, load(x + i, n - i));
}

static __global__ void gather(size_t n, const uint32_t *rows, const float *x,
                              float *y)
{
    copy_row(n, x + rows[blockIdx.x] * n, y + blockIdx.x * n);
}

/* How many of the ascending rows lie in front of `row`. */
static __device__ size_t rows_before(size_t n_rows, const uint32_t *rows,
                                     size_t row)
{
    size_t low = 0, high = n_rows;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (rows[middle] < row)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static __global__ void scatter(size_t n_rows, size_t n, const uint32_t *rows,
                               const float *x, float *y)
{
    const size_t from = rows_before(n_rows, rows, blockIdx.x);
    float *to = y + blockIdx.x * n;
    const strip zero = {{0}};

    if (from < n_rows && rows[from] == blockIdx.x) {
        copy_row(n, x + from * n, to);
        return;
    }
    for (size_t i = threadIdx.x * STRIP; i < n; i += THREADS * STRIP)
        store(to + i, n - i, zero);
}

/* x - x is 0 for a finite x and NaN for any other. */
static __global__ void find_bad(size_t n, const float *x, uint32_t *first_p)
{
    const float *row = x + blockIdx.x * n;
    float sum = 0;

    for (size_t i = threadIdx.x * STRIP; i < n; i += THREADS * STRIP) {
        const strip s = load(row + i, n - i);

        for (int e = 0; e < STRIP; e++)
            sum += s.x[e] - s.x[e];
    }
    if (sum != 0)
        atomicMin(first_p, blockIdx.x);
}

void cf_cuda_narrow(cf_cuda_stream stream, size_t n, const void *x, void *y)
{
    if (n > 0)
        CF_LAUNCH(narrow_flat, flat_blocks(n), THREADS, 0, stream, n,
                  (const float *)x, (bf16 *)y);
}

void cf_cuda_rows_gather(cf_cuda_stream stream, size_t n_rows, size_t n,
                         const uint32_t *rows, const void *x, void *y)
{
    if (n_rows > 0)
        CF_LAUNCH(gather, n_rows, THREADS, 0, stream, n, rows, (const float *)x,
                  (float *)y);
}

void cf_cuda_rows_scatter(cf_cuda_stream stream, size_t n_rows, size_t n_tok,
                          size_t n, const uint32_t *rows, const void *x,
                          void *y)
{
    if (n_tok > 0)
        CF_LAUNCH(scatter, n_tok, THREADS, 0, stream, n_rows, n, rows,
                  (const float *)x, (float *)y);
}

void cf_cuda_first_bad_row(cf_cuda_stream stream, size_t n_rows, size_t n,
                           const void *x, uint32_t *first_p)
{
    if (n_rows > 0)
        CF_LAUNCH(find_bad, n_rows, THREADS, 0, stream, n, (const float *)x,
                  first_p);
}
