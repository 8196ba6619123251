/* mixture.h - how an epoch draws from several --data.
 *
 * Weights are the relative numbers of sequences that an epoch takes from each
 * part of a data set: part p of n sequences in all gives n * weight_p / sum of
 * weights of them, to within one.  A part is walked in an order of its own, over
 * and over: from one round to the next and from one epoch to the next it goes on
 * where it was, so no sequence comes up twice before all others of its part have
 * come up.
 *
 * Which sequence comes at a place is a function of (seed, epoch, place) alone.
 * Without weights an epoch is every sequence once.
 */
#ifndef CF_MIXTURE_H
#define CF_MIXTURE_H

#include <chunkflow/base.h>

#include <stdbool.h>

typedef struct cf_mixture_part {
    size_t first; /* of the eligible sequences */
    size_t n;
    uint64_t n_drawn; /* in an epoch */
    uint64_t first_place;
} cf_mixture_part;

typedef struct cf_mixture {
    cf_mixture_part *parts; /* owned */
    size_t n_parts;
    uint64_t n; /* places of an epoch */
    uint64_t seed;
    bool shuffle;
} cf_mixture;

/* seed and shuffle are set, the rest zero.  n_parts parts of so many sequences draw in proportion to the weights, a
 * list such as "3,1,0.5"; NULL: every sequence once.  Errors, logged: CF_INVALID
 * (weights that are no list of n_parts positive numbers, or give a part no place
 * at all), CF_MALFORMED (a part of nothing has a weight), CF_NO_MEMORY. */
CF_MUST_USE cf_status cf_mixture_open(const size_t *part_sequences,
                                      size_t n_parts, const char *weights,
                                      cf_mixture *mixture);
void cf_mixture_close(cf_mixture *mixture);

/* The sequence at a place of an epoch, counted through all parts. */
size_t cf_mixture_at(const cf_mixture *mixture, uint64_t epoch, uint64_t place);

/* How often at most an epoch draws any one sequence of a part. */
uint64_t cf_mixture_repeats(const cf_mixture *mixture, size_t part);

#endif
