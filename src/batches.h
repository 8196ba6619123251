/* batches.h - which sequences make up the global batch of each step.
 *
 * Epochs follow one another; the last batch of an epoch may be short, never
 * dropped.  A sequence longer than --max-length takes no place; one of 0 or 1
 * token or without a target does, and costs nothing.
 *
 * A batch is --global-batch sequences, or, with --tokens-per-batch, as many as
 * it takes to reach those tokens, the last one included, and at least one; with
 * both, what comes first ends it.  Where the batches of an epoch begin is a
 * function of (seed, epoch) alone.
 */
#ifndef CF_BATCHES_H
#define CF_BATCHES_H

#include <chunkflow/base.h>

#include "src/dataset.h"
#include "src/ledger.h"
#include "src/mixture.h"
#include "src/options.h"

typedef struct cf_batches {
    const cf_dataset *dataset; /* borrowed */
    uint32_t *eligible;        /* owned: data set indices that take a place */
    size_t n_eligible;
    cf_mixture mixture; /* of the eligible ones */
    uint32_t *drawable; /* owned: what a step may hold; one that it may hold */
    size_t n_drawable;  /* twice is there twice */
    uint32_t max_length_tok;
    uint32_t global_batch;     /* sequences of a step at most */
    uint64_t tokens_per_batch; /* 0 = by sequences */
    uint64_t n_steps;
    struct cf_batch_bounds *bounds; /* owned; NULL without tokens_per_batch */
} cf_batches;

/* Errors, logged: CF_MALFORMED (nothing to train on), CF_INVALID (weights),
 * CF_NO_MEMORY. */
CF_MUST_USE cf_status cf_batches_open(const cf_dataset *dataset,
                                      const cf_options *options,
                                      cf_batches *batches);
void cf_batches_close(cf_batches *batches);

/* The sequences of a step (from 1), at most global_batch.  Returns how many.
 * With tokens_per_batch a step of another epoch than the last one asked for
 * costs a walk through the epochs up to it. */
size_t cf_batches_at(const cf_batches *batches, uint64_t step,
                     uint32_t *sequences);

/* Count what a step reads: its sequences and, with the first of an epoch, those
 * that the epoch skips. */
void cf_batches_count(const cf_batches *batches, uint64_t step,
                      const uint32_t *sequences, size_t n, cf_ledger *ledger);

/* Count what the first epoch reads, all of it. */
void cf_batches_count_epoch(const cf_batches *batches, cf_ledger *ledger);

#endif
