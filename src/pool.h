/* pool.h - blocks that come and go inside a step, out of memory carved whole.
 *
 * Blocks are taken as runs of adjacent ones, lowest place first or where the
 * owner says, so that equal orders of takes and releases give equal places.  The pool counts its high
 * water; it neither knows nor touches the memory behind the indices.
 */
#ifndef CF_POOL_H
#define CF_POOL_H

#include <chunkflow/base.h>

#include "src/arena.h"

typedef struct cf_pool {
    uint8_t *taken; /* arena: one flag a block */
    uint32_t n_blocks;
    uint32_t n_taken;
    uint32_t n_taken_max; /* since cf_pool_begin_step */
} cf_pool;

/* Carve the bookkeeping for n_blocks. */
void cf_pool_carve(cf_arena *arena, uint32_t n_blocks, cf_pool *pool);

void cf_pool_begin_step(cf_pool *pool);

/* First of n adjacent free blocks.  The schedule was checked against the
 * capacity, so there is always room: anything else is CF_NO_SPACE. */
CF_MUST_USE cf_status cf_pool_take(cf_pool *pool, uint32_t n,
                                   uint32_t *first_p);

/* These n blocks, for an owner who knows which are free: CF_NO_SPACE, and none
 * is taken, when one is not. */
CF_MUST_USE cf_status cf_pool_take_at(cf_pool *pool, uint32_t first,
                                      uint32_t n);
void cf_pool_release(cf_pool *pool, uint32_t first, uint32_t n);

#endif
