/* ranks.c - a program for the tests of comm.h: what the ranks say to each other
 * arrives, and a rank that fails, goes or stops is told of.
 *
 *   mpirun -n N ranks [talk]          every call, checked
 *   mpirun -n N ranks big BYTES       one message each way
 *   mpirun -n N ranks ring SECONDS [err RANK STEP | agree RANK STEP]
 *                                     messages round a ring until the time is
 *                                     over, or the rank errs at the step
 *
 * RANKS_FOLDER: where ring leaves a file RANK with the process number.
 * RANKS_TIMEOUT: the stall timeout in seconds.
 */
#include <chunkflow/base.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "src/comm.h"
#include "src/log.h"
#include "src/signals.h"

enum {
    EXIT_WRONG = 99,
    EXIT_ERRED = 7,
    N_MESSAGES = 200
};

#define EXPECT(condition) expect((condition), #condition, __LINE__)

static void expect(int holds, const char *condition, int line)
{
    if (holds)
        return;
    (void)fprintf(stderr, "ranks.c:%d: not %s\n", line, condition);
    exit(EXIT_WRONG);
}

static void well(cf_status status, const char *call, int line)
{
    expect(status == CF_OK, call, line);
}

#define WELL(call) well((call), #call, __LINE__)

static uint32_t next_of(const cf_comm *comm)
{
    return (cf_comm_rank(comm) + 1) % cf_comm_size(comm);
}

static uint32_t previous_of(const cf_comm *comm)
{
    return (cf_comm_rank(comm) + cf_comm_size(comm) - 1) % cf_comm_size(comm);
}

/* ---- talk ---- */

/* Messages of many sizes, zero among them, in order, each way at once. */
static void check_order(cf_comm *comm, uint32_t salt)
{
    static const size_t sizes[] = {0, 1, 8, 4000, 70000, 300000};
    enum {
        N_SIZES = sizeof(sizes) / sizeof(sizes[0]),
        LARGEST = 300000
    };
    uint32_t *sent = malloc(LARGEST), *got = malloc(LARGEST);

    EXPECT(sent != NULL && got != NULL);
    for (uint32_t i = 0; i < N_MESSAGES; i++) {
        const size_t bytes = sizes[i % N_SIZES], n = bytes / sizeof(*sent);
        cf_request send = {0}, recv = {0};

        for (size_t k = 0; k < n; k++)
            sent[k] = salt + cf_comm_rank(comm) * 1000 + i + (uint32_t)k;
        memset(got, 0, bytes);
        WELL(cf_comm_recv(comm, previous_of(comm), got, bytes, &recv));
        WELL(cf_comm_send(comm, next_of(comm), sent, bytes, &send));
        WELL(cf_comm_wait(comm, &recv));
        WELL(cf_comm_wait(comm, &send));
        WELL(cf_comm_wait(comm, &send)); /* nothing is on its way */
        for (size_t k = 0; k < n; k++)
            EXPECT(got[k] == salt + previous_of(comm) * 1000 + i + (uint32_t)k);
    }
    free(sent);
    free(got);
}

/* Several on their way, waited for backwards. */
static void check_many_at_once(cf_comm *comm)
{
    enum {
        N = 16
    };
    uint64_t sent[N], got[N];
    cf_request sends[N], recvs[N];

    for (uint64_t i = 0; i < N; i++) {
        sent[i] = cf_comm_rank(comm) * 100 + i;
        WELL(cf_comm_recv(comm, previous_of(comm), &got[i], sizeof(got[i]),
                          &recvs[i]));
    }
    for (int i = 0; i < N; i++)
        WELL(cf_comm_send(comm, next_of(comm), &sent[i], sizeof(sent[i]),
                          &sends[i]));
    for (int i = N - 1; i >= 0; i--) {
        WELL(cf_comm_wait(comm, &recvs[i]));
        WELL(cf_comm_wait(comm, &sends[i]));
        EXPECT(got[i] == previous_of(comm) * 100 + (uint64_t)i);
    }
}

static void check_gather(cf_comm *comm)
{
    const uint32_t n = cf_comm_size(comm);

    for (size_t bytes = 1; bytes < 100; bytes += 7) {
        unsigned char mine[100], *all = malloc(n * bytes);

        EXPECT(all != NULL);
        memset(mine, (int)(cf_comm_rank(comm) + bytes), bytes);
        WELL(cf_comm_gather(comm, mine, bytes, all));
        for (size_t i = 0; i < n * bytes; i++)
            EXPECT(all[i] == (unsigned char)(i / bytes + bytes));
        free(all);
    }
}

