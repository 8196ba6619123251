/* broken.cu - see broken.h. */
#include "kernels/cuda/common.cuh"

#include "broken.h"

static __global__ void sum(broken mistake, uint32_t *total)
{
    CF_SHARED(uint32_t, value, [THREADS]);

    value[threadIdx.x] = threadIdx.x;
    if (mistake == BROKEN_EARLY_RETURN && threadIdx.x == 3)
        return;
    if (mistake == BROKEN_TWO_BARRIERS && threadIdx.x < 40)
        __syncthreads();
    else if (mistake != BROKEN_NO_BARRIER)
        __syncthreads();
    if (mistake == BROKEN_HALF_A_WARP && threadIdx.x % WARP < 16)
        (void)warp_sum(1.0f);
    if (threadIdx.x != 100)
        return;
    *total = 0;
    for (int i = 0; i < THREADS; i++)
        *total += value[i];
}

static uint32_t run(broken mistake, int n_threads, size_t shared_bytes)
{
    uint32_t total = 0;

    CF_LAUNCH(sum, 1, n_threads, shared_bytes, NULL, mistake, &total);
    return total;
}

void broken_run(broken mistake)
{
    (void)run(mistake, mistake == BROKEN_BLOCK ? THREADS - 1 : THREADS,
              mistake == BROKEN_SHARED_MEMORY ? 64 * 1024 : 0);
}

uint32_t broken_sum(broken mistake)
{
    return run(mistake, THREADS, 0);
}
