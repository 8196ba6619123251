/* check_tfevents.c - the event file for TensorBoard: its bytes, and what stays of
 * it when a run goes on. */
#include <check.h>
#include <dirent.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/tfevents.h"
#include "tests/lib/scratch.h"

START_TEST(the_checksum_is_castagnolis)
{
    /* RFC 3720, appendix B.4, and the usual check value. */
    unsigned char bytes[32];

    ck_assert_uint_eq(cf_crc32c("123456789", 9), 0xe3069283);
    memset(bytes, 0, sizeof(bytes));
    ck_assert_uint_eq(cf_crc32c(bytes, sizeof(bytes)), 0x8a9136aa);
    memset(bytes, 0xff, sizeof(bytes));
    ck_assert_uint_eq(cf_crc32c(bytes, sizeof(bytes)), 0x62a8ab43);
    for (unsigned i = 0; i < sizeof(bytes); i++)
        bytes[i] = (unsigned char)i;
    ck_assert_uint_eq(cf_crc32c(bytes, sizeof(bytes)), 0x46dd794e);
}
END_TEST

static const char *folder(void)
{
    static char path[512];
    const char *inside = scratch_path("x");

    (void)snprintf(path, sizeof(path), "%.*s", (int)(strlen(inside) - 2),
                   inside);
    return path;
}

/* The names of the event files of the folder; the number of them. */
static size_t files_find(char name[256])
{
    DIR *dir = opendir(folder());
    const struct dirent *entry;
    size_t n = 0;

    while ((entry = readdir(dir)) != NULL)
        if (fnmatch("events.out.tfevents.*", entry->d_name, 0) == 0) {
            (void)snprintf(name, 256, "%s", entry->d_name);
            n++;
        }
    closedir(dir);
    return n;
}

/* Events of the steps first .. last, one scalar each, in the run's file. */
static void steps_append(uint64_t first, uint64_t last)
{
    cf_tfevents *file = NULL;

    ck_assert_int_eq(cf_tfevents_open(folder(), &file), CF_OK);
    for (uint64_t step = first; step <= last; step++) {
        const cf_tfevents_scalar loss = {"train/loss", 1.5};

        ck_assert_int_eq(cf_tfevents_append(file, step, &loss, 1), CF_OK);
    }
    ck_assert_int_eq(cf_tfevents_settle(file), CF_OK);
    cf_tfevents_close(file);
}

/* The only event file; free() its bytes. */
static char *content(size_t *n_p)
{
    char name[256];

    ck_assert_uint_eq(files_find(name), 1);
    return scratch_read(name, n_p);
}

/* Of an event with a step below 128 and one scalar "train/loss". */
enum {
    VERSION_BYTES = 12 + 24 + 4,
    EVENT_BYTES = 12 + 32 + 4
};

START_TEST(an_event_has_the_bytes_of_the_format)
{
    static const unsigned char behind_the_time[] =
        "\x10\x07"         /* step 7 */
        "\x2a\x13\x0a\x11" /* summary, value */
        "\x0a\x0a"
        "train/loss"            /* tag */
        "\x15\x00\x00\xc0\x3f"; /* 1.5f */
    size_t n;
    char *bytes;
    uint64_t length;

    steps_append(7, 7);
    bytes = content(&n);
    ck_assert_uint_eq(n, VERSION_BYTES + EVENT_BYTES);
    memcpy(&length, bytes, 8);
    ck_assert_uint_eq(length, 24);
    ck_assert_int_eq(memcmp(bytes + 12 + 9,
                            "\x1a\x0d"
                            "brain.Event:2",
                            15),
                     0);
    memcpy(&length, bytes + VERSION_BYTES, 8);
    ck_assert_uint_eq(length, 32);
    ck_assert_int_eq(memcmp(bytes + VERSION_BYTES + 12 + 9, behind_the_time,
                            sizeof(behind_the_time) - 1),
                     0);
    free(bytes);
}
END_TEST

START_TEST(what_is_not_finite_is_left_out)
{
    const cf_tfevents_scalar scalars[] = {{"a", strtod("nan", NULL)},
                                          {"b", strtod("inf", NULL)},
                                          {"train/loss", 1.5}};
    cf_tfevents *file = NULL;
    size_t n;
    char *bytes;

    ck_assert_int_eq(cf_tfevents_open(folder(), &file), CF_OK);
    ck_assert_int_eq(cf_tfevents_append(file, 7, scalars, 3), CF_OK);
    cf_tfevents_close(file);
    bytes = content(&n);
    ck_assert_uint_eq(n, VERSION_BYTES + EVENT_BYTES);
    free(bytes);
}
END_TEST

START_TEST(a_resumed_run_goes_on_in_the_same_file_without_a_step_twice)
{
    size_t n, n_whole;
    char *bytes;

    steps_append(1, 5);
    bytes = content(&n);
    free(bytes);
    for (uint64_t step = 0; step <= 6; step++) {
        const uint64_t left = step < 5 ? step : 5;

        ck_assert_int_eq(cf_tfevents_cut(folder(), step), CF_OK);
        bytes = content(&n_whole);
        free(bytes);
        ck_assert_uint_eq(n_whole, VERSION_BYTES + left * EVENT_BYTES);
        steps_append(left + 1, 5);
        bytes = content(&n_whole);
        free(bytes);
        ck_assert_uint_eq(n_whole, n);
    }
}
END_TEST

START_TEST(a_torn_or_damaged_record_is_cut_off)
{
    size_t n, n_left;
    char *bytes, *left;
    char name[256];

    steps_append(1, 2);
    bytes = content(&n);
    ck_assert_uint_eq(files_find(name), 1);
    for (size_t torn = VERSION_BYTES + EVENT_BYTES; torn < n; torn++) {
        scratch_write(name, bytes, torn);
        ck_assert_int_eq(cf_tfevents_cut(folder(), 9), CF_OK);
        left = content(&n_left);
        free(left);
        ck_assert_uint_eq(n_left, VERSION_BYTES + EVENT_BYTES);
    }
    for (size_t at = VERSION_BYTES + EVENT_BYTES; at < n; at++) {
        bytes[at] ^= 1;
        scratch_write(name, bytes, n);
        bytes[at] ^= 1;
        ck_assert_int_eq(cf_tfevents_cut(folder(), 9), CF_OK);
        left = content(&n_left);
        free(left);
        ck_assert_uint_eq(n_left, VERSION_BYTES + EVENT_BYTES);
    }
    free(bytes);
}
END_TEST

START_TEST(a_file_in_which_nothing_is_left_goes)
{
    char name[256];

    scratch_write_text("events.out.tfevents.1.host", "no event file at all");
    ck_assert_int_eq(cf_tfevents_cut(folder(), 3), CF_OK);
    ck_assert_uint_eq(files_find(name), 0);
    ck_assert_int_eq(cf_tfevents_cut(scratch_path("none"), 3), CF_OK);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tfevents");
    TCase *events = tcase_create("cf_tfevents");
    SRunner *runner;
    int failed;

    tcase_add_checked_fixture(events, scratch_open, scratch_close);
    tcase_add_test(events, the_checksum_is_castagnolis);
    tcase_add_test(events, an_event_has_the_bytes_of_the_format);
    tcase_add_test(events, what_is_not_finite_is_left_out);
    tcase_add_test(events,
                   a_resumed_run_goes_on_in_the_same_file_without_a_step_twice);
    tcase_add_test(events, a_torn_or_damaged_record_is_cut_off);
    tcase_add_test(events, a_file_in_which_nothing_is_left_goes);
    suite_add_tcase(suite, events);

    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
