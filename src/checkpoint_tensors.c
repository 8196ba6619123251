/* checkpoint_tensors.c - see checkpoint_tensors.h. */
#include "src/checkpoint_tensors.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/convert.h"
#include "src/files.h"
#include "src/hash.h"

enum {
    /* Hashed and written, or read and hashed, while in the cache. */
    AT_ONCE_BYTES = 1 << 20
};

static_assert(AT_ONCE_BYTES % (CF_NORM_BLOCK * sizeof(double)) == 0,
              "pieces are not cut by it");

static size_t smaller(uint64_t n, size_t limit)
{
    return n < limit ? (size_t)n : limit;
}

/* The sum of the hashes of the pieces of n bytes, which stand at offset. */
static uint64_t hash_pieces(const char *data, size_t n, size_t element_bytes,
                            uint64_t offset)
{
    const size_t piece_bytes = CF_NORM_BLOCK * element_bytes;
    uint64_t sum = 0;
    size_t n_now;

    for (size_t at = 0; at < n; at += n_now) {
        n_now = smaller(n - at, piece_bytes);
        sum += cf_hash_of(data + at, n_now, offset + at);
    }
    return sum;
}

/* ---- layout ---- */

/* A flat array whose tensors are in a file, under a prefix to their names. */
typedef struct tensor_array {
    const char *prefix;
    void *data;
    bool is_moment; /* else masters */
} tensor_array;

static bool is_in(const tensor_array *array, const cf_param *p)
{
    return array->is_moment ? p->trained : p->in_state;
}

/* The part of a tensor that is this rank's to write.  A frozen one is in no
 * shard: the first replica writes it. */
static cf_checkpoint_span span_of(const cf_model *model,
                                  const tensor_array *array, const cf_param *p,
                                  uint64_t offset)
{
    const size_t acc_bytes = model->kernels->acc_bytes;
    cf_extent part = cf_model_shard_of(model, p);
    void *data;

    if (!p->trained && p->owned && model->shard == 0)
        part = (cf_extent){.n = p->n};
    if (part.n == 0)
        return (cf_checkpoint_span){0};
    data = array->is_moment ? cf_model_moment_at(model, array->data, p)
                            : cf_at(cf_model_at(model, array->data, p),
                                    part.first * acc_bytes);
    return (cf_checkpoint_span){
        .data = data,
        .bytes = part.n * acc_bytes,
        .offset = offset + part.first * acc_bytes,
    };
}

/* The tensors of the arrays, in the order of the file; the caller frees their
 * names, *n_p of them after a failure too. */
static cf_status sources_list(const cf_model *model, const tensor_array *arrays,
                              size_t n_arrays, cf_tensor_source *sources,
                              size_t *n_p)
{
    const cf_dtype dtype = model->kernels->acc_bytes == sizeof(double)
                               ? CF_DTYPE_F64
                               : CF_DTYPE_F32;

    for (size_t c = 0; c < n_arrays; c++)
        for (size_t i = 0; i < model->n_params; i++) {
            const cf_param *p = &model->params[i];
            char *name;

            if (!is_in(&arrays[c], p))
                continue;
            name = cf_path_join(arrays[c].prefix, "", p->name);
            if (name == NULL)
                return CF_NO_MEMORY;
            sources[(*n_p)++] = (cf_tensor_source){
                .name = name,
                .dtype = dtype,
                .n_dims = p->n_dims,
                .dims = {p->dims[0], p->dims[1]},
            };
        }
    return CF_OK;
}

static cf_status head_make(const cf_model *model, const tensor_array *arrays,
                           size_t n_arrays, cf_checkpoint_tensors *file)
{
    cf_tensor_source *sources =
        calloc(n_arrays * model->n_params, sizeof(*sources));
    size_t n_sources = 0;
    uint64_t data_bytes;
    cf_status status = CF_NO_MEMORY;

    if (sources != NULL)
        status = sources_list(model, arrays, n_arrays, sources, &n_sources);
    if (status == CF_OK)
        status = cf_tensors_head_format(sources, n_sources, &file->head,
                                        &file->n_head, &data_bytes);
    if (status == CF_OK)
        file->bytes = file->n_head + data_bytes;
    for (size_t i = 0; i < n_sources; i++)
        free((char *)sources[i].name);
    free(sources);
    return status;
}

