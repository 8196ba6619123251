/* kernel_cases.h - every operation of a backend's table on the shapes of a model,
 * ready to be run over and over.
 *
 * What an operation is credited with:
 *   flop   useful operations alone: the causal half of attention, no recompute;
 *          attention's backward is 2.5 forwards, the head's three products.
 *   bytes  arrays read and written once each, where an operation does little
 *          more than that; else 0.
 */
#ifndef KERNEL_CASES_H
#define KERNEL_CASES_H

#include <stdbool.h>

#include "kernels/kernels.h"

typedef struct case_model {
    const char *name;
    size_t hidden, ffn, vocab;
    cf_attn_shape attention;
    bool qk_norm;
} case_model;

/* Pieces of a call, all alike. */
typedef struct case_layout {
    uint32_t n_pieces;
    uint32_t n_tok; /* of each */
    uint32_t prefix_tok;
} case_layout;

/* Arrays that the cases of a model share. */
typedef struct case_room {
    const cf_kernels *k;
    const case_model *model;
    size_t n_tok;     /* the most */
    void *act[4];     /* act [n_tok, widest] */
    void *acc[4];     /* acc [n_tok, widest of the stream and of q] */
    void *weights[4]; /* acc [vocab, hidden] */
    void *pages[4];   /* K, V act, dK, dV acc */
    void **page_at[4];
    cf_attn_piece *pieces;
    cf_attn_batch batch;
    cf_qkv_params qkv;
    uint32_t *ids;       /* [n_tok], below vocab */
    uint32_t *positions; /* [n_tok], ascending: rows too */
    double *inv_freq;    /* [head_dim / 2] */
    double *doubles;     /* losses, partials */
    void *packed;        /* of any weight */
    void *library[3];    /* acc, as act: what the library is called with */
    void *scratch;
} case_room;

typedef struct kernel_case {
    const char *op; /* its name in the table */
    char shape[48];
    case_layout layout;
    cf_weight weight; /* of a linear layer or of the head */
    double flop, bytes;
} kernel_case;

/* What there is to measure. */
typedef struct case_sizes {
    const size_t *tokens; /* [n_tokens] */
    size_t n_tokens;
    const case_layout *attention; /* beside a piece of all tokens */
    size_t n_attention;
} case_sizes;

/* Whether the table has an operation of this name. */
bool kernel_op_is_known(const char *op);

/* Ends the program when there is no memory. */
void case_room_open(case_room *room, const cf_kernels *k,
                    const case_model *model, const case_sizes *sizes);
void case_room_close(case_room *room);

/* The cases of an operation, NULL: of all; the caller frees. */
kernel_case *kernel_cases_list(const case_room *room, const case_sizes *sizes,
                               const char *op, size_t *n_p);

/* Before it is measured. */
void kernel_case_prepare(case_room *room, const kernel_case *c);
void kernel_case_run(const case_room *room, const kernel_case *c);

/* Whether it is a product of the library's, and the same without us. */
bool kernel_case_is_gemm(const kernel_case *c);
void kernel_case_run_library(const case_room *room, const kernel_case *c);

#endif
