/* fuzz_cfidx.c - any bytes as the index that is kept of a JSONL file: none, or
 * one that leads to no place outside the file and that no lie gets past.
 *
 * Bit 0 of the first byte gives the index the magic, stamp and checksum that make
 * the rest believable, bit 1 the length of names that its own length asks for:
 * few mutations get past them otherwise.
 */
#include "src/dataset_index.h"

#include "tests/fuzz/fuzz.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    VOCAB = 50000,
    DATA_BYTES = 16 << 20, /* so much that its index is looked for */
    STAMP_AT = 8,
    N_LINES_AT = 40,
    NAMES_BYTES_AT = 48,
    CHECKSUM_AT = 64,
    LINES_AT = 72,
    LINE_BYTES_MAX = 1 << 12 /* more only takes longer */
};

/* The lines of the data file; behind them are zeros. */
static const char data_text[] =
    "{\"input_ids\":[1,2,3]}\n"
    "{\"input_ids\":[],\"source\":\"web\"}\n"
    "{\"input_ids\":[7,8],\"labels\":[-100,8],\"source\":\"book\"}\n"
    "{\"input_ids\":[4,5,49999],\"i\\u0064\":1,\"source\":\"web\"}\n";

typedef struct data_file {
    char *path;
    cf_file_stamp stamp;
} data_file;

/* Made once: it stays in the folder of this process. */
static const data_file *data_file_open(void)
{
    static data_file data;
    int fd;

    if (data.path != NULL)
        return &data;
    data.path =
        fuzz_file_write("large.jsonl", data_text, sizeof(data_text) - 1);
    fuzz_require(setenv("XDG_CACHE_HOME", fuzz_folder(), 1) == 0,
                 "there is memory");
    fd = open(data.path, O_RDWR | O_CLOEXEC);
    fuzz_require(fd >= 0 && ftruncate(fd, DATA_BYTES) == 0 &&
                     cf_file_stamp_read(fd, &data.stamp) && close(fd) == 0,
                 "a file can be made");
    return &data;
}

/* ---- what makes an index believable ---- */

static void names_fit(uint8_t *index, size_t n)
{
    uint64_t n_lines, names_bytes;

    memcpy(&n_lines, index + N_LINES_AT, sizeof(n_lines));
    n_lines %= (n - LINES_AT) / sizeof(cf_index_line) + 1;
    names_bytes = n - LINES_AT - n_lines * sizeof(cf_index_line);
    memcpy(index + N_LINES_AT, &n_lines, sizeof(n_lines));
    memcpy(index + NAMES_BYTES_AT, &names_bytes, sizeof(names_bytes));
}

static void seal(uint8_t *index, size_t n, const cf_file_stamp *stamp)
{
    uint64_t checksum;
    cf_hash hash;

    memcpy(index, "CFJSONL\1", STAMP_AT);
    memcpy(index + STAMP_AT, stamp, sizeof(*stamp));
    cf_hash_begin(&hash);
    cf_hash_append(&hash, index, CHECKSUM_AT);
    cf_hash_append(&hash, index + LINES_AT, n - LINES_AT);
    checksum = cf_hash_end(&hash);
    memcpy(index + CHECKSUM_AT, &checksum, sizeof(checksum));
}

static void index_write(fuzz_input input, const cf_file_stamp *stamp)
{
    const uint8_t how = fuzz_read_u8(&input);
    uint8_t *index = fuzz_allocate(input.n, 1, 0);

    if (input.n > 0)
        memcpy(index, input.at, input.n);
    if (input.n >= LINES_AT && (how & 2) != 0)
        names_fit(index, input.n);
    if (input.n >= LINES_AT && (how & 1) != 0)
        seal(index, input.n, stamp);
    free(fuzz_file_write(".large.jsonl.cfidx", index, input.n));
    free(index);
}

/* ---- laws ---- */

