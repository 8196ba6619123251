/* progress.h - the line of progress of a run, on standard error.
 *
 * On a terminal one line is drawn over and over, with a bar inside long steps.
 * Where the window is narrow, what matters least is left out; nothing wraps and
 * nothing is cut in a word.  NO_COLOR has its usual meaning.  Into a file or
 * pipe, and on a terminal that cannot move its cursor, it is one plain line
 * every log_every steps, and one for the last.
 */
#ifndef CF_PROGRESS_H
#define CF_PROGRESS_H

#include <chunkflow/base.h>

#include <stdbool.h>

typedef struct cf_progress {
    uint64_t n_steps; /* of the run */
    uint32_t log_every;
    bool has_bubble; /* there is a pipeline */
    bool quiet;
    bool on_terminal;
    bool in_color;
    bool is_drawn; /* the cursor stands behind a line of ours */
    double drawn_s;
    char loss[32]; /* of the last step, as shown; "": none */
} cf_progress;

/* Where a step is. */
typedef struct cf_progress_at {
    uint64_t step;
    size_t chunks_done;
    size_t n_chunks;
    double done;      /* of the work, 0 .. 1 */
    double elapsed_s; /* since the step began */
    uint64_t tokens;  /* of the whole step; 0: an evaluation */
    double run_eta_s; /* when this step is done */
    uint64_t peak_bytes;
} cf_progress_at;

/* What a step that is done reports to a person. */
typedef struct cf_progress_report {
    uint64_t step;
    bool has_loss;
    double loss;
    double learning_rate;
    double tokens_per_s;
    double bubble_ratio;
    uint64_t peak_bytes;
    double eta_s; /* of the run */
} cf_progress_report;

void cf_progress_open(uint64_t n_steps, uint32_t log_every, bool has_bubble,
                      bool quiet, cf_progress *progress);

/* Whether a line within a step would be drawn now: on a terminal, ten times a
 * second at most. */
bool cf_progress_is_due(const cf_progress *progress);

void cf_progress_within_step(cf_progress *progress, const cf_progress_at *at);

void cf_progress_step_done(cf_progress *progress,
                           const cf_progress_report *report);

/* An evaluation's line, which stays on a terminal. */
void cf_progress_evaluated(cf_progress *progress, uint64_t step, double loss,
                           double took_s, bool is_best);

/* End a line that is drawn over, so that another may be written. */
void cf_progress_end_line(cf_progress *progress);

#endif
