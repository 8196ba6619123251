/* checkpoint_folder.c - see checkpoint_folder.h. */
#include "src/checkpoint_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char prefix[] = "step-";

/* "step-12", as it is written: no sign, no zeros in front. */
static bool parse_step(const char *name, uint64_t *step_p)
{
    const char *digits = name + sizeof(prefix) - 1;
    uint64_t step = 0;

    if (strncmp(name, prefix, sizeof(prefix) - 1) != 0 || digits[0] < '1')
        return false;
    for (; *digits >= '0' && *digits <= '9'; digits++)
        if (__builtin_mul_overflow(step, (uint64_t)10, &step) ||
            __builtin_add_overflow(step, (uint64_t)(*digits - '0'), &step))
            return false;
    *step_p = step;
    return *digits == '\0';
}

/* Insert into a descending list of at most capacity. */
static size_t insert(uint64_t *steps, size_t n, size_t capacity, uint64_t step)
{
    size_t at = n;

    while (at > 0 && steps[at - 1] < step)
        at--;
    if (at == capacity)
        return n;
    if (n == capacity)
        n--;
    memmove(steps + at + 1, steps + at, (n - at) * sizeof(*steps));
    steps[at] = step;
    return n + 1;
}

size_t cf_checkpoint_steps(const char *checkpoints, uint64_t *steps,
                           size_t capacity)
{
    DIR *dir = opendir(checkpoints);
    const struct dirent *entry;
    size_t n = 0;
    uint64_t step;

    if (dir == NULL)
        return 0;
    while ((entry = readdir(dir)) != NULL)
        if (parse_step(entry->d_name, &step))
            n = insert(steps, n, capacity, step);
    closedir(dir);
    return n;
}

int cf_checkpoint_remove(const char *folder)
{
    DIR *dir = opendir(folder);
    const struct dirent *entry;

    if (dir == NULL && errno == ENOENT)
        return 0;
    if (dir == NULL)
        return -1;
    while ((entry = readdir(dir)) != NULL)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            (void)unlinkat(dirfd(dir), entry->d_name, 0);
    closedir(dir);
    return rmdir(folder);
}

void cf_checkpoint_remove_temporaries(const char *checkpoints)
{
    DIR *dir = opendir(checkpoints);
    const struct dirent *entry;
    char path[PATH_MAX];

    if (dir == NULL)
        return;
    while ((entry = readdir(dir)) != NULL) {
        const char *end = strstr(entry->d_name, CF_CHECKPOINT_TEMPORARY);

        if (strncmp(entry->d_name, prefix, sizeof(prefix) - 1) == 0 &&
            end != NULL && strcmp(end, CF_CHECKPOINT_TEMPORARY) == 0 &&
            (size_t)snprintf(path, sizeof(path), "%s/%s", checkpoints,
                             entry->d_name) < sizeof(path))
            (void)cf_checkpoint_remove(path);
    }
    closedir(dir);
}
