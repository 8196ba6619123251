/* model.h - the parameters: one table, flat arrays behind it, typed views.
 *
 * (1) The table's order is the canonical order of everything that is summed or
 *     written over parameters.
 * (2) Masters are one flat array of all tensors.  Gradients and Adam's moments
 *     are flat arrays of the trained tensors only, with the same offsets in all
 *     of them: a frozen tensor has no place there.
 * (3) q, k, v lie behind one another, and so do gate and up: each group is one
 *     GEMM.
 * (4) A tied weight has two gradient accumulators, embedding and head, added
 *     once at the end of a step (cf_model_finish_gradients), so that a later
 *     split over pipeline stages changes no bits.
 * (5) A GEMM group's weights are trained or frozen as a whole.
 * (6) A rank of a pipeline holds the tensors of its stage alone.  The table is
 *     that of the whole model everywhere; flat arrays have places only for what
 *     is held.  Every tensor has one owner among the stages, who updates, saves
 *     and counts it.  A tied embedding is held by the first stage, its owner, and
 *     by the last.  Both have d_head: the last adds to it in a backward, the
 *     first has the place where it arrives.
 * (7) Of Adam's moments a replica has a shard: one run of the flat array of the
 *     trained tensors, cut at blocks of CF_NORM_BLOCK inside a tensor.
 * (8) Behind the tensors of the model folder the table may have those of an
 *     adapter (adapter.h).  Then nothing else is trained.
 */
#ifndef CF_MODEL_H
#define CF_MODEL_H

#include <chunkflow/base.h>

#include "kernels/kernels.h"
#include "src/arena.h"
#include "src/model_config.h"
#include "src/safetensors.h"

enum {
    CF_PARAM_NAME_MAX = 80,
    CF_PARAM_ALIGN = CF_ARENA_ALIGN / 4 /* elements, of every GEMM group */
};

/* What a tensor is part of, as bits: --freeze names them (freeze.c). */
typedef enum cf_part {
    CF_PART_EMBEDDINGS = 1 << 0,
    CF_PART_HEAD = 1 << 1, /* the embedding too, where the two are tied */
    CF_PART_NORMS = 1 << 2,
    CF_PART_ATTENTION = 1 << 3,
    CF_PART_MLP = 1 << 4,
    CF_PART_BIASES = 1 << 5
} cf_part;

/* The part of a model that one rank of a pipeline runs.  All of it: layers 0 to
 * config.n_layers, first and last. */
typedef struct cf_stage {
    uint32_t first_layer;
    uint32_t end_layer; /* one behind the last */
    bool is_first;      /* has the embedding */
    bool is_last;       /* has the final norm and the head */
} cf_stage;

typedef struct cf_param {
    char name[CF_PARAM_NAME_MAX]; /* of the Hugging Face tensor */
    uint32_t n_dims;
    uint64_t dims[2];
    size_t n;              /* elements */
    size_t offset;         /* elements, into the masters */
    unsigned parts;        /* cf_part bits */
    uint32_t layer;        /* UINT32_MAX: in none */
    bool trained;          /* false: frozen */
    bool in_state;         /* of training states; false under an adapter */
    bool held;             /* has a place among this rank's masters */
    bool owned;            /* this stage updates, saves and counts it */
    size_t trained_offset; /* elements, into the gradients; only when owned */
    size_t first_partial;  /* of the trained ones: into norm_partials */
    cf_dtype file_dtype;   /* as the model folder had it */
} cf_param;

/* A low-rank adapter of the model's linear layers: y += scale x A^T B^T, with A
 * [rank, n_in] and B [n_out, rank] of each target.  rank 0: there is none. */
typedef struct cf_adapter_spec {
    uint32_t rank;
    double alpha;     /* scale = alpha / rank */
    unsigned targets; /* bits: 1 << index into cf_adapter_target_names */
} cf_adapter_spec;

enum {
    CF_ADAPTER_PARTS_MAX = 3 /* q, k, v are one GEMM */
};

/* One target: its rows of the GEMM's output, and its B. */
typedef struct cf_adapter_part {
    size_t first_row, n_rows;
    void *weight;  /* acc [n_rows, n_in]: what it stands beside */
    const void *b; /* acc [n_rows, rank] */
    void *d_b;     /* acc; NULL without gradients */
} cf_adapter_part;

/* The adapter of one GEMM group, as its two GEMMs want it (adapter_gemms.h). */
typedef struct cf_adapter {
    size_t rank, n_rank; /* of a target, of all; n_rank 0: no adapter */
    double scale;
    cf_weight a; /* [n_rank, n_in]: A of its targets, one behind the other */
    cf_weight b; /* [n_out, n_rank]: scale B of each, in its rows and columns,
                    * and zero elsewhere */
    void *b_blocks; /* what b points to; arena */
    void *d_a;      /* acc; NULL without gradients */
    size_t n_parts;
    cf_adapter_part parts[CF_ADAPTER_PARTS_MAX];
} cf_adapter;

/* One linear layer: its weight and where its gradients go. */
typedef struct cf_linear {
    cf_weight weight;
    void *d_weight; /* acc; NULL when frozen, and d_bias too then */
    void *d_bias;   /* acc; NULL when frozen or when there is no bias */
    cf_adapter adapter;
} cf_linear;

