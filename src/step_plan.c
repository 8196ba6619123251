/* step_plan.c - see step_plan.h. */
#include "src/step_plan.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "src/log.h"

/* ---- bounds over a run ---- */

static int descending(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return (x < y) - (x > y);
}

static size_t size_max(size_t a, size_t b)
{
    return a > b ? a : b;
}

static uint32_t u32_min(uint64_t a, uint64_t b)
{
    return (uint32_t)(a < b ? a : b);
}

cf_status cf_longest_open(const cf_dataset *dataset, const uint32_t *sequences,
                          size_t n_sequences, size_t n_batch,
                          cf_longest *longest)
{
    const uint32_t *len_tok = cf_dataset_lengths(dataset);
    const uint32_t *targets = cf_dataset_target_counts(dataset);

    longest->n = 0;
    longest->len_tok =
        malloc((n_sequences > 0 ? n_sequences : 1) * sizeof(*longest->len_tok));
    if (longest->len_tok == NULL) {
        cf_log_error("no memory to sort %zu lengths", n_sequences);
        return CF_NO_MEMORY;
    }
    for (size_t i = 0; i < n_sequences; i++)
        if (targets[sequences[i]] > 0)
            longest->len_tok[longest->n++] = len_tok[sequences[i]];
    qsort(longest->len_tok, longest->n, sizeof(*longest->len_tok), descending);
    if (longest->n > n_batch)
        longest->n = n_batch;
    return CF_OK;
}

void cf_longest_close(cf_longest *longest)
{
    free(longest->len_tok);
    *longest = (cf_longest){0};
}

/* A batch has no more chunks and pieces than the longest sequences make, since
 * one that is cut makes at least two, and needs no more scratch than if all of
 * those were short and as long as short ones can be. */
static cf_status chunks_bound(const cf_longest *of, uint32_t chunk_size_tok,
                              cf_chunk_bound *bound_p)
{
    const size_t n_batch = of->n;
    uint32_t *len_tok = calloc(n_batch + 1, sizeof(*len_tok));
    cf_chunk_bound longest, shortened;
    cf_status status;

    if (len_tok == NULL)
        return CF_NO_MEMORY;
    status =
        cf_chunk_plan_bound(of->len_tok, n_batch, chunk_size_tok, &longest);
    for (size_t i = 0; i < n_batch; i++)
        len_tok[i] = u32_min(of->len_tok[i], chunk_size_tok);
    if (status == CF_OK)
        status =
            cf_chunk_plan_bound(len_tok, n_batch, chunk_size_tok, &shortened);
    free(len_tok);
    if (status != CF_OK)
        return status;
    *bound_p = longest;
    bound_p->n_chunks = size_max(bound_p->n_chunks, shortened.n_chunks);
    bound_p->n_chunks = size_max(bound_p->n_chunks, n_batch); /* whole plans */
    bound_p->scratch_bytes =
        size_max(bound_p->scratch_bytes, shortened.scratch_bytes);
    return CF_OK;
}

static bool is_whole(const cf_schedule_params *params)
{
    return params->kind == CF_SCHEDULE_1F1B ||
           params->kind == CF_SCHEDULE_1F1B_RECOMPUTE;
}

/* No list of n chunks is longer than that of one group of n; where a chunk is a
 * group, that of n groups. */
static cf_status schedule_bound(size_t n_chunks,
                                const cf_schedule_params *params,
                                cf_schedule_need *need_p)
{
    cf_chunk *chunks = calloc(n_chunks > 0 ? n_chunks : 1, sizeof(*chunks));
    cf_chunk_plan plan = {
        .chunks = chunks, .n_chunks = n_chunks, .n_groups = n_chunks > 0};
    cf_status status;

    if (chunks == NULL)
        return CF_NO_MEMORY;
    for (size_t i = 0; i < n_chunks; i++)
        chunks[i] =
            (cf_chunk){.kind = CF_CHUNK_DEPENDENT, .in_group = (uint32_t)i};
    for (size_t i = 0; i < n_chunks && is_whole(params); i++)
        chunks[i] = (cf_chunk){.group = (uint32_t)i};
    if (is_whole(params))
        plan.n_groups = (uint32_t)n_chunks;
    status = cf_schedule_bound(&plan, params, need_p);
    free(chunks);
    return status;
}

