/* engine_chunk.h - the parts that the ops of an engine are made of: one chunk in
 * the layers of this stage and in the head.  For engine.c alone.
 *
 * Where a loss or a gradient is not finite, the message names the sequence, and
 * the first layer where it shows.
 */
#ifndef CF_ENGINE_CHUNK_H
#define CF_ENGINE_CHUNK_H

#include "src/engine.h"

/* Whether anybody reads the stream out of the last layer of the model. */
typedef enum cf_stream_out {
    CF_STREAM_OUT_DROP,
    CF_STREAM_OUT_WANTED
} cf_stream_out;

/* Show that this rank is alive: between the layers of a long op. */
void cf_engine_stay_alive(const cf_engine *engine);

/* Tokens, angles and pages of a chunk: what every op on it begins with. */
CF_MUST_USE cf_status cf_engine_chunk_begin(cf_engine *engine,
                                            const cf_chunk_plan *plan,
                                            uint32_t chunk);

/* Where the first layer of the stage reads its input; slot NULL: of a chunk that
 * is dropped. */
void *cf_engine_input_at(const cf_engine *engine, const cf_slot *slot);

/* The input of the first stage. */
void cf_engine_embed(const cf_engine *engine, size_t n_tok, void *x);

/* What the kernels of a layer need. */
cf_layer_call cf_engine_layer_call(cf_engine *engine, const cf_chunk_plan *plan,
                                   uint32_t chunk, uint32_t layer,
                                   cf_gradients gradients);

/* All layers, from the input on.  dropped is the place of the chunk in
 * engine->dropped, or NOWHERE: where attention is kept, a forward without a slot
 * writes it there, and one with a slot, the recompute, takes it from there.
 * Returns the stream out of the last layer; NULL when it was not computed. */
void *cf_engine_layers_forward(cf_engine *engine, const cf_chunk_plan *plan,
                               uint32_t chunk, const cf_slot *slot,
                               uint32_t dropped, cf_stream_out wanted);

/* The rows with a target out of the last layer, normalised, ready for the head:
 * in head.n. */
void cf_engine_head_rows(cf_engine *engine, const void *x_out);

/* The losses of a chunk, on the last stage; a backward leaves the gradient of
 * the stream in grads.dx, where a layer wants it.  Errors, logged:
 * CF_NOT_FINITE. */
CF_MUST_USE cf_status cf_engine_head_forward(cf_engine *engine,
                                             const cf_chunk_plan *plan,
                                             uint32_t chunk, const void *x_out);
CF_MUST_USE cf_status cf_engine_head_backward(cf_engine *engine,
                                              const cf_chunk_plan *plan,
                                              uint32_t chunk,
                                              const cf_slot *slot);

/* Whether the gradient that a layer left is finite.  Errors, logged:
 * CF_NOT_FINITE. */
CF_MUST_USE cf_status cf_engine_gradient_check(const cf_engine *engine,
                                               const cf_chunk_plan *plan,
                                               uint32_t chunk, uint32_t layer);

#endif
