/* broken.h - kernels with a mistake, which the simulated GPU has to catch. */
#ifndef BROKEN_H
#define BROKEN_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum broken {
    BROKEN_NOTHING,
    BROKEN_NO_BARRIER, /* before shared memory is read */
    /* These end the program. */
    BROKEN_EARLY_RETURN,  /* before a barrier */
    BROKEN_TWO_BARRIERS,  /* in two branches */
    BROKEN_HALF_A_WARP,   /* shuffles */
    BROKEN_SHARED_MEMORY, /* more than was asked for */
    BROKEN_BLOCK,         /* of no whole warps */
    BROKEN_COUNT
} broken;

void broken_run(broken mistake);

/* 0 + 1 + ... + 255, when there is no mistake. */
uint32_t broken_sum(broken mistake);

#ifdef __cplusplus
}
#endif

#endif
