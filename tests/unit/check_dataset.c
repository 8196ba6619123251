/* check_dataset.c - JSONL and Megatron's indexed data. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/dataset.h"
#include "tests/lib/scratch.h"

#define NONE CF_NO_TARGET

enum {
    VOCAB = 100
};

static cf_dataset *open_one(const char *path)
{
    char *paths[] = {(char *)(uintptr_t)path};
    cf_dataset *dataset = NULL;

    ck_assert_int_eq(cf_dataset_open(paths, 1, VOCAB, &dataset), CF_OK);
    return dataset;
}

/* Opening fails with one line that holds the text. */
static void check_refused(const char *path, const char *text)
{
    char *paths[] = {(char *)(uintptr_t)path};
    cf_dataset *dataset = NULL;
    cf_status status;
    const char *log;

    errors_begin();
    status = cf_dataset_open(paths, 1, VOCAB, &dataset);
    log = errors_end();
    ck_assert_int_eq(status, CF_MALFORMED);
    ck_assert_ptr_null(dataset);
    ck_assert_ptr_eq(strstr(log, "chunkflow: error: "), log);
    ck_assert_msg(strstr(log, text) != NULL, "'%s' is not in: %s", text, log);
    ck_assert_ptr_eq(strchr(log, '\n'), log + strlen(log) - 1);
}

static void prepare(cf_dataset *dataset, size_t sequence)
{
    const uint32_t one = (uint32_t)sequence;

    ck_assert_int_eq(cf_dataset_prepare(dataset, &one, 1), CF_OK);
}

static void check_sequence(cf_dataset *dataset, size_t sequence, uint32_t n_tok,
                           const uint32_t *ids, const uint32_t *targets)
{
    uint32_t got_ids[16];
    uint32_t got_targets[16];
    uint32_t n_targets = 0;

    ck_assert_uint_eq(cf_dataset_lengths(dataset)[sequence], n_tok);
    for (uint32_t i = 0; i < n_tok; i++)
        n_targets += targets[i] != NONE;
    ck_assert_uint_eq(cf_dataset_target_counts(dataset)[sequence], n_targets);
    prepare(dataset, sequence);
    /* Every part of it. */
    for (uint32_t first = 0; first <= n_tok; first++) {
        for (uint32_t n = 0; n <= n_tok - first; n++) {
            cf_dataset_read(dataset, sequence, first, n, got_ids, got_targets);
            if (n == 0)
                continue;
            ck_assert_mem_eq(got_ids, ids + first, n * sizeof(*ids));
            ck_assert_mem_eq(got_targets, targets + first,
                             n * sizeof(*targets));
        }
    }
}

/* ---- JSONL ---- */

START_TEST(targets_are_shifted_and_labels_of_minus_100_are_none)
{
    cf_dataset *dataset = open_one(scratch_write_text(
        "d.jsonl", "{\"input_ids\": [5, 6, 7, 8]}\n"
                   "{\"labels\": [1, -100, 2, 3], \"input_ids\": [5, 6, 7, 8], "
                   "\"id\": {\"a\": [1.5]}}\r\n"
                   "{\"input_ids\": []}\n"
                   "{\"input_ids\": [99], \"labels\": [0]}\n"
                   "{\"input_ids\": [1, 2], \"labels\": [1, -100]}"));

    ck_assert_uint_eq(cf_dataset_count(dataset), 5);
    check_sequence(dataset, 0, 4, (uint32_t[]){5, 6, 7, 8},
                   (uint32_t[]){6, 7, 8, NONE});
    check_sequence(dataset, 1, 4, (uint32_t[]){5, 6, 7, 8},
                   (uint32_t[]){NONE, 2, 3, NONE});
    check_sequence(dataset, 2, 0, NULL, NULL);
    check_sequence(dataset, 3, 1, (uint32_t[]){99}, (uint32_t[]){NONE});
    check_sequence(dataset, 4, 2, (uint32_t[]){1, 2}, (uint32_t[]){NONE, NONE});
    ck_assert_uint_eq(cf_dataset_n_sources(dataset), 0);
    cf_dataset_close(dataset);
}
END_TEST

