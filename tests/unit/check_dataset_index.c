/* check_dataset_index.c - the index of a JSONL file, and the two readers of its
 * lines.
 */
#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/dataset_index.h"
#include "src/dataset_line.h"
#include "src/files.h"
#include "tests/lib/scratch.h"

enum {
    VOCAB = 100,
    N_LINES = 40000,
    LINE_BYTES = 440, /* in all, above the size from which an index is kept */
    N_TOK = 100
};

static void open_scratch(void)
{
    scratch_open();
    ck_assert_int_eq(setenv("XDG_CACHE_HOME", scratch_path("cache"), 1), 0);
    ck_assert_int_eq(mkdir(scratch_path("cache"), 0777), 0);
}

static void close_scratch(void)
{
    ck_assert_int_eq(cf_path_remove(scratch_path("cache")), CF_OK);
    scratch_close();
}

/* ---- the two readers ---- */

static const struct {
    const char *text;
    bool plain; /* the fast one takes it */
} lines[] = {
    {"{\"input_ids\":[1,2,3]}", true},
    {" {\t\"input_ids\" : [ 1 , 2,3 ] } \r", true},
    {"{\"input_ids\":[]}", true},
    {"{\"input_ids\":[],\"labels\":[]}", true},
    {"{\"input_ids\":[0,99],\"labels\":[-100,99],\"source\":\"web\"}", true},
    {"{\"source\":\"\",\"attention_mask\":[1,1],\"labels\":[5,-100],"
     "\"token_type_ids\":[0,0],\"input_ids\":[7,8]}",
     true},
    /* The same, and none of them plain. */
    {"{\"input\\u005fids\":[1,2,3]}", false},
    {"{\"input_ids\":[1,2],\"id\":7}", false},
    {"{\"input_ids\":[1,-0]}", false},
    {"{\"input_ids\":[1,2],\"source\":\"w\\u00e9b\"}", false},
    {"{\"input_ids\":[1,2],\"source\":\"w\xc3\xa9"
     "b\"}",
     false},
    {"{\"input_ids\":[1,2],\"source\":7}", false},
    /* Good for nobody. */
    {"{\"input_ids\":[1,2,100]}", false},
    {"{\"input_ids\":[1,2,4294967297]}", false},
    {"{\"input_ids\":[1,02]}", false},
    {"{\"input_ids\":[1,2.0]}", false},
    {"{\"input_ids\":[1,2e0]}", false},
    {"{\"input_ids\":[1,2,]}", false},
    {"{\"input_ids\":[1 2]}", false},
    {"{\"input_ids\":[1,-100]}", false},
    {"{\"input_ids\":[1,2],\"labels\":[1]}", false},
    {"{\"input_ids\":[1,2],\"labels\":[1,-1001]}", false},
    {"{\"input_ids\":[1,2],\"labels\":[1,- 100]}", false},
    {"{\"input_ids\":[1,2],\"input_ids\":[1,2]}", false},
    {"{\"input_ids\":[1,2],\"source\":\"a\",\"source\":\"a\"}", false},
    {"{\"labels\":[1,2]}", false},
    {"{\"input_ids\":[1,2]", false},
    {"{\"input_ids\":[1,2]}}", false},
    {"{\"input_ids\":[1,2],}", false},
    {"{}", false},
    {"", false},
};
enum {
    N_EXAMPLES = sizeof(lines) / sizeof(lines[0])
};

/* The text with a key in front that the fast reader does not know. */
static cf_status read_slowly(cf_line *line, const char *text, size_t n)
{
    static const char front[] = "{\"unknown\":0,";
    const cf_line_place place = {"d.jsonl", 1, VOCAB};
    char longer[512];
    size_t brace = 0;
    bool taken;
    cf_status status;

    while (brace < n && text[brace] != '{')
        brace++;
    ck_assert_uint_lt(brace, n);
    memcpy(longer, front, sizeof(front) - 1);
    memcpy(longer + sizeof(front) - 1, text + brace + 1, n - brace - 1);
    n += sizeof(front) - 2 - brace;
    ck_assert_int_eq(cf_line_read_plain(line, VOCAB, longer, n, &taken), CF_OK);
    ck_assert(!taken);
    errors_begin();
    status = cf_line_read(line, &place, longer, n);
    (void)errors_end();
    return status;
}

