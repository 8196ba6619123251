/* attention_forward.cu - causal attention with online softmax. */
#include "kernels/cuda/attention.cuh"

/* Of the rows of a warp's share: the largest score so far, and the sum of
 * exp(score - largest).  Every lane has them. */
struct softmax {
    float max[SHARE], sum[SHARE];
};

/* From scores to weights; earlier sums and outputs are scaled to the new maximum.
 * A row that has seen no key yet has weights of 0.  One whose scores are all -inf
 * gets NaN, as everywhere. */
template <int SPAN>
static __device__ void softmax_step(const bool seen[SHARE], float s[SHARE],
                                    softmax *state, outputs<SPAN> *out)
{
    for (int r = 0; r < SHARE; r++) {
        const float max =
            fmaxf(state->max[r], warp_max(seen[r] ? s[r] : -INFINITY));
        const float keep = state->max[r] == max ? 1 : expf(state->max[r] - max);

        s[r] = seen[r] ? expf(s[r] - max) : 0;
        state->sum[r] = state->sum[r] * keep + warp_sum(s[r]);
        state->max[r] = max;
        for (int j = 0; j < SPAN; j++) {
            out->x[r][j].x *= keep;
            out->x[r][j].y *= keep;
        }
    }
}

template <int SPAN>
static __device__ void rows_store(const attention &a, const task &t,
                                  size_t first, const softmax &state,
                                  const outputs<SPAN> &out, bf16 *o, float *lse)
{
    for (int r = 0; r < SHARE; r++) {
        const size_t row = first + threadIdx.x / WARP * SHARE + r;

        if (row >= n_rows_of(a, t))
            break;

        const size_t place = place_of(a, t, row);
        const float factor = state.sum[r] == 0 ? 0 : 1 / state.sum[r];

        for (int j = 0; j < SPAN; j++) {
            const unsigned w = threadIdx.x % WARP + j * WARP;

            if (w < n_words(a)) {
                o[place * a.dim + 2 * w] = narrow(out.x[r][j].x * factor);
                o[place * a.dim + 2 * w + 1] = narrow(out.x[r][j].y * factor);
            }
        }
        if (threadIdx.x % WARP == 0)
            lse[place] = state.max[r] + logf(state.sum[r]);
    }
}

/* TILE rows a block. */
template <int SPAN>
static __global__ void forward(attention a, const bf16 *q, bf16 *o, float *lse)
{
    CF_SHARED_DYNAMIC(shared);
    CF_SHARED(weight_tile, p, );
    const task t = task_of(a);
    const size_t first = t.tile * TILE;
    const unsigned share = threadIdx.x / WARP * SHARE;
    uint32_t *q_tile = (uint32_t *)shared;
    uint32_t *k_tile = q_tile + TILE * word_stride(a);
    uint32_t *v_tile = k_tile + TILE * word_stride(a);
    outputs<SPAN> out;
    softmax state;

    if (first >= n_rows_of(a, t))
        return;

    const size_t last_key =
        position_of(a, t,
                    first + TILE < n_rows_of(a, t) ? first + TILE - 1
                                                   : n_rows_of(a, t) - 1);

    rows_load(a, t, first, q, q_tile);
    outputs_clear(&out);
    for (int r = 0; r < SHARE; r++) {
        state.max[r] = -INFINITY;
        state.sum[r] = 0;
    }
    for (size_t key = a.key_begin / TILE * TILE;
         key <= last_key && key < end_key_of(a, t); key += TILE) {
        float s[SHARE];
        bool seen[SHARE];

        __syncthreads();
        keys_load(a, t, key, a.batch.k, k_tile);
        keys_load(a, t, key, a.batch.v, v_tile);
        __syncthreads();
        scores(a, q_tile, k_tile, s);
        for (int r = 0; r < SHARE; r++) {
            seen[r] = sees(a, t, first + share + r, key + threadIdx.x % WARP);
            /* Rounded before the maximum is taken off: fused with that, it could
             * exceed the maximum, and a large score overflow. */
            s[r] = __fmul_rn(s[r], a.scale);
        }
        softmax_step(seen, s, &state, &out);
        for (int r = 0; r < SHARE; r++)
            p[share + r][threadIdx.x % WARP] = s[r];
        __syncwarp();
        outputs_add(a, p[share], TILE + 1, 1, v_tile, &out);
    }
    rows_store(a, t, first, state, out, o, lse);
}

template <int SPAN>
static void launch(cf_cuda_stream stream, const attention &a,
                   size_t shared_bytes, const bf16 *q, bf16 *o, float *lse)
{
    CF_SHARED_ALLOW(forward<SPAN>, shared_bytes);
    CF_LAUNCH(forward<SPAN>, n_tasks(a), THREADS, shared_bytes, stream, a, q, o,
              lse);
}

void cf_cuda_attention_forward(cf_cuda_stream stream,
                               const cf_attn_shape *shape,
                               const cf_cuda_batch *batch, uint32_t key_begin,
                               uint32_t key_end, const void *q, void *o,
                               void *lse)
{
    attention a = attention_of(shape, batch, key_begin, key_end);
    const size_t shared_bytes = 3 * tile_bytes(shape);
    const bf16 *from = (const bf16 *)q;
    bf16 *to = (bf16 *)o;
    float *sums = (float *)lse;

    a.n_tiles = (unsigned)cf_cuda_n_blocks(batch->n_tok_max * a.group, TILE);
    if (n_tasks(a) == 0)
        return;
    switch (span_of(shape)) {
    case 1:
        launch<1>(stream, a, shared_bytes, from, to, sums);
        break;
    case 2:
        launch<2>(stream, a, shared_bytes, from, to, sums);
        break;
    default:
        launch<4>(stream, a, shared_bytes, from, to, sums);
    }
}
