/* gpusim.cc - see gpusim.h. */
#include "gpusim.h"

#include <stdio.h>
#include <stdlib.h>

#include <map>
#include <memory>
#include <vector>

#include "sim.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#else
static void __sanitizer_start_switch_fiber(void **, const void *, size_t)
{
}
static void __sanitizer_finish_switch_fiber(void *, const void **, size_t *)
{
}
#endif

/* Keeps the registers that a function has to keep, and its stack pointer in *from;
 * goes on where `to` was kept.  x86-64, as all our kernels for the CPU. */
extern "C" void gpusim_switch(void **from, void *to);
asm(".text\n"
    ".globl gpusim_switch\n"
    ".type gpusim_switch, @function\n"
    "gpusim_switch:\n"
    "    push %rbp\n"
    "    push %rbx\n"
    "    push %r12\n"
    "    push %r13\n"
    "    push %r14\n"
    "    push %r15\n"
    "    mov %rsp, (%rdi)\n"
    "    mov %rsi, %rsp\n"
    "    pop %r15\n"
    "    pop %r14\n"
    "    pop %r13\n"
    "    pop %r12\n"
    "    pop %rbx\n"
    "    pop %rbp\n"
    "    ret\n"
    ".size gpusim_switch, . - gpusim_switch\n");

gpusim::Current gpusim::current;

namespace
{

constexpr unsigned THREADS_MAX = 1024; /* of a block */
constexpr unsigned WARP = 32;
constexpr size_t STACK_BYTES = 64 * 1024;
constexpr size_t SHARED_PLAIN = 48 * 1024; /* without asking for more */
constexpr size_t SHARED_MAX = 227 * 1024;

enum class State {
    FRESH,
    READY,
    AT_BLOCK,
    AT_WARP,
    DONE
};

/* A fiber: after the last line of a kernel it waits for the next block. */
struct Thread {
    State state;
    void *at;                      /* its stack pointer while it waits */
    std::unique_ptr<char[]> stack; /* none: it has never run */
    void *fake;                    /* what ASan keeps of its stack */
    const char *file;              /* of the barrier */
    int line;
};

struct Machine {
    gpusim::Grid grid;
    const std::function<void()> *body;
    std::vector<Thread> threads; /* all that a block can have; they stay */
    std::vector<unsigned> order;
    std::vector<uint64_t> slots[2]; /* what the lanes of all warps exchange */
    std::vector<unsigned> turns;    /* shuffles of each thread so far */
    std::vector<unsigned char> dynamic;
    std::map<const void *, size_t> allowed;
    gpusim::Shared *shared;
    bool any[2]; /* block_or: of this barrier, and of the next one */
    unsigned n_barriers;
    void *scheduler; /* its stack pointer while a fiber runs */
    void *scheduler_fake;
    const void *scheduler_stack;
    size_t scheduler_stack_bytes;
    uint64_t random;
};

Machine m;
long order_asked = -1;

[[noreturn]] void fail(const char *what)
{
    fprintf(stderr, "gpusim: %s (block %u, thread %u)\n", what,
            gpusim::current.block, gpusim::current.thread);
    abort();
}

unsigned random_below(unsigned limit)
{
    m.random = m.random * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)((m.random >> 33) % limit);
}

/* ---- fibers ---- */

void wait(State state)
{
    Thread &t = m.threads[gpusim::current.thread];

    t.state = state;
    __sanitizer_start_switch_fiber(&t.fake, m.scheduler_stack,
                                   m.scheduler_stack_bytes);
    gpusim_switch(&t.at, m.scheduler);
    __sanitizer_finish_switch_fiber(t.fake, nullptr, nullptr);
}

void fiber()
{
    __sanitizer_finish_switch_fiber(nullptr, &m.scheduler_stack,
                                    &m.scheduler_stack_bytes);
    for (;;) {
        (*m.body)();
        wait(State::DONE);
    }
}

/* A stack from which gpusim_switch returns into fiber(). */
void stack_open(Thread &t)
{
    uintptr_t top;
    void **words;

    t.stack = std::make_unique<char[]>(STACK_BYTES);
    top = ((uintptr_t)t.stack.get() + STACK_BYTES) / 16 * 16;
    words = (void **)top;
    *--words = nullptr; /* so that it is aligned as after a call */
    *--words = (void *)fiber;
    for (int i = 0; i < 6; i++)
        *--words = nullptr; /* registers */
    t.at = words;
}

/* Runs a thread until it waits or is done. */
void resume(unsigned thread)
{
    Thread &t = m.threads[thread];

    gpusim::current.thread = thread;
    t.state = State::READY;
    if (t.stack == nullptr)
        stack_open(t);
    __sanitizer_start_switch_fiber(&m.scheduler_fake, t.stack.get(),
                                   STACK_BYTES);
    gpusim_switch(&m.scheduler, t.at);
    __sanitizer_finish_switch_fiber(m.scheduler_fake, nullptr, nullptr);
}

/* ---- barriers ---- */

bool block_released()
{
    const Thread &first = m.threads[0];

    for (unsigned t = 0; t < m.grid.n_threads; t++)
        if (m.threads[t].state == State::READY ||
            m.threads[t].state == State::AT_WARP)
            return false;
    for (unsigned t = 0; t < m.grid.n_threads; t++) {
        gpusim::current.thread = t;
        if (m.threads[t].state == State::DONE)
            fail("returned before a barrier at which others wait");
        if (m.threads[t].line != first.line || m.threads[t].file != first.file)
            fail("waits at another barrier than thread 0");
        m.threads[t].state = State::READY;
    }
    m.n_barriers++;
    m.any[m.n_barriers % 2] = false;
    return true;
}

