/* files.h - paths and folders, for those who write whole or not at all. */
#ifndef CF_FILES_H
#define CF_FILES_H

#include <chunkflow/base.h>

/* FOLDER/NAME, or the two joined as they are when separator is "".  free() it;
 * NULL, logged, when out of memory. */
char *cf_path_join(const char *folder, const char *separator, const char *name);

/* All n bytes, or errno and -1; the second and third at a place in the file. */
int cf_write_all(int fd, const void *bytes, size_t n);
int cf_write_all_at(int fd, const void *bytes, size_t n, uint64_t offset);
int cf_read_all_at(int fd, void *bytes, size_t n, uint64_t offset);

/* Log that `what` ("write it") could not be done with a file or folder, from
 * errno, and what to do; on a full disk also how many bytes the file has (0: not
 * known) and how many are free.  Returns CF_IO. */
cf_status cf_io_error(const char *path, const char *what, uint64_t bytes);

/* Make the names in the folder of this path durable.  Errors, logged: CF_IO. */
CF_MUST_USE cf_status cf_folder_sync_of(const char *path);

/* Remove a file, or a folder with all that is in it; links are not followed.
 * Nothing there is fine.  Errors, logged: CF_IO. */
CF_MUST_USE cf_status cf_path_remove(const char *path);

#endif
