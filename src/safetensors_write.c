/* safetensors_write.c - tensors streamed into a file.
 *
 * (1) The final name is there only when the file is complete and on the disk.
 * (2) Tensors of larger elements come first, so that every tensor is aligned to
 *     its elements; within one size the order is the caller's.
 * (3) Values pass through one buffer: no second copy of the weights exists.
 * (4) Rank 0 makes the file with its head, every rank writes its tensors at
 *     their places, rank 0 gives the name.  After each of these the ranks agree.
 */
#include "src/safetensors.h"

#include "src/convert.h"
#include "src/files.h"
#include "src/log.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    BUFFER_ELEMENTS = 1 << 19,
    HEADER_ALIGN = 8
};

typedef struct out_file {
    cf_comm *comm;
    const char *path; /* final name, for messages */
    const char *temporary;
    cf_compute compute;
    const cf_tensor_source *sources;
    size_t n_sources;
    char *head; /* owned */
    size_t n_head;
    uint64_t bytes; /* of the whole file */
} out_file;

static cf_status fail(const out_file *out, const char *what)
{
    return cf_io_error(out->path, what, out->bytes);
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

static cf_status write_source(const out_file *out, int fd,
                              const cf_tensor_source *source, uint64_t offset,
                              void *buffer)
{
    const size_t element_bytes = cf_dtype_bytes(source->dtype);
    const char *data = source->data;
    const uint64_t n = source_elements(source);
    size_t n_now;

    for (uint64_t at = 0; at < n; at += n_now) {
        n_now = n - at < BUFFER_ELEMENTS ? n - at : BUFFER_ELEMENTS;
        cf_convert_write(out->compute, n_now,
                         data + at * cf_acc_bytes(out->compute), source->dtype,
                         buffer);
        if (!cf_convert_is_finite(source->dtype, n_now, buffer)) {
            cf_log_error("%s: tensor '%s' has a value that %s cannot hold: "
                         "export it with --export-dtype fp32",
                         out->path, source->name, cf_dtype_name(source->dtype));
            return CF_OVERFLOW;
        }
        if (cf_write_all_at(fd, buffer, n_now * element_bytes,
                            offset + at * element_bytes) != 0)
            return fail(out, "write it");
    }
    return CF_OK;
}

/* (2) */
static cf_status write_sources(const out_file *out, int fd)
{
    void *buffer = malloc(BUFFER_ELEMENTS * sizeof(double));
    uint64_t offset = out->n_head;
    cf_status status =
        buffer == NULL ? cf_log_no_memory("a tensor's buffer") : CF_OK;

    for (size_t bytes = 8; bytes >= 2; bytes /= 2)
        for (size_t i = 0; status == CF_OK && i < out->n_sources; i++) {
            const cf_tensor_source *source = &out->sources[i];

            if (cf_dtype_bytes(source->dtype) != bytes)
                continue;
            if (source->data != NULL)
                status = write_source(out, fd, source, offset, buffer);
            offset += source_elements(source) * bytes;
        }
    free(buffer);
    return status;
}

/* ---- file ---- */

/* Ask for the room at once, so that a full disk is told before hours of
 * writing; a file system that cannot say is asked again by every write. */
static cf_status reserve_room(const out_file *out, int fd)
{
    if (fallocate(fd, 0, 0, (off_t)out->bytes) != 0 &&
        (errno == ENOSPC || errno == EDQUOT || errno == EFBIG))
        return fail(out, "write it");
    return CF_OK;
}

static cf_status create(const out_file *out)
{
    const int fd =
        open(out->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    cf_status status;

    if (fd < 0)
        return fail(out, "create it");
    status = reserve_room(out, fd);
    if (status == CF_OK && cf_write_all_at(fd, out->head, out->n_head, 0) != 0)
        status = fail(out, "write it");
    if (close(fd) != 0 && status == CF_OK)
        status = fail(out, "close it");
    return status;
}

static cf_status write_part(const out_file *out)
{
    const int fd = open(out->temporary, O_WRONLY | O_CLOEXEC);
    cf_status status;

    if (fd < 0)
        return fail(out, "write it");
    status = write_sources(out, fd);
    if (status == CF_OK && fsync(fd) != 0)
        status = fail(out, "sync it");
    if (close(fd) != 0 && status == CF_OK)
        status = fail(out, "close it");
    return status;
}

static cf_status give_name(const out_file *out)
{
    if (rename(out->temporary, out->path) != 0)
        return fail(out, "give it its name");
    return cf_folder_sync_of(out->path);
}

/* (4).  `status` tells whether this rank is ready. */
static cf_status write_together(const out_file *out, cf_status status)
{
    const bool is_root = cf_comm_rank(out->comm) == 0;

    if (status == CF_OK && is_root)
        status = create(out);
    status = cf_comm_agree(out->comm, status);
    if (status == CF_OK)
        status = cf_comm_agree(out->comm, write_part(out));
    if (status == CF_OK && is_root)
        status = give_name(out);
    if (status != CF_OK && is_root && out->temporary != NULL)
        unlink(out->temporary);
    return cf_comm_agree(out->comm, status);
}

cf_status cf_tensors_write(cf_comm *comm, const char *path, cf_compute compute,
                           const cf_tensor_source *sources, size_t n_sources)
{
    char *temporary = cf_path_join(path, "", ".tmp");
    out_file out = {
        .comm = comm,
        .path = path,
        .temporary = temporary,
        .compute = compute,
        .sources = sources,
        .n_sources = n_sources,
    };
    uint64_t data_bytes = 0;
    cf_status status = CF_NO_MEMORY;

    if (temporary != NULL)
        status = cf_tensors_head_format(sources, n_sources, &out.head,
                                        &out.n_head, &data_bytes);
    out.bytes = out.n_head + data_bytes;
    status = write_together(&out, status);
    free(out.head);
    free(temporary);
    return status;
}
