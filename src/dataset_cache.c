/* dataset_cache.c - see dataset_cache.h. */
#include "src/dataset_cache.h"

#include <stdlib.h>

static int by_sequence(const void *a, const void *b)
{
    const cf_dataset_cache_entry *x = a;
    const cf_dataset_cache_entry *y = b;

    return (x->sequence > y->sequence) - (x->sequence < y->sequence);
}

void cf_dataset_cache_begin(cf_dataset_cache *cache)
{
    cache->n = 0;
}

cf_status cf_dataset_cache_append(cf_dataset_cache *cache,
                                  const cf_dataset_part *part, size_t sequence)
{
    cf_dataset_cache_entry *grown = cf_array_grow(
        cache->entries, &cache->capacity, cache->n, 1, sizeof(*grown));

    if (grown == NULL)
        return CF_NO_MEMORY;
    cache->entries = grown;
    cache->entries[cache->n++] =
        (cf_dataset_cache_entry){.sequence = sequence, .part = part};
    return CF_OK;
}

/* Sort, drop repetitions, and give each its place; gives the tokens in all. */
static size_t places_set(cf_dataset_cache *cache, const uint32_t *lengths)
{
    cf_dataset_cache_entry *entries = cache->entries;
    size_t n_tok = 0;
    size_t n = 0;

    if (cache->n > 0)
        qsort(entries, cache->n, sizeof(*entries), by_sequence);
    for (size_t i = 0; i < cache->n; i++) {
        if (n > 0 && entries[i].sequence == entries[n - 1].sequence)
            continue;
        entries[n] = entries[i];
        entries[n++].first_tok = n_tok;
        n_tok += lengths[entries[i].sequence];
    }
    cache->n = n;
    return n_tok;
}

/* Nothing that is in them is wanted any more, so nothing is copied.  Empty
 * sequences have a place, too: there is room for a token at least. */
static cf_status room_for(cf_dataset_cache *cache, size_t n_tok)
{
    if (cache->tok_capacity > 0 && n_tok <= cache->tok_capacity)
        return CF_OK;
    n_tok += n_tok / 8 + 1;
    free(cache->ids);
    free(cache->targets);
    cache->ids = calloc(n_tok, sizeof(*cache->ids));
    cache->targets = calloc(n_tok, sizeof(*cache->targets));
    cache->tok_capacity = n_tok;
    if (cache->ids != NULL && cache->targets != NULL)
        return CF_OK;
    cache->tok_capacity = 0;
    return CF_NO_MEMORY;
}

cf_status cf_dataset_cache_end(cf_dataset_cache *cache, const uint32_t *lengths)
{
    cf_status status = room_for(cache, places_set(cache, lengths));

    for (size_t i = 0; status == CF_OK && i < cache->n; i++) {
        const cf_dataset_cache_entry *e = &cache->entries[i];

        status = e->part->decode(
            e->part->state, e->sequence - e->part->first_sequence,
            cache->ids + e->first_tok, cache->targets + e->first_tok);
    }
    if (status != CF_OK)
        cache->n = 0;
    return status;
}

const cf_dataset_cache_entry *cf_dataset_cache_find(
    const cf_dataset_cache *cache, size_t sequence)
{
    const cf_dataset_cache_entry key = {.sequence = sequence};

    if (cache->n == 0)
        return NULL;
    return bsearch(&key, cache->entries, cache->n, sizeof(key), by_sequence);
}

void cf_dataset_cache_close(cf_dataset_cache *cache)
{
    free(cache->entries);
    free(cache->ids);
    free(cache->targets);
    *cache = (cf_dataset_cache){0};
}