static bool index_read(const char *path, const cf_file_stamp *stamp, size_t n,
                       cf_jsonl_index *index_p)
{
    bool found = false;
    cf_status status;

    fuzz_call_begin(n);
    status = cf_jsonl_index_read(path, stamp, index_p, &found);
    fuzz_call_end(status);
    fuzz_require(status == CF_OK, "a bad index is no index");
    return found;
}

static void check_lines(const cf_jsonl_index *index)
{
    for (size_t i = 0; i < index->n; i++) {
        const cf_index_line *line = &index->lines[i];

        fuzz_require(line->offset <= DATA_BYTES &&
                         line->n_bytes <= DATA_BYTES - line->offset,
                     "a line is in the file");
        fuzz_require(line->n_tok <= line->n_bytes &&
                         line->n_targets <= line->n_tok,
                     "a line has room for its tokens");
        fuzz_require(line->source == CF_INDEX_NO_SOURCE ||
                         line->source < index->sources.n,
                     "a source exists");
    }
}

static void check_round_trip(const cf_jsonl_index *index,
                             const cf_file_stamp *stamp, size_t n)
{
    char *path = fuzz_file_write("written.jsonl", "", 0);
    cf_file_stamp other = *stamp;
    cf_jsonl_index again;

    cf_jsonl_index_write(path, stamp, index);
    fuzz_require(index_read(path, stamp, n, &again),
                 "what was written is found");
    fuzz_require(
        again.n == index->n && again.largest == index->largest &&
            again.sources.n == index->sources.n &&
            (index->n == 0 || memcmp(again.lines, index->lines,
                                     index->n * sizeof(*index->lines)) == 0),
        "what was written is read back the same");
    cf_jsonl_index_close(&again);
    other.mtime_ns++;
    fuzz_require(!index_read(path, &other, n, &again),
                 "an index of another file is none");
    free(path);
}

/* A line is as it was when the index was made, or it is refused. */
static void check_line(const cf_dataset *dataset, size_t sequence, size_t n)
{
    const uint32_t number = (uint32_t)sequence;
    const uint32_t n_tok = cf_dataset_lengths(dataset)[sequence];
    uint32_t ids[LINE_BYTES_MAX], targets[LINE_BYTES_MAX];
    uint32_t n_targets = 0;
    cf_status status;

    fuzz_call_begin(n);
    status = cf_dataset_prepare(dataset, &number, 1);
    fuzz_call_end(status);
    if (status != CF_OK)
        return;
    cf_dataset_read(dataset, sequence, 0, n_tok, ids, targets);
    for (uint32_t i = 0; i < n_tok; i++) {
        fuzz_require(ids[i] < VOCAB, "an id is in the vocabulary");
        fuzz_require(targets[i] < VOCAB || targets[i] == CF_NO_TARGET,
                     "a target is in the vocabulary");
        n_targets += targets[i] != CF_NO_TARGET;
    }
    fuzz_require(n_targets == cf_dataset_target_counts(dataset)[sequence],
                 "there are as many targets as was said");
}

static void check_dataset(const data_file *data, const cf_jsonl_index *index,
                          size_t n)
{
    cf_dataset *dataset;
    cf_status status;

    fuzz_call_begin(n);
    status = cf_dataset_open((char *const[]){data->path}, 1, VOCAB, &dataset);
    fuzz_call_end(status);
    if (status != CF_OK)
        return;
    fuzz_require(cf_dataset_count(dataset) == index->n, "a line is a sequence");
    for (size_t i = 0; i < index->n; i++) {
        if (index->lines[i].n_bytes <= LINE_BYTES_MAX)
            check_line(dataset, i, n);
    }
    cf_dataset_close(dataset);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    const data_file *data = data_file_open();
    cf_jsonl_index index;

    index_write((fuzz_input){bytes, n}, &data->stamp);
    if (!index_read(data->path, &data->stamp, n, &index))
        return 0;
    check_lines(&index);
    check_round_trip(&index, &data->stamp, n);
    /* Without it the data is read from end to end. */
    if (index.largest < VOCAB)
        check_dataset(data, &index, n);
    cf_jsonl_index_close(&index);
    return 0;
}
