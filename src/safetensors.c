/* safetensors.c - tensors in files, mapped to be read.
 *
 * (1) One name is one tensor, over all shards.
 * (2) Of an index only files of its own folder are opened, and what it says of
 *     them must be so.
 */
#include "src/safetensors.h"

#include "src/convert.h"
#include "src/files.h"
#include "src/json.h"
#include "src/log.h"
#include "src/safetensors_header.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct mapped_file {
    char *path; /* owned */
    const unsigned char *base;
    uint64_t bytes;
} mapped_file;

struct cf_tensors {
    mapped_file *files;
    size_t n_files;
    cf_tensor_list list; /* in ascending order of names once open */
};

/* ---- one file ---- */

static cf_status map_file(const char *path, mapped_file *file)
{
    struct stat info;
    void *base;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0 || fstat(fd, &info) != 0) {
        cf_log_error("%s: cannot open it: %s; check the path", path,
                     strerror(errno));
        goto close_fd;
    }
    if (!S_ISREG(info.st_mode) || info.st_size == 0) {
        cf_log_error("%s: empty, or not a file; fetch it again", path);
        goto close_fd;
    }
    base = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (base == MAP_FAILED) {
        cf_log_error("%s: cannot map it: %s; check ulimit -v", path,
                     strerror(errno));
        goto close_fd;
    }
    close(fd);
    file->base = base;
    file->bytes = (uint64_t)info.st_size;
    return CF_OK;

close_fd:
    if (fd >= 0)
        close(fd);
    return CF_MALFORMED;
}

/* Add all tensors of a file.  After a failure, close frees what was added. */
static cf_status append_file(cf_tensors *tensors, const char *path)
{
    mapped_file *file =
        reallocarray(tensors->files, tensors->n_files + 1, sizeof(*file));
    cf_status status;

    if (file == NULL)
        return cf_log_no_memory(path);
    tensors->files = file;
    file += tensors->n_files;
    file->path = strdup(path);
    if (file->path == NULL)
        return cf_log_no_memory(path);
    status = map_file(path, file);
    if (status != CF_OK) {
        free(file->path);
        return status;
    }
    tensors->n_files++;
    return cf_tensor_list_append(&tensors->list, file->path,
                                 tensors->n_files - 1, file->base, file->bytes);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const cf_tensor_entry *)a)->name,
                  ((const cf_tensor_entry *)b)->name);
}

static const cf_tensor_entry *find_entry(const cf_tensors *tensors,
                                         const char *name)
{
    const cf_tensor_entry key = {.name = (char *)name};

    if (tensors->list.n == 0)
        return NULL;
    return bsearch(&key, tensors->list.entries, tensors->list.n, sizeof(key),
                   compare_names);
}

/* (1), and the order that find relies on. */
static cf_status sort_entries(cf_tensors *tensors)
{
    const cf_tensor_entry *e = tensors->list.entries;

    if (tensors->list.n > 0)
        qsort(tensors->list.entries, tensors->list.n, sizeof(cf_tensor_entry),
              compare_names);
    for (size_t i = 1; i < tensors->list.n; i++)
        if (strcmp(e[i - 1].name, e[i].name) == 0) {
            cf_log_error("%s: tensor \"%s\" is also in %s; fetch the model "
                         "again",
                         e[i].tensor.path, e[i].name, e[i - 1].tensor.path);
            return CF_MALFORMED;
        }
    return CF_OK;
}

/* ---- a folder ---- */

/* (2) */
static bool is_plain_name(const char *name)
{
    return name != NULL && name[0] != '\0' && name[0] != '.' &&
           strchr(name, '/') == NULL;
}

/* The number of a shard among those that are open; n_files when it is not. */
static size_t find_file(const cf_tensors *tensors, const char *name)
{
    size_t file;

    for (file = 0; file < tensors->n_files; file++)
        if (strcmp(strrchr(tensors->files[file].path, '/') + 1, name) == 0)
            break;
    return file;
}

static cf_status append_shards(cf_tensors *tensors, const char *folder,
                               const char *index_path, json_t *weight_map)
{
    for (void *at = json_object_iter(weight_map); at != NULL;
         at = json_object_iter_next(weight_map, at)) {
        const char *name = json_string_value(json_object_iter_value(at));
        cf_status status;
        char *path;

        if (!is_plain_name(name)) {
            cf_log_error("%s: tensor \"%s\" is not given the name of a file in "
                         "this folder; fetch the model again",
                         index_path, json_object_iter_key(at));
            return CF_MALFORMED;
        }
        if (find_file(tensors, name) < tensors->n_files)
            continue;
        path = cf_path_join(folder, "/", name);
        if (path == NULL)
            return CF_NO_MEMORY;
        status = append_file(tensors, path);
        free(path);
        if (status != CF_OK)
            return status;
    }
    return CF_OK;
}

static cf_status check_index(const cf_tensors *tensors, const char *index_path,
                             json_t *weight_map)
{
    for (void *at = json_object_iter(weight_map); at != NULL;
         at = json_object_iter_next(weight_map, at)) {
        const char *name = json_object_iter_key(at);
        const char *shard = json_string_value(json_object_iter_value(at));
        const cf_tensor_entry *e = find_entry(tensors, name);

        if (e == NULL || e->file != find_file(tensors, shard)) {
            cf_log_error("%s: tensor \"%s\" is not in %s as it says; fetch the "
                         "model again",
                         index_path, name, shard);
            return CF_MALFORMED;
        }
    }
    return CF_OK;
}

