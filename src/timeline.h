/* timeline.h - a schedule with its times, drawn: as text, as a picture, as a
 * trace for ui.perfetto.dev or chrome://tracing.
 *
 * Stages are lanes, time runs to the right, and what is empty is idle.  The
 * times may be simulated or measured.
 */
#ifndef CF_TIMELINE_H
#define CF_TIMELINE_H

#include <chunkflow/simulate.h>

#include <stdbool.h>
#include <stdio.h>

typedef struct cf_timeline {
    const cf_chunk_plan *plan;
    const cf_schedule *schedule;
    const cf_simulation *simulation; /* with times */
    const char *what; /* in front of the picture's heading, as "Step 7, "; NULL:
                         nothing */
    const char *unit; /* of time, as "s"; NULL: that of a cost */
} cf_timeline;

/* Each takes a cf_timeline as its content, and returns CF_IO when a write
 * failed, without logging: for cf_file_write. */

/* One line a stage, at most 80 columns. */
CF_MUST_USE cf_status cf_timeline_write_text(FILE *file, const void *timeline);

/* An SVG picture: blue is forward, filled where the activations are kept and
 * hatched where they are computed again, orange is backward; a bar below marks
 * the chunks of a group. */
CF_MUST_USE cf_status cf_timeline_write_svg(FILE *file, const void *timeline);

/* The trace event format; a unit of time is a microsecond. */
CF_MUST_USE cf_status cf_timeline_write_trace(FILE *file, const void *timeline);

/* "state-aware, 4 stages, ChunkSize 2, K 2".  snprintf rules. */
size_t cf_timeline_heading(const cf_timeline *timeline, char *buf, size_t size);

/* ---- shared by the writers ---- */

/* One op that computes, and when. */
typedef struct cf_timeline_op {
    uint32_t stage;
    char letter; /* F, K, R or B */
    const cf_chunk *chunk;
    uint32_t index; /* of the chunk */
    cf_op_time time;
} cf_timeline_op;

/* Call visit for every op that computes, stage by stage in order. */
void cf_timeline_visit(const cf_timeline *timeline,
                       void (*visit)(void *context, const cf_timeline_op *op),
                       void *context);

/* Whether the chunk is one of several of a group. */
bool cf_timeline_in_group(const cf_timeline *timeline, uint32_t chunk);

#endif