START_TEST(one_empty_line_at_the_end_is_no_sequence)
{
    cf_dataset *dataset =
        open_one(scratch_write_text("d.jsonl", "{\"input_ids\": [5]}\n\n"));

    ck_assert_uint_eq(cf_dataset_count(dataset), 1);
    cf_dataset_close(dataset);
}
END_TEST

START_TEST(sources_are_numbered_as_they_come_up)
{
    cf_dataset *dataset = open_one(scratch_write_text(
        "d.jsonl", "{\"input_ids\": [5], \"source\": \"web\"}\n"
                   "{\"input_ids\": [5]}\n"
                   "{\"input_ids\": [5], \"source\": \"b\\\"ook\"}\n"
                   "{\"input_ids\": [5], \"source\": 7}\n"
                   "{\"input_ids\": [5], \"source\": \"web\"}\n"));
    static const uint32_t sources[] = {0, UINT32_MAX, 1, UINT32_MAX, 0};

    ck_assert_uint_eq(cf_dataset_n_sources(dataset), 2);
    ck_assert_str_eq(cf_dataset_source_name(dataset, 0), "web");
    ck_assert_str_eq(cf_dataset_source_name(dataset, 1), "b\"ook");
    for (size_t i = 0; i < 5; i++)
        ck_assert_uint_eq(cf_dataset_source(dataset, i), sources[i]);
    cf_dataset_close(dataset);
}
END_TEST

static const struct {
    const char *text;
    const char *message;
} bad_lines[] = {
    {"", "d.jsonl: is empty"},
    {"\n", "d.jsonl: is empty"},
    {"\n{\"input_ids\": [1]}\n", "d.jsonl:1: is an empty line"},
    {"{\"input_ids\": [1]}\n\n{\"input_ids\": [1]}\n",
     "d.jsonl:2: is an empty line"},
    {"{\"input_ids\": [1]}\n{\"input_ids\": [1\n", "d.jsonl:2: malformed JSON"},
    {"{\"input_ids\": [1]} x\n", "d.jsonl:1: malformed JSON"},
    {"{\"input_ids\": [1], \"input_ids\": [2]}\n", "duplicate"},
    {"[1, 2]\n", "d.jsonl:1: is not an object"},
    {"{}\n", "d.jsonl:1: \"input_ids\" is missing"},
    {"{\"messages\": []}\n",
     "d.jsonl:1: has \"messages\" but no \"input_ids\""},
    {"{\"conversations\": []}\n", "scripts/prepare"},
    {"{\"prompt\": \"\"}\n", "scripts/prepare"},
    {"{\"text\": \"\"}\n", "scripts/prepare"},
    {"{\"input_ids\": 3}\n", "\"input_ids\" is not a list"},
    {"{\"input_ids\": [3], \"labels\": null}\n", "\"labels\" is not a list"},
    {"{\"input_ids\": [3], \"labels\": []}\n", "0 labels for 1 input_ids"},
    {"{\"input_ids\": [3, 4.0]}\n", "input_ids[1] is not a whole number"},
    {"{\"input_ids\": [3, true]}\n", "input_ids[1] is not a whole number"},
    {"{\"input_ids\": [3, 100]}\n",
     "d.jsonl:1: input_ids[1] is 100, outside the model's vocabulary of 100"},
    {"{\"input_ids\": [3, -1]}\n", "input_ids[1] is -1, outside"},
    {"{\"input_ids\": [3, -100]}\n", "input_ids[1] is -100, outside"},
    {"{\"input_ids\": [3, 4294967297]}\n", "is 4294967297, outside"},
    {"{\"input_ids\": [3, 99999999999999999999]}\n", "malformed JSON"},
    {"{\"input_ids\": [3], \"labels\": [100]}\n", "labels[0] is 100, outside"},
    {"{\"input_ids\": [3], \"labels\": [-1]}\n", "labels[0] is -1, outside"},
};

