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

parity_command resumed_command(const resumed_work *work, const char *name,
                               unsigned k)
{
    parity_command command =
        command_open("train", work->fixture.model, work->fixture.data);

    command_add(&command, "--compute", work->compute, "--epochs", "3",
                "--global-batch", "2", "--seed", "1", "--warmup-steps", "3",
                "--learning-rate", "1e-3", "--weight-decay", "0.01", "--output",
                NULL);
    command_addf(&command, "%s/%s", work->folder, name);
    command_add_chunking(&command, 16, k);
    return command;
}

resumed_work resumed_open(const char *fixture, const char *compute)
{
    resumed_work work = {
        .fixture = fixture_open(fixture),
        .compute = compute,
        .folder = folder_open(),
    };
    parity_command ref = resumed_command(&work, "ref", 1);
    char *path = text_format("%s/ref/metrics.jsonl", work.folder);
    json_t *lines;
    size_t n_empty = 0;

    command_expect(&ref, work.folder, 0);
    command_close(&ref);
    lines = json_read_lines(path);
    ck_assert_uint_eq(json_array_size(lines), RESUMED_STEPS);
    for (size_t i = 0; i < RESUMED_STEPS; i++)
        n_empty +=
            json_is_null(json_object_get(json_array_get(lines, i), "loss"));
    ck_assert_uint_gt(n_empty, 0); /* steps without a target are among them */
    json_decref(lines);
    free(path);
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
    static const char *const files[] = {
        "model/model.safetensors",
        "ledger.json",
        "checkpoints/step-12/weights.safetensors",
        "checkpoints/step-12/moments.safetensors",
        "checkpoints/step-12/state.json",
    };

    for (size_t i = 0; i < LENGTH(files); i++)
        expect_same_file(work, command, files[i]);
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
    return states_scan(work, RESUMED_STEPS);
}

void resumed_forget(const resumed_work *work, unsigned step)
{
    (void)states_scan(work, step);
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
