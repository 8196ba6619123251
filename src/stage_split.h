/* stage_split.h - which layers each stage of a pipeline has.
 *
 * The head costs the last stage as much as several layers do, so that equal
 * numbers of layers are not equal work.  The slowest stage sets the pace: the
 * split makes it as fast as it can be.
 */
#ifndef CF_STAGE_SPLIT_H
#define CF_STAGE_SPLIT_H

#include <chunkflow/base.h>

#include "src/model.h"

/* What the parts cost, per token and in one unit. */
typedef struct cf_stage_costs {
    double layer;
    double head;
} cf_stage_costs;

/* Stage `index` of n_stages of a model of n_layers.  list: as --layers-per-stage
 * has it, such as "9,9,8,4", or NULL: by cost.  Errors, logged: CF_INVALID (more
 * stages than layers, or a list that does not fit). */
CF_MUST_USE cf_status cf_stage_split(uint32_t n_layers, uint32_t n_stages,
                                     const char *list, cf_stage_costs costs,
                                     uint32_t index, cf_stage *stage_p);

#endif
