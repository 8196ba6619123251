/* launch.h - the kernels of this folder, as C sees them.
 *
 * One launcher a kernel, each with the work of one op of kernels.h.  What is
 * called x, y, w, dx ... is device memory, act in bf16 and acc in float; shapes
 * stand in brackets where they differ from kernels.h.
 *
 * (1) A launcher queues work on its stream and returns.  A failed launch shows
 *     in cudaGetLastError(); whoever calls asks (backend.c).
 * (2) Every sum has one fixed order, whatever the device: blocks own what they
 *     write, partials are added in ascending order, and no float is added
 *     atomically.
 * (3) A launcher takes any shape.  Rows that start at 16 bytes are read in whole
 *     strips (common.cuh), others element by element.
 */
#ifndef CF_CUDA_LAUNCH_H
#define CF_CUDA_LAUNCH_H

#include "kernels/cuda/batch.h"
#include "kernels/cuda/gemm.h"
#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A cudaStream_t. */
typedef void *cf_cuda_stream;

/* Rows summed into one partial of a weight gradient. */
#define CF_CUDA_SUM_ROWS 64

/* Rows of one block, and so of one partial, of qkv_backward. */
#define CF_CUDA_QKV_ROWS 8

/* How many blocks of `size` hold n. */
static inline size_t cf_cuda_n_blocks(size_t n, size_t size)
{
    return n / size + (n % size != 0);
}

/* ---- memory (memory.cu) ---- */

/* y act [n] = x acc [n]. */
void cf_cuda_narrow(cf_cuda_stream stream, size_t n, const void *x, void *y);

void cf_cuda_rows_gather(cf_cuda_stream stream, size_t n_rows, size_t n,
                         const uint32_t *rows, const void *x, void *y);
void cf_cuda_rows_scatter(cf_cuda_stream stream, size_t n_rows, size_t n_tok,
                          size_t n, const uint32_t *rows, const void *x,
                          void *y);

/* *first_p, on the device, becomes the smaller of itself and the first bad row;
 * it has to be UINT32_MAX before. */
void cf_cuda_first_bad_row(cf_cuda_stream stream, size_t n_rows, size_t n,
                           const void *x, uint32_t *first_p);

/* ---- linear layers (gemm.cu, columns.cu) ---- */

/* Any product, by a plain kernel: the reference, and what is used where there
 * is no cuBLASLt. */
void cf_cuda_product_run(cf_cuda_stream stream, const cf_cuda_product *p);

/* y acc [n_tok, n] += bias acc [n] in every row. */
void cf_cuda_bias_add(cf_cuda_stream stream, size_t n_tok, size_t n,
                      const void *bias, void *y);

/* db acc [n] += column sums of dy act [n_tok, n]; partials acc
 * [ceil(n_tok / CF_CUDA_SUM_ROWS), n]. */
void cf_cuda_bias_backward(cf_cuda_stream stream, size_t n_tok, size_t n,
                           const void *dy, void *partials, void *db);

/* y acc [n] += the sum of partials acc [n_partials, stride], in ascending
 * order. */
void cf_cuda_partials_add(cf_cuda_stream stream, size_t n_partials, size_t n,
                          size_t stride, const void *partials, void *y);

/* ---- norms (rmsnorm.cu) ---- */

void cf_cuda_rmsnorm_forward(cf_cuda_stream stream, size_t n_tok, size_t n,
                             double eps, const void *x, const void *weight,
                             void *y, void *rstd);

/* partials acc [ceil(n_tok / CF_CUDA_SUM_ROWS), n]. */
void cf_cuda_rmsnorm_backward(cf_cuda_stream stream, size_t n_tok, size_t n,
                              const void *x, const void *weight,
                              const void *rstd, const void *dy, void *dx,
                              void *dweight, void *partials);

/* ---- attention (rope.cu, qkv.cu, attention_*.cu) ---- */

void cf_cuda_rope_table(cf_cuda_stream stream, size_t n_tok,
                        const uint32_t *positions, size_t n_freq,
                        const double *inv_freq, double factor, void *cos,
                        void *sin);

void cf_cuda_qkv_forward(cf_cuda_stream stream, const cf_qkv_params *p,
                         const cf_cuda_batch *batch, const void *qkv,
                         void *q_out);

/* partials acc [ceil(n_tok / CF_CUDA_QKV_ROWS), 2, head_dim]. */
void cf_cuda_qkv_backward(cf_cuda_stream stream, const cf_qkv_params *p,
                          const cf_cuda_batch *batch, const void *qkv,
                          const void *dq, void *dqkv, void *d_q_norm,
                          void *d_k_norm, void *partials);

void cf_cuda_attention_forward(cf_cuda_stream stream,
                               const cf_attn_shape *shape,
                               const cf_cuda_batch *batch, uint32_t key_begin,
                               uint32_t key_end, const void *q, void *o,
                               void *lse);

/* delta acc [n_tok, n_heads], scratch. */
void cf_cuda_attention_backward(cf_cuda_stream stream,
                                const cf_attn_shape *shape,
                                const cf_cuda_batch *batch, uint32_t key_begin,
                                uint32_t key_end, const void *q, const void *o,
                                const void *lse, const void *d_o, void *dq,
                                void *delta);

/* ---- MLP (swiglu.cu) ---- */

void cf_cuda_swiglu_forward(cf_cuda_stream stream, size_t n_tok, size_t n_ff,
                            const void *gate_up, void *a);
void cf_cuda_swiglu_backward(cf_cuda_stream stream, size_t n_tok, size_t n_ff,
                             const void *gate_up, const void *da,
                             void *d_gate_up);

/* ---- embedding and head (embedding.cu, cross_entropy.cu) ---- */

void cf_cuda_embedding_backward(cf_cuda_stream stream, size_t n_tok, size_t n,
                                const uint32_t *ids, const void *dx, void *dw);

/* From logits acc [n_rows, n_vocab] to loss double [n_rows]. */
void cf_cuda_cross_entropy(cf_cuda_stream stream, size_t n_rows, size_t n_vocab,
                           const uint32_t *targets, const void *logits,
                           double *loss);

/* The same loss bits; and the logits become the gradient of scale * sum of the
 * losses, as act: row i starts where its logits started, which are 2 n_vocab
 * elements of act behind those of row i - 1. */
void cf_cuda_cross_entropy_backward(cf_cuda_stream stream, size_t n_rows,
                                    size_t n_vocab, const uint32_t *targets,
                                    double scale, void *logits, double *loss);

/* ---- optimizer (sums.cu, adamw.cu) ---- */

void cf_cuda_sum_squares(cf_cuda_stream stream, size_t n, const void *x,
                         double *partials);
void cf_cuda_add(cf_cuda_stream stream, size_t n, const void *x, void *y);
void cf_cuda_add_act(cf_cuda_stream stream, size_t n, const void *x, void *y);

/* copy act [n], or NULL: the new w, rounded. */
void cf_cuda_adamw(cf_cuda_stream stream, size_t n, const cf_adamw_params *p,
                   const void *g, void *w, void *m, void *v, void *copy);

#ifdef __cplusplus
}
#endif

#endif
