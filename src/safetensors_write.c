/* safetensors_write.c - tensors streamed into a file.
 *
 * (1) The final name is there only when the file is complete and on the disk.
 * (2) Tensors of larger elements come first, so that every tensor is aligned to
 *     its elements; within one size the order is the caller's.
 * (3) Values pass through one buffer: no second copy of the weights exists.
 */
#include "src/safetensors.h"

#include "src/convert.h"
#include "src/files.h"
#include "src/log.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    BUFFER_ELEMENTS = 1 << 19,
    HEADER_ALIGN = 8
};

typedef struct out_file {
    const char *path; /* final name, for messages */
    const char *temporary;
    int fd;
    uint64_t bytes; /* of the whole file */
} out_file;

static cf_status fail(const out_file *out, const char *what)
{
    return cf_io_error(out->path, what, out->bytes);
}

static cf_status write_bytes(const out_file *out, const void *bytes, size_t n)
{
    if (cf_write_all(out->fd, bytes, n) != 0)
        return fail(out, "write it");
    return CF_OK;
}

/* ---- header ---- */

static uint64_t source_elements(const cf_tensor_source *source)
{
    uint64_t n = 1;

    for (uint32_t i = 0; i < source->n_dims; i++)
        n *= source->dims[i];
    return n;
}

static json_t *describe_source(const cf_tensor_source *source, uint64_t begin,
                               uint64_t end)
{
    json_t *shape = json_array();

    for (uint32_t i = 0; i < source->n_dims; i++)
        json_array_append_new(shape, json_integer((json_int_t)source->dims[i]));
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype",
                     cf_dtype_name(source->dtype), "shape", shape,
                     "data_offsets", (json_int_t)begin, (json_int_t)end);
}

/* The tensors of one element size, behind `end` bytes of others. */
static cf_status describe_size(json_t *header, size_t element_bytes,
                               const cf_tensor_source *sources,
                               size_t n_sources, uint64_t *end_p)
{
    for (size_t i = 0; i < n_sources; i++) {
        uint64_t begin = *end_p;

        if (cf_dtype_bytes(sources[i].dtype) != element_bytes)
            continue;
        *end_p += source_elements(&sources[i]) * element_bytes;
        if (json_object_set_new(header, sources[i].name,
                                describe_source(&sources[i], begin, *end_p)) !=
            0)
            return cf_log_no_memory("the header of the tensors");
    }
    return CF_OK;
}

/* The header's JSON, free() it, and the bytes of the data behind it. */
static cf_status format_header(const cf_tensor_source *sources,
                               size_t n_sources, char **text_p,
                               uint64_t *data_bytes_p)
{
    json_t *header = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    uint64_t data_bytes = 0;
    cf_status status = CF_OK;
    char *text = NULL;

    if (header == NULL)
        return cf_log_no_memory("the header of the tensors");
    for (size_t bytes = 8; status == CF_OK && bytes >= 2; bytes /= 2)
        status = describe_size(header, bytes, sources, n_sources, &data_bytes);
    if (status == CF_OK) {
        text = json_dumps(header, JSON_COMPACT | JSON_PRESERVE_ORDER);
        if (text == NULL)
            status = cf_log_no_memory("the header of the tensors");
    }
    json_decref(header);
    if (status != CF_OK)
        return status;
    *text_p = text;
    *data_bytes_p = data_bytes;
    return CF_OK;
}

cf_status cf_tensors_head_format(const cf_tensor_source *sources,
                                 size_t n_sources, char **head_p,
                                 size_t *n_head_p, uint64_t *data_bytes_p)
{
    char *text = NULL, *head;
    uint64_t length;
    size_t n;
    cf_status status = format_header(sources, n_sources, &text, data_bytes_p);

    if (status != CF_OK)
        return status;
    n = (strlen(text) + HEADER_ALIGN - 1) / HEADER_ALIGN * HEADER_ALIGN;
    head = malloc(sizeof(length) + n);
    if (head != NULL) {
        length = htole64(n);
        memcpy(head, &length, sizeof(length));
        memset(head + sizeof(length), ' ', n);
        memcpy(head + sizeof(length), text, strlen(text));
        *head_p = head;
        *n_head_p = sizeof(length) + n;
    }
    free(text);
    return head == NULL ? cf_log_no_memory("the header of the tensors") : CF_OK;
}

