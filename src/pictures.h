/* pictures.h - the pictures of a run, drawn again while it goes on: loss.svg,
 * lengths.svg, memory.svg, schedule.svg in its folder.
 *
 * Rank 0 draws, and decides when: after the first step, then at most every ten
 * seconds and never for more than a fiftieth of the time, and at the end.  What
 * the stages of its replica did when in a step is collected for schedule.svg.
 *
 * A picture that cannot be written is a warning, once: the run is worth more.
 */
#ifndef CF_PICTURES_H
#define CF_PICTURES_H

#include <chunkflow/simulate.h>

#include <stdbool.h>

#include "src/comm.h"
#include "src/grid.h"
#include "src/picture.h"
#include "src/step_plan.h"

typedef struct cf_pictures {
    cf_comm *comm; /* borrowed */
    cf_grid grid;
    char *folder;      /* owned; of the run */
    cf_op_time *times; /* owned [capacity]: of this rank's ops in their order;
                          once collected, on rank 0 of all stages' */
    size_t n_times;
    size_t capacity;
    double due_s;
    bool is_told; /* that they cannot be written */
} cf_pictures;

/* A step has at most capacity ops, on all stages together.  Errors, logged:
 * CF_NO_MEMORY. */
CF_MUST_USE cf_status cf_pictures_open(const char *folder, cf_comm *comm,
                                       const cf_grid *grid, size_t capacity,
                                       cf_pictures *pictures);
void cf_pictures_close(cf_pictures *pictures);

void cf_pictures_begin_step(cf_pictures *pictures);

/* The next op of this rank's list ran, in seconds since the step began. */
void cf_pictures_op_done(cf_pictures *pictures, double start_s, double end_s);

/* By the clock of rank 0. */
bool cf_pictures_are_due(const cf_pictures *pictures);

/* All ranks, after a step with ops: rank 0 learns when the others' ran.  Errors,
 * logged: CF_COMM. */
CF_MUST_USE cf_status cf_pictures_collect(cf_pictures *pictures, uint64_t step,
                                          const cf_step_plan *plan);

/* On rank 0; nothing on the others.  The schedule is that of the step that was
 * collected. */
void cf_pictures_draw_schedule(cf_pictures *pictures, uint64_t step,
                               const cf_step_plan *plan);
void cf_pictures_draw_lengths(cf_pictures *pictures,
                              const cf_picture_lengths *lengths);

/* Loss and memory, from the metrics that the run has written; memory->history is
 * set here. */
void cf_pictures_draw_curves(cf_pictures *pictures, uint64_t n_steps,
                             const cf_picture_memory *memory);

#endif
