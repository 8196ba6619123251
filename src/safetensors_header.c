/* safetensors_header.c - the header of a safetensors file, checked.
 *
 * A file is a length N (8 bytes, little endian), N bytes of JSON that give each
 * tensor a type, a shape and a range of bytes, and those bytes.
 *
 * (1) Nothing of a file is believed: a tensor is listed only when its type is
 *     known, its shape fills its range, and all ranges together cover the data
 *     once, without holes.
 */
#include "src/safetensors_header.h"

#include "src/convert.h"
#include "src/json.h"
#include "src/log.h"

#include <endian.h>
#include <stdlib.h>
#include <string.h>

enum {
    LENGTH_BYTES = 8,
    HEADER_MAX_BYTES = 100000000
};

/* ---- one tensor of a header ---- */

static cf_status read_dtype(const char *path, const char *name,
                            const json_t *info, cf_dtype *dtype_p)
{
    const char *text = json_string_value(json_object_get(info, "dtype"));

    for (cf_dtype d = CF_DTYPE_F64; text != NULL && d <= CF_DTYPE_BF16; d++)
        if (strcmp(text, cf_dtype_name(d)) == 0) {
            *dtype_p = d;
            return CF_OK;
        }
    cf_log_error("%s: tensor \"%s\" has dtype \"%s\", which is not supported; "
                 "use a model in F64, F32, F16 or BF16",
                 path, name, text == NULL ? "(none)" : text);
    return CF_MALFORMED;
}

static cf_status read_shape(const char *path, const char *name,
                            const json_t *info, cf_tensor *tensor)
{
    const json_t *shape = json_object_get(info, "shape");
    size_t n_dims = json_array_size(shape);

    if (!json_is_array(shape) || n_dims > CF_TENSOR_DIMS_MAX) {
        cf_log_error("%s: tensor \"%s\" has no shape of at most %d dimensions; "
                     "use another model",
                     path, name, CF_TENSOR_DIMS_MAX);
        return CF_MALFORMED;
    }
    tensor->n_dims = (uint32_t)n_dims;
    tensor->n = 1;
    for (size_t i = 0; i < n_dims; i++) {
        const json_t *dim = json_array_get(shape, i);

        tensor->dims[i] = (uint64_t)json_integer_value(dim);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0 ||
            __builtin_mul_overflow(tensor->n, tensor->dims[i], &tensor->n)) {
            cf_log_error("%s: tensor \"%s\" has a bad shape (dimension %zu); "
                         "fetch the file again",
                         path, name, i);
            return CF_MALFORMED;
        }
    }
    return CF_OK;
}

static cf_status read_range(const char *path, const json_t *info,
                            cf_tensor_entry *e)
{
    const json_t *offsets = json_object_get(info, "data_offsets");
    const json_t *begin = json_array_get(offsets, 0);
    const json_t *end = json_array_get(offsets, 1);
    uint64_t bytes;

    if (json_array_size(offsets) != 2 || !json_is_integer(begin) ||
        !json_is_integer(end) || json_integer_value(begin) < 0 ||
        json_integer_value(end) < json_integer_value(begin)) {
        cf_log_error("%s: tensor \"%s\" has bad data_offsets; fetch the file "
                     "again",
                     path, e->name);
        return CF_MALFORMED;
    }
    e->begin = (uint64_t)json_integer_value(begin);
    e->end = (uint64_t)json_integer_value(end);
    if (__builtin_mul_overflow(e->tensor.n, cf_dtype_bytes(e->tensor.dtype),
                               &bytes) ||
        bytes != e->end - e->begin) {
        cf_log_error("%s: tensor \"%s\" has %llu bytes of data, but its shape "
                     "and dtype say otherwise; fetch the file again",
                     path, e->name, (unsigned long long)(e->end - e->begin));
        return CF_MALFORMED;
    }
    return CF_OK;
}

static cf_status read_entry(const char *path, const char *name,
                            const json_t *info, cf_tensor_entry *e_p)
{
    cf_status status;
    cf_tensor_entry e = {.name = strdup(name)};

    if (e.name == NULL)
        return cf_log_no_memory(path);
    e.tensor.name = e.name;
    e.tensor.path = path;
    status = read_dtype(path, name, info, &e.tensor.dtype);
    if (status == CF_OK)
        status = read_shape(path, name, info, &e.tensor);
    if (status == CF_OK)
        status = read_range(path, info, &e);
    if (status != CF_OK) {
        free(e.name);
        return status;
    }
    *e_p = e;
    return CF_OK;
}

/* ---- the whole header ---- */

