/* gpusim.h - what a kernel file finds under g++ in the place of CUDA.
 *
 * A kernel runs on the CPU: one block after the other, and in a block every thread
 * as a fiber that runs until it waits at a barrier.  A shuffle is a barrier of its
 * warp.  Test builds only.
 *
 * (1) The order of threads, and of blocks, is forward, reversed or shuffled
 *     (gpusim_set_order, or GPUSIM_ORDER in the environment): a kernel that lacks a
 *     barrier gives other bits, or NaN, in one of them.
 * (2) Shared memory is NaN when a block starts, as is what a launch asked for
 *     dynamically.
 * (3) A mistake that a GPU would answer by hanging or by chance ends the program
 *     with a line that says what, and in which block and thread: a thread that
 *     returns while others wait, threads at different barriers, a warp of which
 *     only some lanes shuffle, a launch with more shared memory than it asked for.
 * (4) Arguments of a launch are copied when it is queued (simrt.cc), as on a GPU.
 *
 * What it cannot see: races between two barriers in any one order, occupancy,
 * registers, the speed of anything.
 */
#ifndef GPUSIM_H
#define GPUSIM_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <functional>
#include <tuple>
#include <utility>

#define __global__
#define __device__
#define __host__

struct float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};

namespace gpusim
{

struct Index {
    unsigned x;
};

struct Grid {
    unsigned n_blocks, n_threads;
    size_t shared_bytes;
};

/* The fiber that runs, and its block. */
struct Current {
    unsigned thread, block;
};
extern Current current;

/* Barriers, named by their place in the source. */
void block_barrier(const char *file, int line);
bool block_or(const char *file, int line, bool value);
void warp_barrier();

/* value of lane (own lane xor `lanes`) of the warp. */
uint64_t shuffle_xor(uint64_t value, unsigned lanes);

/* A variable in shared memory: poisoned whenever a block starts. */
struct Shared {
    Shared(void *variable, size_t n_bytes);
    void *at;
    size_t bytes;
    Shared *next;
};
unsigned char *dynamic_shared();
void allow_shared(const void *kernel, size_t bytes);

/* Runs all blocks; kernel only names it. */
void run(const void *kernel, Grid grid, const std::function<void()> &body);

/* Queues work on a stream; a NULL stream runs it at once (simrt.cc). */
void enqueue(void *stream, std::function<void()> work);

template <typename... Parameters, typename... Arguments>
void launch(void *stream, Grid grid, void (*kernel)(Parameters...),
            Arguments... arguments)
{
    std::tuple<Parameters...> values(arguments...);

    enqueue(stream, [=] {
        run((const void *)kernel, grid, [&] { std::apply(kernel, values); });
    });
}

} // namespace gpusim

#define threadIdx (gpusim::Index{gpusim::current.thread})
#define blockIdx  (gpusim::Index{gpusim::current.block})

#define __syncthreads()       gpusim::block_barrier(__FILE__, __LINE__)
#define __syncthreads_or(any) gpusim::block_or(__FILE__, __LINE__, (any) != 0)
#define __syncwarp()          gpusim::warp_barrier()

#define CF_SHARED(type, name, extent)    \
    alignas(16) static type name extent; \
    static gpusim::Shared name##_in_shared((void *)&name, sizeof(name))
#define CF_SHARED_DYNAMIC(name) unsigned char *name = gpusim::dynamic_shared()
#define CF_SHARED_ALLOW(kernel, bytes) \
    gpusim::allow_shared((const void *)(kernel), (bytes))
#define CF_LAUNCH(kernel, n_blocks, n_threads, shared_bytes, stream, ...)    \
    gpusim::launch((stream),                                                 \
                   gpusim::Grid{(unsigned)(n_blocks), (unsigned)(n_threads), \
                                (shared_bytes)},                             \
                   (kernel), __VA_ARGS__)

/* Of all lanes: the kernels use no other mask. */
template <typename T>
static inline T __shfl_xor_sync(unsigned, T value, int lanes)
{
    uint64_t bits = 0;

    memcpy(&bits, &value, sizeof(value));
    bits = gpusim::shuffle_xor(bits, (unsigned)lanes);
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* Fibers take turns only at barriers, so nothing comes in between. */
static inline uint32_t atomicMin(uint32_t *at, uint32_t value)
{
    const uint32_t old = *at;

    if (value < old)
        *at = value;
    return old;
}

static inline float __uint_as_float(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* A product that nothing is fused with. */
static inline float __fmul_rn(float x, float y)
{
    volatile float product = x * y;

    return product;
}

static inline uint32_t __float_as_uint(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

#endif