START_TEST(a_bad_line_is_named_by_file_and_number)
{
    check_refused(scratch_write_text("d.jsonl", bad_lines[_i].text),
                  bad_lines[_i].message);
}
END_TEST

START_TEST(a_nul_byte_is_no_end_of_a_line)
{
    static const char text[] = "{\"input_ids\": [1]}\0\n";

    check_refused(scratch_write("d.jsonl", text, sizeof(text) - 1),
                  "d.jsonl:1: malformed JSON");
}
END_TEST

START_TEST(a_line_of_megabytes_is_read_whole)
{
    enum {
        N = 1000000
    };
    char *text = malloc(16 + 3 * (size_t)N + 16);
    size_t n = (size_t)sprintf(text, "{\"input_ids\": [");
    cf_dataset *dataset;
    uint32_t ids[3];
    uint32_t targets[3];

    for (uint32_t i = 0; i < N; i++)
        n += (size_t)sprintf(text + n, "%s%u", i > 0 ? "," : "", i % 90);
    n += (size_t)sprintf(text + n, "]}\n");
    dataset = open_one(scratch_write("d.jsonl", text, n));
    free(text);
    ck_assert_uint_eq(cf_dataset_lengths(dataset)[0], N);
    ck_assert_uint_eq(cf_dataset_target_counts(dataset)[0], N - 1);
    prepare(dataset, 0);
    cf_dataset_read(dataset, 0, N - 3, 3, ids, targets);
    ck_assert_uint_eq(ids[2], (N - 1) % 90);
    ck_assert_uint_eq(targets[1], ids[2]);
    ck_assert_uint_eq(targets[2], NONE);
    cf_dataset_close(dataset);
}
END_TEST

START_TEST(files_that_cannot_be_read_are_named)
{
    check_refused(scratch_path("no.jsonl"), "no.jsonl: No such file");
    check_refused(scratch_path("no"), "no.idx: No such file");
    ck_assert_int_eq(mkdir(scratch_path("folder.jsonl"), 0777), 0);
    check_refused(scratch_path("folder.jsonl"), "Is a directory");
    (void)scratch_write_text("half.idx", "");
    check_refused(scratch_path("half"), "half.bin: No such file");
}
END_TEST

/* ---- Megatron ---- */

typedef struct bytes {
    unsigned char at[512];
    size_t n;
} bytes;

static void put(bytes *b, const void *value, size_t n)
{
    memcpy(b->at + b->n, value, n);
    b->n += n;
}

static void put_u64(bytes *b, uint64_t value)
{
    put(b, &value, 8);
}

static void put_u32(bytes *b, uint32_t value)
{
    put(b, &value, 4);
}

enum {
    N_SEQUENCES = 4,
    N_TOK = 9,
    IDX_BYTES = 34 + 12 * 4 + 8 * 3
};

/* As Megatron's IndexedDatasetBuilder writes it: four sequences in two
 * documents, the second sequence empty. */
static bytes index_of(uint8_t type)
{
    static const uint32_t lengths[N_SEQUENCES] = {3, 0, 5, 1};
    static const uint64_t first_toks[N_SEQUENCES] = {0, 3, 3, 8};
    const uint64_t id_bytes = type == 4 ? 4 : 2;
    bytes b = {{0}, 0};

    put(&b, "MMIDIDX\0", 9);
    put_u64(&b, 1);
    put(&b, &type, 1);
    put_u64(&b, N_SEQUENCES);
    put_u64(&b, 3);
    for (size_t i = 0; i < N_SEQUENCES; i++)
        put_u32(&b, lengths[i]);
    for (size_t i = 0; i < N_SEQUENCES; i++)
        put_u64(&b, first_toks[i] * id_bytes);
    put_u64(&b, 0);
    put_u64(&b, 3);
    put_u64(&b, N_SEQUENCES);
    ck_assert_uint_eq(b.n, IDX_BYTES);
    return b;
}

