/* files.c - paths and folders. */
#include "src/files.h"

#include "src/log.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

char *cf_path_join(const char *folder, const char *separator, const char *name)
{
    char *path;

    if (asprintf(&path, "%s%s%s", folder, separator, name) >= 0)
        return path;
    (void)cf_log_no_memory("a path");
    return NULL;
}

int cf_write_all(int fd, const void *bytes, size_t n)
{
    const char *at = bytes;

    while (n > 0) {
        ssize_t written = write(fd, at, n);

        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return -1;
        at += written;
        n -= (size_t)written;
    }
    return 0;
}

int cf_write_all_at(int fd, const void *bytes, size_t n, uint64_t offset)
{
    const char *at = bytes;

    while (n > 0) {
        ssize_t written = pwrite(fd, at, n, (off_t)offset);

        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return -1;
        at += written;
        n -= (size_t)written;
        offset += (size_t)written;
    }
    return 0;
}

int cf_read_all_at(int fd, void *bytes, size_t n, uint64_t offset)
{
    char *at = bytes;

    while (n > 0) {
        ssize_t got = pread(fd, at, n, (off_t)offset);

        if (got < 0 && errno == EINTR)
            continue;
        if (got == 0)
            errno = EIO; /* the file ends before */
        if (got <= 0)
            return -1;
        at += got;
        n -= (size_t)got;
        offset += (size_t)got;
    }
    return 0;
}

/* Bytes that are free on the disk of a path that need not exist yet. */
static unsigned long long free_bytes(const char *path)
{
    struct statvfs info;
    char *copy = strdup(path); /* dirname() writes to it */
    unsigned long long bytes = 0;

    if (copy != NULL && statvfs(dirname(copy), &info) == 0)
        bytes = (unsigned long long)info.f_bavail * info.f_frsize;
    free(copy);
    return bytes;
}

cf_status cf_io_error(const char *path, const char *what, uint64_t bytes)
{
    int error = errno != 0 ? errno : EIO;
    char needs[48] = "";

    if (bytes > 0)
        (void)snprintf(needs, sizeof(needs), "it needs %llu bytes, ",
                       (unsigned long long)bytes);
    if (error == ENOSPC || error == EDQUOT)
        cf_log_error(
            "%s: cannot %s: %s: %s%llu bytes are free; make room or choose "
            "another disk",
            path, what, strerror(error), needs, free_bytes(path));
    else
        cf_log_error("%s: cannot %s: %s; check the path and its permissions",
                     path, what, strerror(error));
    return CF_IO;
}

cf_status cf_folder_sync_of(const char *path)
{
    cf_status status = CF_OK;
    char *copy = strdup(path); /* dirname() writes to it */
    const char *folder;
    int fd;

    if (copy == NULL)
        return cf_log_no_memory("a path");
    folder = dirname(copy);
    fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    /* Some file systems cannot sync a folder; they say EINVAL. */
    if (fd < 0 || (fsync(fd) != 0 && errno != EINVAL))
        status = cf_io_error(folder, "sync the folder", 0);
    if (fd >= 0)
        close(fd);
    free(copy);
    return status;
}

static int remove_entry(const char *path, const struct stat *info, int kind,
                        struct FTW *walk)
{
    (void)info;
    (void)kind;
    (void)walk;
    return remove(path);
}

cf_status cf_path_remove(const char *path)
{
    if (nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS) != 0 &&
        errno != ENOENT)
        return cf_io_error(path, "remove it", 0);
    return CF_OK;
}
