/* stage_inputs.c - see stage_inputs.h. */
#include "src/stage_inputs.h"

#include <assert.h>

void cf_stage_inputs_carve(cf_stage_inputs *inputs, uint32_t n_inputs,
                           size_t bytes, cf_arena *arena)
{
    *inputs =
        (cf_stage_inputs){.stream_bytes = (bytes + CF_ARENA_ALIGN - 1) /
                                          CF_ARENA_ALIGN * CF_ARENA_ALIGN};
    if (n_inputs == 0)
        return;
    cf_pool_carve(arena, n_inputs, &inputs->pool);
    inputs->chunks = cf_arena_take(arena, CF_LIFETIME_RUN, "bookkeeping",
                                   n_inputs, sizeof(*inputs->chunks));
    inputs->streams =
        cf_arena_take(arena, CF_LIFETIME_CHUNK, "inputs of dropped chunks",
                      n_inputs, inputs->stream_bytes);
}

static uint32_t index_of(const cf_stage_inputs *inputs, uint32_t chunk)
{
    uint32_t i = 0;

    while (i < inputs->pool.n_blocks &&
           !(inputs->pool.taken[i] && inputs->chunks[i] == chunk))
        i++;
    return i;
}

cf_status cf_stage_inputs_keep(cf_stage_inputs *inputs, uint32_t chunk,
                               void **stream_p)
{
    uint32_t index;
    cf_status status = cf_pool_take(&inputs->pool, 1, &index);

    if (status != CF_OK)
        return status;
    inputs->chunks[index] = chunk;
    *stream_p = cf_at(inputs->streams, index * inputs->stream_bytes);
    return CF_OK;
}

void *cf_stage_inputs_find(const cf_stage_inputs *inputs, uint32_t chunk)
{
    const uint32_t index = index_of(inputs, chunk);

    return index < inputs->pool.n_blocks
               ? cf_at(inputs->streams, index * inputs->stream_bytes)
               : NULL;
}

void cf_stage_inputs_release(cf_stage_inputs *inputs, uint32_t chunk)
{
    const uint32_t index = index_of(inputs, chunk);

    assert(index < inputs->pool.n_blocks);
    cf_pool_release(&inputs->pool, index, 1);
}

size_t cf_stage_inputs_bytes(const cf_stage_inputs *inputs, uint32_t n)
{
    return inputs->stream_bytes * n;
}
