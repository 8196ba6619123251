/* layer.h - one transformer layer, forward and backward, over one chunk. */
#ifndef CF_LAYER_H
#define CF_LAYER_H

#include "kernels/kernels.h"
#include "src/adapter_gemms.h"
#include "src/model.h"

/* The activations of one layer over one chunk of n_tok rows.  Which of them
 * outlive the forward is the recompute policy's choice (activations.c); the
 * others are scratch that the backward fills again. */
typedef struct cf_layer_acts {
    void *x;       /* acc [n_tok, hidden]: the residual stream coming in */
    void *rstd1;   /* acc [n_tok] */
    void *n1;      /* act [n_tok, hidden] */
    void *qkv;     /* act [n_tok, n_heads + 2 n_kv_heads, head_dim] */
    void *q;       /* act [n_tok, n_heads, head_dim], rotated */
    void *o;       /* act [n_tok, n_heads, head_dim] */
    void *lse;     /* acc [n_tok, n_heads] */
    void *x2;      /* acc [n_tok, hidden]: the stream after attention */
    void *rstd2;   /* acc [n_tok] */
    void *n2;      /* act [n_tok, hidden] */
    void *gate_up; /* act [n_tok, 2 ffn] */
    void *a;       /* act [n_tok, ffn] */
} cf_layer_acts;

/* Gradients on their way through a layer: scratch. */
typedef struct cf_layer_grads {
    void *dx;   /* acc [n_tok, hidden]: of the residual stream, in and out */
    void *dy;   /* act [n_tok, hidden]: dx as a GEMM reads it */
    void *da;   /* act [n_tok, ffn] */
    void *dn;   /* act [n_tok, hidden] */
    void *d_o;  /* act [n_tok, n_heads, head_dim] */
    void *dq;   /* acc [n_tok, n_heads, head_dim] */
    void *dqkv; /* act, as qkv */
} cf_layer_grads;

/* What the ops of one call share. */
typedef struct cf_layer_call {
    const cf_kernels *kernels;
    const cf_model_config *config;
    const cf_layer *layer;
    cf_qkv_params qkv;
    cf_attn_batch batch;
    cf_adapter_rows adapter_rows;
    void *scratch;
} cf_layer_call;

/* Only K and V, into the pages: all that a dropped forward of the last layer
 * leaves behind. */
void cf_layer_forward_kv(const cf_layer_call *call, const cf_layer_acts *acts);

/* The same and attention, where that is kept for the recompute. */
void cf_layer_forward_attention(const cf_layer_call *call,
                                const cf_layer_acts *acts);

/* All of it; the stream going out into x_next acc [n_tok, hidden]. */
void cf_layer_forward(const cf_layer_call *call, const cf_layer_acts *acts,
                      void *x_next);

/* All of it but attention: o and lse are there already. */
void cf_layer_forward_attended(const cf_layer_call *call,
                               const cf_layer_acts *acts, void *x_next);

/* What of acts must be computed again before a backward. */
typedef enum cf_layer_missing {
    CF_LAYER_MISSING_NOTHING,
    CF_LAYER_MISSING_POINTWISE, /* n1, n2, a; q too when there are q/k norms */
    CF_LAYER_MISSING_LINEAR     /* all but x, o, lse */
} cf_layer_missing;

/* From the gradient of the stream going out, in grads->dx, to that of the
 * stream coming in, likewise; gradients of trained weights, dK and dV
 * accumulate.
 * Overwrites acts->gate_up. */
void cf_layer_backward(const cf_layer_call *call, const cf_layer_acts *acts,
                       cf_layer_missing missing, const cf_layer_grads *grads);

#endif
