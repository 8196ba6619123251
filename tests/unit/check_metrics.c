/* check_metrics.c - metrics.jsonl and the line of progress. */
#include <check.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "src/metrics.h"
#include "tests/lib/scratch.h"

static const cf_step_report report_of_a_step = {
    .step = 1,
    .has_loss = true,
    .loss = 0.1 + 0.2,
    .grad_norm = 1.0 / 3.0,
    .learning_rate = 2e-5,
    .sequences = 32,
    .tokens = 50000,
    .target_tokens = 41000,
    .chunks = 25,
    .recomputed_chunks = 4,
    .step_s = 2.5,
    .peak_bytes = 3ULL << 30,
};

static cf_metrics *metrics_open(const char *path, uint64_t n_steps,
                                uint32_t log_every, bool quiet)
{
    cf_metrics_params params = {.path = path,
                                .n_steps = n_steps,
                                .log_every = log_every,
                                .quiet = quiet};
    cf_metrics *metrics = NULL;

    ck_assert_int_eq(cf_metrics_open(&params, &metrics), CF_OK);
    return metrics;
}

START_TEST(a_line_has_the_keys_in_order_and_every_digit)
{
    cf_metrics *metrics = metrics_open(scratch_path("m.jsonl"), 2, 1, true);
    cf_step_report without = report_of_a_step;
    char *text;

    ck_assert_int_eq(cf_metrics_append(metrics, &report_of_a_step), CF_OK);
    without.step = 2;
    without.has_loss = false;
    without.step_s = 0;
    ck_assert_int_eq(cf_metrics_append(metrics, &without), CF_OK);
    cf_metrics_close(metrics);
    text = scratch_read("m.jsonl", NULL);
    ck_assert_str_eq(
        text, "{\"step\": 1, \"loss\": 0.30000000000000004, \"grad_norm\": "
              "0.33333333333333331, \"learning_rate\": 2.0000000000000002e-05, "
              "\"sequences\": 32, \"tokens\": 50000, \"target_tokens\": 41000, "
              "\"chunks\": 25, \"recomputed_chunks\": 4, \"step_s\": 2.5, "
              "\"tokens_per_s\": 20000, \"peak_bytes\": 3221225472}\n"
              "{\"step\": 2, \"loss\": null, \"grad_norm\": null, "
              "\"learning_rate\": 2.0000000000000002e-05, \"sequences\": 32, "
              "\"tokens\": 50000, \"target_tokens\": 41000, \"chunks\": 25, "
              "\"recomputed_chunks\": 4, \"step_s\": 0, \"tokens_per_s\": 0, "
              "\"peak_bytes\": 3221225472}\n");
    free(text);
}
END_TEST

START_TEST(a_line_is_in_the_file_as_soon_as_it_is_appended)
{
    cf_metrics *metrics = metrics_open(scratch_path("m.jsonl"), 2, 1, true);
    char *text;

    ck_assert_int_eq(cf_metrics_append(metrics, &report_of_a_step), CF_OK);
    text = scratch_read("m.jsonl", NULL);
    ck_assert_uint_gt(strlen(text), 0);
    free(text);
    cf_metrics_close(metrics);
}
END_TEST

START_TEST(what_is_not_finite_is_null_so_that_the_line_stays_json)
{
    cf_metrics *metrics = metrics_open(scratch_path("m.jsonl"), 1, 1, true);
    cf_step_report report = report_of_a_step;
    json_t *line;

    report.loss = strtod("nan", NULL);
    report.grad_norm = strtod("inf", NULL);
    ck_assert_int_eq(cf_metrics_append(metrics, &report), CF_OK);
    cf_metrics_close(metrics);
    line = json_load_file(scratch_path("m.jsonl"), 0, NULL);
    ck_assert(json_is_null(json_object_get(line, "loss")));
    ck_assert(json_is_null(json_object_get(line, "grad_norm")));
    json_decref(line);
}
END_TEST

static const char *progress_of(uint64_t n_steps, uint32_t log_every, bool quiet)
{
    cf_metrics *metrics;
    cf_step_report report = report_of_a_step;

    errors_begin();
    metrics = metrics_open(NULL, n_steps, log_every, quiet);
    for (report.step = 1; report.step <= n_steps; report.step++) {
        report.eta_s = 2.5 * (double)(n_steps - report.step);
        ck_assert(!cf_metrics_progress_is_due(metrics));
        ck_assert_int_eq(cf_metrics_append(metrics, &report), CF_OK);
    }
    cf_metrics_close(metrics);
    return errors_end();
}