static cf_status file_lay_out(const cf_model *model, const tensor_array *arrays,
                              size_t n_arrays, cf_checkpoint_tensors *file)
{
    cf_status status = head_make(model, arrays, n_arrays, file);
    uint64_t offset = file->n_head;

    if (status != CF_OK)
        return status;
    file->element_bytes = model->kernels->acc_bytes;
    file->spans = calloc(n_arrays * model->n_params, sizeof(*file->spans));
    if (file->spans == NULL)
        return CF_NO_MEMORY;
    for (size_t c = 0; c < n_arrays; c++)
        for (size_t i = 0; i < model->n_params; i++) {
            const cf_param *p = &model->params[i];
            cf_checkpoint_span *span = &file->spans[file->n_spans];

            if (!is_in(&arrays[c], p))
                continue;
            *span = span_of(model, &arrays[c], p, offset);
            file->n_spans += span->bytes > 0;
            offset += p->n * file->element_bytes;
        }
    return CF_OK;
}

cf_status cf_checkpoint_tensors_open(const cf_model *model,
                                     cf_checkpoint_tensors *files)
{
    const tensor_array weights[] = {{"", model->masters, false}};
    const tensor_array moments[] = {{"exp_avg.", model->moment1, true},
                                    {"exp_avg_sq.", model->moment2, true}};
    cf_status status;

    files[0] = (cf_checkpoint_tensors){.name = "weights.safetensors",
                                       .stream = CF_FILE_STREAM_CLOSED};
    files[1] = (cf_checkpoint_tensors){.name = "moments.safetensors",
                                       .stream = CF_FILE_STREAM_CLOSED};
    status = file_lay_out(model, weights, 1, &files[0]);
    return status == CF_OK ? file_lay_out(model, moments, 2, &files[1])
                           : status;
}

void cf_checkpoint_tensors_close(cf_checkpoint_tensors *files)
{
    for (size_t i = 0; i < CF_CHECKPOINT_FILES; i++) {
        free(files[i].spans);
        free(files[i].head);
    }
}

/* ---- writing ---- */

/* A full disk is told before minutes of writing; a file system that cannot say
 * is asked again by every write. */
static int reserve_room(int fd, uint64_t bytes)
{
    if (fallocate(fd, 0, 0, (off_t)bytes) == 0)
        return 0;
    if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)
        return -1;
    return ftruncate(fd, (off_t)bytes);
}

const char *cf_checkpoint_tensors_create(const cf_checkpoint_tensors *file,
                                         const char *path)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    const char *what = NULL;

    if (fd < 0)
        return "create a file";
    if (reserve_room(fd, file->bytes) != 0 ||
        cf_write_all_at(fd, file->head, file->n_head, 0) != 0)
        what = "write the tensors";
    if (close(fd) != 0 && what == NULL)
        what = "close a file";
    return what;
}

static int write_span(cf_checkpoint_tensors *file,
                      const cf_checkpoint_span *span, uint64_t *hash_p)
{
    size_t n_now;

    for (size_t at = 0; at < span->bytes; at += n_now) {
        n_now = smaller(span->bytes - at, AT_ONCE_BYTES);
        *hash_p += hash_pieces(span->data + at, n_now, file->element_bytes,
                               span->offset + at);
        if (cf_file_stream_put(&file->stream, span->data + at, n_now,
                               span->offset + at) != 0)
            return -1;
    }
    return 0;
}

