/* sandbox.c - see sandbox.h. */
#include "tests/commands/sandbox.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

char *path_in(const char *folder, const char *name)
{
    return text_format("%s/%s", folder, name);
}

bool exists(const char *folder, const char *name)
{
    char *path = path_in(folder, name);
    struct stat info;
    bool there = lstat(path, &info) == 0;

    free(path);
    return there;
}

static void copy(const char *from, const char *to, const char *name)
{
    char *source = path_in(from, name), *target = path_in(to, name);
    size_t n;
    char *bytes = file_read(source, &n);

    file_write(target, bytes, n);
    free(bytes);
    free(target);
    free(source);
}

sandbox sandbox_open(void)
{
    sandbox box = {.folder = folder_open()};
    char *fixtures = fixtures_folder();
    char *from = path_in(fixtures, SANDBOX_FIXTURE);

    box.model = path_in(box.folder, "model");
    box.data = path_in(box.folder, "data.jsonl");
    box.run = path_in(box.folder, "run");
    ck_assert_int_eq(mkdir(box.model, 0777), 0);
    copy(from, box.model, "config.json");
    copy(from, box.model, "model.safetensors");
    copy(from, box.folder, "data.jsonl");
    free(from);
    free(fixtures);
    return box;
}

void sandbox_close(sandbox *box)
{
    free(box->run);
    free(box->data);
    free(box->model);
    folder_close(box->folder);
}

void data_set(const sandbox *box, const char *text)
{
    file_write(box->data, text, strlen(text));
}

void config_patch(const sandbox *box, const char *patch)
{
    char *path = path_in(box->model, "config.json");
    json_t *config = json_read(path);
    json_t *fields = json_loads(patch, 0, NULL);
    const char *name;
    json_t *value;

    ck_assert_msg(json_is_object(fields), "not a patch: %s", patch);
    json_object_foreach (fields, name, value) {
        if (json_is_null(value))
            json_object_del(config, name);
        else
            json_object_set(config, name, value);
    }
    ck_assert_int_eq(json_dump_file(config, path, 0), 0);
    json_decref(fields);
    json_decref(config);
    free(path);
}

/* ---- weights ---- */

weights weights_open(const char *path)
{
    weights w = {.path = strdup(path)};
    size_t n;
    char *bytes = file_read(path, &n);
    uint64_t length;

    memcpy(&length, bytes, sizeof(length));
    w.header = json_loadb(bytes + 8, (size_t)length, 0, NULL);
    ck_assert(json_is_object(w.header));
    w.n_data = n - 8 - (size_t)length;
    /* With room for a tensor more. */
    w.data = calloc(1, w.n_data + 4096);
    ck_assert_ptr_nonnull(w.data);
    memcpy(w.data, bytes + 8 + length, w.n_data);
    free(bytes);
    return w;
}

static json_t *offsets_of(const weights *w, const char *name)
{
    json_t *offsets =
        json_object_get(json_object_get(w->header, name), "data_offsets");

    ck_assert_msg(offsets != NULL, "no tensor %s", name);
    return offsets;
}

size_t weights_begin(const weights *w, const char *name)
{
    return (size_t)json_integer_value(json_array_get(offsets_of(w, name), 0));
}

size_t weights_end(const weights *w, const char *name)
{
    return (size_t)json_integer_value(json_array_get(offsets_of(w, name), 1));
}

void weights_move(weights *w, const char *name, size_t begin, size_t end)
{
    json_t *offsets = offsets_of(w, name);

    json_array_set_new(offsets, 0, json_integer((json_int_t)begin));
    json_array_set_new(offsets, 1, json_integer((json_int_t)end));
}

void weights_close(weights *w)
{
    char *text = json_dumps(w->header, JSON_COMPACT);
    uint64_t length = strlen(text);
    size_t n = 8 + (size_t)length + w->n_data;
    char *bytes = malloc(n);

    ck_assert_ptr_nonnull(bytes);
    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, text, (size_t)length);
    memcpy(bytes + 8 + length, w->data, w->n_data);
    file_write(w->path, bytes, n);
    free(bytes);
    free(text);
    free(w->data);
    json_decref(w->header);
    free(w->path);
}

/* ---- commands ---- */

parity_command box_command(const char *name, const sandbox *box)
{
    parity_command command = command_open(name, box->model, box->data);

    if (strcmp(name, "train") == 0)
        command_add(&command, "--output", box->run, NULL);
    return command;
}

void expect_error(parity_command *command, const sandbox *box, int exit_code,
                  const char *const *parts)
{
    const char *newline;

    command_expect(command, box->folder, exit_code);
    newline = strchr(command->err, '\n');
    if (strncmp(command->err, "chunkflow: error: ", 18) != 0)
        command_blame(command, "no error line");
    if (newline == NULL || newline[1] != '\0')
        command_blame(command, "not exactly one line");
    for (; *parts != NULL; parts++)
        if (strstr(command->err, *parts) == NULL)
            command_blame(command, "the error does not say \"%s\"", *parts);
    command_close(command);
}

void expect_success(parity_command *command, const sandbox *box)
{
    command_expect(command, box->folder, 0);
    if (command->err[0] != '\0')
        command_blame(command, "it must say nothing");
    command_close(command);
}