static void check_broadcast(cf_comm *comm)
{
    for (uint32_t root = 0; root < cf_comm_size(comm); root++) {
        double x[1000];

        for (int i = 0; i < 1000; i++)
            x[i] = cf_comm_rank(comm) == root ? root + i / 7.0 : -1;
        WELL(cf_comm_broadcast(comm, root, x, sizeof(x)));
        for (int i = 0; i < 1000; i++)
            EXPECT(x[i] == root + i / 7.0);
    }
}

static void check_sum(cf_comm *comm)
{
    enum {
        N = 5000
    };
    double *x = calloc(N, sizeof(*x));

    EXPECT(x != NULL);
    for (uint32_t i = cf_comm_rank(comm); i < N; i += cf_comm_size(comm))
        x[i] = i / 3.0;
    WELL(cf_comm_sum_sparse(comm, N, x));
    for (int i = 0; i < N; i++)
        EXPECT(x[i] == i / 3.0);
    free(x);
}

/* Each rank in turn, and then several, have something to say. */
static void check_agree(cf_comm *comm)
{
    const uint32_t n = cf_comm_size(comm);

    WELL(cf_comm_agree(comm, CF_OK));
    for (uint32_t who = 0; who < n; who++) {
        cf_status mine = CF_OK;

        if (cf_comm_rank(comm) >= who) {
            cf_log_error("agreed, first is %u", who);
            mine = cf_comm_rank(comm) == who ? CF_NO_MEMORY : CF_IO;
        }
        EXPECT(cf_comm_agree(comm, mine) == CF_NO_MEMORY);
    }
    WELL(cf_comm_agree_text(comm, "options", "a: 1\nb: 2\n"));
    if (n > 1)
        EXPECT(cf_comm_agree_text(comm, "options",
                                  cf_comm_rank(comm) + 1 == n
                                      ? "a: 1\nb: 3\nc: 4\n"
                                      : "a: 1\nb: 2\nc: 4\n") == CF_INVALID);
    if (n > 1)
        EXPECT(cf_comm_agree_text(
                   comm, "lines",
                   cf_comm_rank(comm) + 1 == n ? "a: 1\n" : "") == CF_INVALID);
}

static void *lane_talks(void *argument)
{
    cf_comm *lane = argument;

    check_order(lane, 500000);
    check_sum(lane);
    check_broadcast(lane);
    return NULL;
}

static void check_lanes(cf_comm *comm)
{
    pthread_t threads[2];
    cf_comm *lanes[2];

    for (int i = 0; i < 2; i++)
        WELL(cf_comm_lane_open(comm, &lanes[i]));
    for (int i = 0; i < 2; i++)
        EXPECT(pthread_create(&threads[i], NULL, lane_talks, lanes[i]) == 0);
    check_order(comm, 0);
    check_gather(comm);
    for (int i = 0; i < 2; i++)
        EXPECT(pthread_join(threads[i], NULL) == 0);
    for (int i = 0; i < 2; i++)
        cf_comm_lane_close(lanes[i]);
}

static int talk(cf_comm *comm)
{
    EXPECT(cf_comm_node_size(comm) == cf_comm_size(comm));
    EXPECT(cf_comm_node_rank(comm) == cf_comm_rank(comm));
    EXPECT(cf_comm_node(comm) == 0);
    cf_comm_poll(comm);
    check_gather(comm);
    check_broadcast(comm);
    check_sum(comm);
    if (cf_comm_size(comm) > 1) {
        check_order(comm, 0);
        check_many_at_once(comm);
        check_lanes(comm);
    }
    check_agree(comm);
    (void)printf("rank %u is content\n", cf_comm_rank(comm));
    return 0;
}

/* ---- big ---- */

static int big(cf_comm *comm, size_t bytes)
{
    uint64_t *sent = malloc(bytes), *got = malloc(bytes);
    const size_t n = bytes / sizeof(*sent);
    cf_request send, recv;

    EXPECT(sent != NULL && got != NULL);
    for (size_t i = 0; i < n; i++)
        sent[i] = cf_comm_rank(comm) + i * 3;
    WELL(cf_comm_recv(comm, previous_of(comm), got, bytes, &recv));
    WELL(cf_comm_send(comm, next_of(comm), sent, bytes, &send));
    WELL(cf_comm_wait(comm, &recv));
    WELL(cf_comm_wait(comm, &send));
    for (size_t i = 0; i < n; i++)
        EXPECT(got[i] == previous_of(comm) + i * 3);
    WELL(cf_comm_broadcast(comm, 0, got, bytes));
    for (size_t i = 0; i < n; i++)
        EXPECT(got[i] == cf_comm_size(comm) - 1 + i * 3);
    free(sent);
    free(got);
    return 0;
}

