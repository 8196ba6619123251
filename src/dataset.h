/* dataset.h - sequences of tokens with their targets.
 *
 * Sources: pre-tokenised JSONL, and Megatron's indexed .bin/.idx pairs, mapped,
 * with an optional loss mask beside them (docs/data.md).  JSONL is checked once,
 * then indexed, and its lines are decoded when they are wanted.  Targets are shifted here, in the sequence, before anything is split: the target of
 * position i is the label of position i + 1.
 *
 * Several --data are one data set, in the order given.
 */
#ifndef CF_DATASET_H
#define CF_DATASET_H

#include <chunkflow/base.h>

#define CF_NO_TARGET UINT32_MAX

typedef struct cf_dataset cf_dataset;

/* Open all of them.  Every id and label is checked against the vocabulary.
 * Errors, logged with file and line or offset: CF_MALFORMED (missing, empty,
 * malformed, out of range), CF_NO_MEMORY. */
CF_MUST_USE cf_status cf_dataset_open(char *const *paths, size_t n_paths,
                                      uint32_t vocab, cf_dataset **dataset_p);
void cf_dataset_close(cf_dataset *dataset);

/* A sequence of made-up tokens, the last n_targets of which are targets. */
typedef struct cf_made_sequence {
    uint32_t n_tok;
    uint32_t n_targets; /* < n_tok */
} cf_made_sequence;

/* A data set of n of these.  Errors, logged: CF_NO_MEMORY. */
CF_MUST_USE cf_status cf_dataset_open_made(const cf_made_sequence *sequences,
                                           size_t n, uint32_t vocab,
                                           cf_dataset **dataset_p);

size_t cf_dataset_count(const cf_dataset *dataset);

/* Tokens of every sequence, n_sequences entries; borrowed. */
const uint32_t *cf_dataset_lengths(const cf_dataset *dataset);

/* Targets of every sequence, n_sequences entries; borrowed. */
const uint32_t *cf_dataset_target_counts(const cf_dataset *dataset);

/* The --data that the data set was opened with, in order: the sequences of part
 * p are cf_dataset_part_first(p) .. cf_dataset_part_first(p + 1) - 1. */
size_t cf_dataset_n_parts(const cf_dataset *dataset);
size_t cf_dataset_part_first(const cf_dataset *dataset, size_t part);

/* Have these sequences ready for cf_dataset_read, until the next call: before
 * each step, and outside it, since it may read files and allocate.  Sequences
 * may come up more than once.  Costs nothing when all of them are ready still.
 * Errors, logged: CF_MALFORMED (the file has changed since it was opened or
 * indexed), CF_NO_MEMORY. */
CF_MUST_USE cf_status cf_dataset_prepare(const cf_dataset *dataset,
                                         const uint32_t *sequences, size_t n);

/* Of a prepared sequence: tokens first_tok .. first_tok + n_tok - 1 and the
 * target of each (CF_NO_TARGET where there is none; always at the last token). */
void cf_dataset_read(const cf_dataset *dataset, size_t sequence,
                     uint32_t first_tok, uint32_t n_tok, uint32_t *ids,
                     uint32_t *targets);

/* A 64-bit hash of the content: the tokens and targets of every sequence, in
 * order.  The same for JSONL and indexed data, whatever their paths and spaces;
 * sources do not count. */
uint64_t cf_dataset_hash(const cf_dataset *dataset);

/* Names of the sources, from the JSONL key "source"; 0 when no line has one.
 * The source of a sequence is an index into them, UINT32_MAX when it has
 * none. */
size_t cf_dataset_n_sources(const cf_dataset *dataset);
const char *cf_dataset_source_name(const cf_dataset *dataset, size_t source);
uint32_t cf_dataset_source(const cf_dataset *dataset, size_t sequence);

/* Where a sequence comes from, for messages: "data.jsonl:17" (lines from 1) or
 * "data.bin: sequence 16" (from 0, as Megatron counts).  snprintf rules. */
size_t cf_dataset_where(const cf_dataset *dataset, size_t sequence, char *buf,
                        size_t size);

#endif
