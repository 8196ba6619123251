/* model_part.h - a small model, as one rank of a grid has it.
 *
 * Its numbers follow from the tensor and the place in it alone, so that ranks
 * can be held against each other.  Every function fails the test when something
 * under it fails.
 */
#ifndef CF_TEST_MODEL_PART_H
#define CF_TEST_MODEL_PART_H

#include "src/model.h"

enum {
    MODEL_PART_LAYERS = 4
};

/* The flat arrays of a model. */
typedef enum model_array {
    ARRAY_MASTERS,
    ARRAY_GRADIENTS,
    ARRAY_MOMENT1,
    ARRAY_MOMENT2,
    N_ARRAYS
} model_array;

typedef struct model_grid {
    uint32_t n_stages;
    uint32_t n_replicas;
} model_grid;

typedef struct model_part {
    cf_kernels kernels;
    cf_model model;
    cf_arena arena;
} model_part;

/* The config.json of a model with tensors of several blocks of the norm, into a
 * folder. */
void model_part_write_config(const char *folder, bool is_tied);

/* The part of rank = replica * n_stages + stage, all arrays zero.  freeze: a list
 * as --freeze has it, or NULL. */
void model_part_open(model_part *part, const char *folder, cf_compute compute,
                     const char *freeze, model_grid grid, uint32_t rank);
void model_part_close(model_part *part);

/* Fill what the rank has of the arrays; gradients and moments of its shard. */
void model_part_fill(model_part *part);

/* Whether what it has of an array is what fill writes. */
bool model_part_is_filled(const model_part *part, model_array array);

/* What this rank has of a tensor in an array: where it is, and in *extent_p of
 * which elements; NULL: nothing. */
void *model_part_at(const model_part *part, model_array array,
                    const cf_param *p, cf_extent *extent_p);

#endif
