/* validation.h - the evaluations between the steps of a run.
 *
 * (1) A pass runs in the memory of the training engine, which is idle between
 *     steps and is carved again after it; what a pass needs beyond that is sized
 *     and printed before the first step.
 * (2) It changes no weight and no state of training: the steps after it have the
 *     bits that they have without it.
 * (3) With --keep-best the folder `best` of the run holds the exported model of
 *     the best evaluation so far, written before the line of that evaluation.
 */
#ifndef CF_VALIDATION_H
#define CF_VALIDATION_H

#include "src/best.h"
#include "src/evaluation.h"
#include "src/forecast.h"
#include "src/metrics.h"
#include "src/run.h"

typedef struct cf_validation {
    const cf_options *options; /* borrowed */
    cf_run *run;               /* borrowed */
    cf_dataset *dataset;       /* owned; NULL: there is no --eval-data */
    cf_evaluation evaluation;
    cf_best best;
    size_t arena_from;   /* where a pass may take its memory */
    double forecast_s;   /* of one pass */
    size_t peak_bytes;   /* of all passes */
    cf_metrics *metrics; /* borrowed, during a pass */
    uint64_t step;       /* before the pass */
    size_t chunks_done;
} cf_validation;

/* Open --eval-data, if there is any.  Errors, logged, as of cf_dataset_open and
 * cf_evaluation_open; CF_INVALID for options that need --eval-data and stand
 * alone. */
CF_MUST_USE cf_status cf_validation_open(const cf_options *options, cf_run *run,
                                         cf_validation *validation);

/* Bound a pass for the ChunkSize that the options have by now; before carving.
 * Errors, logged: as of cf_evaluation_bound. */
CF_MUST_USE cf_status cf_validation_bound(cf_validation *validation);
void cf_validation_close(cf_validation *validation);

/* What is evaluated, as text that ranks compare; "" without --eval-data. */
const char *cf_validation_describe(const cf_validation *validation, char *buf,
                                   size_t size);

/* Let a pass lie over what the arena holds from offset `from` on. */
void cf_validation_carve(cf_validation *validation, size_t from,
                         cf_arena *arena);

/* Say on standard error what will be evaluated, and when. */
void cf_validation_introduce(const cf_validation *validation);

/* Whether an evaluation follows this step of n_steps and has not been made. */
bool cf_validation_is_due(const cf_validation *validation, uint64_t step,
                          uint64_t n_steps);

/* How many follow the steps from first_step on, unless --patience ends it. */
uint64_t cf_validation_count(const cf_validation *validation,
                             uint64_t first_step, uint64_t n_steps);

/* Add those to the forecast of the run. */
void cf_validation_forecast(cf_validation *validation, uint64_t first_step,
                            uint64_t n_steps, cf_forecast *forecast);

/* A pass, its line in the metrics, and with --keep-best its model.  A signal
 * ends it between two chunks, without a line, and it stays due.  The training
 * engine's memory is lost: carve it again.  Errors, logged: CF_NOT_FINITE,
 * CF_IO, CF_NO_MEMORY. */
CF_MUST_USE cf_status cf_validation_run(cf_validation *validation,
                                        uint64_t step, cf_metrics *metrics);

/* Whether --patience is at its end. */
bool cf_validation_is_over(const cf_validation *validation);

/* With --keep-best, put the weights of the best evaluation in the place of those
 * of the last step.  For the end: the training state must be on disk.  Errors,
 * logged: CF_MALFORMED. */
CF_MUST_USE cf_status
cf_validation_restore_best(const cf_validation *validation);

#endif
