/* common.cuh - what every kernel file includes.
 *
 * nvcc compiles the files of this folder for GPUs.  g++ compiles the same files
 * for the CPU, where gpusim.h (of the tests) runs every CUDA thread as a fiber.
 * So kernels keep to what both know: no inline PTX, no tensor cores, and no
 * intrinsics but barriers and shuffles; shared memory and launches by the macros
 * below.
 *
 * (1) A thread moves 16 bytes at a time where rows allow it: a strip is STRIP
 *     elements, of act or acc, always floats in registers.
 * (2) Sums over a block are trees of a fixed shape, so that equal inputs give
 *     equal bits, and every thread gets them.
 */
#ifndef CF_CUDA_COMMON_CUH
#define CF_CUDA_COMMON_CUH

#include <stddef.h>
#include <stdint.h>

#include "kernels/cuda/launch.h"

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#define CF_SHARED(type, name, extent) __shared__ __align__(16) type name extent
#define CF_SHARED_DYNAMIC(name) \
    extern __shared__ __align__(16) unsigned char name[]
/* Shared memory beyond 48 KiB a block has to be asked for. */
#define CF_SHARED_ALLOW(kernel, bytes) \
    (void)cudaFuncSetAttribute(        \
        (kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, (int)(bytes))
#define CF_LAUNCH(kernel, n_blocks, n_threads, shared_bytes, stream, ...) \
    (kernel)<<<(unsigned)(n_blocks), (n_threads), (shared_bytes),         \
               (cudaStream_t)(stream)>>>(__VA_ARGS__)
#else
#include "gpusim.h"
#endif

enum {
    WARP = 32,
    THREADS = 256, /* of a block, unless said */
    WARPS = THREADS / WARP,
    STRIP = 8
};

static const unsigned ALL_LANES = 0xffffffffu;

/* ---- element types ---- */

/* act: the upper half of a float's bits. */
struct bf16 {
    uint16_t bits;
};

static inline __device__ float widen(bf16 x)
{
    return __uint_as_float((uint32_t)x.bits << 16);
}

/* Two bf16 in one word, the first one in the lower half. */
static inline __device__ float2 widen_pair(uint32_t pair)
{
    float2 x;

    x.x = __uint_as_float(pair << 16);
    x.y = __uint_as_float(pair & 0xffff0000u);
    return x;
}

/* To nearest, ties to even. */
static inline __device__ bf16 narrow(float x)
{
    bf16 y;

#ifdef __CUDACC__
    y.bits = __bfloat16_as_ushort(__float2bfloat16_rn(x));
#else
    uint32_t bits = __float_as_uint(x);

    y.bits = x != x ? (uint16_t)0x7fff
                    : (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
#endif
    return y;
}

static inline __device__ uint32_t narrow_pair(float x, float y)
{
    return (uint32_t)narrow(y).bits << 16 | narrow(x).bits;
}

/* ---- strips ---- */

/* Elements that a thread has in registers; those past the end of a row are 0. */
struct strip {
    float x[STRIP];
};

static inline __device__ bool is_whole(const void *p, size_t left)
{
    return left >= STRIP && (uintptr_t)p % 16 == 0;
}

static inline __device__ strip load(const float *p, size_t left)
{
    strip s;

    if (is_whole(p, left)) {
        const float4 a = ((const float4 *)p)[0], b = ((const float4 *)p)[1];

        s.x[0] = a.x, s.x[1] = a.y, s.x[2] = a.z, s.x[3] = a.w;
        s.x[4] = b.x, s.x[5] = b.y, s.x[6] = b.z, s.x[7] = b.w;
    } else {
        for (int i = 0; i < STRIP; i++)
            s.x[i] = (size_t)i < left ? p[i] : 0;
    }
    return s;
}

static inline __device__ strip load(const bf16 *p, size_t left)
{
    strip s;

    if (is_whole(p, left)) {
        const uint4 words = *(const uint4 *)p;
        const float2 a = widen_pair(words.x), b = widen_pair(words.y);
        const float2 c = widen_pair(words.z), d = widen_pair(words.w);

        s.x[0] = a.x, s.x[1] = a.y, s.x[2] = b.x, s.x[3] = b.y;
        s.x[4] = c.x, s.x[5] = c.y, s.x[6] = d.x, s.x[7] = d.y;
    } else {
        for (int i = 0; i < STRIP; i++)
            s.x[i] = (size_t)i < left ? widen(p[i]) : 0;
    }
    return s;
}

static inline __device__ void store(float *p, size_t left, const strip &s)
{
    if (is_whole(p, left)) {
        float4 a, b;

        a.x = s.x[0], a.y = s.x[1], a.z = s.x[2], a.w = s.x[3];
        b.x = s.x[4], b.y = s.x[5], b.z = s.x[6], b.w = s.x[7];
        ((float4 *)p)[0] = a;
        ((float4 *)p)[1] = b;
    } else {
        for (int i = 0; i < STRIP; i++)
            if ((size_t)i < left)
                p[i] = s.x[i];
    }
}

static inline __device__ void store(bf16 *p, size_t left, const strip &s)
{
    if (is_whole(p, left)) {
        uint4 words;

        words.x = narrow_pair(s.x[0], s.x[1]);
        words.y = narrow_pair(s.x[2], s.x[3]);
        words.z = narrow_pair(s.x[4], s.x[5]);
        words.w = narrow_pair(s.x[6], s.x[7]);
        *(uint4 *)p = words;
    } else {
        for (int i = 0; i < STRIP; i++)
            if ((size_t)i < left)
                p[i] = narrow(s.x[i]);
    }
}

/* ---- sums ---- */

template <typename T> static inline __device__ T warp_sum(T x)
{
    for (int lane = WARP / 2; lane > 0; lane /= 2)
        x += __shfl_xor_sync(ALL_LANES, x, lane);
    return x;
}

static inline __device__ float warp_max(float x)
{
    for (int lane = WARP / 2; lane > 0; lane /= 2)
        x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, lane));
    return x;
}