/* Gives whether the fast reader took it; then both agree on it. */
static bool check_readers(const char *text, size_t n)
{
    const cf_line_place place = {"d.jsonl", 1, VOCAB};
    cf_line probe = {0}, fast = {0}, slow = {0};
    bool taken;

    ck_assert_int_eq(cf_line_read_plain(&probe, VOCAB, text, n, &taken), CF_OK);
    if (taken) {
        ck_assert_int_eq(cf_line_read(&fast, &place, text, n), CF_OK);
        ck_assert_int_eq(read_slowly(&slow, text, n), CF_OK);
        ck_assert_uint_eq(fast.n_tok, slow.n_tok);
        ck_assert_uint_eq(fast.n_targets, slow.n_targets);
        ck_assert_uint_eq(fast.largest, slow.largest);
        ck_assert_pstr_eq(fast.source, slow.source);
        if (fast.n_tok > 0) {
            ck_assert_mem_eq(fast.ids.tok, slow.ids.tok, 4 * fast.n_tok);
            ck_assert_mem_eq(fast.targets.tok, slow.targets.tok,
                             4 * fast.n_tok);
        }
    }
    cf_line_close(&probe);
    cf_line_close(&fast);
    cf_line_close(&slow);
    return taken;
}

START_TEST(the_fast_reader_takes_plain_lines_and_no_others)
{
    const size_t n = strlen(lines[_i].text);
    char *text = malloc(n + 1); /* to the byte: an overrun is seen */

    memcpy(text, lines[_i].text, n);
    ck_assert_int_eq(check_readers(text, n), lines[_i].plain);
    free(text);
}
END_TEST

START_TEST(the_fast_reader_never_differs_from_jansson)
{
    uint64_t random = scratch_seed();
    unsigned n_taken = 0;

    for (int i = 0; i < 100000; i++) {
        const char *line =
            lines[scratch_random_below(&random, N_EXAMPLES)].text;
        unsigned char text[256];
        size_t n = strlen(line);

        memcpy(text, line, n);
        n = scratch_mutate(&random, text, n, sizeof(text));
        n_taken += check_readers((const char *)text, n);
    }
    ck_assert_uint_gt(n_taken, 1000);
}
END_TEST

/* ---- the file of the index ---- */

/* A data file of three lines that need not be true, and its index. */
static cf_file_stamp small_index(cf_jsonl_index *index)
{
    const char *path = scratch_write_text("d.jsonl", "0123456789");
    const int fd = open(path, O_RDONLY);
    cf_file_stamp stamp;
    uint32_t number;

    ck_assert(cf_file_stamp_read(fd, &stamp));
    close(fd);
    *index = (cf_jsonl_index){.n = 3, .largest = 17};
    index->lines = calloc(3, sizeof(*index->lines));
    index->lines[0] = (cf_index_line){0, 11, 4, 3, 2, 1};
    index->lines[1] = (cf_index_line){5, 22, 5, 1, 0, 0};
    index->lines[2] = (cf_index_line){9, 33, 1, 0, 0, CF_INDEX_NO_SOURCE};
    ck_assert_int_eq(cf_name_list_append(&index->sources, "book", &number),
                     CF_OK);
    ck_assert_int_eq(cf_name_list_append(&index->sources, "web", &number),
                     CF_OK);
    return stamp;
}

static bool found(const char *path, const cf_file_stamp *stamp,
                  cf_jsonl_index *index)
{
    bool is_found;

    ck_assert_int_eq(cf_jsonl_index_read(path, stamp, index, &is_found), CF_OK);
    return is_found;
}

START_TEST(an_index_is_read_back_as_it_was)
{
    cf_jsonl_index index, again;
    const cf_file_stamp stamp = small_index(&index);
    const char *path = scratch_path("d.jsonl");

    ck_assert(!found(path, &stamp, &again));
    cf_jsonl_index_write(path, &stamp, &index);
    ck_assert(found(path, &stamp, &again));
    ck_assert_uint_eq(again.n, 3);
    ck_assert_uint_eq(again.largest, 17);
    ck_assert_mem_eq(again.lines, index.lines, 3 * sizeof(*index.lines));
    ck_assert_uint_eq(again.sources.n, 2);
    ck_assert_str_eq(again.sources.names[0], "book");
    ck_assert_str_eq(again.sources.names[1], "web");
    cf_jsonl_index_close(&again);
    cf_jsonl_index_close(&index);
}
END_TEST

