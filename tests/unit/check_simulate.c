/* check_simulate.c - schedules run on paper: the toy of the paper, all small
 * mixes, random costs, and what the simulator says of a bad schedule.
 *
 * The second opinion on times is a longest path: a matrix of end times, filled
 * by going over all ops until nothing changes.
 */
#include <check.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <chunkflow/simulate.h>

#include "../lib/plan_builder.h"

#define N_OF(array)      (sizeof(array) / sizeof((array)[0]))
#define GROUPS_MAX       5
#define GROUP_CHUNKS_MAX 4
#define STAGES_MAX       5

static cf_simulation simulation_open(const cf_schedule *schedule)
{
    const uint32_t p = schedule->params.n_stages;
    cf_simulation simulation = {0};

    ck_assert_int_eq(cf_simulate_bound(schedule, &simulation.scratch_bytes),
                     CF_OK);
    simulation.scratch = malloc(simulation.scratch_bytes);
    simulation.peaks = malloc(p * sizeof(*simulation.peaks));
    simulation.times =
        malloc((schedule->first_op[p] + 1) * sizeof(*simulation.times));
    ck_assert(simulation.scratch && simulation.peaks && simulation.times);
    return simulation;
}

static void simulation_close(cf_simulation *simulation)
{
    free(simulation->scratch);
    free(simulation->peaks);
    free(simulation->times);
}

static void simulate(const cf_chunk_plan *plan, const cf_schedule *schedule,
                     const cf_cost_model *cost, cf_simulation *simulation)
{
    cf_op_ref where = {9, 9, "unwritten"};
    cf_status status = cf_simulate(plan, schedule, cost, simulation, &where);

    ck_assert_msg(status == CF_OK, "%u:%zu: %s", where.stage, where.op,
                  where.rule);
    ck_assert_ptr_null(where.rule);
}

static bool is_compute(cf_op_kind kind)
{
    return kind <= CF_OP_BACKWARD;
}

/* ---- the toy of the paper ---- */

static const struct toy {
    const char *name;
    uint32_t n_seqs;
    uint32_t len_tok[4];
    uint32_t chunk_size_tok; /* 0: whole */
    cf_schedule_params params;
    double makespan;
    uint64_t peak_tok[4];
} toys[] = {
    {"equal lengths",
     4,
     {2, 2, 2, 2},
     0,
     {4, 1, CF_SCHEDULE_1F1B},
     42,
     {8, 6, 4, 2}},
    {"whole sequences",
     4,
     {4, 2, 1, 1},
     0,
     {4, 1, CF_SCHEDULE_1F1B},
     56,
     {8, 7, 6, 4}},
    {"ChunkSize 2, K = 2",
     4,
     {4, 2, 1, 1},
     2,
     {4, 2, CF_SCHEDULE_STATE_AWARE},
     46,
     {8, 6, 4, 4}},
    {"ChunkSize 2, K = 1",
     4,
     {4, 2, 1, 1},
     2,
     {4, 1, CF_SCHEDULE_STATE_AWARE},
     48,
     {6, 4, 4, 2}},
    {"ChunkSize 2, K = 2, long first",
     4,
     {4, 2, 1, 1},
     2,
     {4, 2, CF_SCHEDULE_LONG_FIRST},
     42,
     {8, 8, 6, 4}},
    {"ChunkSize 2, K = 1, long first",
     4,
     {4, 2, 1, 1},
     2,
     {4, 1, CF_SCHEDULE_LONG_FIRST},
     44,
     {6, 6, 4, 2}},
    {"ChunkSize 2, K = 1, recomputes travel",
     4,
     {4, 2, 1, 1},
     2,
     {4, 1, CF_SCHEDULE_PAPER},
     48,
     {6, 4, 4, 2}},
    {"ChunkSize 4, K = 1",
     4,
     {4, 2, 1, 1},
     4,
     {4, 1, CF_SCHEDULE_STATE_AWARE},
     60,
     {8, 8, 8, 4}},
};