static cf_status open_index(const char *folder, const char *index_path,
                            cf_tensors *tensors)
{
    json_t *index, *weight_map;
    cf_status status = cf_json_load(index_path, &index);

    if (status != CF_OK)
        return status;
    weight_map = json_object_get(index, "weight_map");
    if (!json_is_object(weight_map) || json_object_size(weight_map) == 0) {
        cf_log_error("%s: field \"weight_map\" must be an object that names "
                     "the file of each tensor; fetch the model again",
                     index_path);
        status = CF_MALFORMED;
        goto free_index;
    }
    status = append_shards(tensors, folder, index_path, weight_map);
    if (status == CF_OK)
        status = sort_entries(tensors);
    if (status == CF_OK)
        status = check_index(tensors, index_path, weight_map);

free_index:
    json_decref(index);
    return status;
}

static cf_status open_single(const char *path, cf_tensors *tensors)
{
    cf_status status = append_file(tensors, path);

    return status == CF_OK ? sort_entries(tensors) : status;
}

/* Whether the weights of a folder are one file or shards. */
static cf_status find_weights(const char *folder, const char *single,
                              const char *index, bool *sharded_p)
{
    struct stat info;

    if (stat(folder, &info) != 0) {
        cf_log_error("%s: cannot open the model folder: %s; check the path",
                     folder, strerror(errno));
        return CF_MALFORMED;
    }
    if (!S_ISDIR(info.st_mode)) {
        cf_log_error("%s: not a folder; name the folder that holds config.json "
                     "and model.safetensors",
                     folder);
        return CF_MALFORMED;
    }
    if (access(single, F_OK) == 0) {
        *sharded_p = false;
        return CF_OK;
    }
    if (access(index, F_OK) == 0) {
        *sharded_p = true;
        return CF_OK;
    }
    cf_log_error("%s: no model.safetensors and no model.safetensors.index.json "
                 "in it (%s); name a model folder with safetensors weights",
                 folder, strerror(errno));
    return CF_MALFORMED;
}

cf_status cf_tensors_open_folder(const char *folder, cf_tensors **tensors_p)
{
    char *single = cf_path_join(folder, "/", "model.safetensors");
    char *index = cf_path_join(folder, "/", "model.safetensors.index.json");
    cf_tensors *tensors = calloc(1, sizeof(*tensors));
    cf_status status = CF_NO_MEMORY;
    bool sharded;

    if (tensors == NULL)
        (void)cf_log_no_memory(folder);
    else if (single != NULL && index != NULL)
        status = find_weights(folder, single, index, &sharded);
    if (status == CF_OK)
        status = sharded ? open_index(folder, index, tensors)
                         : open_single(single, tensors);
    free(single);
    free(index);
    if (status != CF_OK) {
        cf_tensors_close(tensors);
        return status;
    }
    *tensors_p = tensors;
    return CF_OK;
}

cf_status cf_tensors_open_file(const char *path, cf_tensors **tensors_p)
{
    cf_tensors *tensors = calloc(1, sizeof(*tensors));
    cf_status status =
        tensors == NULL ? cf_log_no_memory(path) : open_single(path, tensors);

    if (status != CF_OK) {
        cf_tensors_close(tensors);
        return status;
    }
    *tensors_p = tensors;
    return CF_OK;
}

void cf_tensors_close(cf_tensors *tensors)
{
    if (tensors == NULL)
        return;
    for (size_t i = 0; i < tensors->n_files; i++) {
        munmap((void *)tensors->files[i].base, tensors->files[i].bytes);
        free(tensors->files[i].path);
    }
    cf_tensor_list_close(&tensors->list);
    free(tensors->files);
    free(tensors);
}

/* ---- what is open ---- */

size_t cf_tensors_count(const cf_tensors *tensors)
{
    return tensors->list.n;
}

const cf_tensor *cf_tensors_at(const cf_tensors *tensors, size_t index)
{
    assert(index < tensors->list.n);
    return &tensors->list.entries[index].tensor;
}

const cf_tensor *cf_tensors_find(const cf_tensors *tensors, const char *name)
{
    const cf_tensor_entry *e = find_entry(tensors, name);

    return e == NULL ? NULL : &e->tensor;
}

void cf_tensor_read(const cf_tensor *tensor, uint64_t first, size_t n,
                    cf_compute compute, void *dst)
{
    const char *data = tensor->data;

    assert(first <= tensor->n && n <= tensor->n - first);
    cf_convert_read(tensor->dtype, n,
                    data + first * cf_dtype_bytes(tensor->dtype), compute, dst);
}

void cf_tensor_release(const cf_tensor *tensor)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = (uintptr_t)tensor->data;
    uintptr_t end = begin + tensor->n * cf_dtype_bytes(tensor->dtype);

    /* Only whole pages: those at the ends hold other tensors too. */
    begin = (begin + page - 1) / page * page;
    end = end / page * page;
    if (begin < end)
        (void)madvise((void *)begin, end - begin, MADV_DONTNEED);
}
