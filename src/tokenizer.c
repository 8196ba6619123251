/* tokenizer.c - see tokenizer.h. */
#include "src/tokenizer.h"

#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "src/files.h"
#include "src/log.h"

/* ---- where it is ---- */

/* Behind the program's folder: in a checkout, and where it is installed. */
static const char *const places[] = {
    "/../scripts/tokenizer",
    "/../share/chunkflow/scripts/tokenizer",
};

/* Its path, free() it; NULL, logged: there is none. */
static char *find(void)
{
    const char *given = getenv("CHUNKFLOW_TOKENIZER");
    char program[PATH_MAX];
    ssize_t n;

    if (given != NULL)
        return cf_path_join(given, "", "");
    n = readlink("/proc/self/exe", program, sizeof(program) - 1);
    program[n > 0 ? n : 0] = '\0';
    (void)dirname(program);
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        char *path = cf_path_join(program, "", places[i]);

        if (path == NULL || access(path, X_OK) == 0)
            return path;
        free(path);
    }
    cf_log_error("there is no scripts/tokenizer beside %s: install the "
                 "scripts too, or name it in CHUNKFLOW_TOKENIZER",
                 program);
    return NULL;
}

/* ---- starting ---- */

static cf_status spawn(const char *path, char **argv, int theirs, pid_t *pid_p)
{
    posix_spawn_file_actions_t actions;
    int error = posix_spawn_file_actions_init(&actions);

    if (error != 0)
        return cf_log_no_memory("the tokenizer");
    error = posix_spawn_file_actions_adddup2(&actions, theirs, STDIN_FILENO);
    if (error == 0)
        error =
            posix_spawn_file_actions_adddup2(&actions, theirs, STDOUT_FILENO);
    if (error == 0)
        error = posix_spawn(pid_p, path, &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (error == 0)
        return CF_OK;
    cf_log_error("cannot start %s: %s%s", path, strerror(error),
                 error == E2BIG ? "; give a long prompt as --messages FILE"
                                : "; install the scripts again");
    return CF_IO;
}

static cf_status start(const char *path, const char *model, const char *prompt,
                       cf_tokenizer *t)
{
    char *argv[] = {(char *)path, "--model", (char *)model, (char *)prompt,
                    NULL};
    int ends[2];
    cf_status status;

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
        cf_log_error("cannot talk to the tokenizer: %s; end other programs",
                     strerror(errno));
        return CF_IO;
    }
    t->questions = ends[0];
    status = spawn(path, argv, ends[1], &t->pid);
    close(ends[1]);
    return status;
}

cf_status cf_tokenizer_open(const char *model, const cf_prompt *prompt,
                            cf_tokenizer *t)
{
    char *path, *word;
    int copy;
    cf_status status = CF_NO_MEMORY;

    *t = (cf_tokenizer){.questions = -1};
    path = find();
    if (path == NULL)
        return CF_IO;
    word = prompt->text != NULL
               ? cf_path_join("--prompt", "=", prompt->text)
               : cf_path_join("--messages", "=", prompt->messages);
    if (word != NULL)
        status = start(path, model, word, t);
    free(word);
    free(path);
    if (status != CF_OK)
        return status;
    copy = dup(t->questions);
    t->answers = copy >= 0 ? fdopen(copy, "r") : NULL;
    if (t->answers != NULL)
        return CF_OK;
    if (copy >= 0)
        close(copy);
    return cf_log_no_memory("the tokenizer");
}

/* ---- ending ---- */

static void questions_close(cf_tokenizer *t)
{
    if (t->questions < 0)
        return;
    (void)shutdown(t->questions, SHUT_WR);
    close(t->questions);
    t->questions = -1;
}

/* How it ended, as waitpid tells; -1: it cannot be known. */
static int wait_for_end(cf_tokenizer *t)
{
    int how = -1;

    while (t->pid > 0 && waitpid(t->pid, &how, 0) < 0) {
        if (errno != EINTR) {
            how = -1;
            break;
        }
    }
    t->pid = 0;
    return how;
}

