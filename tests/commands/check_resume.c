/* check_resume.c - a run that is stopped, killed or damaged and gone on with is
 * the run that was not, to the bit.
 *
 * CHUNKFLOW names the program (./src/chunkflow), CF_TEST_SEED the seed,
 * CF_TEST_KILLS how often a run is killed (20).
 */
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "resumed.h"

/* Batches of sequences, of tokens, of two files, and with evaluations between,
 * of a model and of an adapter: in each the last one of an epoch is short. */
static const resumed_setting settings[] = {
    {"qwen2-tied", "fp32", {"--global-batch", "2"}, false, false},
    {"qwen2-tied", "fp64", {"--global-batch", "2"}, false, false},
    {"qwen2-tied", "bf16", {"--global-batch", "2"}, false, false},
    {"qwen2-tied", "fp32", {"--tokens-per-batch", "110"}, false, false},
    {"qwen2-tied", "fp32", {"--global-batch", "5"}, true, false},
    {"qwen2-tied",
     "fp32",
     {"--global-batch", "2", "--eval-every", "3"},
     false,
     true},
    {"qwen2-tied",
     "fp32",
     {"--tokens-per-batch", "60", "--global-batch", "4", "--eval-every=2"},
     true,
     true},
    {"qwen2-tied",
     "fp32",
     {"--global-batch=2", "--lora-rank=3", "--merge"},
     false,
     false},
    {"qwen2-tied",
     "fp64",
     {"--global-batch=2", "--lora-rank=2", "--lora-targets=v_proj,up_proj",
      "--merge", "--eval-every=3"},
     false,
     true},
};

static unsigned random_k(uint64_t *state)
{
    return 1 + random_below(state, 4);
}

static void wait_ms(unsigned ms)
{
    struct timespec time = {.tv_sec = ms / 1000,
                            .tv_nsec = (long)(ms % 1000) * 1000000};

    (void)nanosleep(&time, NULL);
}

/* Go on to the end, and be equal. */
static void expect_resumed(const resumed_work *work, uint64_t *random,
                           const char *message)
{
    parity_command again = resumed_command(work, "run", random_k(random));

    command_add(&again, "--resume", "--keep", "50", NULL);
    command_expect(&again, work->folder, 0);
    if (strstr(again.err, message) == NULL)
        command_blame(&again, "it does not say: %s", message);
    expect_equal_run(work, &again);
    command_close(&again);
}

/* ---- every step ---- */

START_TEST(going_on_from_every_step_has_the_bits_of_not_stopping)
{
    resumed_work work = resumed_open_as(&settings[_i]);
    uint64_t random = random_seed("every step");
    parity_command first = resumed_command(&work, "run", 2);

    command_add(&first, "--resume", "--save-every", "1", "--keep", "50", NULL);
    command_expect(&first, work.folder, 0);
    if (strstr(first.err, "from the start") == NULL)
        command_blame(&first, "it does not say that there is no state");
    expect_equal_run(&work, &first);
    command_close(&first);

    for (unsigned step = work.n_steps - 1; step > 0; step--) {
        char *message = text_format("going on from the state of step %u", step);

        resumed_forget(&work, step);
        /* Some steps with an evaluation are among these, and some are not. */
        if (step / 3 % 2 == 1)
            resumed_cut_metrics(&work, step);
        expect_resumed(&work, &random, message);
        free(message);
    }
    resumed_close(&work);
}
END_TEST

