/* metrics_cut.c - what of metrics.jsonl a resumed run stands behind. */
#include "src/metrics.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/log.h"

/* A whole line of a step up to this one; *step_p is its step. */
static bool line_stays(const char *line, size_t n, uint64_t step,
                       uint64_t *step_p)
{
    json_t *object;
    json_int_t number;

    if (n == 0 || line[n - 1] != '\n')
        return false;
    object = json_loadb(line, n, 0, NULL);
    number = json_integer_value(json_object_get(object, "step"));
    json_decref(object);
    if (number < 1 || (uint64_t)number > step)
        return false;
    *step_p = (uint64_t)number;
    return true;
}

/* Bytes in front of the first line that does not stay. */
static long length_to_keep(FILE *file, uint64_t step, uint64_t *last_p)
{
    char *line = NULL;
    size_t capacity = 0;
    long length = 0;
    ssize_t n;

    while ((n = getline(&line, &capacity, file)) > 0 &&
           line_stays(line, (size_t)n, step, last_p))
        length += (long)n;
    free(line);
    return length;
}

cf_status cf_metrics_cut(const char *path, uint64_t step)
{
    FILE *file = fopen(path, "r+e");
    cf_status status = CF_OK;
    uint64_t last = 0;

    if (file == NULL && errno == ENOENT)
        return CF_OK;
    if (file == NULL ||
        ftruncate(fileno(file), length_to_keep(file, step, &last)) != 0) {
        cf_log_error("%s: cannot be cut off behind step %" PRIu64
                     ": %s; check its permissions",
                     path, step, strerror(errno));
        status = CF_IO;
    } else if (last != step) {
        cf_log_warn("%s: ends with step %" PRIu64 ", but the training state is "
                    "of step %" PRIu64,
                    path, last, step);
    }
    if (file != NULL)
        fclose(file);
    return status;
}
