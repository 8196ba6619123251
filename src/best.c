/* best.c - see best.h. */
#include "src/best.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "src/log.h"

bool cf_best_add(cf_best *best, uint64_t step, double loss)
{
    const bool improved = best->n_evaluations == 0 || loss < best->loss;

    best->n_evaluations++;
    best->last_step = step;
    best->n_since++;
    if (improved) {
        best->step = step;
        best->loss = loss;
        best->n_since = 0;
    }
    return improved;
}

bool cf_best_is_over(const cf_best *best, uint64_t patience)
{
    return patience > 0 && best->n_since >= patience;
}

/* One line of the file; those of steps are passed over. */
static void line_add(const json_t *line, uint64_t last_step, cf_best *best)
{
    const json_t *step = json_object_get(line, "step");
    const json_t *loss = json_object_get(line, "loss");

    if (json_is_true(json_object_get(line, "eval")) && json_is_integer(step) &&
        json_is_number(loss) &&
        json_integer_value(step) <= (json_int_t)last_step)
        cf_best_add(best, (uint64_t)json_integer_value(step),
                    json_number_value(loss));
}

/* Objects one after the other, to the end of the file. */
static cf_status lines_read(const char *path, FILE *file, uint64_t last_step,
                            cf_best *best)
{
    for (;;) {
        json_error_t error;
        json_t *line;
        int c;

        while ((c = getc(file)) == '\n')
            ;
        if (c == EOF)
            return CF_OK;
        (void)ungetc(c, file);
        line = json_loadf(file, JSON_DISABLE_EOF_CHECK, &error);
        if (line == NULL) {
            cf_log_error("%s: not one JSON object a line (%s): restore the "
                         "file, or start again with --overwrite",
                         path, error.text);
            return CF_MALFORMED;
        }
        line_add(line, last_step, best);
        json_decref(line);
    }
}

cf_status cf_best_read(const char *path, uint64_t last_step, cf_best *best_p)
{
    cf_best best = {0};
    FILE *file = fopen(path, "re");
    cf_status status;

    if (file == NULL && errno != ENOENT) {
        cf_log_error("%s: cannot be read: %s", path, strerror(errno));
        return CF_MALFORMED;
    }
    if (file == NULL) {
        *best_p = best;
        return CF_OK;
    }
    status = lines_read(path, file, last_step, &best);
    (void)fclose(file);
    if (status == CF_OK)
        *best_p = best;
    return status;
}
