/* file_write.c - a small file that is either complete or not there. */
#include "src/file_write.h"

#include "src/files.h"
#include "src/log.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static cf_status fill_file(const char *path, cf_file_fill fill,
                           const void *content, bool synced)
{
    FILE *file = fopen(path, "we");
    cf_status status = CF_OK;

    if (file == NULL)
        return CF_IO;
    if (fill(file, content) != CF_OK || fflush(file) != 0 || ferror(file) ||
        (synced && fsync(fileno(file)) != 0))
        status = CF_IO;
    if (status != CF_OK) {
        int first_errno = errno;

        (void)fclose(file);
        errno = first_errno;
        return status;
    }
    return fclose(file) == 0 ? CF_OK : CF_IO;
}

/* By way of a temporary name, of which nothing is left on failure. */
static cf_status replace(const char *path, cf_file_fill fill,
                         const void *content, bool synced)
{
    static const char suffix[] = ".tmp";
    size_t temporary_bytes = strlen(path) + sizeof(suffix);
    char *temporary = malloc(temporary_bytes);
    cf_status status;
    int first_errno;

    if (temporary == NULL)
        return CF_NO_MEMORY;
    (void)snprintf(temporary, temporary_bytes, "%s%s", path, suffix);
    errno = 0;
    status = fill_file(temporary, fill, content, synced);
    if (status == CF_OK && rename(temporary, path) != 0)
        status = CF_IO;
    first_errno = errno;
    if (status != CF_OK)
        (void)unlink(temporary);
    errno = first_errno;
    free(temporary);
    return status;
}

cf_status cf_file_write(const char *path, cf_file_fill fill,
                        const void *content)
{
    const cf_status status = replace(path, fill, content, true);

    if (status == CF_NO_MEMORY)
        cf_log_error("%s: out of memory", path);
    else if (status != CF_OK)
        return cf_io_error(path, "write it", 0);
    return status == CF_OK ? cf_folder_sync_of(path) : status;
}

cf_status cf_file_replace(const char *path, cf_file_fill fill,
                          const void *content)
{
    return replace(path, fill, content, false);
}
