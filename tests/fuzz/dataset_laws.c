/* dataset_laws.c - what holds for every data set that can be opened.
 *
 * (1) There is a sequence, ids and targets are in the vocabulary, the last token
 *     has no target, and there are as many targets as was said.
 * (2) A part of a sequence reads as the same part of the whole.
 * (3) Every sequence has a place that can be named and a source that exists.
 */
#include "tests/fuzz/dataset_laws.h"

#include "src/dataset.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

enum {
    VOCAB = 50000,
    READ_TOK_MAX = 1 << 18 /* in all: sequences may share their tokens */
};

/* (2) */
static void check_part(const cf_dataset *dataset, size_t sequence,
                       uint32_t first_tok, uint32_t n_tok, const uint32_t *ids,
                       const uint32_t *targets)
{
    uint32_t *part = fuzz_allocate(n_tok, 2 * sizeof(*part), 0xff);

    cf_dataset_read(dataset, sequence, first_tok, n_tok, part, part + n_tok);
    fuzz_require(n_tok == 0 || (memcmp(part, ids + first_tok,
                                       n_tok * sizeof(*ids)) == 0 &&
                                memcmp(part + n_tok, targets + first_tok,
                                       n_tok * sizeof(*targets)) == 0),
                 "a part reads as in the whole");
    free(part);
}

/* (1) and (2) */
static void check_tokens(const cf_dataset *dataset, size_t sequence)
{
    const uint32_t number = (uint32_t)sequence;
    const uint32_t n_tok = cf_dataset_lengths(dataset)[sequence];
    uint32_t *ids = fuzz_allocate(n_tok, sizeof(*ids), 0xff);
    uint32_t *targets = fuzz_allocate(n_tok, sizeof(*targets), 0xff);
    uint32_t n_targets = 0;

    fuzz_require(cf_dataset_prepare(dataset, &number, 1) == CF_OK,
                 "what was checked can be decoded");
    cf_dataset_read(dataset, sequence, 0, n_tok, ids, targets);
    for (uint32_t i = 0; i < n_tok; i++) {
        fuzz_require(ids[i] < VOCAB, "an id is in the vocabulary");
        fuzz_require(targets[i] < VOCAB || targets[i] == CF_NO_TARGET,
                     "a target is in the vocabulary");
        n_targets += targets[i] != CF_NO_TARGET;
    }
    fuzz_require(n_tok == 0 || targets[n_tok - 1] == CF_NO_TARGET,
                 "the last token has no target");
    fuzz_require(n_targets == cf_dataset_target_counts(dataset)[sequence],
                 "there are as many targets as was said");
    check_part(dataset, sequence, n_tok / 2, n_tok - n_tok / 2, ids, targets);
    check_part(dataset, sequence, n_tok / 3, n_tok / 2, ids, targets);
    free(ids);
    free(targets);
}

/* (3) */
static void check_names(const cf_dataset *dataset, size_t sequence)
{
    const uint32_t source = cf_dataset_source(dataset, sequence);
    char where[16]; /* short, so that most are cut */

    fuzz_require(cf_dataset_where(dataset, sequence, where, sizeof(where)) > 0,
                 "a sequence has a place");
    fuzz_require(source == UINT32_MAX ||
                     (source < cf_dataset_n_sources(dataset) &&
                      cf_dataset_source_name(dataset, source) != NULL),
                 "a source exists");
}

void dataset_laws_hold(const char *path, size_t n)
{
    char *paths[] = {(char *)(uintptr_t)path};
    cf_dataset *dataset = NULL;
    uint64_t n_tok = 0;
    cf_status status;

    fuzz_call_begin(n);
    status = cf_dataset_open(paths, 1, VOCAB, &dataset);
    fuzz_call_end(status);
    if (status != CF_OK)
        return;
    fuzz_require(cf_dataset_count(dataset) > 0 &&
                     cf_dataset_count(dataset) <= n,
                 "there are sequences, not more than bytes");
    for (size_t i = 0; i < cf_dataset_count(dataset); i++) {
        fuzz_require(cf_dataset_lengths(dataset)[i] <= n,
                     "a sequence is in its file");
        check_names(dataset, i);
        n_tok += cf_dataset_lengths(dataset)[i];
        if (n_tok <= READ_TOK_MAX)
            check_tokens(dataset, i);
    }
    cf_dataset_close(dataset);
}
