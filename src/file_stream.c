/* file_stream.c - see file_stream.h. */
#include "src/file_stream.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/files.h"

static uint64_t block_down(uint64_t offset)
{
    return offset / CF_FILE_BLOCK_BYTES * CF_FILE_BLOCK_BYTES;
}

static uint64_t block_up(uint64_t offset)
{
    return block_down(offset + CF_FILE_BLOCK_BYTES - 1);
}

int cf_file_stream_open(cf_file_stream *stream, const char *path)
{
    *stream = CF_FILE_STREAM_CLOSED;
    stream->buffer = aligned_alloc(CF_FILE_BLOCK_BYTES, CF_FILE_STREAM_BYTES);
    if (stream->buffer == NULL)
        return -1;
    stream->fd = open(path, O_WRONLY | O_CLOEXEC);
    if (stream->fd < 0)
        return -1;
    stream->direct_fd = open(path, O_WRONLY | O_DIRECT | O_CLOEXEC);
    return 0;
}

/* From the buffer; a byte's place in it is that in its block of the file. */
static int write_out(const cf_file_stream *stream, int fd, uint64_t first,
                     uint64_t behind)
{
    return cf_write_all_at(fd,
                           stream->buffer + (first - block_down(stream->first)),
                           behind - first, first);
}

/* Whole blocks. */
static int write_blocks(cf_file_stream *stream, uint64_t first, uint64_t behind)
{
    if (stream->direct_fd >= 0 &&
        write_out(stream, stream->direct_fd, first, behind) == 0)
        return 0;
    if (stream->direct_fd >= 0 && errno != EINVAL)
        return -1;
    if (stream->direct_fd >= 0) /* larger blocks, or opened all the same */
        (void)close(stream->direct_fd);
    stream->direct_fd = -1;
    return write_out(stream, stream->fd, first, behind);
}

int cf_file_stream_flush(cf_file_stream *stream)
{
    const uint64_t first = stream->first, behind = stream->behind;
    const uint64_t blocks = block_up(first), rest = block_down(behind);
    int result;

    if (blocks >= rest)
        result = write_out(stream, stream->fd, first, behind);
    else if (write_out(stream, stream->fd, first, blocks) != 0 ||
             write_blocks(stream, blocks, rest) != 0)
        result = -1;
    else
        result = write_out(stream, stream->fd, rest, behind);
    stream->first = behind;
    return result;
}

int cf_file_stream_put(cf_file_stream *stream, const void *bytes, size_t n,
                       uint64_t offset)
{
    const char *at = bytes;

    if (offset != stream->behind) {
        if (cf_file_stream_flush(stream) != 0)
            return -1;
        stream->first = stream->behind = offset;
    }
    while (n > 0) {
        uint64_t used = stream->behind - block_down(stream->first);
        size_t n_now = CF_FILE_STREAM_BYTES - used;

        if (n_now > n)
            n_now = n;
        memcpy(stream->buffer + used, at, n_now);
        stream->behind += n_now;
        at += n_now;
        n -= n_now;
        if (used + n_now == CF_FILE_STREAM_BYTES &&
            cf_file_stream_flush(stream) != 0)
            return -1;
    }
    return 0;
}

int cf_file_stream_sync(cf_file_stream *stream)
{
    return fsync(stream->fd);
}

int cf_file_stream_close(cf_file_stream *stream)
{
    int result = 0;

    if (stream->direct_fd >= 0 && close(stream->direct_fd) != 0)
        result = -1;
    if (stream->fd >= 0 && close(stream->fd) != 0)
        result = -1;
    free(stream->buffer);
    *stream = CF_FILE_STREAM_CLOSED;
    return result;
}
