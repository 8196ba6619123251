/* clock.h - the one clock of the program: it only goes forward, and starts
 * anywhere. */
#ifndef CF_CLOCK_H
#define CF_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t cf_clock_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec;
}

static inline double cf_clock_s(void)
{
    return 1e-9 * (double)cf_clock_ns();
}

#endif