static cf_chunk_plan toy_plan(const struct toy *toy)
{
    const bool whole = toy->chunk_size_tok == 0;
    cf_chunk_plan plan = {0};

    if (whole)
        ck_assert_int_eq(cf_chunk_plan_bound_whole(toy->n_seqs, &plan.capacity),
                         CF_OK);
    else
        ck_assert_int_eq(cf_chunk_plan_bound(toy->len_tok, toy->n_seqs,
                                             toy->chunk_size_tok,
                                             &plan.capacity),
                         CF_OK);
    plan.chunks = calloc(plan.capacity.n_chunks, sizeof(cf_chunk));
    plan.pieces = calloc(plan.capacity.n_pieces, sizeof(cf_piece));
    plan.scratch = calloc(plan.capacity.scratch_bytes, 1);
    if (whole)
        ck_assert_int_eq(
            cf_chunk_plan_build_whole(toy->len_tok, toy->n_seqs, &plan), CF_OK);
    else
        ck_assert_int_eq(cf_chunk_plan_build(toy->len_tok, toy->n_seqs,
                                             toy->chunk_size_tok, &plan),
                         CF_OK);
    return plan;
}

START_TEST(the_toy_of_the_paper_takes_its_time_and_its_memory)
{
    const struct toy *toy = &toys[_i];
    const cf_cost_table linear = cf_cost_linear();
    const cf_cost_model cost = {.compute = cf_cost_compute, .context = &linear};
    cf_chunk_plan plan = toy_plan(toy);
    cf_schedule schedule = schedule_open_built(&plan, toy->params);
    cf_simulation simulation = simulation_open(&schedule);
    double work = 0;

    simulate(&plan, &schedule, &cost, &simulation);
    ck_assert_msg(simulation.makespan == toy->makespan, "%s: %g", toy->name,
                  simulation.makespan);
    for (size_t i = 0; i < schedule.first_op[4]; i++) {
        if (is_compute(schedule.ops[i].kind))
            work += simulation.times[i].end - simulation.times[i].start;
    }
    ck_assert_double_eq(simulation.useful, 3 * 8 / toy->makespan);
    ck_assert_double_eq_tol(simulation.bubble_ratio,
                            1 - work / (4 * toy->makespan), 1e-15);
    for (uint32_t s = 0; s < 4; s++)
        ck_assert_msg(simulation.peaks[s].kept_tok == toy->peak_tok[s],
                      "%s: stage %u, %llu tokens", toy->name, s,
                      (unsigned long long)simulation.peaks[s].kept_tok);
    simulation_close(&simulation);
    schedule_close(&schedule);
    free(plan.scratch);
    plan_close(&plan);
}
END_TEST

/* ---- a second opinion ---- */

/* Compute ops of one chunk, in rows of the matrix. */
enum {
    FORWARD,
    RECOMPUTE,
    BACKWARD,
    ROWS
};

static double *end_of(double *ends, const cf_chunk_plan *plan, uint32_t stage,
                      int row, size_t chunk)
{
    return &ends[(stage * (size_t)ROWS + (size_t)row) * plan->n_chunks + chunk];
}

static int row_of(cf_op_kind kind)
{
    if (kind == CF_OP_RECOMPUTE)
        return RECOMPUTE;
    return kind == CF_OP_BACKWARD ? BACKWARD : FORWARD;
}

/* When what the op needs of a neighbour is there. */
static double arrival(double *ends, const cf_chunk_plan *plan,
                      const cf_schedule *schedule, uint32_t s, cf_op op,
                      double delay)
{
    const uint32_t p = schedule->params.n_stages;
    const cf_schedule_kind kind = schedule->params.kind;

    if (op.kind == CF_OP_BACKWARD ||
        (op.kind == CF_OP_RECOMPUTE && kind == CF_SCHEDULE_1F1B_RECOMPUTE))
        return s + 1 < p
                   ? *end_of(ends, plan, s + 1, BACKWARD, op.chunk) + delay
                   : 0;
    if (s == 0 || (op.kind == CF_OP_RECOMPUTE && kind != CF_SCHEDULE_PAPER))
        return 0;
    return *end_of(ends, plan, s - 1, row_of(op.kind), op.chunk) + delay;
}