START_TEST(more_steps_extend_a_finished_constant_run)
{
    resumed_work work = resumed_open("qwen2-tied", "fp32");
    parity_command ref = resumed_command(&work, "ref", 1);
    uint64_t random = random_seed("more steps");

    command_add(&ref, "--lr-schedule", "constant", "--overwrite", NULL);
    command_expect(&ref, work.folder, 0);
    command_close(&ref);
    for (unsigned n = 3; n <= RESUMED_STEPS;
         n += 1 + random_below(&random, 3)) {
        parity_command run = resumed_command(&work, "run", random_k(&random));

        command_add(&run, "--lr-schedule", "constant", "--resume", "--steps",
                    NULL);
        command_addf(&run, "%u", n);
        command_expect(&run, work.folder, 0);
        ck_assert_uint_eq(resumed_lines(&work), n);
        ck_assert_uint_eq(resumed_newest(&work), n);
        command_close(&run);
    }
    ref = resumed_command(&work, "run", 1);
    command_add(&ref, "--lr-schedule", "constant", "--resume", NULL);
    command_expect(&ref, work.folder, 0);
    /* state.json has the steps of the run, by epochs or not. */
    expect_equal_run(&work, &ref);
    command_close(&ref);
    resumed_close(&work);
}
END_TEST

START_TEST(a_finished_run_says_so_and_exports_again_what_is_missing)
{
    resumed_work work = resumed_open("qwen2-tied", "fp32");
    uint64_t random = random_seed("finished");
    parity_command run = resumed_command(&work, "run", 1);
    char *model = text_format("%s/run/model", work.folder);
    struct stat before, after;

    command_expect(&run, work.folder, 0);
    command_close(&run);
    ck_assert_int_eq(stat(model, &before), 0);
    expect_resumed(&work, &random, "this run is finished: step 12 of 12");
    ck_assert_int_eq(stat(model, &after), 0);
    ck_assert_uint_eq(before.st_ino, after.st_ino); /* left alone */
    folder_close(model);
    expect_resumed(&work, &random, "this run is finished");
    resumed_close(&work);
}
END_TEST

/* ---- signals and kills ---- */

static const int signals[] = {SIGTERM, SIGINT, SIGUSR1};

static bool is_running(pid_t child)
{
    siginfo_t info = {0};

    return waitid(P_PID, (id_t)child, &info, WEXITED | WNOHANG | WNOWAIT) ==
               0 &&
           info.si_pid == 0;
}

/* Start, let it come to a random line of metrics.jsonl, and send a signal. */
static void run_and_signal(const resumed_work *work, parity_command *command,
                           uint64_t *random, int signal)
{
    size_t n_before = resumed_lines(work);
    size_t n_more = 1 + random_below(random, 4);
    pid_t child = command_start(command, work->folder);

    while (is_running(child) && resumed_lines(work) < n_before + n_more)
        wait_ms(1);
    (void)kill(child, signal); /* a child that is over is not waited for yet */
    command_wait(command, work->folder, child);
}

START_TEST(a_signal_ends_the_step_saves_and_exits_0)
{
    resumed_work work = resumed_open("qwen2-tied", "fp32");
    uint64_t random = random_seed("signals");
    unsigned n_stopped = 0;

    for (size_t round = 0; round < 12; round++) {
        parity_command run = resumed_command(&work, "run", random_k(&random));
        int signal = signals[round % LENGTH(signals)];

        command_add(&run, "--resume", NULL);
        run_and_signal(&work, &run, &random, signal);
        /* Before its first step it has the default: nothing is lost. */
        if (run.exit_code != 0 && run.exit_code != -1)
            command_blame(&run, "it must exit with 0");
        if (strstr(run.err, "stopped by SIG") != NULL) {
            n_stopped++;
            ck_assert_uint_eq(resumed_lines(&work), resumed_newest(&work));
            ck_assert(!path_exists(&work, "run/ledger.json"));
            ck_assert(!path_exists(&work, "run/model"));
        }
        command_close(&run);
        if (path_exists(&work, "run/ledger.json"))
            resumed_clear(&work);
    }
    ck_assert_uint_gt(n_stopped, 0);
    expect_resumed(&work, &random, "");
    resumed_close(&work);
}
END_TEST

/* A kill at any moment: the newest state is complete, at most one step behind
 * what metrics.jsonl says, and what comes of it is equal. */
