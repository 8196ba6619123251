/* cost_fit.h - the terms of a cost from measured ops.
 *
 * Least squares in which errors weigh as 1 / seconds, so that no one long op
 * decides, and those seconds are of the fit before: then fitted and measured
 * seconds have the same sum, where with the measured ones an op that was slow by
 * chance would count less than one that was fast.
 *
 * (1) No term is negative: of all choices of terms whose solution has no negative
 *     one the best is taken.
 * (2) A function of the samples alone.
 */
#ifndef CF_COST_FIT_H
#define CF_COST_FIT_H

#include <chunkflow/simulate.h>

typedef struct cf_cost_sample {
    double n_tok;
    double n_pairs;
    double seconds;
} cf_cost_sample;

/* All zero when there is no sample. */
cf_cost_terms cf_cost_fit(const cf_cost_sample *samples, size_t n);

double cf_cost_terms_s(const cf_cost_terms *terms, double n_tok,
                       double n_pairs);

/* Of two costs, one after the other; n times one. */
cf_cost_terms cf_cost_terms_sum(cf_cost_terms a, cf_cost_terms b);
cf_cost_terms cf_cost_terms_times(cf_cost_terms terms, double n);

#endif
