/* thread_comm.c - see thread_comm.h. */
#include "tests/lib/thread_comm.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum {
    RANKS_MAX = 16
};

/* A send or a receive.  It lives as long as the world: one that met its
 * counterpart when another rank failed may never be waited for. */
typedef struct pending {
    struct pending *next;  /* in a mailbox */
    struct pending *older; /* of the world */
    const void *from;      /* of a send */
    void *to;              /* of a receive */
    size_t bytes;
    bool done;
} pending;

/* From one rank to another: in each list, first posted first. */
typedef struct mailbox {
    pending *sends;
    pending *recvs;
} mailbox;

struct cf_comm {
    thread_world *world;
    uint32_t rank;
    uint64_t polls;
};

struct thread_world {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t n;
    bool failed;
    cf_comm comms[RANKS_MAX];
    mailbox boxes[RANKS_MAX][RANKS_MAX]; /* [from][to] */
    pending *posted;                     /* owned: the newest */
    /* What all ranks do together: each brings something, the last opens. */
    const void *brought[RANKS_MAX];
    uint32_t n_arrived;
    uint64_t round;
};

thread_world *thread_world_open(uint32_t n)
{
    thread_world *world = calloc(1, sizeof(*world));

    if (world == NULL || n > RANKS_MAX)
        abort();
    pthread_mutex_init(&world->lock, NULL);
    pthread_cond_init(&world->changed, NULL);
    world->n = n;
    for (uint32_t i = 0; i < n; i++)
        world->comms[i] = (cf_comm){.world = world, .rank = i};
    return world;
}

cf_comm *thread_world_comm(thread_world *world, uint32_t rank)
{
    return &world->comms[rank];
}

void thread_world_close(thread_world *world)
{
    while (world->posted != NULL) {
        pending *newest = world->posted;

        world->posted = newest->older;
        free(newest);
    }
    pthread_cond_destroy(&world->changed);
    pthread_mutex_destroy(&world->lock);
    free(world);
}

void thread_world_fail(thread_world *world)
{
    pthread_mutex_lock(&world->lock);
    world->failed = true;
    pthread_cond_broadcast(&world->changed);
    pthread_mutex_unlock(&world->lock);
}

uint64_t thread_world_polls(const thread_world *world, uint32_t rank)
{
    return world->comms[rank].polls;
}

/* ---- between two ranks ---- */

static void append(pending **list, pending *p)
{
    while (*list != NULL)
        list = &(*list)->next;
    *list = p;
}

static pending *pop(pending **list)
{
    pending *first = *list;

    *list = first->next;
    first->next = NULL;
    return first;
}

static void deliver(thread_world *world, mailbox *box)
{
    while (box->sends != NULL && box->recvs != NULL) {
        pending *send = pop(&box->sends), *recv = pop(&box->recvs);

        if (send->bytes != recv->bytes)
            world->failed = true;
        else
            memcpy(recv->to, send->from, send->bytes);
        send->done = recv->done = true;
    }
    pthread_cond_broadcast(&world->changed);
}

static cf_status post(thread_world *world, mailbox *box, pending **list,
                      pending what, cf_request *request)
{
    pending *p = malloc(sizeof(*p));

    if (p == NULL || request->handle != NULL)
        abort();
    *p = what;
    request->handle = p;
    pthread_mutex_lock(&world->lock);
    p->older = world->posted;
    world->posted = p;
    append(list, p);
    deliver(world, box);
    pthread_mutex_unlock(&world->lock);
    return CF_OK;
}

cf_status cf_comm_send(cf_comm *comm, uint32_t to, const void *data,
                       size_t bytes, cf_request *request)
{
    mailbox *box = &comm->world->boxes[comm->rank][to];

    return post(comm->world, box, &box->sends,
                (pending){.from = data, .bytes = bytes}, request);
}

cf_status cf_comm_recv(cf_comm *comm, uint32_t from, void *data, size_t bytes,
                       cf_request *request)
{
    mailbox *box = &comm->world->boxes[from][comm->rank];

    return post(comm->world, box, &box->recvs,
                (pending){.to = data, .bytes = bytes}, request);
}

cf_status cf_comm_wait(cf_comm *comm, cf_request *request)
{
    thread_world *world = comm->world;
    pending *p = request->handle;
    cf_status status = CF_OK;

    if (p == NULL)
        return CF_OK;
    pthread_mutex_lock(&world->lock);
    while (!p->done && !world->failed)
        pthread_cond_wait(&world->changed, &world->lock);
    if (world->failed)
        status = CF_COMM;
    pthread_mutex_unlock(&world->lock);
    if (status == CF_OK)
        request->handle = NULL;
    return status;
}

