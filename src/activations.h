/* activations.h - where the activations of a chunk live: kept or scratch.
 *
 * A retained chunk owns a slot, which holds what the recompute policy keeps of
 * every layer.  Everything else is one set of scratch buffers that all chunks
 * and layers share, one after the other.
 *
 *   policy      kept per layer
 *   none        all of cf_layer_acts
 *   selective   x, q (qkv where there are q/k norms), o, lse, x2, gate_up
 *   layer       x, o, lse
 *
 * Layers below the first one that has a backward keep nothing: they run in
 * scratch whether or not their chunk is retained.  The stream out of the last
 * layer is kept where the head reads it, and else is on its way to the next stage
 * before another op runs.
 */
#ifndef CF_ACTIVATIONS_H
#define CF_ACTIVATIONS_H

#include "src/layer.h"
#include "src/options.h"
#include "src/pool.h"

typedef struct cf_slot {
    cf_layer_acts *layers; /* arena: kept pointers; NULL = scratch; from the
                            * first layer that has a backward on */
    void *x_out;           /* acc [n_tok, hidden]: out of the last layer of the
                            * model; NULL on another stage */
    uint32_t chunk;        /* whose activations these are */
} cf_slot;

typedef struct cf_activations {
    const cf_model_config *config; /* borrowed */
    cf_recompute policy;
    cf_stage stage;
    uint32_t first_kept_layer; /* stage.end_layer: none is */
    cf_pool pool;              /* of slots */
    cf_slot *slots;
    cf_layer_acts scratch;
    void *x_alternate; /* with scratch.x, the stream where it is not kept */
    size_t slot_bytes;
} cf_activations;

/* How many of the layers of the model's stage have a backward: the top ones. */
uint32_t cf_n_backward_layers(const cf_model *model);

/* Bytes a token of what a policy keeps of a layer, and of all of a layer. */
size_t cf_activations_kept_bytes(const cf_model *model, cf_recompute policy);
size_t cf_activations_layer_bytes(const cf_model *model);

/* For the layers that the model's stage has; n_slots may be 0 in evaluation. */
void cf_activations_carve(cf_activations *acts, const cf_model *model,
                          cf_recompute policy, uint32_t n_slots,
                          uint32_t chunk_tok, cf_arena *arena);

/* A slot for a chunk.  The schedule was checked against their number. */
CF_MUST_USE cf_status cf_activations_keep(cf_activations *acts, uint32_t chunk,
                                          cf_slot **slot_p);
/* The slot of a chunk that has one. */
cf_slot *cf_activations_find(cf_activations *acts, uint32_t chunk);
void cf_activations_release(cf_activations *acts, cf_slot *slot);

/* Where layer `layer` reads and writes; slot NULL for a dropped forward.
 * x_next_p is where the stream out of the layer goes. */
cf_layer_acts cf_activations_of(const cf_activations *acts, const cf_slot *slot,
                                uint32_t layer, void **x_next_p);

/* What a backward of a kept chunk has to compute again. */
cf_layer_missing cf_activations_missing(const cf_activations *acts);

#endif
