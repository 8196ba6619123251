/* alone.h - the communicator of a test that is one rank. */
#ifndef CF_TEST_ALONE_H
#define CF_TEST_ALONE_H

#include "src/comm.h"

/* One for the whole program, opened on first use. */
cf_comm *alone(void);

#endif
