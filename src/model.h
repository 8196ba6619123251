/* model.h - the parameters: one table, flat arrays behind it, typed views.
 *
 * (1) The table's order is the canonical order of everything that is summed or
 *     written over parameters.
 * (2) Masters, gradients and Adam's moments are flat arrays with the same
 *     offsets, so one offset names a tensor in all of them.
 * (3) q, k, v lie behind one another, and so do gate and up: each group is one
 *     GEMM.
 * (4) A tied weight has two gradient accumulators, embedding and head, added
 *     once at the end of a step (cf_model_finish_gradients), so that a later
 *     split over pipeline stages changes no bits.
 */
#ifndef CF_MODEL_H
#define CF_MODEL_H

#include <chunkflow/base.h>

#include "kernels/kernels.h"
#include "src/arena.h"
#include "src/model_config.h"
#include "src/safetensors.h"

enum {
    CF_PARAM_NAME_MAX = 80
};

typedef struct cf_param {
    char name[CF_PARAM_NAME_MAX]; /* of the Hugging Face tensor */
    uint32_t n_dims;
    uint64_t dims[2];
    size_t n;            /* elements */
    size_t offset;       /* elements, into every flat array */
    uint32_t stage;      /* pipeline stage that owns it */
    cf_dtype file_dtype; /* as the model folder had it */
} cf_param;

/* One linear layer: its weight and where its gradients go. */
typedef struct cf_linear {
    cf_weight weight;
    void *d_weight; /* acc */
    void *d_bias;   /* acc or NULL */
} cf_linear;

/* A norm's weight and its gradient, acc; NULL when the model has none. */
typedef struct cf_scale {
    const void *weight;
    void *d_weight;
} cf_scale;

typedef struct cf_layer {
    cf_scale attention_norm;
    cf_linear qkv;
    cf_scale q_norm;
    cf_scale k_norm;
    cf_linear o;
    cf_scale mlp_norm;
    cf_linear gate_up;
    cf_linear down;
} cf_layer;

typedef struct cf_model {
    cf_model_config config;
    const cf_kernels *kernels; /* borrowed */
    cf_param *params;          /* owned */
    size_t n_params;
    size_t n_elements; /* of a flat array, padding included */
    size_t n_norm_partials;

    void *masters;   /* acc, flat */
    void *gradients; /* acc, flat; NULL in evaluation */
    void *moment1;   /* acc, flat; NULL unless training */
    void *moment2;
    void *d_head; /* acc, the head's own accumulator; NULL unless tied */
    double *norm_partials;

    const void *embedding;
    void *d_embedding;
    cf_layer *layers; /* owned, config.n_layers */
    cf_scale final_norm;
    cf_linear head;

    double *inv_freq; /* owned, head_dim / 2 */
    double rope_factor;
} cf_model;

/* What of the flat arrays a command needs. */
typedef enum cf_model_use {
    CF_MODEL_EVAL,      /* masters */
    CF_MODEL_GRADIENTS, /* and gradients */
    CF_MODEL_TRAIN      /* and Adam's moments */
} cf_model_use;

/* Read the config and build the parameter table; no weights yet.  Errors,
 * logged: CF_MALFORMED, CF_NO_MEMORY. */
CF_MUST_USE cf_status cf_model_open(const char *folder,
                                    const cf_kernels *kernels, cf_model *model);
void cf_model_close(cf_model *model);

/* Place the flat arrays.  Called on a dry arena, then on the real one. */
void cf_model_carve(cf_model *model, cf_model_use use, cf_arena *arena);

/* Read all weights of the folder into the masters and pack them.  Errors,
 * logged, naming file and tensor: CF_MALFORMED. */
CF_MUST_USE cf_status cf_model_load(cf_model *model, const char *folder);

/* Tell the backend that the masters have changed. */
void cf_model_pack(cf_model *model);

void cf_model_zero_gradients(cf_model *model);

/* Add the head's accumulator of a tied weight to the embedding's. */
void cf_model_finish_gradients(cf_model *model);

/* The global L2 norm of the gradients: double partials over fixed blocks inside
 * a tensor, combined in table order. */
double cf_model_gradient_norm(cf_model *model);

/* Name of the first parameter, in table order, whose gradient holds a NaN or an
 * Inf; NULL when there is none. */
const char *cf_model_first_bad_gradient(const cf_model *model);

#endif
