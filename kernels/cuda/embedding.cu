/* embedding.cu - gradients of the rows of the embedding.
 *
 * Two tokens may share a row of dw, and must add to it in ascending order.  A
 * block takes a token, and works when it is the first one of its id: it then adds
 * the rows of all tokens of that id, one after the other.  Looking for them costs
 * n_tok^2 comparisons of ids that lie in the L2, which is little for a chunk.
 */
#include "kernels/cuda/common.cuh"

/* Whether the block's id stands in front of token `end`. */
static __device__ bool is_known(size_t end, uint32_t id, const uint32_t *ids)
{
    int known = 0;

    for (size_t tok = threadIdx.x; tok < end; tok += THREADS)
        known |= ids[tok] == id;
    return __syncthreads_or(known) != 0;
}

static __device__ void add_row(size_t n, const float *from, float *to)
{
    for (size_t i = threadIdx.x * STRIP; i < n; i += THREADS * STRIP) {
        const strip d = load(from + i, n - i);
        strip s = load(to + i, n - i);

        for (int e = 0; e < STRIP; e++)
            s.x[e] += d.x[e];
        store(to + i, n - i, s);
    }
}

/* The tokens behind the first one go by in groups of THREADS, one a thread. */
static __global__ void backward(size_t n_tok, size_t n, const uint32_t *ids,
                                const float *dx, float *dw)
{
    CF_SHARED(uint8_t, is_same, [THREADS]);
    const uint32_t id = ids[blockIdx.x];

    if (is_known(blockIdx.x, id, ids))
        return;
    for (size_t first = blockIdx.x; first < n_tok; first += THREADS) {
        const size_t tok = first + threadIdx.x;
        const int same = tok < n_tok && ids[tok] == id;

        is_same[threadIdx.x] = (uint8_t)same;
        if (!__syncthreads_or(same))
            continue;
        for (int t = 0; t < THREADS; t++)
            if (is_same[t])
                add_row(n, dx + (first + t) * n, dw + id * n);
        __syncthreads();
    }
}

void cf_cuda_embedding_backward(cf_cuda_stream stream, size_t n_tok, size_t n,
                                const uint32_t *ids, const void *dx, void *dw)
{
    if (n_tok > 0)
        CF_LAUNCH(backward, n_tok, THREADS, 0, stream, n_tok, n, ids,
                  (const float *)dx, (float *)dw);
}
