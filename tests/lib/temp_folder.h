/* temp_folder.h - folders that tests write to, and what they say meanwhile. */
#ifndef CF_TEST_TEMP_FOLDER_H
#define CF_TEST_TEMP_FOLDER_H

#include <stdbool.h>
#include <stddef.h>

/* A new, empty folder.  close removes it with all that is in it. */
char *temp_folder_open(void);
void temp_folder_close(char *folder);

/* A file of the folder, whole. */
void temp_file_write(const char *folder, const char *name, const void *bytes,
                     size_t n);
void temp_file_write_text(const char *folder, const char *name,
                          const char *text);

/* With a NUL behind it; free() it.  Fails the test when there is none. */
char *temp_file_read(const char *folder, const char *name, size_t *n_p);

bool temp_file_exists(const char *folder, const char *name);

/* Entries of the folder. */
size_t temp_folder_count(const char *folder);

/* Standard error from begin to end, as text: for log lines. */
typedef struct captured_log {
    int saved;
    int file;
    char text[8192];
} captured_log;

void captured_log_begin(captured_log *log);
void captured_log_end(captured_log *log);

/* Whether the text is exactly one line, an error, that has the part in it. */
bool captured_log_is_error(const captured_log *log, const char *part);

#endif
