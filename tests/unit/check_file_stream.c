/* check_file_stream.c - every byte to its place, by whichever way it goes. */
#include "src/file_stream.h"

#include "tests/lib/temp_folder.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    FILE_BYTES = 5 * CF_FILE_STREAM_BYTES + 1234,
    WRITERS = 2
};

/* Lengths around blocks and buffers, and any. */
static size_t random_length(void)
{
    static const size_t edges[] = {0, CF_FILE_BLOCK_BYTES, CF_FILE_STREAM_BYTES,
                                   2 * CF_FILE_STREAM_BYTES};
    size_t n = edges[random() % 4];

    switch (random() % 3) {
    case 0:
        return n + (size_t)(random() % 3);
    case 1:
        return n > 0 ? n - 1 : 1;
    default:
        return 1 + (size_t)(random() % (3 * CF_FILE_BLOCK_BYTES));
    }
}

/* Cut a file into pieces and have two streams write them, each piece by one of
 * them and some of them left out: those keep what the file had. */
static void write_pieces(const char *path, char *wanted)
{
    cf_file_stream streams[WRITERS];
    size_t n;

    for (int w = 0; w < WRITERS; w++)
        ck_assert_int_eq(cf_file_stream_open(&streams[w], path), 0);
    for (size_t at = 0; at < FILE_BYTES; at += n) {
        long writer = random() % (WRITERS + 1);

        n = random_length();
        if (n > FILE_BYTES - at)
            n = FILE_BYTES - at;
        if (writer == WRITERS)
            continue;
        for (size_t i = at; i < at + n; i++)
            wanted[i] = (char)random();
        ck_assert_int_eq(
            cf_file_stream_put(&streams[writer], wanted + at, n, at), 0);
    }
    for (int w = 0; w < WRITERS; w++) {
        ck_assert_int_eq(cf_file_stream_flush(&streams[w]), 0);
        ck_assert_int_eq(cf_file_stream_sync(&streams[w]), 0);
        ck_assert_int_eq(cf_file_stream_close(&streams[w]), 0);
    }
}

static void check_rounds(const char *path, int fd, int rounds)
{
    char *wanted = calloc(1, FILE_BYTES);
    char *got = malloc(FILE_BYTES);

    ck_assert_int_eq(ftruncate(fd, FILE_BYTES), 0);
    for (int round = 0; round < rounds; round++) {
        srandom((unsigned)round);
        write_pieces(path, wanted);
        ck_assert_int_eq(pread(fd, got, FILE_BYTES, 0), FILE_BYTES);
        ck_assert_msg(memcmp(got, wanted, FILE_BYTES) == 0, "round %d", round);
    }
    free(got);
    free(wanted);
}

START_TEST(pieces_of_two_writers_are_where_they_belong)
{
    char *folder = temp_folder_open();
    char path[4096];
    int fd;

    (void)snprintf(path, sizeof(path), "%s/file", folder);
    fd = open(path, O_RDWR | O_CREAT, 0666);
    check_rounds(path, fd, 20);
    close(fd);
    temp_folder_close(folder);
}
END_TEST

/* In memory there may be no direct writes. */
START_TEST(so_they_are_without_direct_writes)
{
    int fd = memfd_create("check_file_stream", 0);
    char path[64];

    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    check_rounds(path, fd, 20);
    close(fd);
}
END_TEST

START_TEST(a_file_that_is_missing_is_an_error)
{
    cf_file_stream stream;

    ck_assert_int_eq(cf_file_stream_open(&stream, "/nowhere/file"), -1);
    ck_assert_int_eq(errno, ENOENT);
    ck_assert_int_eq(cf_file_stream_close(&stream), 0);
}
END_TEST

/* As all writes to /dev/full: the error comes with the flush at the latest. */
START_TEST(a_full_disk_is_an_error)
{
    static char bytes[CF_FILE_BLOCK_BYTES * 3];
    cf_file_stream stream;

    ck_assert_int_eq(cf_file_stream_open(&stream, "/dev/full"), 0);
    ck_assert_int_eq(cf_file_stream_put(&stream, bytes, sizeof(bytes), 5), 0);
    ck_assert_int_eq(cf_file_stream_flush(&stream), -1);
    ck_assert_int_eq(errno, ENOSPC);
    ck_assert_int_eq(cf_file_stream_close(&stream), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("file_stream");
    TCase *tcase = tcase_create("file_stream");
    SRunner *runner = srunner_create(suite);
    int n_failed;

    tcase_add_test(tcase, pieces_of_two_writers_are_where_they_belong);
    tcase_add_test(tcase, so_they_are_without_direct_writes);
    tcase_add_test(tcase, a_file_that_is_missing_is_an_error);
    tcase_add_test(tcase, a_full_disk_is_an_error);
    suite_add_tcase(suite, tcase);
    srunner_run_all(runner, CK_ENV);
    n_failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return n_failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