/* The makespan as the longest path through the ops. */
static double longest_path(const cf_chunk_plan *plan,
                           const cf_schedule *schedule,
                           const cf_cost_model *cost, double delay)
{
    const uint32_t p = schedule->params.n_stages;
    double *ends = calloc(p * (size_t)ROWS * plan->n_chunks + 1, sizeof(*ends));
    double longest = 0;
    bool changed = true;

    while (changed) {
        changed = false;
        for (uint32_t s = 0; s < p; s++) {
            double now = 0;

            for (size_t i = schedule->first_op[s];
                 i < schedule->first_op[s + 1]; i++) {
                const cf_op op = schedule->ops[i];
                double *end;

                if (!is_compute(op.kind))
                    continue;
                end = end_of(ends, plan, s, row_of(op.kind), op.chunk);
                now = fmax(now, arrival(ends, plan, schedule, s, op, delay)) +
                      cost->compute(cost->context, plan, s, op);
                changed = changed || now != *end;
                *end = now;
                longest = fmax(longest, now);
            }
        }
    }
    free(ends);
    return longest;
}

/* A cost that differs by stage, chunk and op, from a table of random numbers:
 * whole numbers, so that sums are exact in every order. */
static double odd_cost(const void *context, const cf_chunk_plan *plan,
                       uint32_t stage, cf_op op)
{
    const uint64_t *seed = context;
    uint64_t state = *seed + stage * 1000003u + op.chunk * 7919u +
                     (uint64_t)(op.kind == CF_OP_BACKWARD);

    (void)plan;
    return 1 + test_random(&state, 40);
}

static double fixed_delay(const void *context, const cf_chunk_plan *plan,
                          uint32_t stage, cf_op op)
{
    (void)context;
    (void)plan;
    (void)stage;
    (void)op;
    return 3;
}

/* ---- what holds for every simulation ---- */

static uint64_t chunks_max(const cf_schedule_params *params, uint32_t stage)
{
    const uint64_t n_behind = params->n_stages - 1 - stage;

    if (params->kind == CF_SCHEDULE_1F1B_RECOMPUTE)
        return 1;
    if (params->kind == CF_SCHEDULE_1F1B)
        return 1 + n_behind;
    return params->retained_chunks_max + n_behind;
}

/* Forward down the stages and backward up again, of any chunk. */
static double chunk_path(const cf_chunk_plan *plan, uint32_t p,
                         const cf_cost_model *cost, uint32_t chunk)
{
    double sum = 0;

    for (uint32_t s = 0; s < p; s++)
        sum += cost->compute(cost->context, plan, s,
                             (cf_op){CF_OP_FORWARD_KEEP, chunk}) +
               cost->compute(cost->context, plan, s,
                             (cf_op){CF_OP_BACKWARD, chunk});
    return sum;
}

static void check_stages(const cf_chunk_plan *plan, const cf_schedule *schedule,
                         const cf_cost_model *cost,
                         const cf_simulation *simulation)
{
    const cf_schedule_params *params = &schedule->params;
    double busy_all = 0;

    for (uint32_t s = 0; s < params->n_stages; s++) {
        double busy = 0;
        double now = 0;

        for (size_t i = schedule->first_op[s]; i < schedule->first_op[s + 1];
             i++) {
            const cf_op_time *time = &simulation->times[i];

            ck_assert_double_eq(time->start, now);
            ck_assert_double_ge(time->end, time->start);
            if (is_compute(schedule->ops[i].kind))
                busy += time->end - time->start;
            now = time->end;
        }
        ck_assert_double_le(now, simulation->makespan);
        ck_assert_double_ge(simulation->makespan, busy);
        busy_all += busy;
        ck_assert_uint_le(simulation->peaks[s].kept_chunks,
                          chunks_max(params, s));
        ck_assert_uint_ge(simulation->peaks[s].kept_chunks, 1);
        if (s == 0 || params->kind == CF_SCHEDULE_PAPER)
            ck_assert_uint_eq(simulation->peaks[s].input_tok, 0);
    }
    for (uint32_t c = 0; c < plan->n_chunks; c++)
        ck_assert_double_ge(simulation->makespan,
                            chunk_path(plan, params->n_stages, cost, c));
    ck_assert_double_eq_tol(
        simulation->bubble_ratio,
        1 - busy_all / (params->n_stages * simulation->makespan), 1e-12);
    ck_assert_double_le(simulation->useful,
                        1 - simulation->bubble_ratio + 1e-9);
}