bool warp_released(unsigned warp)
{
    const unsigned begin = warp * WARP;
    unsigned n_waiting = 0;

    for (unsigned t = begin; t < begin + WARP; t++)
        n_waiting += m.threads[t].state == State::AT_WARP;
    if (n_waiting < WARP)
        return false;
    for (unsigned t = begin; t < begin + WARP; t++)
        m.threads[t].state = State::READY;
    return true;
}

/* Nothing can run: opens the barriers at which all have arrived.  False when the
 * block is done. */
bool release()
{
    bool any = false, live = false;

    for (unsigned warp = 0; warp < m.grid.n_threads / WARP; warp++)
        any |= warp_released(warp);
    for (unsigned t = 0; t < m.grid.n_threads; t++)
        live |= m.threads[t].state != State::DONE;
    if (!live)
        return false;
    if (!any && !block_released())
        fail("only some lanes of a warp are at its barrier");
    return true;
}

/* ---- blocks ---- */

void block_begin()
{
    for (gpusim::Shared *s = m.shared; s != nullptr; s = s->next)
        memset(s->at, 0xff, s->bytes);
    memset(m.dynamic.data(), 0xff, m.dynamic.size());
    for (unsigned t = 0; t < m.grid.n_threads; t++)
        m.threads[t].state = State::READY;
    m.turns.assign(m.grid.n_threads, 0);
    m.any[0] = m.any[1] = false;
    m.n_barriers = 0;
}

void block_run()
{
    block_begin();
    do {
        for (unsigned t : m.order)
            if (m.threads[t].state == State::READY)
                resume(t);
    } while (release());
}

/* 0 forward, 1 reversed, else a seed. */
long order_of_run()
{
    if (order_asked < 0) {
        const char *text = getenv("GPUSIM_ORDER");

        order_asked = text != nullptr ? atol(text) : 0;
    }
    return order_asked;
}

void order_threads(long order)
{
    const unsigned n = m.grid.n_threads;

    m.random = (uint64_t)order;
    m.order.resize(n);
    for (unsigned t = 0; t < n; t++)
        m.order[t] = order == 1 ? n - 1 - t : t;
    for (unsigned t = n - 1; order > 1 && t > 0; t--)
        std::swap(m.order[t], m.order[random_below(t + 1)]);
}

void room_begin(const void *kernel)
{
    const unsigned n = m.grid.n_threads;

    if (n == 0 || n > THREADS_MAX || n % WARP != 0)
        fail("a block is 1 to 32 whole warps");
    if (m.grid.shared_bytes > SHARED_PLAIN &&
        m.grid.shared_bytes > m.allowed[kernel])
        fail("a launch has more shared memory than it asked for");
    m.threads.resize(THREADS_MAX);
    m.slots[0].resize(n);
    m.slots[1].resize(n);
    m.dynamic.resize(m.grid.shared_bytes + 16);
}

} // namespace

void gpusim::run(const void *kernel, Grid grid,
                 const std::function<void()> &body)
{
    const long order = order_of_run();

    m.grid = grid;
    m.body = &body;
    room_begin(kernel);
    order_threads(order);
    for (unsigned i = 0; i < grid.n_blocks; i++) {
        gpusim::current.block = order == 1 ? grid.n_blocks - 1 - i : i;
        block_run();
    }
}

void gpusim::block_barrier(const char *file, int line)
{
    m.threads[gpusim::current.thread].file = file;
    m.threads[gpusim::current.thread].line = line;
    wait(State::AT_BLOCK);
}

/* The flag of the barrier after this one is cleared when this one opens. */
bool gpusim::block_or(const char *file, int line, bool value)
{
    const unsigned barrier = m.n_barriers;

    if (value)
        m.any[barrier % 2] = true;
    block_barrier(file, line);
    return m.any[barrier % 2];
}

void gpusim::warp_barrier()
{
    wait(State::AT_WARP);
}

/* Two shuffles in a row use different slots, so that one barrier is enough. */
uint64_t gpusim::shuffle_xor(uint64_t value, unsigned lanes)
{
    std::vector<uint64_t> &slots =
        m.slots[m.turns[gpusim::current.thread]++ % 2];

    slots[gpusim::current.thread] = value;
    wait(State::AT_WARP);
    if (lanes >= WARP)
        fail("a shuffle beyond the warp");
    return slots[gpusim::current.thread ^ lanes];
}

gpusim::Shared::Shared(void *variable, size_t n_bytes)
    : at(variable), bytes(n_bytes), next(m.shared)
{
    memset(at, 0xff, bytes);
    m.shared = this;
}

unsigned char *gpusim::dynamic_shared()
{
    return (unsigned char *)(((uintptr_t)m.dynamic.data() + 15) / 16 * 16);
}

void gpusim::allow_shared(const void *kernel, size_t bytes)
{
    if (bytes > SHARED_MAX)
        fail("a kernel asks for more shared memory than a GPU has");
    m.allowed[kernel] = bytes;
}

void gpusim_set_order(long order)
{
    order_asked = order;
}
