/* dataset.c - several --data, one data set.
 *
 * (1) Sequences are numbered through all parts, in the order given.
 * (2) After open nothing is allocated and nothing fails but prepare, when a file
 *     changes under a run: every id, label and mask byte has been checked.
 */
#include "src/dataset_cache.h"
#include "src/dataset_part.h"

#include "src/log.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct cf_dataset {
    cf_dataset_part *parts;
    size_t n_parts;
    cf_sequence_table table;
    cf_dataset_cache *cache; /* owned; of the parts that decode */
};

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text);
    size_t n_end = strlen(end);

    return n >= n_end && strcmp(text + n - n_end, end) == 0;
}

static cf_status open_part(cf_dataset *dataset, const char *path,
                           uint32_t vocab)
{
    cf_dataset_part part = {0};
    cf_sequence_table *table = &dataset->table;
    size_t first_sequence = table->n;
    cf_status status;

    if (ends_with(path, ".jsonl"))
        status = cf_dataset_part_open_jsonl(path, vocab, table, &part);
    else
        status = cf_dataset_part_open_indexed(path, vocab, table, &part);
    if (status == CF_NO_MEMORY)
        (void)cf_log_no_memory(path);
    if (status != CF_OK)
        return status;
    part.first_sequence = first_sequence;
    dataset->parts[dataset->n_parts++] = part;
    if (table->n == first_sequence) {
        cf_log_error(
            "%s: is empty: there is no sequence in it; name a file with "
            "data",
            path);
        return CF_MALFORMED;
    }
    return CF_OK;
}

/* Without a part yet; NULL when out of memory. */
static cf_dataset *dataset_begin(size_t n_parts)
{
    cf_dataset *dataset = calloc(1, sizeof(*dataset));

    if (dataset == NULL)
        return NULL;
    cf_sequence_table_begin(&dataset->table);
    dataset->parts = calloc(n_parts, sizeof(*dataset->parts));
    dataset->cache = calloc(1, sizeof(*dataset->cache));
    if (dataset->parts != NULL && dataset->cache != NULL)
        return dataset;
    cf_dataset_close(dataset);
    return NULL;
}

cf_status cf_dataset_open(char *const *paths, size_t n_paths, uint32_t vocab,
                          cf_dataset **dataset_p)
{
    cf_dataset *dataset = dataset_begin(n_paths);
    cf_status status = dataset != NULL ? CF_OK : cf_log_no_memory(paths[0]);

    assert(n_paths > 0);
    for (size_t i = 0; status == CF_OK && i < n_paths; i++)
        status = open_part(dataset, paths[i], vocab);
    if (status != CF_OK) {
        cf_dataset_close(dataset);
        return status;
    }
    *dataset_p = dataset;
    return CF_OK;
}

cf_status cf_dataset_open_made(const cf_made_sequence *sequences, size_t n,
                               uint32_t vocab, cf_dataset **dataset_p)
{
    cf_dataset *dataset = dataset_begin(1);
    cf_status status = CF_NO_MEMORY;

    if (dataset != NULL)
        status = cf_dataset_part_open_made(sequences, n, vocab, &dataset->table,
                                           &dataset->parts[0]);
    if (status != CF_OK) {
        cf_dataset_close(dataset);
        return cf_log_no_memory("made-up sequences");
    }
    dataset->n_parts = 1;
    *dataset_p = dataset;
    return CF_OK;
}

void cf_dataset_close(cf_dataset *dataset)
{
    if (dataset == NULL)
        return;
    for (size_t i = 0; i < dataset->n_parts; i++)
        dataset->parts[i].close(dataset->parts[i].state);
    free(dataset->parts);
    if (dataset->cache != NULL)
        cf_dataset_cache_close(dataset->cache);
    free(dataset->cache);
    cf_sequence_table_close(&dataset->table);
    free(dataset);
}

size_t cf_dataset_count(const cf_dataset *dataset)
{
    return dataset->table.n;
}