static bytes tokens_of(uint8_t type)
{
    bytes b = {{0}, 0};

    for (uint32_t i = 0; i < N_TOK; i++) {
        uint16_t narrow = (uint16_t)(10 + i);

        if (type == 4)
            put_u32(&b, 10 + i);
        else
            put(&b, &narrow, 2);
    }
    return b;
}

static void write_pair(uint8_t type)
{
    bytes idx = index_of(type);
    bytes bin = tokens_of(type);

    (void)scratch_write("m.idx", idx.at, idx.n);
    (void)scratch_write("m.bin", bin.at, bin.n);
}

static const uint8_t types[] = {4, 8};

static void check_golden(const char *name, bytes wanted)
{
    char path[512];
    char golden[512];
    FILE *file;

    (void)snprintf(path, sizeof(path), "%s/tests/golden/%s", CF_TEST_SRCDIR,
                   name);
    file = fopen(path, "r");
    ck_assert_msg(file != NULL, "%s cannot be opened", path);
    ck_assert_uint_eq(fread(golden, 1, sizeof(golden), file), wanted.n);
    ck_assert_mem_eq(golden, wanted.at, wanted.n);
    fclose(file);
}

/* IndexedDatasetBuilder of megatron-core 0.16.1 wrote them, which
 * preprocess_data.py writes with; scripts/check-megatron.py asks it again. */
START_TEST(the_pairs_of_this_test_are_those_of_megatron)
{
    check_golden("megatron-int32.idx", index_of(4));
    check_golden("megatron-int32.bin", tokens_of(4));
    check_golden("megatron-uint16.idx", index_of(8));
    check_golden("megatron-uint16.bin", tokens_of(8));
}
END_TEST

START_TEST(a_sequence_is_a_sequence_whatever_the_documents)
{
    static const char *const names[] = {"m", "m.bin", "m.idx"};

    write_pair(types[_i]);
    for (size_t i = 0; i < 3; i++) {
        cf_dataset *dataset = open_one(scratch_path(names[i]));

        ck_assert_uint_eq(cf_dataset_count(dataset), N_SEQUENCES);
        check_sequence(dataset, 0, 3, (uint32_t[]){10, 11, 12},
                       (uint32_t[]){11, 12, NONE});
        check_sequence(dataset, 1, 0, NULL, NULL);
        check_sequence(dataset, 2, 5, (uint32_t[]){13, 14, 15, 16, 17},
                       (uint32_t[]){14, 15, 16, 17, NONE});
        check_sequence(dataset, 3, 1, (uint32_t[]){18}, (uint32_t[]){NONE});
        cf_dataset_close(dataset);
    }
}
END_TEST

START_TEST(a_mask_says_which_tokens_are_targets)
{
    static const unsigned char mask[N_TOK] = {1, 0, 1, 1, 0, 0, 1, 0, 1};
    cf_dataset *dataset;

    write_pair(types[_i]);
    (void)scratch_write("m.mask", mask, N_TOK);
    dataset = open_one(scratch_path("m"));
    check_sequence(dataset, 0, 3, (uint32_t[]){10, 11, 12},
                   (uint32_t[]){NONE, 12, NONE});
    check_sequence(dataset, 2, 5, (uint32_t[]){13, 14, 15, 16, 17},
                   (uint32_t[]){NONE, NONE, 16, NONE, NONE});
    check_sequence(dataset, 3, 1, (uint32_t[]){18}, (uint32_t[]){NONE});
    cf_dataset_close(dataset);
}
END_TEST

