/* size.h - quantities as people write them: 8GiB, 4K, 90s. */
#ifndef CF_SIZE_H
#define CF_SIZE_H

#include <chunkflow/base.h>

typedef enum cf_unit {
    CF_UNIT_COUNT,   /* 12 */
    CF_UNIT_BYTES,   /* 1024, 8GiB, 1.5GiB, 500MB */
    CF_UNIT_TOKENS,  /* 4096, 4K, 1M; powers of 1024 */
    CF_UNIT_SECONDS, /* 90, 90s, 10m, 2h */
    CF_UNIT_MINUTES  /* 10, 90s, 10m, 2h; the value is in seconds */
} cf_unit;

/* The number that text stands for: decimal digits, then perhaps a space and a
 * suffix of the unit, in either case.  Bytes may have a fraction of up to six
 * digits in front of a suffix.  Errors: CF_INVALID (anything else), CF_OVERFLOW
 * (passes 64 bits). */
CF_MUST_USE cf_status cf_size_parse(const char *text, cf_unit unit,
                                    uint64_t *value_p);

/* 4830.2 as "1h20m", 90 as "1m30s", 3 as "3s".  Returns buf. */
const char *cf_time_format(double time_s, char *buf, size_t size);

#endif
