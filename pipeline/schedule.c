/* schedule.c - bound and build: order inside a group (state_aware.c), order of
 * the groups on each stage (one_f_one_b.c), messages (lower.c).
 *
 * Each stage computes each chunk forward and backward, and each dropped chunk
 * once more; each of the p - 1 links carries each chunk once in each direction,
 * and each recompute that travels; a message is one op at either end.
 */
#include "pipeline.h"

/* Groups numbered from 0 without a gap, their chunks adjacent and ascending:
 * all the schedule needs to know of a plan. */
static bool groups_are_in_order(const cf_chunk_plan *plan)
{
    uint32_t group = 0;
    uint32_t in_group = 0;

    if (plan->n_chunks == 0)
        return plan->n_groups == 0;
    for (size_t i = 0; i < plan->n_chunks; i++) {
        const cf_chunk *chunk = &plan->chunks[i];

        if (i > 0 && chunk->group != group) {
            group++;
            in_group = 0;
        }
        if (chunk->group != group || chunk->in_group != in_group)
            return false;
        in_group++;
    }
    return plan->n_groups - 1 == group;
}

static size_t count_dropped(const cf_chunk_plan *plan, uint32_t k)
{
    size_t n_dropped = 0;
    cf_group group = cf_group_at(plan, 0, k);

    while (group.n_chunks > 0) {
        n_dropped += group.n_dropped;
        group = cf_group_at(plan, cf_group_end(&group), k);
    }
    return n_dropped;
}

static size_t count_compute(const cf_chunk_plan *plan,
                            const cf_schedule_params *params)
{
    return 2 * plan->n_chunks + count_dropped(plan, cf_kept_of_group(params));
}

/* Whether groups have as many chunks as this kind can run. */
static bool groups_fit(const cf_chunk_plan *plan,
                       const cf_schedule_params *params)
{
    if (params->kind == CF_SCHEDULE_1F1B ||
        params->kind == CF_SCHEDULE_1F1B_RECOMPUTE)
        return plan->n_groups == plan->n_chunks;
    return true;
}

cf_status cf_schedule_bound(const cf_chunk_plan *plan,
                            const cf_schedule_params *params,
                            cf_schedule_need *need_p)
{
    cf_schedule_need need;
    size_t n_messages; /* of a stage between two others */
    size_t n_compute;
    cf_status status;

    if (params->n_stages == 0 || params->retained_chunks_max == 0 ||
        (unsigned)params->kind >= CF_SCHEDULE_KIND_COUNT)
        return CF_INVALID;
    if (plan->n_chunks > UINT32_MAX)
        return CF_INVALID;

    /* The caller will allocate n_ops entries: their bytes have to fit as well.
     * Nine ops a chunk are the most that one stage can have. */
    if (plan->n_chunks > SIZE_MAX / sizeof(cf_op) / 9 / params->n_stages)
        return CF_OVERFLOW;
    if (!groups_are_in_order(plan) || !groups_fit(plan, params))
        return CF_INVALID;

    n_compute = count_compute(plan, params);
    n_messages = 4 * plan->n_chunks;
    if (cf_recompute_travels(params))
        n_messages += 2 * (n_compute - 2 * plan->n_chunks);
    need.n_ops = params->n_stages * (n_compute + n_messages) - n_messages;

    status = cf_schedule_check_scratch(plan->n_chunks, params->n_stages,
                                       &need.scratch_bytes);
    if (status != CF_OK)
        return status;
    *need_p = need;
    return CF_OK;
}

cf_status cf_schedule_build(const cf_chunk_plan *plan,
                            const cf_schedule_params *params,
                            cf_schedule *schedule)
{
    cf_schedule_need need;
    size_t n_compute;
    cf_op *compute;
    cf_status status = cf_schedule_bound(plan, params, &need);

    if (status != CF_OK)
        return status;
    if (schedule->ops_capacity < need.n_ops)
        return CF_NO_SPACE;

    schedule->params = *params;
    schedule->first_op[0] = 0;
    if (need.n_ops == 0) {
        for (uint32_t stage = 0; stage < params->n_stages; stage++)
            schedule->first_op[stage + 1] = 0;
        return CF_OK;
    }

    /* The compute-only order of each stage in turn waits at the end of the
     * array, where the last stage's result will end. */
    n_compute = count_compute(plan, params);
    compute = schedule->ops + (need.n_ops - n_compute);
    for (uint32_t stage = 0; stage < params->n_stages; stage++) {
        size_t first = schedule->first_op[stage];

        cf_one_f_one_b(plan, params, stage, compute);
        schedule->first_op[stage + 1] =
            first +
            cf_lower(compute, n_compute, params, stage, schedule->ops + first);
    }
    return CF_OK;
}
