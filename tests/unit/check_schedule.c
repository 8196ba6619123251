/* check_schedule.c - bound, build, check and format of schedules, by example.
 *
 * Schedules are written as text, one string a stage: F0 K0 R0 B0 compute, and
 * messages >0 (send activations) <0 (receive them) {0 (send gradients) }0
 * (receive them), as cf_op_format prints them.
 */
#include <check.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../lib/plan_builder.h"
#include "../lib/schedule_oracle.h"

#define N_OF(array)     (sizeof(array) / sizeof((array)[0]))
#define STAGES_MAX      4
#define TEXT_OPS_MAX    64
#define FORMAT_SIZE_MAX 8192

/* Groups as a list that ends with 0. */
static cf_chunk_plan open_groups(const uint32_t *groups)
{
    size_t n_groups = 0;

    while (groups[n_groups] > 0)
        n_groups++;
    return plan_open(groups, n_groups, 8);
}

/* Append the ops of one line of text to a list with room for TEXT_OPS_MAX. */
static size_t parse_ops(const char *text, cf_op *ops)
{
    static const char letters[] = "FKRB><{}";
    size_t n = 0;

    while (*text != '\0') {
        const char *letter = strchr(letters, *text);
        char *end;

        if (*text == ' ') {
            text++;
            continue;
        }
        ck_assert_ptr_nonnull(letter);
        ck_assert_uint_lt(n, TEXT_OPS_MAX);
        ops[n].kind = (cf_op_kind)(letter - letters);
        ops[n++].chunk = (uint32_t)strtoul(text + 1, &end, 10);
        text = end;
    }
    return n;
}

static cf_schedule open_text(const cf_chunk_plan *plan, uint32_t k,
                             const char *const *stages)
{
    cf_schedule_params params = state_aware(0, k);
    cf_op ops[STAGES_MAX][TEXT_OPS_MAX];
    size_t n_ops[STAGES_MAX];
    size_t n_all = 0;
    cf_schedule schedule;

    while (params.n_stages < STAGES_MAX && stages[params.n_stages] != NULL) {
        uint32_t s = params.n_stages++;

        n_ops[s] = parse_ops(stages[s], ops[s]);
        n_all += n_ops[s];
    }
    schedule = schedule_open(plan, params, n_all);
    for (uint32_t s = 0; s < params.n_stages; s++) {
        size_t first = schedule.first_op[s];

        memcpy(schedule.ops + first, ops[s], n_ops[s] * sizeof(cf_op));
        schedule.first_op[s + 1] = first + n_ops[s];
    }
    return schedule;
}

/* ---- build ---- */

static const struct order {
    uint32_t groups[5];
    uint32_t k;
    const char *text;
} orders[] = {
    {{1}, 1, "stage 0: K0 B0\n"},
    {{1}, 7, "stage 0: K0 B0\n"},
    {{4}, 1, "stage 0: F0 F1 F2 K3 B3 R2 B2 R1 B1 R0 B0\n"},
    {{4}, 2, "stage 0: F0 F1 K2 K3 B3 B2 R1 B1 R0 B0\n"},
    {{4}, 3, "stage 0: F0 K1 K2 K3 B3 B2 B1 R0 B0\n"},
    {{4}, 4, "stage 0: K0 K1 K2 K3 B3 B2 B1 B0\n"},
    {{4}, UINT32_MAX, "stage 0: K0 K1 K2 K3 B3 B2 B1 B0\n"},
    {{1, 1}, 2, "stage 0: K0 B0 K1 B1\n"},
    {{2, 2}, 2, "stage 0: K0 K1 B1 B0 K2 K3 B3 B2\n"},
    {{1, 3, 1}, 1, "stage 0: K0 B0 F1 F2 K3 B3 R2 B2 R1 B1 K4 B4\n"},
};

START_TEST(one_stage_runs_algorithm_2_on_each_group)
{
    const struct order *order = &orders[_i];
    cf_chunk_plan plan = open_groups(order->groups);
    cf_schedule schedule = schedule_open_built(&plan, state_aware(1, order->k));
    char text[256];

    cf_schedule_format(&schedule, text, sizeof(text));
    ck_assert_str_eq(text, order->text);
    schedule_close(&schedule);
    plan_close(&plan);
}
END_TEST

static const struct golden {
    const char *file;
    uint32_t groups[8];
    uint32_t n_stages;
    uint32_t k;
} goldens[] = {
    {"schedule-n4-k2-p1.txt", {4}, 1, 2},
    {"schedule-n4-k1-p1.txt", {4}, 1, 1},
    {"schedule-n4-k99-p1.txt", {4}, 1, 99},
    {"schedule-mix-k2-p1.txt", {1, 1, 1, 2, 5, 3}, 1, 2},
    {"schedule-mix-k2-p3.txt", {1, 1, 1, 2, 5, 3}, 3, 2},
    {"schedule-paper-toy-k1-p4.txt", {1, 1, 2}, 4, 1},
    {"schedule-paper-toy-k2-p4.txt", {1, 1, 2}, 4, 2},
};