START_TEST(an_index_of_other_content_is_none)
{
    cf_jsonl_index index, again;
    const cf_file_stamp stamp = small_index(&index);
    const char *path = scratch_path("d.jsonl");
    cf_file_stamp others[4] = {stamp, stamp, stamp, stamp};

    cf_jsonl_index_write(path, &stamp, &index);
    others[0].bytes++;
    others[1].mtime_s--;
    others[2].mtime_ns ^= 1;
    others[3].sample ^= 1;
    for (size_t i = 0; i < 4; i++)
        ck_assert(!found(path, &others[i], &again));
    cf_jsonl_index_close(&index);
}
END_TEST

START_TEST(a_damaged_index_is_none)
{
    cf_jsonl_index index, again;
    const cf_file_stamp stamp = small_index(&index);
    const char *path = strdup(scratch_path("d.jsonl"));
    uint64_t random = scratch_seed();
    char *good;
    size_t n;

    cf_jsonl_index_write(path, &stamp, &index);
    good = scratch_read(".d.jsonl.cfidx", &n);
    for (size_t i = 0; i < n; i++) {
        good[i] ^= 0x10;
        (void)scratch_write(".d.jsonl.cfidx", good, n);
        good[i] ^= 0x10;
        ck_assert(!found(path, &stamp, &again));
        (void)scratch_write(".d.jsonl.cfidx", good, i);
        ck_assert(!found(path, &stamp, &again));
    }
    for (int i = 0; i < 2000; i++) {
        unsigned char bytes[512];
        size_t n_bytes;

        memcpy(bytes, good, n);
        n_bytes = scratch_mutate(&random, bytes, n, sizeof(bytes));
        (void)scratch_write(".d.jsonl.cfidx", bytes, n_bytes);
        if (n_bytes == n && memcmp(bytes, good, n) == 0)
            continue;
        ck_assert(!found(path, &stamp, &again));
    }
    (void)scratch_write(".d.jsonl.cfidx", good, n);
    ck_assert(found(path, &stamp, &again));
    cf_jsonl_index_close(&again);
    cf_jsonl_index_close(&index);
    free(good);
    free((void *)(uintptr_t)path);
}
END_TEST

/* Its sum is right, yet nothing of it may lead outside the file. */
START_TEST(an_index_that_lies_is_none)
{
    static const cf_index_line lies[] = {
        {11, 0, 1, 0, 0, CF_INDEX_NO_SOURCE},
        {UINT64_MAX, 0, 2, 0, 0, CF_INDEX_NO_SOURCE},
        {0, 0, 11, 0, 0, CF_INDEX_NO_SOURCE},
        {0, 0, 1, 1, 1, CF_INDEX_NO_SOURCE},
        {0, 0, 1, UINT32_MAX, 0, CF_INDEX_NO_SOURCE},
        {0, 0, 1, 1, 0, 2},
        {0, 0, 5, 6, 0, 0},
        {0, 0, 0, 0, 0, 0},
    };
    cf_jsonl_index index, again;
    const cf_file_stamp stamp = small_index(&index);

    index.lines[1] = lies[_i];
    cf_jsonl_index_write(scratch_path("d.jsonl"), &stamp, &index);
    ck_assert(!found(scratch_path("d.jsonl"), &stamp, &again));
    cf_jsonl_index_close(&index);
}
END_TEST

START_TEST(where_the_folder_is_shut_the_index_goes_to_the_cache)
{
    cf_jsonl_index index, again;
    const cf_file_stamp stamp = small_index(&index);
    const char *path = scratch_path("d.jsonl");

    /* A folder in its place shuts it for the superuser, too. */
    ck_assert_int_eq(mkdir(scratch_path(".d.jsonl.cfidx"), 0777), 0);
    cf_jsonl_index_write(path, &stamp, &index);
    ck_assert(found(path, &stamp, &again));
    cf_jsonl_index_close(&again);
    ck_assert(found("/nowhere/moved.jsonl", &stamp, &again));
    cf_jsonl_index_close(&again);
    cf_jsonl_index_close(&index);
}
END_TEST

