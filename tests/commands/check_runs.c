/* check_runs.c - what a run leaves behind (INTERFACE section 3): its folder,
 * ledger, metrics and model, and what of them is there when it did not end well.
 */
#include "tests/commands/runs.h"

#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/op_times.h"
#include "tests/commands/sandbox.h"

/* Of 0, 1, 4, 6 and 3 tokens; the last has no target. */
static const char mixed_data[] =
    "{\"input_ids\": []}\n"
    "{\"input_ids\": [7]}\n"
    "{\"input_ids\": [1, 2, 3, 4]}\n"
    "{\"input_ids\": [1, 2, 3, 4, 5, 6], \"labels\": [0, -100, -100, 9, 9, "
    "-100]}\n"
    "{\"input_ids\": [1, 2, 3], \"labels\": [4, -100, -100]}\n";

static json_t *run_metrics(const sandbox *box)
{
    char *path = path_in(box->run, "metrics.jsonl");
    json_t *lines = json_read_lines(path);

    free(path);
    return lines;
}

static json_t *run_ledger(const sandbox *box)
{
    char *path = path_in(box->run, "ledger.json");
    json_t *ledger = json_read(path);

    free(path);
    return ledger;
}

static bool models_equal(const char *run_a, const char *run_b)
{
    char *a = path_in(run_a, "model/model.safetensors");
    char *b = path_in(run_b, "model/model.safetensors");
    bool equal = files_equal(a, b);

    free(b);
    free(a);
    return equal;
}

/* ---- the folder ---- */

START_TEST(a_dry_run_loads_no_weights_and_writes_nothing)
{
    sandbox box = sandbox_open();
    char *path = path_in(box.model, "model.safetensors");
    parity_command train = box_command("train", &box);

    file_write(path, "damaged", 7);
    command_add(&train, "--dry-run", NULL);
    expect_success(&train, &box);
    ck_assert(!exists(box.folder, "run"));
    free(path);
    sandbox_close(&box);
}
END_TEST

START_TEST(a_dry_run_looks_at_the_output)
{
    static const char *const run[] = {"--output", "is not empty", NULL};
    static const char *const nowhere[] = {"--output", "Not a directory", NULL};
    sandbox box = sandbox_open();
    char *note = path_in(box.run, "note.txt");
    parity_command train = box_command("train", &box);

    ck_assert_int_eq(mkdir(box.run, 0777), 0);
    file_write(note, "mine", 4);
    command_add(&train, "--dry-run", NULL);
    expect_error(&train, &box, 2, run);
    train = box_command("train", &box);
    command_add(&train, "--dry-run", "--overwrite", NULL);
    expect_success(&train, &box);
    ck_assert(exists(box.run, "note.txt"));
    ck_assert(!exists(box.run, "config.yaml"));
    train = command_open("train", box.model, box.data);
    command_add(&train, "--dry-run", "--output", NULL);
    command_addf(&train, "%s/a/b", note);
    expect_error(&train, &box, 2, nowhere);
    free(note);
    sandbox_close(&box);
}
END_TEST

START_TEST(an_output_that_is_a_file_is_refused_and_kept)
{
    sandbox box = sandbox_open();
    parity_command train = box_command("train", &box);
    char *text;

    file_write(box.run, "mine", 4);
    command_add(&train, "--overwrite", NULL);
    expect_error(
        &train, &box, 2,
        (const char *[]){"--output", box.run, "Not a directory", NULL});
    text = file_read(box.run, NULL);
    ck_assert_str_eq(text, "mine");
    free(text);
    sandbox_close(&box);
}
END_TEST

START_TEST(an_output_that_cannot_be_made_is_refused)
{
    sandbox box = sandbox_open();
    parity_command train = command_open("train", box.model, box.data);

    /* Not even root makes folders there. */
    command_add(&train, "--output", "/proc/chunkflow/run", NULL);
    expect_error(&train, &box, 2,
                 (const char *[]){"--output", "/proc/chunkflow", NULL});
    sandbox_close(&box);
}
END_TEST

