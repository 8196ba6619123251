/* ops.c - the op table: from the ops of kernels.h to launches on the stream. */
#include "kernels/cuda/context.h"

static cf_status status(const cf_kernels *k)
{
    cf_cuda_context *c = cf_cuda_context_of(k);
    const cudaError_t error = c->error;

    c->error = cudaSuccess;
    if (error == cudaSuccess)
        return CF_OK;
    return error == cudaErrorMemoryAllocation ? CF_NO_MEMORY : CF_DEVICE;
}

/* ---- memory ---- */

static void zero(const cf_kernels *k, void *x, size_t bytes)
{
    cf_cuda_context *c = cf_cuda_context_of(k);

    if (bytes > 0)
        cf_cuda_note(c, cudaMemsetAsync(x, 0, bytes, c->stream));
}

static void copy(const cf_kernels *k, const void *src, void *dst, size_t bytes)
{
    cf_cuda_context *c = cf_cuda_context_of(k);

    if (bytes > 0)
        cf_cuda_note(c, cudaMemcpyAsync(dst, src, bytes,
                                        cudaMemcpyDeviceToDevice, c->stream));
}

static const void *as_act(const cf_kernels *k, size_t n, const void *src,
                          void *dst)
{
    cf_cuda_context *c = cf_cuda_context_of(k);

    cf_cuda_narrow(c->stream, n, src, dst);
    cf_cuda_launched(c);
    return dst;
}

static const uint32_t *staged_u32(cf_cuda_context *c, size_t n,
                                  const uint32_t *from)
{
    return cf_cuda_staged(c, from, n * sizeof(*from));
}

static void rows_gather(const cf_kernels *k, size_t n_rows, size_t n,
                        const uint32_t *rows, const void *x, void *y)
{
    cf_cuda_context *c = cf_cuda_context_of(k);
    const uint32_t *at = staged_u32(c, n_rows, rows);

    if (at != NULL)
        cf_cuda_rows_gather(c->stream, n_rows, n, at, x, y);
    cf_cuda_launched(c);
}

static void rows_scatter(const cf_kernels *k, size_t n_rows, size_t n_tok,
                         size_t n, const uint32_t *rows, const void *x, void *y)
{
    cf_cuda_context *c = cf_cuda_context_of(k);
    const uint32_t *at = staged_u32(c, n_rows, rows);

    if (at != NULL)
        cf_cuda_rows_scatter(c->stream, n_rows, n_tok, n, at, x, y);
    cf_cuda_launched(c);
}

/* The index comes in the place of a result. */
static size_t first_bad_row(const cf_kernels *k, size_t n_rows, size_t n,
                            const void *x)
{
    cf_cuda_context *c = cf_cuda_context_of(k);
    union {
        double result;
        uint32_t row;
    } first = {0};

    cf_cuda_note(c,
                 cudaMemsetAsync(c->results, 0xff, sizeof(first), c->stream));
    cf_cuda_first_bad_row(c->stream, n_rows, n, x,
                          (uint32_t *)(void *)c->results);
    cf_cuda_launched(c);
    cf_cuda_results_get(c, 1, &first.result);
    return first.row < n_rows ? first.row : n_rows;
}

/* ---- norms ---- */

static void rmsnorm_forward(const cf_kernels *k, size_t n_tok, size_t n,
                            double eps, const void *x, const void *weight,
                            void *y, void *rstd)
{
    cf_cuda_context *c = cf_cuda_context_of(k);

    cf_cuda_rmsnorm_forward(c->stream, n_tok, n, eps, x, weight, y, rstd);
    cf_cuda_launched(c);
}

static void rmsnorm_backward(const cf_kernels *k, size_t n_tok, size_t n,
                             const void *x, const void *weight,
                             const void *rstd, const void *dy, void *dx,
                             void *dweight, void *scratch)
{
    cf_cuda_context *c = cf_cuda_context_of(k);

    cf_cuda_rmsnorm_backward(c->stream, n_tok, n, x, weight, rstd, dy, dx,
                             dweight, scratch);
    cf_cuda_launched(c);
}

static size_t rmsnorm_backward_scratch_bytes(const cf_kernels *k, size_t n_tok,
                                             size_t n)
{
    (void)k;
    return cf_cuda_n_blocks(n_tok, CF_CUDA_SUM_ROWS) * n * sizeof(float);
}

/* ---- attention ---- */

