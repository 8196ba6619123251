/* comm.c - see comm.h.
 *
 * (1) Every wait is cf_comm_wait_for(): it tests, looks after the other ranks,
 *     and rests.
 * (2) cf_comm_enter() stands before every call of MPI's that moves messages, and
 *     come_back() after the last, so that the guard knows who has been in one
 *     for how long.
 * (3) A rank leaves either with all others, after they agreed or at the end, or
 *     alone, by leave().
 */
#include "src/comm.h"

#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "src/clock.h"
#include "src/comm_state.h"
#include "src/log.h"

enum {
    PLACE_BYTES = 160,
    SPINS = 200,     /* tests before the first sleep */
    STUCK_TICKS = 2, /* of the guard, in one call of MPI's */
    CULPRIT_FIRST_S = 2,
    ABORT_S = 4, /* to have left, all in all */
    FINALIZE_S = 60,
    EXIT_LOST = 5
};

#define SLEEP_MIN_NS  20000U
#define SLEEP_MAX_NS  1000000U
#define LANE_SLEEP_NS 1000000U
#define LOOKS_NS      500000000U /* for the reason of an error of MPI's */

#define NOBODY (CF_LINK_ANY - 1) /* waited for */

static void look_for_stuck(void *argument);

static cf_status open_ranks(cf_comm *comm)
{
    cf_status status = cf_link_open_world(&comm->link);

    if (status != CF_OK)
        return status;
    comm->rank = cf_link_rank(comm->link);
    comm->size = cf_link_size(comm->link);
    status = cf_link_node(comm->link, &comm->node, &comm->node_size,
                          &comm->node_rank);
    if (status != CF_OK || comm->size == 1)
        return status;
    status = cf_watch_open(comm->link, comm->node, &comm->watch);
    if (status == CF_OK)
        status = cf_guard_open(look_for_stuck, comm, &comm->guard);
    if (status == CF_OK)
        cf_log_hold(comm->rank);
    return status;
}

cf_status cf_comm_open(cf_comm **comm_p)
{
    cf_comm *comm = calloc(1, sizeof(*comm));
    cf_status status = CF_OK;

    if (comm == NULL)
        return cf_log_no_memory("the communicator");
    comm->main = comm;
    comm->guarded.peer = NOBODY;
    (void)pthread_mutex_init(&comm->lanes, NULL);
    comm->size = 1;
    comm->node_size = 1;
    comm->chunk = UINT32_MAX;
    if (cf_link_is_launched())
        status = open_ranks(comm);
    if (status != CF_OK)
        free(comm);
    else
        *comm_p = comm;
    return status;
}

/* "rank 3, step 7, chunk 12: receive activations: ", with what is known. */
static const char *place(const cf_comm *comm, char text[PLACE_BYTES])
{
    const uint64_t step = atomic_load(&comm->step);
    const uint32_t chunk = atomic_load(&comm->chunk);
    const char *what = atomic_load(&comm->what);
    size_t n = (size_t)snprintf(text, PLACE_BYTES, "rank %u", comm->rank);

    if (step > 0)
        n += (size_t)snprintf(text + n, PLACE_BYTES - n, ", step %" PRIu64,
                              step);
    if (step > 0 && chunk != UINT32_MAX)
        n += (size_t)snprintf(text + n, PLACE_BYTES - n, ", chunk %u", chunk);
    if (what != NULL)
        n += (size_t)snprintf(text + n, PLACE_BYTES - n, ": %.60s", what);
    (void)snprintf(text + n, PLACE_BYTES - n, ": ");
    return text;
}

void cf_comm_tell(const cf_comm *comm)
{
    char text[PLACE_BYTES];

    cf_log_tell(place(comm, text));
}

/* ---- calls of MPI's ---- */

void cf_comm_enter(cf_comm *comm, uint32_t peer)
{
    atomic_store(&comm->guarded.peer, peer);
    (void)atomic_fetch_add(&comm->guarded.turns, 1);
}

static void come_back(cf_comm *comm)
{
    atomic_store(&comm->guarded.peer, NOBODY);
}

/* The guard's look at one comm: end the process when MPI does not return, or
 * not often enough, and there is a reason. */
static void look_at(cf_comm *comm, bool misses)
{
    const uint32_t peer = atomic_load(&comm->guarded.peer);
    const unsigned turns = atomic_load(&comm->guarded.turns);
    guarded *g = &comm->guarded;

    g->ticks = peer == NOBODY || turns != g->seen ? 0 : g->ticks + 1;
    g->seen = turns;
    if (peer == NOBODY || (g->ticks < STUCK_TICKS && !misses) ||
        cf_watch_explain(comm->watch, peer,
                         g->ticks * CF_GUARD_TICK_MS * 1000000ULL) ==
            CF_WATCH_WELL)
        return;
    cf_comm_tell(comm);
    cf_link_leave(EXIT_LOST);
}