START_TEST(an_output_in_use_is_refused_and_kept)
{
    sandbox box = sandbox_open();
    parity_command train = box_command("train", &box);
    char *note = path_in(box.run, "note.txt");

    ck_assert_int_eq(mkdir(box.run, 0777), 0);
    file_write(note, "mine", 4);
    expect_error(&train, &box, 2,
                 (const char *[]){"--output", box.run, "--overwrite", NULL});
    ck_assert(exists(box.run, "note.txt"));
    ck_assert(!exists(box.run, "config.yaml"));
    free(note);
    sandbox_close(&box);
}
END_TEST

START_TEST(overwrite_removes_the_files_of_a_run_and_nothing_else)
{
    static const char *const ours[] = {
        "events.out.tfevents.1",
        "adapter",
        "loss.svg.tmp",
        "report.html",
        "schedule.svg",
        "loss.svg",
        "memory.svg",
        "lengths.svg",
        "run.json",
        "ledger.json",
        "checkpoints",
    };
    enum {
        N_GONE = 4 /* the first of them; the others are there again */
    };
    static const char *const theirs[] = {"note.txt", "model.txt", "models",
                                         "config.yaml.bak", ".hidden"};
    sandbox box = sandbox_open();
    parity_command train = box_command("train", &box);

    ck_assert_int_eq(mkdir(box.run, 0777), 0);
    for (size_t i = 0; i < LENGTH(ours) + LENGTH(theirs); i++) {
        char *path = path_in(
            box.run, i < LENGTH(ours) ? ours[i] : theirs[i - LENGTH(ours)]);

        file_write(path, "old", 3);
        free(path);
    }
    command_add(&train, "--overwrite", NULL);
    expect_success(&train, &box);
    for (size_t i = 0; i < LENGTH(theirs); i++)
        ck_assert_msg(exists(box.run, theirs[i]), "%s is gone", theirs[i]);
    for (size_t i = 0; i < LENGTH(ours); i++)
        ck_assert_msg(exists(box.run, ours[i]) == (i >= N_GONE),
                      "%s is left, or not there", ours[i]);
    json_decref(run_ledger(&box));
    ck_assert(exists(box.run, "checkpoints/step-1"));
    sandbox_close(&box);
}
END_TEST

START_TEST(overwrite_does_not_remove_the_model_that_it_starts_from)
{
    static const char *const names[] = {"run/model", "link"};
    sandbox box = sandbox_open();
    parity_command first = box_command("train", &box);
    char *fine_tuned = path_in(box.folder, "run/model");
    char *link = path_in(box.folder, "link");
    char *model = path_in(box.folder, names[_i]);
    parity_command second = command_open("train", model, box.data);

    expect_success(&first, &box);
    ck_assert_int_eq(symlink(fine_tuned, link), 0);
    command_add(&second, "--output", box.run, "--overwrite", NULL);
    expect_error(&second, &box, 2,
                 (const char *[]){"--model", model, "--output", NULL});
    ck_assert(exists(box.run, "model/model.safetensors"));
    ck_assert(exists(box.run, "ledger.json"));
    ck_assert(exists(box.run, "metrics.jsonl"));
    free(model);
    free(link);
    free(fine_tuned);
    sandbox_close(&box);
}
END_TEST

START_TEST(a_runs_own_config_repeats_the_run)
{
    sandbox box = sandbox_open();
    parity_command first = box_command("train", &box);
    char *program = strdup(first.argv[0]);
    char *config = path_in(box.run, "config.yaml");
    char *again = path_in(box.folder, "again");
    parity_command second = {.exit_code = -1};

    command_add(&first, "--global-batch", "3", "--epochs", "2", "--seed", "5",
                "--chunk-size", "16", "--learning-rate", "0.003",
                "--warmup-steps", "2", "--weight-decay", "0.1", "--max-length",
                "100", NULL);
    expect_success(&first, &box);
    command_add(&second, program, "train", "--config", config, "--output",
                again, NULL);
    expect_success(&second, &box);
    ck_assert(models_equal(box.run, again));
    free(again);
    free(config);
    free(program);
    sandbox_close(&box);
}
END_TEST

