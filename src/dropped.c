/* dropped.c - see dropped.h. */
#include "src/dropped.h"

#include <assert.h>

static size_t aligned(size_t bytes)
{
    return (bytes + CF_ARENA_ALIGN - 1) / CF_ARENA_ALIGN * CF_ARENA_ALIGN;
}

static size_t attention_bytes(const cf_dropped_size *size)
{
    return (size->o + size->lse) * size->n_layers;
}

void cf_dropped_carve(cf_dropped *dropped, uint32_t n_chunks,
                      const cf_dropped_size *size, cf_arena *arena)
{
    *dropped = (cf_dropped){.size = {.stream = aligned(size->stream),
                                     .o = aligned(size->o),
                                     .lse = aligned(size->lse),
                                     .n_layers = size->n_layers}};
    if (n_chunks == 0 || cf_dropped_bytes(dropped, 1) == 0)
        return;
    cf_pool_carve(arena, n_chunks, &dropped->pool);
    dropped->chunks = cf_arena_take(arena, CF_LIFETIME_RUN, "bookkeeping",
                                    n_chunks, sizeof(*dropped->chunks));
    if (dropped->size.stream > 0)
        dropped->streams =
            cf_arena_take(arena, CF_LIFETIME_CHUNK, "inputs of dropped chunks",
                          n_chunks, dropped->size.stream);
    if (dropped->size.o > 0)
        dropped->attention = cf_arena_take(
            arena, CF_LIFETIME_CHUNK, "attention of dropped chunks", n_chunks,
            attention_bytes(&dropped->size));
}

cf_status cf_dropped_keep(cf_dropped *dropped, uint32_t chunk,
                          uint32_t *place_p)
{
    cf_status status;

    *place_p = CF_DROPPED_NOWHERE;
    if (cf_dropped_bytes(dropped, 1) == 0)
        return CF_OK;
    status = cf_pool_take(&dropped->pool, 1, place_p);
    if (status == CF_OK)
        dropped->chunks[*place_p] = chunk;
    return status;
}

uint32_t cf_dropped_find(const cf_dropped *dropped, uint32_t chunk)
{
    for (uint32_t i = 0; i < dropped->pool.n_blocks; i++)
        if (dropped->pool.taken[i] && dropped->chunks[i] == chunk)
            return i;
    return CF_DROPPED_NOWHERE;
}

void cf_dropped_release(cf_dropped *dropped, uint32_t place)
{
    if (place != CF_DROPPED_NOWHERE)
        cf_pool_release(&dropped->pool, place, 1);
}

void *cf_dropped_stream(const cf_dropped *dropped, uint32_t place)
{
    if (place == CF_DROPPED_NOWHERE || dropped->size.stream == 0)
        return NULL;
    return cf_at(dropped->streams, place * dropped->size.stream);
}

void *cf_dropped_o(const cf_dropped *dropped, uint32_t place, uint32_t layer)
{
    const cf_dropped_size *size = &dropped->size;

    assert(layer < size->n_layers);
    if (place == CF_DROPPED_NOWHERE || size->o == 0)
        return NULL;
    return cf_at(dropped->attention,
                 place * attention_bytes(size) + layer * (size->o + size->lse));
}

void *cf_dropped_lse(const cf_dropped *dropped, uint32_t place, uint32_t layer)
{
    void *o = cf_dropped_o(dropped, place, layer);

    return o == NULL ? NULL : cf_at(o, dropped->size.o);
}

size_t cf_dropped_bytes(const cf_dropped *dropped, uint32_t n)
{
    return (dropped->size.stream + attention_bytes(&dropped->size)) * n;
}