START_TEST(a_bad_mask_is_refused)
{
    static const unsigned char mask[N_TOK + 1] = {1, 0, 1, 1, 0, 2, 1, 0, 1, 1};

    write_pair(4);
    (void)scratch_write("m.mask", mask, N_TOK);
    check_refused(scratch_path("m"), "m.mask: offset 5: is neither 0 nor 1");
    (void)scratch_write("m.mask", mask, N_TOK + 1);
    check_refused(scratch_path("m"), "m.mask: has 10 bytes for 9 tokens");
    (void)scratch_write("m.mask", mask, 0);
    check_refused(scratch_path("m"), "m.mask: has 0 bytes for 9 tokens");
    (void)unlink(scratch_path("m.mask"));
    ck_assert_int_eq(mkdir(scratch_path("m.mask"), 0777), 0);
    check_refused(scratch_path("m"), "m.mask: Is a directory");
}
END_TEST

/* A change of so many bytes at an offset of the .idx. */
static const struct {
    size_t at;
    size_t n;
    uint64_t value;
    const char *message;
} damages[] = {
    {0, 1, 'X', "m.idx: offset 0: is not a Megatron index"},
    {9, 8, 2, "m.idx: offset 9: is not version 1"},
    {17, 1, 5, "m.idx: offset 17: ids are neither"},
    {18, 8, 5, "m.idx: offset"},
    {18, 8, UINT64_MAX, "m.idx: offset 18: more sequences"},
    {18, 8, UINT64_MAX / 12 + 2, "m.idx: offset 18: more sequences"},
    {26, 8, 4, "m.idx: offset 26: more documents"},
    {26, 8, 2, "m.idx: offset 98: there is more behind the end"},
    {26, 8, UINT64_MAX / 8 + 1, "m.idx: offset 26: more documents"},
    {34, 4, 0xffffffff, "m.idx: offset 34: a sequence has a negative length"},
    {46, 4, 2, "m.idx: offset 74: a sequence lies outside the .bin"},
    {46, 4, 0x7fffffff, "m.idx: offset 74: a sequence lies outside the .bin"},
    {50, 8, UINT64_MAX, "m.idx: offset 50: a sequence lies outside the .bin"},
    {50, 8, 37, "m.idx: offset 50: a sequence lies outside the .bin"},
    {50, 8, 3, "m.idx: offset 50: a sequence begins inside a token"},
    {82, 8, 4, "m.idx: offset 90: the document index"},
    {98, 8, 5, "m.idx: offset 98: the document index"},
};

START_TEST(a_damaged_index_is_refused_with_the_offset)
{
    bytes idx = index_of(4);

    write_pair(4);
    memcpy(idx.at + damages[_i].at, &damages[_i].value, damages[_i].n);
    (void)scratch_write("m.idx", idx.at, idx.n);
    check_refused(scratch_path("m"), damages[_i].message);
}
END_TEST

/* It ends in the mode of each sequence, a byte. */
START_TEST(an_index_of_multimodal_data_is_refused_by_name)
{
    bytes idx = index_of(4);

    write_pair(4);
    put(&idx, "\0\1\0\0", N_SEQUENCES);
    (void)scratch_write("m.idx", idx.at, idx.n);
    check_refused(scratch_path("m"), "m.idx: offset 106: has one more array, "
                                     "as an index of multimodal data");
}
END_TEST

START_TEST(a_cut_off_file_is_refused_wherever_the_cut_is)
{
    bytes idx = index_of(4);
    bytes bin = tokens_of(4);

    write_pair(4);
    for (size_t n = 0; n < idx.n; n++) {
        (void)scratch_write("m.idx", idx.at, n);
        check_refused(scratch_path("m"), "m.idx: offset");
    }
    (void)scratch_write("m.idx", idx.at, idx.n);
    for (size_t n = 0; n < bin.n; n++) {
        (void)scratch_write("m.bin", bin.at, n);
        check_refused(scratch_path("m"), "m.idx: offset");
    }
}
END_TEST

