/* convert.h - between the types of files and the types of computation.
 *
 * Every conversion is exact where the target can hold the value and rounds to
 * the nearest, ties to even, in a single step where it cannot.  Arrays of the
 * file side need no alignment.  Several threads for large n.
 */
#ifndef CF_CONVERT_H
#define CF_CONVERT_H

#include <stdbool.h>

#include "src/safetensors.h"

/* Bytes of one element. */
size_t cf_dtype_bytes(cf_dtype dtype);

/* As safetensors has it: "F64", "F32", "F16", "BF16". */
const char *cf_dtype_name(cf_dtype dtype);

/* Bytes of one acc element of the compute type: that of double for fp64, of
 * float for the others. */
size_t cf_acc_bytes(cf_compute compute);

/* n elements of a file's type to acc elements. */
void cf_convert_read(cf_dtype dtype, size_t n, const void *src,
                     cf_compute compute, void *dst);

/* n acc elements to a file's type. */
void cf_convert_write(cf_compute compute, size_t n, const void *src,
                      cf_dtype dtype, void *dst);

/* Whether no element of a file is an Inf or a NaN. */
bool cf_convert_is_finite(cf_dtype dtype, size_t n, const void *src);

#endif
