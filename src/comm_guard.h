/* comm_guard.h - a thread that ends the process when MPI does not return.
 * Private to src/comm*.c.
 *
 * Open MPI's calls that should return at once sometimes do not: once a peer's
 * connection is lost, MPI_Test may turn in circles or wait for a launcher that
 * has other things to do.  No loop around such calls can end them.
 */
#ifndef CF_COMM_GUARD_H
#define CF_COMM_GUARD_H

#include <chunkflow/base.h>

typedef struct cf_guard cf_guard;

enum {
    CF_GUARD_TICK_MS = 100
};

/* From here on `look` is called every CF_GUARD_TICK_MS, in a thread of its own
 * that gets no signals.  Errors, logged: CF_NO_MEMORY. */
CF_MUST_USE cf_status cf_guard_open(void (*look)(void *), void *argument,
                                    cf_guard **guard_p);

/* When the process has not ended by then, it ends with this code; `look` is
 * called no more. */
void cf_guard_set_end(cf_guard *guard, unsigned seconds, int code);

void cf_guard_close(cf_guard *guard);

#endif
