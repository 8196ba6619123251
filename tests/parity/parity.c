/* parity.c - fixtures, commands and files of the parity test (parity.h). */
#include "parity.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

const char *const fixture_names[] = {
    "llama-bias",
    "llama-gqa-llama3",
    "llama-linear-sharded",
    "llama-mha",
    "llama-yarn",
    "qwen2-tied",
    "qwen3-mqa-new-spelling",
    "qwen3-mqa-old-spelling",
    "qwen3-untied",
};
const int n_fixtures = sizeof(fixture_names) / sizeof(fixture_names[0]);

const unsigned chunk_sizes[] = {7, 16, 64, 512};
const unsigned retained_chunks[] = {1, 2, 99};

/* --- text and files ------------------------------------------------------ */

static char *text_vformat(const char *format, va_list arguments)
{
    char *text = NULL;

    if (vasprintf(&text, format, arguments) < 0)
        ck_abort_msg("out of memory");
    return text;
}

char *text_format(const char *format, ...)
{
    va_list arguments;
    char *text;

    va_start(arguments, format);
    text = text_vformat(format, arguments);
    va_end(arguments);
    return text;
}

char *file_read(const char *path, size_t *size_p)
{
    FILE *file = fopen(path, "rb");
    char *bytes;
    long size;

    if (file == NULL || fseek(file, 0, SEEK_END) != 0)
        ck_abort_msg("%s: %s", path, strerror(errno));
    size = ftell(file);
    rewind(file);
    bytes = malloc((size_t)size + 1);
    if (bytes == NULL || fread(bytes, 1, (size_t)size, file) != (size_t)size)
        ck_abort_msg("%s: cannot read", path);
    bytes[size] = '\0';
    fclose(file);
    if (size_p != NULL)
        *size_p = (size_t)size;
    return bytes;
}

void file_write(const char *path, const void *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");

    if (file == NULL || fwrite(bytes, 1, size, file) != size ||
        fclose(file) != 0)
        ck_abort_msg("%s: cannot write", path);
}

bool files_equal(const char *a, const char *b)
{
    size_t size_a;
    size_t size_b;
    char *bytes_a = file_read(a, &size_a);
    char *bytes_b = file_read(b, &size_b);
    bool equal = size_a == size_b && memcmp(bytes_a, bytes_b, size_a) == 0;

    free(bytes_a);
    free(bytes_b);
    return equal;
}

char *folder_open(void)
{
    const char *top = getenv("TMPDIR");
    char *folder =
        text_format("%s/chunkflow-parity-XXXXXX", top != NULL ? top : "/tmp");

    if (mkdtemp(folder) == NULL)
        ck_abort_msg("%s: %s", folder, strerror(errno));
    return folder;
}

static int entry_remove(const char *path, const struct stat *status, int kind,
                        struct FTW *walk)
{
    (void)status;
    (void)kind;
    (void)walk;
    return remove(path);
}

void folder_close(char *folder)
{
    if (nftw(folder, entry_remove, 16, FTW_DEPTH | FTW_PHYS) != 0)
        ck_abort_msg("%s: cannot remove", folder);
    free(folder);
}

/* --- JSON ---------------------------------------------------------------- */

json_t *json_read(const char *path)
{
    json_error_t error;
    json_t *json = json_load_file(path, 0, &error);

    if (json == NULL)
        ck_abort_msg("%s:%d: %s", path, error.line, error.text);
    return json;
}