/* ---- among all ranks ---- */

/* Wait until all are here. */
static cf_status meet(thread_world *world)
{
    const uint64_t round = world->round;

    if (++world->n_arrived == world->n) {
        world->n_arrived = 0;
        world->round++;
        pthread_cond_broadcast(&world->changed);
    }
    while (world->round == round && !world->failed)
        pthread_cond_wait(&world->changed, &world->lock);
    return world->failed ? CF_COMM : CF_OK;
}

cf_status cf_comm_gather(cf_comm *comm, const void *mine, size_t bytes,
                         void *all)
{
    thread_world *world = comm->world;
    cf_status status;

    pthread_mutex_lock(&world->lock);
    world->brought[comm->rank] = mine;
    status = meet(world);
    for (uint32_t i = 0; i < world->n && status == CF_OK; i++)
        memcpy((char *)all + i * bytes, world->brought[i], bytes);
    if (status == CF_OK)
        status = meet(world); /* nobody changes what another still reads */
    pthread_mutex_unlock(&world->lock);
    return status;
}

/* Gather, and what follows from it on every rank. */
static void *gathered(cf_comm *comm, const void *mine, size_t bytes)
{
    void *all = malloc(comm->world->n * bytes + 1);

    if (all == NULL)
        abort();
    if (cf_comm_gather(comm, mine, bytes, all) == CF_OK)
        return all;
    free(all);
    return NULL;
}

cf_status cf_comm_broadcast(cf_comm *comm, uint32_t root, void *data,
                            size_t bytes)
{
    char *all = gathered(comm, data, bytes);

    if (all == NULL)
        return CF_COMM;
    memcpy(data, all + root * bytes, bytes);
    free(all);
    return CF_OK;
}

cf_status cf_comm_sum_sparse(cf_comm *comm, size_t n, double *x)
{
    double *all = gathered(comm, x, n * sizeof(*x));

    if (all == NULL)
        return CF_COMM;
    for (size_t i = 0; i < n; i++) {
        x[i] = 0;
        for (uint32_t rank = 0; rank < comm->world->n; rank++)
            x[i] += all[rank * n + i];
    }
    free(all);
    return CF_OK;
}

cf_status cf_comm_agree(cf_comm *comm, cf_status status)
{
    cf_status *all = gathered(comm, &status, sizeof(status));

    if (all == NULL)
        return CF_COMM;
    for (uint32_t rank = comm->world->n; rank-- > 0;)
        if (all[rank] != CF_OK)
            status = all[rank];
    free(all);
    return status;
}

cf_status cf_comm_agree_text(cf_comm *comm, const char *what, const char *text)
{
    (void)what;
    (void)text;
    return cf_comm_agree(comm, CF_OK);
}

/* ---- what a world of threads has no use for ---- */

cf_status cf_comm_open(cf_comm **comm_p)
{
    static thread_world *alone;

    if (alone == NULL)
        alone = thread_world_open(1);
    *comm_p = thread_world_comm(alone, 0);
    return CF_OK;
}

void cf_comm_close(cf_comm *comm, int code)
{
    (void)comm;
    (void)code;
}

uint32_t cf_comm_rank(const cf_comm *comm)
{
    return comm->rank;
}

uint32_t cf_comm_size(const cf_comm *comm)
{
    return comm->world->n;
}

uint32_t cf_comm_node(const cf_comm *comm)
{
    (void)comm;
    return 0;
}

uint32_t cf_comm_node_size(const cf_comm *comm)
{
    return comm->world->n;
}

uint32_t cf_comm_node_rank(const cf_comm *comm)
{
    return comm->rank;
}

void cf_comm_set_stall_timeout(cf_comm *comm, uint64_t seconds)
{
    (void)comm;
    (void)seconds;
}

void cf_comm_note(cf_comm *comm, uint64_t step, uint32_t chunk,
                  const char *what)
{
    (void)comm;
    (void)step;
    (void)chunk;
    (void)what;
}

void cf_comm_poll(cf_comm *comm)
{
    comm->polls++;
}

cf_status cf_comm_lane_open(cf_comm *comm, cf_comm **lane_p)
{
    *lane_p = comm;
    return CF_OK;
}

void cf_comm_lane_close(cf_comm *lane)
{
    (void)lane;
}