static void look_for_stuck(void *argument)
{
    cf_comm *main = argument;
    const bool misses = cf_watch_misses(main->watch);

    (void)pthread_mutex_lock(&main->lanes);
    for (cf_comm *comm = main; comm != NULL; comm = comm->next_lane)
        look_at(comm, misses);
    (void)pthread_mutex_unlock(&main->lanes);
}

/* ---- leaving ---- */

/* Leave without the others: this rank fails, or knows that another did.  The
 * culprit is given time to leave first, so that the launcher reports its code;
 * a signal, which is the launcher's answer to that, cuts the time short. */
static _Noreturn void leave(cf_comm *comm, int code)
{
    const struct timespec patience = {.tv_sec = CULPRIT_FIRST_S};
    const cf_watch_verdict verdict = cf_watch_verdict_now(comm->watch);

    cf_guard_set_end(comm->main->guard, ABORT_S, code);
    if (verdict == CF_WATCH_TOLD && code == EXIT_LOST)
        cf_log_drop();
    cf_comm_tell(comm);
    if (verdict != CF_WATCH_TOLD)
        cf_watch_tell(comm->watch);
    if (verdict == CF_WATCH_SILENT) /* it will not end by itself */
        cf_link_abort(comm->main->link, code);
    if (verdict != CF_WATCH_WELL)
        (void)nanosleep(&patience, NULL);
    cf_link_leave(code);
}

/* Wait until all leave. */
static cf_status part(cf_comm *comm)
{
    void *request;
    cf_status status;

    cf_comm_enter(comm, CF_LINK_ANY);
    status = cf_link_barrier(comm->link, &request);
    return status == CF_OK ? cf_comm_wait_for(comm, request, CF_LINK_ANY)
                           : status;
}

void cf_comm_leave_alone(cf_comm *comm, int code)
{
    if (comm->watch != NULL && code != 0 && comm->agreed == CF_OK)
        leave(comm, code);
}

void cf_comm_close(cf_comm *comm, int code)
{
    if (comm == NULL)
        return;
    cf_comm_leave_alone(comm, code);
    if (comm->watch != NULL) {
        if (part(comm) != CF_OK)
            leave(comm, code != 0 ? code : EXIT_LOST);
        cf_comm_tell(comm); /* an error that it got over */
        cf_guard_set_end(comm->guard, FINALIZE_S, code);
        cf_watch_close(comm->watch);
    }
    if (comm->link != NULL)
        cf_link_close_world(comm->link);
    cf_guard_close(comm->guard);
    (void)pthread_mutex_destroy(&comm->lanes);
    free(comm);
}

uint32_t cf_comm_rank(const cf_comm *comm)
{
    return comm->rank;
}

uint32_t cf_comm_size(const cf_comm *comm)
{
    return comm->size;
}

uint32_t cf_comm_node(const cf_comm *comm)
{
    return comm->node;
}

uint32_t cf_comm_node_size(const cf_comm *comm)
{
    return comm->node_size;
}

uint32_t cf_comm_node_rank(const cf_comm *comm)
{
    return comm->node_rank;
}

void cf_comm_set_stall_timeout(cf_comm *comm, uint64_t seconds)
{
    if (comm->watch != NULL)
        cf_watch_set_timeout(comm->watch, seconds);
}

void cf_comm_note(cf_comm *comm, uint64_t step, uint32_t chunk,
                  const char *what)
{
    /* Where a loss was noticed is told when all have returned. */
    if (comm->watch != NULL &&
        cf_watch_verdict_now(comm->watch) != CF_WATCH_WELL)
        return;
    atomic_store(&comm->step, step);
    atomic_store(&comm->chunk, chunk);
    atomic_store(&comm->what, what);
}

void cf_comm_poll(cf_comm *comm)
{
    if (comm->watch == NULL)
        return;
    cf_comm_enter(comm, CF_LINK_ANY);
    if (cf_watch_poll(comm->watch) != CF_WATCH_WELL)
        leave(comm, EXIT_LOST);
    come_back(comm);
}

/* ---- waits ---- */

/* A part of the time waited so far, so that sleeping adds little to a wait,
 * and waiting takes little of a core. */
static void rest(const cf_comm *comm, uint64_t begin_ns, unsigned n_tests)
{
    uint64_t ns = LANE_SLEEP_NS;

    if (comm->main == comm) {
        if (n_tests < SPINS) {
            (void)sched_yield();
            return;
        }
        ns = (cf_clock_ns() - begin_ns) / 16;
        ns = ns < SLEEP_MIN_NS ? SLEEP_MIN_NS : ns;
        ns = ns > SLEEP_MAX_NS ? SLEEP_MAX_NS : ns;
    }
    (void)nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
}