START_TEST(the_model_can_be_evaluated_and_trained_further)
{
    sandbox box = sandbox_open();
    parity_command train = box_command("train", &box);
    char *model = path_in(box.run, "model");
    parity_command eval = command_open("eval", model, box.data);
    parity_command further = command_open("train", model, box.data);
    char *again = path_in(box.folder, "again");
    char *odd = path_in(box.model, "LICENSES");
    char *lost = path_in(box.model, "tokenizer.json");

    /* What a folder may hold beside the model must not cost the run. */
    ck_assert_int_eq(mkdir(odd, 0777), 0);
    ck_assert_int_eq(symlink("nowhere", lost), 0);
    expect_success(&train, &box);
    expect_success(&eval, &box);
    command_add(&further, "--output", again, NULL);
    expect_success(&further, &box);
    free(lost);
    free(odd);
    free(again);
    free(model);
    sandbox_close(&box);
}
END_TEST

/* ---- the ledger ---- */

typedef struct ledger_case {
    const char *words[6];
    double read[2]; /* sequences, tokens */
    double trained[3];
    double masked[2];
    double skipped[2];
} ledger_case;

static const ledger_case ledger_cases[] = {
    {{"--epochs", "1"}, {5, 14}, {2, 10, 5}, {3, 4}, {0, 0}},
    {{"--epochs", "3"}, {15, 42}, {6, 30, 15}, {9, 12}, {0, 0}},
    {{"--epochs", "2", "--max-length", "5"},
     {10, 28},
     {2, 8, 6},
     {6, 8},
     {2, 12}},
    {{"--epochs", "2", "--max-length", "5", "--global-batch", "1"},
     {10, 28},
     {2, 8, 6},
     {6, 8},
     {2, 12}},
    /* An epoch and a half: the skipped ones are read with its start. */
    {{"--steps", "3", "--max-length", "5", "--global-batch", "2"},
     {8, 21},
     {1, 4, 3},
     {5, 5},
     {2, 12}},
};

static void expect_counts(const json_t *ledger, const char *part,
                          const double *wanted)
{
    double sequences = json_number_at(ledger, part, "sequences", NULL);
    double tokens = json_number_at(ledger, part, "tokens", NULL);

    ck_assert_msg(sequences == wanted[0] && tokens == wanted[1],
                  "%s: %g sequences and %g tokens, not %g and %g", part,
                  sequences, tokens, wanted[0], wanted[1]);
}

START_TEST(every_sequence_and_token_is_in_the_ledger)
{
    const ledger_case *c = &ledger_cases[_i];
    sandbox box = sandbox_open();
    parity_command train = box_command("train", &box);
    json_t *ledger;

    data_set(&box, mixed_data);
    command_add(&train, "--no-shuffle", NULL);
    for (size_t i = 0; i < LENGTH(c->words) && c->words[i] != NULL; i++)
        command_add(&train, c->words[i], NULL);
    expect_success(&train, &box);
    ledger = run_ledger(&box);
    expect_counts(ledger, "read", c->read);
    expect_counts(ledger, "trained", c->trained);
    expect_counts(ledger, "masked", c->masked);
    expect_counts(ledger, "skipped", c->skipped);
    ck_assert_double_eq(
        json_number_at(ledger, "trained", "target_tokens", NULL),
        c->trained[2]);
    if (c->skipped[0] > 0)
        expect_counts(
            json_object_get(json_object_get(ledger, "skipped"), "reasons"),
            "max_length", c->skipped);
    json_decref(ledger);
    sandbox_close(&box);
}
END_TEST

/* ---- metrics ---- */

