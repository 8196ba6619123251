/* kv_file.c - see kv_file.h. */
#include "src/kv_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "src/arena.h"
#include "src/log.h"

/* Not every file system has files without a name: then one that loses it. */
static int unnamed_open(const char *folder)
{
    char *path;
    int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR))
        return fd;
    if (asprintf(&path, "%s/kv-XXXXXX", folder) < 0)
        return -1;
    fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0)
        (void)unlink(path);
    free(path);
    return fd;
}

static cf_status refuse(const char *folder, size_t bytes, int error)
{
    char text[32];

    cf_log_error("--kv-dir '%s': %s for the KV state: %s", folder,
                 cf_bytes_format(bytes, text, sizeof(text)), strerror(error));
    return CF_IO;
}

cf_status cf_kv_file_open(const char *folder, size_t bytes, cf_kv_file *file_p)
{
    const int fd = unnamed_open(folder);
    int error = fd < 0 ? errno : posix_fallocate(fd, 0, (off_t)bytes);
    void *at = MAP_FAILED;

    *file_p = (cf_kv_file){NULL, 0};
    if (error == 0) {
        at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        error = at == MAP_FAILED ? errno : 0;
    }
    if (fd >= 0)
        (void)close(fd); /* the mapping keeps it */
    if (error != 0)
        return refuse(folder, bytes, error);
    *file_p = (cf_kv_file){at, bytes};
    return CF_OK;
}

void cf_kv_file_close(cf_kv_file *file)
{
    if (file->at != NULL)
        (void)munmap(file->at, file->bytes);
    *file = (cf_kv_file){NULL, 0};
}

/* Advice: nothing is lost where it is not taken. */
void cf_kv_file_want(void *at, size_t bytes)
{
    (void)madvise(at, bytes, MADV_WILLNEED);
}

/* Out of this process's memory at once; the system writes it, and drops it when
 * it has a better use for the room. */
void cf_kv_file_leave(void *at, size_t bytes)
{
    (void)madvise(at, bytes, MADV_DONTNEED);
}