START_TEST(a_kill_at_any_moment_loses_one_step_at_most)
{
    const char *wanted = getenv("CF_TEST_KILLS");
    unsigned n_kills = wanted != NULL ? (unsigned)atoi(wanted) : 20;
    resumed_work work = resumed_open("qwen2-tied", "fp32");
    uint64_t random = random_seed("kills");
    unsigned n_killed = 0, n_finished = 0;

    while (n_killed < n_kills) {
        parity_command run = resumed_command(&work, "run", random_k(&random));
        pid_t child;

        command_add(&run, "--resume", "--save-every", "1", NULL);
        child = command_start(&run, work.folder);
        wait_ms(random_below(&random, 250));
        (void)kill(child, SIGKILL);
        command_wait(&run, work.folder, child);
        if (strstr(run.err, "skipped") != NULL)
            command_blame(&run, "a damaged state has its name");
        if (resumed_lines(&work) > resumed_newest(&work) + 1)
            command_blame(&run, "%zu steps done, newest state %u",
                          resumed_lines(&work), resumed_newest(&work));
        n_killed += run.exit_code == -1;
        if (run.exit_code == 0) {
            expect_equal_run(&work, &run);
            n_finished++;
            resumed_clear(&work);
        } else if (run.exit_code != -1) {
            command_blame(&run, "it must be killed or done");
        }
        command_close(&run);
    }
    expect_resumed(&work, &random, "");
    printf("kills: %u, finished in between: %u\n", n_killed, n_finished);
    resumed_close(&work);
}
END_TEST

/* ---- refusals ---- */

static const struct {
    const char *option, *value;
    const char *message;
} others[] = {
    {"--seed", "2", "--seed was 1, is 2"},
    {"--no-shuffle", NULL, "--no-shuffle was false, is true"},
    {"--global-batch", "3", "--global-batch was 2, is 3"},
    {"--learning-rate", "2e-3", "--learning-rate was 0.001, is 0.002"},
    {"--min-learning-rate", "1e-6", "--min-learning-rate was 0, is 1e-06"},
    {"--lr-schedule", "linear", "--lr-schedule was cosine, is linear"},
    {"--steps", "13", "its steps were 12, are 13"},
    {"--epochs", "4", "its steps were 12, are 16"},
    {"--warmup-steps", "2", "--warmup-steps was 3, is 2"},
    {"--weight-decay", "0", "--weight-decay was 0.01, is 0"},
    {"--adam-beta1", "0.8", "--adam-beta1 was 0.9, is 0.8"},
    {"--adam-beta2", "0.99", "--adam-beta2 was 0.999, is 0.99"},
    {"--adam-eps", "1e-6", "--adam-eps was 1e-08, is 1e-06"},
    {"--grad-clip", "0", "--grad-clip was 1, is 0"},
    {"--compute", "fp64", "--compute was fp32, is fp64"},
    {"--compute", "bf16", "--compute was fp32, is bf16"},
    {"--max-length", "4K", "--max-length was not given, is 4096"},
};

/* The words of a command again, with one option that is another. */
static void command_change(parity_command *command, const char *option,
                           const char *value)
{
    for (size_t i = 0; i + 1 < command->n_args; i++) {
        if (value == NULL || strcmp(command->argv[i], option) != 0)
            continue;
        free(command->argv[i + 1]);
        command->argv[i + 1] = strdup(value);
        return;
    }
    command_add(command, option, value, NULL);
}

static void expect_refused(const resumed_work *work, const char *option,
                           const char *value, const char *message)
{
    parity_command run = resumed_command(work, "run", 1);

    command_add(&run, "--resume", NULL);
    command_change(&run, option, value);
    command_expect(&run, work->folder, 2);
    if (strstr(run.err, message) == NULL ||
        strchr(run.err, '\n') != run.err + strlen(run.err) - 1)
        command_blame(&run, "one line must say: %s", message);
    command_close(&run);
}

/* A copy of a folder of files. */
static char *folder_copy(const resumed_work *work, const char *from,
                         const char *name)
{
    char *to = text_format("%s/%s", work->folder, name);
    char *line = text_format("cp -R '%s' '%s'", from, to);

    ck_assert_int_eq(system(line), 0);
    free(line);
    return to;
}