const char *cf_checkpoint_tensors_write(cf_checkpoint_tensors *file,
                                        const char *path, uint64_t *hash_p)
{
    if (cf_file_stream_open(&file->stream, path) != 0)
        return "open a file";
    for (size_t i = 0; i < file->n_spans; i++)
        if (write_span(file, &file->spans[i], hash_p) != 0)
            return "write the tensors";
    return cf_file_stream_flush(&file->stream) == 0 ? NULL
                                                    : "write the tensors";
}

const char *cf_checkpoint_tensors_sync(cf_checkpoint_tensors *file)
{
    const char *what = NULL;

    if (file->stream.fd >= 0 && cf_file_stream_sync(&file->stream) != 0)
        what = "sync the tensors";
    if (cf_file_stream_close(&file->stream) != 0 && what == NULL)
        what = "close a file";
    return what;
}

/* ---- checking ---- */

static const char cannot_be_read[] = "a file of it cannot be read";
static const char not_its_checksum[] =
    "a file of it does not have its checksum";

/* The header with the length in front of it: what says where the tensors are
 * has to be right before it is believed. */
static const char *header_check(int fd, const cf_checkpoint_file *said,
                                char *buffer)
{
    uint64_t length, end;
    cf_hash hash;
    size_t n_now;

    if (cf_read_all_at(fd, &length, sizeof(length), 0) != 0)
        return cannot_be_read;
    length = le64toh(length);
    if (length > said->bytes - sizeof(length))
        return not_its_checksum;
    end = sizeof(length) + length;
    cf_hash_begin(&hash);
    for (uint64_t at = 0; at < end; at += n_now) {
        n_now = smaller(end - at, AT_ONCE_BYTES);
        if (cf_read_all_at(fd, buffer, n_now, at) != 0)
            return cannot_be_read;
        cf_hash_append(&hash, buffer, n_now);
    }
    return cf_hash_end(&hash) == said->header_hash ? NULL : not_its_checksum;
}

/* Read and not mapped: a disk that is failing gives an error, not a signal. */
static const char *tensors_check(int fd, const cf_checkpoint_file *said,
                                 const cf_tensors *tensors, char *buffer)
{
    uint64_t hash = 0;

    for (size_t i = 0; i < cf_tensors_count(tensors); i++) {
        const cf_tensor *tensor = cf_tensors_at(tensors, i);
        const size_t element_bytes = cf_dtype_bytes(tensor->dtype);
        const uint64_t end = tensor->offset + tensor->n * element_bytes;
        size_t n_now;

        for (uint64_t at = tensor->offset; at < end; at += n_now) {
            n_now = smaller(end - at, AT_ONCE_BYTES);
            if (cf_read_all_at(fd, buffer, n_now, at) != 0)
                return cannot_be_read;
            hash += hash_pieces(buffer, n_now, element_bytes, at);
        }
    }
    return hash == said->tensors_hash ? NULL : not_its_checksum;
}

static const char *content_check(const char *path, int fd,
                                 const cf_checkpoint_file *said, char *buffer)
{
    const char *why = header_check(fd, said, buffer);
    cf_tensors *tensors;

    if (why != NULL)
        return why;
    if (cf_tensors_open_file(path, &tensors) != CF_OK)
        return cannot_be_read;
    why = tensors_check(fd, said, tensors, buffer);
    cf_tensors_close(tensors);
    return why;
}

const char *cf_checkpoint_tensors_check(const char *path,
                                        const cf_checkpoint_file *said)
{
    char *buffer = malloc(AT_ONCE_BYTES);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const char *why;
    struct stat info;

    if (buffer == NULL)
        why = "out of memory";
    else if (fd < 0 || fstat(fd, &info) != 0 || !S_ISREG(info.st_mode))
        why = "a file of it is missing";
    else if ((uint64_t)info.st_size != said->bytes ||
             said->bytes < sizeof(uint64_t))
        why = "a file of it does not have its size";
    else
        why = content_check(path, fd, said, buffer);
    if (fd >= 0)
        close(fd);
    free(buffer);
    return why;
}
