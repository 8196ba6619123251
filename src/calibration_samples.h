/* calibration_samples.h - the ops that a calibration has timed, and the costs that
 * follow from them.
 *
 * (1) The ops of a part come in the same order in every pass.  Of each the median
 *     over the passes counts, so that what else the machine did is left out.
 */
#ifndef CF_CALIBRATION_SAMPLES_H
#define CF_CALIBRATION_SAMPLES_H

#include "src/cost_fit.h"
#include "src/costs.h"

/* What gets a fit of its own. */
typedef enum cf_part_timed {
    CF_TIMED_FORWARD, /* of a layer, without attention, as CF_TIMED_BACKWARD is */
    CF_TIMED_ATTENTION_FORWARD, /* of a layer */
    CF_TIMED_ATTENTION_BACKWARD,
    CF_TIMED_CHUNK_FORWARD,
    CF_TIMED_CHUNK_BACKWARD,
    CF_TIMED_HEAD,
    CF_TIMED_BACKWARD, /* and the other policies */
    CF_TIMED_PARTS = CF_TIMED_BACKWARD + CF_RECOMPUTES
} cf_part_timed;

enum {
    CF_TIMED_OPS_MAX = 64, /* of a part, in a pass */
    CF_TIMED_PASSES_MAX = 15
};

/* One op, every time that it ran. */
typedef struct cf_timed_op {
    double n_tok, n_pairs;
    double seconds[CF_TIMED_PASSES_MAX];
    size_t n;
} cf_timed_op;

/* All zero: none. */
typedef struct cf_calibration_samples {
    cf_timed_op ops[CF_TIMED_PARTS][CF_TIMED_OPS_MAX];
    size_t n_ops[CF_TIMED_PARTS]; /* of this pass so far */
    cf_cost_sample medians[CF_TIMED_PARTS][CF_TIMED_OPS_MAX];
    size_t n_medians[CF_TIMED_PARTS];
} cf_calibration_samples;

void cf_calibration_begin_pass(cf_calibration_samples *samples);

/* The next op of a part; part is a cf_part_timed, or CF_TIMED_BACKWARD and a
 * policy.  seconds are of a layer where the part is. */
void cf_calibration_append(cf_calibration_samples *samples, int part,
                           double n_tok, double n_pairs, double seconds);

/* The terms of the costs, but for the update. */
void cf_calibration_fit(cf_calibration_samples *samples,
                        const cf_model_config *config, cf_costs *costs);

/* After a fit, how far it is off the medians, as a share of all seconds of
 * n_layers layers. */
double cf_calibration_fit_error(const cf_calibration_samples *samples,
                                double n_layers);

/* For qsort. */
int cf_seconds_ascending(const void *a, const void *b);

#endif