START_TEST(where_both_are_shut_there_is_a_warning)
{
    cf_jsonl_index index, again;
    const cf_file_stamp stamp = small_index(&index);
    const char *path = scratch_path("d.jsonl");
    const char *log;

    ck_assert_int_eq(mkdir(scratch_path(".d.jsonl.cfidx"), 0777), 0);
    ck_assert_int_eq(setenv("XDG_CACHE_HOME", path, 1), 0);
    errors_begin();
    cf_jsonl_index_write(path, &stamp, &index);
    log = errors_end();
    ck_assert_ptr_nonnull(strstr(log, "every start will read the whole file"));
    ck_assert(!found(path, &stamp, &again));
    cf_jsonl_index_close(&index);
}
END_TEST

/* ---- a data set with an index ---- */

/* Line i, padded with spaces to LINE_BYTES. */
static void line_write(char *at, uint32_t i, uint32_t shift)
{
    int n = sprintf(at, "{\"source\":\"s%u\",\"input_ids\":[", i % 7);

    for (uint32_t t = 0; t < N_TOK; t++)
        n += sprintf(at + n, "%s%u", t > 0 ? "," : "",
                     (i * 31 + t * 7 + shift) % 90);
    n += sprintf(at + n, "]}");
    ck_assert_int_lt(n, LINE_BYTES);
    memset(at + n, ' ', (size_t)(LINE_BYTES - n));
    at[LINE_BYTES - 1] = '\n';
}

static char *large_file(void)
{
    char *text = malloc((size_t)N_LINES * LINE_BYTES + 1);
    char *path;

    for (uint32_t i = 0; i < N_LINES; i++)
        line_write(text + (size_t)i * LINE_BYTES, i, 0);
    path = strdup(scratch_write("d.jsonl", text, (size_t)N_LINES * LINE_BYTES));
    free(text);
    return path;
}

static cf_status open_with(char *path, uint32_t vocab, cf_dataset **dataset_p)
{
    return cf_dataset_open(&path, 1, vocab, dataset_p);
}

static void check_line(cf_dataset *dataset, uint32_t line, uint32_t shift)
{
    uint32_t ids[N_TOK], targets[N_TOK];

    ck_assert_int_eq(cf_dataset_prepare(dataset, &line, 1), CF_OK);
    cf_dataset_read(dataset, line, 0, N_TOK, ids, targets);
    for (uint32_t t = 0; t < N_TOK; t++)
        ck_assert_uint_eq(ids[t], (line * 31 + t * 7 + shift) % 90);
    ck_assert_uint_eq(targets[0], ids[1]);
    ck_assert_uint_eq(targets[N_TOK - 1], CF_NO_TARGET);
}

/* Change a line in place and give the file its old time again. */
static void line_replace(const char *path, uint32_t line, uint32_t shift)
{
    char text[LINE_BYTES + 1];
    struct stat was;
    int fd = open(path, O_RDWR);

    ck_assert_int_eq(fstat(fd, &was), 0);
    line_write(text, line, shift);
    ck_assert_int_eq(pwrite(fd, text, LINE_BYTES, (off_t)line * LINE_BYTES),
                     LINE_BYTES);
    ck_assert_int_eq(
        futimens(fd, (struct timespec[]){was.st_mtim, was.st_mtim}), 0);
    close(fd);
}

