/* check_op_times.c - where the time of a step goes: every operation is counted,
 * none changes a bit, and the kinds add up to the step.
 */
#include <check.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "src/clock.h"
#include "src/op_times.h"
#include "tests/lib/bench.h"

static const bench_setting setting = {
    .fixture = "llama-gqa-llama3",
    .compute = CF_COMPUTE_FP32,
    .policy = CF_RECOMPUTE_LAYER,
    .chunk_size_tok = 16,
    .retained_chunks_max = 1,
};

static void wait_s(double seconds)
{
    const double end = cf_clock_s() + seconds;

    while (cf_clock_s() < end)
        continue;
}

/* ---- the table ---- */

typedef void (*any_op)(void);

enum {
    N_OPS = (sizeof(cf_kernels) - offsetof(cf_kernels, status)) / sizeof(any_op)
};

/* Everything from status on is a pointer to a function. */
static void ops_of(const cf_kernels *k, any_op ops[N_OPS])
{
    memcpy(ops, (const char *)k + offsetof(cf_kernels, status),
           N_OPS * sizeof(any_op));
}

START_TEST(every_operation_of_the_table_is_replaced)
{
    cf_op_times times;
    cf_kernels k;
    const char *why = "";
    any_op inner[N_OPS], timed[N_OPS];

    ck_assert_msg(cf_cpu_kernels(CF_COMPUTE_FP32, &k, &why) == CF_OK, "%s",
                  why);
    ck_assert_int_gt(N_OPS, 30);
    ops_of(&k, inner);
    cf_op_times_install(&times, &k);
    ops_of(&k, timed);
    for (int i = 0; i < N_OPS; i++) {
        ck_assert_msg(timed[i] != NULL, "operation %d is missing", i);
        ck_assert_msg(timed[i] != inner[i], "operation %d is not timed", i);
        for (int j = 0; j < i; j++)
            ck_assert_msg(timed[i] != timed[j], "%d and %d are one", i, j);
    }
}
END_TEST

START_TEST(what_the_table_says_of_itself_stays)
{
    cf_op_times times;
    cf_kernels before, after;
    const char *why = "";

    ck_assert_int_eq(cf_cpu_kernels(CF_COMPUTE_FP64, &before, &why), CF_OK);
    after = before;
    cf_op_times_install(&times, &after);
    ck_assert_str_eq(after.name, before.name);
    ck_assert_int_eq(after.compute, before.compute);
    ck_assert_uint_eq(after.act_bytes, before.act_bytes);
    ck_assert_uint_eq(after.acc_bytes, before.acc_bytes);
}
END_TEST

/* ---- a step ---- */

static void two_steps(bench *b, cf_op_times *times, cf_step_report *report)
{
    for (uint64_t number = 1; number <= 2; number++) {
        const double start = cf_clock_s();

        cf_op_times_begin_step(times);
        ck_assert_int_eq(bench_step(b, number, report), CF_OK);
        cf_op_times_end_step(times, cf_clock_s() - start);
    }
}

START_TEST(timed_steps_have_the_same_bits)
{
    bench plain, timed;
    cf_op_times times;
    cf_step_report want, got;
    size_t bytes;

    bench_open(&plain, &setting);
    bench_open(&timed, &setting);
    cf_op_times_install(&times, &timed.run.kernels);
    timed.engine.times = &times;
    two_steps(&plain, NULL, &want);
    two_steps(&timed, &times, &got);
    ck_assert(want.loss == got.loss);
    ck_assert(want.grad_norm == got.grad_norm);
    for (size_t i = 0; i < plain.run.model.n_params; i++) {
        const cf_model *a = &plain.run.model, *b = &timed.run.model;

        bytes = a->params[i].n * a->kernels->acc_bytes;
        ck_assert_msg(memcmp(cf_model_at(a, a->masters, &a->params[i]),
                             cf_model_at(b, b->masters, &b->params[i]),
                             bytes) == 0,
                      "parameter %zu differs", i);
    }
    bench_close(&timed);
    bench_close(&plain);
}
END_TEST

START_TEST(the_kinds_add_up_to_the_step)
{
    bench b;
    cf_op_times times;
    cf_step_report report;

    bench_open(&b, &setting);
    cf_op_times_install(&times, &b.run.kernels);
    b.engine.times = &times;
    for (uint64_t number = 1; number <= 3; number++) {
        double step_s = cf_clock_s(), sum = 0;

        cf_op_times_begin_step(&times);
        ck_assert_int_eq(bench_step(&b, number, &report), CF_OK);
        step_s = cf_clock_s() - step_s;
        cf_op_times_end_step(&times, step_s);
        for (int i = 0; i < CF_TIME_KINDS; i++) {
            const char *name = cf_time_kind_str((cf_time_kind)i);

            ck_assert_msg(times.step[i] >= 0, "%s is negative", name);
            /* One rank waits for no message, and nothing was saved but for the
             * time that it takes to see so. */
            ck_assert_msg(times.step[i] > 0 || i == CF_TIME_MESSAGES ||
                              i == CF_TIME_SAVING,
                          "%s took no time", name);
            sum += times.step[i];
        }
        ck_assert_double_eq_tol(sum, step_s, 1e-9);
    }
    ck_assert_uint_eq(times.n_steps, 3);
    bench_close(&b);
}
END_TEST