START_TEST(a_line_of_metrics_has_its_keys_in_order)
{
    static const char *const keys[] = {
        "step",          "loss",         "grad_norm",
        "learning_rate", "sequences",    "tokens",
        "target_tokens", "chunks",       "recomputed_chunks",
        "step_s",        "tokens_per_s", "peak_bytes",
    };
    sandbox box = sandbox_open();
    parity_command train = box_command("train", &box);
    json_t *lines;

    data_set(&box, mixed_data);
    command_add(&train, "--no-shuffle", "--global-batch", "1", NULL);
    expect_success(&train, &box);
    lines = run_metrics(&box);
    ck_assert_uint_eq(json_array_size(lines), 5);
    for (size_t i = 0; i < 5; i++) {
        json_t *line = json_array_get(lines, i);
        const bool has_target = i == 2 || i == 3;
        void *at = json_object_iter(line);

        for (size_t key = 0; key < LENGTH(keys); key++) {
            ck_assert_msg(at != NULL, "line %zu ends before %s", i, keys[key]);
            ck_assert_str_eq(json_object_iter_key(at), keys[key]);
            at = json_object_iter_next(line, at);
        }
        ck_assert(at == NULL);
        ck_assert(json_is_null(json_object_get(line, "loss")) != has_target);
        ck_assert(json_is_null(json_object_get(line, "grad_norm")) !=
                  has_target);
        ck_assert_double_eq(json_number_at(line, "step", NULL),
                            (double)(i + 1));
        ck_assert_double_eq(json_number_at(line, "sequences", NULL), 1);
    }
    json_decref(lines);
    sandbox_close(&box);
}
END_TEST

/* ---- times ---- */

/* The seconds of "step N took S s: KIND S s P %, KIND S s P %", whose kinds
 * must add up to the step, to the digits that are shown. */
static void expect_times_add_up(const parity_command *train, unsigned number)
{
    char *head = text_format("chunkflow: step %u took ", number);
    const char *at = strstr(train->err, head);
    double step_s, sum = 0, kind_s, percent;
    unsigned n = 0;
    int used = 0;

    if (at == NULL ||
        sscanf(at + strlen(head), "%lf s: %n", &step_s, &used) != 1 ||
        used == 0)
        command_blame(train, "no times of step %u", number);
    for (at += strlen(head) + used;; n++) {
        used = 0;
        if (sscanf(at, "%*[A-Za-z ]%lf s %lf %%%n", &kind_s, &percent, &used) <
                2 ||
            used == 0)
            command_blame(train, "no seconds and percent at \"%.40s\"", at);
        sum += kind_s;
        at += used;
        if (*at == '\n')
            break;
        at += strspn(at, ", ");
    }
    if (fabs(sum - step_s) > 1e-4 * (CF_TIME_KINDS + 1))
        command_blame(train, "step %u: the kinds add up to %g, not to %g",
                      number, sum, step_s);
    free(head);
}

START_TEST(verbose_tells_where_the_time_went_and_changes_no_bit)
{
    sandbox box = sandbox_open();
    parity_command train = box_command("train", &box);
    char *plain = path_in(box.run, "model/model.safetensors");
    char *verbose_run = path_in(box.folder, "verbose");
    char *verbose = path_in(verbose_run, "model/model.safetensors");

    expect_success(&train, &box);
    free(box.run);
    box.run = verbose_run;
    train = box_command("train", &box);
    command_add(&train, "--verbose", NULL);
    command_expect(&train, box.folder, 0);
    expect_times_add_up(&train, 1);
    if (strstr(train.err, "chunkflow:   together ") == NULL)
        command_blame(&train, "no table at the end");
    ck_assert(files_equal(plain, verbose));
    command_close(&train);
    free(verbose);
    free(plain);
    sandbox_close(&box);
}
END_TEST

START_TEST(a_step_without_targets_changes_no_weight)
{
    sandbox box = sandbox_open();
    parity_command with = box_command("train", &box);
    char *other = path_in(box.folder, "other");
    parity_command without = command_open("train", box.model, box.data);
    const char *rest = strstr(mixed_data, "{\"input_ids\": [1, 2, 3, 4]}");

    data_set(&box, mixed_data);
    command_add(&with, "--no-shuffle", "--global-batch", "1", "--lr-schedule",
                "constant", "--learning-rate", "0.01", "--weight-decay", "0.1",
                NULL);
    expect_success(&with, &box);
    /* The same without the steps of 0 and 1 token in front. */
    data_set(&box, rest);
    command_add(&without, "--no-shuffle", "--global-batch", "1",
                "--lr-schedule", "constant", "--learning-rate", "0.01",
                "--weight-decay", "0.1", "--output", other, NULL);
    expect_success(&without, &box);
    ck_assert(models_equal(box.run, other));
    free(other);
    sandbox_close(&box);
}
END_TEST

