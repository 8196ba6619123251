/* tfevents_record.h - how a record of an event file is framed: for tfevents.c,
 * which writes, and tfevents_cut.c, which reads. */
#ifndef CF_TFEVENTS_RECORD_H
#define CF_TFEVENTS_RECORD_H

#include <stddef.h>
#include <stdint.h>

#define CF_TFEVENTS_PATTERN "events.out.tfevents.*"

enum {
    CF_TFEVENTS_RECORD_MAX = 4096, /* bytes of a record of ours */
    CF_TFEVENTS_HEAD_BYTES = 12,   /* length, and its checksum */
    CF_TFEVENTS_TAIL_BYTES = 4     /* checksum of the record */
};

/* What stands in front of a record and behind it. */
void cf_tfevents_frame(const void *record, size_t n, unsigned char *head,
                       unsigned char *tail);

#endif
