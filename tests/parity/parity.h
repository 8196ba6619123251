/* parity.h - fixtures, commands and files of the parity tests.
 *
 * The program under test is a black box: it is started with fork and exec, no
 * shell in between, and judged by its exit code, its standard output and the
 * files it leaves.  Helpers end the test (ck_abort_msg) when the ground they
 * stand on is missing: a fixture, a file, a field.
 */
#ifndef PARITY_H
#define PARITY_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* One folder under tests/parity/fixtures; README.md there says what is in it.
 * Everything is owned by the fixture. */
typedef struct parity_fixture {
    const char *name; /* static text */
    char *model;      /* the folder; config.json and weights are in it */
    char *data;
    char *gradients;
    json_t *expected;
} parity_fixture;

extern const char *const fixture_names[];
extern const int n_fixtures;

parity_fixture fixture_open(const char *name);
void fixture_close(parity_fixture *fixture);
/* The folder that holds the fixtures, for the caller to free. */
char *fixtures_folder(void);
/* vocab_size of the fixture's config.json. */
uint32_t fixture_vocab_size(const parity_fixture *fixture);

/* A command line under construction, and what came of running it. */
typedef struct parity_command {
    char *argv[80]; /* NULL at the end */
    size_t n_args;
    int exit_code; /* -1 when a signal ended it */
    char *out;     /* standard output */
    char *err;     /* standard error */
} parity_command;

/* chunkflow NAME --model … --data …, quiet and on one thread. */
parity_command command_open(const char *name, const char *model,
                            const char *data);
/* Let it say what it does, after all. */
void command_be_loud(parity_command *command);
/* Add words up to the NULL that ends the list; add one formatted word. */
void command_add(parity_command *command, ...) __attribute__((sentinel));
void command_addf(parity_command *command, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Add the strings of a JSON array. */
void command_add_array(parity_command *command, const json_t *words);
/* Run it beside the test; its output passes through files in folder. */
pid_t command_start(const parity_command *command, const char *folder);
void command_wait(parity_command *command, const char *folder, pid_t child);
/* Run it to its end. */
void command_run(parity_command *command, const char *folder);
/* The same, and the test fails, showing command line and output, unless it
 * ends with exit_code. */
void command_expect(parity_command *command, const char *folder, int exit_code);
/* End the test: the command line, its output and the reason. */
void command_blame(const parity_command *command, const char *format, ...)
    __attribute__((format(printf, 2, 3), noreturn));
void command_close(parity_command *command);

/* A temporary folder; closing removes it with everything in it.  A test that
 * fails leaves its own behind, to look into. */
char *folder_open(void);
void folder_close(char *folder);

/* snprintf into fresh memory. */
char *text_format(const char *format, ...)
    __attribute__((format(printf, 1, 2)));
/* A whole file, with a zero byte behind it. */
char *file_read(const char *path, size_t *size_p);
void file_write(const char *path, const void *bytes, size_t size);
bool files_equal(const char *a, const char *b);

json_t *json_read(const char *path);
/* The JSON lines of a file, as an array. */
json_t *json_read_lines(const char *path);
/* A number inside nested objects: json_number_at(o, "batch", "loss", NULL). */
double json_number_at(const json_t *object, ...) __attribute__((sentinel));

/* The ChunkSizes and Ks that the tests go through. */
extern const unsigned chunk_sizes[4];
extern const unsigned retained_chunks[3];

void command_add_chunking(parity_command *command, unsigned chunk_size,
                          unsigned k);
/* Fails unless verify printed its verdict (INTERFACE section 6) on a line of
 * its own, "verify: chunked == OTHER (max rel 6.1e-15, fp64)", with this sign
 * and with a number that this tolerance gives this sign. */
void expect_verdict(const parity_command *command, const char *sign,
                    const char *other, const char *compute, double tolerance);
/* train with the options of the fixture's curve, into folder/run. */
parity_command train_open(const parity_fixture *fixture, const char *folder,
                          const char *compute, unsigned chunk_size, unsigned k);
/* metrics.jsonl of folder/run, as an array. */
json_t *curve_read(const char *folder);
/* What eval --json says of the fixture's data with the weights of model. */
json_t *eval_run(const parity_fixture *fixture, const char *folder,
                 const char *model, const char *compute, unsigned chunk_size);
/* Fails unless eval's loss is within rel of wanted; 0 asks for the bits. */
void expect_loss(const parity_fixture *fixture, const json_t *result,
                 double wanted, double rel);
bool is_close(double a, double b, double rel);

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

/* The seed of a random test, CF_TEST_SEED or the clock; printed. */
uint64_t random_seed(const char *test);
/* A number in [0, limit). */
uint32_t random_below(uint64_t *state, uint32_t limit);

#endif