START_TEST(an_indexed_file_opens_as_the_file_itself)
{
    char *path = large_file();
    cf_dataset *first, *second;
    char *index;
    size_t n;

    ck_assert_int_eq(open_with(path, VOCAB, &first), CF_OK);
    index = scratch_read(".d.jsonl.cfidx", &n);
    free(index);
    ck_assert_uint_gt(n, N_LINES * sizeof(cf_index_line));
    ck_assert_int_eq(open_with(path, VOCAB, &second), CF_OK);
    ck_assert_uint_eq(cf_dataset_count(second), N_LINES);
    ck_assert_uint_eq(cf_dataset_hash(first), cf_dataset_hash(second));
    ck_assert_mem_eq(cf_dataset_lengths(first), cf_dataset_lengths(second),
                     N_LINES * sizeof(uint32_t));
    ck_assert_mem_eq(cf_dataset_target_counts(first),
                     cf_dataset_target_counts(second),
                     N_LINES * sizeof(uint32_t));
    ck_assert_uint_eq(cf_dataset_n_sources(second), 7);
    for (uint32_t i = 0; i < N_LINES; i += 997) {
        ck_assert_uint_eq(cf_dataset_source(second, i), i % 7);
        check_line(second, i, 0);
    }
    cf_dataset_close(first);
    cf_dataset_close(second);
    free(path);
}
END_TEST

START_TEST(a_line_that_changes_behind_the_index_is_never_handed_out)
{
    const uint32_t changed = 1000; /* where no sample is taken */
    char *path = large_file();
    cf_dataset *dataset;
    const char *log;

    ck_assert_int_eq(open_with(path, VOCAB, &dataset), CF_OK);
    line_replace(path, changed, 1);
    check_line(dataset, changed - 1, 0);
    errors_begin();
    ck_assert_int_eq(cf_dataset_prepare(dataset, &changed, 1), CF_MALFORMED);
    log = errors_end();
    ck_assert_ptr_nonnull(strstr(log, "d.jsonl:1001: has changed"));
    cf_dataset_close(dataset);

    /* The next start trusts the stamp, and still does not hand it out. */
    ck_assert_int_eq(open_with(path, VOCAB, &dataset), CF_OK);
    errors_begin();
    ck_assert_int_eq(cf_dataset_prepare(dataset, &changed, 1), CF_MALFORMED);
    (void)errors_end();
    cf_dataset_close(dataset);

    /* A new time of change, or no index: it is read again. */
    ck_assert_int_eq(utimensat(AT_FDCWD, path, NULL, 0), 0);
    ck_assert_int_eq(open_with(path, VOCAB, &dataset), CF_OK);
    check_line(dataset, changed, 1);
    cf_dataset_close(dataset);
    free(path);
}
END_TEST

START_TEST(a_damaged_index_is_written_anew)
{
    char *path = large_file();
    cf_dataset *dataset;
    char *good, *again;
    size_t n, n_again;
    uint64_t hash;

    ck_assert_int_eq(open_with(path, VOCAB, &dataset), CF_OK);
    hash = cf_dataset_hash(dataset);
    cf_dataset_close(dataset);
    good = scratch_read(".d.jsonl.cfidx", &n);
    good[n / 2] ^= 1;
    (void)scratch_write(".d.jsonl.cfidx", good, n);
    good[n / 2] ^= 1;
    ck_assert_int_eq(open_with(path, VOCAB, &dataset), CF_OK);
    ck_assert_uint_eq(cf_dataset_hash(dataset), hash);
    cf_dataset_close(dataset);
    again = scratch_read(".d.jsonl.cfidx", &n_again);
    ck_assert_uint_eq(n_again, n);
    ck_assert_mem_eq(again, good, n);
    free(again);
    free(good);
    free(path);
}
END_TEST

START_TEST(a_smaller_vocabulary_is_refused_by_line_though_there_is_an_index)
{
    char *path = large_file();
    cf_dataset *dataset;
    const char *log;

    ck_assert_int_eq(open_with(path, VOCAB, &dataset), CF_OK);
    cf_dataset_close(dataset);
    errors_begin();
    ck_assert_int_eq(open_with(path, 89, &dataset), CF_MALFORMED);
    log = errors_end();
    ck_assert_ptr_nonnull(strstr(log, "is 89, outside the model's vocabulary"));
    ck_assert_ptr_nonnull(strstr(log, "d.jsonl:"));
    ck_assert_int_eq(open_with(path, 90, &dataset), CF_OK);
    cf_dataset_close(dataset);
    free(path);
}
END_TEST