json_t *json_read_lines(const char *path)
{
    char *text = file_read(path, NULL);
    json_t *lines = json_array();
    char *rest = NULL;

    for (char *line = strtok_r(text, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        json_error_t error;
        json_t *json = json_loads(line, 0, &error);

        if (json == NULL)
            ck_abort_msg("%s: line %zu: %s", path, json_array_size(lines) + 1,
                         error.text);
        json_array_append_new(lines, json);
    }
    free(text);
    return lines;
}

double json_number_at(const json_t *object, ...)
{
    const json_t *json = object;
    va_list keys;

    va_start(keys, object);
    for (const char *key = va_arg(keys, const char *); key != NULL;
         key = va_arg(keys, const char *)) {
        json = json_object_get(json, key);
        if (json == NULL)
            ck_abort_msg("no field \"%s\" in %s", key,
                         json_dumps(object, JSON_COMPACT));
    }
    va_end(keys);
    if (!json_is_number(json))
        ck_abort_msg("not a number: %s",
                     json_dumps(json, JSON_COMPACT | JSON_ENCODE_ANY));
    return json_number_value(json);
}

/* --- fixtures ------------------------------------------------------------ */

char *fixtures_folder(void)
{
    const char *srcdir = getenv("srcdir"); /* set by Automake's harness */

    return text_format("%s/tests/parity/fixtures",
                       srcdir != NULL ? srcdir : ".");
}

parity_fixture fixture_open(const char *name)
{
    char *top = fixtures_folder();
    parity_fixture fixture = {.name = name};
    char *expected;

    fixture.model = text_format("%s/%s", top, name);
    fixture.data = text_format("%s/data.jsonl", fixture.model);
    fixture.gradients = text_format("%s/gradients.safetensors", fixture.model);
    expected = text_format("%s/expected.json", fixture.model);
    fixture.expected = json_read(expected);
    free(expected);
    free(top);
    return fixture;
}

void fixture_close(parity_fixture *fixture)
{
    json_decref(fixture->expected);
    free(fixture->gradients);
    free(fixture->data);
    free(fixture->model);
}

uint32_t fixture_vocab_size(const parity_fixture *fixture)
{
    char *path = text_format("%s/config.json", fixture->model);
    json_t *config = json_read(path);
    double vocab_size = json_number_at(config, "vocab_size", NULL);

    json_decref(config);
    free(path);
    return (uint32_t)vocab_size;
}

/* --- commands ------------------------------------------------------------ */

static void word_add(parity_command *command, char *word)
{
    size_t capacity = sizeof(command->argv) / sizeof(command->argv[0]);

    if (word == NULL || command->n_args + 1 >= capacity)
        ck_abort_msg("no room for one more argument");
    command->argv[command->n_args++] = word;
}

void command_be_loud(parity_command *command)
{
    for (size_t i = 0; i < command->n_args; i++)
        if (strcmp(command->argv[i], "--quiet") == 0) {
            free(command->argv[i]);
            command->argv[i] = text_format("--quiet=false");
        }
}

void command_add(parity_command *command, ...)
{
    va_list words;

    va_start(words, command);
    for (const char *word = va_arg(words, const char *); word != NULL;
         word = va_arg(words, const char *))
        word_add(command, strdup(word));
    va_end(words);
}

void command_addf(parity_command *command, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    word_add(command, text_vformat(format, arguments));
    va_end(arguments);
}

void command_add_array(parity_command *command, const json_t *words)
{
    ck_assert(json_is_array(words));
    for (size_t i = 0; i < json_array_size(words); i++)
        command_add(command, json_string_value(json_array_get(words, i)), NULL);
}

parity_command command_open(const char *name, const char *model,
                            const char *data)
{
    const char *program = getenv("CHUNKFLOW");
    parity_command command = {.exit_code = -1};

    command_add(&command, program != NULL ? program : "./src/chunkflow", name,
                "--model", model, "--data", data, "--threads", "1", "--quiet",
                NULL);
    return command;
}

/* In the child: never returns. */
static void child_exec(const parity_command *command, const char *out,
                       const char *err)
{
    int null_fd = open("/dev/null", O_RDONLY);
    int out_fd = open(out, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    int err_fd = open(err, O_WRONLY | O_CREAT | O_TRUNC, 0600);

    if (dup2(null_fd, STDIN_FILENO) < 0 || dup2(out_fd, STDOUT_FILENO) < 0 ||
        dup2(err_fd, STDERR_FILENO) < 0)
        _exit(126);
    execv(command->argv[0], command->argv);
    dprintf(STDERR_FILENO, "%s: %s\n", command->argv[0], strerror(errno));
    _exit(127);
}

pid_t command_start(const parity_command *command, const char *folder)
{
    char *out = text_format("%s/standard-output", folder);
    char *err = text_format("%s/standard-error", folder);
    pid_t child = fork();

    if (child < 0)
        ck_abort_msg("fork: %s", strerror(errno));
    if (child == 0)
        child_exec(command, out, err);
    free(out);
    free(err);
    return child;
}

void command_wait(parity_command *command, const char *folder, pid_t child)
{
    char *out = text_format("%s/standard-output", folder);
    char *err = text_format("%s/standard-error", folder);
    int status = 0;

    while (waitpid(child, &status, 0) < 0) {
        if (errno != EINTR)
            ck_abort_msg("waitpid: %s", strerror(errno));
    }
    command->exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    command->out = file_read(out, NULL);
    command->err = file_read(err, NULL);
    free(out);
    free(err);
}

void command_run(parity_command *command, const char *folder)
{
    command_wait(command, folder, command_start(command, folder));
}

void command_blame(const parity_command *command, const char *format, ...)
{
    va_list arguments;
    char *reason;
    char *line = strdup("");

    va_start(arguments, format);
    reason = text_vformat(format, arguments);
    va_end(arguments);
    for (size_t i = 0; i < command->n_args; i++)
        line = text_format("%s %s", line, command->argv[i]);
    ck_abort_msg("%s\n    command:%s\n    exit code: %d\n"
                 "    output: %s\n    errors: %s",
                 reason, line, command->exit_code,
                 command->out != NULL ? command->out : "",
                 command->err != NULL ? command->err : "");
}

void command_expect(parity_command *command, const char *folder, int exit_code)
{
    command_run(command, folder);
    if (command->exit_code != exit_code)
        command_blame(command, "the exit code must be %d", exit_code);
}

void command_close(parity_command *command)
{
    for (size_t i = 0; i < command->n_args; i++)
        free(command->argv[i]);
    free(command->out);
    free(command->err);
}

/* --- the three commands ------------------------------------------------- */

bool is_close(double a, double b, double rel)
{
    return fabs(a - b) <= rel * fabs(b);
}

void command_add_chunking(parity_command *command, unsigned chunk_size,
                          unsigned k)
{
    command_add(command, "--chunk-size", NULL);
    command_addf(command, "%u", chunk_size);
    command_add(command, "--retain-chunks", NULL);
    command_addf(command, "%u", k);
}

void expect_verdict(const parity_command *command, const char *sign,
                    const char *other, const char *compute, double tolerance)
{
    char *start = text_format("verify: chunked %s %s (max rel ", sign, other);
    char *end = text_format(", %s)", compute);
    const char *line = strstr(command->out, start);
    char *rest = NULL;
    double worst;

    if (line == NULL || (line != command->out && line[-1] != '\n'))
        command_blame(command, "no line starts with: %s", start);
    worst = strtod(line + strlen(start), &rest);
    if (strncmp(rest, end, strlen(end)) != 0 || rest[strlen(end)] != '\n')
        command_blame(command, "the verdict must end with: %s", end);
    if ((worst <= tolerance) != (strcmp(sign, "==") == 0))
        command_blame(command, "max rel %g does not fit \"%s\"", worst, sign);
    free(start);
    free(end);
}

parity_command train_open(const parity_fixture *fixture, const char *folder,
                          const char *compute, unsigned chunk_size, unsigned k)
{
    parity_command command =
        command_open("train", fixture->model, fixture->data);

    command_add_array(&command,
                      json_object_get(fixture->expected, "train_options"));
    command_add(&command, "--compute", compute, "--overwrite", "--output",
                NULL);
    command_addf(&command, "%s/run", folder);
    command_add_chunking(&command, chunk_size, k);
    return command;
}

json_t *curve_read(const char *folder)
{
    char *path = text_format("%s/run/metrics.jsonl", folder);
    json_t *curve = json_read_lines(path);

    free(path);
    return curve;
}

json_t *eval_run(const parity_fixture *fixture, const char *folder,
                 const char *model, const char *compute, unsigned chunk_size)
{
    parity_command eval = command_open("eval", model, fixture->data);
    json_error_t error;
    json_t *result;

    command_add(&eval, "--json", "--compute", compute, "--chunk-size", NULL);
    command_addf(&eval, "%u", chunk_size);
    command_expect(&eval, folder, 0);
    result = json_loads(eval.out, 0, &error);
    if (result == NULL)
        command_blame(&eval, "not one JSON object: %s", error.text);
    command_close(&eval);
    return result;
}

void expect_loss(const parity_fixture *fixture, const json_t *result,
                 double wanted, double rel)
{
    double loss = json_number_at(result, "loss", NULL);

    ck_assert_msg(is_close(loss, wanted, rel), "%s: loss is %.17g, not %.17g",
                  fixture->name, loss, wanted);
}

/* --- random numbers ------------------------------------------------------ */

uint64_t random_seed(const char *test)
{
    const char *given = getenv("CF_TEST_SEED");
    uint64_t seed =
        given != NULL ? strtoull(given, NULL, 0) : (uint64_t)time(NULL);

    printf("%s: CF_TEST_SEED=%" PRIu64 "\n", test, seed);
    fflush(stdout);
    return seed;
}

/* splitmix64. */
uint32_t random_below(uint64_t *state, uint32_t limit)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (uint32_t)((z ^ (z >> 31)) % limit);
}
