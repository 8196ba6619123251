/* metrics.h - what a step reports: metrics.jsonl, the event file for TensorBoard,
 * and the line of progress. */
#ifndef CF_METRICS_H
#define CF_METRICS_H

#include <chunkflow/base.h>

#include <jansson.h>
#include <stdbool.h>

#include "src/progress.h"

typedef struct cf_step_report {
    uint64_t step; /* from 1 */
    bool has_loss; /* false: no target token; loss and norm are null */
    double loss;
    double grad_norm;
    double learning_rate;
    uint64_t sequences;
    uint64_t tokens;
    uint64_t target_tokens;
    uint64_t chunks;
    uint64_t recomputed_chunks;
    double step_s;
    double eta_s; /* to the end of the run, as forecast; on the line only */
    uint64_t peak_bytes; /* largest over ranks */
    /* Of more than one rank; else 0. */
    double bubble_ratio;
    double load_max_over_mean; /* of the replicas, as predicted */
    double waited_s;           /* for messages, most over ranks */
    uint64_t sent_bytes;       /* by all ranks */
} cf_step_report;

/* What an evaluation between steps reports. */
typedef struct cf_eval_report {
    uint64_t step; /* the one before it */
    double loss;
    bool is_best; /* of the run so far */
    double step_s;
    uint64_t peak_bytes;
    const json_t *result; /* all of it, as eval --json prints it; borrowed */
} cf_eval_report;

typedef struct cf_metrics cf_metrics;

typedef struct cf_metrics_params {
    const char *path; /* of metrics.jsonl; NULL: none */
    uint64_t n_steps; /* of the run, for the line */
    uint32_t log_every;
    bool quiet; /* no progress on standard error */
    uint32_t n_stages;
    uint32_t n_replicas;
    const char *events; /* the folder of the event file; NULL: none */
} cf_metrics_params;

/* Cut a metrics.jsonl off behind the lines of a step, a torn line included, so
 * that a resumed run goes on without a gap or a double line.  No file is fine.
 * Errors, logged: CF_IO. */
CF_MUST_USE cf_status cf_metrics_cut(const char *path, uint64_t step);

/* Errors, logged: CF_IO. */
CF_MUST_USE cf_status cf_metrics_open(const cf_metrics_params *params,
                                      cf_metrics **metrics_p);
void cf_metrics_close(cf_metrics *metrics);

/* Whether a line within a step would be drawn now (progress.h). */
bool cf_metrics_progress_is_due(const cf_metrics *metrics);

/* Draw it. */
void cf_metrics_progress(cf_metrics *metrics, const cf_progress_at *at);

/* End a line that is drawn over, so that another may be written. */
void cf_metrics_end_line(cf_metrics *metrics);

/* One JSON line and one event, flushed, and one line of progress.  While the disk
 * is full the lines wait in memory, told once.  Errors, logged: CF_IO. */
CF_MUST_USE cf_status cf_metrics_append(cf_metrics *metrics,
                                        const cf_step_report *report);

/* After the last line: all of them are in the file.  Errors, logged: CF_IO. */
CF_MUST_USE cf_status cf_metrics_settle(cf_metrics *metrics);

/* The same for an evaluation: the JSON line holds "eval": true, and the line of
 * progress stays on a terminal.  Errors, logged: CF_IO, CF_NO_MEMORY. */
CF_MUST_USE cf_status
cf_metrics_append_evaluation(cf_metrics *metrics, const cf_eval_report *report);

#endif