START_TEST(a_small_file_gets_no_second_file)
{
    char *path = strdup(scratch_write_text("s.jsonl", "{\"input_ids\":[1]}\n"));
    cf_dataset *dataset;

    ck_assert_int_eq(open_with(path, VOCAB, &dataset), CF_OK);
    cf_dataset_close(dataset);
    ck_assert_int_ne(access(scratch_path(".s.jsonl.cfidx"), F_OK), 0);
    free(path);
}
END_TEST

/* ---- the hash of the content ---- */

static uint64_t hash_of(const char *text)
{
    char *path = strdup(scratch_write_text("h.jsonl", text));
    cf_dataset *dataset;
    uint64_t hash;

    ck_assert_int_eq(open_with(path, VOCAB, &dataset), CF_OK);
    hash = cf_dataset_hash(dataset);
    cf_dataset_close(dataset);
    free(path);
    return hash;
}

START_TEST(the_hash_is_of_tokens_and_targets_and_of_nothing_else)
{
    static const char *const same[] = {
        "{\"input_ids\":[1,2,3]}\n{\"input_ids\":[]}\n",
        "{ \"id\": 1, \"input_ids\": [1, 2, 3] }\r\n{\"input_ids\":[]}",
        "{\"labels\":[9,2,3],\"input_ids\":[1,2,3]}\n"
        "{\"source\":\"x\",\"input_ids\":[]}\n",
    };
    static const char *const others[] = {
        "{\"input_ids\":[1,2,3]}\n",
        "{\"input_ids\":[]}\n{\"input_ids\":[1,2,3]}\n",
        "{\"input_ids\":[1,3,2]}\n{\"input_ids\":[]}\n",
        "{\"input_ids\":[1,2]}\n{\"input_ids\":[3]}\n",
        "{\"input_ids\":[1,2,3],\"labels\":[1,-100,3]}\n{\"input_ids\":[]}\n",
        "{\"input_ids\":[1,2,3]}\n{\"input_ids\":[]}\n{\"input_ids\":[]}\n",
        "{\"input_ids\":[0]}\n",
        "{\"input_ids\":[0,0]}\n",
    };
    const uint64_t hash = hash_of(same[0]);

    for (size_t i = 1; i < sizeof(same) / sizeof(same[0]); i++)
        ck_assert_uint_eq(hash_of(same[i]), hash);
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        ck_assert_uint_ne(hash_of(others[i]), hash);
}
END_TEST

static TCase *tcase_of(Suite *suite, const char *name)
{
    TCase *tcase = tcase_create(name);

    tcase_add_checked_fixture(tcase, open_scratch, close_scratch);
    tcase_set_timeout(tcase, 120);
    suite_add_tcase(suite, tcase);
    return tcase;
}

int main(void)
{
    Suite *suite = suite_create("dataset_index");
    TCase *readers = tcase_of(suite, "readers");
    TCase *file = tcase_of(suite, "file");
    TCase *dataset = tcase_of(suite, "dataset");
    SRunner *runner;
    int failed;

    tcase_add_loop_test(readers,
                        the_fast_reader_takes_plain_lines_and_no_others, 0,
                        N_EXAMPLES);
    tcase_add_test(readers, the_fast_reader_never_differs_from_jansson);
    tcase_add_test(file, an_index_is_read_back_as_it_was);
    tcase_add_test(file, an_index_of_other_content_is_none);
    tcase_add_test(file, a_damaged_index_is_none);
    tcase_add_loop_test(file, an_index_that_lies_is_none, 0, 8);
    tcase_add_test(file, where_the_folder_is_shut_the_index_goes_to_the_cache);
    tcase_add_test(file, where_both_are_shut_there_is_a_warning);
    tcase_add_test(dataset, an_indexed_file_opens_as_the_file_itself);
    tcase_add_test(dataset,
                   a_line_that_changes_behind_the_index_is_never_handed_out);
    tcase_add_test(dataset, a_damaged_index_is_written_anew);
    tcase_add_test(
        dataset,
        a_smaller_vocabulary_is_refused_by_line_though_there_is_an_index);
    tcase_add_test(dataset, a_small_file_gets_no_second_file);
    tcase_add_test(dataset,
                   the_hash_is_of_tokens_and_targets_and_of_nothing_else);

    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