static void check_one(const cf_chunk_plan *plan, cf_schedule_params params,
                      const cf_cost_model *cost, double delay)
{
    cf_schedule schedule = schedule_open_built(plan, params);
    cf_simulation simulation = simulation_open(&schedule);
    cf_simulation again = simulation;
    cf_op_ref where;

    ck_assert_int_eq(cf_schedule_check(plan, &schedule, &where), CF_OK);
    simulate(plan, &schedule, cost, &simulation);
    ck_assert_double_eq(simulation.makespan,
                        longest_path(plan, &schedule, cost, delay));
    check_stages(plan, &schedule, cost, &simulation);

    again.times = NULL; /* not asked for: the same numbers */
    simulate(plan, &schedule, cost, &again);
    ck_assert_double_eq(again.makespan, simulation.makespan);
    simulation_close(&simulation);
    schedule_close(&schedule);
}

/* The next multiset of up to GROUPS_MAX groups, as a list that never falls,
 * starting from none; false behind the last. */
static bool next_multiset(uint32_t *groups, size_t *n_groups)
{
    size_t g = *n_groups;

    while (g > 0 && groups[g - 1] == GROUP_CHUNKS_MAX)
        g--;
    if (g == 0) {
        if (*n_groups == GROUPS_MAX)
            return false;
        (*n_groups)++;
        for (size_t i = 0; i < *n_groups; i++)
            groups[i] = 1;
        return true;
    }
    groups[g - 1]++;
    for (size_t i = g; i < *n_groups; i++)
        groups[i] = groups[g - 1];
    return true;
}

static bool fits(const cf_chunk_plan *plan, int kind)
{
    return kind < CF_SCHEDULE_1F1B || plan->n_groups == plan->n_chunks;
}

START_TEST(every_small_mix_runs_within_its_bounds)
{
    const int kind = _i;
    uint32_t groups[GROUPS_MAX] = {0};
    size_t n_groups = 0;
    size_t n_runs = 0;
    uint64_t seed = 1;
    const cf_cost_table linear = cf_cost_linear();
    const cf_cost_model costs[] = {
        {.compute = cf_cost_compute, .context = &linear},
        {.compute = odd_cost, .message = fixed_delay, .context = &seed},
    };

    while (next_multiset(groups, &n_groups)) {
        cf_chunk_plan plan = plan_open(groups, n_groups, 8);

        for (uint32_t p = 1; fits(&plan, kind) && p <= STAGES_MAX; p++) {
            for (uint32_t k = 1; k <= GROUP_CHUNKS_MAX; k++) {
                cf_schedule_params params = {p, k, (cf_schedule_kind)kind};

                seed++;
                check_one(&plan, params, &costs[0], 0);
                check_one(&plan, params, &costs[1], 3);
                n_runs++;
            }
        }
        plan_close(&plan);
    }
    /* 4 + 10 + 20 + 35 + 56 multisets. */
    ck_assert_uint_eq(n_runs, (kind < CF_SCHEDULE_1F1B ? 125 : 5) * STAGES_MAX *
                                  GROUP_CHUNKS_MAX);
}
END_TEST

START_TEST(random_large_mixes_run_within_their_bounds)
{
    uint64_t random = test_seed("random_large_mixes_run_within_their_bounds");

    for (int run = 0; run < 40; run++) {
        uint32_t groups[60];
        size_t n_groups = 1 + test_random(&random, 60);
        uint64_t seed = random;
        const cf_cost_model cost = {
            .compute = odd_cost, .message = fixed_delay, .context = &seed};
        cf_chunk_plan plan;
        cf_schedule_params params = {1 + test_random(&random, 9),
                                     1 + test_random(&random, 9),
                                     CF_SCHEDULE_STATE_AWARE};

        for (size_t g = 0; g < n_groups; g++)
            groups[g] =
                test_random(&random, 3) > 0 ? 1 : 1 + test_random(&random, 30);
        plan = plan_open(groups, n_groups, 8);
        check_one(&plan, params, &cost, 3);
        params.kind = CF_SCHEDULE_PAPER;
        check_one(&plan, params, &cost, 3);
        plan_close(&plan);
    }
}
END_TEST

/* ---- details by hand ---- */

