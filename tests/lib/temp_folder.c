/* temp_folder.c - folders that tests write to, and what they say meanwhile. */
#include "tests/lib/temp_folder.h"

#include <check.h>
#include <dirent.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

char *temp_folder_open(void)
{
    const char *base = getenv("TMPDIR");
    char *folder;

    if (asprintf(&folder, "%s/chunkflow-test-XXXXXX",
                 base == NULL ? "/tmp" : base) < 0 ||
        mkdtemp(folder) == NULL)
        ck_abort_msg("cannot make a temporary folder");
    return folder;
}

static int remove_entry(const char *path, const struct stat *info, int kind,
                        struct FTW *walk)
{
    (void)info;
    (void)kind;
    (void)walk;
    return remove(path);
}

void temp_folder_close(char *folder)
{
    nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    free(folder);
}

static char *join(const char *folder, const char *name)
{
    char *path;

    ck_assert_int_ge(asprintf(&path, "%s/%s", folder, name), 0);
    return path;
}

void temp_file_write(const char *folder, const char *name, const void *bytes,
                     size_t n)
{
    char *path = join(folder, name);
    FILE *file;

    /* A new file: file systems may wait for the disk when one is emptied. */
    unlink(path);
    file = fopen(path, "w");
    if (file == NULL || fwrite(bytes, 1, n, file) != n || fclose(file) != 0)
        ck_abort_msg("cannot write %s", path);
    free(path);
}

void temp_file_write_text(const char *folder, const char *name,
                          const char *text)
{
    temp_file_write(folder, name, text, strlen(text));
}

char *temp_file_read(const char *folder, const char *name, size_t *n_p)
{
    char *path = join(folder, name);
    FILE *file = fopen(path, "r");
    char *bytes;
    size_t n;

    if (file == NULL)
        ck_abort_msg("cannot read %s", path);
    fseek(file, 0, SEEK_END);
    n = (size_t)ftell(file);
    rewind(file);
    bytes = malloc(n + 1);
    if (bytes == NULL || fread(bytes, 1, n, file) != n)
        ck_abort_msg("cannot read %s", path);
    bytes[n] = '\0';
    fclose(file);
    free(path);
    *n_p = n;
    return bytes;
}

bool temp_file_exists(const char *folder, const char *name)
{
    char *path = join(folder, name);
    bool exists = access(path, F_OK) == 0;

    free(path);
    return exists;
}

size_t temp_folder_count(const char *folder)
{
    DIR *dir = opendir(folder);
    size_t n = 0;

    if (dir == NULL)
        ck_abort_msg("cannot read %s", folder);
    while (readdir(dir) != NULL)
        n++;
    closedir(dir);
    return n - 2; /* . and .. */
}

void captured_log_begin(captured_log *log)
{
    fflush(stderr);
    log->saved = dup(STDERR_FILENO);
    log->file = memfd_create("captured-log", 0);
    ck_assert_int_ge(dup2(log->file, STDERR_FILENO), 0);
}

void captured_log_end(captured_log *log)
{
    ssize_t n;

    fflush(stderr);
    ck_assert_int_ge(dup2(log->saved, STDERR_FILENO), 0);
    n = pread(log->file, log->text, sizeof(log->text) - 1, 0);
    ck_assert_int_ge((int)n, 0);
    log->text[n] = '\0';
    close(log->file);
    close(log->saved);
}

bool captured_log_is_error(const captured_log *log, const char *part)
{
    const char *text = log->text;
    const char *newline = strchr(text, '\n');

    return strncmp(text, "chunkflow: error: ", 18) == 0 && newline != NULL &&
           newline[1] == '\0' && strstr(text, part) != NULL;
}