/* Over the THREADS of a block.  The first barrier lets every thread be done with
 * the sum before. */
template <typename T> static inline __device__ T block_sum(T x)
{
    CF_SHARED(T, part, [WARPS]);
    T sum = 0;

    x = warp_sum(x);
    __syncthreads();
    if (threadIdx.x % WARP == 0)
        part[threadIdx.x / WARP] = x;
    __syncthreads();
    for (int w = 0; w < WARPS; w++)
        sum += part[w];
    return sum;
}

/* Over the warps of a block, strip by strip: what lane l of every warp has.  Warp
 * 0 gets the sums. */
static inline __device__ strip warps_sum(const strip &s)
{
    CF_SHARED(float, part, [WARPS][WARP * STRIP]);
    const unsigned at = threadIdx.x % WARP * STRIP;
    strip sum = {{0}};

    for (int i = 0; i < STRIP; i++)
        part[threadIdx.x / WARP][at + i] = s.x[i];
    __syncthreads();
    for (int w = 0; w < WARPS; w++)
        for (int i = 0; i < STRIP; i++)
            sum.x[i] += part[w][at + i];
    return sum;
}

static inline __device__ float block_max(float x)
{
    CF_SHARED(float, part, [WARPS]);

    x = warp_max(x);
    __syncthreads();
    if (threadIdx.x % WARP == 0)
        part[threadIdx.x / WARP] = x;
    __syncthreads();
    x = part[0];
    for (int w = 1; w < WARPS; w++)
        x = fmaxf(x, part[w]);
    return x;
}

/* ---- where a thread works ---- */

/* First element of the thread's strip in a flat array. */
static inline __device__ size_t flat_strip(void)
{
    return ((size_t)blockIdx.x * THREADS + threadIdx.x) * STRIP;
}

/* Blocks whose strips cover n elements. */
static inline size_t flat_blocks(size_t n)
{
    return cf_cuda_n_blocks(n, (size_t)THREADS * STRIP);
}

#endif
