/* tfevents_cut.c - what of an event file a resumed run stands behind. */
#include "src/tfevents.h"

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/files.h"
#include "src/log.h"
#include "src/tfevents_record.h"

/* ---- frames ---- */

/* Castagnoli's polynomial, reflected, four bits at a time. */
uint32_t cf_crc32c(const void *bytes, size_t n)
{
    static const uint32_t of_nibble[16] = {
        0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3,
        0x61c69362, 0x7198540d, 0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9,
        0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
    };
    const unsigned char *b = bytes;
    uint32_t crc = UINT32_MAX;

    for (size_t i = 0; i < n; i++) {
        crc ^= b[i];
        crc = crc >> 4 ^ of_nibble[crc & 15];
        crc = crc >> 4 ^ of_nibble[crc & 15];
    }
    return ~crc;
}

/* So that a checksum of bytes that hold checksums is one. */
static uint32_t masked_crc(const void *bytes, size_t n)
{
    const uint32_t crc = cf_crc32c(bytes, n);

    return (crc >> 15 | crc << 17) + UINT32_C(0xa282ead8);
}

void cf_tfevents_frame(const void *record, size_t n, unsigned char *head,
                       unsigned char *tail)
{
    const uint64_t length = n;
    const uint32_t head_crc = masked_crc(&length, sizeof(length));
    const uint32_t tail_crc = masked_crc(record, n);

    memcpy(head, &length, sizeof(length));
    memcpy(head + sizeof(length), &head_crc, sizeof(head_crc));
    memcpy(tail, &tail_crc, sizeof(tail_crc));
}

/* ---- reading ---- */

/* A whole record of ours at the file's place; *n_p is its length. */
static bool record_read(FILE *file, unsigned char *record, size_t *n_p)
{
    unsigned char head[CF_TFEVENTS_HEAD_BYTES], tail[CF_TFEVENTS_TAIL_BYTES];
    unsigned char head_wanted[CF_TFEVENTS_HEAD_BYTES];
    unsigned char tail_wanted[CF_TFEVENTS_TAIL_BYTES];
    uint64_t n;

    if (fread(head, 1, sizeof(head), file) != sizeof(head))
        return false;
    memcpy(&n, head, sizeof(n));
    if (n > CF_TFEVENTS_RECORD_MAX || fread(record, 1, n, file) != n ||
        fread(tail, 1, sizeof(tail), file) != sizeof(tail))
        return false;
    cf_tfevents_frame(record, (size_t)n, head_wanted, tail_wanted);
    *n_p = (size_t)n;
    return memcmp(head, head_wanted, sizeof(head)) == 0 &&
           memcmp(tail, tail_wanted, sizeof(tail)) == 0;
}

/* The step of an event: a varint behind the wall time; 0 when it has none, as
 * the record of the version. */
static uint64_t step_of(const unsigned char *record, size_t n)
{
    enum {
        AT = 9, /* bytes of the wall time and its key */
        KEY = 2 << 3
    };
    uint64_t step = 0;

    if (n <= AT || record[AT] != KEY)
        return 0;
    for (size_t i = AT + 1, shift = 0; i < n && shift < 64; i++, shift += 7) {
        step |= (uint64_t)(record[i] & 127) << shift;
        if ((record[i] & 128) == 0)
            break;
    }
    return step;
}

/* Bytes in front of the first record that does not stay. */
static long length_to_keep(FILE *file, uint64_t step)
{
    unsigned char record[CF_TFEVENTS_RECORD_MAX];
    long length = 0;
    size_t n;

    while (record_read(file, record, &n) && step_of(record, n) <= step)
        length = ftell(file);
    return length;
}

static cf_status file_cut(const char *path, uint64_t step)
{
    FILE *file = fopen(path, "r+e");
    const long length = file != NULL ? length_to_keep(file, step) : 0;
    cf_status status = CF_OK;

    if (file == NULL || ftruncate(fileno(file), length) != 0 ||
        (length == 0 && unlink(path) != 0)) {
        cf_log_error("%s: cannot be cut off behind step %" PRIu64
                     ": %s; check its permissions",
                     path, step, strerror(errno));
        status = CF_IO;
    }
    if (file != NULL)
        fclose(file);
    return status;
}

cf_status cf_tfevents_cut(const char *folder, uint64_t step)
{
    DIR *dir = opendir(folder);
    const struct dirent *entry;
    cf_status status = CF_OK;

    while (status == CF_OK && dir != NULL && (entry = readdir(dir)) != NULL) {
        char *path;

        if (fnmatch(CF_TFEVENTS_PATTERN, entry->d_name, 0) != 0)
            continue;
        path = cf_path_join(folder, "/", entry->d_name);
        status = path != NULL ? file_cut(path, step) : CF_NO_MEMORY;
        free(path);
    }
    if (dir != NULL)
        closedir(dir);
    return status;
}
