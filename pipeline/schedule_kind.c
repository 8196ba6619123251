/* schedule_kind.c - in what the kinds of schedules differ, and nothing else.
 *
 * All kinds share one generator (one_f_one_b.c), one lowering (lower.c) and one
 * checker (schedule_check.c), which ask here.
 *
 *     kind             kept of a group   a recompute
 *     state-aware      the last K        is local, before its gradient arrives
 *     paper            the last K        is sent through the stages again
 *     1f1b             all               does not happen
 *     1f1b-recompute   none              is local, behind its gradient
 */
#include "pipeline.h"

uint32_t cf_kept_of_group(const cf_schedule_params *params)
{
    switch (params->kind) {
    case CF_SCHEDULE_1F1B:
        return 1; /* of one */
    case CF_SCHEDULE_1F1B_RECOMPUTE:
        return 0;
    default:
        return params->retained_chunks_max;
    }
}

uint64_t cf_retained_max(const cf_schedule_params *params, uint32_t stage)
{
    const uint32_t n_behind = params->n_stages - 1 - stage;

    if (params->kind == CF_SCHEDULE_1F1B_RECOMPUTE)
        return 1; /* from the recompute to the backward right behind it */
    return (uint64_t)cf_kept_of_group(params) + n_behind;
}

bool cf_recompute_travels(const cf_schedule_params *params)
{
    return params->kind == CF_SCHEDULE_PAPER;
}

bool cf_recompute_waits(const cf_schedule_params *params)
{
    return params->kind == CF_SCHEDULE_1F1B_RECOMPUTE;
}

const char *cf_schedule_kind_str(cf_schedule_kind kind)
{
    switch (kind) {
    case CF_SCHEDULE_STATE_AWARE:
        return "state-aware";
    case CF_SCHEDULE_PAPER:
        return "paper";
    case CF_SCHEDULE_1F1B:
        return "1f1b";
    case CF_SCHEDULE_1F1B_RECOMPUTE:
        return "1f1b-recompute";
    case CF_SCHEDULE_KIND_COUNT:
        break;
    }
    return "unknown";
}