static void read_golden(const char *file, char *text, size_t size)
{
    const char *srcdir = getenv("srcdir");
    char path[1024];
    size_t n;
    FILE *stream;

    snprintf(path, sizeof(path), "%s/tests/golden/%s",
             srcdir != NULL ? srcdir : ".", file);
    stream = fopen(path, "r");
    ck_assert_msg(stream != NULL, "cannot read %s", path);
    n = fread(text, 1, size - 1, stream);
    text[n] = '\0';
    fclose(stream);
}

START_TEST(schedules_are_those_of_the_golden_files)
{
    const struct golden *golden = &goldens[_i];
    cf_chunk_plan plan = open_groups(golden->groups);
    cf_schedule schedule =
        schedule_open_built(&plan, state_aware(golden->n_stages, golden->k));
    char text[FORMAT_SIZE_MAX];
    char expected[FORMAT_SIZE_MAX];

    cf_schedule_format(&schedule, text, sizeof(text));
    read_golden(golden->file, expected, sizeof(expected));
    ck_assert_str_eq(text, expected);
    schedule_close(&schedule);
    plan_close(&plan);
}
END_TEST

/* Warm-up of p - 2 - s + N forwards, then one forward, one backward: 1F1B for
 * N = 1, and what is known for sequences of N pieces each. */
START_TEST(equal_groups_give_1f1b)
{
    const uint32_t n_in_group = (uint32_t)_i;
    const uint32_t p = 4;
    uint32_t groups[8] = {0};
    cf_chunk_plan plan;
    cf_schedule schedule;

    for (size_t g = 0; g < 6; g++)
        groups[g] = n_in_group;
    plan = open_groups(groups);
    schedule = schedule_open_built(&plan, state_aware(p, n_in_group));
    for (uint32_t s = 0; s < p; s++) {
        uint32_t warm_up = p - 2 - s + n_in_group;
        uint32_t n_forwards = 0;
        uint32_t n_backwards = 0;

        for (size_t i = schedule.first_op[s]; i < schedule.first_op[s + 1];
             i++) {
            cf_op op = schedule.ops[i];

            if (op.kind == CF_OP_FORWARD_KEEP) {
                ck_assert_uint_eq(op.chunk, n_forwards);
                n_forwards++;
                ck_assert_uint_le(n_forwards, warm_up + n_backwards + 1);
            } else if (op.kind == CF_OP_BACKWARD) {
                uint32_t due = warm_up + n_backwards + 1;

                ck_assert_uint_eq(n_forwards, due < plan.n_chunks
                                                  ? due
                                                  : (uint32_t)plan.n_chunks);
                n_backwards++;
            }
        }
        ck_assert_uint_eq(n_backwards, plan.n_chunks);
    }
    schedule_close(&schedule);
    plan_close(&plan);
}
END_TEST

static const struct lowered {
    cf_schedule_params params;
    uint32_t groups[4];
    const char *stages[STAGES_MAX];
} lowereds[] = {
    {{3, 1, CF_SCHEDULE_STATE_AWARE},
     {1, 2},
     {"K0 >0 F1 >1 K2 >2 }0 B0 }2 B2 R1 }1 B1",
      "<0 K0 >0 <1 F1 >1 }0 B0 {0 <2 K2 >2 }2 B2 {2 R1 }1 B1 {1",
      "<0 K0 B0 {0 <1 F1 <2 K2 B2 {2 R1 B1 {1"}},
    {{3, 1, CF_SCHEDULE_PAPER},
     {1, 2},
     {"K0 >0 F1 >1 K2 >2 }0 B0 R1 >1 }2 B2 }1 B1",
      "<0 K0 >0 <1 F1 >1 }0 B0 {0 <2 K2 >2 <1 R1 >1 }2 B2 {2 }1 B1 {1",
      "<0 K0 B0 {0 <1 F1 <2 K2 B2 {2 <1 R1 B1 {1"}},
    {{2, 1, CF_SCHEDULE_LONG_FIRST},
     {1, 2, 1},
     {"F1 >1 K2 >2 K0 >0 }2 B2 R1 }1 B1 K3 >3 }0 B0 }3 B3",
      "<1 F1 <2 K2 B2 {2 R1 B1 {1 <0 K0 B0 {0 <3 K3 B3 {3"}},
    {{1, 1, CF_SCHEDULE_PAPER}, {3}, {"F0 F1 K2 B2 R1 B1 R0 B0"}},
    {{2, 7, CF_SCHEDULE_1F1B},
     {1, 1, 1},
     {"K0 >0 K1 >1 }0 B0 K2 >2 }1 B1 }2 B2",
      "<0 K0 B0 {0 <1 K1 B1 {1 <2 K2 B2 {2"}},
    {{2, 7, CF_SCHEDULE_1F1B_RECOMPUTE},
     {1, 1, 1},
     {"F0 >0 F1 >1 }0 R0 B0 F2 >2 }1 R1 B1 }2 R2 B2",
      "<0 F0 R0 B0 {0 <1 F1 R1 B1 {1 <2 F2 R2 B2 {2"}},
};

