/* staging.h - small arrays of the host, on their way to the device.
 *
 * Ops get token ids, positions and tables of pieces from host memory that the
 * caller uses again at once.  They are copied into pinned memory, and from there
 * by the stream into its twin on the device.
 *
 * (1) A place on the device is overwritten only by copies that are queued later
 *     on the same stream, so what was queued before finds its arrays.
 * (2) Pinned memory is filled again only when the copies out of it are done: the
 *     ring has two halves, and whoever comes back to one waits for its event.
 */
#ifndef CF_CUDA_STAGING_H
#define CF_CUDA_STAGING_H

#include <cuda_runtime.h>
#include <stddef.h>

typedef struct cf_cuda_staging {
    cudaStream_t stream;
    char *host, *device;
    size_t half_bytes;
    size_t used; /* of the half in use */
    int half;
    cudaEvent_t copied[2]; /* all that was sent out of a half */
} cf_cuda_staging;

/* A place for `bytes` in both memories. */
typedef struct cf_cuda_place {
    void *host;
    void *device;
    size_t bytes;
} cf_cuda_place;

/* An array may have half of `bytes`. */
cudaError_t cf_cuda_staging_open(size_t bytes, cudaStream_t stream,
                                 cf_cuda_staging *staging);
void cf_cuda_staging_close(cf_cuda_staging *staging);

/* A place to fill, and to send before the next one is taken.
 * cudaErrorMemoryAllocation: it is larger than a half. */
cudaError_t cf_cuda_staging_take(cf_cuda_staging *staging, size_t bytes,
                                 cf_cuda_place *place_p);
cudaError_t cf_cuda_staging_send(cf_cuda_staging *staging,
                                 const cf_cuda_place *place);

#endif