static void rope_table(const cf_kernels *k, size_t n_tok,
                       const uint32_t *positions, size_t n_freq,
                       const double *inv_freq, double factor, void *cos,
                       void *sin)
{
    cf_cuda_context *c = cf_cuda_context_of(k);
    const uint32_t *at = staged_u32(c, n_tok, positions);
    const double *freq = cf_cuda_staged(c, inv_freq, n_freq * sizeof(double));

    if (at != NULL && freq != NULL)
        cf_cuda_rope_table(c->stream, n_tok, at, n_freq, freq, factor, cos,
                           sin);
    cf_cuda_launched(c);
}

/* The batch on the device; with no pieces when it does not fit. */
static cf_cuda_batch staged_batch(cf_cuda_context *c,
                                  const cf_attn_batch *batch)
{
    cf_cuda_batch packed = {0};
    cf_cuda_place place;
    cudaError_t error =
        cf_cuda_staging_take(&c->staging, cf_cuda_batch_bytes(batch), &place);

    if (error == cudaSuccess) {
        packed = cf_cuda_batch_pack(batch, place.host, place.device);
        error = cf_cuda_staging_send(&c->staging, &place);
    }
    cf_cuda_note(c, error);
    return packed;
}

static void qkv_forward(const cf_kernels *k, const cf_qkv_params *p,
                        const cf_attn_batch *batch, const void *qkv,
                        void *q_out)
{
    cf_cuda_context *c = cf_cuda_context_of(k);
    const cf_cuda_batch on_device = staged_batch(c, batch);

    cf_cuda_qkv_forward(c->stream, p, &on_device, qkv, q_out);
    cf_cuda_launched(c);
}

static void qkv_backward(const cf_kernels *k, const cf_qkv_params *p,
                         const cf_attn_batch *batch, const void *qkv,
                         const void *dq, void *dqkv, void *d_q_norm,
                         void *d_k_norm, void *scratch)
{
    cf_cuda_context *c = cf_cuda_context_of(k);
    const cf_cuda_batch on_device = staged_batch(c, batch);

    cf_cuda_qkv_backward(c->stream, p, &on_device, qkv, dq, dqkv, d_q_norm,
                         d_k_norm, scratch);
    cf_cuda_launched(c);
}

static size_t qkv_backward_scratch_bytes(const cf_kernels *k,
                                         const cf_attn_shape *shape,
                                         size_t n_tok)
{
    (void)k;
    return cf_cuda_n_blocks(n_tok, CF_CUDA_QKV_ROWS) * 2 * shape->head_dim *
           sizeof(float);
}

static void attention_forward(const cf_kernels *k, const cf_attn_shape *shape,
                              const cf_attn_batch *batch, uint32_t key_begin,
                              uint32_t key_end, const void *q, void *o,
                              void *lse, void *scratch)
{
    cf_cuda_context *c = cf_cuda_context_of(k);
    const cf_cuda_batch on_device = staged_batch(c, batch);

    (void)scratch;
    cf_cuda_attention_forward(c->stream, shape, &on_device, key_begin, key_end,
                              q, o, lse);
    cf_cuda_launched(c);
}

static void attention_backward(const cf_kernels *k, const cf_attn_shape *shape,
                               const cf_attn_batch *batch, uint32_t key_begin,
                               uint32_t key_end, const void *q, const void *o,
                               const void *lse, const void *d_o, void *dq,
                               void *scratch)
{
    cf_cuda_context *c = cf_cuda_context_of(k);
    const cf_cuda_batch on_device = staged_batch(c, batch);

    cf_cuda_attention_backward(c->stream, shape, &on_device, key_begin, key_end,
                               q, o, lse, d_o, dq, scratch);
    cf_cuda_launched(c);
}

/* Room for delta. */
static size_t attention_scratch_bytes(const cf_kernels *k,
                                      const cf_attn_shape *shape, size_t n_tok,
                                      size_t n_pieces)
{
    (void)k, (void)n_pieces;
    return n_tok * shape->n_heads * sizeof(float);
}

/* ---- MLP ---- */

static void swiglu_forward(const cf_kernels *k, size_t n_tok, size_t n_ff,
                           const void *gate_up, void *a)
{
    cf_cuda_context *c = cf_cuda_context_of(k);

    cf_cuda_swiglu_forward(c->stream, n_tok, n_ff, gate_up, a);
    cf_cuda_launched(c);
}

static void swiglu_backward(const cf_kernels *k, size_t n_tok, size_t n_ff,
                            const void *gate_up, const void *da,
                            void *d_gate_up)
{
    cf_cuda_context *c = cf_cuda_context_of(k);

    cf_cuda_swiglu_backward(c->stream, n_tok, n_ff, gate_up, da, d_gate_up);
    cf_cuda_launched(c);
}

