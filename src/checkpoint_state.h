/* checkpoint_state.h - state.json: what a training state says of itself.
 *
 * (1) Everything that decides the numbers of the rest of a run is in it: a run
 *     that agrees with it, and has the tensors, goes on to the same bits.
 * (2) It ends with a checksum of its own text and holds those of the files
 *     beside it: what was damaged is told from what is complete.
 * (3) Plain data without ownership, so that one can be written inside a step.
 */
#ifndef CF_CHECKPOINT_STATE_H
#define CF_CHECKPOINT_STATE_H

#include <chunkflow/base.h>

#include "src/ledger.h"

enum {
    CF_CHECKPOINT_FORMAT = 2, /* of state.json and of the tensors' names */
    CF_CHECKPOINT_OPTIONS_MAX = 48,
    CF_CHECKPOINT_STATE_BYTES_MAX = 1 << 16
};

/* An option that --resume holds on to, as a user would write it; "" is unset. */
typedef struct cf_checkpoint_option {
    char name[32];
    char value[256];
} cf_checkpoint_option;

/* checkpoint_tensors.h says of what the hashes are. */
typedef struct cf_checkpoint_file {
    uint64_t bytes;
    uint64_t header_hash;
    uint64_t tensors_hash;
} cf_checkpoint_file;

typedef struct cf_checkpoint_state {
    uint64_t step;      /* done, from 1 */
    uint64_t n_steps;   /* of the run; belongs to linear and cosine */
    uint64_t n_updates; /* Adam's time: steps with a target */
    uint64_t model_hash;
    uint64_t data_hash;
    /* Of the run that saved it, for one whose ChunkSize is auto; 0: an earlier
     * version did not tell. */
    uint32_t chunk_size_tok;
    cf_checkpoint_option options[CF_CHECKPOINT_OPTIONS_MAX];
    size_t n_options;
    cf_ledger ledger;
    cf_checkpoint_file weights;
    cf_checkpoint_file moments;
} cf_checkpoint_state;

/* The text of state.json, at most CF_CHECKPOINT_STATE_BYTES_MAX.  Returns its
 * length; 0: it does not fit. */
size_t cf_checkpoint_state_format(const cf_checkpoint_state *state, char *buf,
                                  size_t size);

/* Back again; n bytes of any text.  Error: CF_MALFORMED, not logged, with a
 * short reason (static text) in *why_p. */
CF_MUST_USE cf_status cf_checkpoint_state_parse(const char *text, size_t n,
                                                cf_checkpoint_state *state_p,
                                                const char **why_p);

#endif