/* Change one byte of a file: at its end when offset is negative. */
static void byte_flip(const char *folder, const char *name, long offset)
{
    char *path = text_format("%s/%s", folder, name);
    size_t size;
    char *bytes = file_read(path, &size);

    bytes[offset < 0 ? (long)size + offset : offset] ^= 1;
    file_write(path, bytes, size);
    free(bytes);
    free(path);
}

START_TEST(another_run_is_refused_with_what_differs)
{
#define SHORT_LINE "{\"input_ids\":[1,2,3]}\n"
    static const char short_lines[] = SHORT_LINE SHORT_LINE SHORT_LINE
        SHORT_LINE SHORT_LINE SHORT_LINE SHORT_LINE;
    resumed_work work = resumed_open("qwen2-tied", "fp32");
    parity_command run = resumed_command(&work, "run", 1);
    char *model, *data;
    uint64_t random = random_seed("refusals");

    command_expect(&run, work.folder, 0);
    command_close(&run);
    for (size_t i = 0; i < LENGTH(others); i++)
        expect_refused(&work, others[i].option, others[i].value,
                       others[i].message);

    model = folder_copy(&work, work.fixture.model, "moved");
    byte_flip(model, "model.safetensors", -2);
    expect_refused(&work, "--model", model, "--model has another content");
    data = text_format("%s/data.jsonl", model);
    file_write(data, short_lines, sizeof(short_lines) - 1);
    expect_refused(&work, "--data", data, "--data has another content");

    /* Elsewhere and written anew, but the same: path and time do not count. */
    folder_close(model);
    model = folder_copy(&work, work.fixture.model, "moved");
    run = resumed_command(&work, "run", 1);
    command_add(&run, "--resume", NULL);
    command_change(&run, "--model", model);
    command_change(&run, "--data", data);
    command_expect(&run, work.folder, 0);
    command_close(&run);
    expect_resumed(&work, &random, "this run is finished");
    free(data);
    free(model);
    resumed_close(&work);
}
END_TEST

START_TEST(a_damaged_state_is_skipped_with_a_warning)
{
    static const struct {
        const char *file;
        long offset;
    } damages[] = {
        {"state.json", 40},
        {"state.json", -3},
        {"weights.safetensors", -100},
        {"moments.safetensors", 9},
    };
    resumed_work work = resumed_open("qwen2-tied", "fp32");
    uint64_t random = random_seed("damages");
    char *state = text_format("%s/run/checkpoints/step-12", work.folder);

    for (size_t i = 0; i < LENGTH(damages); i++) {
        parity_command run = resumed_command(&work, "run", 1);

        command_add(&run, "--save-every", "5", "--overwrite", NULL);
        command_expect(&run, work.folder, 0);
        command_close(&run);
        byte_flip(state, damages[i].file, damages[i].offset);
        expect_resumed(&work, &random,
                       "step-12: skipped, not a complete training state");
        expect_resumed(&work, &random, "this run is finished");
    }
    free(state);
    resumed_close(&work);
}
END_TEST

/* ---- a disk that says no ---- */

/* The same command under a shell's line, in which "$@" stands for it. */
static void command_wrap(parity_command *command, const char *script)
{
    char *words[] = {strdup("/bin/sh"), strdup("-c"), strdup(script),
                     strdup("sh")};

    ck_assert_uint_lt(command->n_args + LENGTH(words), 80);
    memmove(command->argv + LENGTH(words), command->argv,
            command->n_args * sizeof(char *));
    memcpy(command->argv, words, sizeof(words));
    command->n_args += LENGTH(words);
}

static size_t count_lines(const char *text, const char *part)
{
    size_t n = 0;

    for (; (text = strstr(text, part)) != NULL; text++)
        n++;
    return n;
}

/* Exit 1 behind a model that was written; one warning, one error. */
static void expect_unsaved(const resumed_work *work, parity_command *run,
                           const char *cause)
{
    command_expect(run, work->folder, 1);
    if (count_lines(run->err, "warning: the state of step ") != 1 ||
        count_lines(run->err, "error: ") != 1 ||
        strstr(run->err, cause) == NULL)
        command_blame(run, "one warning must name the cause: %s", cause);
    ck_assert_uint_eq(resumed_lines(work), RESUMED_STEPS);
    ck_assert(path_exists(work, "run/model/model.safetensors"));
}