/* ---- embedding ---- */

static void embedding_forward(const cf_kernels *k, size_t n_tok, size_t n,
                              const uint32_t *ids, const void *w, void *x)
{
    rows_gather(k, n_tok, n, ids, w, x);
}

static void embedding_backward(const cf_kernels *k, size_t n_tok, size_t n,
                               const uint32_t *ids, const void *dx, void *dw)
{
    cf_cuda_context *c = cf_cuda_context_of(k);
    const uint32_t *at = staged_u32(c, n_tok, ids);

    if (at != NULL)
        cf_cuda_embedding_backward(c->stream, n_tok, n, at, dx, dw);
    cf_cuda_launched(c);
}

/* ---- optimizer ---- */

static void sum_squares(const cf_kernels *k, size_t n, const void *x,
                        double *partials)
{
    const size_t part = CF_CUDA_RESULTS_MAX * CF_NORM_BLOCK;
    cf_cuda_context *c = cf_cuda_context_of(k);
    const float *from = x;

    for (size_t first = 0; first < n; first += part) {
        size_t n_part = n - first < part ? n - first : part;

        cf_cuda_sum_squares(c->stream, n_part, from + first, c->results);
        cf_cuda_launched(c);
        cf_cuda_results_get(c, cf_cuda_n_blocks(n_part, CF_NORM_BLOCK),
                            partials + first / CF_NORM_BLOCK);
    }
}

static void add(const cf_kernels *k, size_t n, const void *x, void *y)
{
    cf_cuda_context *c = cf_cuda_context_of(k);

    cf_cuda_add(c->stream, n, x, y);
    cf_cuda_launched(c);
}

static void add_act(const cf_kernels *k, size_t n, const void *x, void *y)
{
    cf_cuda_context *c = cf_cuda_context_of(k);

    cf_cuda_add_act(c->stream, n, x, y);
    cf_cuda_launched(c);
}

/* The bf16 copy is made by weight_pack. */
static void adamw(const cf_kernels *k, size_t n, const cf_adamw_params *p,
                  const void *g, void *w, void *m, void *v)
{
    cf_cuda_context *c = cf_cuda_context_of(k);

    cf_cuda_adamw(c->stream, n, p, g, w, m, v, NULL);
    cf_cuda_launched(c);
}

void cf_cuda_table_fill(cf_kernels *kernels)
{
    *kernels = (cf_kernels){
        .name = "cuda bf16",
        .compute = CF_COMPUTE_BF16,
        .advice = "attention runs on plain CUDA kernels, which are slow",
        .act_bytes = sizeof(uint16_t),
        .acc_bytes = sizeof(float),
        .status = status,
        .zero = zero,
        .copy = copy,
        .as_act = as_act,
        .rows_gather = rows_gather,
        .rows_scatter = rows_scatter,
        .first_bad_row = first_bad_row,
        .weight_packed_bytes = cf_cuda_weight_packed_bytes,
        .weight_pack = cf_cuda_weight_pack,
        .linear_scratch_bytes = cf_cuda_linear_scratch_bytes,
        .linear_forward = cf_cuda_linear_forward,
        .linear_forward_residual = cf_cuda_linear_forward_residual,
        .linear_forward_add = cf_cuda_linear_forward_add,
        .linear_backward = cf_cuda_linear_backward,
        .rmsnorm_forward = rmsnorm_forward,
        .rmsnorm_backward = rmsnorm_backward,
        .rmsnorm_backward_scratch_bytes = rmsnorm_backward_scratch_bytes,
        .rope_table = rope_table,
        .qkv_forward = qkv_forward,
        .qkv_backward = qkv_backward,
        .qkv_backward_scratch_bytes = qkv_backward_scratch_bytes,
        .attention_forward = attention_forward,
        .attention_backward = attention_backward,
        .attention_scratch_bytes = attention_scratch_bytes,
        .swiglu_forward = swiglu_forward,
        .swiglu_backward = swiglu_backward,
        .embedding_forward = embedding_forward,
        .embedding_backward = embedding_backward,
        .head_forward = cf_cuda_head_forward,
        .head_backward = cf_cuda_head_backward,
        .head_scratch_bytes = cf_cuda_head_scratch_bytes,
        .sum_squares = sum_squares,
        .add = add,
        .add_act = add_act,
        .adamw = adamw,
    };
}
