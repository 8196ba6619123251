/* tfevents.c - see tfevents.h: writing.  tfevents_cut.c reads. */
#include "src/tfevents.h"

#include <dirent.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "src/append_file.h"
#include "src/files.h"
#include "src/log.h"
#include "src/tfevents_record.h"

struct cf_tfevents {
    cf_append_file *file;
};

/* ---- messages ---- */

/* The numbers of fields and how their values are laid out, as protobuf has
 * them: number * 8 + kind. */
enum {
    VARINT = 0,
    FIXED64 = 1,
    BYTES = 2,
    FIXED32 = 5,
    EVENT_WALL_TIME = 1 << 3 | FIXED64,
    EVENT_STEP = 2 << 3 | VARINT,
    EVENT_FILE_VERSION = 3 << 3 | BYTES,
    EVENT_SUMMARY = 5 << 3 | BYTES,
    SUMMARY_VALUE = 1 << 3 | BYTES,
    VALUE_TAG = 1 << 3 | BYTES,
    VALUE_SIMPLE = 2 << 3 | FIXED32
};

/* A message being written; never more than its bytes. */
typedef struct message {
    unsigned char bytes[CF_TFEVENTS_RECORD_MAX];
    size_t n;
} message;

static void put_raw(message *m, const void *bytes, size_t n)
{
    if (n > sizeof(m->bytes) - m->n)
        n = sizeof(m->bytes) - m->n;
    memcpy(m->bytes + m->n, bytes, n);
    m->n += n;
}

static void put_byte(message *m, unsigned byte)
{
    const unsigned char b = (unsigned char)byte;

    put_raw(m, &b, 1);
}

static void put_varint(message *m, uint64_t value)
{
    for (; value >= 128; value >>= 7)
        put_byte(m, (unsigned)(value & 127) | 128);
    put_byte(m, (unsigned)value);
}

static void put_bytes(message *m, unsigned field, const void *bytes, size_t n)
{
    put_byte(m, field);
    put_varint(m, n);
    put_raw(m, bytes, n);
}

/* Every machine that this runs on has the byte order of protobuf. */
static void put_double(message *m, unsigned field, double value)
{
    put_byte(m, field);
    put_raw(m, &value, sizeof(value));
}

static void put_float(message *m, unsigned field, float value)
{
    put_byte(m, field);
    put_raw(m, &value, sizeof(value));
}

static double wall_time_s(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void put_record(FILE *file, const message *m)
{
    unsigned char head[CF_TFEVENTS_HEAD_BYTES], tail[CF_TFEVENTS_TAIL_BYTES];

    cf_tfevents_frame(m->bytes, m->n, head, tail);
    (void)fwrite(head, 1, sizeof(head), file);
    (void)fwrite(m->bytes, 1, m->n, file);
    (void)fwrite(tail, 1, sizeof(tail), file);
}

cf_status cf_tfevents_append(cf_tfevents *file, uint64_t step,
                             const cf_tfevents_scalar *scalars, size_t n)
{
    message event = {.n = 0}, summary = {.n = 0};

    for (size_t i = 0; i < n; i++) {
        message value = {.n = 0};

        if (!isfinite(scalars[i].value))
            continue;
        put_bytes(&value, VALUE_TAG, scalars[i].tag, strlen(scalars[i].tag));
        put_float(&value, VALUE_SIMPLE, (float)scalars[i].value);
        put_bytes(&summary, SUMMARY_VALUE, value.bytes, value.n);
    }
    put_double(&event, EVENT_WALL_TIME, wall_time_s());
    put_byte(&event, EVENT_STEP);
    put_varint(&event, step);
    put_bytes(&event, EVENT_SUMMARY, summary.bytes, summary.n);
    put_record(file->file->records, &event);
    return cf_append_file_flush(file->file);
}

/* ---- the file ---- */

/* What TensorBoard wants to see first. */
static cf_status version_append(cf_append_file *file)
{
    static const char version[] = "brain.Event:2";
    message event = {.n = 0};

    put_double(&event, EVENT_WALL_TIME, wall_time_s());
    put_bytes(&event, EVENT_FILE_VERSION, version, strlen(version));
    put_record(file->records, &event);
    return cf_append_file_flush(file);
}

/* The newest event file of a folder by its name, which begins with the time;
 * NULL: none, or no memory.  The caller frees. */
static char *newest_find(const char *folder)
{
    DIR *dir = opendir(folder);
    const struct dirent *entry;
    char *newest = NULL;

    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        if (fnmatch(CF_TFEVENTS_PATTERN, entry->d_name, 0) != 0 ||
            (newest != NULL && strcmp(entry->d_name, newest) < 0))
            continue;
        free(newest);
        newest = strdup(entry->d_name);
    }
    if (dir != NULL)
        closedir(dir);
    return newest;
}

/* "events.out.tfevents.1700000000.host.4711.0", as TensorFlow names them. */
static char *name_make(void)
{
    char host[64] = "localhost", name[128];

    (void)gethostname(host, sizeof(host) - 1);
    host[sizeof(host) - 1] = '\0';
    (void)snprintf(name, sizeof(name), "events.out.tfevents.%010.0f.%s.%ld.0",
                   floor(wall_time_s()), host, (long)getpid());
    return strdup(name);
}

cf_status cf_tfevents_open(const char *folder, cf_tfevents **file_p)
{
    cf_tfevents *events = calloc(1, sizeof(*events));
    char *name = newest_find(folder);
    const bool is_new = name == NULL;
    char *path = NULL;
    cf_status status;

    if (name == NULL)
        name = name_make();
    if (name != NULL)
        path = cf_path_join(folder, "/", name);
    free(name);
    if (events == NULL || path == NULL)
        status = cf_log_no_memory("the event file");
    else
        status = cf_append_file_open(path, &events->file);
    if (status == CF_OK && is_new)
        status = version_append(events->file);
    free(path);
    if (status == CF_OK)
        *file_p = events;
    else
        cf_tfevents_close(events);
    return status;
}

void cf_tfevents_close(cf_tfevents *file)
{
    if (file == NULL)
        return;
    cf_append_file_close(file->file);
    free(file);
}

cf_status cf_tfevents_settle(cf_tfevents *file)
{
    return cf_append_file_settle(file->file);
}
