/* arrays.h - arrays of a backend's element types, for tests of kernels.
 *
 * All come from one pool, emptied by arrays_close(); each has exactly its size,
 * so that a read or write past its end is seen by the sanitizers.  act and acc
 * are one type on the backends tested here.
 */
#ifndef ARRAYS_H
#define ARRAYS_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"

/* The backend for a type; the test fails when there is none. */
cf_kernels kernels_of(cf_compute compute);

/* Frees every array; a teardown fixture. */
void arrays_close(void);

void *array_bytes(
    size_t bytes); /* aligned to 64 bytes, filled with 0xff: NaN */
double *array_double(size_t n);
uint32_t *array_u32(size_t n);

/* n elements of NaN, for an op to overwrite. */
void *array_out(const cf_kernels *k, size_t n);
/* The values of x. */
void *array_of(const cf_kernels *k, size_t n, const double *x);
/* The values of a backend's array. */
double *values_of(const cf_kernels *k, size_t n, const void *x);
double *copy_of(size_t n, const double *x);

/* [-limit, limit), rounded to fp32, so that every type holds it exactly. */
double *random_values(uint64_t *state, size_t n, double limit);
/* [0, limit). */
uint32_t random_below(uint64_t *state, uint32_t limit);

/* f32 or f64, by the type of k. */
double bound_of(const cf_kernels *k, double f32, double f64);

#endif
