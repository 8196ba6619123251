/* comm.c - see comm.h.
 *
 * (1) Every wait is wait_for(): it tests, looks after the other ranks, and
 *     sleeps.
 */
#include "src/comm.h"

#include <assert.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "src/comm_link.h"
#include "src/log.h"

enum {
    PLACE_BYTES = 160,
    SPINS = 200 /* tests before the first sleep */
};

#define SLEEP_MIN_NS  20000U
#define SLEEP_MAX_NS  1000000U
#define LANE_SLEEP_NS 1000000U

struct cf_comm {
    cf_link *link; /* owned; NULL: one rank */
    cf_comm *main; /* itself, or of which this is a lane */
    uint32_t rank;
    uint32_t size;
    uint32_t node;
    uint32_t node_size;
    uint32_t node_rank;
    cf_status agreed; /* the last thing the ranks did was to agree on this */

    uint64_t step; /* what this rank is at; 0: not in a step */
    uint32_t chunk;
    const char *what; /* NULL: nothing to say */
};

static cf_status open_ranks(cf_comm *comm)
{
    cf_status status = cf_link_open_world(&comm->link);

    if (status != CF_OK)
        return status;
    comm->rank = cf_link_rank(comm->link);
    comm->size = cf_link_size(comm->link);
    if (comm->size > 1)
        cf_log_hold(comm->rank);
    return cf_link_node(comm->link, &comm->node, &comm->node_size,
                        &comm->node_rank);
}

cf_status cf_comm_open(cf_comm **comm_p)
{
    cf_comm *comm = calloc(1, sizeof(*comm));
    cf_status status = CF_OK;

    if (comm == NULL)
        return cf_log_no_memory("the communicator");
    comm->main = comm;
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
    size_t n = 0;

    text[0] = '\0';
    if (comm->rank > 0 || comm->step > 0)
        n = (size_t)snprintf(text, PLACE_BYTES, "rank %u", comm->rank);
    if (comm->step > 0)
        n += (size_t)snprintf(text + n, PLACE_BYTES - n, ", step %" PRIu64,
                              comm->step);
    if (comm->step > 0 && comm->chunk != UINT32_MAX)
        n += (size_t)snprintf(text + n, PLACE_BYTES - n, ", chunk %u",
                              comm->chunk);
    if (comm->step > 0 && comm->what != NULL)
        n += (size_t)snprintf(text + n, PLACE_BYTES - n, ": %.60s", comm->what);
    if (n > 0)
        snprintf(text + n, PLACE_BYTES - n, ": ");
    return text;
}

void cf_comm_close(cf_comm *comm, int code)
{
    char text[PLACE_BYTES];

    if (comm == NULL)
        return;
    if (comm->link != NULL) {
        cf_log_tell(place(comm, text));
        if (code != 0 && comm->agreed == CF_OK)
            cf_link_abort(comm->link, code);
        cf_link_close_world(comm->link, code);
    }
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
    (void)comm;
    (void)seconds;
}

void cf_comm_note(cf_comm *comm, uint64_t step, uint32_t chunk,
                  const char *what)
{
    comm->step = step;
    comm->chunk = chunk;
    comm->what = what;
}

void cf_comm_poll(cf_comm *comm)
{
    (void)comm;
}

/* ---- waits ---- */

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec;
}

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
        ns = (now_ns() - begin_ns) / 16;
        ns = ns < SLEEP_MIN_NS ? SLEEP_MIN_NS : ns;
        ns = ns > SLEEP_MAX_NS ? SLEEP_MAX_NS : ns;
    }
    (void)nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
}

static cf_status wait_for(cf_comm *comm, void *request, uint32_t peer)
{
    const uint64_t begin_ns = now_ns();
    unsigned n_tests = 0;
    bool done = false;

    (void)peer;
    for (;;) {
        cf_status status = cf_link_test(comm->link, request, &done);

        if (status != CF_OK || done)
            return status;
        rest(comm, begin_ns, n_tests++);
    }
}

cf_status cf_comm_send(cf_comm *comm, uint32_t to, const void *data,
                       size_t bytes, cf_request *request)
{
    assert(to < comm->size && to != comm->rank);
    comm->agreed = CF_OK;
    *request = (cf_request){NULL, to};
    if (bytes == 0)
        return CF_OK;
    return cf_link_send(comm->link, to, data, bytes, &request->handle);
}

cf_status cf_comm_recv(cf_comm *comm, uint32_t from, void *data, size_t bytes,
                       cf_request *request)
{
    assert(from < comm->size && from != comm->rank);
    comm->agreed = CF_OK;
    *request = (cf_request){NULL, from};
    if (bytes == 0)
        return CF_OK;
    return cf_link_recv(comm->link, from, data, bytes, &request->handle);
}

cf_status cf_comm_wait(cf_comm *comm, cf_request *request)
{
    void *handle = request->handle;

    if (handle == NULL)
        return CF_OK;
    request->handle = NULL;
    return wait_for(comm, handle, request->peer);
}

/* ---- among all ranks ---- */