START_TEST(peaks_and_times_of_two_stages_are_those_written_here)
{
    /* Stage 0: F0 >0 K1 >1 }1 B1 R0 }0 B0; stage 1: <0 F0 <1 K1 B1 {1 R0 B0
     * {0.  8 tokens: forward and recompute take 8, backward 16. */
    static const uint32_t groups[] = {2};
    static const cf_op_time times[] = {
        {0, 8},   {8, 8},   {8, 16},  {16, 16}, {16, 40}, {40, 56},
        {56, 64}, {64, 64}, {64, 80}, {0, 8},   {8, 16},  {16, 16},
        {16, 24}, {24, 40}, {40, 40}, {40, 48}, {48, 64}, {64, 64},
    };
    const cf_cost_table linear = cf_cost_linear();
    const cf_cost_model cost = {.compute = cf_cost_compute, .context = &linear};
    cf_chunk_plan plan = plan_open(groups, 1, 8);
    cf_schedule schedule = schedule_open_built(&plan, state_aware(2, 1));
    cf_simulation simulation = simulation_open(&schedule);

    simulate(&plan, &schedule, &cost, &simulation);
    ck_assert_uint_eq(schedule.first_op[2], N_OF(times));
    for (size_t i = 0; i < N_OF(times); i++) {
        ck_assert_double_eq(simulation.times[i].start, times[i].start);
        ck_assert_double_eq(simulation.times[i].end, times[i].end);
    }
    for (uint32_t s = 0; s < 2; s++) {
        ck_assert_uint_eq(simulation.peaks[s].kept_tok, 8);
        ck_assert_uint_eq(simulation.peaks[s].kept_chunks, 1);
        ck_assert_uint_eq(simulation.peaks[s].kv_tok, 16);
        ck_assert_uint_eq(simulation.peaks[s].input_tok, s == 0 ? 0 : 8);
        ck_assert_uint_eq(simulation.peaks[s].messages, 1);
    }
    ck_assert_double_eq(simulation.makespan, 80);
    ck_assert_double_eq(simulation.bubble_ratio, (160 - 112) / 160.0);
    ck_assert_double_eq(simulation.useful, 96 / 160.0);
    simulation_close(&simulation);
    schedule_close(&schedule);
    plan_close(&plan);
}
END_TEST

/* A first stage that is fast and far ahead of the second. */
static double fast_start(const void *context, const cf_chunk_plan *plan,
                         uint32_t stage, cf_op op)
{
    (void)context;
    (void)plan;
    (void)op;
    return stage == 0 ? 1 : 100;
}

START_TEST(messages_that_wait_are_counted)
{
    static const uint32_t groups[] = {4};
    const cf_cost_model cost = {.compute = fast_start};
    cf_chunk_plan plan = plan_open(groups, 1, 8);
    cf_schedule schedule = schedule_open_built(&plan, state_aware(2, 4));
    cf_simulation simulation = simulation_open(&schedule);

    /* Sent at 1, 2, 3 and 4; the second is received at 101. */
    simulate(&plan, &schedule, &cost, &simulation);
    ck_assert_uint_eq(simulation.peaks[1].messages, 3);
    ck_assert_uint_eq(simulation.peaks[0].messages, 1);
    simulation_close(&simulation);
    schedule_close(&schedule);
    plan_close(&plan);
}
END_TEST

START_TEST(a_cost_is_a_sum_of_ops_tokens_and_pairs)
{
    /* Two dependent chunks of 8 tokens; then one of two pieces. */
    static const uint32_t groups[] = {2};
    const cf_cost_table table = {.forward = {100, 10, 1},
                                 .backward = {200, 20, 3}};
    cf_cost_table least = table;
    cf_chunk_plan plan = plan_open(groups, 1, 8);
    cf_piece pieces[] = {{0, 0, 2}, {1, 0, 6}};
    cf_chunk packed = {.n_pieces = 2, .n_tok = 8};
    cf_chunk_plan two = {.chunks = &packed, .pieces = pieces, .n_chunks = 1};

    ck_assert_double_eq(
        cf_cost_compute(&table, &plan, 0, (cf_op){CF_OP_FORWARD, 0}),
        100 + 80 + 32);
    ck_assert_double_eq(
        cf_cost_compute(&table, &plan, 3, (cf_op){CF_OP_RECOMPUTE, 1}),
        100 + 80 + 64 + 32);
    ck_assert_double_eq(
        cf_cost_compute(&table, &plan, 3, (cf_op){CF_OP_BACKWARD, 1}),
        200 + 160 + 3 * 96);
    ck_assert_double_eq(
        cf_cost_compute(&table, &two, 0, (cf_op){CF_OP_FORWARD_KEEP, 0}),
        100 + 80 + 2 + 18);
    least.least_tok = 10;
    ck_assert_double_eq(
        cf_cost_compute(&least, &two, 0, (cf_op){CF_OP_FORWARD_KEEP, 0}),
        100 + 100 + 2 + 18);
    plan_close(&plan);
}
END_TEST

