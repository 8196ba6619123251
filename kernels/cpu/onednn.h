/* onednn.h - matrix products by oneDNN: in bf16, where the processor has AMX.
 *
 * onednn.c owns the library, behind either of its APIs 2 and 3, and is compiled
 * once, like onednn_rows.c; onednn_none.c stands in for it in a build without.
 * The types are also those of fp32, which nothing but the tests asks for: they
 * run where no processor has AMX.
 *
 * (1) The library is loaded when a backend first asks for it, so that a program
 *     runs without it.  It then stays, with the primitives it has made, to the
 *     end of the process; calls from several threads take turns.
 * (2) A primitive belongs to one shape, with strides, and one number of threads.
 *     Making one takes a millisecond, so callers ask for few shapes
 *     (onednn_rows.c), and the last N_PRIMITIVES of them are kept.
 * (3) The layout of a packed matrix is settled when it is first asked for, by
 *     type and shape alone.  A product that cannot read that layout is not
 *     there; none ever reads another one.
 * (4) Sums are fp32, also those that are added to c, which is rounded once.  A
 *     product has the same bits from call to call.  It may have others with
 *     another number of threads, and a row others beside more rows or fewer.
 */
#ifndef CF_CPU_ONEDNN_H
#define CF_CPU_ONEDNN_H

#include <stdbool.h>
#include <stddef.h>

#include <chunkflow/base.h>

typedef enum cf_gemm_type {
    CF_GEMM_FP32,
    CF_GEMM_BF16
} cf_gemm_type;

/* c [m, n] = a [m, k] b [k, n], or +=; all of them at least 1.  Strides are in
 * elements; element (i, l) of a is at i a_row + l a_col. */
typedef struct cf_product {
    size_t m, n, k;
    size_t a_row, a_col; /* one of the two is 1, of b likewise */
    size_t b_row, b_col; /* of what was packed, for a packed b */
    size_t c_row;
    cf_gemm_type in; /* a and b */
    cf_gemm_type out;
    bool packed; /* b is what cf_onednn_pack made */
    bool bias;   /* + bias fp32 [n], in every row */
    bool add;
} cf_product;

typedef struct cf_onednn cf_onednn;

/* The library, for products of this type on this processor; NULL where it has
 * none that are worth it, *why_p then says why (static text). */
cf_onednn *cf_onednn_open(cf_gemm_type type, const char **why_p);

/* CF_OK, or the first failure since the last call. */
cf_status cf_onednn_status(cf_onednn *library);

/* Bytes of b [k, n] once packed for products of this type, up to a multiple of
 * 64; 0 when it cannot be. */
size_t cf_onednn_packed_bytes(cf_onednn *library, cf_gemm_type type, size_t k,
                              size_t n, size_t b_row, size_t b_col);

/* From fp32 values.  packed is aligned to 64 bytes. */
void cf_onednn_pack(cf_onednn *library, cf_gemm_type type, size_t k, size_t n,
                    size_t b_row, size_t b_col, const void *b, void *packed);

/* Whether the library has this product. */
bool cf_onednn_has(cf_onednn *library, const cf_product *product);

/* Only what it has.  bias is read where the product says so. */
void cf_onednn_multiply(cf_onednn *library, const cf_product *product,
                        const void *a, const void *b, const void *bias,
                        void *c);

/* ---- any number of rows (onednn_rows.c) ---- */

/* Rows go by whole blocks, and the rest up to a step, filled with zeros. */
#define CF_ROWS_BLOCK ((size_t)512)
#define CF_ROWS_STEP  ((size_t)64)

/* Rows of room for the rest of at most n_rows. */
size_t cf_onednn_rest_rows(size_t n_rows);

/* The product for n_rows rows of a and c, which are dense; its m counts for
 * nothing.  room is cf_onednn_rest_rows of a and of c.  Returns whether it was
 * done; if not, nothing was. */
bool cf_onednn_rows_multiply(cf_onednn *library, const cf_product *product,
                             size_t n_rows, const void *a, const void *b,
                             const void *bias, void *c, void *room);

/* c fp32 [m, n] += a' b for a [n_rows, m] and b [n_rows, n] of this type, dense;
 * room and return value as above. */
bool cf_onednn_rows_gradient(cf_onednn *library, cf_gemm_type type,
                             size_t n_rows, size_t m, size_t n, const void *a,
                             const void *b, void *c, void *room);

#endif
