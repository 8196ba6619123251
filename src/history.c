/* history.c - see history.h. */
#include "src/history.h"

#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "src/log.h"

static const char *const keys[CF_HISTORY_COLUMNS] = {
    [CF_HISTORY_STEP] = "step",
    [CF_HISTORY_LOSS] = "loss",
    [CF_HISTORY_GRAD_NORM] = "grad_norm",
    [CF_HISTORY_LEARNING_RATE] = "learning_rate",
    [CF_HISTORY_TOKENS] = "tokens",
    [CF_HISTORY_STEP_S] = "step_s",
    [CF_HISTORY_PEAK_BYTES] = "peak_bytes",
    [CF_HISTORY_BUBBLE] = "bubble_ratio",
};

static bool grow(double **array, size_t capacity)
{
    double *larger = realloc(*array, capacity * sizeof(**array));

    if (larger != NULL)
        *array = larger;
    return larger != NULL;
}

static bool have_room(cf_history *h)
{
    if (h->n_steps == h->capacity) {
        h->capacity = 2 * h->capacity + 64;
        for (size_t i = 0; i < CF_HISTORY_COLUMNS; i++)
            if (!grow(&h->columns[i], h->capacity))
                return false;
    }
    if (h->n_evals == h->eval_capacity) {
        h->eval_capacity = 2 * h->eval_capacity + 64;
        return grow(&h->eval_step, h->eval_capacity) &&
               grow(&h->eval_loss, h->eval_capacity);
    }
    return true;
}

static double number(const json_t *line, const char *key)
{
    const json_t *value = json_object_get(line, key);

    return json_is_number(value) ? json_number_value(value) : NAN;
}

static void line_add(cf_history *h, const json_t *line)
{
    if (json_is_true(json_object_get(line, "eval"))) {
        h->eval_step[h->n_evals] = number(line, "step");
        h->eval_loss[h->n_evals++] = number(line, "loss");
        return;
    }
    for (size_t i = 0; i < CF_HISTORY_COLUMNS; i++)
        h->columns[i][h->n_steps] = number(line, keys[i]);
    h->n_steps++;
}

cf_status cf_history_read(const char *path, cf_history *history)
{
    FILE *file = fopen(path, "re");
    char *text = NULL;
    size_t capacity = 0;
    ssize_t n;
    bool has_room = true;

    *history = (cf_history){0};
    while (has_room && file != NULL &&
           (n = getline(&text, &capacity, file)) > 0) {
        json_t *line = json_loadb(text, (size_t)n, 0, NULL);

        has_room = have_room(history);
        if (has_room && json_is_number(json_object_get(line, "step")))
            line_add(history, line);
        json_decref(line);
    }
    free(text);
    if (file != NULL)
        fclose(file);
    if (has_room)
        return CF_OK;
    cf_history_close(history);
    return cf_log_no_memory("the metrics of the run");
}

void cf_history_close(cf_history *history)
{
    for (size_t i = 0; i < CF_HISTORY_COLUMNS; i++)
        free(history->columns[i]);
    free(history->eval_step);
    free(history->eval_loss);
    *history = (cf_history){0};
}
