/* check_execute.c - the executor calls the engine in the order of the list. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include <chunkflow/execute.h>

#include "../lib/plan_builder.h"

#define CALLS_MAX 128

/* An engine that notes its calls as ops, and fails at one of them. */
struct recorder {
    const cf_chunk_plan *plan;
    cf_op calls[CALLS_MAX]; /* a keeping forward is noted as K */
    size_t n_calls;
    size_t fail_at;
    cf_status failure;
};

static cf_status record(void *engine, const cf_chunk_plan *plan,
                        cf_op_kind kind, uint32_t chunk)
{
    struct recorder *recorder = engine;

    ck_assert_ptr_eq(plan, recorder->plan);
    ck_assert_uint_lt(recorder->n_calls, CALLS_MAX);
    recorder->calls[recorder->n_calls++] = (cf_op){kind, chunk};
    return recorder->n_calls - 1 == recorder->fail_at ? recorder->failure
                                                      : CF_OK;
}

static cf_status forward(void *engine, const cf_chunk_plan *plan,
                         uint32_t chunk, cf_keep keep)
{
    return record(engine, plan,
                  keep == CF_KEEP_YES ? CF_OP_FORWARD_KEEP : CF_OP_FORWARD,
                  chunk);
}

static cf_status backward(void *engine, const cf_chunk_plan *plan,
                          uint32_t chunk)
{
    return record(engine, plan, CF_OP_BACKWARD, chunk);
}

static cf_status send_act(void *engine, const cf_chunk_plan *plan,
                          uint32_t chunk)
{
    return record(engine, plan, CF_OP_SEND_ACT, chunk);
}

static cf_status recv_act(void *engine, const cf_chunk_plan *plan,
                          uint32_t chunk)
{
    return record(engine, plan, CF_OP_RECV_ACT, chunk);
}

static cf_status send_grad(void *engine, const cf_chunk_plan *plan,
                           uint32_t chunk)
{
    return record(engine, plan, CF_OP_SEND_GRAD, chunk);
}

static cf_status recv_grad(void *engine, const cf_chunk_plan *plan,
                           uint32_t chunk)
{
    return record(engine, plan, CF_OP_RECV_GRAD, chunk);
}

static const cf_engine_ops all_callbacks = {
    .forward = forward,
    .backward = backward,
    .send_act = send_act,
    .recv_act = recv_act,
    .send_grad = send_grad,
    .recv_grad = recv_grad,
};

static cf_chunk_plan plan;
static cf_schedule schedule; /* three stages, K = 1 */
static struct recorder recorder;

static void open_fixture(void)
{
    static const uint32_t groups[] = {1, 3, 1};

    plan = plan_open(groups, 3, 8);
    schedule = schedule_open_built(&plan, state_aware(3, 1));
    recorder = (struct recorder){.plan = &plan, .fail_at = CALLS_MAX};
}

static void close_fixture(void)
{
    schedule_close(&schedule);
    plan_close(&plan);
}

static const cf_op *stage_ops(uint32_t stage)
{
    return schedule.ops + schedule.first_op[stage];
}

static size_t n_stage_ops(uint32_t stage)
{
    return schedule.first_op[stage + 1] - schedule.first_op[stage];
}

START_TEST(every_op_is_one_call_and_a_recompute_is_a_keeping_forward)
{
    uint32_t stage = (uint32_t)_i;
    size_t n_recomputes = 0;
    cf_op_ref where = {9, 9, "unwritten"};

    ck_assert_int_eq(
        cf_execute(&plan, &schedule, stage, &all_callbacks, &recorder, &where),
        CF_OK);
    ck_assert_uint_eq(where.stage, stage);
    ck_assert_ptr_null(where.rule);
    ck_assert_uint_eq(recorder.n_calls, n_stage_ops(stage));
    for (size_t i = 0; i < recorder.n_calls; i++) {
        cf_op op = stage_ops(stage)[i];

        if (op.kind == CF_OP_RECOMPUTE) {
            op.kind = CF_OP_FORWARD_KEEP;
            n_recomputes++;
        }
        ck_assert_int_eq(recorder.calls[i].kind, op.kind);
        ck_assert_uint_eq(recorder.calls[i].chunk, op.chunk);
    }
    ck_assert_uint_eq(n_recomputes, 2);
}
END_TEST

START_TEST(the_first_failing_callback_stops_and_its_status_returns)
{
    for (uint32_t stage = 0; stage < 3; stage++) {
        for (size_t n = 0; n < n_stage_ops(stage); n++) {
            cf_status failure = n % 2 == 0 ? CF_COMM : CF_NOT_FINITE;
            cf_op_ref where = {9, 9, NULL};

            recorder = (struct recorder){
                .plan = &plan, .fail_at = n, .failure = failure};
            ck_assert_int_eq(cf_execute(&plan, &schedule, stage, &all_callbacks,
                                        &recorder, &where),
                             failure);
            ck_assert_uint_eq(recorder.n_calls, n + 1);
            ck_assert_uint_eq(where.stage, stage);
            ck_assert_uint_eq(where.op, n);
            ck_assert_ptr_nonnull(where.rule);
        }
    }
}
END_TEST

