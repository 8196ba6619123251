/* adapter.h - LoRA (Hu et al. 2021): a low-rank adapter beside frozen weights.
 *
 * (1) Its tensors stand in the parameter table behind those of the model folder,
 *     under the names that PEFT gives them; they alone are trained, and a
 *     training state holds them alone.
 * (2) q, k, v are one GEMM here, and so are gate and up.  So the A of a group's
 *     targets lie behind one another, [n_rank, n_in]: one GEMM.  Their B are
 *     tensors of their own, and for the GEMMs a copy of them, times the scale, is
 *     laid out as [n_out, n_rank], block by block: one GEMM again, over a few
 *     zeros.  That copy follows the masters as packed weights do (cf_model_pack).
 * (3) A new adapter depends on the seed and on the names of its tensors alone:
 *     stages and replicas begin with the same bits.
 */
#ifndef CF_ADAPTER_H
#define CF_ADAPTER_H

#include "src/model.h"

enum {
    CF_ADAPTER_TARGETS = 7,
    CF_ADAPTER_ALL_TARGETS = (1 << CF_ADAPTER_TARGETS) - 1,
    CF_ADAPTER_RANK_MAX = 1 << 16
};

/* As PEFT and --lora-targets name the linear layers. */
extern const char *const cf_adapter_target_names[CF_ADAPTER_TARGETS];

static inline bool cf_model_has_adapter(const cf_model *model)
{
    return model->adapter.rank > 0;
}

/* Append the tensors of an adapter to a model's table and freeze all others;
 * before a stage is taken.  Errors, logged: CF_NO_MEMORY. */
CF_MUST_USE cf_status cf_model_adapt(cf_model *model,
                                     const cf_adapter_spec *spec);

/* As PEFT begins: A Kaiming-uniform with a = sqrt(5), which is uniform within
 * 1 / sqrt(n_in), and B zero. */
void cf_adapter_init(cf_model *model, uint64_t seed);

/* Read what this rank holds of the adapter in a folder of PEFT's into the masters
 * and pack them; names, shapes and types are checked of all (model_load.c).
 * Errors, logged, naming file and tensor: CF_MALFORMED. */
CF_MUST_USE cf_status cf_adapter_load(cf_model *model, const char *folder);

/* Add the adapter to the weights that it stands beside: they are no longer those
 * of the model folder.  Errors, logged: CF_NO_MEMORY, CF_INVALID (no kernels for
 * the type of the masters). */
CF_MUST_USE cf_status cf_adapter_merge(cf_model *model);

/* The most of n_rank, of n_in, of n_out, and of n_out * n_rank, over the groups
 * of a layer that have a target. */
size_t cf_adapter_rank_max(const cf_model *model);
size_t cf_adapter_input_max(const cf_model *model);
size_t cf_adapter_output_max(const cf_model *model);
size_t cf_adapter_blocks_max(const cf_model *model);

/* d_b of a part += scale times its block of acc [n_out, n_rank]. */
void cf_adapter_part_add(const cf_kernels *k, const cf_adapter *adapter,
                         size_t index, const void *blocks);

/* ---- for model.c: they do nothing without an adapter ---- */

/* Set the views of a layer, whose others are set; views of what the GEMMs want
 * stay empty until they are carved. */
void cf_adapter_views_set(cf_model *model, uint32_t layer);
void cf_adapter_carve(cf_model *model, cf_arena *arena);
void cf_adapter_pack(cf_model *model);

#endif
