/* close.h - arrays of results against arrays of a reference. */
#ifndef CLOSE_H
#define CLOSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Whether every |got - want| is at most bound times the largest finite |want|.
 * A NaN is close to a NaN, an Inf to the same Inf, and to nothing else.  When
 * they are not close, prints the name, the worst entry and the seed. */
bool close_arrays(const char *name, size_t n, const double *got,
                  const double *want, double bound, uint64_t seed);

/* d[i] = d loss(context) / d x[i], by a central difference of fourth order; x
 * is what loss reads, and is restored. */
void finite_difference(double (*loss)(const void *context), const void *context,
                       size_t n, double *x, double *d);

#endif