START_TEST(an_index_of_nothing_is_refused)
{
    bytes b = {{0}, 0};
    const uint8_t type = 4;

    put(&b, "MMIDIDX\0", 9);
    put_u64(&b, 1);
    put(&b, &type, 1);
    put_u64(&b, 0);
    put_u64(&b, 1);
    put_u64(&b, 0);
    (void)scratch_write("m.idx", b.at, b.n);
    (void)scratch_write("m.bin", "", 0);
    check_refused(scratch_path("m"), "m: is empty");
}
END_TEST

START_TEST(an_id_outside_the_vocabulary_is_named_with_its_place)
{
    bytes bin = tokens_of(4);
    const int32_t negative = -7;

    write_pair(4);
    bin.at[5 * 4] = 100;
    (void)scratch_write("m.bin", bin.at, bin.n);
    check_refused(scratch_path("m"),
                  "m.bin: offset 20: token 2 of sequence 2 is 100, outside the "
                  "model's vocabulary of 100");
    memcpy(bin.at + 4 * 4, &negative, 4);
    (void)scratch_write("m.bin", bin.at, bin.n);
    check_refused(scratch_path("m"), "token 1 of sequence 2 is -7, outside");
}
END_TEST

/* ---- several ---- */

START_TEST(several_paths_are_one_data_set_in_order)
{
    const char *jsonl = scratch_write_text(
        "a.jsonl", "{\"input_ids\": [1], \"source\": \"x\"}\n"
                   "{\"input_ids\": [1, 2], \"source\": \"y\"}\n");
    const char *other = scratch_write_text(
        "b.jsonl", "{\"input_ids\": [3], \"source\": \"y\"}");
    char *paths[] = {strdup(jsonl), strdup(scratch_path("m")), strdup(other)};
    static const uint32_t lengths[] = {1, 2, 3, 0, 5, 1, 1};
    static const char *const where[] = {
        "a.jsonl:1",         "a.jsonl:2",         "m.bin: sequence 0",
        "m.bin: sequence 1", "m.bin: sequence 2", "m.bin: sequence 3",
        "b.jsonl:1"};
    cf_dataset *dataset = NULL;
    char text[256];

    write_pair(8);
    ck_assert_int_eq(cf_dataset_open(paths, 3, VOCAB, &dataset), CF_OK);
    ck_assert_uint_eq(cf_dataset_count(dataset), 7);
    for (size_t i = 0; i < 7; i++) {
        ck_assert_uint_eq(cf_dataset_lengths(dataset)[i], lengths[i]);
        ck_assert_uint_eq(cf_dataset_where(dataset, i, text, sizeof(text)),
                          strlen(text));
        ck_assert_str_eq(strrchr(text, '/') + 1, where[i]);
    }
    ck_assert_uint_eq(cf_dataset_n_sources(dataset), 2);
    ck_assert_uint_eq(cf_dataset_source(dataset, 6), 1);
    ck_assert_uint_eq(cf_dataset_source(dataset, 3), UINT32_MAX);
    cf_dataset_close(dataset);
    for (size_t i = 0; i < 3; i++)
        free(paths[i]);
}
END_TEST

/* ---- damage at random ---- */

/* Opens or is refused; what opens can be read from end to end. */
static void check_survives(const char *path)
{
    char *paths[] = {(char *)(uintptr_t)path};
    cf_dataset *dataset = NULL;
    cf_status status;

    errors_begin();
    status = cf_dataset_open(paths, 1, VOCAB, &dataset);
    (void)errors_end();
    if (status != CF_OK) {
        ck_assert_int_eq(status, CF_MALFORMED);
        return;
    }
    for (size_t s = 0; s < cf_dataset_count(dataset); s++) {
        uint32_t n_tok = cf_dataset_lengths(dataset)[s];
        uint32_t *ids = calloc(2 * (size_t)n_tok + 1, sizeof(*ids));

        prepare(dataset, s);
        cf_dataset_read(dataset, s, 0, n_tok, ids, ids + n_tok);
        for (uint32_t i = 0; i < n_tok; i++) {
            if (ids[i] >= VOCAB)
                ck_abort_msg("an id passed the check");
        }
        free(ids);
    }
    cf_dataset_close(dataset);
}

