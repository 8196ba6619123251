/* attention_backward.cu - gradients of attention, from its log-sum-exp.
 *
 * With p = exp(score - lse), dp = dO V' and delta = sum(o dO) of the row:
 * dS = p (dp - delta), dQ = scale dS K, dK = scale dS' Q, dV = p' dO.  dQ has one
 * kernel, dK and dV another: scores are made twice, and nothing is added by two
 * blocks.
 */
#include "kernels/cuda/attention.cuh"

/* Arrays of a call, besides the pages. */
struct arrays {
    const bf16 *q, *o, *d_o;
    const float *lse;
    float *dq;
    float *delta; /* [n_tok, n_heads] */
};

/* A thread a row of o: one chain over ascending elements, as scores() has it, so
 * that a row that sees one key has dS = 0 exactly. */
static __global__ void deltas(size_t n, unsigned dim, arrays x)
{
    const size_t row = (size_t)blockIdx.x * THREADS + threadIdx.x;
    float sum = 0;

    if (row >= n)
        return;
    for (unsigned i = 0; i < dim; i += STRIP) {
        const strip o = load(x.o + row * dim + i, dim - i);
        const strip d = load(x.d_o + row * dim + i, dim - i);

        for (int e = 0; e < STRIP; e++)
            sum += d.x[e] * o.x[e];
    }
    x.delta[row] = sum;
}

/* Four tiles of a block, and its weights. */
struct tiles {
    uint32_t *q, *d_o, *k, *v;
};

static __device__ tiles tiles_of(const attention &a, unsigned char *shared)
{
    const unsigned n = TILE * word_stride(a);
    tiles t;

    t.q = (uint32_t *)shared;
    t.d_o = t.q + n;
    t.k = t.d_o + n;
    t.v = t.k + n;
    return t;
}

/* p and dS of the warp's rows and the lane's key. */
static __device__ void weights(const attention &a, const task &t,
                               const tiles &tile, const arrays &x,
                               size_t first_row, size_t first_key,
                               float p[SHARE], float ds[SHARE])
{
    const size_t key = first_key + threadIdx.x % WARP;

    scores(a, tile.q, tile.k, p);
    scores(a, tile.d_o, tile.v, ds);
    for (int r = 0; r < SHARE; r++) {
        const size_t row = first_row + threadIdx.x / WARP * SHARE + r;

        if (sees(a, t, row, key)) {
            const size_t place = place_of(a, t, row);

            p[r] = expf(p[r] * a.scale - x.lse[place]);
            ds[r] = p[r] * (ds[r] - x.delta[place]);
        } else {
            p[r] = ds[r] = 0;
        }
    }
}

/* TILE rows a block. */
template <int SPAN> static __global__ void backward_q(attention a, arrays x)
{
    CF_SHARED_DYNAMIC(shared);
    CF_SHARED(weight_tile, ds_tile, );
    const task t = task_of(a);
    const tiles tile = tiles_of(a, shared);
    const size_t first = t.tile * TILE, n_rows = n_rows_of(a, t);
    const unsigned share = threadIdx.x / WARP * SHARE;
    outputs<SPAN> dq;

    if (first >= n_rows)
        return;

    const size_t last_key = position_of(
        a, t, first + TILE < n_rows ? first + TILE - 1 : n_rows - 1);

    rows_load(a, t, first, x.q, tile.q);
    rows_load(a, t, first, x.d_o, tile.d_o);
    outputs_clear(&dq);
    for (size_t key = a.key_begin / TILE * TILE;
         key <= last_key && key < end_key_of(a, t); key += TILE) {
        float p[SHARE], ds[SHARE];

        __syncthreads();
        keys_load(a, t, key, a.batch.k, tile.k);
        keys_load(a, t, key, a.batch.v, tile.v);
        __syncthreads();
        weights(a, t, tile, x, first, key, p, ds);
        for (int r = 0; r < SHARE; r++)
            ds_tile[share + r][threadIdx.x % WARP] = ds[r];
        __syncwarp();
        outputs_add(a, ds_tile[share], TILE + 1, 1, tile.k, &dq);
    }
    for (int r = 0; r < SHARE && first + share + r < n_rows; r++)
        for (int j = 0; j < SPAN; j++) {
            const unsigned w = threadIdx.x % WARP + j * WARP;
            float *to =
                x.dq + place_of(a, t, first + share + r) * a.dim + 2 * w;

            if (w < n_words(a)) {
                to[0] = dq.x[r][j].x * a.scale;
                to[1] = dq.x[r][j].y * a.scale;
            }
        }
}

