/* optimizer.h - AdamW over the parameter table, as torch.optim.AdamW. */
#ifndef CF_OPTIMIZER_H
#define CF_OPTIMIZER_H

#include "src/model.h"
#include "src/options.h"

/* The learning rate of step 1 .. n_steps (INTERFACE section 2). */
double cf_learning_rate(const cf_options *options, uint64_t step,
                        uint64_t n_steps);

/* torch.nn.utils.clip_grad_norm_'s coefficient; max_norm 0 = off. */
double cf_clip_coefficient(double norm, double max_norm);

/* One update of the trained tensors, of this replica's shard; n_updates counts
 * it, from 1.  The weights are not packed yet. */
void cf_optimizer_update(cf_model *model, const cf_options *options,
                         double learning_rate, double clip_coefficient,
                         uint64_t n_updates);

#endif
