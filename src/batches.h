/* batches.h - which sequences make up the global batch of each step.
 *
 * Epochs follow one another; the last batch of an epoch may be short, never
 * dropped.  A sequence longer than --max-length takes no place; one of 0 or 1
 * token or without a target does, and costs nothing.
 */
#ifndef CF_BATCHES_H
#define CF_BATCHES_H

#include <chunkflow/base.h>

#include "src/dataset.h"
#include "src/ledger.h"
#include "src/options.h"

typedef struct cf_batches {
    const cf_dataset *dataset; /* borrowed */
    uint32_t *eligible;        /* owned: data set indices that take a place */
    size_t n_eligible;
    uint32_t max_length_tok;
    uint32_t global_batch;
    uint64_t seed;
    bool shuffle;
    uint64_t steps_per_epoch;
    uint64_t n_steps;
} cf_batches;

/* Errors, logged: CF_MALFORMED (nothing to train on), CF_NO_MEMORY. */
CF_MUST_USE cf_status cf_batches_open(const cf_dataset *dataset,
                                      const cf_options *options,
                                      cf_batches *batches);
void cf_batches_close(cf_batches *batches);

/* The sequences of a step (from 1), at most global_batch.  Returns how many. */
size_t cf_batches_at(const cf_batches *batches, uint64_t step,
                     uint32_t *sequences);

/* Count what a step reads: its sequences and, with the first of an epoch, those
 * that the epoch skips. */
void cf_batches_count(const cf_batches *batches, uint64_t step,
                      const uint32_t *sequences, size_t n, cf_ledger *ledger);

#endif
