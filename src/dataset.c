/* dataset.c - several --data, one data set.
 *
 * (1) Sequences are numbered through all parts, in the order given.
 * (2) After open nothing fails and nothing is allocated: every id, label and
 *     mask byte has been checked.
 */
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
};

void *cf_array_grow(void *array, size_t *capacity, size_t n_used, size_t n,
                    size_t entry_bytes)
{
    size_t larger = *capacity != 0 ? *capacity : 64;
    size_t bytes;
    size_t need;

    if (__builtin_add_overflow(n_used, n, &need))
        return NULL;
    if (array != NULL && need <= *capacity)
        return array;
    while (larger < need) {
        if (__builtin_mul_overflow(larger, (size_t)2, &larger))
            return NULL;
    }
    if (__builtin_mul_overflow(larger, entry_bytes, &bytes))
        return NULL;
    array = realloc(array, bytes);
    if (array != NULL)
        *capacity = larger;
    return array;
}

/* ---- the table of sequences ---- */

/* A hash, since every line may have a source of its own. */
static cf_status source_of(cf_sequence_table *table, const char *name,
                           uint32_t *source_p)
{
    json_t *known;
    char **names;

    if (table->source_index == NULL)
        table->source_index = json_object();
    known = json_object_get(table->source_index, name);
    if (known != NULL) {
        *source_p = (uint32_t)json_integer_value(known);
        return CF_OK;
    }
    names = cf_array_grow(table->source_names, &table->sources_capacity,
                          table->n_sources, 1, sizeof(*names));
    if (names == NULL)
        return CF_NO_MEMORY;
    table->source_names = names;
    if (json_object_set_new(table->source_index, name,
                            json_integer((json_int_t)table->n_sources)) != 0)
        return CF_NO_MEMORY;
    names[table->n_sources] = strdup(name);
    if (names[table->n_sources] == NULL)
        return CF_NO_MEMORY;
    *source_p = (uint32_t)table->n_sources++;
    return CF_OK;
}

static bool grow_column(uint32_t **column, size_t *capacity, size_t n)
{
    uint32_t *grown = cf_array_grow(*column, capacity, n, 1, sizeof(*grown));

    if (grown != NULL)
        *column = grown;
    return grown != NULL;
}

/* Three columns of one capacity, which is theirs only when all have grown. */
static cf_status grow_table(cf_sequence_table *table)
{
    size_t capacity[3] = {table->capacity, table->capacity, table->capacity};

    if (!grow_column(&table->lengths, &capacity[0], table->n) ||
        !grow_column(&table->target_counts, &capacity[1], table->n) ||
        !grow_column(&table->sources, &capacity[2], table->n))
        return CF_NO_MEMORY;
    table->capacity = capacity[2];
    return CF_OK;
}

cf_status cf_sequence_table_append(cf_sequence_table *table, uint32_t n_tok,
                                   uint32_t n_targets, const char *name)
{
    uint32_t source = UINT32_MAX;
    cf_status status = grow_table(table);

    if (status == CF_OK && name != NULL)
        status = source_of(table, name, &source);
    if (status != CF_OK)
        return status;
    table->lengths[table->n] = n_tok;
    table->target_counts[table->n] = n_targets;
    table->sources[table->n] = source;
    table->n++;
    return CF_OK;
}

void cf_sequence_table_close(cf_sequence_table *table)
{
    for (size_t i = 0; i < table->n_sources; i++)
        free(table->source_names[i]);
    free(table->source_names);
    free(table->lengths);
    free(table->target_counts);
    free(table->sources);
    json_decref(table->source_index);
}

/* ---- the data set ---- */

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
        cf_log_error("%s: out of memory", path);
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

cf_status cf_dataset_open(char *const *paths, size_t n_paths, uint32_t vocab,
                          cf_dataset **dataset_p)
{
    cf_dataset *dataset = calloc(1, sizeof(*dataset));
    cf_status status = CF_OK;

    assert(n_paths > 0);
    if (dataset != NULL)
        dataset->parts = calloc(n_paths, sizeof(*dataset->parts));
    if (dataset == NULL || dataset->parts == NULL) {
        cf_log_error("%s: out of memory", paths[0]);
        status = CF_NO_MEMORY;
    }
    for (size_t i = 0; status == CF_OK && i < n_paths; i++)
        status = open_part(dataset, paths[i], vocab);
    if (status != CF_OK) {
        cf_dataset_close(dataset);
        return status;
    }
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

static const cf_dataset_part *part_of(const cf_dataset *dataset,
                                      size_t sequence)
{
    size_t i = dataset->n_parts - 1;

    assert(sequence < dataset->table.n);
    while (dataset->parts[i].first_sequence > sequence)
        i--;
    return &dataset->parts[i];
}

void cf_dataset_read(const cf_dataset *dataset, size_t sequence,
                     uint32_t first_tok, uint32_t n_tok, uint32_t *ids,
                     uint32_t *targets)
{
    const cf_dataset_part *part = part_of(dataset, sequence);

    assert(first_tok <= dataset->table.lengths[sequence] &&
           n_tok <= dataset->table.lengths[sequence] - first_tok);
    part->read(part->state, sequence - part->first_sequence, first_tok, n_tok,
               ids, targets);
}

/* One more word of a hash. */
static uint64_t mix(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * 0x9fb21c651e98df25;
    return hash ^ hash >> 32;
}

uint64_t cf_dataset_hash(const cf_dataset *dataset)
{
    uint32_t ids[256], targets[256];
    uint64_t hash = mix(0, dataset->table.n);

    for (size_t s = 0; s < dataset->table.n; s++) {
        const uint32_t n_tok = dataset->table.lengths[s];

        hash = mix(hash, n_tok);
        for (uint32_t first = 0; first < n_tok; first += 256) {
            const uint32_t n = n_tok - first < 256 ? n_tok - first : 256;

            cf_dataset_read(dataset, s, first, n, ids, targets);
            for (uint32_t i = 0; i < n; i++)
                hash = mix(hash, ids[i] | (uint64_t)targets[i] << 32);
        }
    }
    return hash;
}

size_t cf_dataset_n_sources(const cf_dataset *dataset)
{
    return dataset->table.n_sources;
}

const char *cf_dataset_source_name(const cf_dataset *dataset, size_t source)
{
    assert(source < dataset->table.n_sources);
    return dataset->table.source_names[source];
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
