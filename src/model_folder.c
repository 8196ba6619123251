/* model_folder.c - a fine-tuned Hugging Face folder out.
 *
 * (1) The index is made from what was written, not from what the model had:
 *     a tied head that is not in a file is not in the index.
 * (2) All ranks write the weights; rank 0 does all else.  They agree wherever
 *     one of them may have failed.
 */
#include "src/model_folder.h"

#include "src/convert.h"
#include "src/files.h"
#include "src/folder_write.h"
#include "src/json.h"
#include "src/log.h"
#include "src/model_config_text.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const uint64_t SHARD_BYTES_MAX = 5000000000;

/* What is to be written, for all ranks but the sources' data the same. */
typedef struct writing {
    cf_comm *comm;
    const char *from;
    cf_compute compute;
    const cf_tensor_source *sources;
    size_t n_sources;
    uint64_t bytes_max; /* of the tensors in one shard */
} writing;

static bool is_root(const writing *w)
{
    return cf_comm_rank(w->comm) == 0;
}

/* ---- small files ---- */

static cf_status read_text(const char *path, char **text_p, size_t *n_p)
{
    cf_status status = CF_OK;
    char *text = NULL;
    struct stat info;
    FILE *file = fopen(path, "re");

    if (file == NULL || fstat(fileno(file), &info) != 0) {
        status = cf_io_error(path, "read it", 0);
        goto close_file;
    }
    text = malloc((size_t)info.st_size + 1);
    if (text == NULL) {
        status = cf_log_no_memory(path);
        goto close_file;
    }
    *n_p = fread(text, 1, (size_t)info.st_size, file);
    if (ferror(file)) {
        status = cf_io_error(path, "read it", 0);
        free(text);
        goto close_file;
    }
    text[*n_p] = '\0';
    *text_p = text;

close_file:
    if (file != NULL)
        fclose(file);
    return status;
}

/* ---- weights ---- */

static uint64_t source_bytes(const cf_tensor_source *source)
{
    uint64_t bytes = cf_dtype_bytes(source->dtype);

    for (uint32_t i = 0; i < source->n_dims; i++)
        bytes *= source->dims[i];
    return bytes;
}

/* Sources from `first` on that go into one shard: as many as fit, at least
 * one. */
static size_t shard_length(const writing *w, size_t first)
{
    uint64_t bytes = 0;
    size_t n;

    for (n = 0; first + n < w->n_sources; n++) {
        bytes += source_bytes(&w->sources[first + n]);
        if (bytes > w->bytes_max && n > 0)
            break;
    }
    return n;
}

static size_t count_shards(const writing *w)
{
    size_t n_shards = 0;

    for (size_t i = 0; i < w->n_sources; n_shards++)
        i += shard_length(w, i);
    return n_shards;
}