static cf_status load_header(const char *path, const unsigned char *base,
                             uint64_t bytes, uint64_t *length_p,
                             json_t **header_p)
{
    uint64_t length;
    json_error_t error;
    json_t *header;

    if (bytes < LENGTH_BYTES) {
        cf_log_error("%s: truncated: only %llu bytes; fetch the file again",
                     path, (unsigned long long)bytes);
        return CF_MALFORMED;
    }
    memcpy(&length, base, sizeof(length));
    length = le64toh(length);
    if (length > HEADER_MAX_BYTES) {
        cf_log_error("%s: its header claims %llu bytes, more than the format "
                     "allows: not a safetensors file, or damaged; fetch it "
                     "again",
                     path, (unsigned long long)length);
        return CF_MALFORMED;
    }
    if (length > bytes - LENGTH_BYTES) {
        cf_log_error("%s: truncated: its header has %llu bytes, %llu of them "
                     "are missing; fetch the file again",
                     path, (unsigned long long)length,
                     (unsigned long long)(length + LENGTH_BYTES - bytes));
        return CF_MALFORMED;
    }
    header = json_loadb((const char *)base + LENGTH_BYTES, length,
                        JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(header)) {
        cf_log_error("%s: its header is not a JSON object: %s; fetch the file "
                     "again",
                     path, header == NULL ? error.text : "wrong type");
        json_decref(header);
        return CF_MALFORMED;
    }
    *length_p = length;
    *header_p = header;
    return CF_OK;
}

static int compare_ranges(const void *a, const void *b)
{
    const cf_tensor_entry *x = a, *y = b;

    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

/* (1): the ranges of a file's entries, of n_bytes of data. */
static cf_status check_ranges(const char *path, cf_tensor_entry *entries,
                              size_t n, uint64_t n_bytes)
{
    uint64_t end = 0;

    if (n > 0)
        qsort(entries, n, sizeof(*entries), compare_ranges);
    for (size_t i = 0; i < n; i++) {
        if (entries[i].begin != end) {
            cf_log_error(
                "%s: tensor \"%s\" begins at byte %llu of the data, "
                "but the one before it ends at byte %llu: %s; fetch "
                "the file again",
                path, entries[i].name, (unsigned long long)entries[i].begin,
                (unsigned long long)end,
                entries[i].begin < end ? "they overlap" : "there is a hole");
            return CF_MALFORMED;
        }
        end = entries[i].end;
    }
    if (end > n_bytes) {
        cf_log_error("%s: truncated: %llu bytes of data are missing (tensor "
                     "\"%s\" ends there); fetch the file again",
                     path, (unsigned long long)(end - n_bytes),
                     entries[n - 1].name);
        return CF_MALFORMED;
    }
    if (end < n_bytes) {
        cf_log_error("%s: the last %llu bytes belong to no tensor; fetch the "
                     "file again",
                     path, (unsigned long long)(n_bytes - end));
        return CF_MALFORMED;
    }
    return CF_OK;
}

static cf_status read_entries(cf_tensor_list *list, const char *path,
                              size_t file, json_t *header)
{
    size_t capacity = list->n + json_object_size(header) + 1;
    cf_tensor_entry *entries =
        reallocarray(list->entries, capacity, sizeof(*entries));

    if (entries == NULL)
        return cf_log_no_memory(path);
    list->entries = entries;
    for (void *at = json_object_iter(header); at != NULL;
         at = json_object_iter_next(header, at)) {
        const char *name = json_object_iter_key(at);
        cf_status status;

        if (strcmp(name, "__metadata__") == 0)
            continue;
        status = read_entry(path, name, json_object_iter_value(at),
                            &entries[list->n]);
        if (status != CF_OK)
            return status;
        entries[list->n++].file = file;
    }
    return CF_OK;
}

cf_status cf_tensor_list_append(cf_tensor_list *list, const char *path,
                                size_t file, const unsigned char *base,
                                uint64_t bytes)
{
    size_t first = list->n;
    uint64_t length;
    json_t *header;
    cf_status status = load_header(path, base, bytes, &length, &header);

    if (status != CF_OK)
        return status;
    status = read_entries(list, path, file, header);
    json_decref(header);
    if (status == CF_OK)
        status = check_ranges(path, list->entries + first, list->n - first,
                              bytes - LENGTH_BYTES - length);
    if (status != CF_OK)
        return status;
    for (size_t i = first; i < list->n; i++) {
        cf_tensor_entry *entry = &list->entries[i];

        entry->tensor.offset = LENGTH_BYTES + length + entry->begin;
        entry->tensor.data = base + entry->tensor.offset;
    }
    return CF_OK;
}

void cf_tensor_list_close(cf_tensor_list *list)
{
    for (size_t i = 0; i < list->n; i++)
        free(list->entries[i].name);
    free(list->entries);
}
