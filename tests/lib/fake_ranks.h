/* fake_ranks.h - ranks that are threads of the test.
 *
 * Has functions of its own in the place of comm.c's, without messages between
 * two ranks: a test that wants them names fake_ranks.c among its sources.
 */
#ifndef CF_TEST_FAKE_RANKS_H
#define CF_TEST_FAKE_RANKS_H

#include "src/comm.h"

/* Call body on every one of n ranks, in threads, and wait for all. */
void fake_ranks_run(uint32_t n, void (*body)(cf_comm *comm, void *context),
                    void *context);

#endif
