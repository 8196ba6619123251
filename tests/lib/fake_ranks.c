/* fake_ranks.c - see fake_ranks.h. */
#include "tests/lib/fake_ranks.h"

#include <check.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    RANKS_MAX = 16
};

/* Where the ranks meet; slots are read between two meetings. */
typedef struct meeting {
    uint32_t n;
    pthread_barrier_t barrier;
    const void *slots[RANKS_MAX];
} meeting;

struct cf_comm {
    meeting *meeting;
    uint32_t rank;
};

static meeting *meeting_open(uint32_t n)
{
    meeting *m = calloc(1, sizeof(*m));

    ck_assert_uint_le(n, RANKS_MAX);
    ck_assert_ptr_nonnull(m);
    m->n = n;
    ck_assert_int_eq(pthread_barrier_init(&m->barrier, NULL, n), 0);
    return m;
}

static void meeting_close(meeting *m)
{
    pthread_barrier_destroy(&m->barrier);
    free(m);
}

static void meet(cf_comm *comm)
{
    (void)pthread_barrier_wait(&comm->meeting->barrier);
}

uint32_t cf_comm_rank(const cf_comm *comm)
{
    return comm->rank;
}

uint32_t cf_comm_size(const cf_comm *comm)
{
    return comm->meeting->n;
}

cf_status cf_comm_gather(cf_comm *comm, const void *mine, size_t bytes,
                         void *all)
{
    meeting *m = comm->meeting;

    m->slots[comm->rank] = mine;
    meet(comm);
    for (uint32_t i = 0; i < m->n; i++)
        memcpy((char *)all + i * bytes, m->slots[i], bytes);
    meet(comm);
    return CF_OK;
}

cf_status cf_comm_broadcast(cf_comm *comm, uint32_t root, void *data,
                            size_t bytes)
{
    meeting *m = comm->meeting;

    m->slots[comm->rank] = data;
    meet(comm);
    if (comm->rank != root)
        memcpy(data, m->slots[root], bytes);
    meet(comm);
    return CF_OK;
}

cf_status cf_comm_agree(cf_comm *comm, cf_status status)
{
    cf_status all[RANKS_MAX];

    if (cf_comm_gather(comm, &status, sizeof(status), all) != CF_OK)
        return CF_COMM;
    for (uint32_t i = 0; i < comm->meeting->n; i++)
        if (all[i] != CF_OK)
            return all[i];
    return CF_OK;
}

cf_status cf_comm_lane_open(cf_comm *comm, cf_comm **lane_p)
{
    cf_comm *lane = malloc(sizeof(*lane));
    meeting *m = comm->rank == 0 ? meeting_open(comm->meeting->n) : NULL;

    ck_assert_ptr_nonnull(lane);
    if (cf_comm_broadcast(comm, 0, &m, sizeof(m)) != CF_OK)
        return CF_COMM;
    *lane = (cf_comm){m, comm->rank};
    *lane_p = lane;
    return CF_OK;
}

void cf_comm_lane_close(cf_comm *lane)
{
    meet(lane);
    if (lane->rank == 0)
        meeting_close(lane->meeting);
    free(lane);
}

/* ---- threads ---- */

typedef struct rank_thread {
    cf_comm comm;
    void (*body)(cf_comm *comm, void *context);
    void *context;
    pthread_t thread;
} rank_thread;

static void *rank_run(void *rank)
{
    rank_thread *r = rank;

    r->body(&r->comm, r->context);
    return NULL;
}

void fake_ranks_run(uint32_t n, void (*body)(cf_comm *comm, void *context),
                    void *context)
{
    rank_thread ranks[RANKS_MAX];
    meeting *m = meeting_open(n);

    for (uint32_t i = 0; i < n; i++) {
        ranks[i] = (rank_thread){{m, i}, body, context, 0};
        ck_assert_int_eq(
            pthread_create(&ranks[i].thread, NULL, rank_run, &ranks[i]), 0);
    }
    for (uint32_t i = 0; i < n; i++)
        ck_assert_int_eq(pthread_join(ranks[i].thread, NULL), 0);
    meeting_close(m);
}
