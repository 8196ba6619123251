/* dataset_part.h - what a file format brings to a data set.
 *
 * Private to dataset*.c.  A part is one --data.  Opening it appends its
 * sequences to the table that all parts share; after that it only hands out
 * tokens.
 */
#ifndef CF_DATASET_PART_H
#define CF_DATASET_PART_H

#include "src/dataset.h"

#include <jansson.h>

/* What is known of every sequence, in the order of the data set. */
typedef struct cf_sequence_table {
    uint32_t *lengths;
    uint32_t *target_counts;
    uint32_t *sources; /* index into source_names, UINT32_MAX: none */
    size_t n;
    size_t capacity;
    char **source_names;
    size_t n_sources;
    size_t sources_capacity;
    json_t *source_index; /* name -> index; NULL until there is a name */
} cf_sequence_table;

typedef struct cf_dataset_part {
    void *state; /* owned: close frees it */
    size_t first_sequence;
    void (*close)(void *state);
    /* As cf_dataset_read and cf_dataset_where; sequences count from 0 here. */
    void (*read)(const void *state, size_t sequence, uint32_t first_tok,
                 uint32_t n_tok, uint32_t *ids, uint32_t *targets);
    size_t (*where)(const void *state, size_t sequence, char *buf, size_t size);
} cf_dataset_part;

/* Open one --data; first_sequence is left to the caller.  Errors, logged:
 * CF_MALFORMED; not logged: CF_NO_MEMORY. */
CF_MUST_USE cf_status cf_dataset_part_open_jsonl(const char *path,
                                                 uint32_t vocab,
                                                 cf_sequence_table *table,
                                                 cf_dataset_part *part_p);
CF_MUST_USE cf_status cf_dataset_part_open_indexed(const char *path,
                                                   uint32_t vocab,
                                                   cf_sequence_table *table,
                                                   cf_dataset_part *part_p);

/* Append a sequence; source may be NULL.  Errors: CF_NO_MEMORY. */
CF_MUST_USE cf_status cf_sequence_table_append(cf_sequence_table *table,
                                               uint32_t n_tok,
                                               uint32_t n_targets,
                                               const char *source);
void cf_sequence_table_close(cf_sequence_table *table);

/* The array with room for n more entries behind the first n_used, moved if need
 * be; *capacity grows by doubling.  NULL when out of memory: the old array is
 * untouched. */
void *cf_array_grow(void *array, size_t *capacity, size_t n_used, size_t n,
                    size_t entry_bytes);

#endif
