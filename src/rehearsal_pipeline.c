/* rehearsal_pipeline.c - see rehearsal.h: one replica. */
#include "src/rehearsal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/arena.h"
#include "src/log.h"
#include "src/machine.h"

enum {
    ALWAYS_THERE_BYTES = 1 << 24
};

/* ---- memory ---- */

static cf_status refuse_size(const cf_rehearsal_input *input, size_t bytes)
{
    char size[32];

    cf_log_error("plan and schedule of %zu sequences on %" PRIu32
                 " stages need %s of memory: use a larger --chunk-size or "
                 "fewer --pipeline-stages",
                 input->n_sequences, input->params.n_stages,
                 bytes == SIZE_MAX
                     ? "more than can be counted"
                     : cf_bytes_format(bytes, size, sizeof(size)));
    return CF_NO_MEMORY;
}

/* An array of n zeroed elements, counted; n may be 0. */
static cf_status take(const cf_rehearsal_input *input, cf_rehearsed_pipeline *p,
                      size_t n, size_t element_bytes, void *array_p)
{
    size_t bytes;
    void *array;

    if (__builtin_mul_overflow(n, element_bytes, &bytes) ||
        __builtin_add_overflow(p->bytes, bytes, &p->bytes))
        return refuse_size(input, SIZE_MAX);
    /* Asking the machine reads files: a search would do it for ever. */
    if (p->bytes > ALWAYS_THERE_BYTES && p->bytes > cf_machine_memory_bytes())
        return refuse_size(input, p->bytes);
    array = calloc(n > 0 ? n : 1, element_bytes);
    if (array == NULL)
        return refuse_size(input, p->bytes);
    memcpy(array_p, &array, sizeof(array));
    return CF_OK;
}

void cf_rehearsed_pipeline_close(cf_rehearsed_pipeline *p)
{
    free(p->len_tok);
    free(p->plan.chunks);
    free(p->plan.pieces);
    free(p->plan.scratch);
    free(p->schedule.ops);
    free(p->schedule.first_op);
    free(p->schedule.scratch);
    free(p->simulation.peaks);
    free(p->simulation.times);
    free(p->simulation.scratch);
    *p = (cf_rehearsed_pipeline){0};
}

/* ---- plan, schedule, simulation ---- */

/* What went wrong inside is a bug, or a size. */
static cf_status explain(const cf_rehearsal_input *input, const char *what,
                         cf_status status, const char *rule)
{
    if (status == CF_OVERFLOW)
        return refuse_size(input, SIZE_MAX);
    cf_log_error("the %s of these lengths is wrong (%s): please report it with "
                 "the lengths",
                 what, rule != NULL ? rule : cf_status_str(status));
    return status;
}

static cf_status build_plan(const cf_rehearsal_input *input,
                            cf_rehearsed_pipeline *p)
{
    const bool whole = cf_rehearsal_is_whole(input);
    cf_chunk_plan *plan = &p->plan;
    cf_status status =
        whole ? cf_chunk_plan_bound_whole(p->n_sequences, &plan->capacity)
              : cf_chunk_plan_bound(p->len_tok, p->n_sequences,
                                    input->chunk_size_tok, &plan->capacity);

    if (status != CF_OK)
        return explain(input, "size of the plan", status, NULL);
    status = take(input, p, plan->capacity.n_chunks, sizeof(cf_chunk),
                  &plan->chunks);
    if (status == CF_OK)
        status = take(input, p, plan->capacity.n_pieces, sizeof(cf_piece),
                      &plan->pieces);
    if (status == CF_OK)
        status =
            take(input, p, plan->capacity.scratch_bytes, 1, &plan->scratch);
    if (status != CF_OK)
        return status;

    status = whole ? cf_chunk_plan_build_whole(p->len_tok, p->n_sequences, plan)
                   : cf_chunk_plan_build(p->len_tok, p->n_sequences,
                                         input->chunk_size_tok, plan);
    if (status == CF_OK)
        status = cf_chunk_plan_check(plan, p->len_tok, p->n_sequences);
    return status == CF_OK ? CF_OK : explain(input, "chunk plan", status, NULL);
}

static cf_status build_schedule(const cf_rehearsal_input *input,
                                cf_rehearsed_pipeline *p)
{
    cf_schedule *schedule = &p->schedule;
    cf_schedule_need need;
    cf_op_ref where = {0};
    cf_status status = cf_schedule_bound(&p->plan, &input->params, &need);

    if (status != CF_OK)
        return explain(input, "size of the schedule", status, NULL);
    status = take(input, p, need.n_ops, sizeof(cf_op), &schedule->ops);
    if (status == CF_OK)
        status = take(input, p, input->params.n_stages + (size_t)1,
                      sizeof(size_t), &schedule->first_op);
    if (status == CF_OK)
        status = take(input, p, need.scratch_bytes, 1, &schedule->scratch);
    if (status != CF_OK)
        return status;

    schedule->ops_capacity = need.n_ops;
    schedule->scratch_bytes = need.scratch_bytes;
    status = cf_schedule_build(&p->plan, &input->params, schedule);
    if (status == CF_OK)
        status = cf_schedule_check(&p->plan, schedule, &where);
    return status == CF_OK ? CF_OK
                           : explain(input, "schedule", status, where.rule);
}

static cf_status simulate(const cf_rehearsal_input *input,
                          cf_rehearsed_pipeline *p)
{
    const uint32_t n_stages = p->schedule.params.n_stages;
    cf_simulation *simulation = &p->simulation;
    cf_op_ref where;
    cf_status status =
        cf_simulate_bound(&p->schedule, &simulation->scratch_bytes);

    if (status != CF_OK)
        return explain(input, "size of the simulation", status, NULL);
    status =
        take(input, p, n_stages, sizeof(cf_stage_peak), &simulation->peaks);
    if (status == CF_OK)
        status = take(input, p, p->schedule.first_op[n_stages],
                      sizeof(cf_op_time), &simulation->times);
    if (status == CF_OK)
        status =
            take(input, p, simulation->scratch_bytes, 1, &simulation->scratch);
    if (status != CF_OK)
        return status;

    status =
        cf_simulate(&p->plan, &p->schedule, &input->cost, simulation, &where);
    return status == CF_OK ? CF_OK
                           : explain(input, "simulation", status, where.rule);
}

cf_status cf_rehearsed_pipeline_open(const cf_rehearsal_input *input,
                                     cf_rehearsed_pipeline *pipeline)
{
    cf_status status = build_plan(input, pipeline);

    if (status == CF_OK)
        status = build_schedule(input, pipeline);
    if (status == CF_OK)
        status = simulate(input, pipeline);
    return status;
}