START_TEST(messages_surround_compute_as_the_kind_has_it)
{
    const struct lowered *lowered = &lowereds[_i];
    cf_chunk_plan plan = open_groups(lowered->groups);
    cf_schedule schedule = schedule_open_built(&plan, lowered->params);

    for (uint32_t s = 0; s < lowered->params.n_stages; s++) {
        size_t first = schedule.first_op[s];
        cf_op ops[TEXT_OPS_MAX];
        size_t n_ops = parse_ops(lowered->stages[s], ops);

        ck_assert_uint_eq(schedule.first_op[s + 1] - first, n_ops);
        for (size_t i = 0; i < n_ops; i++) {
            ck_assert_int_eq(schedule.ops[first + i].kind, ops[i].kind);
            ck_assert_uint_eq(schedule.ops[first + i].chunk, ops[i].chunk);
        }
    }
    schedule_close(&schedule);
    plan_close(&plan);
}
END_TEST

START_TEST(an_empty_plan_gives_an_empty_schedule)
{
    cf_chunk_plan plan = {0};
    cf_op_ref where;

    for (uint32_t p = 1; p <= 3; p++) {
        cf_schedule schedule = schedule_open_built(&plan, state_aware(p, 1));

        for (uint32_t s = 0; s <= p; s++)
            ck_assert_uint_eq(schedule.first_op[s], 0);
        ck_assert_int_eq(cf_schedule_check(&plan, &schedule, &where), CF_OK);
        schedule_close(&schedule);
    }
}
END_TEST

START_TEST(the_bound_counts_ops_exactly)
{
    static const uint32_t groups[] = {1, 4, 2, 0};
    cf_chunk_plan plan = open_groups(groups);
    cf_schedule_need need;

    /* 7 chunks, with K = 1 three and one of them dropped. */
    ck_assert_int_eq(
        cf_schedule_bound(
            &plan, &(cf_schedule_params){1, 1, CF_SCHEDULE_STATE_AWARE}, &need),
        CF_OK);
    ck_assert_uint_eq(need.n_ops, 2 * 7 + 4);
    ck_assert_int_eq(
        cf_schedule_bound(
            &plan, &(cf_schedule_params){3, 1, CF_SCHEDULE_STATE_AWARE}, &need),
        CF_OK);
    ck_assert_uint_eq(need.n_ops, 3 * (2 * 7 + 4) + 2 * 4 * 7);
    ck_assert_int_eq(
        cf_schedule_bound(
            &plan, &(cf_schedule_params){3, 9, CF_SCHEDULE_STATE_AWARE}, &need),
        CF_OK);
    ck_assert_uint_eq(need.n_ops, 3 * (2 * 7) + 2 * 4 * 7);
    plan_close(&plan);
}
END_TEST

START_TEST(zero_stages_or_zero_retained_chunks_are_invalid)
{
    static const cf_schedule_params bad[] = {
        {0, 1, CF_SCHEDULE_STATE_AWARE}, {1, 0, CF_SCHEDULE_STATE_AWARE},
        {0, 0, CF_SCHEDULE_STATE_AWARE}, {1, 1, CF_SCHEDULE_KIND_COUNT},
        {1, 1, (cf_schedule_kind)-1},
    };
    static const uint32_t groups[] = {2, 0};
    cf_chunk_plan plan = open_groups(groups);
    cf_schedule schedule = schedule_open_built(&plan, state_aware(1, 1));
    cf_schedule_need need = {77, 77};
    cf_op_ref where;

    for (size_t i = 0; i < N_OF(bad); i++) {
        ck_assert_int_eq(cf_schedule_bound(&plan, &bad[i], &need), CF_INVALID);
        ck_assert_uint_eq(need.n_ops, 77);
        ck_assert_int_eq(cf_schedule_build(&plan, &bad[i], &schedule),
                         CF_INVALID);
        schedule.params = bad[i];
        ck_assert_int_eq(cf_schedule_check(&plan, &schedule, &where),
                         CF_INVALID);
        ck_assert_ptr_null(where.rule);
    }
    schedule_close(&schedule);
    plan_close(&plan);
}
END_TEST

START_TEST(a_plan_with_groups_out_of_order_is_invalid)
{
    static const struct {
        uint32_t chunk, group, in_group, n_groups;
    } bad[] = {
        {0, 1, 0, 3}, /* does not start at group 0 */
        {0, 0, 1, 3}, /* does not start at position 0 */
        {2, 1, 0, 3}, /* the position does not ascend */
        {2, 1, 2, 3}, /* the position has a gap */
        {3, 3, 0, 3}, /* the group has a gap */
        {3, 0, 0, 3}, /* the group comes back */
        {3, 2, 1, 3}, /* a group starts in the middle */
        {3, 2, 0, 2}, /* more groups than the plan says */
        {3, 2, 0, 4}, /* fewer */
        {3, 2, 0, 0},
    };
    static const uint32_t groups[] = {1, 2, 1, 0};
    cf_schedule_need need;

    for (size_t i = 0; i < N_OF(bad); i++) {
        cf_chunk_plan plan = open_groups(groups);

        plan.chunks[bad[i].chunk].group = bad[i].group;
        plan.chunks[bad[i].chunk].in_group = bad[i].in_group;
        plan.n_groups = bad[i].n_groups;
        ck_assert_msg(cf_schedule_bound(
                          &plan,
                          &(cf_schedule_params){1, 1, CF_SCHEDULE_STATE_AWARE},
                          &need) == CF_INVALID,
                      "bad plan %zu", i);
        plan_close(&plan);
    }
}
END_TEST

