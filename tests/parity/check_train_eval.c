/* check_train_eval.c - evaluation while training, from outside.
 *
 * (1) The last evaluation line has the bits of eval on the exported weights.
 * (2) Evaluating changes no bit of training.
 * (3) --keep-best exports the model of the best evaluation, --patience ends the
 *     run, and both know after --resume what they knew before.
 * (4) The longest sequence to evaluate is in the prediction of the memory.
 *
 * CHUNKFLOW names the program (./src/chunkflow).
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parity.h"

/* train for three epochs in batches of 2 into folder/name. */
static parity_command run_open(const parity_fixture *fixture,
                               const char *folder, const char *name,
                               const char *learning_rate)
{
    parity_command train = command_open("train", fixture->model, fixture->data);

    command_add(&train, "--epochs", "3", "--global-batch", "2", "--compute",
                "fp32", "--export-dtype", "fp32", "--lr-schedule", "constant",
                "--learning-rate", learning_rate, "--output", NULL);
    command_addf(&train, "%s/%s", folder, name);
    command_add_chunking(&train, 16, 1);
    return train;
}

static void add_eval(parity_command *train, const char *data, const char *every)
{
    command_add(train, "--eval-data", data, "--eval-every", every, NULL);
}

/* Lines of metrics.jsonl of folder/name that are evaluations, or the others. */
static json_t *lines_of(const char *folder, const char *name, bool evaluations)
{
    char *path = text_format("%s/%s/metrics.jsonl", folder, name);
    json_t *all = json_read_lines(path);
    json_t *some = json_array();

    for (size_t i = 0; i < json_array_size(all); i++) {
        json_t *line = json_array_get(all, i);

        if (json_is_true(json_object_get(line, "eval")) == evaluations)
            ck_assert_int_eq(json_array_append(some, line), 0);
    }
    json_decref(all);
    free(path);
    return some;
}

static double loss_at(const json_t *lines, size_t i)
{
    return json_number_at(json_array_get(lines, i), "loss", NULL);
}

static size_t best_of(const json_t *evaluations)
{
    size_t best = 0;

    for (size_t i = 1; i < json_array_size(evaluations); i++)
        if (loss_at(evaluations, i) < loss_at(evaluations, best))
            best = i;
    return best;
}

/* Fails unless eval of folder/name/model has this loss to the bit. */
static void expect_model(const parity_fixture *fixture, const char *folder,
                         const char *name, double loss)
{
    char *model = text_format("%s/%s/model", folder, name);
    json_t *result = eval_run(fixture, folder, model, "fp32", 16);

    expect_loss(fixture, result, loss, 0);
    json_decref(result);
    free(model);
}

static void expect_equal_models(const parity_command *command,
                                const char *folder, const char *a,
                                const char *b)
{
    char *path_a = text_format("%s/%s/model/model.safetensors", folder, a);
    char *path_b = text_format("%s/%s/model/model.safetensors", folder, b);

    if (!files_equal(path_a, path_b))
        command_blame(command, "'%s' and '%s' have other weights", a, b);
    free(path_a);
    free(path_b);
}

START_TEST(evaluating_changes_no_bit_and_ends_with_the_bits_of_eval)
{
    parity_fixture fixture = fixture_open(fixture_names[_i]);
    char *folder = folder_open();
    parity_command with = run_open(&fixture, folder, "with", "1e-3");
    parity_command without = run_open(&fixture, folder, "without", "1e-3");
    json_t *evaluations, *steps, *plain;
    size_t n;

    add_eval(&with, fixture.data, "2");
    command_expect(&with, folder, 0);
    command_expect(&without, folder, 0);
    expect_equal_models(&with, folder, "with", "without");
    evaluations = lines_of(folder, "with", true);
    steps = lines_of(folder, "with", false);
    plain = lines_of(folder, "without", false);
    n = json_array_size(steps);
    ck_assert_uint_eq(n, json_array_size(plain));
    for (size_t i = 0; i < n; i++)
        ck_assert(
            json_equal(json_object_get(json_array_get(steps, i), "loss"),
                       json_object_get(json_array_get(plain, i), "loss")));
    ck_assert_uint_eq(json_array_size(evaluations), n / 2 + n % 2);
    expect_model(&fixture, folder, "with",
                 loss_at(evaluations, json_array_size(evaluations) - 1));
    json_decref(evaluations);
    json_decref(steps);
    json_decref(plain);
    command_close(&with);
    command_close(&without);
    folder_close(folder);
    fixture_close(&fixture);
}
END_TEST

