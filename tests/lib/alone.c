/* alone.c - the communicator of a test that is one rank. */
#include "tests/lib/alone.h"

#include <check.h>
#include <stddef.h>

cf_comm *alone(void)
{
    static cf_comm *comm;

    if (comm == NULL)
        ck_assert_int_eq(cf_comm_open(&comm), CF_OK);
    return comm;
}
