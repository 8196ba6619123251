/* check_ledger.c - the account of every sequence, and files that are whole. */
#include <check.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/file_write.h"
#include "src/ledger.h"
#include "tests/lib/scratch.h"

static cf_ledger ledger_of_each_kind(void)
{
    cf_ledger ledger = {0};

    cf_ledger_add(&ledger, 10, 9, 0);
    cf_ledger_add(&ledger, 20, 3, 20);  /* as long as allowed */
    cf_ledger_add(&ledger, 5, 0, 0);    /* all masked */
    cf_ledger_add(&ledger, 1, 0, 0);    /* nothing to predict */
    cf_ledger_add(&ledger, 0, 0, 0);    /* nothing at all */
    cf_ledger_add(&ledger, 21, 20, 20); /* too long */
    cf_ledger_add(&ledger, 100, 0, 20); /* too long, and masked: skipped */
    return ledger;
}

START_TEST(each_sequence_is_trained_masked_or_skipped)
{
    cf_ledger ledger = ledger_of_each_kind();

    ck_assert_uint_eq(ledger.read.sequences, 7);
    ck_assert_uint_eq(ledger.read.tokens, 157);
    ck_assert_uint_eq(ledger.trained.sequences, 2);
    ck_assert_uint_eq(ledger.trained.tokens, 30);
    ck_assert_uint_eq(ledger.trained_target_tokens, 12);
    ck_assert_uint_eq(ledger.masked.sequences, 3);
    ck_assert_uint_eq(ledger.masked.tokens, 6);
    ck_assert_uint_eq(ledger.skipped_max_length.sequences, 2);
    ck_assert_uint_eq(ledger.skipped_max_length.tokens, 121);
}
END_TEST

START_TEST(a_ledger_balances_whatever_comes_in)
{
    uint64_t random = scratch_seed();
    cf_ledger ledger = {0};

    for (int i = 0; i < 10000; i++) {
        uint32_t n_tok = (uint32_t)scratch_random_below(&random, 50);
        uint32_t n_targets = (uint32_t)scratch_random_below(&random, n_tok + 1);

        cf_ledger_add(&ledger, n_tok, n_tok > 1 ? n_targets : 0,
                      (uint32_t)scratch_random_below(&random, 60));
    }
    ck_assert_uint_eq(ledger.read.sequences, 10000);
    ck_assert_uint_eq(ledger.read.sequences,
                      ledger.trained.sequences + ledger.masked.sequences +
                          ledger.skipped_max_length.sequences);
    ck_assert_uint_eq(ledger.read.tokens, ledger.trained.tokens +
                                              ledger.masked.tokens +
                                              ledger.skipped_max_length.tokens);
}
END_TEST

START_TEST(a_line_for_people_says_why_something_was_skipped)
{
    cf_ledger ledger = ledger_of_each_kind();
    char line[256];

    ck_assert_uint_eq(cf_ledger_format(&ledger, NULL, 0),
                      cf_ledger_format(&ledger, line, sizeof(line)));
    ck_assert_str_eq(line, "read 7 sequences, 157 tokens = trained 2 (30) + "
                           "masked 3 (6) + skipped 2 (121), longer than "
                           "--max-length");
    memset(&ledger.skipped_max_length, 0, sizeof(ledger.skipped_max_length));
    (void)cf_ledger_format(&ledger, line, sizeof(line));
    ck_assert_ptr_null(strstr(line, "longer"));
}
END_TEST

static void check_count(const json_t *object, uint64_t sequences,
                        uint64_t tokens)
{
    ck_assert_int_eq(json_integer_value(json_object_get(object, "sequences")),
                     (json_int_t)sequences);
    ck_assert_int_eq(json_integer_value(json_object_get(object, "tokens")),
                     (json_int_t)tokens);
}

START_TEST(the_file_has_the_keys_of_the_interface)
{
    cf_ledger ledger = ledger_of_each_kind();
    json_t *root;
    json_t *reasons;

    ck_assert_int_eq(cf_ledger_write(&ledger, scratch_path("ledger.json")),
                     CF_OK);
    root = json_load_file(scratch_path("ledger.json"), 0, NULL);
    ck_assert_uint_eq(json_object_size(root), 4);
    check_count(json_object_get(root, "read"), 7, 157);
    check_count(json_object_get(root, "trained"), 2, 30);
    ck_assert_int_eq(json_integer_value(json_object_get(
                         json_object_get(root, "trained"), "target_tokens")),
                     12);
    check_count(json_object_get(root, "masked"), 3, 6);
    check_count(json_object_get(root, "skipped"), 2, 121);
    reasons = json_object_get(json_object_get(root, "skipped"), "reasons");
    check_count(json_object_get(reasons, "max_length"), 2, 121);
    json_decref(root);

    memset(&ledger.skipped_max_length, 0, sizeof(ledger.skipped_max_length));
    ck_assert_int_eq(cf_ledger_write(&ledger, scratch_path("ledger.json")),
                     CF_OK);
    root = json_load_file(scratch_path("ledger.json"), 0, NULL);
    reasons = json_object_get(json_object_get(root, "skipped"), "reasons");
    ck_assert(json_is_object(reasons));
    ck_assert_uint_eq(json_object_size(reasons), 0);
    json_decref(root);
    ck_assert_int_ne(access(scratch_path("ledger.json.tmp"), F_OK), 0);
}
END_TEST

static cf_status write_half(FILE *file, const void *content)
{
    (void)fputs(content, file);
    return CF_IO;
}

START_TEST(a_failed_write_keeps_the_old_file_and_leaves_nothing)
{
    const char *log;
    char *text;

    (void)scratch_write_text("file", "old");
    errors_begin();
    ck_assert_int_eq(cf_file_write(scratch_path("file"), write_half, "new"),
                     CF_IO);
    log = errors_end();
    ck_assert_ptr_nonnull(strstr(log, "cannot write it"));
    text = scratch_read("file", NULL);
    ck_assert_str_eq(text, "old");
    free(text);
    ck_assert_int_ne(access(scratch_path("file.tmp"), F_OK), 0);
}
END_TEST

START_TEST(a_folder_that_is_not_there_is_named)
{
    cf_ledger ledger = {0};
    const char *log;

    errors_begin();
    ck_assert_int_eq(cf_ledger_write(&ledger, scratch_path("none/x.json")),
                     CF_IO);
    log = errors_end();
    ck_assert_ptr_nonnull(strstr(log, "none/x.json"));
    ck_assert_ptr_nonnull(strstr(log, "No such file"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ledger");
    TCase *ledger = tcase_create("cf_ledger");
    SRunner *runner;
    int failed;

    tcase_add_checked_fixture(ledger, scratch_open, scratch_close);
    tcase_add_test(ledger, each_sequence_is_trained_masked_or_skipped);
    tcase_add_test(ledger, a_ledger_balances_whatever_comes_in);
    tcase_add_test(ledger, a_line_for_people_says_why_something_was_skipped);
    tcase_add_test(ledger, the_file_has_the_keys_of_the_interface);
    tcase_add_test(ledger,
                   a_failed_write_keeps_the_old_file_and_leaves_nothing);
    tcase_add_test(ledger, a_folder_that_is_not_there_is_named);
    suite_add_tcase(suite, ledger);

    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