START_TEST(the_last_step_has_the_smallest_learning_rate)
{
    static const char *const schedules[] = {"linear", "cosine"};
    sandbox box = sandbox_open();

    for (int epochs = 1; epochs <= 3; epochs++)
        for (size_t i = 0; i < LENGTH(schedules); i++) {
            parity_command train = box_command("train", &box);
            json_t *lines;
            double last;

            command_add(&train, "--overwrite", "--global-batch", "4",
                        "--lr-schedule", schedules[i], "--learning-rate",
                        "3e-3", "--min-learning-rate", "1e-4", "--warmup-steps",
                        "2", "--epochs", NULL);
            command_addf(&train, "%d", epochs);
            expect_success(&train, &box);
            lines = run_metrics(&box);
            ck_assert_uint_eq(json_array_size(lines), (size_t)epochs * 5);
            last = json_number_at(
                json_array_get(lines, json_array_size(lines) - 1),
                "learning_rate", NULL);
            ck_assert_msg(fabs(last - 1e-4) <= 1e-18, "%s, %d epochs: %.17g",
                          schedules[i], epochs, last);
            ck_assert_double_eq(
                json_number_at(json_array_get(lines, 0), "learning_rate", NULL),
                3e-3 / 2);
            json_decref(lines);
        }
    sandbox_close(&box);
}
END_TEST

START_TEST(steps_win_over_epochs)
{
    sandbox box = sandbox_open();
    parity_command train = box_command("train", &box);
    json_t *lines;

    command_add(&train, "--global-batch", "4", "--epochs", "1", "--steps", "7",
                NULL);
    expect_success(&train, &box);
    lines = run_metrics(&box);
    ck_assert_uint_eq(json_array_size(lines), 7);
    json_decref(lines);
    sandbox_close(&box);
}
END_TEST

/* ---- what does not end well ---- */

static size_t file_bytes(const char *folder, const char *name)
{
    char *path = path_in(folder, name);
    struct stat info;
    size_t bytes = stat(path, &info) == 0 ? (size_t)info.st_size : 0;

    free(path);
    return bytes;
}

START_TEST(a_killed_run_leaves_no_model)
{
    sandbox box = sandbox_open();
    parity_command train = box_command("train", &box);
    parity_command again = box_command("train", &box);
    pid_t child;

    command_add(&train, "--steps", "1000000", "--global-batch", "2", NULL);
    child = command_start(&train, box.folder);
    for (int i = 0; i < 1000 && file_bytes(box.run, "metrics.jsonl") == 0; i++)
        usleep(10000);
    ck_assert_int_eq(kill(child, SIGKILL), 0);
    command_wait(&train, box.folder, child);
    ck_assert_int_eq(train.exit_code, -1);
    ck_assert_uint_gt(file_bytes(box.run, "metrics.jsonl"), 0);
    ck_assert(!exists(box.run, "model"));
    ck_assert(!exists(box.run, "ledger.json"));
    command_close(&train);

    command_add(&again, "--overwrite", NULL);
    expect_success(&again, &box);
    ck_assert(exists(box.run, "model/model.safetensors"));
    sandbox_close(&box);
}
END_TEST

/* A file system of our own, of `size`, that goes with this process.  False: it
 * takes root, and a machine that lets it. */
static bool small_disk(const char *folder, const char *size)
{
    char *options = text_format("size=%s", size);
    bool mounted = unshare(CLONE_NEWNS) == 0 &&
                   mount("none", "/", "none", MS_REC | MS_PRIVATE, NULL) == 0 &&
                   mount("tmpfs", folder, "tmpfs", 0, options) == 0;

    free(options);
    return mounted;
}

START_TEST(a_full_disk_ends_in_one_line_and_no_model)
{
    sandbox box = sandbox_open();
    parity_command train = box_command("train", &box);

    ck_assert_int_eq(mkdir(box.run, 0777), 0);
    if (small_disk(box.run, "200k")) {
        /* The training state of 156 KB fits, 52 KB of weights do not. */
        expect_error(&train, &box, 1,
                     (const char *[]){"model.safetensors", "No space left",
                                      "bytes", "make room", NULL});
        ck_assert(exists(box.run, "metrics.jsonl"));
        ck_assert(!exists(box.run, "model"));
        ck_assert(!exists(box.run, "model.tmp"));
        ck_assert(!exists(box.run, "ledger.json"));
        ck_assert_int_eq(umount(box.run), 0);
    } else {
        printf("skipped: a full disk, for want of the right to mount one\n");
        fflush(stdout);
        command_close(&train);
    }
    sandbox_close(&box);
}
END_TEST