START_TEST(a_pipe_gets_plain_lines_as_often_as_asked)
{
    ck_assert_str_eq(progress_of(2, 1, false),
                     "step 1/2  loss 0.3000  lr 2e-05  20000 tok/s  peak "
                     "3.0 GiB  ETA 3s\n"
                     "step 2/2  loss 0.3000  lr 2e-05  20000 tok/s  peak "
                     "3.0 GiB  ETA 0s\n");
    ck_assert_str_eq(progress_of(7, 1, true), "");
    const char *text = progress_of(7, 3, false);

    ck_assert_ptr_eq(strstr(text, "step 3/7"), text);
    ck_assert_ptr_nonnull(strstr(text, "\nstep 6/7"));
    ck_assert_ptr_nonnull(strstr(text, "\nstep 7/7"));
    ck_assert_ptr_null(strstr(text, "step 4/7"));
}
END_TEST

static cf_eval_report evaluation_of_a_step(json_t *result)
{
    return (cf_eval_report){.step = 2,
                            .loss = 0.1 + 0.2,
                            .is_best = true,
                            .step_s = 61,
                            .peak_bytes = 3ULL << 30,
                            .result = result};
}

START_TEST(the_line_of_an_evaluation_says_so_and_has_the_whole_result)
{
    json_t *result = json_pack("{s:f, s:[]}", "loss", 0.1 + 0.2, "buckets");
    const cf_eval_report report = evaluation_of_a_step(result);
    cf_metrics *metrics = metrics_open(scratch_path("m.jsonl"), 2, 1, true);
    char *text;

    ck_assert_int_eq(cf_metrics_append_evaluation(metrics, &report), CF_OK);
    text = scratch_read("m.jsonl", NULL);
    ck_assert_str_eq(text, "{\"step\": 2, \"eval\": true, \"loss\": "
                           "0.30000000000000004, \"buckets\": [], "
                           "\"step_s\": 61.0, \"peak_bytes\": "
                           "3221225472}\n");
    free(text);
    cf_metrics_close(metrics);
    json_decref(result);
}
END_TEST

START_TEST(an_evaluation_has_a_line_of_progress_whatever_log_every)
{
    cf_eval_report report = evaluation_of_a_step(NULL);
    cf_metrics *metrics;

    errors_begin();
    metrics = metrics_open(NULL, 9, 5, false);
    ck_assert_int_eq(cf_metrics_append_evaluation(metrics, &report), CF_OK);
    report.is_best = false;
    ck_assert_int_eq(cf_metrics_append_evaluation(metrics, &report), CF_OK);
    cf_metrics_close(metrics);
    ck_assert_str_eq(errors_end(),
                     "step 2/9  evaluation: loss 0.3000  perplexity 1.35  in "
                     "1m01s  (best)\n"
                     "step 2/9  evaluation: loss 0.3000  perplexity 1.35  in "
                     "1m01s\n");
}
END_TEST

static void sleep_ms(long ms)
{
    struct timespec time = {0, ms * 1000000};

    (void)nanosleep(&time, NULL);
}

/* A long step at its middle. */
static const cf_progress_at middle_of_a_step = {
    .step = 2,
    .chunks_done = 11,
    .n_chunks = 25,
    .done = 0.5,
    .elapsed_s = 90,
    .tokens = 50000,
    .run_eta_s = 3600,
    .peak_bytes = 3ULL << 30,
};

/* A terminal's other end, and standard error as it was. */
typedef struct terminal {
    int master, slave, saved;
} terminal;

static terminal terminal_open(unsigned short width)
{
    struct winsize window = {24, width, 0, 0};
    terminal t = {.master = posix_openpt(O_RDWR | O_NOCTTY)};

    ck_assert_int_ge(t.master, 0);
    ck_assert_int_eq(grantpt(t.master), 0);
    ck_assert_int_eq(unlockpt(t.master), 0);
    t.slave = open(ptsname(t.master), O_RDWR | O_NOCTTY);
    ck_assert_int_ge(t.slave, 0);
    ck_assert_int_eq(ioctl(t.slave, TIOCSWINSZ, &window), 0);
    t.saved = dup(STDERR_FILENO);
    (void)dup2(t.slave, STDERR_FILENO);
    return t;
}

