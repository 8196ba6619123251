/* comm_mpi.c - see comm_link.h.  The only file that knows MPI.
 *
 * (1) A message of many bytes goes in parts, since MPI counts in int.
 * (2) What a request needs lives in slots that are used again, so that a step
 *     allocates nothing once the first one is over.
 */
#include <mpi.h>

#include "src/comm_link.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/log.h"

/* One MPI request; a message of several parts is a list of them. */
typedef struct slot {
    struct slot *next;
    MPI_Request request;
    int expected_bytes; /* to receive; -1: nothing is received */
} slot;

struct cf_link {
    MPI_Comm mpi;
    slot *spare;
};

static cf_status check(int result, const char *call)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int n = 0;

    if (result == MPI_SUCCESS)
        return CF_OK;
    (void)MPI_Error_string(result, text, &n);
    cf_log_error("%s: %s: see the messages of MPI above, if any", call, text);
    return CF_COMM;
}

bool cf_link_is_launched(void)
{
    /* A shell of salloc, and srun without PMI, have none of these. */
    static const char *const signs[] = {
        "OMPI_COMM_WORLD_SIZE",
        "PMIX_RANK",
        "PMI_RANK",
    };

    for (size_t i = 0; i < sizeof(signs) / sizeof(signs[0]); i++)
        if (getenv(signs[i]) != NULL)
            return true;
    return false;
}

/* Under a launcher of another MPI every process would be a world of its own,
 * and all would write into the same folder. */
static cf_status launcher_check(int n_ranks)
{
    const char *told = getenv("OMPI_COMM_WORLD_SIZE");

    if (told == NULL)
        told = getenv("PMI_SIZE");
    if (told == NULL || n_ranks > 1 || atoi(told) <= 1)
        return CF_OK;
    cf_log_error("the launcher started %s ranks, but they cannot find each "
                 "other: use the mpirun of Open MPI, or srun --mpi=pmix",
                 told);
    return CF_INVALID;
}

static cf_status link_of(MPI_Comm mpi, cf_link **link_p)
{
    cf_link *link = calloc(1, sizeof(*link));

    if (link == NULL)
        return cf_log_no_memory("a communicator");
    link->mpi = mpi;
    *link_p = link;
    return CF_OK;
}

/* A rank that a signal ends while it is meeting the launcher may leave mpirun
 * waiting for ever, so what comes meanwhile comes after. */
static cf_status init_undisturbed(void)
{
    sigset_t ends, before;
    int level, result;

    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGUSR1);
    (void)pthread_sigmask(SIG_BLOCK, &ends, &before);
    result = MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return check(result, "MPI_Init_thread");
}

cf_status cf_link_open_world(cf_link **link_p)
{
    int n_ranks = 1;
    cf_status status = init_undisturbed();

    if (status != CF_OK)
        return status;
    (void)MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    (void)MPI_Comm_size(MPI_COMM_WORLD, &n_ranks);
    status = launcher_check(n_ranks);
    if (status == CF_OK)
        status = link_of(MPI_COMM_WORLD, link_p);
    if (status != CF_OK)
        (void)MPI_Finalize();
    return status;
}

cf_status cf_link_open(cf_link *world, cf_link **link_p)
{
    MPI_Comm mpi;
    cf_status status = check(MPI_Comm_dup(world->mpi, &mpi), "MPI_Comm_dup");

    if (status != CF_OK)
        return status;
    status = link_of(mpi, link_p);
    if (status != CF_OK)
        (void)MPI_Comm_free(&mpi);
    return status;
}

static void link_free(cf_link *link)
{
    while (link->spare != NULL) {
        slot *next = link->spare->next;

        free(link->spare);
        link->spare = next;
    }
    free(link);
}

void cf_link_close(cf_link *link)
{
    if (link == NULL)
        return;
    (void)MPI_Comm_free(&link->mpi);
    link_free(link);
}

void cf_link_close_world(cf_link *world)
{
    (void)MPI_Finalize();
    link_free(world);
}

void cf_link_abort(cf_link *world, int code)
{
    (void)MPI_Abort(world->mpi, code);
    _exit(code);
}

void cf_link_leave(int code)
{
    _exit(code);
}

uint32_t cf_link_rank(const cf_link *link)
{
    int rank = 0;

    (void)MPI_Comm_rank(link->mpi, &rank);
    return (uint32_t)rank;
}

uint32_t cf_link_size(const cf_link *link)
{
    int size = 1;

    (void)MPI_Comm_size(link->mpi, &size);
    return (uint32_t)size;
}

bool cf_link_has_threads(void)
{
    int level = MPI_THREAD_SINGLE;

    (void)MPI_Query_thread(&level);
    return level == MPI_THREAD_MULTIPLE;
}

cf_status cf_link_node(cf_link *world, uint32_t *node_p, uint32_t *node_size_p,
                       uint32_t *node_rank_p)
{
    int rank = 0, node_rank = 0, node_size = 1, lowest;
    MPI_Comm node;
    cf_status status;

    (void)MPI_Comm_rank(world->mpi, &rank);
    status = check(MPI_Comm_split_type(world->mpi, MPI_COMM_TYPE_SHARED, rank,
                                       MPI_INFO_NULL, &node),
                   "MPI_Comm_split_type");
    if (status != CF_OK)
        return status;
    (void)MPI_Comm_rank(node, &node_rank);
    (void)MPI_Comm_size(node, &node_size);
    lowest = rank;
    status = check(MPI_Bcast(&lowest, 1, MPI_INT, 0, node), "MPI_Bcast");
    (void)MPI_Comm_free(&node);
    if (status != CF_OK)
        return status;
    *node_p = (uint32_t)lowest;
    *node_size_p = (uint32_t)node_size;
    *node_rank_p = (uint32_t)node_rank;
    return CF_OK;
}