START_TEST(groups_of_several_chunks_are_no_1f1b)
{
    static const uint32_t groups[] = {1, 2, 0};
    cf_chunk_plan plan = open_groups(groups);
    cf_schedule_params params = {2, 2, CF_SCHEDULE_1F1B};
    cf_schedule_need need;

    ck_assert_int_eq(cf_schedule_bound(&plan, &params, &need), CF_INVALID);
    params.kind = CF_SCHEDULE_1F1B_RECOMPUTE;
    ck_assert_int_eq(cf_schedule_bound(&plan, &params, &need), CF_INVALID);
    plan_close(&plan);
}
END_TEST

START_TEST(a_schedule_that_no_memory_can_hold_overflows)
{
    /* Sizes are looked at before chunks, so these need none. */
    static const cf_chunk_plan large = {.n_chunks = UINT32_MAX, .n_groups = 1};
    static const cf_chunk_plan wide = {.n_chunks = SIZE_MAX, .n_groups = 1};
    cf_schedule_params params = state_aware(UINT32_MAX, 1);
    cf_schedule_need need;

    ck_assert_int_eq(cf_schedule_bound(&large, &params, &need), CF_OVERFLOW);
    ck_assert_int_eq(cf_schedule_bound(&wide, &params, &need), CF_INVALID);
}
END_TEST

START_TEST(too_little_space_writes_nothing)
{
    static const uint32_t groups[] = {1, 3, 0};
    cf_chunk_plan plan = open_groups(groups);
    cf_schedule_params params = state_aware(2, 2);
    cf_schedule built = schedule_open_built(&plan, params);
    cf_schedule_need need;
    cf_schedule schedule;
    cf_op_ref where;

    ck_assert_int_eq(cf_schedule_bound(&plan, &params, &need), CF_OK);
    schedule = schedule_open(&plan, params, need.n_ops - 1);
    schedule.params = state_aware(7, 7);
    schedule.first_op[0] = 7;
    memset(schedule.ops, 0x55, (need.n_ops - 1) * sizeof(cf_op));
    ck_assert_int_eq(cf_schedule_build(&plan, &params, &schedule), CF_NO_SPACE);
    ck_assert_uint_eq(schedule.params.n_stages, 7);
    ck_assert_uint_eq(schedule.first_op[0], 7);
    for (size_t i = 0; i < (need.n_ops - 1) * sizeof(cf_op); i++)
        ck_assert_int_eq(((unsigned char *)schedule.ops)[i], 0x55);

    built.scratch_bytes--;
    memset(built.scratch, 0x55, built.scratch_bytes);
    ck_assert_int_eq(cf_schedule_check(&plan, &built, &where), CF_NO_SPACE);
    ck_assert_ptr_null(where.rule);
    for (size_t i = 0; i < built.scratch_bytes; i++)
        ck_assert_int_eq(((unsigned char *)built.scratch)[i], 0x55);
    schedule_close(&schedule);
    schedule_close(&built);
    plan_close(&plan);
}
END_TEST

/* ---- check ---- */