/* ---- what is refused ---- */

static double bad_cost(const void *context, const cf_chunk_plan *plan,
                       uint32_t stage, cf_op op)
{
    (void)plan;
    return stage == 1 && op.kind == CF_OP_BACKWARD ? *(const double *)context
                                                   : 1;
}

START_TEST(a_cost_that_is_none_is_named)
{
    static const double bad[] = {-1, -1e-300, INFINITY, -INFINITY, NAN, 1e305};
    static const uint32_t groups[] = {1};
    cf_chunk_plan plan = plan_open(groups, 1, 8);
    cf_schedule schedule = schedule_open_built(&plan, state_aware(2, 1));
    cf_simulation simulation = simulation_open(&schedule);

    for (size_t i = 0; i < N_OF(bad); i++) {
        const cf_cost_model cost = {.compute = bad_cost, .context = &bad[i]};
        cf_op_ref where;

        ck_assert_int_eq(
            cf_simulate(&plan, &schedule, &cost, &simulation, &where),
            CF_INVALID);
        ck_assert_uint_eq(where.stage, 1);
        ck_assert_uint_eq(where.op, 2); /* <0 K0 B0 */
        ck_assert_ptr_nonnull(strstr(where.rule, "cost"));
    }
    simulation_close(&simulation);
    schedule_close(&schedule);
    plan_close(&plan);
}
END_TEST

START_TEST(an_unchecked_schedule_is_stopped_where_it_breaks)
{
    static const struct {
        cf_op op;
        size_t at;
        cf_status status;
        uint32_t stage;
        size_t where;
    } cases[] = {
        {{CF_OP_FORWARD_KEEP, 7}, 0, CF_MALFORMED, 0, 0}, /* no such chunk */
        {{CF_OP_KIND_COUNT, 0}, 0, CF_MALFORMED, 0, 0},
        {{CF_OP_SEND_GRAD, 0}, 1, CF_MALFORMED, 0, 1}, /* no such stage */
        {{CF_OP_RECV_ACT, 0}, 1, CF_MALFORMED, 0, 1},
        {{CF_OP_SEND_ACT, 0}, 4, CF_MALFORMED, 1, 0},
        {{CF_OP_RECV_GRAD, 0}, 4, CF_MALFORMED, 1, 0},
        {{CF_OP_RECV_GRAD, 0}, 1, CF_DEADLOCK, 0, 1}, /* nothing is sent */
    };
    /* K0 >0 }0 B0, <0 K0 B0 {0 */
    static const uint32_t groups[] = {1};
    const cf_cost_table linear = cf_cost_linear();
    const cf_cost_model cost = {.compute = cf_cost_compute, .context = &linear};
    cf_chunk_plan plan = plan_open(groups, 1, 8);

    for (size_t i = 0; i < N_OF(cases); i++) {
        cf_schedule schedule = schedule_open_built(&plan, state_aware(2, 1));
        cf_simulation simulation;
        cf_op_ref where;

        schedule.ops[cases[i].at] = cases[i].op;
        simulation = simulation_open(&schedule);
        ck_assert_msg(cf_simulate(&plan, &schedule, &cost, &simulation,
                                  &where) == cases[i].status,
                      "case %zu: %s", i, where.rule);
        ck_assert_uint_eq(where.stage, cases[i].stage);
        ck_assert_uint_eq(where.op, cases[i].where);
        ck_assert_ptr_nonnull(where.rule);
        simulation_close(&simulation);
        schedule_close(&schedule);
    }
    plan_close(&plan);
}
END_TEST

/* Whether every byte is still the one that the test put there. */
static bool is_filled(const void *memory, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i++) {
        if (((const unsigned char *)memory)[i] != 0x55)
            return false;
    }
    return true;
}

