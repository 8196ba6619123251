/* fuzz_config.c - any bytes as a --config file: refused, or options that are
 * written and read back the same.
 *
 * The first byte chooses the command and what stands on the command line.
 */
#include "src/options.h"

#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

/* Bit of the first byte, and what it adds. */
static const char *const ON_LINE[] = {"--model=m",    "--data=d",
                                      "--output=o",   "--chunk-size=4K",
                                      "--no-shuffle", "--learning-rate=1e-3"};

enum {
    N_ON_LINE = sizeof(ON_LINE) / sizeof(ON_LINE[0]),
    WORDS_MAX = 3 + N_ON_LINE
};

static cf_status open_options(const char *command, const char *path,
                              unsigned on_line, size_t n, cf_options *options_p)
{
    char *words[WORDS_MAX + 1] = {(char *)(uintptr_t) "chunkflow",
                                  (char *)(uintptr_t)command};
    int n_words = 2;
    cf_options_outcome outcome;
    char *config;
    cf_status status;

    fuzz_require(asprintf(&config, "--config=%s", path) > 0, "there is memory");
    words[n_words++] = config;
    for (unsigned i = 0; i < N_ON_LINE; i++) {
        if ((on_line >> i & 1) != 0)
            words[n_words++] = (char *)(uintptr_t)ON_LINE[i];
    }
    fuzz_call_begin(n);
    status = cf_options_open(n_words, words, options_p, &outcome);
    fuzz_call_end(status);
    fuzz_require(status != CF_OK || outcome == CF_OPTIONS_RUN,
                 "a file shows no help");
    free(config);
    return status;
}

static char *text_of(const cf_options *options, size_t *n_p)
{
    char *text = NULL;
    FILE *file = open_memstream(&text, n_p);

    fuzz_require(file != NULL && cf_options_write(options, file) == CF_OK &&
                     fclose(file) == 0,
                 "options can be written");
    return text;
}

static void check_round_trip(const char *command, const cf_options *options)
{
    cf_options again;
    size_t n, n_again;
    char *text = text_of(options, &n);
    char *path = fuzz_file_write("written.yaml", text, n);
    char *text_again;

    fuzz_require(open_options(command, path, 0, n, &again) == CF_OK,
                 "what was written can be read");
    text_again = text_of(&again, &n_again);
    fuzz_require(n == n_again && memcmp(text, text_again, n) == 0,
                 "what was written is read back the same");
    cf_options_close(&again);
    free(text);
    free(text_again);
    free(path);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    static const char *const commands[] = {"train", "eval", "verify"};
    fuzz_input input = {bytes, n};
    const uint8_t how = fuzz_read_u8(&input);
    const char *command = commands[how >> 6 == 3 ? 0 : how >> 6];
    char *path = fuzz_file_write("run.yaml", input.at, input.n);
    cf_options options;

    if (open_options(command, path, how & 63, n, &options) == CF_OK) {
        check_round_trip(command, &options);
        cf_options_close(&options);
    }
    free(path);
    return 0;
}
