/* file_write.h - a small file that is either complete or not there. */
#ifndef CF_FILE_WRITE_H
#define CF_FILE_WRITE_H

#include <chunkflow/base.h>

#include <stdio.h>

/* Writes the content; returns CF_IO when a write failed, without logging. */
typedef cf_status (*cf_file_fill)(FILE *file, const void *content);

/* Have fill write PATH.tmp, sync it, and rename it to PATH; an older PATH is
 * replaced only then, and nothing is left behind on failure.
 * Errors, logged: CF_IO, CF_NO_MEMORY. */
CF_MUST_USE cf_status cf_file_write(const char *path, cf_file_fill fill,
                                    const void *content);

/* The same for a file that can be made again, such as a picture: not synced, and
 * nothing is logged.  Errors, in errno: CF_IO, CF_NO_MEMORY. */
CF_MUST_USE cf_status cf_file_replace(const char *path, cf_file_fill fill,
                                      const void *content);

#endif
