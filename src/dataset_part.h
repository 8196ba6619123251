/* dataset_part.h - what a file format brings to a data set.
 *
 * Private to dataset*.c.  A part is one --data.  Opening it appends its
 * sequences to the table that all parts share; after that it only hands out
 * tokens: at once when it is mapped, or one whole sequence at a time when they
 * have to be decoded (dataset_cache.h keeps those).
 */
#ifndef CF_DATASET_PART_H
#define CF_DATASET_PART_H

#include "src/dataset.h"
#include "src/hash.h"

#include <jansson.h>

/* Names without repetition, numbered as they come up. */
typedef struct cf_name_list {
    char **names;
    size_t n;
    size_t capacity;
    json_t *index; /* name -> number; NULL until there is a name */
} cf_name_list;

/* The number of a name, which is appended when it is new.
 * Errors: CF_NO_MEMORY. */
CF_MUST_USE cf_status cf_name_list_append(cf_name_list *list, const char *name,
                                          uint32_t *number_p);
void cf_name_list_close(cf_name_list *list);

/* What is known of every sequence, in the order of the data set. */
typedef struct cf_sequence_table {
    uint32_t *lengths;
    uint32_t *target_counts;
    uint32_t *sources; /* index into source_names, UINT32_MAX: none */
    size_t n;
    size_t capacity;
    cf_name_list source_names;
    cf_hash hash; /* of the hashes of all sequences */
} cf_sequence_table;

typedef struct cf_sequence_info {
    uint32_t n_tok;
    uint32_t n_targets;
    uint64_t hash;      /* cf_tokens_hash_end */
    const char *source; /* NULL: none */
} cf_sequence_info;

typedef struct cf_dataset_part {
    void *state; /* owned: close frees it */
    size_t first_sequence;
    void (*close)(void *state);
    /* One of the two is NULL; sequences count from 0 here.  read is
     * cf_dataset_read.  decode writes all tokens of a sequence; errors, logged:
     * CF_MALFORMED, CF_NO_MEMORY. */
    void (*read)(const void *state, size_t sequence, uint32_t first_tok,
                 uint32_t n_tok, uint32_t *ids, uint32_t *targets);
    cf_status (*decode)(void *state, size_t sequence, uint32_t *ids,
                        uint32_t *targets);
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

/* Made-up sequences, which are copied.  Error, not logged: CF_NO_MEMORY. */
CF_MUST_USE cf_status cf_dataset_part_open_made(
    const cf_made_sequence *sequences, size_t n, uint32_t vocab,
    cf_sequence_table *table, cf_dataset_part *part_p);

/* All zero but for the hash. */
void cf_sequence_table_begin(cf_sequence_table *table);

/* Append a sequence.  Errors: CF_NO_MEMORY. */
CF_MUST_USE cf_status cf_sequence_table_append(cf_sequence_table *table,
                                               const cf_sequence_info *info);
void cf_sequence_table_close(cf_sequence_table *table);

/* The hash of the content of a sequence, however it is cut into calls. */
typedef struct cf_tokens_hash {
    cf_hash ids;
    cf_hash targets;
} cf_tokens_hash;

void cf_tokens_hash_begin(cf_tokens_hash *hash);
void cf_tokens_hash_append(cf_tokens_hash *hash, const uint32_t *ids,
                           const uint32_t *targets, uint32_t n_tok);
uint64_t cf_tokens_hash_end(const cf_tokens_hash *hash);

/* The array with room for n more entries behind the first n_used, moved if need
 * be; *capacity grows by doubling.  NULL when out of memory: the old array is
 * untouched. */
void *cf_array_grow(void *array, size_t *capacity, size_t n_used, size_t n,
                    size_t entry_bytes);

#endif
