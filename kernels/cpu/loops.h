/* loops.h - what the row and element loops of this folder share.
 *
 * (1) A loop runs over i in steps of VL and passes the elements that are left;
 *     the last vector is short, its other lanes are zero.  So no loop has a
 *     second, scalar half, and an element gets the same arithmetic wherever a
 *     thread's range ends.
 * (2) act is loaded and stored here and nowhere else in such loops.
 * (3) Rows, blocks or columns are dealt to the threads in fixed contiguous
 *     ranges (schedule(static), thread_range()); sums over rows go by blocks of a fixed number of
 *     rows, so that no sum depends on the number of threads.
 */
#ifndef CF_CPU_LOOPS_H
#define CF_CPU_LOOPS_H

#include <omp.h>

#include "kernels/cpu/cpu_ops.h"

/* An op that touches fewer elements than this runs on the calling thread. */
#define CF_PARALLEL_MIN ((size_t)16384)

/* Elements in one block of an op over a flat array. */
#define CF_FLAT_BLOCK ((size_t)4096)

/* Rows that are summed into one partial of a weight gradient. */
#define CF_SUM_ROWS ((size_t)32)

static inline size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* How many blocks of `size` hold n. */
static inline size_t n_blocks(size_t n, size_t size)
{
    return n / size + (n % size != 0);
}

typedef struct range {
    size_t begin, end;
} range;

/* The calling thread's share of n items, inside a parallel region. */
static inline range thread_range(size_t n)
{
    size_t n_threads = (size_t)omp_get_num_threads();
    size_t thread = (size_t)omp_get_thread_num();
    size_t share = n / n_threads;
    size_t rest = n % n_threads;
    size_t begin = thread * share + smaller(thread, rest);

    return (range){begin, begin + share + (thread < rest)};
}

/* Elements that are left (see (1)); lanes past them are 0. */
CF_INLINE vec load_acc(const acc *p, size_t left)
{
    if (left >= VL)
        return vec_load(p);

    vec x = {0};

    memcpy(&x, p, left * sizeof(*p));
    return x;
}

CF_INLINE void store_acc(acc *p, size_t left, vec x)
{
    if (left >= VL)
        vec_store(p, x);
    else
        memcpy(p, &x, left * sizeof(*p));
}

CF_INLINE vec load_act(const act *p, size_t left)
{
    if (left >= VL)
        return act_load(p);

    act x[VL] = {0};

    for (size_t i = 0; i < left; i++)
        x[i] = p[i];
    return act_load(x);
}

CF_INLINE void store_act(act *p, size_t left, vec x)
{
    if (left >= VL) {
        act_store(p, x);
        return;
    }

    act lane[VL];

    act_store(lane, x);
    for (size_t i = 0; i < left; i++)
        p[i] = lane[i];
}

/* Lanes at or after `left` become value. */
CF_INLINE vec pad(vec x, size_t left, acc value)
{
    acc lane[VL];

    if (left >= VL)
        return x;
    vec_store(lane, x);
    for (size_t i = left; i < VL; i++)
        lane[i] = value;
    return vec_load(lane);
}

#endif
