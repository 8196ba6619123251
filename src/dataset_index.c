/* dataset_index.c - the index of a JSONL file (dataset_index.h).
 *
 * .NAME.cfidx beside the data, or HASH.cfidx in $XDG_CACHE_HOME/chunkflow (else
 * ~/.cache/chunkflow) where that folder cannot be written:
 *
 *     header   index_header
 *     lines    cf_index_line each
 *     names    of the sources, each with a NUL behind it
 *
 * (1) An index is used only when its checksum is right and the data file has the
 *     size, the time of change and the sampled content that it had; anything else
 *     is no index, and the data is read again.
 * (2) That does not prove that no byte in between has changed, nor that the index
 *     is honest: so every offset and every count (a token is a byte at least) is
 *     checked here, and every line that is decoded is held against its hash
 *     (dataset_jsonl.c).
 * (3) It appears under its name by rename, complete.
 */
#include "src/dataset_index.h"

#include "src/files.h"
#include "src/log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The last byte is the version of the format. */
static const char magic[8] = {'C', 'F', 'J', 'S', 'O', 'N', 'L', 1};

typedef struct index_header {
    char magic[8];
    cf_file_stamp stamp;
    uint64_t n_lines;
    uint64_t names_bytes;
    uint32_t n_names;
    uint32_t largest;
    uint64_t checksum; /* of everything but itself */
} index_header;

_Static_assert(sizeof(index_header) == 72 && sizeof(cf_index_line) == 32,
               "no holes: they would be written");

enum {
    SAMPLE_BYTES = 4096,
    N_SAMPLES = 64
};

/* ---- stamps and checksums ---- */

bool cf_file_stamp_read(int fd, cf_file_stamp *stamp_p)
{
    struct stat info;
    cf_hash hash;

    cf_hash_begin(&hash);
    if (fstat(fd, &info) != 0)
        return false;
    for (off_t i = 0; i < N_SAMPLES; i++) {
        const off_t last =
            info.st_size > SAMPLE_BYTES ? info.st_size - SAMPLE_BYTES : 0;
        const off_t at = i < N_SAMPLES - 1 ? last / (N_SAMPLES - 1) * i : last;
        char bytes[SAMPLE_BYTES];
        const ssize_t n = pread(fd, bytes, sizeof(bytes), at);

        if (n < 0)
            return false;
        cf_hash_append(&hash, bytes, (size_t)n);
    }
    *stamp_p = (cf_file_stamp){
        .bytes = (uint64_t)info.st_size,
        .mtime_s = info.st_mtim.tv_sec,
        .mtime_ns = info.st_mtim.tv_nsec,
        .sample = cf_hash_end(&hash),
    };
    return true;
}

bool cf_file_stamp_equal(const cf_file_stamp *a, const cf_file_stamp *b)
{
    return a->bytes == b->bytes && a->mtime_s == b->mtime_s &&
           a->mtime_ns == b->mtime_ns && a->sample == b->sample;
}

static uint64_t checksum_of(const index_header *header,
                            const cf_index_line *lines, const char *names)
{
    cf_hash hash;

    cf_hash_begin(&hash);
    cf_hash_append(&hash, header, offsetof(index_header, checksum));
    cf_hash_append(&hash, lines, header->n_lines * sizeof(*lines));
    cf_hash_append(&hash, names, header->names_bytes);
    return cf_hash_end(&hash);
}

/* ---- where ---- */

/* Both free() the path; NULL when there is none. */
static char *path_beside(const char *path)
{
    const char *slash = strrchr(path, '/');
    const int n_folder = slash != NULL ? (int)(slash + 1 - path) : 0;
    char *beside;

    return asprintf(&beside, "%.*s.%s.cfidx", n_folder, path, path + n_folder) <
                   0
               ? NULL
               : beside;
}

