/* cost_file.h - what the ops of every stage cost, from a file of measurements.
 *
 *     {"stages": [{"forward": {"op": 2e3, "token": 90, "pair": 0.01},
 *                  "forward_kept": {...}, "recompute": {...},
 *                  "backward": {...}}, ...],
 *      "message": {"op": 50, "token": 0.2}}
 *
 * Terms as in cf_cost_terms, 0 when left out.  A chunk that is kept costs what a
 * forward does, and a recompute what that does, unless the file says otherwise:
 * the last stage need not finish a forward that is dropped.
 */
#ifndef CF_COST_FILE_H
#define CF_COST_FILE_H

#include <chunkflow/simulate.h>

typedef struct cf_stage_cost {
    cf_cost_terms terms[CF_OP_BACKWARD + 1]; /* by op kind: F, K, R, B */
} cf_stage_cost;

typedef struct cf_measured_cost {
    uint32_t n_stages;
    cf_stage_cost *stages;  /* [n_stages], owned */
    cf_cost_terms message;  /* per_pair is 0 */
    cf_cost_terms sequence; /* forward and backward, kept, on a mean stage */
} cf_measured_cost;

/* The file must be one for so many stages.  Close what comes back.  Errors,
 * logged with file and field: CF_MALFORMED, CF_NO_MEMORY. */
CF_MUST_USE cf_status cf_measured_cost_open(const char *path, uint32_t n_stages,
                                            cf_measured_cost *cost);
void cf_measured_cost_close(cf_measured_cost *cost);

/* The two callbacks of a cf_cost_model whose context is a cf_measured_cost. */
double cf_measured_cost_compute(const void *cost, const cf_chunk_plan *plan,
                                uint32_t stage, cf_op op);
double cf_measured_cost_message(const void *cost, const cf_chunk_plan *plan,
                                uint32_t stage, cf_op op);

#endif
