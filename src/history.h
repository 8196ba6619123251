/* history.h - metrics.jsonl read back, for pictures and reports. */
#ifndef CF_HISTORY_H
#define CF_HISTORY_H

#include <chunkflow/base.h>

/* The columns of a step; NAN: null, or not there. */
typedef enum cf_history_column {
    CF_HISTORY_STEP,
    CF_HISTORY_LOSS,
    CF_HISTORY_GRAD_NORM,
    CF_HISTORY_LEARNING_RATE,
    CF_HISTORY_TOKENS,
    CF_HISTORY_STEP_S,
    CF_HISTORY_PEAK_BYTES,
    CF_HISTORY_BUBBLE,
    CF_HISTORY_COLUMNS
} cf_history_column;

typedef struct cf_history {
    double *columns[CF_HISTORY_COLUMNS]; /* [n_steps], owned, as the next */
    double *eval_step;                   /* [n_evals] */
    double *eval_loss;
    size_t n_steps, n_evals;
    size_t capacity, eval_capacity;
} cf_history;

/* What the file has now; a torn last line is left out, no file is an empty
 * history.  Errors, logged: CF_NO_MEMORY. */
CF_MUST_USE cf_status cf_history_read(const char *path, cf_history *history);
void cf_history_close(cf_history *history);

#endif