/* ---- spans ---- */

START_TEST(a_span_leaves_out_what_was_counted_inside)
{
    cf_op_times times = {0};
    cf_time_mark outer, inner;
    double start = cf_clock_s(), all;

    cf_op_times_begin_step(&times);
    outer = cf_op_times_mark(&times);
    wait_s(1e-3);
    inner = cf_op_times_mark(&times);
    wait_s(4e-3);
    cf_op_times_count(&times, CF_TIME_HEAD, inner);
    cf_op_times_count(&times, CF_TIME_DATA, outer);
    wait_s(2e-3);
    all = cf_clock_s() - start;
    cf_op_times_end_step(&times, all);
    ck_assert_double_ge(times.step[CF_TIME_HEAD], 4e-3);
    ck_assert_double_ge(times.step[CF_TIME_DATA], 1e-3);
    ck_assert_double_ge(times.step[CF_TIME_OTHER], 2e-3);
    ck_assert_double_eq_tol(times.step[CF_TIME_HEAD] +
                                times.step[CF_TIME_DATA] +
                                times.step[CF_TIME_OTHER],
                            all, 1e-9);
}
END_TEST

START_TEST(without_times_nothing_is_done)
{
    const cf_time_mark mark = cf_op_times_mark(NULL);

    cf_op_times_begin_step(NULL);
    cf_op_times_add(NULL, CF_TIME_HEAD, 1);
    cf_op_times_count(NULL, CF_TIME_HEAD, mark);
    cf_op_times_end_step(NULL, 1);
    ck_assert_double_eq(mark.at_s, 0);
}
END_TEST

/* ---- lines ---- */

START_TEST(a_line_has_the_kinds_that_took_time)
{
    double seconds[CF_TIME_KINDS] = {0};
    char line[256], cut[24];

    seconds[CF_TIME_GEMM_FORWARD] = 1.5;
    seconds[CF_TIME_HEAD] = 0.00004; /* rounds to nothing */
    seconds[CF_TIME_OTHER] = 0.5;
    ck_assert_str_eq(cf_op_times_format(seconds, line, sizeof(line)),
                     "GEMM forward 1.5000 s 75.0 %, other 0.5000 s 25.0 %");
    ck_assert_str_eq(cf_op_times_format(seconds, cut, sizeof(cut)),
                     "GEMM forward 1.5000 s 7");
}
END_TEST

START_TEST(a_table_has_a_column_for_each_stage)
{
    double all[2 * CF_TIME_KINDS] = {0};
    char line[256];

    all[CF_TIME_HEAD] = 1;
    all[CF_TIME_DATA] = 3;
    all[CF_TIME_KINDS + CF_TIME_DATA] = 12.5;
    ck_assert_str_eq(
        cf_op_times_format_row(all, 2, CF_TIME_HEAD, line, sizeof(line)),
        "  head                   1.0000 s  25.0 %     0.0000 s   0.0 %");
    ck_assert_str_eq(
        cf_op_times_format_row(all, 2, CF_TIME_KINDS, line, sizeof(line)),
        "  together               4.0000 s 100.0 %    12.5000 s 100.0 %");
    ck_assert_str_eq(
        cf_op_times_format_row(all, 2, CF_TIME_NORMS, line, sizeof(line)), "");
}
END_TEST

START_TEST(every_kind_has_a_name_of_its_own)
{
    for (int i = 0; i < CF_TIME_KINDS; i++) {
        ck_assert_ptr_nonnull(cf_time_kind_str((cf_time_kind)i));
        for (int j = 0; j < i; j++)
            ck_assert_str_ne(cf_time_kind_str((cf_time_kind)i),
                             cf_time_kind_str((cf_time_kind)j));
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("op_times");
    TCase *tests = tcase_create("op_times");
    SRunner *runner = srunner_create(suite);
    int failed;

    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, every_operation_of_the_table_is_replaced);
    tcase_add_test(tests, what_the_table_says_of_itself_stays);
    tcase_add_test(tests, timed_steps_have_the_same_bits);
    tcase_add_test(tests, the_kinds_add_up_to_the_step);
    tcase_add_test(tests, a_span_leaves_out_what_was_counted_inside);
    tcase_add_test(tests, without_times_nothing_is_done);
    tcase_add_test(tests, a_line_has_the_kinds_that_took_time);
    tcase_add_test(tests, a_table_has_a_column_for_each_stage);
    tcase_add_test(tests, every_kind_has_a_name_of_its_own);
    suite_add_tcase(suite, tests);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
