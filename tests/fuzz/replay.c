/* replay.c - feed inputs that are files to a fuzz target, without a fuzzer.
 *
 *     tests/fuzz/replay_NAME [FILE|FOLDER]...     corpus/NAME when left out
 *
 * The last input named on standard output is the one that ended the program.
 */
#include "tests/fuzz/fuzz.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    SECONDS_MAX = 60 /* of one input: even on a busy machine a hang */
};

/* Exactly as large as the file: a read past its end is seen. */
static void replay_file(const char *path)
{
    FILE *file = fopen(path, "r");
    uint8_t *bytes;
    long n = -1;

    if (file != NULL && fseek(file, 0, SEEK_END) == 0)
        n = ftell(file);
    fuzz_require(n >= 0, "the input can be opened");
    rewind(file);
    bytes = malloc(n > 0 ? (size_t)n : 1);
    fuzz_require(bytes != NULL && fread(bytes, 1, (size_t)n, file) == (size_t)n,
                 "the input can be read");
    (void)fclose(file);

    (void)printf("%s\n", path);
    (void)fflush(stdout);
    (void)alarm(SECONDS_MAX);
    (void)LLVMFuzzerTestOneInput(bytes, (size_t)n);
    (void)alarm(0);
    free(bytes);
}

static int is_visible(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

/* Returns how many inputs there were. */
static size_t replay(const char *path)
{
    struct dirent **entries;
    int n = scandir(path, &entries, is_visible, alphasort);

    if (n < 0) {
        replay_file(path);
        return 1;
    }
    for (int i = 0; i < n; i++) {
        char *file;

        fuzz_require(asprintf(&file, "%s/%s", path, entries[i]->d_name) > 0,
                     "there is memory");
        replay_file(file);
        free(file);
        free(entries[i]);
    }
    free(entries);
    return (size_t)n;
}

int main(int argc, char **argv)
{
    size_t n = 0;

    if (argc < 2)
        n = replay(FUZZ_CORPORA FUZZ_TARGET);
    for (int i = 1; i < argc; i++)
        n += replay(argv[i]);
    fuzz_require(n > 0, "there is an input");
    (void)printf("%zu inputs replayed\n", n);
    return EXIT_SUCCESS;
}
