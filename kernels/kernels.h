/* kernels.h - the table of operations that a backend fills.
 *
 * Plain arrays and shapes: no chunks, no schedules, no ranks, no files.  A
 * backend is one cf_kernels value for one compute type.
 *
 * Two element types:
 *   act  what GEMMs read and activations are stored in  (float, double, bf16)
 *   acc  residual stream, master weights, gradients, dK/dV, statistics
 *        (float, double, float)
 * Every pointer below says which.  Arrays are dense and row-major, aligned to
 * 64 bytes at their start unless said; shapes stand in brackets.
 *
 * (1) Ops return nothing: a launch may fail later, so a failure is sticky and
 *     status() tells the first one.  The caller asks once per callback.
 * (2) Ops allocate nothing: an op that needs scratch has a *_scratch_bytes twin,
 *     whose answer is monotonic in every count, so that capacities may be given.
 * (3) A row's result depends on nothing but its own inputs where the GEMM allows
 *     it, and every sum has one fixed order: equal inputs, shapes and threads
 *     give equal bits.  Our own loops give equal bits for any thread count.
 * (4) "+=" outputs accumulate; all others are overwritten and need no clearing.
 */
#ifndef CF_KERNELS_H
#define CF_KERNELS_H

#include <chunkflow/base.h>

typedef enum cf_compute {
    CF_COMPUTE_FP32,
    CF_COMPUTE_FP64,
    CF_COMPUTE_BF16
} cf_compute;

/* Tokens in one page of KV state. */
#define CF_PAGE_TOK 256

/* Elements in one block of the gradient norm (see sum_squares). */
#define CF_NORM_BLOCK 4096

/* The matrix of a linear layer, y = x W^T + b.  packed is whatever the backend
 * wants to keep beside the master, of weight_packed_bytes bytes; NULL when that
 * is 0.  After every change of the master, call weight_pack. */
typedef struct cf_weight {
    const void *master; /* acc [n_out, n_in], borrowed */
    const void *bias;   /* acc [n_out] or NULL, borrowed */
    void *packed;       /* borrowed */
    size_t n_out;
    size_t n_in;
} cf_weight;

typedef struct cf_attn_shape {
    uint32_t n_heads;
    uint32_t n_kv_heads; /* divides n_heads */
    uint32_t head_dim;   /* even, <= 256 */
    double softmax_scale;
} cf_attn_shape;

/* A run of rows that belong to one sequence, and where its keys are.  Row i of
 * the piece has position prefix_tok + i and sees the keys at positions
 * 0 .. prefix_tok + i of its sequence, nothing else.
 *
 * Keys and values lie in pages of CF_PAGE_TOK tokens, anchored at position 0.
 * Within a page, head h starts head_stride elements after head h - 1, and holds
 * its tokens densely: [tokens, head_dim].  Pages of a piece have at least the
 * tokens up to position prefix_tok + n_tok - 1 behind them. */
typedef struct cf_attn_piece {
    uint32_t row;        /* first row in the arrays of the call */
    uint32_t n_tok;      /* rows, >= 1 */
    uint32_t prefix_tok; /* tokens in front: position of the first row */
    size_t head_stride;  /* elements */
    void *const *k;      /* act pages */
    void *const *v;      /* act pages */
    void *const *dk;     /* acc pages; NULL in a forward */
    void *const *dv;     /* acc pages; NULL in a forward */
} cf_attn_piece;

/* The pieces of one call.  Together they cover rows 0 .. n_tok - 1 once. */
typedef struct cf_attn_batch {
    const cf_attn_piece *pieces;
    size_t n_pieces;
    size_t n_tok;
} cf_attn_batch;

/* What stands between the fused QKV projection and attention. */
typedef struct cf_qkv_params {
    cf_attn_shape shape;
    const void *q_norm; /* acc [head_dim] or NULL: RMSNorm of every q head */
    const void *k_norm; /* acc [head_dim] or NULL */
    double norm_eps;
    const void *cos; /* acc [n_tok, head_dim / 2] */
    const void *sin; /* acc [n_tok, head_dim / 2] */
} cf_qkv_params;

/* One AdamW step over one tensor (torch.optim.AdamW).  g is read as g_scale * g
 * (clipping).  Bias corrections are 1 - beta^t. */
typedef struct cf_adamw_params {
    double learning_rate;
    double beta1, beta2, eps;
    double weight_decay;
    double correction1, correction2;
    double g_scale;
} cf_adamw_params;

typedef struct cf_kernels cf_kernels;

struct cf_kernels {
    const char *name; /* as in "cpu fp32 avx2", for the log */
    cf_compute compute;
    const char *advice; /* what its user should know, one line; or NULL */
    size_t act_bytes;   /* of one element */
    size_t acc_bytes;
    void *backend; /* the backend's own context; NULL on the CPU */

    /* CF_OK, or the first failure since the last call. */
    cf_status (*status)(const cf_kernels *k);

    /* ---- memory ---- */