START_TEST(a_disk_that_holds_neither_state_nor_model_is_one_error)
{
    sandbox box = sandbox_open();
    parity_command train = box_command("train", &box);
    const char *first;

    ck_assert_int_eq(mkdir(box.run, 0777), 0);
    if (small_disk(box.run, "40k")) {
        command_expect(&train, box.folder, 1);
        first = strstr(train.err, "chunkflow: error: ");
        if (first == NULL || strstr(first + 1, "chunkflow: error: ") != NULL ||
            strstr(first, "model.safetensors") == NULL)
            command_blame(&train, "one error must tell of the model");
        if (strstr(train.err, "warning: the state of step") == NULL)
            command_blame(&train, "a warning must tell of the state");
        ck_assert(!exists(box.run, "model"));
        ck_assert(!exists(box.run, "model.tmp"));
        ck_assert_int_eq(umount(box.run), 0);
    } else {
        printf("skipped: a full disk, for want of the right to mount one\n");
        fflush(stdout);
    }
    command_close(&train);
    sandbox_close(&box);
}
END_TEST

START_TEST(a_disk_that_is_full_at_once_is_one_line_too)
{
    sandbox box = sandbox_open();
    parity_command train = box_command("train", &box);
    char *filler = path_in(box.run, "filler");

    ck_assert_int_eq(mkdir(box.run, 0777), 0);
    if (small_disk(box.run, "4k")) {
        file_write(filler, "all", 3);
        command_add(&train, "--overwrite", NULL);
        expect_error(&train, &box, 1,
                     (const char *[]){"config.yaml", "No space left",
                                      "make room", NULL});
        ck_assert(!exists(box.run, "config.yaml"));
        ck_assert(!exists(box.run, "config.yaml.tmp"));
        ck_assert_int_eq(umount(box.run), 0);
    } else {
        printf("skipped: a full disk, for want of the right to mount one\n");
        fflush(stdout);
        command_close(&train);
    }
    free(filler);
    sandbox_close(&box);
}
END_TEST

TCase *run_folder_tests(void)
{
    TCase *runs = tcase_create("runs");

    tcase_set_timeout(runs, 120);
    tcase_add_test(runs, a_dry_run_loads_no_weights_and_writes_nothing);
    tcase_add_test(runs, a_dry_run_looks_at_the_output);
    tcase_add_test(runs, an_output_that_is_a_file_is_refused_and_kept);
    tcase_add_test(runs, an_output_that_cannot_be_made_is_refused);
    tcase_add_test(runs, an_output_in_use_is_refused_and_kept);
    tcase_add_test(runs, overwrite_removes_the_files_of_a_run_and_nothing_else);
    tcase_add_loop_test(
        runs, overwrite_does_not_remove_the_model_that_it_starts_from, 0, 2);
    tcase_add_test(runs, a_runs_own_config_repeats_the_run);
    tcase_add_test(runs, the_model_can_be_evaluated_and_trained_further);
    tcase_add_loop_test(runs, every_sequence_and_token_is_in_the_ledger, 0,
                        LENGTH(ledger_cases));
    tcase_add_test(runs, a_line_of_metrics_has_its_keys_in_order);
    tcase_add_test(runs, verbose_tells_where_the_time_went_and_changes_no_bit);
    tcase_add_test(runs, a_step_without_targets_changes_no_weight);
    tcase_add_test(runs, the_last_step_has_the_smallest_learning_rate);
    tcase_add_test(runs, steps_win_over_epochs);
    tcase_add_test(runs, a_killed_run_leaves_no_model);
    tcase_add_test(runs, a_full_disk_ends_in_one_line_and_no_model);
    tcase_add_test(runs,
                   a_disk_that_holds_neither_state_nor_model_is_one_error);
    tcase_add_test(runs, a_disk_that_is_full_at_once_is_one_line_too);
    return runs;
}
