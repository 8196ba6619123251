/* append_file.h - a file that a run adds records to while it goes on.
 *
 * (1) Nothing is allocated after open for records of less than 64 KiB.
 * (2) A full disk is waited for: what does not fit stays in memory, told once,
 *     and a torn record is completed when there is room again.
 */
#ifndef CF_APPEND_FILE_H
#define CF_APPEND_FILE_H

#include <chunkflow/base.h>

#include <stdbool.h>
#include <stdio.h>

typedef struct cf_append_file {
    FILE *records; /* in memory: write the next record here, then flush */
    int fd;
    char *path;
    char *pending; /* owned by records: what is not in the file yet */
    size_t n_pending;
    size_t n_out;   /* bytes of it that are in the file */
    bool is_behind; /* told that the disk is full */
} cf_append_file;

/* At the end of the file, which is made when it is not there.  Errors, logged:
 * CF_IO, CF_NO_MEMORY. */
CF_MUST_USE cf_status cf_append_file_open(const char *path,
                                          cf_append_file **file_p);
void cf_append_file_close(cf_append_file *file);

/* The records so far, as far as there is room for them.  Errors, logged:
 * CF_IO. */
CF_MUST_USE cf_status cf_append_file_flush(cf_append_file *file);

/* After the last record: all of them are in the file.  Errors, logged: CF_IO. */
CF_MUST_USE cf_status cf_append_file_settle(cf_append_file *file);

#endif
