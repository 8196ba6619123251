/* staging.c - see staging.h. */
#include "kernels/cuda/staging.h"

#include <string.h>

enum {
    ALIGN = 256
};

cudaError_t cf_cuda_staging_open(size_t bytes, cudaStream_t stream,
                                 cf_cuda_staging *staging)
{
    const size_t half_bytes = bytes / (2 * ALIGN) * ALIGN;
    void *host = NULL, *device = NULL;
    cudaError_t error;

    memset(staging, 0, sizeof(*staging));
    error = cudaHostAlloc(&host, 2 * half_bytes, cudaHostAllocDefault);
    if (error != cudaSuccess)
        return error;
    error = cudaMalloc(&device, 2 * half_bytes);
    if (error != cudaSuccess)
        goto free_host;
    error =
        cudaEventCreateWithFlags(&staging->copied[0], cudaEventDisableTiming);
    if (error != cudaSuccess)
        goto free_device;
    error =
        cudaEventCreateWithFlags(&staging->copied[1], cudaEventDisableTiming);
    if (error != cudaSuccess)
        goto destroy_event;

    staging->stream = stream;
    staging->host = host;
    staging->device = device;
    staging->half_bytes = half_bytes;
    return cudaSuccess;

destroy_event:
    (void)cudaEventDestroy(staging->copied[0]);
free_device:
    (void)cudaFree(device);
free_host:
    (void)cudaFreeHost(host);
    memset(staging, 0, sizeof(*staging));
    return error;
}

void cf_cuda_staging_close(cf_cuda_staging *staging)
{
    if (staging->host == NULL)
        return;
    (void)cudaEventDestroy(staging->copied[1]);
    (void)cudaEventDestroy(staging->copied[0]);
    (void)cudaFree(staging->device);
    (void)cudaFreeHost(staging->host);
    memset(staging, 0, sizeof(*staging));
}

/* (2) */
static cudaError_t half_next(cf_cuda_staging *staging)
{
    const cudaError_t error =
        cudaEventRecord(staging->copied[staging->half], staging->stream);

    if (error != cudaSuccess)
        return error;
    staging->half = 1 - staging->half;
    staging->used = 0;
    return cudaEventSynchronize(staging->copied[staging->half]);
}

cudaError_t cf_cuda_staging_take(cf_cuda_staging *staging, size_t bytes,
                                 cf_cuda_place *place_p)
{
    const size_t room = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    size_t at;

    if (room > staging->half_bytes)
        return cudaErrorMemoryAllocation;
    if (room > staging->half_bytes - staging->used) {
        cudaError_t error = half_next(staging);

        if (error != cudaSuccess)
            return error;
    }
    at = (size_t)staging->half * staging->half_bytes + staging->used;
    staging->used += room;
    *place_p = (cf_cuda_place){staging->host + at, staging->device + at, bytes};
    return cudaSuccess;
}

cudaError_t cf_cuda_staging_send(cf_cuda_staging *staging,
                                 const cf_cuda_place *place)
{
    return cudaMemcpyAsync(place->device, place->host, place->bytes,
                           cudaMemcpyHostToDevice, staging->stream);
}
