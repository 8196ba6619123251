/* log.h - one line on standard error.  Standard output belongs to results.
 *
 * Several ranks speak as one program: rank 0 gives warnings and information,
 * and an error is held until the ranks know who tells it.
 */
#ifndef CF_LOG_H
#define CF_LOG_H

#include <chunkflow/base.h>

#define CF_PRINTF(at, first) __attribute__((format(printf, at, first)))

/* "chunkflow: error: ...": what, where, and what to do, in one line.  Called
 * once, by the layer that decides what is wrong. */
void cf_log_error(const char *format, ...) CF_PRINTF(1, 2);

/* Log that there is no memory for `what`.  Returns CF_NO_MEMORY.  Inline, since
 * tests put other functions in the place of log.c's. */
static inline cf_status cf_log_no_memory(const char *what)
{
    cf_log_error("out of memory for %s: end other programs or use a larger "
                 "machine",
                 what);
    return CF_NO_MEMORY;
}

/* "chunkflow: warning: ...": odd, but going on. */
void cf_log_warn(const char *format, ...) CF_PRINTF(1, 2);

/* "chunkflow: ...": what a person wants to know. */
void cf_log_info(const char *format, ...) CF_PRINTF(1, 2);

/* ---- several ranks ---- */

/* This is one rank of several from here on. */
void cf_log_hold(uint32_t rank);

/* Show the error that is held, the last there was, with `place` in front of it;
 * none: nothing. */
void cf_log_tell(const char *place);

/* Forget it. */
void cf_log_drop(void);

#endif
