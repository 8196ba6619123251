/* dataset_line.h - one line of pre-tokenised JSONL: private to dataset*.c.
 *
 * {"input_ids": [...], "labels": [...], "source": "..."}, the last two optional
 * (docs/data.md).
 */
#ifndef CF_DATASET_LINE_H
#define CF_DATASET_LINE_H

#include <chunkflow/base.h>

#include <stdbool.h>

typedef struct cf_tok_array {
    uint32_t *tok; /* owned */
    size_t capacity;
} cf_tok_array;

/* A line as it was read last; all zero before.  Its arrays are used again by the
 * next one. */
typedef struct cf_line {
    cf_tok_array ids;
    cf_tok_array targets; /* shifted; CF_NO_TARGET where there is none */
    uint32_t n_tok;
    uint32_t n_targets;
    uint32_t largest; /* of all ids and labels; 0 when there is none */
    char *source;     /* owned; NULL: none */
} cf_line;

/* Where a line is, for messages, and what its ids must be below. */
typedef struct cf_line_place {
    const char *path;
    size_t number; /* from 1 */
    uint32_t vocab;
} cf_line_place;

/* Read a line of n bytes, without its newline.  Errors, logged: CF_MALFORMED;
 * not logged: CF_NO_MEMORY. */
CF_MUST_USE cf_status cf_line_read(cf_line *line, const cf_line_place *place,
                                   const char *text, size_t n);
void cf_line_close(cf_line *line);

/* The same for a line as tools write it: plain lists of whole numbers, plain
 * ASCII names, nothing unusual; an order of magnitude faster.  *taken_p is false
 * when it is anything else, good or bad: the line is then unspecified.
 * Errors: CF_NO_MEMORY. */
CF_MUST_USE cf_status cf_line_read_plain(cf_line *line, uint32_t vocab,
                                         const char *text, size_t n,
                                         bool *taken_p);

/* What Hugging Face writes where there is no loss. */
enum {
    CF_LABEL_OF_NO_TARGET = -100
};

#endif