/* Errors, logged: CF_NO_MEMORY. */
static cf_status slot_take(cf_link *link, slot **slot_p)
{
    slot *s = link->spare;

    if (s != NULL)
        link->spare = s->next;
    else
        s = malloc(sizeof(*s));
    if (s == NULL)
        return cf_log_no_memory("a message");
    *s = (slot){.request = MPI_REQUEST_NULL, .expected_bytes = -1};
    *slot_p = s;
    return CF_OK;
}

static void slots_give_back(cf_link *link, slot *first)
{
    slot *last = first;

    while (last->next != NULL)
        last = last->next;
    last->next = link->spare;
    link->spare = first;
}

/* Begin the parts of a message, in order.  On an error those that are on their
 * way are left alone: the process is about to end. */
static cf_status message_begin(cf_link *link, uint32_t peer, void *data,
                               size_t bytes, bool is_sent, void **request_p)
{
    const int from = peer == CF_LINK_ANY ? MPI_ANY_SOURCE : (int)peer;
    slot *first = NULL, **last = &first;
    size_t at = 0;

    do {
        const size_t part =
            bytes - at < CF_LINK_PART_BYTES ? bytes - at : CF_LINK_PART_BYTES;
        char *place = (char *)data + at;
        cf_status status = slot_take(link, last);

        if (status != CF_OK)
            return status;
        if (is_sent) {
            status = check(MPI_Isend(place, (int)part, MPI_BYTE, (int)peer, 0,
                                     link->mpi, &(*last)->request),
                           "MPI_Isend");
        } else {
            (*last)->expected_bytes = (int)part;
            status = check(MPI_Irecv(place, (int)part, MPI_BYTE, from, 0,
                                     link->mpi, &(*last)->request),
                           "MPI_Irecv");
        }
        if (status != CF_OK)
            return status;
        last = &(*last)->next;
        at += part;
    } while (at < bytes);
    *request_p = first;
    return CF_OK;
}

cf_status cf_link_send(cf_link *link, uint32_t to, const void *data,
                       size_t bytes, void **request_p)
{
    /* MPI reads what it sends, whatever its type says. */
    return message_begin(link, to, (void *)(uintptr_t)data, bytes, true,
                         request_p);
}

cf_status cf_link_recv(cf_link *link, uint32_t from, void *data, size_t bytes,
                       void **request_p)
{
    return message_begin(link, from, data, bytes, false, request_p);
}

cf_status cf_link_gather(cf_link *link, const void *mine, size_t bytes,
                         void *all, void **request_p)
{
    slot *s;
    cf_status status = slot_take(link, &s);

    if (status == CF_OK)
        status =
            check(MPI_Iallgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes,
                                 MPI_BYTE, link->mpi, &s->request),
                  "MPI_Iallgather");
    if (status == CF_OK)
        *request_p = s;
    return status;
}

cf_status cf_link_broadcast(cf_link *link, uint32_t root, void *data,
                            size_t bytes, void **request_p)
{
    slot *s;
    cf_status status = slot_take(link, &s);

    if (status == CF_OK)
        status = check(MPI_Ibcast(data, (int)bytes, MPI_BYTE, (int)root,
                                  link->mpi, &s->request),
                       "MPI_Ibcast");
    if (status == CF_OK)
        *request_p = s;
    return status;
}

cf_status cf_link_sum(cf_link *link, double *x, size_t n, void **request_p)
{
    slot *s;
    cf_status status = slot_take(link, &s);

    if (status == CF_OK)
        status = check(MPI_Iallreduce(MPI_IN_PLACE, x, (int)n, MPI_DOUBLE,
                                      MPI_SUM, link->mpi, &s->request),
                       "MPI_Iallreduce");
    if (status == CF_OK)
        *request_p = s;
    return status;
}

cf_status cf_link_barrier(cf_link *link, void **request_p)
{
    slot *s;
    cf_status status = slot_take(link, &s);

    if (status == CF_OK)
        status = check(MPI_Ibarrier(link->mpi, &s->request), "MPI_Ibarrier");
    if (status == CF_OK)
        *request_p = s;
    return status;
}

static cf_status part_check(const slot *s, const MPI_Status *result)
{
    int bytes = 0;

    if (s->expected_bytes < 0)
        return CF_OK;
    (void)MPI_Get_count(result, MPI_BYTE, &bytes);
    if (bytes == s->expected_bytes)
        return CF_OK;
    cf_log_error("rank %d sent %d bytes where %d were expected: start all "
                 "ranks with the same program and options",
                 result->MPI_SOURCE, bytes, s->expected_bytes);
    return CF_COMM;
}

cf_status cf_link_test(cf_link *link, void *request, bool *done_p)
{
    for (slot *s = request; s != NULL; s = s->next) {
        int done = 0;
        MPI_Status result;
        cf_status status;

        if (s->request == MPI_REQUEST_NULL)
            continue; /* a part that was done before */
        status = check(MPI_Test(&s->request, &done, &result), "MPI_Test");
        if (status == CF_OK && done)
            status = part_check(s, &result);
        if (status != CF_OK)
            return status;
        if (!done) {
            *done_p = false;
            return CF_OK;
        }
    }
    slots_give_back(link, request);
    *done_p = true;
    return CF_OK;
}

void cf_link_cancel(cf_link *link, void *request)
{
    slot *s = request;

    (void)MPI_Cancel(&s->request);
    (void)MPI_Wait(&s->request, MPI_STATUS_IGNORE);
    slots_give_back(link, s);
}
