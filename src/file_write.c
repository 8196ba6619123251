/* file_write.c - a small file that is either complete or not there. */
#include "src/file_write.h"

#include "src/files.h"
#include "src/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static cf_status fill_and_sync(const char *path, cf_file_fill fill,
                               const void *content)
{
    FILE *file = fopen(path, "we");
    cf_status status = CF_OK;

    if (file == NULL)
        return CF_IO;
    if (fill(file, content) != CF_OK || fflush(file) != 0 || ferror(file) ||
        fsync(fileno(file)) != 0)
        status = CF_IO;
    if (status != CF_OK) {
        int first_errno = errno;

        (void)fclose(file);
        errno = first_errno;
        return status;
    }
    return fclose(file) == 0 ? CF_OK : CF_IO;
}

cf_status cf_file_write(const char *path, cf_file_fill fill,
                        const void *content)
{
    static const char suffix[] = ".tmp";
    size_t temporary_bytes = strlen(path) + sizeof(suffix);
    char *temporary = malloc(temporary_bytes);
    cf_status status;

    if (temporary == NULL) {
        cf_log_error("%s: out of memory", path);
        return CF_NO_MEMORY;
    }
    (void)snprintf(temporary, temporary_bytes, "%s%s", path, suffix);
    errno = 0;
    status = fill_and_sync(temporary, fill, content);
    if (status == CF_OK && rename(temporary, path) != 0)
        status = CF_IO;
    if (status != CF_OK) {
        status = cf_io_error(path, "write it", 0);
        (void)unlink(temporary);
    }
    free(temporary);
    return status == CF_OK ? cf_folder_sync_of(path) : status;
}
