/* calibration.h - the costs of a model's ops, measured with the engine.
 *
 * A layer of the model's shape, some where they are small, with made-up weights and tokens, run chunks of
 * several sizes, prefixes and numbers of targets, forward and backward under every
 * recompute policy.  op_times.h tells layers, attention and head apart; each gets
 * its own least-squares fit (cost_fit.h).  A step of another kind, with packed and
 * with dropped chunks, then says how far the fit is off.
 *
 * (1) Weights and data of the user are not read, and nothing that is computed
 *     later depends on it.
 * (2) It ends within the time given, give or take one chunk; a slow machine fits
 *     fewer sizes.
 */
#ifndef CF_CALIBRATION_H
#define CF_CALIBRATION_H

#include "src/costs.h"

/* Of most machines' first measurement until the numbers stand still. */
#define CF_CALIBRATION_S 14.0

/* Costs of options->model under these kernels, with the adapter asked for, on the
 * threads that this process has.  Errors, logged. */
CF_MUST_USE cf_status cf_calibrate(const cf_options *options,
                                   const cf_kernels *kernels, double budget_s,
                                   cf_costs *costs_p);

#endif
