/* qkv.cu - from the fused projection to q and the pages of K and V, and back.
 *
 * A warp takes a head: normalises it (where the model does so) and rotates it in
 * one go, from where the GEMM left it to where attention reads it.  The backward
 * undoes the rotation by its transpose; the statistics of a norm are computed
 * again.
 *
 * Rotation pairs element i with i + head_dim / 2.  A lane has both elements of each
 * of its pairs, so that nothing crosses lanes but sums; two neighbouring pairs, and
 * those 64 further on, so that it moves two elements at a time.
 */
#include "kernels/cuda/common.cuh"

enum {
    HEAD_DIM_MAX = 256,
    PAIRS = HEAD_DIM_MAX / 2 / WARP /* of a lane, at most; even */
};

/* What all heads have in common. */
struct heads {
    unsigned n_heads, n_kv_heads;
    unsigned dim;
    float eps;
    const float *q_norm, *k_norm; /* NULL: no norm */
    const float *cos, *sin;
};

static heads heads_of(const cf_qkv_params *p)
{
    heads h;

    h.n_heads = p->shape.n_heads;
    h.n_kv_heads = p->shape.n_kv_heads;
    h.dim = p->shape.head_dim;
    h.eps = (float)p->norm_eps;
    h.q_norm = (const float *)p->q_norm;
    h.k_norm = (const float *)p->k_norm;
    h.cos = (const float *)p->cos;
    h.sin = (const float *)p->sin;
    return h;
}

static inline __device__ unsigned n_all(const heads &h)
{
    return h.n_heads + 2 * h.n_kv_heads;
}

typedef enum head_kind {
    HEAD_Q,
    HEAD_K,
    HEAD_V
} head_kind;

/* The first head of a kind in a row, how many there are, and their norm. */
template <head_kind KIND>
static inline __device__ unsigned first_head(const heads &h)
{
    return (KIND != HEAD_Q ? h.n_heads : 0) +
           (KIND == HEAD_V ? h.n_kv_heads : 0);
}

template <head_kind KIND>
static inline __device__ unsigned n_heads_of(const heads &h)
{
    return KIND == HEAD_Q ? h.n_heads : h.n_kv_heads;
}

template <head_kind KIND>
static inline __device__ const float *norm_of(const heads &h)
{
    return KIND == HEAD_Q ? h.q_norm : KIND == HEAD_K ? h.k_norm : NULL;
}

/* A lane's pairs of a head; 0 beyond its end. */
struct pairs {
    float a[PAIRS], b[PAIRS];
};

/* The pair that a lane has at j. */
static inline __device__ unsigned pair_at(unsigned j)
{
    return j / 2 * 2 * WARP + threadIdx.x % WARP * 2 + j % 2;
}

/* Elements i and i + 1 of n; 0 beyond. */
static inline __device__ float2 load_two(const bf16 *x, unsigned i, unsigned n)
{
    float2 two;

    if (i + 1 < n && (uintptr_t)(x + i) % 4 == 0)
        return widen_pair(*(const uint32_t *)(x + i));
    two.x = i < n ? widen(x[i]) : 0;
    two.y = i + 1 < n ? widen(x[i + 1]) : 0;
    return two;
}

static inline __device__ float2 load_two(const float *x, unsigned i, unsigned n)
{
    float2 two;

    if (i + 1 < n && (uintptr_t)(x + i) % 8 == 0)
        return *(const float2 *)(x + i);
    two.x = i < n ? x[i] : 0;
    two.y = i + 1 < n ? x[i + 1] : 0;
    return two;
}

static inline __device__ void store_two(bf16 *x, unsigned i, unsigned n,
                                        float first, float second)
{
    if (i + 1 < n && (uintptr_t)(x + i) % 4 == 0) {
        *(uint32_t *)(x + i) = narrow_pair(first, second);
        return;
    }
    if (i < n)
        x[i] = narrow(first);
    if (i + 1 < n)
        x[i + 1] = narrow(second);
}

template <typename T>
static inline __device__ pairs pairs_load(unsigned half, const T *x)
{
    pairs p;

    for (unsigned j = 0; j < PAIRS; j += 2) {
        const float2 a = load_two(x, pair_at(j), half);
        const float2 b = load_two(x + half, pair_at(j), half);

        p.a[j] = a.x, p.a[j + 1] = a.y;
        p.b[j] = b.x, p.b[j + 1] = b.y;
    }
    return p;
}

static inline __device__ void pairs_store(unsigned half, const pairs &p,
                                          bf16 *x)
{
    for (unsigned j = 0; j < PAIRS; j += 2) {
        store_two(x, pair_at(j), half, p.a[j], p.a[j + 1]);
        store_two(x + half, pair_at(j), half, p.b[j], p.b[j + 1]);
    }
}

