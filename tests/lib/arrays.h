/* arrays.h - arrays of a backend's element types, for tests of kernels.
 *
 * All come from one pool, emptied by arrays_close(); each has exactly its size,
 * so that a read or write past its end is seen by the sanitizers.
 */
#ifndef ARRAYS_H
#define ARRAYS_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"

/* The backend for a type, with OpenBLAS for its matrix products (those of oneDNN,
 * which round weights, are check_onednn.c's); the test fails when there is none. */
cf_kernels kernels_of(cf_compute compute);

/* Frees every array; a teardown fixture. */
void arrays_close(void);

void *array_bytes(
    size_t bytes); /* aligned to 64 bytes, filled with 0xff: NaN */
double *array_double(size_t n);
uint32_t *array_u32(size_t n);

/* n elements of NaN, of acc or act, for an op to overwrite. */
void *array_out(const cf_kernels *k, size_t n);
void *act_out(const cf_kernels *k, size_t n);
/* The values of x. */
void *array_of(const cf_kernels *k, size_t n, const double *x);
void *act_of(const cf_kernels *k, size_t n, const double *x);
/* The values of a backend's array. */
double *values_of(const cf_kernels *k, size_t n, const void *x);
double *act_values_of(const cf_kernels *k, size_t n, const void *x);
/* One element of act. */
double act_get(const cf_kernels *k, const void *x, size_t i);
void act_put(const cf_kernels *k, void *x, size_t i, double value);

/* The nearest bf16, ties to even. */
double nearest_bf16(double x);

/* A weight [n_out, n_in] of these values, packed; bias may be NULL. */
cf_weight weight_of(const cf_kernels *k, size_t n_out, size_t n_in,
                    const double *master, const double *bias);

double *copy_of(size_t n, const double *x);

/* [-limit, limit), rounded to fp32, so that every acc holds it exactly. */
double *random_values(uint64_t *state, size_t n, double limit);
/* [-limit, limit], so that act of k holds it exactly. */
double *random_acts(const cf_kernels *k, uint64_t *state, size_t n,
                    double limit);
/* [0, limit). */
uint32_t random_below(uint64_t *state, uint32_t limit);

/* f32 or f64, by acc of k. */
double bound_of(const cf_kernels *k, double f32, double f64);
/* For what was rounded to act at the end. */
double act_bound_of(const cf_kernels *k, double f32, double f64);

#endif