/* MPI may see that a peer is gone before its process is looked at, or what it
 * said of that is heard. */
static void find_reason(cf_comm *comm)
{
    const uint64_t begin_ns = cf_clock_ns();

    while (cf_clock_ns() - begin_ns < LOOKS_NS &&
           cf_watch_poll(comm->watch) == CF_WATCH_WELL)
        (void)nanosleep(&(struct timespec){.tv_nsec = SLEEP_MAX_NS}, NULL);
}

static cf_status wait_turn(cf_comm *comm, void *request, uint32_t peer,
                           uint64_t since_ns, bool *done_p)
{
    cf_status status;

    cf_comm_enter(comm, peer);
    status = cf_link_test(comm->link, request, done_p);
    if (status != CF_OK)
        find_reason(comm);
    else if (*done_p && peer != CF_LINK_ANY)
        cf_watch_hear(comm->watch, peer);
    else if (!*done_p &&
             cf_watch_look(comm->watch, peer, since_ns) != CF_WATCH_WELL)
        status = CF_COMM;
    come_back(comm);
    return status;
}

cf_status cf_comm_wait_for(cf_comm *comm, void *request, uint32_t peer)
{
    const uint64_t begin_ns = cf_clock_ns();
    const uint64_t since_ns = cf_watch_now(comm->watch);
    unsigned n_tests = 0;

    for (;;) {
        bool done = false;
        cf_status status = wait_turn(comm, request, peer, since_ns, &done);

        if (status != CF_OK || done)
            return status;
        rest(comm, begin_ns, n_tests++);
    }
}

cf_status cf_comm_send(cf_comm *comm, uint32_t to, const void *data,
                       size_t bytes, cf_request *request)
{
    cf_status status;

    assert(to < comm->size && to != comm->rank);
    comm->agreed = CF_OK;
    *request = (cf_request){NULL, to};
    if (bytes == 0)
        return CF_OK;
    cf_comm_enter(comm, to);
    status = cf_link_send(comm->link, to, data, bytes, &request->handle);
    come_back(comm);
    return status;
}

cf_status cf_comm_recv(cf_comm *comm, uint32_t from, void *data, size_t bytes,
                       cf_request *request)
{
    cf_status status;

    assert(from < comm->size && from != comm->rank);
    comm->agreed = CF_OK;
    *request = (cf_request){NULL, from};
    if (bytes == 0)
        return CF_OK;
    cf_comm_enter(comm, from);
    status = cf_link_recv(comm->link, from, data, bytes, &request->handle);
    come_back(comm);
    return status;
}

cf_status cf_comm_wait(cf_comm *comm, cf_request *request)
{
    void *handle = request->handle;

    if (handle == NULL)
        return CF_OK;
    request->handle = NULL;
    return cf_comm_wait_for(comm, handle, request->peer);
}

/* ---- a second thread ---- */

cf_status cf_comm_lane_open(cf_comm *comm, cf_comm **lane_p)
{
    cf_comm *lane;
    cf_status status = CF_OK;

    if (comm->link != NULL && !cf_link_has_threads()) {
        cf_log_error("this MPI does not let two threads send at a time: use "
                     "one that was built with MPI_THREAD_MULTIPLE");
        return CF_COMM;
    }
    lane = calloc(1, sizeof(*lane));
    if (lane == NULL)
        return cf_log_no_memory("a lane between the ranks");
    lane->main = comm->main;
    lane->watch = comm->watch;
    lane->rank = comm->rank;
    lane->size = comm->size;
    lane->node = comm->node;
    lane->node_size = comm->node_size;
    lane->node_rank = comm->node_rank;
    lane->chunk = UINT32_MAX;
    lane->guarded.peer = NOBODY;
    if (comm->link != NULL)
        status = cf_link_open(comm->link, &lane->link);
    if (status != CF_OK) {
        free(lane);
        return status;
    }
    (void)pthread_mutex_lock(&comm->main->lanes);
    lane->next_lane = comm->main->next_lane;
    comm->main->next_lane = lane;
    (void)pthread_mutex_unlock(&comm->main->lanes);
    *lane_p = lane;
    return CF_OK;
}

void cf_comm_lane_close(cf_comm *lane)
{
    cf_comm *before;

    if (lane == NULL)
        return;
    (void)pthread_mutex_lock(&lane->main->lanes);
    for (before = lane->main; before->next_lane != lane;)
        before = before->next_lane;
    before->next_lane = lane->next_lane;
    (void)pthread_mutex_unlock(&lane->main->lanes);
    cf_link_close(lane->link);
    free(lane);
}
