/* simrt.cc - the part of the CUDA runtime that the backend uses, on the CPU.
 *
 * (1) Streams are queues.  With a seed, nothing in them is done until somebody
 *     waits, and then streams take turns at random, as far as events allow: a
 *     result that is read too early, a buffer that is filled too early, an event
 *     that nobody waits for, all show as wrong numbers.
 * (2) Device memory lies in one range of addresses, which nobody may touch but
 *     work of a stream: what reads or writes it from the host gets a SIGSEGV.  New
 *     memory is NaN.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <deque>
#include <vector>

#include "cuda_runtime.h"
#include "gpusim.h"
#include "sim.h"

struct CUevent_st {
    uint64_t n_recorded, n_done;
};

namespace
{

constexpr size_t HEAP_BYTES = (size_t)1 << 34; /* of addresses */
constexpr size_t ALIGN = 256;

/* Waits for `until` of the event's records when there is an event. */
struct Work {
    std::function<void()> run;
    cudaEvent_t event;
    uint64_t until;
};

} // namespace

struct CUstream_st {
    std::deque<Work> queue;
};

namespace
{

struct Runtime {
    std::vector<cudaStream_t> streams;
    uint64_t seed, random;
    unsigned char *heap;
    size_t heap_used, n_held, bytes_held, n_allocations, n_launches;
    std::vector<std::pair<void *, size_t>> held;
    int fail_error;
    size_t fail_after;
    bool fails;
    cudaError_t last;
};

Runtime rt;

[[noreturn]] void fail(const char *what)
{
    fprintf(stderr, "simrt: %s\n", what);
    abort();
}

/* What a call answers: CUDA's errors come when the test asked for them. */
cudaError_t answer()
{
    if (!rt.fails || rt.fail_after-- > 0)
        return cudaSuccess;
    rt.fails = false;
    return (cudaError_t)rt.fail_error;
}

unsigned random_below(size_t limit)
{
    rt.random = rt.random * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)((rt.random >> 33) % limit);
}

/* ---- device memory ---- */

void heap_open()
{
    void *at;

    if (rt.heap != nullptr)
        return;
    at = mmap(nullptr, HEAP_BYTES, PROT_NONE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        fail("no addresses for device memory");
    rt.heap = (unsigned char *)at;
}

void heap_protect(int protection)
{
    if (rt.heap_used > 0 && mprotect(rt.heap, rt.heap_used, protection) != 0)
        fail("cannot protect device memory");
}

void on_device(const std::function<void()> &work)
{
    heap_protect(PROT_READ | PROT_WRITE);
    work();
    heap_protect(PROT_NONE);
}

/* ---- streams ---- */

bool is_ready(const Work &work)
{
    return work.event == nullptr || work.event->n_done >= work.until;
}

void do_first(cudaStream_t stream)
{
    Work work = std::move(stream->queue.front());

    stream->queue.pop_front();
    if (work.run)
        on_device(work.run);
}

/* Does work of all streams, at random, until `done` says so. */
void work_until(const std::function<bool()> &done)
{
    while (!done()) {
        std::vector<cudaStream_t> ready;

        for (cudaStream_t s : rt.streams)
            if (!s->queue.empty() && is_ready(s->queue.front()))
                ready.push_back(s);
        if (ready.empty())
            fail("a wait that nothing ends");
        do_first(ready[random_below(ready.size())]);
    }
}

bool all_empty()
{
    for (cudaStream_t s : rt.streams)
        if (!s->queue.empty())
            return false;
    return true;
}

void queue(cudaStream_t stream, Work work)
{
    stream->queue.push_back(std::move(work));
    if (rt.seed == 0)
        work_until(all_empty);
}

} // namespace

void gpusim::enqueue(void *stream, std::function<void()> work)
{
    const cudaError_t error = answer();

    rt.n_launches++;
    if (error != cudaSuccess)
        rt.last = error;
    else if (stream == nullptr)
        on_device(work);
    else
        queue((cudaStream_t)stream, {std::move(work), nullptr, 0});
}

void simrt_set_seed(uint64_t seed)
{
    rt.seed = rt.random = seed;
}

size_t simrt_device_bytes(void)
{
    return rt.bytes_held;
}

size_t simrt_n_allocations(void)
{
    return rt.n_allocations;
}

size_t simrt_n_launches(void)
{
    return rt.n_launches;
}