/* ---- data ---- */

static cf_status write_source(const out_file *out, cf_compute compute,
                              const cf_tensor_source *source, void *buffer)
{
    uint64_t n = source_elements(source);
    const char *data = source->data;
    size_t n_now;

    for (uint64_t at = 0; at < n; at += n_now) {
        cf_status status;

        n_now = n - at < BUFFER_ELEMENTS ? n - at : BUFFER_ELEMENTS;
        cf_convert_write(compute, n_now, data + at * cf_acc_bytes(compute),
                         source->dtype, buffer);
        status =
            write_bytes(out, buffer, n_now * cf_dtype_bytes(source->dtype));
        if (status != CF_OK)
            return status;
    }
    return CF_OK;
}

static cf_status write_data(const out_file *out, cf_compute compute,
                            const cf_tensor_source *sources, size_t n_sources)
{
    void *buffer = malloc(BUFFER_ELEMENTS * sizeof(double));
    cf_status status =
        buffer == NULL ? cf_log_no_memory("a tensor's buffer") : CF_OK;

    for (size_t bytes = 8; bytes >= 2; bytes /= 2)
        for (size_t i = 0; status == CF_OK && i < n_sources; i++)
            if (cf_dtype_bytes(sources[i].dtype) == bytes)
                status = write_source(out, compute, &sources[i], buffer);
    free(buffer);
    return status;
}

/* ---- file ---- */

/* Ask for the room at once, so that a full disk is told before hours of
 * writing; a file system that cannot say is asked again by every write. */
static cf_status reserve_room(const out_file *out)
{
    if (fallocate(out->fd, 0, 0, (off_t)out->bytes) != 0 &&
        (errno == ENOSPC || errno == EDQUOT || errno == EFBIG))
        return fail(out, "write it");
    return CF_OK;
}

static cf_status write_temporary(out_file *out, const char *head, size_t n_head,
                                 cf_compute compute,
                                 const cf_tensor_source *sources,
                                 size_t n_sources)
{
    cf_status status;

    out->fd =
        open(out->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (out->fd < 0)
        return fail(out, "create it");
    status = reserve_room(out);
    if (status == CF_OK)
        status = write_bytes(out, head, n_head);
    if (status == CF_OK)
        status = write_data(out, compute, sources, n_sources);
    if (status == CF_OK && fsync(out->fd) != 0)
        status = fail(out, "sync it");
    if (close(out->fd) != 0 && status == CF_OK)
        status = fail(out, "close it");
    if (status == CF_OK && rename(out->temporary, out->path) != 0)
        status = fail(out, "give it its name");
    if (status != CF_OK)
        unlink(out->temporary);
    return status;
}

cf_status cf_tensors_write(const char *path, cf_compute compute,
                           const cf_tensor_source *sources, size_t n_sources)
{
    char *temporary = cf_path_join(path, "", ".tmp");
    out_file out = {.path = path, .temporary = temporary, .fd = -1};
    char *head = NULL;
    size_t n_head = 0;
    uint64_t data_bytes = 0;
    cf_status status = CF_NO_MEMORY;

    if (temporary == NULL)
        return status;
    status =
        cf_tensors_head_format(sources, n_sources, &head, &n_head, &data_bytes);
    if (status == CF_OK) {
        out.bytes = n_head + data_bytes;
        status =
            write_temporary(&out, head, n_head, compute, sources, n_sources);
    }
    if (status == CF_OK)
        status = cf_folder_sync_of(path);
    free(head);
    free(temporary);
    return status;
}