    void (*zero)(const cf_kernels *k, void *x, size_t bytes);
    void (*copy)(const cf_kernels *k, const void *src, void *dst, size_t bytes);

    /* src acc [n] as act: src itself where the types are equal, else dst. */
    const void *(*as_act)(const cf_kernels *k, size_t n, const void *src,
                          void *dst);

    /* y[i] = x[rows[i]] for rows of n acc elements. */
    void (*rows_gather)(const cf_kernels *k, size_t n_rows, size_t n,
                        const uint32_t *rows, const void *x, void *y);

    /* y [n_tok, n] acc: y[rows[i]] = x[i], all other rows zero.  rows ascend. */
    void (*rows_scatter)(const cf_kernels *k, size_t n_rows, size_t n_tok,
                         size_t n, const uint32_t *rows, const void *x,
                         void *y);

    /* Index of the first row of x, acc [n_rows, n], that holds a NaN or an Inf;
     * n_rows when all are finite. */
    size_t (*first_bad_row)(const cf_kernels *k, size_t n_rows, size_t n,
                            const void *x);

    /* ---- linear layers ---- */

    size_t (*weight_packed_bytes)(const cf_kernels *k, size_t n_out,
                                  size_t n_in);
    void (*weight_pack)(const cf_kernels *k, cf_weight *w);

    /* Suffices for each of the four. */
    size_t (*linear_scratch_bytes)(const cf_kernels *k, size_t n_tok,
                                   size_t n_out, size_t n_in);

    /* y act [n_tok, n_out] = x act [n_tok, n_in] W^T + b. */
    void (*linear_forward)(const cf_kernels *k, const cf_weight *w,
                           size_t n_tok, const void *x, void *y, void *scratch);

    /* y acc [n_tok, n_out] += x act [n_tok, n_in] W^T + b. */
    void (*linear_forward_residual)(const cf_kernels *k, const cf_weight *w,
                                    size_t n_tok, const void *x, void *y,
                                    void *scratch);

    /* y act [n_tok, n_out] += x act [n_tok, n_in] W^T + b. */
    void (*linear_forward_add)(const cf_kernels *k, const cf_weight *w,
                               size_t n_tok, const void *x, void *y,
                               void *scratch);

    /* dx act [n_tok, n_in] = dy act [n_tok, n_out] W; dw acc [n_out, n_in] +=
     * dy^T x; db acc [n_out] += column sums of dy.  dw and db may be NULL: not
     * wanted.  dx is neither dy nor x. */
    void (*linear_backward)(const cf_kernels *k, const cf_weight *w,
                            size_t n_tok, const void *dy, const void *x,
                            void *dx, void *dw, void *db, void *scratch);

    /* ---- norms ---- */

    /* y act = weight * x * rstd, rstd = 1 / sqrt(mean(x^2) + eps);
     * x acc [n_tok, n], weight acc [n], rstd acc [n_tok]. */
    void (*rmsnorm_forward)(const cf_kernels *k, size_t n_tok, size_t n,
                            double eps, const void *x, const void *weight,
                            void *y, void *rstd);

    /* dx acc [n_tok, n] +=, dweight acc [n] += or NULL, not wanted; dy act
     * [n_tok, n]. */
    void (*rmsnorm_backward)(const cf_kernels *k, size_t n_tok, size_t n,
                             const void *x, const void *weight,
                             const void *rstd, const void *dy, void *dx,
                             void *dweight, void *scratch);
    size_t (*rmsnorm_backward_scratch_bytes)(const cf_kernels *k, size_t n_tok,
                                             size_t n);

    /* ---- attention ---- */

    /* cos, sin acc [n_tok, n_freq] of factor-scaled rotations: the angle
     * position * inv_freq[i] is formed and reduced in double, so that it is
     * exact to 1e-6 at 4M positions. */
    void (*rope_table)(const cf_kernels *k, size_t n_tok,
                       const uint32_t *positions, size_t n_freq,
                       const double *inv_freq, double factor, void *cos,
                       void *sin);

    /* From the projection qkv act [n_tok, n_heads + 2 n_kv_heads, head_dim]:
     * normalise (if asked) and rotate q into q_out act [n_tok, n_heads,
     * head_dim], k likewise into the K pages at its own position, v as it is
     * into the V pages.  Rotation pairs element i with i + head_dim / 2, as
     * Hugging Face does.  Writing the same rows twice writes the same bits. */
    void (*qkv_forward)(const cf_kernels *k, const cf_qkv_params *p,
                        const cf_attn_batch *batch, const void *qkv,
                        void *q_out);

    /* dqkv act, as qkv, from dq acc [n_tok, n_heads, head_dim] and the piece's
     * own rows of the dK and dV pages.  qkv is read only when there are norms;
     * d_q_norm, d_k_norm acc [head_dim] += then, each NULL where there is no
     * norm or its gradient is not wanted. */
    void (*qkv_backward)(const cf_kernels *k, const cf_qkv_params *p,
                         const cf_attn_batch *batch, const void *qkv,
                         const void *dq, void *dqkv, void *d_q_norm,
                         void *d_k_norm, void *scratch);
    size_t (*qkv_backward_scratch_bytes)(const cf_kernels *k,
                                         const cf_attn_shape *shape,
                                         size_t n_tok);

