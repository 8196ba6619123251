/* sandbox.h - a model, its data and a run folder that a test may damage.
 *
 * A copy of a parity fixture in a temporary folder, and the edits that turn it
 * into bad input: config.json by a patch, the weights by their header or bytes.
 */
#ifndef SANDBOX_H
#define SANDBOX_H

#include "tests/parity/parity.h"

typedef struct sandbox {
    char *folder; /* holds all of these; logs of the commands too */
    char *model;
    char *data; /* a .jsonl file */
    char *run;  /* not there yet */
} sandbox;

/* Small enough for every test: two layers, hidden 24, vocabulary 53. */
#define SANDBOX_FIXTURE "llama-mha"
enum {
    SANDBOX_HIDDEN = 24
};

sandbox sandbox_open(void);
void sandbox_close(sandbox *box);

/* Another content for the data. */
void data_set(const sandbox *box, const char *text);

/* Set the fields of a patch, a JSON object, in config.json; null removes one. */
void config_patch(const sandbox *box, const char *patch);

/* model.safetensors, open for edits. */
typedef struct weights {
    char *path;
    json_t *header;
    char *data;
    size_t n_data;
} weights;

weights weights_open(const char *path);
/* Where the bytes of a tensor begin and end in the data. */
size_t weights_begin(const weights *w, const char *name);
size_t weights_end(const weights *w, const char *name);
void weights_move(weights *w, const char *name, size_t begin, size_t end);
/* Write the file again. */
void weights_close(weights *w);

/* chunkflow train, eval or verify of the sandbox; train writes to box->run. */
parity_command box_command(const char *name, const sandbox *box);

/* Run it.  Fails unless it ends with exit_code and said exactly one line on
 * standard error, an error that has all of the parts in it, up to a NULL. */
void expect_error(parity_command *command, const sandbox *box, int exit_code,
                  const char *const *parts);

/* Run it: exit code 0 and nothing on standard error. */
void expect_success(parity_command *command, const sandbox *box);

bool exists(const char *folder, const char *name);
char *path_in(const char *folder, const char *name);

#endif