START_TEST(the_best_model_is_exported_and_patience_ends_the_run)
{
    parity_fixture fixture = fixture_open("llama-gqa-llama3");
    char *folder = folder_open();
    parity_command train = run_open(&fixture, folder, "run", "1e-1");
    json_t *evaluations, *steps;
    size_t n, best;

    add_eval(&train, fixture.data, "1");
    command_add(&train, "--keep-best", "--patience", "2", NULL);
    command_expect(&train, folder, 0);
    evaluations = lines_of(folder, "run", true);
    steps = lines_of(folder, "run", false);
    n = json_array_size(evaluations);
    best = best_of(evaluations);
    ck_assert_uint_eq(json_array_size(steps), n);
    ck_assert_uint_lt(n, 27); /* else it was not stopped */
    ck_assert_uint_eq(best, n - 3);
    expect_model(&fixture, folder, "run", loss_at(evaluations, best));
    command_close(&train);

    /* Submitted again it is finished; with more patience it goes on. */
    train = run_open(&fixture, folder, "run", "1e-1");
    add_eval(&train, fixture.data, "1");
    command_add(&train, "--keep-best", "--patience", "2", "--resume", NULL);
    command_expect(&train, folder, 0);
    ck_assert_ptr_nonnull(strstr(train.err, "this run is finished"));
    expect_model(&fixture, folder, "run", loss_at(evaluations, best));
    command_close(&train);
    train = run_open(&fixture, folder, "run", "1e-1");
    add_eval(&train, fixture.data, "1");
    command_add(&train, "--keep-best", "--patience", "3", "--resume", NULL);
    command_expect(&train, folder, 0);
    json_decref(steps);
    steps = lines_of(folder, "run", false);
    ck_assert_uint_gt(json_array_size(steps), n);
    json_decref(evaluations);
    json_decref(steps);
    command_close(&train);
    folder_close(folder);
    fixture_close(&fixture);
}
END_TEST

/* Lines without what a clock decides. */
static json_t *timeless(json_t *lines)
{
    for (size_t i = 0; i < json_array_size(lines); i++) {
        json_t *line = json_array_get(lines, i);

        (void)json_object_del(line, "step_s");
        (void)json_object_del(line, "tokens_per_s");
        (void)json_object_del(line, "peak_bytes");
    }
    return lines;
}

/* The run in one go, and cut after `cut` steps and resumed with no knowledge but
 * what is in its folder: the same lines, the same best model. */
START_TEST(a_resumed_run_knows_the_best_and_its_patience)
{
    static const char *const cuts[] = {"2", "4", "6"};
    parity_fixture fixture = fixture_open("llama-gqa-llama3");
    char *folder = folder_open();

    for (size_t i = 0; i <= LENGTH(cuts); i++) {
        const char *name = i == 0 ? "whole" : "cut";
        json_t *whole, *cut;
        parity_command train;

        if (i > 0) {
            train = run_open(&fixture, folder, name, "1e-1");
            command_add(&train, "--steps", cuts[i - 1], "--overwrite", NULL);
            add_eval(&train, fixture.data, "2");
            command_add(&train, "--keep-best", "--patience", "3", NULL);
            command_expect(&train, folder, 0);
            command_close(&train);
        }
        train = run_open(&fixture, folder, name, "1e-1");
        add_eval(&train, fixture.data, "2");
        command_add(&train, "--keep-best", "--patience", "3", "--resume", NULL);
        command_expect(&train, folder, 0);
        if (i > 0) {
            whole = timeless(lines_of(folder, "whole", true));
            cut = timeless(lines_of(folder, "cut", true));
            if (!json_equal(whole, cut))
                command_blame(&train, "other evaluations, cut after %s",
                              cuts[i - 1]);
            expect_equal_models(&train, folder, "whole", "cut");
            json_decref(whole);
            json_decref(cut);
        }
        command_close(&train);
    }
    folder_close(folder);
    fixture_close(&fixture);
}
END_TEST