START_TEST(a_missing_callback_is_found_before_the_first_call)
{
    static const struct {
        cf_engine_ops ops; /* used on the stage in the middle */
        cf_op_kind missing;
    } cases[] = {
        {{NULL, backward, send_act, recv_act, send_grad, recv_grad},
         CF_OP_FORWARD},
        {{forward, NULL, send_act, recv_act, send_grad, recv_grad},
         CF_OP_BACKWARD},
        {{forward, backward, NULL, recv_act, send_grad, recv_grad},
         CF_OP_SEND_ACT},
        {{forward, backward, send_act, NULL, send_grad, recv_grad},
         CF_OP_RECV_ACT},
        {{forward, backward, send_act, recv_act, NULL, recv_grad},
         CF_OP_SEND_GRAD},
        {{forward, backward, send_act, recv_act, send_grad, NULL},
         CF_OP_RECV_GRAD},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        cf_op_ref where;
        cf_op_kind kind;

        ck_assert_int_eq(
            cf_execute(&plan, &schedule, 1, &cases[i].ops, &recorder, &where),
            CF_INVALID);
        ck_assert_uint_eq(recorder.n_calls, 0);
        ck_assert_uint_eq(where.stage, 1);
        ck_assert_ptr_nonnull(where.rule);
        kind = stage_ops(1)[where.op].kind;
        if (kind == CF_OP_FORWARD_KEEP)
            kind = CF_OP_FORWARD;
        ck_assert_int_eq(kind, cases[i].missing);
    }
}
END_TEST

START_TEST(one_stage_needs_no_message_callbacks)
{
    cf_engine_ops compute = {.forward = forward, .backward = backward};
    cf_schedule single = schedule_open_built(&plan, state_aware(1, 2));
    cf_op_ref where;

    ck_assert_int_eq(cf_execute(&plan, &single, 0, &compute, &recorder, &where),
                     CF_OK);
    ck_assert_uint_eq(recorder.n_calls, single.first_op[1]);
    schedule_close(&single);
}
END_TEST

START_TEST(an_unknown_stage_chunk_or_operation_is_invalid)
{
    cf_op_ref where;

    ck_assert_int_eq(
        cf_execute(&plan, &schedule, 3, &all_callbacks, &recorder, &where),
        CF_INVALID);
    ck_assert_uint_eq(where.stage, 3);
    ck_assert_ptr_nonnull(where.rule);

    schedule.ops[2].chunk = (uint32_t)plan.n_chunks;
    ck_assert_int_eq(
        cf_execute(&plan, &schedule, 0, &all_callbacks, &recorder, &where),
        CF_INVALID);
    ck_assert_uint_eq(where.op, 2);
    schedule.ops[2].chunk = 0;

    schedule.ops[3].kind = CF_OP_KIND_COUNT;
    ck_assert_int_eq(
        cf_execute(&plan, &schedule, 0, &all_callbacks, &recorder, &where),
        CF_INVALID);
    ck_assert_uint_eq(where.op, 3);
    ck_assert_uint_eq(recorder.n_calls, 0);
}
END_TEST

START_TEST(an_empty_list_calls_nothing)
{
    static const cf_engine_ops none;
    cf_chunk_plan empty = {0};
    cf_schedule nothing = schedule_open_built(&empty, state_aware(2, 1));
    cf_op_ref where = {9, 9, "unwritten"};

    ck_assert_int_eq(cf_execute(&empty, &nothing, 1, &none, NULL, &where),
                     CF_OK);
    ck_assert_ptr_null(where.rule);
    schedule_close(&nothing);
}
END_TEST

static Suite *execute_suite(void)
{
    Suite *suite = suite_create("execute");
    TCase *tcase = tcase_create("one stage's list");

    tcase_add_checked_fixture(tcase, open_fixture, close_fixture);
    tcase_add_loop_test(
        tcase, every_op_is_one_call_and_a_recompute_is_a_keeping_forward, 0, 3);
    tcase_add_test(tcase,
                   the_first_failing_callback_stops_and_its_status_returns);
    tcase_add_test(tcase, a_missing_callback_is_found_before_the_first_call);
    tcase_add_test(tcase, one_stage_needs_no_message_callbacks);
    tcase_add_test(tcase, an_unknown_stage_chunk_or_operation_is_invalid);
    tcase_add_test(tcase, an_empty_list_calls_nothing);
    suite_add_tcase(suite, tcase);
    return suite;
}

int main(void)
{
    SRunner *runner = srunner_create(execute_suite());
    int n_failed;

    srunner_run_all(runner, CK_NORMAL);
    n_failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return n_failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
