/* file_stream.h - gigabytes to places of a file, beside a training.
 *
 * Through the page cache they cost seconds of a core that the training wants;
 * whole blocks go past it (O_DIRECT) where the file system can, and what is
 * left at the ends goes through it.  Several processes may write one file, each
 * its own bytes.  Errors: -1 and errno; close in any case.
 */
#ifndef CF_FILE_STREAM_H
#define CF_FILE_STREAM_H

#include <chunkflow/base.h>

enum {
    /* What disks write whole: of 512 or 4096 bytes, all but a few. */
    CF_FILE_BLOCK_BYTES = 4096,
    CF_FILE_STREAM_BYTES = 1 << 20 /* of its buffer */
};

typedef struct cf_file_stream {
    int fd;          /* -1: not open */
    int direct_fd;   /* -1: the file system has no direct writes */
    char *buffer;    /* owned: from the block of `first` on */
    uint64_t first;  /* in the file: bytes that are in the buffer, not yet */
    uint64_t behind; /* written */
} cf_file_stream;

/* What is not open may be closed. */
#define CF_FILE_STREAM_CLOSED ((cf_file_stream){.fd = -1, .direct_fd = -1})

/* A file that is there, to be written to. */
CF_MUST_USE int cf_file_stream_open(cf_file_stream *stream, const char *path);

/* n bytes to a place of the file: cheap when it is where the last ones end. */
CF_MUST_USE int cf_file_stream_put(cf_file_stream *stream, const void *bytes,
                                   size_t n, uint64_t offset);

/* Have it written; then have it on the disk. */
CF_MUST_USE int cf_file_stream_flush(cf_file_stream *stream);
CF_MUST_USE int cf_file_stream_sync(cf_file_stream *stream);

CF_MUST_USE int cf_file_stream_close(cf_file_stream *stream);

#endif
