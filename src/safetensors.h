/* safetensors.h - tensors in files, mapped to be read, streamed to be written.
 *
 * The reader trusts nothing: header length, offsets, shapes and types are
 * checked against the file before a tensor is handed out.
 */
#ifndef CF_SAFETENSORS_H
#define CF_SAFETENSORS_H

#include <chunkflow/base.h>

#include "kernels/kernels.h"
#include "src/comm.h"

typedef enum cf_dtype {
    CF_DTYPE_F64,
    CF_DTYPE_F32,
    CF_DTYPE_F16,
    CF_DTYPE_BF16
} cf_dtype;

enum {
    CF_TENSOR_DIMS_MAX = 4
};

typedef struct cf_tensor {
    const char *name; /* borrowed from the file */
    const char *path; /* of the file it is in, for messages */
    cf_dtype dtype;
    uint32_t n_dims;
    uint64_t dims[CF_TENSOR_DIMS_MAX];
    uint64_t n;       /* elements: the product of the dims */
    uint64_t offset;  /* bytes, of the data in the file */
    const void *data; /* mapped; not aligned */
} cf_tensor;

typedef struct cf_tensors cf_tensors;

/* Open the weights of a model folder: model.safetensors, or the shards that
 * model.safetensors.index.json names.  Errors, logged: CF_MALFORMED. */
CF_MUST_USE cf_status cf_tensors_open_folder(const char *folder,
                                             cf_tensors **tensors_p);

/* Open one file.  Errors, logged: CF_MALFORMED. */
CF_MUST_USE cf_status cf_tensors_open_file(const char *path,
                                           cf_tensors **tensors_p);

void cf_tensors_close(cf_tensors *tensors);

/* In ascending order of names. */
size_t cf_tensors_count(const cf_tensors *tensors);
const cf_tensor *cf_tensors_at(const cf_tensors *tensors, size_t index);

/* NULL when there is none of that name. */
const cf_tensor *cf_tensors_find(const cf_tensors *tensors, const char *name);

/* Elements first .. first + n - 1 of a tensor as float or double (acc of the
 * compute type), converted exactly where the types allow.  Several threads. */
void cf_tensor_read(const cf_tensor *tensor, uint64_t first, size_t n,
                    cf_compute compute, void *dst);

/* The kernel may drop the file's pages of this tensor: it has been read. */
void cf_tensor_release(const cf_tensor *tensor);

/* ---- writing ---- */

/* A tensor to be written: its values are acc elements of the compute type.  Of
 * several ranks, one has them. */
typedef struct cf_tensor_source {
    const char *name;
    cf_dtype dtype; /* in the file; rounded to nearest even */
    uint32_t n_dims;
    uint64_t dims[CF_TENSOR_DIMS_MAX];
    const void *data; /* NULL: another rank writes it */
} cf_tensor_source;

/* What stands in front of the data of a file with these tensors, header and its
 * length; free() it.  The data follow in the order of the sources when all have
 * elements of one size.  Errors, not logged: CF_NO_MEMORY. */
CF_MUST_USE cf_status cf_tensors_head_format(const cf_tensor_source *sources,
                                             size_t n_sources, char **head_p,
                                             size_t *n_head_p,
                                             uint64_t *data_bytes_p);

/* Write one file, all ranks together, each the tensors that it has.  Synced,
 * under its final name only when complete (a temporary name beside it, then a
 * rename).  Errors, logged, and the same on all ranks: CF_IO, CF_COMM,
 * CF_OVERFLOW (a value is too large for its type, or not finite). */
CF_MUST_USE cf_status cf_tensors_write(cf_comm *comm, const char *path,
                                       cf_compute compute,
                                       const cf_tensor_source *sources,
                                       size_t n_sources);

#endif