/* By content: a moved or copied file finds it. */
static char *path_in_cache(const cf_file_stamp *stamp)
{
    const char *cache = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME");
    const char *below = "";
    cf_hash hash;
    char *path;

    if (cache == NULL || cache[0] != '/') {
        cache = home;
        below = "/.cache";
    }
    if (cache == NULL || cache[0] != '/')
        return NULL;
    cf_hash_begin(&hash);
    cf_hash_append(&hash, stamp, sizeof(*stamp));
    return asprintf(&path, "%s%s/chunkflow/%016" PRIx64 ".cfidx", cache, below,
                    cf_hash_end(&hash)) < 0
               ? NULL
               : path;
}

/* ---- reading ---- */

static bool lines_are_inside(const cf_jsonl_index *index, uint64_t file_bytes)
{
    for (size_t i = 0; i < index->n; i++) {
        const cf_index_line *line = &index->lines[i];

        if (line->offset > file_bytes ||
            line->n_bytes > file_bytes - line->offset || line->n_bytes == 0 ||
            line->n_tok > line->n_bytes || line->n_tok == UINT32_MAX ||
            line->n_targets > (line->n_tok > 0 ? line->n_tok - 1 : 0) ||
            (line->source != CF_INDEX_NO_SOURCE &&
             line->source >= index->sources.n))
            return false;
    }
    return true;
}

/* CF_MALFORMED, not logged, when they are not n_names different ones. */
static cf_status names_split(const index_header *header, const char *names,
                             cf_name_list *list)
{
    const char *end = names + header->names_bytes;
    cf_status status = CF_OK;

    if (header->names_bytes > 0 && end[-1] != '\0')
        return CF_MALFORMED;
    while (status == CF_OK && names < end) {
        uint32_t number;

        status = cf_name_list_append(list, names, &number);
        names += strlen(names) + 1;
    }
    if (status == CF_OK && list->n != header->n_names)
        status = CF_MALFORMED;
    return status;
}

/* CF_MALFORMED, not logged, when it is not an index of this content. */
static cf_status read_from(FILE *file, const cf_file_stamp *stamp,
                           cf_jsonl_index *index)
{
    index_header header;
    struct stat info;
    uint64_t room;
    char *names;
    cf_status status = CF_MALFORMED;

    if (fstat(fileno(file), &info) != 0 ||
        fread(&header, sizeof(header), 1, file) != 1 ||
        memcmp(header.magic, magic, sizeof(magic)) != 0 ||
        !cf_file_stamp_equal(&header.stamp, stamp))
        return CF_MALFORMED;
    room = (uint64_t)info.st_size - sizeof(header);
    if (header.n_lines > room / sizeof(*index->lines) ||
        header.names_bytes != room - header.n_lines * sizeof(*index->lines))
        return CF_MALFORMED;
    index->n = index->capacity = header.n_lines;
    index->largest = header.largest;
    index->lines = malloc(header.n_lines * sizeof(*index->lines) + 1);
    names = malloc(header.names_bytes + 1);
    if (index->lines == NULL || names == NULL)
        status = CF_NO_MEMORY;
    else if (fread(index->lines, sizeof(*index->lines), index->n, file) ==
                 index->n &&
             fread(names, 1, header.names_bytes, file) == header.names_bytes &&
             checksum_of(&header, index->lines, names) == header.checksum)
        status = names_split(&header, names, &index->sources);
    if (status == CF_OK && !lines_are_inside(index, stamp->bytes))
        status = CF_MALFORMED;
    free(names);
    return status;
}

static cf_status read_path(const char *path, const cf_file_stamp *stamp,
                           cf_jsonl_index *index_p)
{
    cf_jsonl_index index = {0};
    FILE *file = fopen(path, "re");
    cf_status status;

    if (file == NULL)
        return CF_MALFORMED;
    status = read_from(file, stamp, &index);
    (void)fclose(file);
    if (status == CF_OK)
        *index_p = index;
    else
        cf_jsonl_index_close(&index);
    return status;
}

