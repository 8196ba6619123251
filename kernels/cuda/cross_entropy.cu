/* cross_entropy.cu - from rows of logits to losses and to the gradient.
 *
 * A block takes a row, in tiles of TILE logits.  A NaN or +Inf among the logits
 * makes the loss NaN: it gets into the sum of the exponentials, whatever the
 * maximum was.
 *
 * The gradient is act and overwrites the logits, which are acc: element i lies
 * where logit i / 2 was.  Tile by tile this is safe, for a tile is written behind
 * a barrier behind which all of it is read, and ends in front of the next tile.
 */
#include "kernels/cuda/common.cuh"

enum {
    TILE = THREADS * STRIP
};

static __device__ float row_max(size_t n, const float *x)
{
    float max = x[0];

    for (size_t i = threadIdx.x * STRIP; i < n; i += TILE) {
        const strip s = load(x + i, n - i);

        for (int e = 0; e < STRIP; e++)
            if (i + e < n)
                max = fmaxf(max, s.x[e]);
    }
    return block_max(max);
}

/* A thread's share is summed in float, the shares in double. */
static __device__ double row_sum(size_t n, float max, const float *x)
{
    float sum = 0;

    for (size_t i = threadIdx.x * STRIP; i < n; i += TILE) {
        const strip s = load(x + i, n - i);

        for (int e = 0; e < STRIP; e++)
            if (i + e < n)
                sum += expf(s.x[e] - max);
    }
    return block_sum((double)sum);
}

/* What a row's gradient needs. */
struct row_loss {
    float max;
    double sum;
};

static __device__ row_loss loss_of(size_t n, uint32_t target, const float *x,
                                   double *loss_p)
{
    row_loss row;

    row.max = row_max(n, x);
    row.sum = row_sum(n, row.max, x);
    if (threadIdx.x == 0)
        *loss_p = log(row.sum) - ((double)x[target] - (double)row.max);
    return row;
}

static __global__ void losses(size_t n, const uint32_t *targets,
                              const float *logits, double *loss)
{
    (void)loss_of(n, targets[blockIdx.x], logits + blockIdx.x * n,
                  loss + blockIdx.x);
}

static __global__ void losses_and_gradients(size_t n, const uint32_t *targets,
                                            double scale, float *logits,
                                            double *loss)
{
    const uint32_t target = targets[blockIdx.x];
    const float *x = logits + blockIdx.x * n;
    bf16 *dx = (bf16 *)(logits + blockIdx.x * n);
    const row_loss row = loss_of(n, target, x, loss + blockIdx.x);
    const float factor = (float)(scale / row.sum);

    for (size_t first = 0; first < n; first += TILE) {
        const size_t i = first + threadIdx.x * STRIP;
        strip s = {{0}};

        if (i < n)
            s = load(x + i, n - i);
        __syncthreads();
        for (int e = 0; e < STRIP; e++) {
            s.x[e] = expf(s.x[e] - row.max) * factor;
            if (i + e == target)
                s.x[e] -= (float)scale;
        }
        if (i < n)
            store(dx + i, n - i, s);
    }
}

void cf_cuda_cross_entropy(cf_cuda_stream stream, size_t n_rows, size_t n_vocab,
                           const uint32_t *targets, const void *logits,
                           double *loss)
{
    if (n_rows > 0)
        CF_LAUNCH(losses, n_rows, THREADS, 0, stream, n_vocab, targets,
                  (const float *)logits, loss);
}

void cf_cuda_cross_entropy_backward(cf_cuda_stream stream, size_t n_rows,
                                    size_t n_vocab, const uint32_t *targets,
                                    double scale, void *logits, double *loss)
{
    if (n_rows > 0)
        CF_LAUNCH(losses_and_gradients, n_rows, THREADS, 0, stream, n_vocab,
                  targets, scale, (float *)logits, loss);
}