/* A state may be on the disk before the line of the evaluation after its step
 * is: the evaluation is then made up for. */
START_TEST(a_lost_evaluation_is_made_up_for)
{
    parity_fixture fixture = fixture_open("qwen2-tied");
    char *folder = folder_open();
    char *metrics = text_format("%s/run/metrics.jsonl", folder);
    char *ledger = text_format("%s/run/ledger.json", folder);
    parity_command train = run_open(&fixture, folder, "run", "1e-2");
    char *text, *last;
    size_t n;

    add_eval(&train, fixture.data, "4");
    command_expect(&train, folder, 0);
    command_close(&train);
    text = file_read(metrics, &n);
    text[n - 1] = '\0';
    last = strrchr(text, '\n') + 1;
    ck_assert_ptr_nonnull(strstr(last, "\"eval\": true"));
    file_write(metrics, text, (size_t)(last - text) + 9); /* torn */
    ck_assert_int_eq(remove(ledger), 0);
    train = run_open(&fixture, folder, "run", "1e-2");
    add_eval(&train, fixture.data, "4");
    command_add(&train, "--resume", NULL);
    command_expect(&train, folder, 0);
    {
        json_t *evaluations = lines_of(folder, "run", true);
        json_t *was = json_loads(last, 0, NULL);

        ck_assert_double_eq(
            loss_at(evaluations, json_array_size(evaluations) - 1),
            json_number_at(was, "loss", NULL));
        json_decref(was);
        json_decref(evaluations);
    }
    command_close(&train);
    free(text);
    free(ledger);
    free(metrics);
    folder_close(folder);
    fixture_close(&fixture);
}
END_TEST

/* One sequence of n tokens. */
static void sequence_write(const char *path, int n)
{
    FILE *file = fopen(path, "we");

    ck_assert_ptr_nonnull(file);
    (void)fputs("{\"source\": \"numbers\", \"input_ids\": [1", file);
    for (int i = 1; i < n; i++)
        (void)fprintf(file, ", %d", i % 50);
    (void)fputs("]}\n", file);
    ck_assert_int_eq(fclose(file), 0);
}

/* "memory: 893.12 KiB used of 893.12 KiB predicted": the two are one text. */
static void expect_used_is_predicted(const parity_command *train)
{
    const char *line = strstr(train->err, "chunkflow: memory: ");
    char used[64], used_unit[16], predicted[64], predicted_unit[16];

    ck_assert_ptr_nonnull(line);
    ck_assert_int_eq(sscanf(line,
                            "chunkflow: memory: %63s %15s used of %63s %15s",
                            used, used_unit, predicted, predicted_unit),
                     4);
    ck_assert_str_eq(used, predicted);
    ck_assert_str_eq(used_unit, predicted_unit);
}

START_TEST(a_long_sequence_to_evaluate_is_in_the_prediction)
{
    parity_fixture fixture = fixture_open("llama-mha");
    char *folder = folder_open();
    char *data = text_format("%s/long.jsonl", folder);
    parity_command train = run_open(&fixture, folder, "run", "1e-3");
    json_t *evaluations, *buckets;

    sequence_write(data, 3000);
    command_be_loud(&train);
    add_eval(&train, data, "5");
    command_expect(&train, folder, 0);
    ck_assert_ptr_nonnull(strstr(train.err, "evaluation, beyond training"));
    ck_assert_ptr_nonnull(strstr(train.err, "evaluation: loss "));
    expect_used_is_predicted(&train);
    evaluations = lines_of(folder, "run", true);
    buckets = json_object_get(json_array_get(evaluations, 0), "buckets");
    ck_assert_uint_eq(json_array_size(buckets), 1);
    ck_assert_str_eq(
        json_string_value(json_object_get(json_array_get(buckets, 0), "name")),
        "1K-4K");
    json_decref(evaluations);
    command_close(&train);

    train = run_open(&fixture, folder, "small", "1e-3");
    add_eval(&train, data, "5");
    command_add(&train, "--memory", "900KiB", NULL);
    command_expect(&train, folder, 4);
    ck_assert_ptr_nonnull(strstr(train.err, "longest sequence has 3000"));
    command_close(&train);
    free(data);
    folder_close(folder);
    fixture_close(&fixture);
}
END_TEST

