/* schedule_kind.c - in what the kinds of schedules differ, and nothing else.
 *
 * All kinds share one generator (one_f_one_b.c), one lowering (lower.c) and one
 * checker (schedule_check.c), which ask here.
 *
 *     kind             kept of a group   a recompute
 *     state-aware      the last K        is local, before its gradient arrives
 *     ... -long-first  the last K        the same; long groups run first
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

/* The first group from this chunk on that has several chunks, or one. */
static cf_group find_group(const cf_chunk_plan *plan,
                           const cf_schedule_params *params, uint32_t chunk,
                           bool is_long)
{
    const uint32_t kept = cf_kept_of_group(params);
    cf_group group = cf_group_at(plan, chunk, kept);

    while (group.n_chunks > 0 && (group.n_chunks > 1) != is_long)
        group = cf_group_at(plan, cf_group_end(&group), kept);
    return group;
}

cf_group cf_group_first(const cf_chunk_plan *plan,
                        const cf_schedule_params *params)
{
    cf_group first = {0};

    if (params->kind == CF_SCHEDULE_LONG_FIRST)
        first = find_group(plan, params, 0, true);
    if (first.n_chunks == 0)
        first = cf_group_at(plan, 0, cf_kept_of_group(params));
    return first;
}

cf_group cf_group_next(const cf_chunk_plan *plan,
                       const cf_schedule_params *params, const cf_group *group)
{
    const uint32_t end = cf_group_end(group);
    const bool is_long = group->n_chunks > 1;
    cf_group next;

    if (params->kind != CF_SCHEDULE_LONG_FIRST)
        return cf_group_at(plan, end, cf_kept_of_group(params));
    next = find_group(plan, params, end, is_long);
    if (next.n_chunks == 0 && is_long)
        next = find_group(plan, params, 0, false);
    return next;
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
    case CF_SCHEDULE_LONG_FIRST:
        return "state-aware-long-first";
    case CF_SCHEDULE_1F1B:
        return "1f1b";
    case CF_SCHEDULE_1F1B_RECOMPUTE:
        return "1f1b-recompute";
    case CF_SCHEDULE_KIND_COUNT:
        break;
    }
    return "unknown";
}
