/* allocations.h - how often malloc, calloc and realloc were called, by code that
 * is linked with them wrapped: not by libraries. */
#ifndef CF_TEST_ALLOCATIONS_H
#define CF_TEST_ALLOCATIONS_H

#include <stddef.h>

/* Since the start of the program, in all threads. */
size_t allocations(void);

#endif