START_TEST(one_short_sequence_is_enough_to_evaluate)
{
    parity_fixture fixture = fixture_open("qwen2-tied");
    char *folder = folder_open();
    char *data = text_format("%s/short.jsonl", folder);
    parity_command train = run_open(&fixture, folder, "run", "1e-3");
    json_t *evaluations;

    sequence_write(data, 5);
    command_add(&train, "--steps", "1", "--eval-data", data, NULL);
    command_expect(&train, folder, 0);
    evaluations = lines_of(folder, "run", true);
    ck_assert_uint_eq(json_array_size(evaluations), 1);
    ck_assert_double_eq(
        json_number_at(json_array_get(evaluations, 0), "target_tokens", NULL),
        4);
    json_decref(evaluations);
    command_close(&train);
    free(data);
    folder_close(folder);
    fixture_close(&fixture);
}
END_TEST

START_TEST(options_that_need_eval_data_say_so)
{
    static const char *const options[][2] = {
        {"--eval-every", "3"}, {"--patience", "3"}, {"--keep-best", NULL}};
    parity_fixture fixture = fixture_open("llama-mha");
    char *folder = folder_open();

    for (size_t i = 0; i < LENGTH(options); i++) {
        parity_command train = run_open(&fixture, folder, "run", "1e-3");
        char *wanted = text_format("%s needs --eval-data", options[i][0]);

        command_add(&train, options[i][0], options[i][1], NULL);
        command_expect(&train, folder, 2);
        ck_assert_ptr_nonnull(strstr(train.err, wanted));
        free(wanted);
        command_close(&train);
    }
    folder_close(folder);
    fixture_close(&fixture);
}
END_TEST

START_TEST(a_dry_run_forecasts_and_writes_nothing)
{
    parity_fixture fixture = fixture_open("llama-mha");
    char *folder = folder_open();
    char *run = text_format("%s/run", folder);
    parity_command train = run_open(&fixture, folder, "run", "1e-3");

    add_eval(&train, fixture.data, "5");
    command_be_loud(&train);
    command_add(&train, "--dry-run", NULL);
    command_expect(&train, folder, 0);
    ck_assert_ptr_nonnull(strstr(train.err, "chunkflow: forecast "));
    ck_assert_ptr_nonnull(strstr(train.err, " a step, "));
    ck_assert_ptr_null(fopen(run, "re"));
    command_close(&train);
    free(run);
    folder_close(folder);
    fixture_close(&fixture);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("train_eval");
    TCase *runs = tcase_create("runs");
    SRunner *runner;
    int n_failed;

    tcase_set_timeout(runs, 600);
    tcase_add_loop_test(
        runs, evaluating_changes_no_bit_and_ends_with_the_bits_of_eval, 0,
        n_fixtures);
    tcase_add_test(runs, the_best_model_is_exported_and_patience_ends_the_run);
    tcase_add_test(runs, a_resumed_run_knows_the_best_and_its_patience);
    tcase_add_test(runs, a_lost_evaluation_is_made_up_for);
    tcase_add_test(runs, a_long_sequence_to_evaluate_is_in_the_prediction);
    tcase_add_test(runs, one_short_sequence_is_enough_to_evaluate);
    tcase_add_test(runs, options_that_need_eval_data_say_so);
    tcase_add_test(runs, a_dry_run_forecasts_and_writes_nothing);
    suite_add_tcase(suite, runs);

    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    n_failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return n_failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
