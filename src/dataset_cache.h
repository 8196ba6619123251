/* dataset_cache.h - the decoded sequences of a step: private to dataset*.c.
 *
 * It holds what the latest call asked for and nothing else, so its memory is
 * that of the largest set ever asked for: eight bytes a token.
 */
#ifndef CF_DATASET_CACHE_H
#define CF_DATASET_CACHE_H

#include "src/dataset_part.h"

typedef struct cf_dataset_cache_entry {
    size_t sequence; /* of the data set */
    size_t first_tok;
    const cf_dataset_part *part;
} cf_dataset_cache_entry;

/* All zero is an empty cache. */
typedef struct cf_dataset_cache {
    cf_dataset_cache_entry *entries; /* ascending by sequence */
    size_t n;
    size_t capacity;
    uint32_t *ids;
    uint32_t *targets;
    size_t tok_capacity;
} cf_dataset_cache;

/* Forget all, then ask for sequences one by one, repetitions welcome, and decode
 * them.  Errors: CF_NO_MEMORY, not logged; CF_MALFORMED, logged. */
void cf_dataset_cache_begin(cf_dataset_cache *cache);
CF_MUST_USE cf_status cf_dataset_cache_append(cf_dataset_cache *cache,
                                              const cf_dataset_part *part,
                                              size_t sequence);
CF_MUST_USE cf_status cf_dataset_cache_end(cf_dataset_cache *cache,
                                           const uint32_t *lengths);

/* NULL when it is not there. */
const cf_dataset_cache_entry *cf_dataset_cache_find(
    const cf_dataset_cache *cache, size_t sequence);

void cf_dataset_cache_close(cf_dataset_cache *cache);

#endif