/* A norm's weight, NULL when the model has none, and its gradient, NULL when it
 * is frozen; acc. */
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
    size_t n_folder_params; /* those of the model folder: the first ones */
    cf_adapter_spec adapter;
    cf_stage stage;
    size_t n_elements;         /* of the masters held, padding included */
    size_t n_trained_elements; /* of the gradients, likewise */
    /* Elements of the gradients that are this replica's shard; its moments
     * begin at shard_begin. */
    size_t shard_begin;
    size_t shard_end;
    uint32_t shard;         /* its index */
    size_t n_norm_partials; /* of the whole model */
    /* The lowest layer of the model that a backward has to reach: nothing below
     * it is trained.  n_layers: none has to be. */
    uint32_t first_backward_layer;

    void *masters;   /* acc, flat */
    void *gradients; /* acc, flat, trained; NULL in evaluation */
    void *moment1;   /* acc, flat, the shard; NULL unless training */
    void *moment2;
    void *d_head; /* acc, the head's own accumulator; NULL unless it is tied
                   * and trained, and on stages in the middle */
    double *norm_partials;

    /* Views, zero for what the stage does not have. */
    const void *embedding;
    void *d_embedding; /* NULL when frozen */
    cf_layer *layers;  /* owned, config.n_layers */
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

/* Read the config and build the parameter table, all trained; no weights yet.
 * Errors, logged: CF_MALFORMED, CF_NO_MEMORY. */
CF_MUST_USE cf_status cf_model_open(const char *folder,
                                    const cf_kernels *kernels, cf_model *model);
void cf_model_close(cf_model *model);

/* Freeze the tensors that a list as --freeze has it names (freeze.c); before
 * carving.  Errors, logged: CF_INVALID. */
CF_MUST_USE cf_status cf_model_freeze(cf_model *model, const char *list);

/* How a tensor of the table lies to the one before it. */
typedef enum cf_param_place {
    CF_PARAM_ALIGNED, /* starts a GEMM group or stands alone */
    CF_PARAM_BEHIND   /* directly behind it, part of its GEMM group */
} cf_param_place;

/* Append a tensor to a table with room for it; n_cols 0 makes it a vector.
 * Returns it. */
cf_param *cf_model_append_param(cf_model *model, cf_param_place place,
                                uint64_t n_rows, uint64_t n_cols,
                                const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* NULL when there is none of that name. */
const cf_param *cf_model_find_param(const cf_model *model, const char *name);

/* ---- a rank's part of the model (model_split.c) ---- */

/* Elements first .. first + n - 1 of a tensor. */
typedef struct cf_extent {
    size_t first;
    size_t n;
} cf_extent;

/* Hold the tensors of one stage only; before freezing and carving. */
void cf_model_take_stage(cf_model *model, const cf_stage *stage);

/* Keep moments for shard `index` of n only; after freezing, before carving. */
void cf_model_take_shard(cf_model *model, uint32_t index, uint32_t n);

/* Where shard `index` of n begins, in elements of the gradients; for n, where
 * the last ends.  Some are empty where there are few blocks. */
size_t cf_model_shard_at(const cf_model *model, uint32_t index, uint32_t n);

/* Give the trained tensors their offsets, in table order, and set what follows
 * from them; the shard is all again.  For whoever has changed
 * cf_param.trained. */
void cf_model_lay_out_trained(cf_model *model);

/* What this replica's shard has of a tensor; n 0: nothing. */
cf_extent cf_model_shard_of(const cf_model *model, const cf_param *p);

/* The moments of that part, which may not be empty. */
void *cf_model_moment_at(const cf_model *model, void *moment,
                         const cf_param *p);

/* ---- arrays ---- */

/* Place the flat arrays.  Called on a dry arena, then on the real one. */
void cf_model_carve(cf_model *model, cf_model_use use, cf_arena *arena);

/* Read the weights of the folder that are held into the masters and pack them;
 * names, shapes and types are checked of all.  Errors, logged, naming file and
 * tensor: CF_MALFORMED. */
CF_MUST_USE cf_status cf_model_load(cf_model *model, const char *folder);

/* A tensor inside the masters, or inside an array laid out as the gradients;
 * NULL where it has no place in it. */
void *cf_model_at(const cf_model *model, void *flat, const cf_param *p);

/* Tell the backend that the masters have changed. */
void cf_model_pack(cf_model *model);

void cf_model_zero_gradients(cf_model *model);

/* Add the head's accumulator of a tied weight to the embedding's. */
void cf_model_finish_gradients(cf_model *model);

/* The global L2 norm of the gradients is that of norm_partials, summed in table
 * order: squares in double over fixed blocks inside a tensor.  First every rank
 * writes those of its owned tensors inside its shard, and 0 for all others. */
void cf_model_norm_partials(cf_model *model);
double cf_model_norm(const cf_model *model);

/* Name of the first parameter, in table order, whose gradient holds a NaN or an
 * Inf in this rank's shard; NULL when there is none. */
const char *cf_model_first_bad_gradient(const cf_model *model);

#endif
