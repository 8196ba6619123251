/* append_file.c - see append_file.h. */
#include "src/append_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/files.h"
#include "src/log.h"

enum {
    PENDING_BYTES = 1 << 16,    /* the longest records, by far */
    PENDING_BYTES_MAX = 1 << 22 /* while the disk is full */
};

/* A record in memory allocates nothing once there was one as long. */
static bool room_make(FILE *records)
{
    if (records == NULL)
        return false;
    for (size_t i = 0; i < PENDING_BYTES; i++)
        (void)fputc(' ', records);
    (void)fflush(records);
    rewind(records);
    return !ferror(records);
}

cf_status cf_append_file_open(const char *path, cf_append_file **file_p)
{
    cf_append_file *file = calloc(1, sizeof(*file));
    cf_status status = CF_OK;

    if (file == NULL)
        return cf_log_no_memory("a file of the run");
    file->path = strdup(path);
    file->records = open_memstream(&file->pending, &file->n_pending);
    file->fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (file->fd < 0)
        status = cf_io_error(path, "open it", 0);
    else if (file->path == NULL || !room_make(file->records))
        status = cf_log_no_memory("a file of the run");
    if (status == CF_OK)
        *file_p = file;
    else
        cf_append_file_close(file);
    return status;
}

void cf_append_file_close(cf_append_file *file)
{
    if (file == NULL)
        return;
    if (file->fd >= 0 && close(file->fd) != 0)
        (void)cf_io_error(file->path, "close it", 0);
    if (file->records != NULL)
        fclose(file->records);
    free(file->pending);
    free(file->path);
    free(file);
}

/* What of the pending bytes the file takes now. */
static bool write_pending(cf_append_file *file, size_t n)
{
    while (file->n_out < n) {
        ssize_t written =
            write(file->fd, file->pending + file->n_out, n - file->n_out);

        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return false;
        file->n_out += (size_t)written;
    }
    return true;
}

static cf_status flush(cf_append_file *file, size_t n_pending_max)
{
    errno = 0;
    if (fflush(file->records) == 0 && !ferror(file->records) &&
        write_pending(file, (size_t)ftell(file->records))) {
        rewind(file->records);
        file->n_out = 0;
        file->is_behind = false;
        return CF_OK;
    }
    if ((errno == ENOSPC || errno == EDQUOT) &&
        (size_t)ftell(file->records) <= n_pending_max) {
        if (!file->is_behind)
            cf_log_warn("%s: cannot be written: %s; its lines wait for room",
                        file->path, strerror(errno));
        file->is_behind = true;
        return CF_OK;
    }
    return cf_io_error(file->path, "write it", 0);
}

cf_status cf_append_file_flush(cf_append_file *file)
{
    return flush(file, PENDING_BYTES_MAX);
}

cf_status cf_append_file_settle(cf_append_file *file)
{
    return flush(file, 0);
}
