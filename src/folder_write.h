/* folder_write.h - a folder that is complete, or not there.
 *
 * It is written under a temporary name beside its own and renamed when everything
 * in it is on the disk; an older one of its name is replaced only then.
 */
#ifndef CF_FOLDER_WRITE_H
#define CF_FOLDER_WRITE_H

#include <chunkflow/base.h>

#include "src/comm.h"

/* Writes, and syncs, what is to be in the folder.  All ranks call it, and it
 * fails on all of them alike. */
typedef cf_status (*cf_folder_filler)(const void *context, const char *folder);

/* All ranks write into one file system; rank 0 makes and names the folder.
 * Errors, logged, and the same on all ranks: CF_IO, CF_NO_MEMORY, and those of
 * fill. */
CF_MUST_USE cf_status cf_folder_write(cf_comm *comm, const char *to,
                                      cf_folder_filler fill,
                                      const void *context);

/* A small file of it, synced.  Errors, logged: CF_IO, CF_NO_MEMORY. */
CF_MUST_USE cf_status cf_folder_write_text(const char *folder, const char *name,
                                           const char *text, size_t n);

#endif
