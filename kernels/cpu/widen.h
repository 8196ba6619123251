/* widen.h - what the library's GEMM reads and writes: rows of acc.
 *
 * Where act is acc, activations are their own widened copy, and nothing here
 * touches memory.  In bf16 a tile of their rows is widened into room that the
 * caller brings, once for all GEMMs that read it, and results are rounded once on
 * their way out.  Weights need neither: GEMMs read the masters.
 *
 * (1) So one source serves all types: an op walks tiles of CF_TILE_ROWS rows.
 *     Where act is acc there is one tile, and the library gets the op in one
 *     call.
 * (2) A tile has so many rows that widening it, and reading and writing dw once
 *     a tile, cost a few per cent of its GEMMs.
 */
#ifndef CF_CPU_WIDEN_H
#define CF_CPU_WIDEN_H

#include "kernels/cpu/loops.h"

#if CF_ACT_BF16
#define CF_TILE_ROWS ((size_t)512)
#else /* what an int holds, as a round number */
#define CF_TILE_ROWS ((size_t)1 << 30)
#endif

/* Elements of room for n of act. */
static inline size_t room_for(size_t n)
{
    return CF_ACT_BF16 ? n : 0;
}

/* The values of x. */
static inline const acc *widened(size_t n, const act *x, acc *room)
{
#if CF_ACT_BF16
#pragma omp parallel for schedule(static) if (n > CF_PARALLEL_MIN)
    for (size_t begin = 0; begin < n; begin += CF_FLAT_BLOCK) {
        size_t end = begin + smaller(n - begin, CF_FLAT_BLOCK);

        for (size_t i = begin; i < end; i += VL)
            store_acc(room + i, end - i, load_act(x + i, end - i));
    }
    return room;
#else
    (void)n, (void)room;
    return x;
#endif
}

/* Where to form what ends up in x; narrow() brings it there. */
static inline acc *wide(act *x, acc *room)
{
#if CF_ACT_BF16
    (void)x;
    return room;
#else
    (void)room;
    return x;
#endif
}

static inline void narrow(size_t n, const acc *from, act *x)
{
#if CF_ACT_BF16
#pragma omp parallel for schedule(static) if (n > CF_PARALLEL_MIN)
    for (size_t begin = 0; begin < n; begin += CF_FLAT_BLOCK) {
        size_t end = begin + smaller(n - begin, CF_FLAT_BLOCK);

        for (size_t i = begin; i < end; i += VL)
            store_act(x + i, end - i, load_acc(from + i, end - i));
    }
#else
    (void)n, (void)from, (void)x;
#endif
}

#endif
