/* dataset_index.h - the index of a JSONL file, kept beside it: private to
 * dataset*.c.
 *
 * It says where each line is, how many tokens and targets it has, and what their
 * hash is, so that a file is read from end to end once and not at every start.
 */
#ifndef CF_DATASET_INDEX_H
#define CF_DATASET_INDEX_H

#include "src/dataset_part.h"

#include <stdbool.h>

#define CF_INDEX_NO_SOURCE UINT32_MAX

/* As it is in the file, too. */
typedef struct cf_index_line {
    uint64_t offset;
    uint64_t hash;    /* cf_tokens_hash_end */
    uint32_t n_bytes; /* without the newline */
    uint32_t n_tok;
    uint32_t n_targets;
    uint32_t source; /* into sources, or CF_INDEX_NO_SOURCE */
} cf_index_line;

typedef struct cf_jsonl_index {
    cf_index_line *lines; /* owned */
    size_t n;
    size_t capacity;
    cf_name_list sources;
    uint32_t largest; /* of all ids and labels */
} cf_jsonl_index;

/* What tells a file from a changed one without reading it whole: as in the
 * index file, too. */
typedef struct cf_file_stamp {
    uint64_t bytes;
    int64_t mtime_s;
    int64_t mtime_ns;
    uint64_t sample; /* hash of its head, its tail and 62 places between */
} cf_file_stamp;

/* False when the file cannot be read: errno says why. */
bool cf_file_stamp_read(int fd, cf_file_stamp *stamp_p);
bool cf_file_stamp_equal(const cf_file_stamp *a, const cf_file_stamp *b);

/* The index of the data file of this path and stamp: the file beside it, or the
 * one in the user's cache folder, that is whole and of this very content.
 * *found_p false: there is none.  Errors: CF_NO_MEMORY. */
CF_MUST_USE cf_status cf_jsonl_index_read(const char *path,
                                          const cf_file_stamp *stamp,
                                          cf_jsonl_index *index_p,
                                          bool *found_p);

/* Keep it for the next start.  That it cannot be kept anywhere is a warning. */
void cf_jsonl_index_write(const char *path, const cf_file_stamp *stamp,
                          const cf_jsonl_index *index);

void cf_jsonl_index_close(cf_jsonl_index *index);

#endif
