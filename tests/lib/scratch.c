/* scratch.c - a folder for the files of a test, and what it logs. */
#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/lib/scratch.h"

enum {
    TEXT_MAX_BYTES = 1 << 16,
    N_PATHS = 4
};

static char folder[64];

/* One descriptor that goes to a file for a while. */
typedef struct capture {
    int fd;
    int saved;
    int file;
    char text[TEXT_MAX_BYTES];
} capture;

static capture errors = {.fd = STDERR_FILENO, .saved = -1};
static capture output = {.fd = STDOUT_FILENO, .saved = -1};

void scratch_open(void)
{
    (void)strcpy(folder, "/tmp/chunkflow-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
}

void scratch_close(void)
{
    DIR *dir = opendir(folder);

    ck_assert_ptr_nonnull(dir);
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            ck_assert_int_eq(remove(scratch_path(entry->d_name)), 0);
    }
    (void)closedir(dir);
    ck_assert_int_eq(rmdir(folder), 0);
}

const char *scratch_path(const char *name)
{
    static char paths[N_PATHS][512];
    static unsigned next;
    char *path = paths[next++ % N_PATHS];

    (void)snprintf(path, sizeof(paths[0]), "%s/%s", folder, name);
    return path;
}

const char *scratch_write(const char *name, const void *bytes, size_t n_bytes)
{
    const char *path = scratch_path(name);
    FILE *file = fopen(path, "we");

    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, n_bytes, file), n_bytes);
    ck_assert_int_eq(fclose(file), 0);
    return path;
}

const char *scratch_write_text(const char *name, const char *text)
{
    return scratch_write(name, text, strlen(text));
}

char *scratch_read(const char *name, size_t *n_bytes_p)
{
    FILE *file = fopen(scratch_path(name), "re");
    char *text;
    long n;

    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fseek(file, 0, SEEK_END), 0);
    n = ftell(file);
    rewind(file);
    text = malloc((size_t)n + 1);
    ck_assert_ptr_nonnull(text);
    ck_assert_uint_eq(fread(text, 1, (size_t)n, file), (size_t)n);
    text[n] = '\0';
    (void)fclose(file);
    if (n_bytes_p != NULL)
        *n_bytes_p = (size_t)n;
    return text;
}

static void begin(capture *c)
{
    (void)fflush(NULL);
    c->file = memfd_create("capture", MFD_CLOEXEC);
    ck_assert_int_ge(c->file, 0);
    c->saved = dup(c->fd);
    ck_assert_int_eq(dup2(c->file, c->fd), c->fd);
}

static const char *end(capture *c)
{
    ssize_t n;

    (void)fflush(NULL);
    ck_assert_int_eq(dup2(c->saved, c->fd), c->fd);
    (void)close(c->saved);
    n = pread(c->file, c->text, sizeof(c->text) - 1, 0);
    ck_assert_int_ge(n, 0);
    (void)close(c->file);
    c->text[n] = '\0';
    return c->text;
}

void errors_begin(void)
{
    begin(&errors);
}

const char *errors_end(void)
{
    return end(&errors);
}

void output_begin(void)
{
    begin(&output);
}

const char *output_end(void)
{
    return end(&output);
}

uint64_t scratch_seed(void)
{
    const char *text = getenv("CF_TEST_SEED");
    uint64_t seed = text != NULL ? strtoull(text, NULL, 10) : 20250303;

    printf("CF_TEST_SEED=%" PRIu64 "\n", seed);
    return seed * 2 + 1;
}

uint64_t scratch_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545f4914f6cdd1d;
}

uint64_t scratch_random_below(uint64_t *state, uint64_t limit)
{
    return (scratch_random(state) >> 16) % limit;
}

static unsigned char telling_byte(uint64_t *state)
{
    static const unsigned char telling[] = "\0\1\x7f\x80\xff\"{}[],:-09eE\\\n";

    if (scratch_random_below(state, 2) == 0)
        return telling[scratch_random_below(state, sizeof(telling))];
    return (unsigned char)scratch_random(state);
}

static size_t mutate_once(uint64_t *state, unsigned char *bytes, size_t n,
                          size_t capacity)
{
    const size_t at = (size_t)scratch_random_below(state, n + 1);
    size_t run = 1 + (size_t)scratch_random_below(state, 8);

    if (run > n - at)
        run = n - at;
    switch (scratch_random_below(state, 4)) {
    case 0: /* cut the end off, seldom */
        return scratch_random_below(state, 8) == 0 ? at : n;
    case 1: /* drop a run */
        memmove(bytes + at, bytes + at + run, n - at - run);
        return n - run;
    case 2: /* repeat a run */
        if (n + run > capacity)
            return n;
        memmove(bytes + at + run, bytes + at, n - at);
        return n + run;
    default:
        if (at < n)
            bytes[at] = telling_byte(state);
        return n;
    }
}

size_t scratch_mutate(uint64_t *state, unsigned char *bytes, size_t n_bytes,
                      size_t capacity)
{
    uint64_t times = 1 + scratch_random_below(state, 4);

    for (uint64_t i = 0; i < times; i++)
        n_bytes = mutate_once(state, bytes, n_bytes, capacity);
    return n_bytes;
}