/* x rotated by `sign` times the angles of the row. */
static inline __device__ pairs rotated(const heads &h, size_t row,
                                       const pairs &x, float sign)
{
    const unsigned half = h.dim / 2;
    pairs y;

    for (unsigned j = 0; j < PAIRS; j += 2) {
        const float2 c = load_two(h.cos + row * half, pair_at(j), half);
        const float2 s = load_two(h.sin + row * half, pair_at(j), half);

        y.a[j] = x.a[j] * c.x - x.b[j] * (sign * s.x);
        y.b[j] = x.b[j] * c.x + x.a[j] * (sign * s.x);
        y.a[j + 1] = x.a[j + 1] * c.y - x.b[j + 1] * (sign * s.y);
        y.b[j + 1] = x.b[j + 1] * c.y + x.a[j + 1] * (sign * s.y);
    }
    return y;
}

static inline __device__ float dot(const pairs &x, const pairs &y)
{
    float sum = 0;

    for (unsigned j = 0; j < PAIRS; j++)
        sum += x.a[j] * y.a[j] + x.b[j] * y.b[j];
    return warp_sum(sum);
}

static inline __device__ float rstd_of(const heads &h, const pairs &x)
{
    return 1 / sqrtf(dot(x, x) / (float)h.dim + h.eps);
}

/* Head `head` of the keys or values of a row, in the pages of its piece. */
template <typename T>
static inline __device__ T *in_page(const heads &h, const cf_cuda_batch &batch,
                                    void *const *pages, size_t row,
                                    unsigned head)
{
    const cf_cuda_piece piece = batch.pieces[batch.piece_of_row[row]];
    const size_t position = piece.prefix_tok + (row - piece.row);
    T *page = (T *)pages[piece.first_page + position / CF_PAGE_TOK];

    return page + head * piece.head_stride + position % CF_PAGE_TOK * h.dim;
}

/* Where head `head` of a kind goes. */
template <head_kind KIND>
static inline __device__ bf16 *place_of(const heads &h,
                                        const cf_cuda_batch &batch, size_t row,
                                        unsigned head, bf16 *q_out)
{
    if (KIND == HEAD_Q)
        return q_out + (row * h.n_heads + head) * h.dim;
    return in_page<bf16>(h, batch, KIND == HEAD_K ? batch.k : batch.v, row,
                         head);
}

/* The heads of a kind in a row, by all warps. */
template <head_kind KIND>
static __device__ void forward_heads(const heads &h, const cf_cuda_batch &batch,
                                     size_t row, const bf16 *qkv, bf16 *q_out)
{
    const unsigned half = h.dim / 2;
    const float *norm = norm_of<KIND>(h);
    const bf16 *from = qkv + (row * n_all(h) + first_head<KIND>(h)) * h.dim;

    for (unsigned head = threadIdx.x / WARP; head < n_heads_of<KIND>(h);
         head += WARPS) {
        pairs x = pairs_load(half, from + head * h.dim);

        if (norm != NULL) {
            const pairs w = pairs_load(half, norm);
            const float rstd = rstd_of(h, x);

            for (unsigned j = 0; j < PAIRS; j++) {
                x.a[j] = w.a[j] * (x.a[j] * rstd);
                x.b[j] = w.b[j] * (x.b[j] * rstd);
            }
        }
        if (KIND != HEAD_V)
            x = rotated(h, row, x, 1);
        pairs_store(half, x, place_of<KIND>(h, batch, row, head, q_out));
    }
}

/* A row a block. */
static __global__ void forward(heads h, cf_cuda_batch batch, const bf16 *qkv,
                               bf16 *q_out)
{
    forward_heads<HEAD_Q>(h, batch, blockIdx.x, qkv, q_out);
    forward_heads<HEAD_K>(h, batch, blockIdx.x, qkv, q_out);
    forward_heads<HEAD_V>(h, batch, blockIdx.x, qkv, q_out);
}

/* d from dy through the norm of x, and its share of dweight; the algebra is that
 * of rmsnorm.cu. */
static __device__ pairs norm_backward(const heads &h, const float *norm,
                                      const pairs &x, const pairs &dy,
                                      pairs *dweight)
{
    const pairs w = pairs_load(h.dim / 2, norm);
    const float rstd = rstd_of(h, x);
    pairs t, d;

    for (unsigned j = 0; j < PAIRS; j++) {
        t.a[j] = dy.a[j] * w.a[j];
        t.b[j] = dy.b[j] * w.b[j];
        dweight->a[j] += dy.a[j] * x.a[j] * rstd;
        dweight->b[j] += dy.b[j] * x.b[j] * rstd;
    }

    const float c = dot(t, x) * rstd * rstd / (float)h.dim;

    for (unsigned j = 0; j < PAIRS; j++) {
        d.a[j] = rstd * (t.a[j] - c * x.a[j]);
        d.b[j] = rstd * (t.b[j] - c * x.b[j]);
    }
    return d;
}