/* What it was sent; free() it. */
static char *terminal_close(terminal *t)
{
    char *text = calloc(1, 8192);

    (void)dup2(t->saved, STDERR_FILENO);
    (void)close(t->slave);
    (void)close(t->saved);
    for (ssize_t n = 0, got; n < 8191; n += got) {
        got = read(t->master, text + n, (size_t)(8191 - n));
        if (got <= 0)
            break; /* EIO: nobody writes any more */
    }
    (void)close(t->master);
    return text;
}

/* Two steps, the second a long one. */
static char *drawn_on_terminal(unsigned short width)
{
    cf_step_report report = report_of_a_step;
    terminal t = terminal_open(width);
    cf_metrics *metrics = metrics_open(NULL, 2, 1, false);

    report.eta_s = 2.5;
    ck_assert_int_eq(cf_metrics_append(metrics, &report), CF_OK);
    ck_assert(!cf_metrics_progress_is_due(metrics)); /* too soon */
    sleep_ms(150);
    ck_assert(cf_metrics_progress_is_due(metrics));
    cf_metrics_progress(metrics, &middle_of_a_step);
    report.step = 2;
    report.eta_s = 0;
    ck_assert_int_eq(cf_metrics_append(metrics, &report), CF_OK);
    cf_metrics_close(metrics);
    return terminal_close(&t);
}

static const struct {
    unsigned short width;
    const char *text;
} windows[] = {
    {120,
     "\rstep 1/2  loss 0.3000  lr 2e-05  20000 tok/s  peak 3.0 GiB  ETA 3s"
     "\x1b[K"
     "\rstep 2/2  [##########..........]  11/25 chunks  278 tok/s  loss 0.3000"
     "  peak 3.0 GiB  ETA 1m30s, run 1h01m\x1b[K"
     "\rstep 2/2  loss 0.3000  lr 2e-05  20000 tok/s  peak 3.0 GiB  ETA 0s"
     "\x1b[K\r\n"},
    {80,
     "\rstep 1/2  loss 0.3000  lr 2e-05  20000 tok/s  peak 3.0 GiB  ETA 3s"
     "\x1b[K"
     "\rstep 2/2  [##########..........]  11/25 chunks  278 tok/s  loss 0.3000"
     "\x1b[K"
     "\rstep 2/2  loss 0.3000  lr 2e-05  20000 tok/s  peak 3.0 GiB  ETA 0s"
     "\x1b[K\r\n"},
    {50, "\rstep 1/2  loss 0.3000  20000 tok/s  ETA 3s\x1b[K"
         "\rstep 2/2  [#####.....]  11/25 chunks  loss 0.3000\x1b[K"
         "\rstep 2/2  loss 0.3000  20000 tok/s  ETA 0s\x1b[K\r\n"},
    {23, "\rstep 1/2  loss 0.3000\x1b[K\rstep 2/2  [#####.....]"
         "\x1b[K\rstep 2/2  loss 0.3000\x1b[K\r\n"},
    {6, "\rstep \x1b[K\rstep \x1b[K\rstep \x1b[K\r\n"},
};

START_TEST(a_terminal_gets_one_line_that_fits_with_a_bar_inside_long_steps)
{
    char *text;

    (void)setenv("NO_COLOR", "1", 1);
    text = drawn_on_terminal(windows[_i].width);
    ck_assert_str_eq(text, windows[_i].text);
    free(text);
}
END_TEST

START_TEST(of_the_bar_what_is_done_has_a_colour_without_no_color)
{
    char *text;

    (void)unsetenv("NO_COLOR");
    text = drawn_on_terminal(120);
    ck_assert_ptr_nonnull(
        strstr(text, "[\x1b[32m##########\x1b[0m..........]"));
    free(text);
    (void)setenv("NO_COLOR", "", 1); /* empty is as good as unset */
    text = drawn_on_terminal(120);
    ck_assert_ptr_nonnull(strstr(text, "\x1b[32m"));
    free(text);
}
END_TEST

