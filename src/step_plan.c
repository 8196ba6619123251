/* step_plan.c - see step_plan.h. */
#include "src/step_plan.h"

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

/* Lengths of the sequences that have a target, longest first; caller frees. */
static uint32_t *lengths_sorted(const cf_dataset *dataset,
                                const uint32_t *sequences, size_t n,
                                size_t *n_p)
{
    const uint32_t *len_tok = cf_dataset_lengths(dataset);
    const uint32_t *targets = cf_dataset_target_counts(dataset);
    uint32_t *sorted = malloc((n > 0 ? n : 1) * sizeof(*sorted));

    if (sorted == NULL)
        return NULL;
    *n_p = 0;
    for (size_t i = 0; i < n; i++)
        if (targets[sequences[i]] > 0)
            sorted[(*n_p)++] = len_tok[sequences[i]];
    qsort(sorted, *n_p, sizeof(*sorted), descending);
    return sorted;
}

/* A batch has no more chunks and pieces than the longest sequences make, since
 * one that is cut makes at least two, and needs no more scratch than if all of
 * those were short and as long as short ones can be. */
static cf_status chunks_bound(uint32_t *sorted, size_t n_batch,
                              uint32_t chunk_size_tok, cf_chunk_bound *bound_p)
{
    cf_chunk_bound longest, shortened;
    cf_status status =
        cf_chunk_plan_bound(sorted, n_batch, chunk_size_tok, &longest);

    if (status != CF_OK)
        return status;
    for (size_t i = 0; i < n_batch; i++)
        sorted[i] = u32_min(sorted[i], chunk_size_tok);
    status = cf_chunk_plan_bound(sorted, n_batch, chunk_size_tok, &shortened);
    if (status != CF_OK)
        return status;
    *bound_p = longest;
    bound_p->n_chunks = size_max(bound_p->n_chunks, shortened.n_chunks);
    bound_p->n_chunks = size_max(bound_p->n_chunks, n_batch); /* whole plans */
    bound_p->scratch_bytes =
        size_max(bound_p->scratch_bytes, shortened.scratch_bytes);
    return CF_OK;
}

/* No list of n chunks is longer than that of one group of n. */
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
    status = cf_schedule_bound(&plan, params, need_p);
    free(chunks);
    return status;
}

/* sorted: longest first. */
static void engine_bound(const uint32_t *sorted, size_t n_batch,
                         cf_step_plan_need *need)
{
    const uint32_t longest = sorted[0];
    const uint32_t n_parts =
        longest / need->chunk_size_tok + (longest % need->chunk_size_tok != 0);
    uint64_t batch_tok = 0;
    cf_kv_need *kv = &need->engine.kv;

    for (size_t i = 0; i < n_batch; i++)
        batch_tok += sorted[i];
    kv->chunk_tok = u32_min(need->chunk_size_tok, batch_tok);
    kv->sequence_tok = longest;
    kv->n_groups = 1; /* one stage runs one group at a time */
    kv->n_pages = cf_kv_pages(kv->chunk_tok);
    if (longest > need->chunk_size_tok && cf_kv_pages(longest) > kv->n_pages)
        kv->n_pages = cf_kv_pages(longest);
    kv->n_pieces = u32_min(n_batch, kv->chunk_tok);
    need->engine.n_slots = u32_min(need->params.retained_chunks_max, n_parts);
    need->longest_tok = longest;
}

cf_status cf_step_plan_bound(const cf_dataset *dataset,
                             const uint32_t *sequences, size_t n_sequences,
                             size_t n_batch, uint32_t chunk_size_tok,
                             uint32_t retained_chunks_max,
                             cf_step_plan_need *need_p)
{
    size_t n;
    uint32_t *sorted = lengths_sorted(dataset, sequences, n_sequences, &n);
    cf_step_plan_need need = {
        .n_batch = n_batch,
        .params = {.n_stages = 1, .retained_chunks_max = retained_chunks_max},
        .chunk_size_tok = chunk_size_tok,
    };
    cf_schedule_params params = need.params;
    cf_status status;

    if (sorted == NULL) {
        cf_log_error("no memory to sort %zu lengths", n_sequences);
        return CF_NO_MEMORY;
    }
    if (n_batch > n)
        n_batch = n;
    engine_bound(sorted, n_batch, &need);
    status = chunks_bound(sorted, n_batch, chunk_size_tok, &need.chunks);
    need.engine.n_plan_pieces = need.chunks.n_pieces;
    if (params.retained_chunks_max == 0)
        params.retained_chunks_max = 1;
    if (status == CF_OK)
        status = schedule_bound(need.chunks.n_chunks, &params, &need.schedule);
    if (status == CF_OK)
        *need_p = need;
    else
        cf_log_error("%zu sequences of up to %u tokens in chunks of %u do not "
                     "fit a plan (%s): use a larger --chunk-size",
                     n_batch, (unsigned)need.longest_tok,
                     (unsigned)chunk_size_tok, cf_status_str(status));
    free(sorted);
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
        if (targets[sequence] == 0)
            continue;
        plan->sequences[plan->n_sequences] = sequence;
        plan->len_tok[plan->n_sequences] = len_tok[sequence];
        plan->n_sequences++;
    }
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
        return CF_OK;
    if (s->first_op[where.stage] + where.op < s->first_op[where.stage + 1])
        cf_op_format(&s->ops[s->first_op[where.stage] + where.op], where.stage,
                     op, sizeof(op));
    cf_log_error("the schedule of this step is wrong at %s (%s): please report "
                 "it with the lengths of the batch",
                 op, where.rule != NULL ? where.rule : cf_status_str(status));
    return status;
}

/* Check and schedule what a build of chunks with this status made. */
static cf_status chunks_schedule(cf_step_plan *plan,
                                 const cf_step_plan_need *need,
                                 cf_status status)
{
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

cf_status cf_step_plan_build(cf_step_plan *plan, const cf_dataset *dataset,
                             const cf_step_plan_need *need)
{
    cf_status status;

    sequences_select(plan, dataset);
    status = cf_chunk_plan_build(plan->len_tok, plan->n_sequences,
                                 need->chunk_size_tok, &plan->chunks);
    return chunks_schedule(plan, need, status);
}

cf_status cf_step_plan_build_whole(cf_step_plan *plan,
                                   const cf_dataset *dataset,
                                   const cf_step_plan_need *need)
{
    cf_status status;

    sequences_select(plan, dataset);
    status = cf_chunk_plan_build_whole(plan->len_tok, plan->n_sequences,
                                       &plan->chunks);
    return chunks_schedule(plan, need, status);
}
