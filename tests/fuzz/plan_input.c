/* plan_input.c - a batch of lengths and its plan, out of fuzz input. */
#include "tests/fuzz/plan_input.h"

#include <stdlib.h>

enum {
    STAGE_CHUNKS_MAX = 1 << 7 /* stages times chunks: more only takes longer */
};

static uint32_t read_length(fuzz_input *input, unsigned width)
{
    switch (width) {
    case 0:
        return fuzz_read_u8(input);
    case 1:
        return fuzz_read_u16(input);
    default:
        return fuzz_read_u32(input);
    }
}

plan_input plan_input_open(fuzz_input *input, size_t seqs_max)
{
    plan_input plan = {0};
    const uint8_t how = fuzz_read_u8(input);
    unsigned width;

    plan.params.n_stages = 1 + how % 8u;
    plan.params.kind = (cf_schedule_kind)(how / 8u % CF_SCHEDULE_KIND_COUNT);
    plan.params.retained_chunks_max = fuzz_read_u8(input);
    if (plan.params.retained_chunks_max == 0)
        plan.params.retained_chunks_max = UINT32_MAX;
    width = fuzz_read_u8(input) % 3u;
    plan.chunk_size_tok = read_length(input, width);
    plan.n_seqs = input->n >> width;
    if (plan.n_seqs > seqs_max)
        plan.n_seqs = seqs_max;
    plan.len_tok = fuzz_allocate(plan.n_seqs, sizeof(*plan.len_tok), 0);
    for (size_t i = 0; i < plan.n_seqs; i++)
        plan.len_tok[i] = read_length(input, width);
    return plan;
}

void plan_input_close(plan_input *input)
{
    free(input->len_tok);
}

static bool has_zero(const plan_input *input)
{
    bool found = input->chunk_size_tok == 0;

    for (size_t i = 0; i < input->n_seqs; i++)
        found |= input->len_tok[i] == 0;
    return found;
}

static bool is_whole(const plan_input *input)
{
    return input->params.kind == CF_SCHEDULE_1F1B ||
           input->params.kind == CF_SCHEDULE_1F1B_RECOMPUTE;
}

static cf_status build(const plan_input *input, cf_chunk_plan *plan)
{
    if (is_whole(input))
        return cf_chunk_plan_build_whole(input->len_tok, input->n_seqs, plan);
    return cf_chunk_plan_build(input->len_tok, input->n_seqs,
                               input->chunk_size_tok, plan);
}

cf_status fuzz_plan_open(const plan_input *input, int fill,
                         cf_chunk_plan *plan_p)
{
    cf_chunk_plan plan = {0};
    cf_status status = cf_chunk_plan_bound(
        input->len_tok, input->n_seqs, input->chunk_size_tok, &plan.capacity);

    fuzz_require((status == CF_INVALID) == has_zero(input),
                 "only zeros are invalid");
    if (status == CF_OK && is_whole(input))
        status = cf_chunk_plan_bound_whole(input->n_seqs, &plan.capacity);
    if (status != CF_OK)
        return status;
    if (plan.capacity.n_chunks > STAGE_CHUNKS_MAX / input->params.n_stages)
        return CF_NO_SPACE;
    plan.chunks =
        fuzz_allocate(plan.capacity.n_chunks, sizeof(*plan.chunks), fill);
    plan.pieces =
        fuzz_allocate(plan.capacity.n_pieces, sizeof(*plan.pieces), fill);
    plan.scratch = fuzz_allocate(plan.capacity.scratch_bytes, 1, fill);
    fuzz_require(build(input, &plan) == CF_OK, "what has a bound can be built");
    *plan_p = plan;
    return CF_OK;
}

void fuzz_plan_close(cf_chunk_plan *plan)
{
    free(plan->chunks);
    free(plan->pieces);
    free(plan->scratch);
}

cf_schedule fuzz_schedule_open(const cf_chunk_plan *plan,
                               cf_schedule_params params, int fill)
{
    cf_schedule schedule = {0};
    cf_schedule_need need;

    fuzz_require(cf_schedule_bound(plan, &params, &need) == CF_OK,
                 "a plan has schedules");
    schedule.ops_capacity = need.n_ops;
    schedule.scratch_bytes = need.scratch_bytes;
    schedule.ops = fuzz_allocate(need.n_ops, sizeof(*schedule.ops), fill);
    schedule.first_op = fuzz_allocate(params.n_stages + (size_t)1,
                                      sizeof(*schedule.first_op), fill);
    schedule.scratch = fuzz_allocate(need.scratch_bytes, 1, fill);
    fuzz_require(cf_schedule_build(plan, &params, &schedule) == CF_OK,
                 "a plan has a schedule");
    return schedule;
}

bool fuzz_simulate(const cf_chunk_plan *plan, const cf_schedule *schedule)
{
    const cf_cost_table table = cf_cost_linear();
    const cf_cost_model cost = {.compute = cf_cost_compute, .context = &table};
    cf_simulation simulation = {0};
    cf_op_ref where;
    bool sane;
    cf_status status = cf_simulate_bound(schedule, &simulation.scratch_bytes);

    fuzz_require(status == CF_OK, "a simulation has a bound");
    simulation.scratch = fuzz_allocate(simulation.scratch_bytes, 1, 0xff);
    simulation.peaks = fuzz_allocate(schedule->params.n_stages,
                                     sizeof(*simulation.peaks), 0xff);
    simulation.times =
        fuzz_allocate(schedule->ops_capacity, sizeof(*simulation.times), 0xff);
    status = cf_simulate(plan, schedule, &cost, &simulation, &where);
    sane = status == CF_OK && simulation.makespan >= 0 &&
           simulation.bubble_ratio >= 0 && simulation.bubble_ratio < 1 &&
           simulation.useful >= 0 && simulation.useful <= 1;
    free(simulation.scratch);
    free(simulation.peaks);
    free(simulation.times);
    return sane;
}

void fuzz_schedule_close(cf_schedule *schedule)
{
    free(schedule->ops);
    free(schedule->first_op);
    free(schedule->scratch);
}
