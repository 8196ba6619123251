/* tfevents.h - the event file that TensorBoard reads.
 *
 * A file is TFRecords (length, its masked CRC-32C, the record, its masked
 * CRC-32C), a record is one protobuf message `Event`, and those of ours are
 * encoded by hand: wall_time, step, and a summary of named scalars.
 *
 * (1) A run has one event file: a resumed one cuts it off behind the step that it
 *     goes on from and adds to it, so that no step is there twice.
 */
#ifndef CF_TFEVENTS_H
#define CF_TFEVENTS_H

#include <chunkflow/base.h>

#include <stdbool.h>

typedef struct cf_tfevents cf_tfevents;

/* One curve's value at a step. */
typedef struct cf_tfevents_scalar {
    const char *tag; /* "train/loss" */
    double value;    /* left out when it is not finite */
} cf_tfevents_scalar;

/* Cut every event file of a run folder off behind the events of a step, a torn
 * or damaged record included; one in which nothing is left is removed.  No file
 * is fine.  Errors, logged: CF_IO, CF_NO_MEMORY. */
CF_MUST_USE cf_status cf_tfevents_cut(const char *folder, uint64_t step);

/* The event file of a run folder, made when there is none.  Errors, logged:
 * CF_IO, CF_NO_MEMORY. */
CF_MUST_USE cf_status cf_tfevents_open(const char *folder,
                                       cf_tfevents **file_p);
void cf_tfevents_close(cf_tfevents *file);

/* One event, flushed; a full disk is waited for as append_file.h says.  At most
 * a few dozen scalars.  Errors, logged: CF_IO. */
CF_MUST_USE cf_status cf_tfevents_append(cf_tfevents *file, uint64_t step,
                                         const cf_tfevents_scalar *scalars,
                                         size_t n);

/* After the last event: all of them are in the file.  Errors, logged: CF_IO. */
CF_MUST_USE cf_status cf_tfevents_settle(cf_tfevents *file);

/* The checksum of a TFRecord, before its masking. */
uint32_t cf_crc32c(const void *bytes, size_t n);

#endif