    /* Causal attention of the pieces over the keys at positions key_begin ..
     * key_end - 1 of their sequences (0 and UINT32_MAX: all).  o act [n_tok,
     * n_heads, head_dim], lse acc [n_tok, n_heads] (natural log).  A row that
     * sees no key of the range gets o = 0, lse = -inf, so that the results of
     * adjacent ranges can be merged.  Key tiles are anchored at position 0 and
     * visited in ascending order: o and lse of a row do not depend on how its
     * sequence was cut or packed. */
    void (*attention_forward)(const cf_kernels *k, const cf_attn_shape *shape,
                              const cf_attn_batch *batch, uint32_t key_begin,
                              uint32_t key_end, const void *q, void *o,
                              void *lse, void *scratch);

    /* dq acc [n_tok, n_heads, head_dim]; dK and dV pages +=.  o and lse are
     * those over all keys of the sequence. */
    void (*attention_backward)(const cf_kernels *k, const cf_attn_shape *shape,
                               const cf_attn_batch *batch, uint32_t key_begin,
                               uint32_t key_end, const void *q, const void *o,
                               const void *lse, const void *d_o, void *dq,
                               void *scratch);

    /* Suffices for both, for any batch within these counts. */
    size_t (*attention_scratch_bytes)(const cf_kernels *k,
                                      const cf_attn_shape *shape, size_t n_tok,
                                      size_t n_pieces);

    /* ---- MLP ---- */

    /* a act [n_tok, n_ff] = silu(gate) * up; gate_up act [n_tok, 2 n_ff] holds
     * a row's gates, then its ups. */
    void (*swiglu_forward)(const cf_kernels *k, size_t n_tok, size_t n_ff,
                           const void *gate_up, void *a);

    /* d_gate_up act [n_tok, 2 n_ff] from da act; may be gate_up itself. */
    void (*swiglu_backward)(const cf_kernels *k, size_t n_tok, size_t n_ff,
                            const void *gate_up, const void *da,
                            void *d_gate_up);

    /* ---- embedding and head ---- */

    /* x acc [n_tok, n] = rows ids of w acc [n_vocab, n]. */
    void (*embedding_forward)(const cf_kernels *k, size_t n_tok, size_t n,
                              const uint32_t *ids, const void *w, void *x);

    /* dw acc [n_vocab, n] += rows of dx acc, in ascending token order. */
    void (*embedding_backward)(const cf_kernels *k, size_t n_tok, size_t n,
                               const uint32_t *ids, const void *dx, void *dw);

    /* Fused linear + cross-entropy over tiles of rows; full logits never exist.
     * loss[i] = log sum exp(logits) - logits[target], in nats, from logits of
     * x act [n_rows, n_in] with w [n_vocab, n_in]. */
    void (*head_forward)(const cf_kernels *k, const cf_weight *w, size_t n_rows,
                         const void *x, const uint32_t *targets, double *loss,
                         void *scratch);

    /* The same loss bits, and the gradient of scale * sum of the losses:
     * dx act [n_rows, n_in], dw acc [n_vocab, n_in] += or NULL, not wanted. */
    void (*head_backward)(const cf_kernels *k, const cf_weight *w,
                          size_t n_rows, const void *x, const uint32_t *targets,
                          double scale, double *loss, void *dx, void *dw,
                          void *scratch);

    /* Suffices for both. */
    size_t (*head_scratch_bytes)(const cf_kernels *k, size_t n_rows,
                                 size_t n_vocab, size_t n_in);

    /* ---- optimizer ---- */

    /* partials[b] = sum in double of the squares of block b, of CF_NORM_BLOCK
     * elements, of x acc [n]; ceil(n / CF_NORM_BLOCK) partials.  Each block has
     * one fixed order of summation. */
    void (*sum_squares)(const cf_kernels *k, size_t n, const void *x,
                        double *partials);

    /* y acc [n] += x acc [n]. */
    void (*add)(const cf_kernels *k, size_t n, const void *x, void *y);

    /* y act [n] += x act [n]. */
    void (*add_act)(const cf_kernels *k, size_t n, const void *x, void *y);

    /* w, m, v acc [n] updated from g acc [n]; one pass. */
    void (*adamw)(const cf_kernels *k, size_t n, const cf_adamw_params *p,
                  const void *g, void *w, void *m, void *v);
};

/* The CPU backend for a compute type on this processor.  CF_INVALID when the
 * type is not available; *why_p then says why (static text).  The environment
 * variable CF_CPU_ISA (avx2, avx512) forces a lower instruction set. */
CF_MUST_USE cf_status cf_cpu_kernels(cf_compute compute, cf_kernels *kernels_p,
                                     const char **why_p);

#endif
