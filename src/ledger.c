/* ledger.c - every sequence and token of the input, accounted for (ledger.h).
 *
 * (1) read = trained + masked + skipped, in sequences and in tokens: each
 *     sequence is counted as read and as exactly one of the three.
 */
#include "src/ledger.h"

#include "src/file_write.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void count(cf_ledger_count *place, uint32_t n_tok)
{
    place->sequences++;
    place->tokens += n_tok;
}

void cf_ledger_add(cf_ledger *ledger, uint32_t n_tok, uint32_t n_targets,
                   uint32_t max_length_tok)
{
    count(&ledger->read, n_tok);
    if (max_length_tok != 0 && n_tok > max_length_tok) {
        count(&ledger->skipped_max_length, n_tok);
    } else if (n_targets != 0) {
        count(&ledger->trained, n_tok);
        ledger->trained_target_tokens += n_targets;
    } else {
        count(&ledger->masked, n_tok);
    }
}

size_t cf_ledger_format(const cf_ledger *ledger, char *buf, size_t size)
{
    const cf_ledger_count *skipped = &ledger->skipped_max_length;

    return (size_t)snprintf(
        buf, size,
        "read %" PRIu64 " sequences, %" PRIu64 " tokens = trained %" PRIu64
        " (%" PRIu64 ") + masked %" PRIu64 " (%" PRIu64 ") + skipped %" PRIu64
        " (%" PRIu64 ")%s",
        ledger->read.sequences, ledger->read.tokens, ledger->trained.sequences,
        ledger->trained.tokens, ledger->masked.sequences, ledger->masked.tokens,
        skipped->sequences, skipped->tokens,
        skipped->sequences != 0 ? ", longer than --max-length" : "");
}

static cf_status fill(FILE *file, const void *content)
{
    const cf_ledger *ledger = content;
    const cf_ledger_count *skipped = &ledger->skipped_max_length;

    (void)fprintf(file,
                  "{\n  \"read\": {\"sequences\": %" PRIu64
                  ", \"tokens\": %" PRIu64 "},\n",
                  ledger->read.sequences, ledger->read.tokens);
    (void)fprintf(file,
                  "  \"trained\": {\"sequences\": %" PRIu64
                  ", \"tokens\": %" PRIu64 ", \"target_tokens\": %" PRIu64
                  "},\n",
                  ledger->trained.sequences, ledger->trained.tokens,
                  ledger->trained_target_tokens);
    (void)fprintf(file,
                  "  \"masked\": {\"sequences\": %" PRIu64
                  ", \"tokens\": %" PRIu64 "},\n",
                  ledger->masked.sequences, ledger->masked.tokens);
    (void)fprintf(file,
                  "  \"skipped\": {\"sequences\": %" PRIu64
                  ", \"tokens\": %" PRIu64 ", \"reasons\": {",
                  skipped->sequences, skipped->tokens);
    if (skipped->sequences != 0)
        (void)fprintf(file,
                      "\"max_length\": {\"sequences\": %" PRIu64
                      ", \"tokens\": %" PRIu64 "}",
                      skipped->sequences, skipped->tokens);
    (void)fputs("}}\n}\n", file);
    return ferror(file) ? CF_IO : CF_OK;
}

cf_status cf_ledger_write(const cf_ledger *ledger, const char *path)
{
    return cf_file_write(path, fill, ledger);
}

static bool file_holds(const char *path, const char *text, size_t n)
{
    FILE *file = fopen(path, "re");
    char *found = file != NULL ? malloc(n + 1) : NULL;
    bool same = found != NULL && fread(found, 1, n + 1, file) == n &&
                memcmp(found, text, n) == 0;

    free(found);
    if (file != NULL)
        fclose(file);
    return same;
}

bool cf_ledger_is_written(const cf_ledger *ledger, const char *path)
{
    char *text = NULL;
    size_t n;
    FILE *file = open_memstream(&text, &n);
    bool same = false;

    if (file != NULL && fill(file, ledger) == CF_OK && fflush(file) == 0)
        same = file_holds(path, text, n);
    if (file != NULL)
        fclose(file);
    free(text);
    return same;
}
