/* rehearsal_bytes.h - the peaks of a rehearsal in bytes, for a model. */
#ifndef CF_REHEARSAL_BYTES_H
#define CF_REHEARSAL_BYTES_H

#include "src/options.h"
#include "src/rehearsal.h"

typedef struct cf_stage_bytes {
    uint32_t first_layer; /* the stage has these of the model's */
    uint32_t end_layer;
    uint64_t kept;  /* of activations: slots of a whole chunk, as train has */
    uint64_t kv;    /* of KV state and its gradients, without unused room */
    uint64_t input; /* of stage inputs, likewise */
} cf_stage_bytes;

/* Fill bytes, [n_stages], with the peaks of each stage of options->model, split
 * as --layers-per-stage or the cost of this batch has it.  Only the config of the
 * model is read.  Errors, logged: CF_INVALID, CF_MALFORMED, CF_NO_MEMORY. */
CF_MUST_USE cf_status cf_rehearsal_bytes(const cf_options *options,
                                         const cf_rehearsal_input *input,
                                         const cf_rehearsal *rehearsal,
                                         cf_stage_bytes *bytes);

#endif
