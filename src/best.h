/* best.h - the best evaluation of a run so far, and when to give up.
 *
 * It can be told again from the evaluation lines of metrics.jsonl, so a resumed
 * run knows what the interrupted one knew.
 */
#ifndef CF_BEST_H
#define CF_BEST_H

#include <chunkflow/base.h>

#include <stdbool.h>

typedef struct cf_best {
    uint64_t n_evaluations;
    uint64_t last_step; /* of the last evaluation; 0: none */
    uint64_t step;      /* of the best one, the earlier of equals */
    double loss;
    uint64_t n_since; /* evaluations after the best one */
} cf_best;

/* Count an evaluation.  Returns whether it is the best so far. */
bool cf_best_add(cf_best *best, uint64_t step, double loss);

/* Whether this many evaluations in a row have not improved; 0 is never. */
bool cf_best_is_over(const cf_best *best, uint64_t patience);

/* Count the evaluations up to a step from a metrics.jsonl; no file is no
 * evaluation.  Errors, logged: CF_MALFORMED. */
CF_MUST_USE cf_status cf_best_read(const char *path, uint64_t last_step,
                                   cf_best *best_p);

#endif
