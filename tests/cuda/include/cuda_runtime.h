/* cuda_runtime.h - the part of CUDA's runtime that the backend calls, declared
 * for machines without the toolkit; simrt.cc defines it.  Names, values and
 * meaning are CUDA's. */
#ifndef SIM_CUDA_RUNTIME_H
#define SIM_CUDA_RUNTIME_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum cudaError {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInsufficientDriver = 35,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorIllegalAddress = 700,
    cudaErrorLaunchFailure = 719
} cudaError_t;

enum cudaMemcpyKind {
    cudaMemcpyHostToHost = 0,
    cudaMemcpyHostToDevice = 1,
    cudaMemcpyDeviceToHost = 2,
    cudaMemcpyDeviceToDevice = 3,
    cudaMemcpyDefault = 4
};

enum cudaDeviceAttr {
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76
};

#define cudaHostAllocDefault   0x00
#define cudaStreamNonBlocking  0x01
#define cudaEventDisableTiming 0x02

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;

cudaError_t cudaGetDeviceCount(int *n_p);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaDeviceGetAttribute(int *value_p, enum cudaDeviceAttr attribute,
                                   int device);
cudaError_t cudaMemGetInfo(size_t *free_p, size_t *total_p);
cudaError_t cudaGetLastError(void);
const char *cudaGetErrorName(cudaError_t error);

cudaError_t cudaMalloc(void **at_p, size_t bytes);
cudaError_t cudaFree(void *at);
cudaError_t cudaHostAlloc(void **at_p, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void *at);

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream_p, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                unsigned flags);

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event_p, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes,
                            enum cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void *at, int value, size_t bytes,
                            cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