/* The warp's share of the keys of a page += out. */
template <int SPAN>
static __device__ void keys_add(const attention &a, const task &t, size_t first,
                                float factor, const outputs<SPAN> &out,
                                void *const *pages)
{
    for (int r = 0; r < SHARE; r++) {
        const size_t key = first + threadIdx.x / WARP * SHARE + r;

        if (key < a.key_begin || key >= end_key_of(a, t))
            continue;

        float *to = key_at<float>(a, t, pages, key);

        for (int j = 0; j < SPAN; j++) {
            const unsigned w = threadIdx.x % WARP + j * WARP;

            if (w < n_words(a)) {
                to[2 * w] += out.x[r][j].x * factor;
                to[2 * w + 1] += out.x[r][j].y * factor;
            }
        }
    }
}

/* TILE keys a block. */
template <int SPAN> static __global__ void backward_kv(attention a, arrays x)
{
    CF_SHARED_DYNAMIC(shared);
    CF_SHARED(weight_tile, p_tile, );
    CF_SHARED(weight_tile, ds_tile, );
    const task t = task_of(a);
    const tiles tile = tiles_of(a, shared);
    const unsigned share = threadIdx.x / WARP * SHARE;
    const size_t key = a.key_begin / TILE * TILE + t.tile * TILE;
    const size_t prefix = t.piece.prefix_tok;
    outputs<SPAN> dk, dv;

    if (key >= end_key_of(a, t))
        return;

    /* The tile with the first row that sees one of the keys. */
    const size_t begin =
        (key > prefix ? (key - prefix) * a.group : 0) / TILE * TILE;

    keys_load(a, t, key, a.batch.k, tile.k);
    keys_load(a, t, key, a.batch.v, tile.v);
    outputs_clear(&dk);
    outputs_clear(&dv);
    for (size_t row = begin; row < n_rows_of(a, t); row += TILE) {
        float p[SHARE], ds[SHARE];

        __syncthreads();
        rows_load(a, t, row, x.q, tile.q);
        rows_load(a, t, row, x.d_o, tile.d_o);
        __syncthreads();
        weights(a, t, tile, x, row, key, p, ds);
        for (int r = 0; r < SHARE; r++) {
            p_tile[share + r][threadIdx.x % WARP] = p[r];
            ds_tile[share + r][threadIdx.x % WARP] = ds[r];
        }
        __syncthreads();
        outputs_add(a, &p_tile[0][share], 1, TILE + 1, tile.d_o, &dv);
        outputs_add(a, &ds_tile[0][share], 1, TILE + 1, tile.q, &dk);
    }
    keys_add(a, t, key, a.scale, dk, a.batch.dk);
    keys_add(a, t, key, 1, dv, a.batch.dv);
}

template <int SPAN>
static void launch(cf_cuda_stream stream, const cf_attn_shape *shape,
                   attention a, const arrays &x)
{
    const size_t shared_bytes = 4 * tile_bytes(shape);
    const size_t end_key =
        a.key_end < a.batch.n_key_max ? a.key_end : a.batch.n_key_max;
    const size_t first_key = a.key_begin / TILE * TILE;

    a.n_tiles = (unsigned)cf_cuda_n_blocks(a.batch.n_tok_max * a.group, TILE);
    CF_SHARED_ALLOW(backward_q<SPAN>, shared_bytes);
    CF_LAUNCH(backward_q<SPAN>, n_tasks(a), THREADS, shared_bytes, stream, a,
              x);
    if (end_key <= first_key)
        return;
    a.n_tiles = (unsigned)cf_cuda_n_blocks(end_key - first_key, TILE);
    CF_SHARED_ALLOW(backward_kv<SPAN>, shared_bytes);
    CF_LAUNCH(backward_kv<SPAN>, n_tasks(a), THREADS, shared_bytes, stream, a,
              x);
}

void cf_cuda_attention_backward(cf_cuda_stream stream,
                                const cf_attn_shape *shape,
                                const cf_cuda_batch *batch, uint32_t key_begin,
                                uint32_t key_end, const void *q, const void *o,
                                const void *lse, const void *d_o, void *dq,
                                void *delta)
{
    const attention a = attention_of(shape, batch, key_begin, key_end);
    const size_t n = batch->n_tok * shape->n_heads;
    arrays x;

    if (n == 0)
        return;
    x.q = (const bf16 *)q;
    x.o = (const bf16 *)o;
    x.d_o = (const bf16 *)d_o;
    x.lse = (const float *)lse;
    x.dq = (float *)dq;
    x.delta = (float *)delta;
    CF_LAUNCH(deltas, cf_cuda_n_blocks(n, THREADS), THREADS, 0, stream, n,
              shape->head_dim, x);
    switch (span_of(shape)) {
    case 1:
        launch<1>(stream, shape, a, x);
        break;
    case 2:
        launch<2>(stream, shape, a, x);
        break;
    default:
        launch<4>(stream, shape, a, x);
    }
}