START_TEST(a_failed_write_leaves_the_older_state_good)
{
    resumed_work work = resumed_open("qwen2-tied", "fp32");
    uint64_t random = random_seed("failed write");
    parity_command run = resumed_command(&work, "run", 1);

    command_add(&run, "--save-every", "4", NULL);
    command_expect(&run, work.folder, 0);
    command_close(&run);
    resumed_forget(&work, 8);

    /* Room for the weights, which have 43 KB, not for the moments. */
    run = resumed_command(&work, "run", 1);
    command_add(&run, "--save-every", "1", "--resume", NULL);
    command_wrap(&run, "trap '' XFSZ; ulimit -f 120; exec \"$@\"");
    expect_unsaved(&work, &run, "File too large");
    command_close(&run);
    ck_assert_uint_eq(resumed_newest(&work), 8);
    ck_assert(!path_exists(&work, "run/checkpoints/step-12.tmp"));
    expect_resumed(&work, &random, "going on from the state of step 8");
    resumed_close(&work);
}
END_TEST

START_TEST(a_folder_that_cannot_be_written_is_told_once)
{
    resumed_work work = resumed_open("qwen2-tied", "fp32");
    char *path = text_format("%s/run", work.folder);
    char *file = text_format("%s/run/checkpoints", work.folder);
    parity_command run = resumed_command(&work, "run", 1);

    ck_assert_int_eq(mkdir(path, 0777), 0);
    file_write(file, "", 0);
    command_add(&run, "--save-every", "1", "--resume", NULL);
    expect_unsaved(&work, &run, "Not a directory");
    command_close(&run);

    if (geteuid() == 0) {
        printf("skipped: root writes to read-only folders\n");
    } else {
        resumed_clear(&work);
        ck_assert_int_eq(mkdir(path, 0777), 0);
        ck_assert_int_eq(mkdir(file, 0555), 0);
        run = resumed_command(&work, "run", 1);
        command_add(&run, "--save-every", "1", "--resume", NULL);
        expect_unsaved(&work, &run, "Permission denied");
        command_close(&run);
    }
    free(file);
    free(path);
    resumed_close(&work);
}
END_TEST

/* As an administrator's remount does it, under a run that goes on. */
START_TEST(a_folder_turned_read_only_leaves_the_older_state_good)
{
    static const char script[] =
        "cd \"$RUN\"/checkpoints && mount --bind . . &&\n"
        "mount -o remount,bind,ro \"$RUN\"/checkpoints && cd / || exit 77\n"
        "exec \"$@\"\n";
    resumed_work work = resumed_open("qwen2-tied", "fp32");
    uint64_t random = random_seed("read-only");
    char *line = text_format("RUN='%s/run'; export RUN; exec unshare -rm sh "
                             "-c '%s' sh \"$@\"",
                             work.folder, script);
    parity_command run;

    if (system("unshare -rm true 2>/dev/null") != 0) {
        printf("skipped: nothing to remount without unshare -rm\n");
    } else {
        run = resumed_command(&work, "run", 1);
        command_add(&run, "--save-every", "4", NULL);
        command_expect(&run, work.folder, 0);
        command_close(&run);
        resumed_forget(&work, 8);

        run = resumed_command(&work, "run", 1);
        command_add(&run, "--save-every", "1", "--resume", NULL);
        command_wrap(&run, line);
        expect_unsaved(&work, &run, "Read-only file system");
        command_close(&run);
        ck_assert_uint_eq(resumed_newest(&work), 8);
        expect_resumed(&work, &random, "going on from the state of step 8");
    }
    free(line);
    resumed_close(&work);
}
END_TEST

