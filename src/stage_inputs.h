/* stage_inputs.h - what came from the stage before, kept for a recompute.
 *
 * A dropped chunk is recomputed on the spot, from the same input: so its stage
 * keeps that input from the forward to the recompute.  The first stage has none,
 * it embeds again.
 */
#ifndef CF_STAGE_INPUTS_H
#define CF_STAGE_INPUTS_H

#include "kernels/kernels.h"
#include "src/arena.h"
#include "src/pool.h"

typedef struct cf_stage_inputs {
    cf_pool pool;
    void *streams;       /* acc [n_inputs] of [chunk_tok, hidden] */
    uint32_t *chunks;    /* [n_inputs]: whose they are */
    size_t stream_bytes; /* of one, to where the next begins */
} cf_stage_inputs;

/* Room for n_inputs streams of at most `bytes` each. */
void cf_stage_inputs_carve(cf_stage_inputs *inputs, uint32_t n_inputs,
                           size_t bytes, cf_arena *arena);

/* Room for the input of a chunk.  CF_NO_SPACE: there are more than the schedule
 * was checked for. */
CF_MUST_USE cf_status cf_stage_inputs_keep(cf_stage_inputs *inputs,
                                           uint32_t chunk, void **stream_p);

/* The input of a chunk, NULL when it has none here; release takes it away. */
void *cf_stage_inputs_find(const cf_stage_inputs *inputs, uint32_t chunk);
void cf_stage_inputs_release(cf_stage_inputs *inputs, uint32_t chunk);

/* Bytes of n of them. */
size_t cf_stage_inputs_bytes(const cf_stage_inputs *inputs, uint32_t n);

#endif
