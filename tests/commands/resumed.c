/* resumed.c - see resumed.h. */
#include "resumed.h"

#include <check.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const time_keys[] = {"step_s", "tokens_per_s", "peak_bytes",
                                        "recomputed_chunks"};

/* A file of sequences that are none of the fixture's; its ids are small. */
static void second_data_write(const resumed_work *work)
{
    char *path = text_format("%s/second.jsonl", work->folder);
    FILE *file = fopen(path, "w");

    ck_assert_ptr_nonnull(file);
    for (unsigned i = 0; i < 5; i++) {
        (void)fprintf(file, "{\"input_ids\":[%u", i);
        for (unsigned t = 1; t < 4 + 9 * i; t++)
            (void)fprintf(file, ",%u", (7 * i + 3 * t) % 50);
        (void)fprintf(file, "]}\n");
    }
    ck_assert_int_eq(fclose(file), 0);
    free(path);
}

parity_command resumed_command(const resumed_work *work, const char *name,
                               unsigned k)
{
    const resumed_setting *setting = &work->setting;
    parity_command command =
        command_open("train", work->fixture.model, work->fixture.data);

    command_add(&command, "--compute", setting->compute, "--epochs", "3",
                "--seed", "1", "--warmup-steps", "3", "--learning-rate", "1e-3",
                "--weight-decay", "0.01", "--output", NULL);
    command_addf(&command, "%s/%s", work->folder, name);
    for (size_t i = 0; setting->words[i] != NULL; i++)
        command_add(&command, setting->words[i], NULL);
    if (setting->mixes) {
        command_add(&command, "--data-weights", "2,1", "--data", NULL);
        command_addf(&command, "%s/second.jsonl", work->folder);
    }
    if (setting->evaluates)
        command_add(&command, "--eval-data", work->fixture.data, "--keep-best",
                    NULL);
    command_add_chunking(&command, 16, k);
    return command;
}

/* Lines of steps in ref's metrics.jsonl; those without a target too. */
static unsigned count_steps(const resumed_work *work, size_t *n_empty_p)
{
    char *path = text_format("%s/ref/metrics.jsonl", work->folder);
    json_t *lines = json_read_lines(path);
    unsigned n_steps = 0;
    size_t n_empty = 0;

    for (size_t i = 0; i < json_array_size(lines); i++) {
        const json_t *line = json_array_get(lines, i);

        n_steps += json_object_get(line, "eval") == NULL;
        n_empty += json_is_null(json_object_get(line, "loss"));
    }
    json_decref(lines);
    free(path);
    *n_empty_p = n_empty;
    return n_steps;
}

static resumed_work work_open(const resumed_setting *setting, size_t *n_empty_p)
{
    resumed_work work = {
        .setting = *setting,
        .fixture = fixture_open(setting->fixture),
        .folder = folder_open(),
    };
    parity_command ref = resumed_command(&work, "ref", 1);

    second_data_write(&work);
    command_expect(&ref, work.folder, 0);
    command_close(&ref);
    work.n_steps = count_steps(&work, n_empty_p);
    return work;
}

resumed_work resumed_open_as(const resumed_setting *setting)
{
    size_t n_empty;

    return work_open(setting, &n_empty);
}

resumed_work resumed_open(const char *fixture, const char *compute)
{
    const resumed_setting setting = {
        fixture, compute, {"--global-batch", "2"}, false, false};
    size_t n_empty;
    resumed_work work = work_open(&setting, &n_empty);

    ck_assert_uint_eq(work.n_steps, RESUMED_STEPS);
    ck_assert_uint_gt(n_empty, 0);
    return work;
}

void resumed_close(resumed_work *work)
{
    fixture_close(&work->fixture);
    folder_close(work->folder);
}

/* ---- equal ---- */

static void expect_same_file(const resumed_work *work,
                             const parity_command *command, const char *name)
{
    char *a = text_format("%s/ref/%s", work->folder, name);
    char *b = text_format("%s/run/%s", work->folder, name);

    if (!files_equal(a, b))
        command_blame(command, "%s is not that of the uninterrupted run", name);
    free(a);
    free(b);
}

