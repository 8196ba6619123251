/* machine.c - see machine.h. */
#include "src/machine.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "src/log.h"

enum {
    GEMM_BYTES = 130 << 20 /* OpenBLAS's largest buffer, and a page */
};

/* The number in a one-line file; SIZE_MAX when there is none ("max"). */
static size_t number_read(const char *path)
{
    FILE *file = fopen(path, "re");
    uint64_t value;
    int n;

    if (file == NULL)
        return SIZE_MAX;
    n = fscanf(file, "%" SCNu64, &value);
    fclose(file);
    return n == 1 && value < SIZE_MAX ? (size_t)value : SIZE_MAX;
}

/* The process's own group under a controller of version 1, or, where that is "",
 * under version 2: "/a/b", in buf.  NULL: there is none. */
static char *group_of(const char *controller, char *buf, size_t size)
{
    FILE *file = fopen("/proc/self/cgroup", "re");
    char *found = NULL;

    while (file != NULL && found == NULL &&
           fgets(buf, (int)size, file) != NULL) {
        char *name = strchr(buf, ':'), *path;

        path = name != NULL ? strchr(name + 1, ':') : NULL;
        if (path == NULL)
            continue;
        *path++ = '\0';
        if (strcmp(name + 1, controller) == 0)
            found = path;
    }
    if (file != NULL)
        fclose(file);
    if (found != NULL)
        found[strcspn(found, "\n")] = '\0';
    return found;
}

/* The tightest limit from the process's own group upwards.  In a container the
 * group may be one that is not seen from inside; then the uppermost has it. */
static size_t cgroup_limit(const char *controller, const char *mounted,
                           const char *name)
{
    char line[512], *group = group_of(controller, line, sizeof(line)), *end;
    size_t limit = SIZE_MAX;

    if (group == NULL)
        return limit;
    do {
        char path[640];
        size_t here;

        snprintf(path, sizeof(path), "%s%s/%s", mounted, group, name);
        here = number_read(path);
        if (here < limit)
            limit = here;
        end = strrchr(group, '/');
        if (end != NULL)
            *end = '\0';
    } while (end != NULL);
    return limit;
}

size_t cf_machine_memory_bytes(void)
{
    size_t limit =
        (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    const size_t others[] = {
        cgroup_limit("", "/sys/fs/cgroup", "memory.max"),
        cgroup_limit("memory", "/sys/fs/cgroup/memory",
                     "memory.limit_in_bytes"),
    };

    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        if (others[i] < limit)
            limit = others[i];
    return limit;
}

cf_status cf_machine_check_gemm(void)
{
    void *room = mmap(NULL, GEMM_BYTES, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (room == MAP_FAILED) {
        cf_log_error("no room for the %d MiB that OpenBLAS maps beside our "
                     "own: raise ulimit -v",
                     GEMM_BYTES >> 20);
        return CF_NO_MEMORY;
    }
    (void)munmap(room, GEMM_BYTES);
    return CF_OK;
}

const char *cf_machine_cpu(char *buf, size_t size)
{
    static const char field[] = "model name";
    FILE *file = fopen("/proc/cpuinfo", "re");
    char line[256];

    (void)snprintf(buf, size, "unknown");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        const char *value = strchr(line, ':');

        if (strncmp(line, field, sizeof(field) - 1) != 0 || value == NULL)
            continue;
        value += 1 + strspn(value + 1, " ");
        (void)snprintf(buf, size, "%.*s", (int)strcspn(value, "\n"), value);
        break;
    }
    if (file != NULL)
        fclose(file);
    return buf;
}

size_t cf_machine_resident_peak_bytes(void)
{
    struct rusage usage;

    if (getrusage(RUSAGE_SELF, &usage) != 0)
        return 0;
    return (size_t)usage.ru_maxrss * 1024;
}