START_TEST(too_little_scratch_writes_nothing_and_nothing_takes_no_time)
{
    static const uint32_t groups[] = {1, 2};
    const cf_cost_table linear = cf_cost_linear();
    const cf_cost_model cost = {.compute = cf_cost_compute, .context = &linear};

    for (size_t n_groups = 0; n_groups <= 2; n_groups += 2) {
        cf_chunk_plan plan = plan_open(groups, n_groups, 8);
        cf_schedule schedule = schedule_open_built(&plan, state_aware(3, 1));
        cf_simulation simulation = simulation_open(&schedule);
        cf_op_ref where;

        if (n_groups == 0) {
            simulate(&plan, &schedule, &cost, &simulation);
            ck_assert_double_eq(simulation.makespan, 0);
            ck_assert_double_eq(simulation.bubble_ratio, 0);
            ck_assert_double_eq(simulation.useful, 0);
        }
        simulation.scratch_bytes--;
        simulation.makespan = 77;
        memset(simulation.scratch, 0x55, simulation.scratch_bytes);
        memset(simulation.peaks, 0x55, 3 * sizeof(cf_stage_peak));
        memset(simulation.times, 0x55,
               schedule.first_op[3] * sizeof(cf_op_time));
        ck_assert_int_eq(
            cf_simulate(&plan, &schedule, &cost, &simulation, &where),
            CF_NO_SPACE);
        ck_assert_ptr_null(where.rule);
        ck_assert_double_eq(simulation.makespan, 77);
        ck_assert(is_filled(simulation.scratch, simulation.scratch_bytes));
        ck_assert(is_filled(simulation.peaks, 3 * sizeof(cf_stage_peak)));
        ck_assert(is_filled(simulation.times,
                            schedule.first_op[3] * sizeof(cf_op_time)));
        simulation_close(&simulation);
        schedule_close(&schedule);
        plan_close(&plan);
    }
}
END_TEST

/* ---- size ---- */

static double now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

START_TEST(a_hundred_thousand_sequences_are_simulated)
{
    const size_t n_groups = 100000;
    const cf_cost_table linear = cf_cost_linear();
    const cf_cost_model cost = {.compute = cf_cost_compute, .context = &linear};
    uint32_t *groups = calloc(n_groups, sizeof(*groups));
    uint64_t random = 1;
    cf_chunk_plan plan;

    for (size_t g = 0; g < n_groups; g++)
        groups[g] =
            test_random(&random, 10) > 0 ? 1 : 2 + test_random(&random, 8);
    plan = plan_open(groups, n_groups, 8);
    for (int kind = 0; kind < CF_SCHEDULE_1F1B; kind++) {
        cf_schedule schedule = schedule_open_built(
            &plan, (cf_schedule_params){8, 2, (cf_schedule_kind)kind});
        cf_simulation simulation = simulation_open(&schedule);
        double start_ms = now_ms();

        simulate(&plan, &schedule, &cost, &simulation);
        printf("%s: %zu ops on 8 stages simulated in %.1f ms, bubble %.4f\n",
               cf_schedule_kind_str((cf_schedule_kind)kind),
               schedule.first_op[8], now_ms() - start_ms,
               simulation.bubble_ratio);
        simulation_close(&simulation);
        schedule_close(&schedule);
    }
    plan_close(&plan);
    free(groups);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("simulate");
    TCase *times = tcase_create("times");
    TCase *refused = tcase_create("refused");
    TCase *size = tcase_create("size");
    SRunner *runner;
    int n_failed;

    tcase_set_timeout(times, 240);
    tcase_add_loop_test(times,
                        the_toy_of_the_paper_takes_its_time_and_its_memory, 0,
                        (int)N_OF(toys));
    tcase_add_loop_test(times, every_small_mix_runs_within_its_bounds, 0,
                        CF_SCHEDULE_KIND_COUNT);
    tcase_add_test(times, random_large_mixes_run_within_their_bounds);
    tcase_add_test(times, peaks_and_times_of_two_stages_are_those_written_here);
    tcase_add_test(times, messages_that_wait_are_counted);
    tcase_add_test(times, a_cost_is_a_sum_of_ops_tokens_and_pairs);
    suite_add_tcase(suite, times);

    tcase_add_test(refused, a_cost_that_is_none_is_named);
    tcase_add_test(refused, an_unchecked_schedule_is_stopped_where_it_breaks);
    tcase_add_test(refused,
                   too_little_scratch_writes_nothing_and_nothing_takes_no_time);
    suite_add_tcase(suite, refused);

    tcase_set_timeout(size, 120);
    tcase_add_test(size, a_hundred_thousand_sequences_are_simulated);
    suite_add_tcase(suite, size);

    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    n_failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return n_failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