static void expect_same_lines(const resumed_work *work,
                              const parity_command *command)
{
    char *a_path = text_format("%s/ref/metrics.jsonl", work->folder);
    char *b_path = text_format("%s/run/metrics.jsonl", work->folder);
    json_t *a = json_read_lines(a_path);
    json_t *b = json_read_lines(b_path);

    if (json_array_size(a) != json_array_size(b))
        command_blame(command, "metrics.jsonl has %zu lines, not %zu",
                      json_array_size(b), json_array_size(a));
    for (size_t i = 0; i < json_array_size(a); i++) {
        for (size_t k = 0; k < LENGTH(time_keys); k++) {
            (void)json_object_del(json_array_get(a, i), time_keys[k]);
            (void)json_object_del(json_array_get(b, i), time_keys[k]);
        }
        if (!json_equal(json_array_get(a, i), json_array_get(b, i)))
            command_blame(command, "line %zu of metrics.jsonl differs", i + 1);
    }
    json_decref(a);
    json_decref(b);
    free(a_path);
    free(b_path);
}

void expect_equal_run(const resumed_work *work, const parity_command *command)
{
    static const char *const states[] = {"weights.safetensors",
                                         "moments.safetensors", "state.json"};

    expect_same_file(work, command, "model/model.safetensors");
    expect_same_file(work, command, "ledger.json");
    if (work->setting.evaluates)
        expect_same_file(work, command,
                         path_exists(work, "ref/adapter")
                             ? "best/adapter_model.safetensors"
                             : "best/model.safetensors");
    for (size_t i = 0; i < LENGTH(states); i++) {
        char *name =
            text_format("checkpoints/step-%u/%s", work->n_steps, states[i]);

        expect_same_file(work, command, name);
        free(name);
    }
    expect_same_lines(work, command);
}

/* ---- the folder run ---- */

size_t resumed_lines(const resumed_work *work)
{
    char *path = text_format("%s/run/metrics.jsonl", work->folder);
    size_t n = 0;

    if (access(path, F_OK) == 0) {
        char *text = file_read(path, NULL);

        for (const char *at = text; (at = strchr(at, '\n')) != NULL; at++)
            n++;
        free(text);
    }
    free(path);
    return n;
}

/* The largest step of run/checkpoints; forgets those behind `last`. */
static unsigned states_scan(const resumed_work *work, unsigned last)
{
    char *path = text_format("%s/run/checkpoints", work->folder);
    DIR *dir = opendir(path);
    const struct dirent *entry;
    unsigned newest = 0;

    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        unsigned step;
        char rest;

        if (sscanf(entry->d_name, "step-%u%c", &step, &rest) != 1)
            continue;
        if (step > last)
            folder_close(text_format("%s/%s", path, entry->d_name));
        else if (step > newest)
            newest = step;
    }
    if (dir != NULL)
        closedir(dir);
    free(path);
    return newest;
}

unsigned resumed_newest(const resumed_work *work)
{
    return states_scan(work, work->n_steps);
}

void resumed_forget(const resumed_work *work, unsigned step)
{
    (void)states_scan(work, step);
}

void resumed_cut_metrics(const resumed_work *work, unsigned step)
{
    char *path = text_format("%s/run/metrics.jsonl", work->folder);
    char *wanted = text_format("{\"step\": %u, \"loss\"", step);
    char *text = file_read(path, NULL);
    char *line = strstr(text, wanted);
    size_t n;

    ck_assert_ptr_nonnull(line);
    n = (size_t)(strchr(line, '\n') + 1 - text);
    memmove(text + n, line, 9); /* only a beginning */
    file_write(path, text, n + 9);
    free(text);
    free(wanted);
    free(path);
}

void resumed_clear(const resumed_work *work)
{
    char *path = text_format("%s/run", work->folder);

    if (access(path, F_OK) == 0)
        folder_close(path);
    else
        free(path);
}

bool path_exists(const resumed_work *work, const char *name)
{
    char *path = text_format("%s/%s", work->folder, name);
    bool exists = access(path, F_OK) == 0;

    free(path);
    return exists;
}
