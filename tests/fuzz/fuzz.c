/* fuzz.c - what the fuzz targets share. */
#include "tests/fuzz/fuzz.h"

#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    BYTES_ALWAYS = 1 << 20,
    BYTES_A_BYTE = 64,
    MAPS_MAX = 8
};

static size_t n_errors;
static size_t allocation_max = SIZE_MAX;

void fuzz_require(bool law, const char *law_text)
{
    if (law)
        return;
    (void)fprintf(stderr, "broken law: %s\n", law_text);
    abort();
}

/* ---- the input ---- */

fuzz_input fuzz_read_bytes(fuzz_input *input, size_t n)
{
    fuzz_input read = {input->at, n < input->n ? n : input->n};

    input->at += read.n;
    input->n -= read.n;
    return read;
}

uint8_t fuzz_read_u8(fuzz_input *input)
{
    const fuzz_input read = fuzz_read_bytes(input, 1);

    return read.n > 0 ? *read.at : 0;
}

uint16_t fuzz_read_u16(fuzz_input *input)
{
    const uint8_t low = fuzz_read_u8(input);

    return (uint16_t)(low | fuzz_read_u8(input) << 8);
}

uint32_t fuzz_read_u32(fuzz_input *input)
{
    const uint16_t low = fuzz_read_u16(input);

    return low | (uint32_t)fuzz_read_u16(input) << 16;
}

/* ---- files ---- */

static char folder[256];

static int remove_entry(const char *path, const struct stat *info, int kind,
                        struct FTW *walk)
{
    (void)info;
    (void)kind;
    (void)walk;
    return remove(path);
}

static void remove_folder(void)
{
    nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

const char *fuzz_folder(void)
{
    const char *base = getenv("TMPDIR");

    if (folder[0] != '\0')
        return folder;
    if (base == NULL)
        base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    (void)snprintf(folder, sizeof(folder), "%s/chunkflow-fuzz-XXXXXX", base);
    fuzz_require(mkdtemp(folder) != NULL, "a temporary folder can be made");
    (void)atexit(remove_folder);
    return folder;
}

static char *path_of(const char *name)
{
    char *path;

    fuzz_require(asprintf(&path, "%s/%s", fuzz_folder(), name) > 0,
                 "there is memory");
    return path;
}

char *fuzz_file_write(const char *name, const void *bytes, size_t n)
{
    char *path = path_of(name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    fuzz_require(fd >= 0 && write(fd, bytes, n) == (ssize_t)n && close(fd) == 0,
                 "a file can be written");
    return path;
}

void fuzz_file_remove(const char *name)
{
    char *path = path_of(name);

    (void)unlink(path);
    free(path);
}

/* ---- calls that can fail ---- */

void fuzz_call_begin(size_t n)
{
    n_errors = 0;
    allocation_max = BYTES_ALWAYS + BYTES_A_BYTE * n;
}

void fuzz_call_end(cf_status status)
{
    allocation_max = SIZE_MAX;
    fuzz_require(status != CF_NO_MEMORY, "memory suffices");
    if (status == CF_OK)
        fuzz_require(n_errors == 0, "success logs no error");
    else
        fuzz_require(n_errors == 1, "a failure logs one error");
}

void *fuzz_allocate(size_t n, size_t size, int fill)
{
    void *memory = malloc(n * size);

    fuzz_require(memory != NULL || n * size == 0, "there is memory");
    if (memory != NULL)
        memset(memory, fill, n * size);
    return memory;
}

/* ---- in the place of the C library, by the linker's --wrap ---- */

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *memory, size_t size);
void *__real_reallocarray(void *memory, size_t n, size_t size);
void *__real_mmap(void *at, size_t size, int protection, int flags, int fd,
                  off_t offset);
int __real_munmap(void *at, size_t size);
int __real_madvise(void *at, size_t size, int advice);
ssize_t __real_write(int fd, const void *bytes, size_t n);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *memory, size_t size);
void *__wrap_reallocarray(void *memory, size_t n, size_t size);
void *__wrap_mmap(void *at, size_t size, int protection, int flags, int fd,
                  off_t offset);
int __wrap_munmap(void *at, size_t size);
int __wrap_madvise(void *at, size_t size, int advice);
ssize_t __wrap_write(int fd, const void *bytes, size_t n);

static void require_modest(size_t n, size_t size)
{
    fuzz_require(size == 0 || n <= allocation_max / size,
                 "allocations are within what the input is worth");
}

void *__wrap_malloc(size_t size)
{
    require_modest(1, size);
    return __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size)
{
    require_modest(n, size);
    return __real_calloc(n, size);
}

void *__wrap_realloc(void *memory, size_t size)
{
    require_modest(1, size);
    return __real_realloc(memory, size);
}

void *__wrap_reallocarray(void *memory, size_t n, size_t size)
{
    require_modest(n, size);
    return __real_reallocarray(memory, n, size);
}

static void *maps[MAPS_MAX];

static void **find_map(const void *at)
{
    for (size_t i = 0; i < MAPS_MAX; i++) {
        if (maps[i] == at)
            return &maps[i];
    }
    return NULL;
}

void *__wrap_mmap(void *at, size_t size, int protection, int flags, int fd,
                  off_t offset)
{
    void **map = find_map(NULL);

    if (fd < 0 || (protection & PROT_WRITE) != 0 || map == NULL)
        return __real_mmap(at, size, protection, flags, fd, offset);
    *map = __real_malloc(size);
    fuzz_require(*map != NULL && pread(fd, *map, size, offset) == (ssize_t)size,
                 "a file can be read");
    return *map;
}

int __wrap_munmap(void *at, size_t size)
{
    void **map = at != NULL ? find_map(at) : NULL;

    if (map == NULL)
        return __real_munmap(at, size);
    free(at);
    *map = NULL;
    return 0;
}

/* A copy has no pages of its own that could be dropped. */
int __wrap_madvise(void *at, size_t size, int advice)
{
    return at != NULL && find_map(at) != NULL
               ? 0
               : __real_madvise(at, size, advice);
}

static bool begins_with(const char *text, size_t n, const char *beginning)
{
    const size_t n_beginning = strlen(beginning);

    return n >= n_beginning && memcmp(text, beginning, n_beginning) == 0;
}

/* src/log.c writes a whole line at a time. */
ssize_t __wrap_write(int fd, const void *bytes, size_t n)
{
    const char *text = bytes;

    if (fd != STDERR_FILENO || !begins_with(text, n, "chunkflow: "))
        return __real_write(fd, bytes, n);
    fuzz_require(memchr(text, '\n', n) == text + n - 1, "a log line is a line");
    n_errors += begins_with(text, n, "chunkflow: error: ");
    return (ssize_t)n;
}