START_TEST(a_mutated_index_never_crashes)
{
    uint64_t random = scratch_seed();

    write_pair(8);
    for (int i = 0; i < 2000; i++) {
        bytes idx = index_of(8);

        idx.n = scratch_mutate(&random, idx.at, idx.n, sizeof(idx.at));
        (void)scratch_write("m.idx", idx.at, idx.n);
        check_survives(scratch_path("m"));
    }
}
END_TEST

START_TEST(a_mutated_jsonl_never_crashes)
{
    static const char line[] =
        "{\"input_ids\": [5, 6, 7, 8], \"labels\": [1, -100, 2, 3], "
        "\"source\": \"w\\u00e9b\"}\n{\"input_ids\": [1e2, 99]}\n";
    uint64_t random = scratch_seed();

    for (int i = 0; i < 2000; i++) {
        unsigned char text[512];
        size_t n = sizeof(line) - 1;

        memcpy(text, line, n);
        if (i % 2 == 0) /* half of them begin well formed */
            memcpy(strstr((char *)text, "1e2"), "  2", 3);
        n = scratch_mutate(&random, text, n, sizeof(text));
        (void)scratch_write("m.jsonl", text, n);
        check_survives(scratch_path("m.jsonl"));
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("dataset");
    TCase *jsonl = tcase_create("jsonl");
    TCase *indexed = tcase_create("indexed");
    TCase *damage = tcase_create("damage");
    SRunner *runner;
    int failed;

    tcase_add_checked_fixture(jsonl, scratch_open, scratch_close);
    tcase_set_timeout(jsonl, 60);
    tcase_add_test(jsonl, targets_are_shifted_and_labels_of_minus_100_are_none);
    tcase_add_test(jsonl, one_empty_line_at_the_end_is_no_sequence);
    tcase_add_test(jsonl, sources_are_numbered_as_they_come_up);
    tcase_add_loop_test(jsonl, a_bad_line_is_named_by_file_and_number, 0,
                        sizeof(bad_lines) / sizeof(bad_lines[0]));
    tcase_add_test(jsonl, a_nul_byte_is_no_end_of_a_line);
    tcase_add_test(jsonl, a_line_of_megabytes_is_read_whole);
    tcase_add_test(jsonl, files_that_cannot_be_read_are_named);
    suite_add_tcase(suite, jsonl);

    tcase_add_checked_fixture(indexed, scratch_open, scratch_close);
    tcase_add_test(indexed, the_pairs_of_this_test_are_those_of_megatron);
    tcase_add_loop_test(indexed,
                        a_sequence_is_a_sequence_whatever_the_documents, 0, 2);
    tcase_add_loop_test(indexed, a_mask_says_which_tokens_are_targets, 0, 2);
    tcase_add_test(indexed, a_bad_mask_is_refused);
    tcase_add_loop_test(indexed, a_damaged_index_is_refused_with_the_offset, 0,
                        sizeof(damages) / sizeof(damages[0]));
    tcase_add_test(indexed, an_index_of_multimodal_data_is_refused_by_name);
    tcase_add_test(indexed, a_cut_off_file_is_refused_wherever_the_cut_is);
    tcase_add_test(indexed, an_index_of_nothing_is_refused);
    tcase_add_test(indexed,
                   an_id_outside_the_vocabulary_is_named_with_its_place);
    tcase_add_test(indexed, several_paths_are_one_data_set_in_order);
    suite_add_tcase(suite, indexed);

    tcase_add_checked_fixture(damage, scratch_open, scratch_close);
    tcase_set_timeout(damage, 120);
    tcase_add_test(damage, a_mutated_index_never_crashes);
    tcase_add_test(damage, a_mutated_jsonl_never_crashes);
    suite_add_tcase(suite, damage);

    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
