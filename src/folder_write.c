/* folder_write.c - see folder_write.h. */
#include "src/folder_write.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/files.h"
#include "src/log.h"

cf_status cf_folder_write_text(const char *folder, const char *name,
                               const char *text, size_t n)
{
    char *path = cf_path_join(folder, "/", name);
    cf_status status = CF_OK;
    int fd;

    if (path == NULL)
        return CF_NO_MEMORY;
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0 || cf_write_all(fd, text, n) != 0 || fsync(fd) != 0)
        status = cf_io_error(path, "write it", n);
    if (fd >= 0 && close(fd) != 0 && status == CF_OK)
        status = cf_io_error(path, "close it", n);
    free(path);
    return status;
}

/* A folder cannot be renamed onto one that holds files: the older one steps
 * aside and is removed last, so that at any time one of the two is complete. */
static cf_status put_in_place(const char *temporary, const char *to,
                              const char *old)
{
    cf_status status;

    if (rename(temporary, to) != 0) {
        if (errno != ENOTEMPTY && errno != EEXIST)
            return cf_io_error(to, "put the folder there", 0);
        status = cf_path_remove(old);
        if (status != CF_OK)
            return status;
        if (rename(to, old) != 0)
            return cf_io_error(to, "move the older folder away", 0);
        if (rename(temporary, to) != 0) {
            status = cf_io_error(to, "put the folder there", 0);
            (void)rename(old, to);
            return status;
        }
    }
    status = cf_folder_sync_of(to);
    return status == CF_OK ? cf_path_remove(old) : status;
}

static cf_status begin(const char *to, const char *temporary)
{
    cf_status status = cf_path_remove(temporary);

    if (status == CF_OK && mkdir(temporary, 0777) != 0)
        status = cf_io_error(to, "create the folder", 0);
    return status;
}

static cf_status write_folder(cf_comm *comm, const char *to,
                              const char *temporary, const char *old,
                              cf_folder_filler fill, const void *context)
{
    const bool is_root = cf_comm_rank(comm) == 0;
    cf_status status =
        cf_comm_agree(comm, is_root ? begin(to, temporary) : CF_OK);

    if (status == CF_OK)
        status = fill(context, temporary);
    if (status == CF_OK && is_root)
        status = put_in_place(temporary, to, old);
    if (status != CF_OK && is_root && cf_path_remove(temporary) != CF_OK)
        cf_log_warn("%s is left behind; remove it", temporary);
    return cf_comm_agree(comm, status);
}

cf_status cf_folder_write(cf_comm *comm, const char *to, cf_folder_filler fill,
                          const void *context)
{
    size_t n = strlen(to);
    char *name, *temporary = NULL, *old = NULL;
    cf_status status;

    /* The temporary folder stands beside the folder, not in it. */
    while (n > 1 && to[n - 1] == '/')
        n--;
    name = strndup(to, n);
    if (name == NULL)
        (void)cf_log_no_memory("a path");
    else {
        temporary = cf_path_join(name, "", ".tmp");
        old = cf_path_join(name, "", ".old");
    }
    status = cf_comm_agree(
        comm, temporary != NULL && old != NULL ? CF_OK : CF_NO_MEMORY);
    if (status == CF_OK)
        status = write_folder(comm, name, temporary, old, fill, context);
    free(old);
    free(temporary);
    free(name);
    return status;
}