/* Where the gradient of head `head` of a kind lies. */
template <head_kind KIND>
static inline __device__ const float *gradient_of(const heads &h,
                                                  const cf_cuda_batch &batch,
                                                  size_t row, unsigned head,
                                                  const float *dq)
{
    if (KIND == HEAD_Q)
        return dq + (row * h.n_heads + head) * h.dim;
    return in_page<float>(h, batch, KIND == HEAD_K ? batch.dk : batch.dv, row,
                          head);
}

template <head_kind KIND>
static __device__ void backward_heads(const heads &h,
                                      const cf_cuda_batch &batch, size_t row,
                                      const bf16 *qkv, const float *dq,
                                      bf16 *dqkv, pairs *dweight)
{
    const unsigned half = h.dim / 2;
    const float *norm = norm_of<KIND>(h);
    const size_t first = (row * n_all(h) + first_head<KIND>(h)) * h.dim;

    for (unsigned head = threadIdx.x / WARP; head < n_heads_of<KIND>(h);
         head += WARPS) {
        const size_t at = first + head * h.dim;
        pairs d = pairs_load(half, gradient_of<KIND>(h, batch, row, head, dq));

        if (KIND != HEAD_V)
            d = rotated(h, row, d, -1);
        if (norm != NULL)
            d = norm_backward(h, norm, pairs_load(half, qkv + at), d, dweight);
        pairs_store(half, d, dqkv + at);
    }
}

/* part [dim] = the sums of the warps, in their order. */
static __device__ void dweight_store(const heads &h, const pairs &dweight,
                                     float *part)
{
    CF_SHARED(float, sums, [WARPS][HEAD_DIM_MAX]);
    const unsigned half = h.dim / 2, warp = threadIdx.x / WARP;

    __syncthreads();
    for (unsigned j = 0; j < PAIRS; j++)
        if (pair_at(j) < half) {
            sums[warp][pair_at(j)] = dweight.a[j];
            sums[warp][half + pair_at(j)] = dweight.b[j];
        }
    __syncthreads();
    if (threadIdx.x < h.dim) {
        float sum = 0;

        for (int w = 0; w < WARPS; w++)
            sum += sums[w][threadIdx.x];
        part[threadIdx.x] = sum;
    }
}

static_assert((int)HEAD_DIM_MAX <= (int)THREADS, "a thread sums one element");

/* CF_CUDA_QKV_ROWS rows a block; its partial: of q's norm, then of k's. */
static __global__ void backward(heads h, cf_cuda_batch batch, const bf16 *qkv,
                                const float *dq, bf16 *dqkv, float *partials)
{
    const size_t first = (size_t)blockIdx.x * CF_CUDA_QKV_ROWS;
    const size_t end = first + CF_CUDA_QKV_ROWS;
    float *part = partials + (size_t)blockIdx.x * 2 * h.dim;
    pairs q_weight = {{0}, {0}}, k_weight = {{0}, {0}};

    for (size_t row = first; row < end && row < batch.n_tok; row++) {
        backward_heads<HEAD_Q>(h, batch, row, qkv, dq, dqkv, &q_weight);
        backward_heads<HEAD_K>(h, batch, row, qkv, dq, dqkv, &k_weight);
        backward_heads<HEAD_V>(h, batch, row, qkv, dq, dqkv, NULL);
    }
    if (h.q_norm != NULL)
        dweight_store(h, q_weight, part);
    if (h.k_norm != NULL)
        dweight_store(h, k_weight, part + h.dim);
}

void cf_cuda_qkv_forward(cf_cuda_stream stream, const cf_qkv_params *p,
                         const cf_cuda_batch *batch, const void *qkv,
                         void *q_out)
{
    if (batch->n_tok > 0)
        CF_LAUNCH(forward, batch->n_tok, THREADS, 0, stream, heads_of(p),
                  *batch, (const bf16 *)qkv, (bf16 *)q_out);
}

void cf_cuda_qkv_backward(cf_cuda_stream stream, const cf_qkv_params *p,
                          const cf_cuda_batch *batch, const void *qkv,
                          const void *dq, void *dqkv, void *d_q_norm,
                          void *d_k_norm, void *partials)
{
    const size_t n_partials = cf_cuda_n_blocks(batch->n_tok, CF_CUDA_QKV_ROWS);
    const size_t n = p->shape.head_dim;

    if (n_partials == 0)
        return;
    CF_LAUNCH(backward, n_partials, THREADS, 0, stream, heads_of(p), *batch,
              (const bf16 *)qkv, (const float *)dq, (bf16 *)dqkv,
              (float *)partials);
    if (d_q_norm != NULL)
        cf_cuda_partials_add(stream, n_partials, n, 2 * n, partials, d_q_norm);
    if (d_k_norm != NULL)
        cf_cuda_partials_add(stream, n_partials, n, 2 * n,
                             (const float *)partials + n, d_k_norm);
}
