/* kv_file.h - room for KV state in a file: for sequences whose keys, values and
 * gradients are more than memory.
 *
 * The file has no name, so that it is gone with the process, however that ends.
 * It is mapped: kernels read and write it as memory, and no bit changes.  Its disk
 * space is there before the first step.  What the system keeps of it in memory it
 * can take back at any time; want and leave tell it what comes next.
 */
#ifndef CF_KV_FILE_H
#define CF_KV_FILE_H

#include <chunkflow/base.h>

/* What a mapping is told of begins and ends at multiples of this. */
#define CF_KV_FILE_ALIGN ((size_t)4096)

typedef struct cf_kv_file {
    void *at; /* NULL: there is none */
    size_t bytes;
} cf_kv_file;

/* A file in that folder.  Errors, logged: CF_IO. */
CF_MUST_USE cf_status cf_kv_file_open(const char *folder, size_t bytes,
                                      cf_kv_file *file_p);
void cf_kv_file_close(cf_kv_file *file);

/* These bytes will be read soon; those will not be for a while. */
void cf_kv_file_want(void *at, size_t bytes);
void cf_kv_file_leave(void *at, size_t bytes);

#endif