cf_status cf_comm_broadcast(cf_comm *comm, uint32_t root, void *data,
                            size_t bytes)
{
    cf_status status = CF_OK;

    comm->agreed = CF_OK;
    if (comm->size == 1)
        return CF_OK;
    for (size_t at = 0; at < bytes && status == CF_OK;) {
        const size_t part =
            bytes - at < CF_LINK_PART_BYTES ? bytes - at : CF_LINK_PART_BYTES;
        void *request;

        status = cf_link_broadcast(comm->link, root, (char *)data + at, part,
                                   &request);
        if (status == CF_OK)
            status = wait_for(comm, request, root);
        at += part;
    }
    return status;
}

cf_status cf_comm_gather(cf_comm *comm, const void *mine, size_t bytes,
                         void *all)
{
    char *place_of_mine = (char *)all + comm->rank * bytes;
    cf_status status = CF_OK;
    void *request;

    comm->agreed = CF_OK;
    if (bytes == 0)
        return CF_OK;
    if (comm->size > 1 && bytes <= CF_LINK_PART_BYTES / comm->size) {
        status = cf_link_gather(comm->link, mine, bytes, all, &request);
        return status == CF_OK ? wait_for(comm, request, CF_LINK_ANY) : status;
    }
    memmove(place_of_mine, mine, bytes);
    for (uint32_t root = 0; root < comm->size && status == CF_OK; root++)
        status =
            cf_comm_broadcast(comm, root, (char *)all + root * bytes, bytes);
    return status;
}

cf_status cf_comm_sum_sparse(cf_comm *comm, size_t n, double *x)
{
    const size_t part_max = CF_LINK_PART_BYTES / sizeof(*x);
    cf_status status = CF_OK;

    comm->agreed = CF_OK;
    if (comm->size == 1)
        return CF_OK;
    for (size_t at = 0; at < n && status == CF_OK;) {
        const size_t part = n - at < part_max ? n - at : part_max;
        void *request;

        status = cf_link_sum(comm->link, x + at, part, &request);
        if (status == CF_OK)
            status = wait_for(comm, request, CF_LINK_ANY);
        at += part;
    }
    return status;
}

cf_status cf_comm_agree(cf_comm *comm, cf_status status)
{
    const uint32_t mine = (uint32_t)status;
    uint32_t *all, rank;
    cf_status agreed;
    char text[PLACE_BYTES];

    if (comm->size == 1)
        return status;
    all = malloc(comm->size * sizeof(*all));
    if (all == NULL)
        return cf_log_no_memory("the status of all ranks");
    agreed = cf_comm_gather(comm, &mine, sizeof(mine), all);
    if (agreed == CF_OK) {
        for (rank = 0; rank + 1 < comm->size && all[rank] == CF_OK;)
            rank++;
        agreed = (cf_status)all[rank];
        comm->agreed = agreed;
        /* What did not fail has nothing to tell, or an error that it got over. */
        if (agreed == CF_OK || rank == comm->rank)
            cf_log_tell(place(comm, text));
        cf_log_drop();
    }
    free(all);
    return agreed;
}

/* Length of the line at `at`. */
static int line_length(const char *at)
{
    return (int)strcspn(at, "\n");
}

/* Log the first line that differs. */
static void text_differs(const char *what, const char *mine, const char *first)
{
    for (;;) {
        const int n_mine = line_length(mine), n_first = line_length(first);

        if (n_mine != n_first || memcmp(mine, first, (size_t)n_mine) != 0 ||
            mine[n_mine] == '\0' || first[n_first] == '\0') {
            cf_log_error("the %s differs from that of rank 0: '%.*s' here, "
                         "'%.*s' there; start all ranks alike",
                         what, n_mine, mine, n_first, first);
            return;
        }
        mine += n_mine + 1;
        first += n_first + 1;
    }
}

cf_status cf_comm_agree_text(cf_comm *comm, const char *what, const char *text)
{
    uint64_t bytes = strlen(text) + 1;
    cf_status status;
    char *first;

    if (comm->size == 1)
        return CF_OK;
    status = cf_comm_broadcast(comm, 0, &bytes, sizeof(bytes));
    if (status != CF_OK)
        return status;
    first = malloc(bytes);
    status = cf_comm_agree(
        comm, first == NULL ? cf_log_no_memory("the text of rank 0") : CF_OK);
    if (status != CF_OK)
        goto free_first;
    if (comm->rank == 0)
        memcpy(first, text, bytes);
    status = cf_comm_broadcast(comm, 0, first, bytes);
    if (status != CF_OK)
        goto free_first;
    if (strcmp(text, first) != 0) {
        text_differs(what, text, first);
        status = CF_INVALID;
    }
    status = cf_comm_agree(comm, status);
free_first:
    free(first);
    return status;
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
    lane = malloc(sizeof(*lane));
    if (lane == NULL)
        return cf_log_no_memory("a lane between the ranks");
    *lane = *comm;
    if (comm->link != NULL)
        status = cf_link_open(comm->link, &lane->link);
    if (status != CF_OK)
        free(lane);
    else
        *lane_p = lane;
    return status;
}

void cf_comm_lane_close(cf_comm *lane)
{
    if (lane == NULL)
        return;
    cf_link_close(lane->link);
    free(lane);
}
