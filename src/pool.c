/* pool.c - see pool.h. */
#include "src/pool.h"

#include <assert.h>
#include <string.h>

void cf_pool_carve(cf_arena *arena, uint32_t n_blocks, cf_pool *pool)
{
    *pool = (cf_pool){.n_blocks = n_blocks};
    pool->taken =
        cf_arena_take(arena, CF_LIFETIME_RUN, "bookkeeping", n_blocks, 1);
}

void cf_pool_begin_step(cf_pool *pool)
{
    pool->n_taken_max = pool->n_taken;
}

static void mark(cf_pool *pool, uint32_t first, uint32_t n)
{
    memset(pool->taken + first, 1, n);
    pool->n_taken += n;
    if (pool->n_taken > pool->n_taken_max)
        pool->n_taken_max = pool->n_taken;
}

cf_status cf_pool_take(cf_pool *pool, uint32_t n, uint32_t *first_p)
{
    uint32_t run = 0;

    for (uint32_t block = 0; block < pool->n_blocks; block++) {
        run = pool->taken[block] ? 0 : run + 1;
        if (run < n)
            continue;
        *first_p = block + 1 - n;
        mark(pool, *first_p, n);
        return CF_OK;
    }
    return CF_NO_SPACE;
}

cf_status cf_pool_take_at(cf_pool *pool, uint32_t first, uint32_t n)
{
    if (first > pool->n_blocks || n > pool->n_blocks - first)
        return CF_NO_SPACE;
    for (uint32_t block = first; block < first + n; block++)
        if (pool->taken[block])
            return CF_NO_SPACE;
    mark(pool, first, n);
    return CF_OK;
}

void cf_pool_release(cf_pool *pool, uint32_t first, uint32_t n)
{
    for (uint32_t block = first; block < first + n; block++) {
        assert(pool->taken[block]);
        pool->taken[block] = 0;
    }
    pool->n_taken -= n;
}
