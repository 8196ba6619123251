/* model_folder.h - a fine-tuned Hugging Face folder out. */
#ifndef CF_MODEL_FOLDER_H
#define CF_MODEL_FOLDER_H

#include "src/safetensors.h"

/* Write the folder `to`: the weights (model.safetensors, sharded above 5 GB,
 * with an index made from what was written), config.json of the folder `from`
 * with its dtype set to what was written and every other field kept, and the
 * tokenizer and generation files of `from` unchanged.  Loads in transformers
 * without a warning.
 *
 * All ranks call it, each with the tensors that it has (safetensors.h), and
 * write into one file system; rank 0 does the rest.
 *
 * Everything is written into a temporary folder beside `to`, synced, and
 * renamed when complete; an older `to` is replaced only then.  source dtypes are
 * final.  Errors, logged, and the same on all ranks: CF_IO (what, where, how
 * much room is missing), CF_OVERFLOW, CF_COMM, CF_NO_MEMORY. */
CF_MUST_USE cf_status cf_model_folder_write(cf_comm *comm, const char *from,
                                            const char *to, cf_compute compute,
                                            const cf_tensor_source *sources,
                                            size_t n_sources);

/* The same, with another limit for the bytes of tensors in one shard. */
CF_MUST_USE cf_status cf_model_folder_write_shards(
    cf_comm *comm, const char *from, const char *to, cf_compute compute,
    const cf_tensor_source *sources, size_t n_sources, uint64_t bytes_max);

#endif
