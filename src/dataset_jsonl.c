/* dataset_jsonl.c - pre-tokenised JSONL, {"input_ids": [...], "labels": [...]}.
 *
 * The first time, the file is read once, line by line, and checked; what stays
 * is where each line is, and for a large file it is kept for the next start
 * (dataset_index.h).  Lines are decoded when they are asked for.
 *
 * (1) Line n + 1 is sequence n: an empty line is an error, except behind the
 *     last one.
 * (2) A line is decoded again by the same rules, and its tokens and targets must
 *     have the hash that they had when it was checked: nothing that was not
 *     checked is ever handed out, even when the file changes under a run.
 */
#include "src/dataset_index.h"
#include "src/dataset_line.h"
#include "src/dataset_part.h"

#include "src/log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Smaller files are read in a blink, and get no second file beside them. */
#define KEEP_INDEX_FROM_BYTES (16U << 20)

typedef struct jsonl_part {
    char *path;
    int fd;
    uint32_t vocab;
    cf_jsonl_index index;
    cf_line line; /* the one read last */
    char *text;   /* its bytes, when it is decoded */
    size_t text_bytes;
} jsonl_part;

static void part_close(void *state)
{
    jsonl_part *part = state;

    if (part->fd >= 0)
        (void)close(part->fd);
    cf_jsonl_index_close(&part->index);
    cf_line_close(&part->line);
    free(part->text);
    free(part->path);
    free(part);
}

static size_t part_where(const void *state, size_t sequence, char *buf,
                         size_t size)
{
    const jsonl_part *part = state;

    return (size_t)snprintf(buf, size, "%s:%zu", part->path, sequence + 1);
}

static uint64_t line_hash(const cf_line *line)
{
    cf_tokens_hash hash;

    cf_tokens_hash_begin(&hash);
    cf_tokens_hash_append(&hash, line->ids.tok, line->targets.tok, line->n_tok);
    return cf_tokens_hash_end(&hash);
}

/* ---- decoding ---- */

static cf_status refuse_changed(const jsonl_part *part, size_t sequence)
{
    cf_log_error(
        "%s:%zu: has changed since the file was checked: start again; "
        "if it comes up once more, remove the .cfidx file of this data",
        part->path, sequence + 1);
    return CF_MALFORMED;
}

static cf_status text_read(jsonl_part *part, size_t sequence)
{
    const cf_index_line *place = &part->index.lines[sequence];
    size_t n = 0;

    if (place->n_bytes > part->text_bytes) {
        free(part->text);
        part->text_bytes = 0;
        part->text = malloc(place->n_bytes);
        if (part->text == NULL)
            return CF_NO_MEMORY;
        part->text_bytes = place->n_bytes;
    }
    while (n < place->n_bytes) {
        ssize_t got = pread(part->fd, part->text + n, place->n_bytes - n,
                            (off_t)(place->offset + n));

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            cf_log_error("%s:%zu: cannot be read: %s; check the disk",
                         part->path, sequence + 1, strerror(errno));
            return CF_MALFORMED;
        }
        if (got == 0)
            return refuse_changed(part, sequence);
        n += (size_t)got;
    }
    return CF_OK;
}

static cf_status part_decode(void *state, size_t sequence, uint32_t *ids,
                             uint32_t *targets)
{
    jsonl_part *part = state;
    const cf_index_line *place = &part->index.lines[sequence];
    const cf_line_place where = {part->path, sequence + 1, part->vocab};
    cf_line *line = &part->line;
    cf_status status = text_read(part, sequence);

    if (status == CF_OK)
        status = cf_line_read(line, &where, part->text, place->n_bytes);
    if (status != CF_OK)
        return status;
    if (line->n_tok != place->n_tok || line->n_targets != place->n_targets ||
        line_hash(line) != place->hash)
        return refuse_changed(part, sequence);
    if (line->n_tok > 0) {
        memcpy(ids, line->ids.tok, line->n_tok * sizeof(*ids));
        memcpy(targets, line->targets.tok, line->n_tok * sizeof(*targets));
    }
    return CF_OK;
}

/* ---- the first time ---- */

static cf_status append_line(jsonl_part *part, uint64_t offset, size_t n_bytes)
{
    cf_jsonl_index *index = &part->index;
    const cf_line *line = &part->line;
    cf_index_line *grown;
    cf_status status = CF_OK;

    grown = cf_array_grow(index->lines, &index->capacity, index->n, 1,
                          sizeof(*grown));
    if (grown == NULL)
        return CF_NO_MEMORY;
    index->lines = grown;
    grown[index->n] = (cf_index_line){
        .offset = offset,
        .hash = line_hash(line),
        .n_bytes = (uint32_t)n_bytes,
        .n_tok = line->n_tok,
        .n_targets = line->n_targets,
        .source = CF_INDEX_NO_SOURCE,
    };
    if (line->source != NULL)
        status = cf_name_list_append(&index->sources, line->source,
                                     &grown[index->n].source);
    if (line->largest > index->largest)
        index->largest = line->largest;
    index->n++;
    return status;
}

static bool at_end(FILE *file)
{
    int c = getc(file);

    if (c != EOF)
        (void)ungetc(c, file);
    return c == EOF;
}