cf_status cf_jsonl_index_read(const char *path, const cf_file_stamp *stamp,
                              cf_jsonl_index *index_p, bool *found_p)
{
    char *paths[] = {path_beside(path), path_in_cache(stamp)};
    cf_status status = CF_MALFORMED;

    for (size_t i = 0; i < 2; i++) {
        if (paths[i] != NULL && status == CF_MALFORMED)
            status = read_path(paths[i], stamp, index_p);
        free(paths[i]);
    }
    *found_p = status == CF_OK;
    return status == CF_MALFORMED ? CF_OK : status;
}

/* ---- writing ---- */

/* The names one behind the other; free() them.  NULL when out of memory. */
static char *names_join(const cf_name_list *list, uint64_t *n_bytes_p)
{
    uint64_t n = 0;
    char *names;

    for (size_t i = 0; i < list->n; i++)
        n += strlen(list->names[i]) + 1;
    names = malloc(n + 1);
    if (names == NULL)
        return NULL;
    n = 0;
    for (size_t i = 0; i < list->n; i++) {
        const size_t n_name = strlen(list->names[i]) + 1;

        memcpy(names + n, list->names[i], n_name);
        n += n_name;
    }
    *n_bytes_p = n;
    return names;
}

static bool write_to(int fd, const index_header *header,
                     const cf_index_line *lines, const char *names)
{
    return cf_write_all(fd, header, sizeof(*header)) == 0 &&
           cf_write_all(fd, lines, header->n_lines * sizeof(*lines)) == 0 &&
           cf_write_all(fd, names, header->names_bytes) == 0;
}

/* The temporary name has the process in it: ranks of one run write the same
 * index at the same time.  Not synced: a half-written one has a wrong sum. */
static bool write_path(const char *path, const index_header *header,
                       const cf_index_line *lines, const char *names)
{
    char *temporary;
    bool good;
    int fd;

    if (asprintf(&temporary, "%s.%ld", path, (long)getpid()) < 0)
        return false;
    fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    good = fd >= 0 && write_to(fd, header, lines, names);
    if (fd >= 0) {
        good = close(fd) == 0 && good;
        good = good && rename(temporary, path) == 0;
        if (!good)
            (void)unlink(temporary);
    }
    free(temporary);
    return good;
}

/* The two folders that may be missing. */
static void folders_make(const char *path)
{
    char *folder = strdup(path);
    char *above = strdup(path);

    if (folder != NULL && above != NULL) {
        (void)mkdir(dirname(dirname(above)), 0700);
        (void)mkdir(dirname(folder), 0700);
    }
    free(folder);
    free(above);
}

void cf_jsonl_index_write(const char *path, const cf_file_stamp *stamp,
                          const cf_jsonl_index *index)
{
    index_header header = {
        .stamp = *stamp,
        .n_lines = index->n,
        .n_names = (uint32_t)index->sources.n,
        .largest = index->largest,
    };
    char *names = names_join(&index->sources, &header.names_bytes);
    char *beside = path_beside(path);
    char *cached = path_in_cache(stamp);
    bool kept = false;

    if (names != NULL) {
        memcpy(header.magic, magic, sizeof(magic));
        header.checksum = checksum_of(&header, index->lines, names);
    }
    if (names != NULL && beside != NULL)
        kept = write_path(beside, &header, index->lines, names);
    if (names != NULL && cached != NULL && !kept) {
        folders_make(cached);
        kept = write_path(cached, &header, index->lines, names);
    }
    if (!kept)
        cf_log_warn(
            "%s: its index can be kept neither in %s nor in %s, so that "
            "every start will read the whole file",
            path, beside != NULL ? beside : "its folder",
            cached != NULL ? cached : "a cache folder (set HOME)");
    free(cached);
    free(beside);
    free(names);
}

void cf_jsonl_index_close(cf_jsonl_index *index)
{
    free(index->lines);
    cf_name_list_close(&index->sources);
    *index = (cf_jsonl_index){0};
}