static void engine_bound(const cf_longest *longest, cf_step_plan_need *need)
{
    const cf_stage_load load = {.params = need->params,
                                .stage = need->stage,
                                .chunk_size_tok = need->chunk_size_tok,
                                .len_tok = longest->len_tok,
                                .n = longest->n};
    uint64_t batch_tok = 0;
    cf_kv_need *kv = &need->engine.kv;

    for (size_t i = 0; i < longest->n; i++)
        batch_tok += longest->len_tok[i];
    need->most = cf_stage_need_bound(&load);
    need->engine.n_slots = need->most.n_slots;
    need->engine.n_dropped = need->most.n_dropped;
    kv->n_pages = need->most.n_pages;
    kv->n_groups = need->most.n_groups;
    kv->n_standalone = need->most.n_standalone;
    kv->chunk_tok = u32_min(need->chunk_size_tok, batch_tok);
    kv->sequence_tok = need->longest_tok;
    kv->n_pieces = u32_min(longest->n, kv->chunk_tok);
}

cf_status cf_step_plan_bound_of(const cf_longest *longest,
                                const cf_step_plan_params *params,
                                cf_step_plan_need *need_p)
{
    cf_step_plan_need need = {
        .n_batch = params->n_batch,
        .params = params->schedule,
        .stage = params->stage,
        .chunk_size_tok = params->chunk_size_tok,
        .longest_tok = longest->n > 0 ? longest->len_tok[0] : 0,
        .engine.keep_attention = params->keep_attention,
    };
    cf_schedule_params schedule = params->schedule;
    cf_status status;

    if (is_whole(&schedule))
        need.chunk_size_tok = need.longest_tok;
    engine_bound(longest, &need);
    status = chunks_bound(longest, need.chunk_size_tok, &need.chunks);
    need.engine.n_plan_pieces = need.chunks.n_pieces;
    if (schedule.retained_chunks_max == 0)
        schedule.retained_chunks_max = 1;
    if (status == CF_OK)
        status =
            schedule_bound(need.chunks.n_chunks, &schedule, &need.schedule);
    if (status == CF_OK)
        *need_p = need;
    else
        cf_log_error("%zu sequences of up to %u tokens in chunks of %u do not "
                     "fit a plan (%s): use a larger --chunk-size",
                     longest->n, (unsigned)need.longest_tok,
                     (unsigned)need.chunk_size_tok, cf_status_str(status));
    return status;
}

cf_status cf_step_plan_bound(const cf_dataset *dataset,
                             const uint32_t *sequences, size_t n_sequences,
                             const cf_step_plan_params *params,
                             cf_step_plan_need *need_p)
{
    cf_longest longest;
    cf_status status = cf_longest_open(dataset, sequences, n_sequences,
                                       params->n_batch, &longest);

    if (status == CF_OK)
        status = cf_step_plan_bound_of(&longest, params, need_p);
    cf_longest_close(&longest);
    return status;
}

void cf_step_plan_carve(cf_step_plan *plan, const cf_step_plan_need *need,
                        cf_arena *arena)
{
    static const char what[] = "plan and schedule";
    uint32_t **const arrays[] = {&plan->batch, &plan->sequences,
                                 &plan->len_tok};

    memset(plan, 0, sizeof(*plan));
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++)
        *arrays[i] = cf_arena_take(arena, CF_LIFETIME_RUN, what, need->n_batch,
                                   sizeof(uint32_t));
    plan->chunks.capacity = need->chunks;
    plan->chunks.chunks = cf_arena_take(
        arena, CF_LIFETIME_RUN, what, need->chunks.n_chunks, sizeof(cf_chunk));
    plan->chunks.pieces = cf_arena_take(
        arena, CF_LIFETIME_RUN, what, need->chunks.n_pieces, sizeof(cf_piece));
    plan->chunks.scratch = cf_arena_take(arena, CF_LIFETIME_RUN, what,
                                         need->chunks.scratch_bytes, 1);
    plan->schedule.ops_capacity = need->schedule.n_ops;
    plan->schedule.ops = cf_arena_take(arena, CF_LIFETIME_RUN, what,
                                       need->schedule.n_ops, sizeof(cf_op));
    plan->schedule.first_op =
        cf_arena_take(arena, CF_LIFETIME_RUN, what,
                      (size_t)need->params.n_stages + 1, sizeof(size_t));
    plan->schedule.scratch_bytes = need->schedule.scratch_bytes;
    plan->schedule.scratch = cf_arena_take(arena, CF_LIFETIME_RUN, what,
                                           need->schedule.scratch_bytes, 1);
}