const uint32_t *cf_dataset_lengths(const cf_dataset *dataset)
{
    return dataset->table.lengths;
}

const uint32_t *cf_dataset_target_counts(const cf_dataset *dataset)
{
    return dataset->table.target_counts;
}

size_t cf_dataset_n_parts(const cf_dataset *dataset)
{
    return dataset->n_parts;
}

size_t cf_dataset_part_first(const cf_dataset *dataset, size_t part)
{
    assert(part <= dataset->n_parts);
    return part < dataset->n_parts ? dataset->parts[part].first_sequence
                                   : dataset->table.n;
}

static const cf_dataset_part *part_of(const cf_dataset *dataset,
                                      size_t sequence)
{
    size_t i = dataset->n_parts - 1;

    assert(sequence < dataset->table.n);
    while (dataset->parts[i].first_sequence > sequence)
        i--;
    return &dataset->parts[i];
}

static bool is_ready(const cf_dataset *dataset, size_t sequence)
{
    return part_of(dataset, sequence)->read != NULL ||
           cf_dataset_cache_find(dataset->cache, sequence) != NULL;
}

cf_status cf_dataset_prepare(const cf_dataset *dataset,
                             const uint32_t *sequences, size_t n)
{
    cf_status status = CF_OK;
    size_t i = 0;

    while (i < n && is_ready(dataset, sequences[i]))
        i++;
    if (i == n)
        return CF_OK;
    cf_dataset_cache_begin(dataset->cache);
    for (i = 0; status == CF_OK && i < n; i++) {
        const cf_dataset_part *part = part_of(dataset, sequences[i]);

        if (part->read == NULL)
            status =
                cf_dataset_cache_append(dataset->cache, part, sequences[i]);
    }
    if (status == CF_OK)
        status = cf_dataset_cache_end(dataset->cache, dataset->table.lengths);
    if (status == CF_NO_MEMORY)
        cf_log_error("no memory for the tokens of %zu sequences: use a smaller "
                     "--global-batch or --max-length",
                     n);
    return status;
}

void cf_dataset_read(const cf_dataset *dataset, size_t sequence,
                     uint32_t first_tok, uint32_t n_tok, uint32_t *ids,
                     uint32_t *targets)
{
    const cf_dataset_part *part = part_of(dataset, sequence);
    const cf_dataset_cache *cache = dataset->cache;
    const cf_dataset_cache_entry *entry;

    assert(first_tok <= dataset->table.lengths[sequence] &&
           n_tok <= dataset->table.lengths[sequence] - first_tok);
    if (part->read != NULL) {
        part->read(part->state, sequence - part->first_sequence, first_tok,
                   n_tok, ids, targets);
        return;
    }
    entry = cf_dataset_cache_find(cache, sequence);
    assert(entry != NULL);
    if (n_tok == 0)
        return;
    memcpy(ids, cache->ids + entry->first_tok + first_tok,
           n_tok * sizeof(*ids));
    memcpy(targets, cache->targets + entry->first_tok + first_tok,
           n_tok * sizeof(*targets));
}

uint64_t cf_dataset_hash(const cf_dataset *dataset)
{
    return cf_hash_end(&dataset->table.hash);
}

size_t cf_dataset_n_sources(const cf_dataset *dataset)
{
    return dataset->table.source_names.n;
}

const char *cf_dataset_source_name(const cf_dataset *dataset, size_t source)
{
    assert(source < dataset->table.source_names.n);
    return dataset->table.source_names.names[source];
}

uint32_t cf_dataset_source(const cf_dataset *dataset, size_t sequence)
{
    assert(sequence < dataset->table.n);
    return dataset->table.sources[sequence];
}

size_t cf_dataset_where(const cf_dataset *dataset, size_t sequence, char *buf,
                        size_t size)
{
    const cf_dataset_part *part = part_of(dataset, sequence);

    return part->where(part->state, sequence - part->first_sequence, buf, size);
}