/* A line of n bytes, with its newline. */
static cf_status take_line(jsonl_part *part, FILE *file, const char *text,
                           size_t n, uint64_t offset)
{
    const cf_line_place place = {part->path, part->index.n + 1, part->vocab};
    cf_status status;

    if (n > 0 && text[n - 1] == '\n')
        n--;
    if (n > 0 && text[n - 1] == '\r')
        n--;
    if (n == 0 && at_end(file))
        return CF_OK;
    if (n == 0 || n > UINT32_MAX) {
        cf_log_error("%s:%zu: is %s", part->path, place.number,
                     n == 0 ? "an empty line; remove it"
                            : "too long a line; cut its sequence");
        return CF_MALFORMED;
    }
    status = cf_line_read(&part->line, &place, text, n);
    return status == CF_OK ? append_line(part, offset, n) : status;
}

static cf_status read_lines(jsonl_part *part, FILE *file)
{
    char *text = NULL;
    size_t text_bytes = 0;
    uint64_t offset = 0;
    ssize_t n;
    cf_status status = CF_OK;

    errno = 0;
    while (status == CF_OK && (n = getline(&text, &text_bytes, file)) >= 0) {
        status = take_line(part, file, text, (size_t)n, offset);
        offset += (uint64_t)n;
        errno = 0;
    }
    if (status == CF_OK && !feof(file)) {
        cf_log_error("%s:%zu: cannot be read: %s; check the disk", part->path,
                     part->index.n + 1, strerror(errno != 0 ? errno : EIO));
        status = CF_MALFORMED;
    }
    free(text);
    return status;
}

static cf_status read_file(jsonl_part *part, const cf_file_stamp *stamp)
{
    FILE *file = fopen(part->path, "re");
    cf_file_stamp after;
    cf_status status;

    if (file == NULL) {
        cf_log_error("%s: %s; check the path and its permissions", part->path,
                     strerror(errno));
        return CF_MALFORMED;
    }
    status = read_lines(part, file);
    /* A file that changes while it is read gets no index. */
    if (status == CF_OK && stamp->bytes >= KEEP_INDEX_FROM_BYTES &&
        cf_file_stamp_read(fileno(file), &after) &&
        cf_file_stamp_equal(stamp, &after))
        cf_jsonl_index_write(part->path, stamp, &part->index);
    (void)fclose(file);
    return status;
}

/* ---- opening ---- */

/* Of a file that gets no index the stamp is its size alone. */
static bool stamp_read(int fd, cf_file_stamp *stamp_p)
{
    struct stat info;

    if (fstat(fd, &info) != 0)
        return false;
    *stamp_p = (cf_file_stamp){.bytes = (uint64_t)info.st_size};
    return stamp_p->bytes < KEEP_INDEX_FROM_BYTES ||
           cf_file_stamp_read(fd, stamp_p);
}

static cf_status file_open(jsonl_part *part, cf_file_stamp *stamp_p)
{
    struct stat info;

    part->fd = open(part->path, O_RDONLY | O_CLOEXEC);
    if (part->fd >= 0 && fstat(part->fd, &info) == 0 &&
        !S_ISREG(info.st_mode)) {
        cf_log_error("%s: %s; name a file", part->path,
                     S_ISDIR(info.st_mode) ? strerror(EISDIR)
                                           : "is no regular file: lines are "
                                             "read in any order");
        return CF_MALFORMED;
    }
    if (part->fd < 0 || !stamp_read(part->fd, stamp_p)) {
        cf_log_error("%s: %s; check the path and its permissions", part->path,
                     strerror(errno));
        return CF_MALFORMED;
    }
    return CF_OK;
}

/* A model of a smaller vocabulary reads the file again, for the message. */
static cf_status index_open(jsonl_part *part)
{
    cf_file_stamp stamp;
    bool found = false;
    cf_status status = file_open(part, &stamp);

    if (status == CF_OK && stamp.bytes >= KEEP_INDEX_FROM_BYTES)
        status = cf_jsonl_index_read(part->path, &stamp, &part->index, &found);
    if (status != CF_OK || (found && part->index.largest < part->vocab))
        return status;
    cf_jsonl_index_close(&part->index);
    return read_file(part, &stamp);
}

static cf_status append_sequences(const cf_jsonl_index *index,
                                  cf_sequence_table *table)
{
    cf_status status = CF_OK;

    for (size_t i = 0; status == CF_OK && i < index->n; i++) {
        const cf_index_line *line = &index->lines[i];
        const cf_sequence_info info = {
            .n_tok = line->n_tok,
            .n_targets = line->n_targets,
            .hash = line->hash,
            .source = line->source != CF_INDEX_NO_SOURCE
                          ? index->sources.names[line->source]
                          : NULL,
        };

        status = cf_sequence_table_append(table, &info);
    }
    return status;
}

cf_status cf_dataset_part_open_jsonl(const char *path, uint32_t vocab,
                                     cf_sequence_table *table,
                                     cf_dataset_part *part_p)
{
    jsonl_part *part = calloc(1, sizeof(*part));
    cf_status status = CF_NO_MEMORY;

    if (part == NULL)
        return CF_NO_MEMORY;
    part->fd = -1;
    part->vocab = vocab;
    part->path = strdup(path);
    if (part->path != NULL)
        status = index_open(part);
    if (status == CF_OK)
        status = append_sequences(&part->index, table);
    if (status != CF_OK) {
        part_close(part);
        return status;
    }
    part_p->state = part;
    part_p->close = part_close;
    part_p->decode = part_decode;
    part_p->where = part_where;
    return CF_OK;
}