void simrt_fail(int error, size_t calls)
{
    rt.fails = true;
    rt.fail_error = error;
    rt.fail_after = calls;
}

/* ---- the runtime ---- */

cudaError_t cudaGetDeviceCount(int *n_p)
{
    const cudaError_t error = answer();

    if (error == cudaSuccess)
        *n_p = 1;
    return error;
}

cudaError_t cudaSetDevice(int device)
{
    return device == 0 ? answer() : cudaErrorInvalidDevice;
}

cudaError_t cudaDeviceGetAttribute(int *value_p, enum cudaDeviceAttr attribute,
                                   int device)
{
    if (device != 0)
        return cudaErrorInvalidDevice;
    switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
        *value_p = 1;
        break;
    case cudaDevAttrComputeCapabilityMajor:
        *value_p = 9;
        break;
    case cudaDevAttrComputeCapabilityMinor:
        *value_p = 0;
        break;
    }
    return answer();
}

cudaError_t cudaMemGetInfo(size_t *free_p, size_t *total_p)
{
    *total_p = HEAP_BYTES;
    *free_p = HEAP_BYTES - rt.heap_used;
    return answer();
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t last = rt.last;

    rt.last = cudaSuccess;
    return last;
}

const char *cudaGetErrorName(cudaError_t error)
{
    return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation"
                                              : "cudaErrorSimulated";
}

cudaError_t cudaMalloc(void **at_p, size_t bytes)
{
    const cudaError_t error = answer();
    const size_t room = (bytes + ALIGN - 1) / ALIGN * ALIGN;

    if (error != cudaSuccess)
        return error;
    heap_open();
    if (room > HEAP_BYTES - rt.heap_used)
        return cudaErrorMemoryAllocation;
    *at_p = rt.heap + rt.heap_used;
    rt.heap_used += room;
    rt.n_allocations++;
    rt.bytes_held += bytes;
    rt.held.push_back({*at_p, bytes});
    on_device([=] { memset(*at_p, 0xff, room); });
    return cudaSuccess;
}

/* Addresses are used again when nothing is held any more. */
cudaError_t cudaFree(void *at)
{
    work_until(all_empty);
    for (size_t i = 0; i < rt.held.size(); i++)
        if (rt.held[i].first == at) {
            rt.bytes_held -= rt.held[i].second;
            rt.held.erase(rt.held.begin() + (long)i);
            if (rt.held.empty())
                rt.heap_used = 0;
            return answer();
        }
    return at == nullptr ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaHostAlloc(void **at_p, size_t bytes, unsigned)
{
    const cudaError_t error = answer();

    if (error != cudaSuccess)
        return error;
    *at_p = malloc(bytes);
    rt.n_allocations++;
    return *at_p != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaFreeHost(void *at)
{
    work_until(all_empty);
    free(at);
    return answer();
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream_p, unsigned)
{
    const cudaError_t error = answer();

    if (error != cudaSuccess)
        return error;
    *stream_p = new CUstream_st;
    rt.streams.push_back(*stream_p);
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    work_until([=] { return stream->queue.empty(); });
    for (size_t i = 0; i < rt.streams.size(); i++)
        if (rt.streams[i] == stream)
            rt.streams.erase(rt.streams.begin() + (long)i);
    delete stream;
    return answer();
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    work_until([=] { return stream->queue.empty(); });
    return answer();
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                unsigned)
{
    queue(stream, {nullptr, event, event->n_recorded});
    return answer();
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event_p, unsigned)
{
    const cudaError_t error = answer();

    if (error == cudaSuccess)
        *event_p = new CUevent_st{0, 0};
    return error;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    work_until([=] { return event->n_done == event->n_recorded; });
    delete event;
    return answer();
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    const uint64_t n = ++event->n_recorded;

    queue(stream, {[=] { event->n_done = n; }, nullptr, 0});
    return answer();
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    const uint64_t n = event->n_recorded;

    work_until([=] { return event->n_done >= n; });
    return answer();
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes,
                            enum cudaMemcpyKind, cudaStream_t stream)
{
    queue(stream, {[=] { memcpy(to, from, bytes); }, nullptr, 0});
    return answer();
}

cudaError_t cudaMemsetAsync(void *at, int value, size_t bytes,
                            cudaStream_t stream)
{
    queue(stream, {[=] { memset(at, value, bytes); }, nullptr, 0});
    return answer();
}