static cf_status write_index(const writing *w, const char *folder,
                             json_t *weight_map)
{
    uint64_t total_bytes = 0;
    json_t *index;
    char *text;
    cf_status status;

    for (size_t i = 0; i < w->n_sources; i++)
        total_bytes += source_bytes(&w->sources[i]);
    index = json_pack("{s:{s:I}, s:O}", "metadata", "total_size",
                      (json_int_t)total_bytes, "weight_map", weight_map);
    text = json_dumps(index, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
    if (text != NULL)
        status = cf_folder_write_text(folder, "model.safetensors.index.json",
                                      text, strlen(text));
    else
        status = cf_log_no_memory("the index of the weights");
    free(text);
    json_decref(index);
    return status;
}

/* Sources first to first + n - 1, into one file and, under its name, into the
 * map. */
static cf_status write_shard(const writing *w, const char *folder,
                             const char *name, size_t first, size_t n,
                             json_t *weight_map)
{
    char *path = cf_path_join(folder, "/", name);
    cf_status status =
        cf_comm_agree(w->comm, path != NULL ? CF_OK : CF_NO_MEMORY);

    if (status == CF_OK)
        status =
            cf_tensors_write(w->comm, path, w->compute, w->sources + first, n);
    free(path);
    if (status != CF_OK)
        return status;
    for (size_t i = first; i < first + n; i++)
        if (json_object_set_new(weight_map, w->sources[i].name,
                                json_string(name)) != 0)
            status = cf_log_no_memory("the index of the weights");
    return cf_comm_agree(w->comm, status);
}

static cf_status write_shards(const writing *w, const char *folder,
                              json_t *weight_map)
{
    const size_t n_shards = count_shards(w);
    char name[64] = "model.safetensors";
    cf_status status = CF_OK;
    size_t first = 0;

    for (size_t shard = 1; status == CF_OK && shard <= n_shards; shard++) {
        const size_t n = shard_length(w, first);

        if (n_shards > 1)
            snprintf(name, sizeof(name), "model-%05zu-of-%05zu.safetensors",
                     shard, n_shards);
        status = write_shard(w, folder, name, first, n, weight_map);
        first += n;
    }
    if (status == CF_OK && n_shards > 1 && is_root(w))
        status = write_index(w, folder, weight_map);
    return cf_comm_agree(w->comm, status);
}

static cf_status write_weights(const writing *w, const char *folder)
{
    json_t *weight_map = json_object();
    cf_status status = cf_comm_agree(
        w->comm, weight_map == NULL
                     ? cf_log_no_memory("the index of the weights")
                     : CF_OK);

    if (status == CF_OK)
        status = write_shards(w, folder, weight_map);
    json_decref(weight_map);
    return status;
}

/* ---- what goes with the weights ---- */

/* The dtype of most tensors, as configs spell it. */
static const char *config_dtype(const cf_tensor_source *sources,
                                size_t n_sources)
{
    static const char *const NAMES[] = {
        [CF_DTYPE_F64] = "float64",
        [CF_DTYPE_F32] = "float32",
        [CF_DTYPE_F16] = "float16",
        [CF_DTYPE_BF16] = "bfloat16",
    };
    size_t counts[CF_DTYPE_BF16 + 1] = {0};
    size_t most = CF_DTYPE_F32;

    for (size_t i = 0; i < n_sources; i++)
        counts[sources[i].dtype]++;
    for (size_t i = 0; i <= CF_DTYPE_BF16; i++)
        if (counts[i] > counts[most])
            most = i;
    return NAMES[most];
}

static cf_status write_config(const char *from, const char *folder,
                              const char *dtype)
{
    char *path = cf_path_join(from, "/", "config.json");
    char *text = NULL, *edited = NULL;
    json_t *config = NULL;
    cf_status status = CF_NO_MEMORY;
    size_t n;

    if (path == NULL)
        return status;
    /* The editor relies on a text that is valid. */
    status = cf_json_load(path, &config);
    json_decref(config);
    if (status == CF_OK)
        status = read_text(path, &text, &n);
    if (status == CF_OK) {
        edited = cf_config_text_with_dtype(text, dtype);
        status = edited == NULL ? cf_log_no_memory(path)
                                : cf_folder_write_text(folder, "config.json",
                                                       edited, strlen(edited));
    }
    free(edited);
    free(text);
    free(path);
    return status;
}

static bool is_carried_name(const char *name)
{
    static const char *const NAMES[] = {
        "tokenizer.json",     "tokenizer_config.json",
        "tokenizer.model",    "special_tokens_map.json",
        "vocab.json",         "merges.txt",
        "added_tokens.json",  "chat_template.jinja",
        "chat_template.json", "generation_config.json",
    };

    for (size_t i = 0; i < sizeof(NAMES) / sizeof(NAMES[0]); i++)
        if (strcmp(name, NAMES[i]) == 0)
            return true;
    return strncmp(name, "LICENSE", 7) == 0 || strncmp(name, "NOTICE", 6) == 0;
}

/* Files only: a folder LICENSES, or a link to nowhere, is no reason to lose a
 * run in its last minute. */
static bool is_carried(DIR *dir, const char *name)
{
    struct stat info;

    return is_carried_name(name) && fstatat(dirfd(dir), name, &info, 0) == 0 &&
           S_ISREG(info.st_mode);
}

static cf_status copy_file(const char *from, const char *folder,
                           const char *name)
{
    char *path = cf_path_join(from, "/", name);
    char *text = NULL;
    cf_status status = CF_NO_MEMORY;
    size_t n;

    if (path != NULL)
        status = read_text(path, &text, &n);
    if (status == CF_OK)
        status = cf_folder_write_text(folder, name, text, n);
    free(text);
    free(path);
    return status;
}

static cf_status copy_files(const char *from, const char *folder)
{
    DIR *dir = opendir(from);
    const struct dirent *file;
    cf_status status = CF_OK;

    if (dir == NULL)
        return cf_io_error(from, "read the folder", 0);
    while (status == CF_OK && (file = readdir(dir)) != NULL)
        if (is_carried(dir, file->d_name))
            status = copy_file(from, folder, file->d_name);
    closedir(dir);
    return status;
}

/* ---- the folder ---- */

/* All but the weights. */
static cf_status begin_folder(const writing *w, const char *temporary)
{
    cf_status status = write_config(w->from, temporary,
                                    config_dtype(w->sources, w->n_sources));

    return status == CF_OK ? copy_files(w->from, temporary) : status;
}

static cf_status fill(const void *context, const char *temporary)
{
    const writing *w = context;
    cf_status status =
        cf_comm_agree(w->comm, is_root(w) ? begin_folder(w, temporary) : CF_OK);

    return status == CF_OK ? write_weights(w, temporary) : status;
}

cf_status cf_model_folder_write_shards(cf_comm *comm, const char *from,
                                       const char *to, cf_compute compute,
                                       const cf_tensor_source *sources,
                                       size_t n_sources, uint64_t bytes_max)
{
    const writing w = {comm, from, compute, sources, n_sources, bytes_max};

    return cf_folder_write(comm, to, fill, &w);
}

cf_status cf_model_folder_write(cf_comm *comm, const char *from, const char *to,
                                cf_compute compute,
                                const cf_tensor_source *sources,
                                size_t n_sources)
{
    return cf_model_folder_write_shards(comm, from, to, compute, sources,
                                        n_sources, SHARD_BYTES_MAX);
}