START_TEST(a_full_disk_leaves_the_older_state_good)
{
    /* One state has 132 KB: the second does not fit beside the first. */
    static const char script[] =
        "mount -t tmpfs -o size=304k none \"$RUN\" || exit 77\n"
        "\"$@\"; code=$?\n"
        "test -e \"$RUN\"/checkpoints/step-1/state.json || exit 78\n"
        "\"$1\" export --output \"$RUN\" --step 1 --quiet || exit 79\n"
        "exit $code\n";
    resumed_work work = resumed_open("qwen2-tied", "fp32");
    char *path = text_format("%s/run", work.folder);
    parity_command run = resumed_command(&work, "run", 1);

    if (system("unshare -rm true 2>/dev/null") != 0) {
        printf("skipped: no small file system without unshare -rm\n");
    } else {
        char *line =
            text_format("RUN='%s'; export RUN; exec unshare -rm sh -c '%s' sh "
                        "\"$@\"",
                        path, script);

        ck_assert_int_eq(mkdir(path, 0777), 0);
        command_add(&run, "--save-every", "1", "--resume", NULL);
        command_wrap(&run, line);
        command_expect(&run, work.folder, 1);
        if (count_lines(run.err, "warning: the state of step 2") != 1 ||
            count_lines(run.err, "warning: ") != 1 ||
            strstr(run.err, "No space left on device (it needs") == NULL)
            command_blame(&run, "one warning must name the cause");
        free(line);
    }
    command_close(&run);
    free(path);
    resumed_close(&work);
}
END_TEST

/* ---- export ---- */

START_TEST(export_writes_the_model_of_any_state)
{
    resumed_work work = resumed_open("qwen2-tied", "fp32");
    parity_command run = resumed_command(&work, "run", 1);
    parity_command export = {.exit_code = -1};
    char *path = text_format("%s/run", work.folder);
    char *weights = text_format("%s/run/model/model.safetensors", work.folder);
    char *kept = text_format("%s/kept", work.folder);
    const char *program = run.argv[0];

    command_add(&run, "--save-every", "3", NULL);
    command_expect(&run, work.folder, 0);
    command_add(&export, program, "export", "--output", path, NULL);
    ck_assert_int_eq(rename(weights, kept), 0);
    command_expect(&export, work.folder, 0);
    ck_assert(files_equal(weights, kept)); /* the newest is the end */
    command_add(&export, "--step", "9", NULL);
    free(export.out);
    free(export.err);
    command_expect(&export, work.folder, 0);
    ck_assert(!files_equal(weights, kept));
    command_change(&export, "--step", "10");
    free(export.out);
    free(export.err);
    command_expect(&export, work.folder, 2);
    command_close(&export);
    command_close(&run);
    free(kept);
    free(weights);
    free(path);
    resumed_close(&work);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("resume");
    TCase *resume = tcase_create("resume");
    TCase *kills = tcase_create("kills"); /* scripts/kill-sweep runs it alone */
    SRunner *runner;
    int n_failed;

    tcase_set_timeout(resume, 3600);
    tcase_add_loop_test(resume,
                        going_on_from_every_step_has_the_bits_of_not_stopping,
                        0, LENGTH(settings));
    tcase_add_test(resume, more_steps_extend_a_finished_constant_run);
    tcase_add_test(resume,
                   a_finished_run_says_so_and_exports_again_what_is_missing);
    tcase_add_test(resume, a_signal_ends_the_step_saves_and_exits_0);
    tcase_add_test(resume, another_run_is_refused_with_what_differs);
    tcase_add_test(resume, a_damaged_state_is_skipped_with_a_warning);
    tcase_add_test(resume, a_failed_write_leaves_the_older_state_good);
    tcase_add_test(resume, a_folder_that_cannot_be_written_is_told_once);
    tcase_add_test(resume,
                   a_folder_turned_read_only_leaves_the_older_state_good);
    tcase_add_test(resume, a_full_disk_leaves_the_older_state_good);
    tcase_add_test(resume, export_writes_the_model_of_any_state);
    suite_add_tcase(suite, resume);
    tcase_set_timeout(kills, 3600);
    tcase_add_test(kills, a_kill_at_any_moment_loses_one_step_at_most);
    suite_add_tcase(suite, kills);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    n_failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return n_failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