/* clang-format off */
static const struct verdict {
    const char *name;
    uint32_t groups[8];
    uint32_t k;
    const char *stages[STAGES_MAX + 1];
    cf_status status;
    uint32_t stage;
    size_t op;
    const char *rule; /* part of the text */
} verdicts[] = {
    {"one stage", {2}, 1, {"F0 K1 B1 R0 B0"}, CF_OK, 0, 0, NULL},
    {"early recompute", {2}, 2, {"F0 K1 R0 B1 B0"}, CF_OK, 0, 0, NULL},
    {"next group early", {1, 1}, 2, {"K0 K1 B0 B1"}, CF_OK, 0, 0, NULL},
    {"two stages", {1}, 1, {"K0 >0 }0 B0", "<0 K0 B0 {0"}, CF_OK, 0, 0, NULL},
    {"a drop on one stage only", {2}, 1,
     {"K0 >0 K1 >1 }1 B1 }0 B0", "<0 F0 <1 K1 B1 {1 R0 B0 {0"},
     CF_OK, 0, 0, NULL},

    {"no forward", {2}, 1, {"F0 B1"},
     CF_MALFORMED, 0, 1, "activations of its chunk"},
    {"no backward", {2}, 1, {"F0 K1 B1 R0"},
     CF_MALFORMED, 0, 4, "every chunk had its backward"},
    {"no recompute", {2}, 1, {"F0 K1 B1 B0"},
     CF_MALFORMED, 0, 3, "activations of its chunk"},
    {"nothing", {1}, 1, {""},
     CF_MALFORMED, 0, 0, "every chunk had its backward"},
    {"forward twice", {1}, 2, {"K0 K0 B0"},
     CF_MALFORMED, 0, 1, "forward already"},
    {"drop, then keep", {1}, 2, {"F0 K0 B0"},
     CF_MALFORMED, 0, 1, "forward already"},
    {"forward behind backward", {1}, 1, {"K0 B0 F0"},
     CF_MALFORMED, 0, 2, "forward already"},
    {"backward twice", {1}, 1, {"K0 B0 B0"},
     CF_MALFORMED, 0, 2, "backward already"},
    {"recompute of a kept chunk", {1}, 2, {"K0 R0 B0"},
     CF_MALFORMED, 0, 1, "only a dropped chunk"},
    {"recompute twice", {1}, 2, {"F0 R0 R0 B0"},
     CF_MALFORMED, 0, 2, "only a dropped chunk"},
    {"recompute first", {1}, 2, {"R0 F0 B0"},
     CF_MALFORMED, 0, 0, "only a dropped chunk"},
    {"forwards descend", {2}, 2, {"K1 K0 B1 B0"},
     CF_MALFORMED, 0, 0, "a forward needs the KV state"},
    {"backwards ascend", {2}, 2, {"K0 K1 B0 B1"},
     CF_MALFORMED, 0, 2, "in order"},
    {"later group first", {1, 1}, 2, {"K0 K1 B1 B0"},
     CF_MALFORMED, 0, 2, "in order"},
    {"one too many kept", {3}, 2, {"K0 K1 K2 B2 B1 B0"},
     CF_MALFORMED, 0, 2, "more chunks are retained"},
    {"one too many recomputed", {3}, 2, {"F0 K1 K2 R0 B2 B1 B0"},
     CF_MALFORMED, 0, 3, "more chunks are retained"},
    {"no such chunk", {1}, 1, {"K0 B0 K1"},
     CF_MALFORMED, 0, 2, "no such chunk"},
    {"message to nobody", {1}, 1, {"K0 >0 B0"},
     CF_MALFORMED, 0, 1, "no stage at the other end"},
    {"message from nobody", {1}, 1, {"<0 K0 B0"},
     CF_MALFORMED, 0, 0, "no stage at the other end"},

    {"the second stage keeps what only the first may", {2}, 1,
     {"K0 >0 K1 >1 }1 B1 }0 B0", "<0 K0 <1 K1 B1 {1 B0 {0"},
     CF_MALFORMED, 1, 3, "more chunks are retained"},
    {"forward before its receive", {1}, 1, {"K0 >0 }0 B0", "K0 <0 B0 {0"},
     CF_MALFORMED, 1, 0, "activations of the previous stage"},
    {"backward before its receive", {1}, 1, {"K0 >0 B0 }0", "<0 K0 B0 {0"},
     CF_MALFORMED, 0, 2, "gradient of the next stage"},
    {"activations sent too early", {1}, 1, {">0 K0 }0 B0", "<0 K0 B0 {0"},
     CF_MALFORMED, 0, 0, "a send comes behind"},
    {"gradient sent too early", {1}, 1, {"K0 >0 }0 B0", "<0 K0 {0 B0"},
     CF_MALFORMED, 1, 2, "a send comes behind"},
    {"gradient never sent", {1}, 1, {"K0 >0 }0 B0", "<0 K0 B0"},
     CF_MALFORMED, 1, 3, "every message"},
    {"activations sent twice", {1}, 1, {"K0 >0 >0 }0 B0", "<0 K0 B0 {0"},
     CF_MALFORMED, 0, 2, "already"},
    {"a recompute sends", {1}, 1, {"F0 >0 R0 >0 }0 B0", "<0 K0 B0 {0"},
     CF_MALFORMED, 0, 3, "already"},
    {"the ends disagree", {1, 1}, 2,
     {"K0 >0 K1 >1 }0 B0 }1 B1", "<1 K1 <0 K0 B0 {0 B1 {1"},
     CF_MALFORMED, 1, 0, "another chunk"},

    {"one waits for the gradient, one for activations", {1, 1}, 2,
     {"K0 >0 }0 B0 K1 >1 }1 B1", "<0 K0 <1 K1 B0 {0 B1 {1"},
     CF_DEADLOCK, 0, 2, "wait for each other"},
    {"the buffers of both directions are full", {1, 1, 1, 1}, 4,
     {"K0 >0 K1 >1 K2 >2 K3 >3 }0 B0 }1 B1 }2 B2 }3 B3",
      "<0 K0 B0 {0 <1 K1 B1 {1 <2 K2 B2 {2 <3 K3 B3 {3"},
     CF_DEADLOCK, 0, 7, "wait for each other"},
};
/* clang-format on */

