/* lengths.h - a file of lengths in tokens, one a line. */
#ifndef CF_LENGTHS_H
#define CF_LENGTHS_H

#include <chunkflow/base.h>

/* Read them, in file order; free() what comes back.  Errors, logged with file
 * and line: CF_MALFORMED (cannot be read, holds none, or a line is not a whole
 * number from 1 to UINT32_MAX), CF_NO_MEMORY. */
CF_MUST_USE cf_status cf_lengths_read(const char *path, uint32_t **len_tok_p,
                                      size_t *n_p);

#endif