void cf_tokenizer_close(cf_tokenizer *t)
{
    questions_close(t);
    if (t->answers != NULL)
        fclose(t->answers);
    t->answers = NULL;
    (void)wait_for_end(t);
}

/* There is no answer: what it said of that, or we do. */
static cf_status no_answer(cf_tokenizer *t)
{
    int how, code;

    questions_close(t);
    how = wait_for_end(t);
    code = how != -1 && WIFEXITED(how) ? WEXITSTATUS(how) : -1;
    if (code == 2)
        return CF_INVALID;
    if (code == 3)
        return CF_MALFORMED;
    if (code != 1)
        cf_log_error("the tokenizer ended without an answer (%s %d): run "
                     "scripts/python-env, and see whether it works",
                     how != -1 && WIFSIGNALED(how) ? "signal" : "returned",
                     how != -1 && WIFSIGNALED(how) ? WTERMSIG(how) : code);
    return CF_IO;
}

/* ---- talking ---- */

static cf_status answer(cf_tokenizer *t, json_t **value_p)
{
    char *line = NULL;
    size_t capacity = 0;
    json_t *value = NULL;

    if (getline(&line, &capacity, t->answers) >= 0)
        value = json_loads(line, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    free(line);
    if (value == NULL)
        return no_answer(t);
    *value_p = value;
    return CF_OK;
}

/* Nothing but our own process can have written something else. */
static cf_status unexpected(json_t *value)
{
    json_decref(value);
    cf_log_error("the tokenizer gave an answer of another kind: "
                 "CHUNKFLOW_TOKENIZER must name the one of this version");
    return CF_IO;
}

static cf_status ids_check(const json_t *tokens, uint32_t vocab)
{
    const json_t *token;
    size_t i;

    if (json_array_size(tokens) == 0) {
        cf_log_error("the prompt has no tokens: give it some text");
        return CF_INVALID;
    }
    json_array_foreach (tokens, i, token) {
        const json_int_t id = json_integer_value(token);

        if (json_is_integer(token) && id >= 0 && id < (json_int_t)vocab)
            continue;
        cf_log_error("token %zu of the prompt is %lld, outside the model's "
                     "vocabulary of %u: the tokenizer in the folder belongs to "
                     "another model",
                     i, (long long)id, (unsigned)vocab);
        return CF_MALFORMED;
    }
    return CF_OK;
}

cf_status cf_tokenizer_prompt(cf_tokenizer *t, uint32_t vocab,
                              json_t **tokens_p)
{
    json_t *tokens;
    cf_status status = answer(t, &tokens);

    if (status != CF_OK)
        return status;
    if (!json_is_array(tokens))
        return unexpected(tokens);
    status = ids_check(tokens, vocab);
    if (status == CF_OK)
        *tokens_p = tokens;
    else
        json_decref(tokens);
    return status;
}

static cf_status text_answer(cf_tokenizer *t, json_t **text_p)
{
    json_t *text;
    cf_status status = answer(t, &text);

    if (status != CF_OK)
        return status;
    if (!json_is_string(text))
        return unexpected(text);
    *text_p = text;
    return CF_OK;
}

cf_status cf_tokenizer_text(cf_tokenizer *t, uint32_t token, json_t **text_p)
{
    char line[16];
    const size_t n =
        (size_t)snprintf(line, sizeof(line), "%u\n", (unsigned)token);

    /* Few bytes: they are sent as a whole or not at all. */
    if (send(t->questions, line, n, MSG_NOSIGNAL) != (ssize_t)n)
        return no_answer(t);
    return text_answer(t, text_p);
}

cf_status cf_tokenizer_end(cf_tokenizer *t, json_t **text_p)
{
    questions_close(t);
    return text_answer(t, text_p);
}