START_TEST(the_checker_names_the_op_and_the_rule)
{
    const struct verdict *verdict = &verdicts[_i];
    cf_chunk_plan plan = open_groups(verdict->groups);
    cf_schedule schedule = open_text(&plan, verdict->k, verdict->stages);
    cf_op_ref where = {99, 99, "unwritten"};
    cf_status status = cf_schedule_check(&plan, &schedule, &where);

    ck_assert_msg(status == verdict->status, "%s: status %d (%s)",
                  verdict->name, (int)status,
                  where.rule != NULL ? where.rule : "no rule");
    ck_assert_msg(where.stage == verdict->stage && where.op == verdict->op,
                  "%s: stage %u, op %zu", verdict->name, where.stage, where.op);
    if (verdict->rule == NULL)
        ck_assert_ptr_null(where.rule);
    else
        ck_assert_msg(where.rule != NULL &&
                          strstr(where.rule, verdict->rule) != NULL,
                      "%s: %s", verdict->name,
                      where.rule != NULL ? where.rule : "no rule");
    ck_assert_int_eq(oracle_judge(&plan, &schedule) == NULL, status == CF_OK);
    schedule_close(&schedule);
    plan_close(&plan);
}
END_TEST

/* clang-format off */
/* A recompute that travels, of chunk 0 of a group of two on two stages. */
static const struct travel {
    const char *name;
    const char *stages[STAGES_MAX];
    cf_status status;
    uint32_t stage;
    size_t op;
    const char *rule; /* part of the text */
} travels[] = {
    {"as built",
     {"F0 >0 K1 >1 R0 >0 }1 B1 }0 B0", "<0 F0 <1 K1 B1 {1 <0 R0 B0 {0"},
     CF_OK, 0, 0, NULL},
    {"received early",
     {"F0 >0 K1 >1 R0 >0 }1 B1 }0 B0", "<0 F0 <1 K1 <0 B1 {1 R0 B0 {0"},
     CF_OK, 0, 0, NULL},
    {"not received again",
     {"F0 >0 K1 >1 R0 >0 }1 B1 }0 B0", "<0 F0 <1 K1 B1 {1 R0 B0 {0"},
     CF_MALFORMED, 1, 6, "needs the activations of the previous stage"},
    {"not sent again",
     {"F0 >0 K1 >1 R0 }1 B1 }0 B0", "<0 F0 <1 K1 B1 {1 <0 R0 B0 {0"},
     CF_MALFORMED, 0, 9, "before every message was sent"},
    {"forward sent behind the recompute",
     {"F0 K1 >1 R0 >0 >0 }1 B1 }0 B0", "<0 F0 <1 K1 B1 {1 <0 R0 B0 {0"},
     CF_MALFORMED, 0, 3, "comes behind the send of its forward"},
    {"sent three times",
     {"F0 >0 K1 >1 R0 >0 >0 }1 B1 }0 B0", "<0 F0 <1 K1 B1 {1 <0 R0 B0 {0"},
     CF_MALFORMED, 0, 6, "sent or received already"},
    {"dropped on the first stage only",
     {"F0 >0 K1 >1 R0 >0 }1 B1 }0 B0", "<0 K0 <1 K1 B1 {1 B0 {0"},
     CF_MALFORMED, 1, 8, "before every message was received"},
    {"dropped on the last stage only",
     {"K0 >0 K1 >1 }1 B1 }0 B0", "<0 F0 <1 K1 B1 {1 <0 R0 B0 {0"},
     CF_DEADLOCK, 0, 6, "wait for each other"},
};
/* clang-format on */

START_TEST(the_checker_knows_a_recompute_that_travels)
{
    static const uint32_t groups[] = {2, 0};
    const struct travel *travel = &travels[_i];
    cf_chunk_plan plan = open_groups(groups);
    cf_schedule schedule = open_text(&plan, 2, travel->stages);
    cf_op_ref where;
    cf_status status;

    schedule.params.kind = CF_SCHEDULE_PAPER;
    status = cf_schedule_check(&plan, &schedule, &where);
    ck_assert_msg(status == travel->status, "%s: status %d, %u:%zu",
                  travel->name, (int)status, where.stage, where.op);
    ck_assert_msg(where.stage == travel->stage && where.op == travel->op,
                  "%s: stage %u, op %zu", travel->name, where.stage, where.op);
    if (travel->rule != NULL)
        ck_assert_ptr_nonnull(strstr(where.rule, travel->rule));
    schedule_close(&schedule);
    plan_close(&plan);
}
END_TEST

START_TEST(the_checker_survives_unsound_ranges_and_names)
{
    static const uint32_t groups[] = {1, 0};
    cf_chunk_plan plan = open_groups(groups);
    cf_schedule schedule = schedule_open_built(&plan, state_aware(2, 1));
    cf_op_ref where;

    schedule.first_op[0] = 1;
    ck_assert_int_eq(cf_schedule_check(&plan, &schedule, &where), CF_MALFORMED);
    ck_assert_ptr_nonnull(where.rule);
    schedule.first_op[0] = 0;

    schedule.first_op[2]++;
    ck_assert_int_eq(cf_schedule_check(&plan, &schedule, &where), CF_MALFORMED);
    ck_assert_uint_eq(where.stage, 1);
    schedule.first_op[2]--;

    schedule.first_op[1] += 1000;
    ck_assert_int_eq(cf_schedule_check(&plan, &schedule, &where), CF_MALFORMED);
    ck_assert_uint_eq(where.stage, 0);
    schedule.first_op[1] -= 1000;

    schedule.ops[0].kind = CF_OP_KIND_COUNT;
    ck_assert_int_eq(cf_schedule_check(&plan, &schedule, &where), CF_MALFORMED);
    ck_assert_str_eq(where.rule, "there is no such operation");
    schedule.ops[0].kind = CF_OP_FORWARD_KEEP;
    ck_assert_int_eq(cf_schedule_check(&plan, &schedule, &where), CF_OK);
    schedule_close(&schedule);
    plan_close(&plan);
}
END_TEST

