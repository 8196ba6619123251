/* checkpoint_tensors.h - a safetensors file of a training state, written by all
 * ranks together.
 *
 * Private to checkpoint*.c.  Nothing here logs: what could not be done is told
 * as static text, with errno.
 *
 * (1) Where a tensor stands in the file follows from the parameter table, and
 *     what of it a rank writes from its stage and its shard: a replica writes
 *     its own moments, and as much of the weights.
 * (2) The hash of the tensors is the sum, modulo 2^64, of the XXH64 of their
 *     pieces, each with its place in the file for a seed: sums over ranks do not
 *     show who wrote what.  A piece is a block of CF_NORM_BLOCK elements of a
 *     tensor, or what is left of it behind the last.
 */
#ifndef CF_CHECKPOINT_TENSORS_H
#define CF_CHECKPOINT_TENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "src/checkpoint_state.h"
#include "src/file_stream.h"
#include "src/model.h"

enum {
    CF_CHECKPOINT_FILES = 2 /* weights, moments */
};

/* What this rank writes of a tensor. */
typedef struct cf_checkpoint_span {
    const char *data; /* borrowed */
    size_t bytes;
    uint64_t offset; /* in the file; a piece begins there */
} cf_checkpoint_span;

typedef struct cf_checkpoint_tensors {
    const char *name;
    char *head; /* owned: what stands in front of the tensors */
    size_t n_head;
    uint64_t bytes; /* of the file */
    size_t element_bytes;
    cf_checkpoint_span *spans; /* owned */
    size_t n_spans;
    cf_file_stream stream; /* between write and sync */
} cf_checkpoint_tensors;

/* Lay out both files of a model's states.  Close frees what there is, also
 * after a failure.  Errors: CF_NO_MEMORY. */
CF_MUST_USE cf_status cf_checkpoint_tensors_open(const cf_model *model,
                                                 cf_checkpoint_tensors *files);
void cf_checkpoint_tensors_close(cf_checkpoint_tensors *files);

/* Make a file of its full size with its head, by one rank.  NULL, or what could
 * not be done. */
const char *cf_checkpoint_tensors_create(const cf_checkpoint_tensors *file,
                                         const char *path);

/* Write this rank's part into it, and add its hash to *hash_p; then have it on
 * the disk.  Sync closes it in any case. */
const char *cf_checkpoint_tensors_write(cf_checkpoint_tensors *file,
                                        const char *path, uint64_t *hash_p);
const char *cf_checkpoint_tensors_sync(cf_checkpoint_tensors *file);

/* NULL, or why a file is not what a state says of it. */
const char *cf_checkpoint_tensors_check(const char *path,
                                        const cf_checkpoint_file *said);

#endif