/* ---- ring ---- */

typedef struct ring {
    double seconds;
    const char *how; /* "err", "agree", or NULL */
    uint32_t rank;
    uint64_t step;
} ring;

static double seconds_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void leave_number(const cf_comm *comm)
{
    const char *folder = getenv("RANKS_FOLDER");
    char path[512], part[520];
    FILE *file;

    if (folder == NULL)
        return;
    (void)snprintf(path, sizeof(path), "%s/%u", folder, cf_comm_rank(comm));
    (void)snprintf(part, sizeof(part), "%s.part", path);
    file = fopen(part, "w");
    EXPECT(file != NULL);
    (void)fprintf(file, "%d\n", (int)getpid());
    EXPECT(fclose(file) == 0 && rename(part, path) == 0);
}

/* To the next and from the previous, like activations; then all. */
static cf_status ring_step(cf_comm *comm, uint64_t step)
{
    static uint64_t sent[4096], got[4096];
    const uint32_t n = cf_comm_size(comm), rank = cf_comm_rank(comm);
    cf_status status = CF_OK;

    for (uint32_t chunk = 0; chunk < 8 && status == CF_OK; chunk++) {
        cf_request request = {0};

        if (rank > 0) {
            cf_comm_note(comm, step, chunk, "receive activations");
            status = cf_comm_recv(comm, rank - 1, got, sizeof(got), &request);
            if (status == CF_OK)
                status = cf_comm_wait(comm, &request);
        }
        cf_comm_note(comm, step, chunk, "forward");
        (void)usleep(1000);
        if (rank + 1 < n && status == CF_OK) {
            cf_comm_note(comm, step, chunk, "send activations");
            status = cf_comm_send(comm, rank + 1, sent, sizeof(sent), &request);
            if (status == CF_OK)
                status = cf_comm_wait(comm, &request);
        }
    }
    cf_comm_note(comm, step, UINT32_MAX, "end of step");
    return status;
}

static int go_round(cf_comm *comm, const ring *r)
{
    const double end_s = seconds_now() + r->seconds;
    uint32_t is_over = 0;
    cf_status status = CF_OK;

    cf_signals_open(); /* as train does: SIGTERM alone ends no rank */
    leave_number(comm);
    for (uint64_t step = 1; status == CF_OK && !is_over; step++) {
        const int errs =
            r->how != NULL && step == r->step && cf_comm_rank(comm) == r->rank;
        const int agrees = r->how != NULL && strcmp(r->how, "agree") == 0;

        status = ring_step(comm, step);
        if (errs) {
            cf_log_error("the loss is not finite");
            status = CF_NOT_FINITE;
        }
        if (agrees)
            status = cf_comm_agree(comm, status);
        is_over = seconds_now() > end_s;
        if (status == CF_OK)
            status = cf_comm_broadcast(comm, 0, &is_over, sizeof(is_over));
    }
    return status == CF_OK ? 0 : status == CF_COMM ? 5 : EXIT_ERRED;
}

int main(int argc, char **argv)
{
    const char *timeout = getenv("RANKS_TIMEOUT");
    const char *name = argc > 1 ? argv[1] : "talk";
    cf_comm *comm;
    int code = 2;

    if (cf_comm_open(&comm) != CF_OK)
        return 5;
    if (timeout != NULL)
        cf_comm_set_stall_timeout(comm, (uint64_t)atoi(timeout));
    if (strcmp(name, "talk") == 0)
        code = talk(comm);
    if (strcmp(name, "big") == 0 && argc > 2)
        code = big(comm, (size_t)strtoull(argv[2], NULL, 10));
    if (strcmp(name, "ring") == 0 && argc > 2) {
        ring r = {.seconds = atof(argv[2])};

        if (argc > 5) {
            r.how = argv[3];
            r.rank = (uint32_t)atoi(argv[4]);
            r.step = (uint64_t)atoi(argv[5]);
        }
        code = go_round(comm, &r);
    }
    cf_comm_close(comm, code);
    return code;
}
