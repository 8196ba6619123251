/* scratch.h - a folder for the files of a test, and what it logs. */
#ifndef SCRATCH_H
#define SCRATCH_H

#include <stddef.h>
#include <stdint.h>

/* Make a fresh folder, and remove it with all its files: checked fixtures. */
void scratch_open(void);
void scratch_close(void);

/* The path of a file in it; valid until the fourth next call. */
const char *scratch_path(const char *name);

/* Write a file in it; gives its path. */
const char *scratch_write(const char *name, const void *bytes, size_t n_bytes);
const char *scratch_write_text(const char *name, const char *text);

/* Its content with a NUL behind it; free() it. */
char *scratch_read(const char *name, size_t *n_bytes_p);

/* What is written to standard error (or output) between the two; the text is
 * valid until the next end. */
void errors_begin(void);
const char *errors_end(void);
void output_begin(void);
const char *output_end(void);

/* xorshift64*; a state is never 0.  The seed is CF_TEST_SEED or a constant, and
 * is printed. */
uint64_t scratch_seed(void);
uint64_t scratch_random(uint64_t *state);
uint64_t scratch_random_below(uint64_t *state, uint64_t limit);

/* Change, insert, drop or repeat a few bytes in place; gives the new size, at
 * most capacity. */
size_t scratch_mutate(uint64_t *state, unsigned char *bytes, size_t n_bytes,
                      size_t capacity);

#endif
