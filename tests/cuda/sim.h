/* sim.h - how a test steers the simulated GPU; see gpusim.h and simrt.cc. */
#ifndef SIM_H
#define SIM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The order of threads and blocks: 0 forward, 1 reversed, else shuffled by this
 * seed. */
void gpusim_set_order(long order);

/* How streams take turns.  0: work is done when it is queued.  Else it is left
 * undone until somebody waits for it, and then done in an order that this seed
 * chooses among those that events allow. */
void simrt_set_seed(uint64_t seed);

/* Bytes that cudaMalloc has given out and not got back, and the number of calls
 * of cudaMalloc and cudaHostAlloc so far. */
size_t simrt_device_bytes(void);
size_t simrt_n_allocations(void);

/* Launches so far. */
size_t simrt_n_launches(void);

/* The next call of a function of the runtime fails with this cudaError_t, after
 * `calls` more that do not. */
void simrt_fail(int error, size_t calls);

#ifdef __cplusplus
}
#endif

#endif