START_TEST(a_terminal_without_a_cursor_gets_plain_lines)
{
    terminal t = terminal_open(80);
    cf_metrics *metrics;
    char *text;

    (void)setenv("TERM", "dumb", 1);
    metrics = metrics_open(NULL, 2, 1, false);
    ck_assert_int_eq(cf_metrics_append(metrics, &report_of_a_step), CF_OK);
    ck_assert(!cf_metrics_progress_is_due(metrics));
    cf_metrics_close(metrics);
    text = terminal_close(&t);
    ck_assert_str_eq(text, "step 1/2  loss 0.3000  lr 2e-05  20000 tok/s  peak "
                           "3.0 GiB  ETA 0s\r\n");
    free(text);
}
END_TEST

START_TEST(an_evaluation_has_a_bar_too_and_a_line_that_stays)
{
    const cf_progress_at at = {
        .step = 2, .chunks_done = 1, .n_chunks = 4, .done = 0.25};
    const cf_eval_report report = evaluation_of_a_step(NULL);
    cf_metrics *metrics;
    terminal t = terminal_open(80);
    char *text;

    (void)setenv("NO_COLOR", "1", 1);
    metrics = metrics_open(NULL, 2, 1, false);
    cf_metrics_progress(metrics, &at);
    ck_assert_int_eq(cf_metrics_append_evaluation(metrics, &report), CF_OK);
    cf_metrics_close(metrics);
    text = terminal_close(&t);
    ck_assert_str_eq(
        text, "\rstep 2/2  [#####...............]  1/4 chunks of the "
              "evaluation\x1b[K\rstep 2/2  evaluation: "
              "loss 0.3000  perplexity 1.35  in 1m01s  (best)\x1b[K\r\n");
    free(text);
}
END_TEST

START_TEST(a_file_that_cannot_be_written_is_named)
{
    cf_metrics_params params = {.path = scratch_path("none/m.jsonl"),
                                .n_steps = 1,
                                .log_every = 1,
                                .quiet = true};
    cf_metrics *metrics = NULL;
    const char *log;

    errors_begin();
    ck_assert_int_eq(cf_metrics_open(&params, &metrics), CF_IO);
    log = errors_end();
    ck_assert_ptr_nonnull(
        strstr(log, "none/m.jsonl: cannot open it: No such file"));

    metrics = metrics_open("/dev/full", 1, 1, true);
    errors_begin();
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(cf_metrics_append(metrics, &report_of_a_step), CF_OK);
    log = errors_end();
    ck_assert_ptr_nonnull(
        strstr(log, "warning: /dev/full: cannot be written: No space left on "
                    "device; its lines wait for room"));
    ck_assert_ptr_eq(strchr(log, '\n'), log + strlen(log) - 1); /* once */
    errors_begin();
    ck_assert_int_eq(cf_metrics_settle(metrics), CF_IO);
    log = errors_end();
    ck_assert_ptr_nonnull(
        strstr(log, "/dev/full: cannot write it: No space left on device"));
    cf_metrics_close(metrics);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("metrics");
    TCase *metrics = tcase_create("cf_metrics");
    SRunner *runner;
    int failed;

    tcase_add_checked_fixture(metrics, scratch_open, scratch_close);
    tcase_add_test(metrics, a_line_has_the_keys_in_order_and_every_digit);
    tcase_add_test(metrics, a_line_is_in_the_file_as_soon_as_it_is_appended);
    tcase_add_test(metrics,
                   what_is_not_finite_is_null_so_that_the_line_stays_json);
    tcase_add_test(metrics, a_pipe_gets_plain_lines_as_often_as_asked);
    tcase_add_loop_test(
        metrics,
        a_terminal_gets_one_line_that_fits_with_a_bar_inside_long_steps, 0,
        (int)(sizeof(windows) / sizeof(windows[0])));
    tcase_add_test(metrics,
                   of_the_bar_what_is_done_has_a_colour_without_no_color);
    tcase_add_test(metrics, a_terminal_without_a_cursor_gets_plain_lines);
    tcase_add_test(metrics, an_evaluation_has_a_bar_too_and_a_line_that_stays);
    tcase_add_test(metrics,
                   the_line_of_an_evaluation_says_so_and_has_the_whole_result);
    tcase_add_test(metrics,
                   an_evaluation_has_a_line_of_progress_whatever_log_every);
    tcase_add_test(metrics, a_file_that_cannot_be_written_is_named);
    suite_add_tcase(suite, metrics);

    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
