/* adapter_gemms.h - what an adapter adds to a linear layer, over one chunk.
 *
 * Two small GEMMs each way, by the ops that every linear layer uses:
 *
 *     h = x A^T            y += h (scale B)^T
 *     dB += scale dy^T h   dh = dy (scale B)   dA += dh^T x   dx += dh A
 *
 * (1) h is not kept: a backward computes it again, to the same bits.
 * (2) y is act or, where the layer adds to the residual stream, acc.  As act it
 *     has been rounded before, and is rounded again.
 */
#ifndef CF_ADAPTER_GEMMS_H
#define CF_ADAPTER_GEMMS_H

#include "src/kv_state.h"
#include "src/model.h"

/* Scratch that all adapters share, one after the other. */
typedef struct cf_adapter_rows {
    void *h;         /* act [n_tok, n_rank] */
    void *dh;        /* act [n_tok, n_rank] */
    void *dx;        /* act [n_tok, n_in]: dh A */
    void *db_blocks; /* acc [n_out, n_rank], laid out as cf_adapter.b */
} cf_adapter_rows;

/* Room for any layer of the model; none without an adapter. */
void cf_adapter_rows_carve(cf_adapter_rows *rows, const cf_model *model,
                           size_t n_tok, cf_gradients gradients,
                           cf_arena *arena);

/* y act [n_tok, n_out] += the adapter's part, from x act [n_tok, n_in]. */
void cf_adapter_forward(const cf_kernels *k, const cf_adapter *adapter,
                        const cf_adapter_rows *rows, size_t n_tok,
                        const void *x, void *y, void *scratch);

/* The same for y acc. */
void cf_adapter_forward_residual(const cf_kernels *k, const cf_adapter *adapter,
                                 const cf_adapter_rows *rows, size_t n_tok,
                                 const void *x, void *y, void *scratch);

/* Scratch that the calls here need of the ops, as linear_scratch_bytes. */
size_t cf_adapter_scratch_bytes(const cf_model *model, size_t n_tok);

/* dx act [n_tok, n_in] += the adapter's part, from dy act [n_tok, n_out]; its own
 * gradients accumulate. */
void cf_adapter_backward(const cf_kernels *k, const cf_adapter *adapter,
                         const cf_adapter_rows *rows, size_t n_tok,
                         const void *dy, const void *x, void *dx,
                         void *scratch);

#endif