/* ---- format ---- */

START_TEST(kinds_have_names)
{
    ck_assert_str_eq(cf_schedule_kind_str(CF_SCHEDULE_STATE_AWARE),
                     "state-aware");
    ck_assert_str_eq(cf_schedule_kind_str(CF_SCHEDULE_PAPER), "paper");
    ck_assert_str_eq(cf_schedule_kind_str(CF_SCHEDULE_LONG_FIRST),
                     "state-aware-long-first");
    ck_assert_str_eq(cf_schedule_kind_str(CF_SCHEDULE_1F1B), "1f1b");
    ck_assert_str_eq(cf_schedule_kind_str(CF_SCHEDULE_1F1B_RECOMPUTE),
                     "1f1b-recompute");
    ck_assert_str_eq(cf_schedule_kind_str(CF_SCHEDULE_KIND_COUNT), "unknown");
}
END_TEST

START_TEST(an_op_prints_as_stage_letter_chunk)
{
    static const struct {
        cf_op op;
        uint32_t stage;
        const char *text;
    } cases[] = {
        {{CF_OP_FORWARD, 7}, 2, "2F7"},
        {{CF_OP_FORWARD_KEEP, 7}, 2, "2K7"},
        {{CF_OP_RECOMPUTE, 7}, 2, "2R7"},
        {{CF_OP_BACKWARD, 7}, 2, "2B7"},
        {{CF_OP_SEND_ACT, 7}, 2, "2>7"},
        {{CF_OP_RECV_ACT, 7}, 2, "2<7"},
        {{CF_OP_SEND_GRAD, 7}, 2, "2{7"},
        {{CF_OP_RECV_GRAD, 7}, 2, "2}7"},
        {{CF_OP_KIND_COUNT, 0}, 0, "0?0"},
        {{CF_OP_BACKWARD, UINT32_MAX}, UINT32_MAX, "4294967295B4294967295"},
    };
    char text[32];

    for (size_t i = 0; i < N_OF(cases); i++) {
        ck_assert_uint_eq(
            cf_op_format(&cases[i].op, cases[i].stage, text, sizeof(text)),
            strlen(cases[i].text));
        ck_assert_str_eq(text, cases[i].text);
    }
}
END_TEST

START_TEST(format_follows_the_rules_of_snprintf_at_every_size)
{
    static const uint32_t groups[] = {1, 3, 0};
    cf_chunk_plan plan = open_groups(groups);
    cf_schedule schedule = schedule_open_built(&plan, state_aware(2, 2));
    size_t len = cf_schedule_format(&schedule, NULL, 0);
    char whole[256];
    char op[4];

    ck_assert_uint_lt(len, sizeof(whole));
    ck_assert_uint_eq(cf_schedule_format(&schedule, whole, sizeof(whole)), len);
    ck_assert_uint_eq(strlen(whole), len);
    for (size_t size = 1; size <= len + 1; size++) {
        char *text = malloc(size); /* exact, for the sanitizers */

        ck_assert_uint_eq(cf_schedule_format(&schedule, text, size), len);
        ck_assert_uint_eq(strlen(text), size - 1);
        ck_assert_mem_eq(text, whole, size - 1);
        free(text);
    }
    ck_assert_uint_eq(cf_op_format(&schedule.ops[0], 123, op, sizeof(op)), 5);
    ck_assert_str_eq(op, "123");
    ck_assert_uint_eq(cf_op_format(&schedule.ops[0], 1, NULL, 0), 3);
    schedule_close(&schedule);
    plan_close(&plan);
}
END_TEST

/* ---- the paper's toy ---- */

