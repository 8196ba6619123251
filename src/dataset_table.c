/* dataset_table.c - the table of sequences that all parts of a data set share,
 * and the hash of their content (dataset_part.h).
 */
#include "src/dataset_part.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

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

/* ---- names ---- */

/* A hash, since every line may have a source of its own. */
cf_status cf_name_list_append(cf_name_list *list, const char *name,
                              uint32_t *number_p)
{
    json_t *known;
    char **names;

    if (list->index == NULL)
        list->index = json_object();
    known = json_object_get(list->index, name);
    if (known != NULL) {
        *number_p = (uint32_t)json_integer_value(known);
        return CF_OK;
    }
    names =
        cf_array_grow(list->names, &list->capacity, list->n, 1, sizeof(*names));
    if (names == NULL)
        return CF_NO_MEMORY;
    list->names = names;
    /* Any bytes are a name: an index may hold some that are no UTF-8. */
    if (json_object_set_new_nocheck(list->index, name,
                                    json_integer((json_int_t)list->n)) != 0)
        return CF_NO_MEMORY;
    names[list->n] = strdup(name);
    if (names[list->n] == NULL)
        return CF_NO_MEMORY;
    *number_p = (uint32_t)list->n++;
    return CF_OK;
}

void cf_name_list_close(cf_name_list *list)
{
    for (size_t i = 0; i < list->n; i++)
        free(list->names[i]);
    free(list->names);
    json_decref(list->index);
    *list = (cf_name_list){0};
}

/* ---- content ---- */

void cf_tokens_hash_begin(cf_tokens_hash *hash)
{
    cf_hash_begin(&hash->ids);
    cf_hash_begin(&hash->targets);
}

void cf_tokens_hash_append(cf_tokens_hash *hash, const uint32_t *ids,
                           const uint32_t *targets, uint32_t n_tok)
{
    if (n_tok == 0)
        return;
    cf_hash_append(&hash->ids, ids, n_tok * sizeof(*ids));
    cf_hash_append(&hash->targets, targets, n_tok * sizeof(*targets));
}

uint64_t cf_tokens_hash_end(const cf_tokens_hash *hash)
{
    const uint64_t both[] = {cf_hash_end(&hash->ids),
                             cf_hash_end(&hash->targets)};
    cf_hash end;

    cf_hash_begin(&end);
    cf_hash_append(&end, both, sizeof(both));
    return cf_hash_end(&end);
}

/* ---- the table ---- */

void cf_sequence_table_begin(cf_sequence_table *table)
{
    *table = (cf_sequence_table){0};
    cf_hash_begin(&table->hash);
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

cf_status cf_sequence_table_append(cf_sequence_table *table,
                                   const cf_sequence_info *info)
{
    uint32_t source = UINT32_MAX;
    cf_status status = grow_table(table);

    if (status == CF_OK && info->source != NULL)
        status =
            cf_name_list_append(&table->source_names, info->source, &source);
    if (status != CF_OK)
        return status;
    table->lengths[table->n] = info->n_tok;
    table->target_counts[table->n] = info->n_targets;
    table->sources[table->n] = source;
    cf_hash_append(&table->hash, &info->hash, sizeof(info->hash));
    table->n++;
    return CF_OK;
}

void cf_sequence_table_close(cf_sequence_table *table)
{
    cf_name_list_close(&table->source_names);
    free(table->lengths);
    free(table->target_counts);
    free(table->sources);
}
