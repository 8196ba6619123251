/* order.h - which sequence comes when: a function of (seed, epoch, index) alone.
 *
 * A keyed permutation is evaluated point by point, so nothing has to be stored
 * or saved, and any rank can name the sequences of any step.
 */
#ifndef CF_ORDER_H
#define CF_ORDER_H

#include <chunkflow/base.h>

/* The sequence at place `index` of an epoch of n sequences, a permutation of
 * 0 .. n - 1 for every (seed, epoch).  n >= 1, index < n. */
uint64_t cf_order_shuffled(uint64_t seed, uint64_t epoch, uint64_t n,
                           uint64_t index);

#endif