/* Time is length, a backward costs two forwards, messages cost nothing. */
static uint32_t makespan(const cf_chunk_plan *plan, const cf_schedule *schedule)
{
    const uint32_t p = schedule->params.n_stages;
    size_t *next = calloc(p, sizeof(*next));
    uint32_t *now = calloc(p, sizeof(*now));
    /* When sent, plus 1: [2 directions, stage of arrival, chunk]. */
    uint32_t *sent = calloc(2 * p * plan->n_chunks, sizeof(*sent));
    uint32_t end = 0;
    bool moved = true;

    while (moved) {
        moved = false;
        for (uint32_t s = 0; s < p; s++) {
            size_t n = schedule->first_op[s + 1] - schedule->first_op[s];

            for (; next[s] < n; next[s]++, moved = true) {
                cf_op op = schedule->ops[schedule->first_op[s] + next[s]];
                uint32_t n_tok = plan->chunks[op.chunk].n_tok;
                uint32_t *act = sent + s * plan->n_chunks + op.chunk;
                uint32_t *grad = act + p * plan->n_chunks;

                if (op.kind == CF_OP_SEND_ACT)
                    act[plan->n_chunks] = now[s] + 1;
                else if (op.kind == CF_OP_SEND_GRAD)
                    *(grad - plan->n_chunks) = now[s] + 1;
                else if (op.kind == CF_OP_RECV_ACT ||
                         op.kind == CF_OP_RECV_GRAD) {
                    uint32_t at = op.kind == CF_OP_RECV_ACT ? *act : *grad;

                    if (at == 0)
                        break;
                    if (now[s] < at - 1)
                        now[s] = at - 1;
                } else {
                    now[s] += op.kind == CF_OP_BACKWARD ? 2 * n_tok : n_tok;
                }
            }
        }
    }
    for (uint32_t s = 0; s < p; s++) {
        ck_assert_uint_eq(next[s],
                          schedule->first_op[s + 1] - schedule->first_op[s]);
        if (end < now[s])
            end = now[s];
    }
    free(next);
    free(now);
    free(sent);
    return end;
}

/* Sequences of 4, 2, 1 and 1 units, cut and packed by hand. */
static const struct toy {
    const char *name;
    uint32_t groups[5];
    uint32_t n_tok[4];
    uint32_t k;
    uint32_t makespan;
} toys[] = {
    {"equal lengths", {1, 1, 1, 1}, {2, 2, 2, 2}, 1, 42},
    {"sequences, not chunks", {1, 1, 1, 1}, {4, 2, 1, 1}, 1, 56},
    {"ChunkSize 2, K = 2", {1, 1, 2}, {2, 2, 2, 2}, 2, 46},
    {"ChunkSize 2, K = 1", {1, 1, 2}, {2, 2, 2, 2}, 1, 48},
    {"ChunkSize 4, K = 1", {1, 1}, {4, 4}, 1, 60},
};

START_TEST(the_toy_of_the_paper_takes_its_time_on_four_stages)
{
    const struct toy *toy = &toys[_i];
    cf_chunk_plan plan = open_groups(toy->groups);
    cf_schedule schedule;

    for (size_t c = 0; c < plan.n_chunks; c++)
        plan.chunks[c].n_tok = toy->n_tok[c];
    schedule = schedule_open_built(&plan, state_aware(4, toy->k));
    ck_assert_msg(makespan(&plan, &schedule) == toy->makespan, "%s: %u",
                  toy->name, makespan(&plan, &schedule));
    schedule_close(&schedule);
    plan_close(&plan);
}
END_TEST

static Suite *schedule_suite(void)
{
    Suite *suite = suite_create("schedule");
    TCase *build = tcase_create("build");
    TCase *check = tcase_create("check");
    TCase *format = tcase_create("format");

    tcase_set_timeout(build, 60);
    tcase_add_loop_test(build, one_stage_runs_algorithm_2_on_each_group, 0,
                        (int)N_OF(orders));
    tcase_add_loop_test(build, schedules_are_those_of_the_golden_files, 0,
                        (int)N_OF(goldens));
    tcase_add_loop_test(build, equal_groups_give_1f1b, 1, 5);
    tcase_add_loop_test(build, messages_surround_compute_as_the_kind_has_it, 0,
                        (int)N_OF(lowereds));
    tcase_add_test(build, groups_of_several_chunks_are_no_1f1b);
    tcase_add_test(build, an_empty_plan_gives_an_empty_schedule);
    tcase_add_test(build, the_bound_counts_ops_exactly);
    tcase_add_test(build, zero_stages_or_zero_retained_chunks_are_invalid);
    tcase_add_test(build, a_plan_with_groups_out_of_order_is_invalid);
    tcase_add_test(build, a_schedule_that_no_memory_can_hold_overflows);
    tcase_add_test(build, too_little_space_writes_nothing);
    tcase_add_loop_test(build,
                        the_toy_of_the_paper_takes_its_time_on_four_stages, 0,
                        (int)N_OF(toys));
    suite_add_tcase(suite, build);

    tcase_add_loop_test(check, the_checker_names_the_op_and_the_rule, 0,
                        (int)N_OF(verdicts));
    tcase_add_loop_test(check, the_checker_knows_a_recompute_that_travels, 0,
                        (int)N_OF(travels));
    tcase_add_test(check, the_checker_survives_unsound_ranges_and_names);
    suite_add_tcase(suite, check);

    tcase_add_test(format, kinds_have_names);
    tcase_add_test(format, an_op_prints_as_stage_letter_chunk);
    tcase_add_test(format, format_follows_the_rules_of_snprintf_at_every_size);
    suite_add_tcase(suite, format);
    return suite;
}

int main(void)
{
    SRunner *runner = srunner_create(schedule_suite());
    int n_failed;

    srunner_run_all(runner, CK_NORMAL);
    n_failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return n_failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
