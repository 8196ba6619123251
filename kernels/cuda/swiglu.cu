/* swiglu.cu - a = silu(gate) * up, and its gradient; one pass each.
 *
 * The grid covers the strips of all rows; a strip never crosses rows.
 */
#include "kernels/cuda/common.cuh"

/* Where a strip lies: its row, and its first element in it. */
struct place {
    size_t row, i;
};

static inline __device__ place place_of(size_t n_ff)
{
    const size_t n_strips = (n_ff + STRIP - 1) / STRIP;
    const size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x;
    place p;

    p.row = at / n_strips;
    p.i = at % n_strips * STRIP;
    return p;
}

static size_t n_blocks_of(size_t n_tok, size_t n_ff)
{
    return cf_cuda_n_blocks(n_tok * cf_cuda_n_blocks(n_ff, STRIP), THREADS);
}

/* sigmoid(x); below the bound exp(-x) would overflow.  rest is 1 - sigmoid(x),
 * without cancellation. */
static inline __device__ float sigmoid(float x, float *rest_p)
{
    const float e = expf(-(x < -87 ? -87 : x));
    const float s = 1 / (1 + e);

    *rest_p = e * s;
    return s;
}

static __global__ void forward(size_t n_tok, size_t n_ff, const bf16 *gate_up,
                               bf16 *a)
{
    const place at = place_of(n_ff);
    const size_t left = n_ff - at.i;

    if (at.row >= n_tok)
        return;

    const bf16 *in = gate_up + at.row * 2 * n_ff + at.i;
    const strip g = load(in, left), u = load(in + n_ff, left);
    strip out;

    for (int e = 0; e < STRIP; e++) {
        float rest;

        out.x[e] = g.x[e] * sigmoid(g.x[e], &rest) * u.x[e];
    }
    store(a + at.row * n_ff + at.i, left, out);
}

/* d_gate_up may be gate_up: a thread reads what it overwrites beforehand. */
static __global__ void backward(size_t n_tok, size_t n_ff, const bf16 *gate_up,
                                const bf16 *da, bf16 *d_gate_up)
{
    const place at = place_of(n_ff);
    const size_t left = n_ff - at.i;

    if (at.row >= n_tok)
        return;

    const size_t first = at.row * 2 * n_ff + at.i;
    const strip g = load(gate_up + first, left);
    const strip u = load(gate_up + first + n_ff, left);
    const strip d = load(da + at.row * n_ff + at.i, left);
    strip dg, du;

    for (int e = 0; e < STRIP; e++) {
        float rest;
        const float s = sigmoid(g.x[e], &rest);

        dg.x[e] = d.x[e] * u.x[e] * s * (1 + g.x[e] * rest);
        du.x[e] = d.x[e] * g.x[e] * s;
    }
    store(d_gate_up + first, left, dg);
    store(d_gate_up + first + n_ff, left, du);
}

void cf_cuda_swiglu_forward(cf_cuda_stream stream, size_t n_tok, size_t n_ff,
                            const void *gate_up, void *a)
{
    if (n_tok > 0)
        CF_LAUNCH(forward, n_blocks_of(n_tok, n_ff), THREADS, 0, stream, n_tok,
                  n_ff, (const bf16 *)gate_up, (bf16 *)a);
}

void cf_cuda_swiglu_backward(cf_cuda_stream stream, size_t n_tok, size_t n_ff,
                             const void *gate_up, const void *da,
                             void *d_gate_up)
{
    if (n_tok > 0)
        CF_LAUNCH(backward, n_blocks_of(n_tok, n_ff), THREADS, 0, stream, n_tok,
                  n_ff, (const bf16 *)gate_up, (const bf16 *)da,
                  (bf16 *)d_gate_up);
}
