/* batch.h - the pieces of a call, as kernels read them.
 *
 * cf_attn_batch is in host memory and holds pointers to host arrays of page
 * pointers.  Packed, it is one run of bytes, that goes to the device in one copy
 * and holds everything that a kernel looks up.
 */
#ifndef CF_CUDA_BATCH_H
#define CF_CUDA_BATCH_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cf_cuda_piece {
    uint32_t row, n_tok, prefix_tok; /* as in cf_attn_piece */
    uint32_t first_page;             /* of its pages in the tables */
    size_t head_stride;
} cf_cuda_piece;

/* Pointers into device memory; a kernel gets it by value. */
typedef struct cf_cuda_batch {
    const cf_cuda_piece *pieces;
    const uint32_t *piece_of_row; /* [n_tok] */
    void *const *k;               /* [pages of all pieces] */
    void *const *v;
    void *const *dk; /* NULL in a forward */
    void *const *dv;
    size_t n_pieces;
    size_t n_tok;
    size_t n_tok_max; /* of one piece */
    size_t n_key_max; /* that one piece sees */
} cf_cuda_batch;

/* Bytes of a batch, packed. */
size_t cf_cuda_batch_bytes(const cf_attn_batch *batch);

/* Packs into `to`, aligned to 8 bytes, for a copy of it that will lie at `at`
 * in device memory. */
cf_cuda_batch cf_cuda_batch_pack(const cf_attn_batch *batch, void *to,
                                 const void *at);

#ifdef __cplusplus
}
#endif

#endif
