/* safetensors_header.h - the header of a safetensors file, checked.
 *
 * Apart from the reader so that it can be fed with bytes that are no file.
 */
#ifndef CF_SAFETENSORS_HEADER_H
#define CF_SAFETENSORS_HEADER_H

#include "src/safetensors.h"

typedef struct cf_tensor_entry {
    cf_tensor tensor;
    char *name; /* owned; the tensor borrows it */
    size_t file;
    uint64_t begin, end; /* bytes from the end of the header */
} cf_tensor_entry;

typedef struct cf_tensor_list {
    cf_tensor_entry *entries;
    size_t n;
} cf_tensor_list;

/* Add the tensors of one file, the bytes at base, to a list that begins as
 * zeros.  path (for messages) and base are borrowed for as long as the list
 * lives; file is a number of the caller's.  After a failure the list may hold
 * some of the file's entries.  Errors, logged: CF_MALFORMED. */
CF_MUST_USE cf_status cf_tensor_list_append(cf_tensor_list *list,
                                            const char *path, size_t file,
                                            const unsigned char *base,
                                            uint64_t bytes);

void cf_tensor_list_close(cf_tensor_list *list);

#endif