/* ---- one step ---- */

static bool is_mine(const cf_step_plan *plan, size_t i)
{
    return plan->replica_of == NULL || plan->replica_of[i] == plan->replica;
}

static void sequences_select(cf_step_plan *plan, const cf_dataset *dataset)
{
    const uint32_t *len_tok = cf_dataset_lengths(dataset);
    const uint32_t *targets = cf_dataset_target_counts(dataset);

    plan->n_sequences = 0;
    plan->tokens = plan->target_tokens = 0;
    for (size_t i = 0; i < plan->n_batch; i++) {
        uint32_t sequence = plan->batch[i];

        plan->tokens += len_tok[sequence];
        plan->target_tokens += targets[sequence];
        if (targets[sequence] == 0 || !is_mine(plan, i))
            continue;
        plan->sequences[plan->n_sequences] = sequence;
        plan->len_tok[plan->n_sequences] = len_tok[sequence];
        plan->n_sequences++;
    }
}

/* The bound holds for any step: a step that it does not hold for must not begin,
 * because memory was sized by it. */
static cf_status need_check(cf_step_plan *plan, const cf_step_plan_need *need)
{
    const cf_stage_need *most = &need->most, *peak = &plan->peak;

    plan->peak = cf_stage_need_of(&plan->chunks, &plan->schedule, need->stage);
    if (cf_stage_need_fits(peak, most))
        return CF_OK;
    cf_log_error(
        "stage %u has room for %u retained and %u dropped chunks, %u pages "
        "of %u groups, and this step needs %u, %u, %u, %u: please "
        "report it with the lengths of the batch",
        (unsigned)need->stage, (unsigned)most->n_slots,
        (unsigned)most->n_dropped, (unsigned)most->n_pages,
        (unsigned)most->n_groups, (unsigned)peak->n_slots,
        (unsigned)peak->n_dropped, (unsigned)peak->n_pages,
        (unsigned)peak->n_groups);
    return CF_NO_SPACE;
}

static cf_status schedule_build(cf_step_plan *plan,
                                const cf_step_plan_need *need)
{
    const cf_schedule *s = &plan->schedule;
    cf_op_ref where = {0};
    char op[32] = "its end";
    cf_status status;

    if (need->params.retained_chunks_max == 0)
        return CF_OK;
    status = cf_schedule_build(&plan->chunks, &need->params, &plan->schedule);
    if (status == CF_OK)
        status = cf_schedule_check(&plan->chunks, &plan->schedule, &where);
    if (status == CF_OK)
        return need_check(plan, need);
    if (s->first_op[where.stage] + where.op < s->first_op[where.stage + 1])
        cf_op_format(&s->ops[s->first_op[where.stage] + where.op], where.stage,
                     op, sizeof(op));
    cf_log_error("the schedule of this step is wrong at %s (%s): please report "
                 "it with the lengths of the batch",
                 op, where.rule != NULL ? where.rule : cf_status_str(status));
    return status;
}

cf_status cf_step_plan_build(cf_step_plan *plan, const cf_dataset *dataset,
                             const cf_step_plan_need *need)
{
    cf_status status;

    sequences_select(plan, dataset);
    if (is_whole(&need->params))
        status = cf_chunk_plan_build_whole(plan->len_tok, plan->n_sequences,
                                           &plan->chunks);
    else
        status = cf_chunk_plan_build(plan->len_tok, plan->n_sequences,
                                     need->chunk_size_tok, &plan->chunks);
    if (status == CF_OK)
        status = cf_chunk_plan_check(&plan->chunks, plan->len_tok,
                                     plan->n_sequences);
    if (status == CF_OK)
        return schedule_build(plan, need);
    cf_log_error("the chunk plan of this step is wrong (%s): please report it "
                 "with the lengths of the batch",
                 cf_status_str(status));
    return status;
}
