/* comm_watch.c - see comm_watch.h. */
#include "src/comm_watch.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "src/clock.h"
#include "src/log.h"

enum {
    HOST_BYTES = 64,
    HEARD_AT_ONCE = 256, /* messages taken in one look */
    TIMEOUT_S = 600
};

#define MS             1000000U
#define SECOND         (1000U * (uint64_t)MS)
#define AWAKE_STEP_MAX (250U * MS) /* longer between two looks is no waiting */
#define JUDGE_EVERY    (50U * MS)
/* What a rank said before it went may still be on its way. */
#define GONE_PATIENCE (150U * MS)
/* In the guard's eyes: gone for this long is too long for who waits. */
#define MISSED (500U * MS)
/* The guard did not run for this long: neither did this process. */
#define STOPPED SECOND
#define EXCUSE  (10U * SECOND)
/* Of those who see the same, one is to speak first. */
#define TURN      (50U * MS)
#define TURNS_MAX 20U
#define TELLING   (300U * MS)

typedef enum message_kind {
    ALIVE,
    FAILED
} message_kind;

typedef struct message {
    uint32_t from;
    uint32_t kind;
} message;

/* What a rank says of itself at the start. */
typedef struct identity {
    uint64_t start; /* of its process, as /proc has it; 0: unknown */
    int32_t pid;
    uint32_t node;
    char host[HOST_BYTES];
} identity;

typedef struct watched {
    identity is;
    bool is_near;              /* its process can be seen */
    _Atomic uint64_t heard_ns; /* on the clock of awake_ns */
    uint64_t gone_ns;          /* likewise; 0: it is there */
    bool is_told;              /* that this rank leaves */
    void *request;             /* of the last message to it; NULL: none */
} watched;

struct cf_watch {
    pthread_mutex_t lock; /* for all that is not atomic */
    cf_link *link;
    uint32_t rank;
    uint32_t n_peers; /* this rank is one of them */
    watched *peers;
    void *request; /* of the next message to come */
    message arriving, alive, failed;
    _Atomic uint64_t timeout_ns;
    uint64_t looked_ns; /* these by the clock of the machine */
    uint64_t shown_ns;
    uint64_t judged_ns;
    _Atomic uint64_t awake_ns;   /* time spent looking */
    _Atomic uint64_t excused_ns; /* until when this rank blames nobody */
    uint64_t guarded_ns;         /* these two are the guard's */
    uint64_t missed_ns;
    atomic_int verdict;
};

/* State and start of a process; false: there is none. */
static bool process_read(int32_t pid, char *state_p, uint64_t *start_p)
{
    char path[32], text[1024], *at;
    FILE *file;
    size_t n;

    (void)snprintf(path, sizeof(path), "/proc/%" PRId32 "/stat", pid);
    file = fopen(path, "re");
    if (file == NULL)
        return false;
    n = fread(text, 1, sizeof(text) - 1, file);
    (void)fclose(file);
    text[n] = '\0';
    at = strrchr(text, ')'); /* a name may have anything in it */
    return at != NULL && sscanf(at + 1,
                                " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
                                "%*s %*s %*s %*s %*s %*s %*s %*s %" SCNu64,
                                state_p, start_p) == 2;
}

/* ---- opening ---- */

static void identify(identity *mine, uint32_t node)
{
    char state;

    memset(mine, 0, sizeof(*mine));
    mine->pid = (int32_t)getpid();
    mine->node = node;
    if (!process_read(mine->pid, &state, &mine->start))
        mine->start = 0;
    if (gethostname(mine->host, sizeof(mine->host) - 1) != 0)
        memcpy(mine->host, "?", 2);
}

/* Only at the start: nobody is watched yet. */
static cf_status wait_unwatched(cf_link *link, void *request)
{
    bool done = false;
    cf_status status = CF_OK;

    while (status == CF_OK && !done) {
        status = cf_link_test(link, request, &done);
        if (!done)
            (void)nanosleep(&(struct timespec){.tv_nsec = MS / 10}, NULL);
    }
    return status;
}

static cf_status meet(cf_watch *watch, uint32_t node)
{
    identity mine, *all = calloc(watch->n_peers, sizeof(*all));
    void *request;
    cf_status status;

    if (all == NULL)
        return cf_log_no_memory("the other ranks");
    identify(&mine, node);
    status = cf_link_gather(watch->link, &mine, sizeof(mine), all, &request);
    if (status == CF_OK)
        status = wait_unwatched(watch->link, request);
    for (uint32_t i = 0; i < watch->n_peers && status == CF_OK; i++) {
        watched *p = &watch->peers[i];
        uint64_t start;
        char state;

        p->is = all[i];
        p->is.host[HOST_BYTES - 1] = '\0';
        /* In another container the number is another process, or none. */
        p->is_near = p->is.node == node && p->is.start != 0 &&
                     process_read(p->is.pid, &state, &start) &&
                     start == p->is.start;
    }
    free(all);
    return status;
}

static cf_status listen(cf_watch *watch)
{
    return cf_link_recv(watch->link, CF_LINK_ANY, &watch->arriving,
                        sizeof(watch->arriving), &watch->request);
}

static void watch_free(cf_watch *watch)
{
    cf_link_close(watch->link);
    (void)pthread_mutex_destroy(&watch->lock);
    free(watch->peers);
    free(watch);
}

cf_status cf_watch_open(cf_link *world, uint32_t node, cf_watch **watch_p)
{
    cf_watch *watch = calloc(1, sizeof(*watch));
    cf_status status = CF_NO_MEMORY;

    if (watch == NULL)
        return cf_log_no_memory("the other ranks");
    (void)pthread_mutex_init(&watch->lock, NULL);
    watch->rank = cf_link_rank(world);
    watch->n_peers = cf_link_size(world);
    watch->alive = (message){watch->rank, ALIVE};
    watch->timeout_ns = TIMEOUT_S * SECOND;
    watch->looked_ns = cf_clock_ns();
    watch->peers = calloc(watch->n_peers, sizeof(*watch->peers));
    if (watch->peers == NULL)
        status = cf_log_no_memory("the other ranks");
    else
        status = cf_link_open(world, &watch->link);
    if (status == CF_OK)
        status = meet(watch, node);
    if (status == CF_OK)
        status = listen(watch);
    if (status != CF_OK)
        watch_free(watch);
    else
        *watch_p = watch;
    return status;
}

void cf_watch_close(cf_watch *watch)
{
    if (watch == NULL)
        return;
    if (watch->request != NULL)
        cf_link_cancel(watch->link, watch->request);
    for (uint32_t i = 0; i < watch->n_peers; i++) {
        bool done;

        if (watch->peers[i].request != NULL &&
            cf_link_test(watch->link, watch->peers[i].request, &done) != CF_OK)
            break;
    }
    watch_free(watch);
}

void cf_watch_set_timeout(cf_watch *watch, uint64_t seconds)
{
    atomic_store(&watch->timeout_ns, seconds * SECOND);
}

uint64_t cf_watch_now(const cf_watch *watch)
{
    return atomic_load(&watch->awake_ns);
}

cf_watch_verdict cf_watch_verdict_now(const cf_watch *watch)
{
    return (cf_watch_verdict)atomic_load(&watch->verdict);
}

void cf_watch_hear(cf_watch *watch, uint32_t peer)
{
    atomic_store(&watch->peers[peer].heard_ns, cf_watch_now(watch));
}

/* False: it is decided already, so somebody has told, or does. */
static bool decide(cf_watch *watch, int verdict)
{
    int well = CF_WATCH_WELL;

    return atomic_compare_exchange_strong(&watch->verdict, &well, verdict);
}

/* ---- messages; all under the lock ---- */

/* False: its last message has not gone yet, so it is not listening. */
static bool send_to(cf_watch *watch, uint32_t to, const message *what)
{
    watched *p = &watch->peers[to];
    bool done = true;

    if (p->request != NULL &&
        cf_link_test(watch->link, p->request, &done) == CF_OK && done)
        p->request = NULL;
    if (p->request != NULL)
        return false;
    if (cf_link_send(watch->link, to, what, sizeof(*what), &p->request) !=
        CF_OK)
        p->request = NULL;
    return true;
}

static void show(cf_watch *watch, uint64_t now_ns)
{
    uint64_t every_ns = watch->timeout_ns / 4;

    if (every_ns > SECOND)
        every_ns = SECOND;
    if (now_ns - watch->shown_ns < every_ns)
        return;
    watch->shown_ns = now_ns;
    for (uint32_t i = 0; i < watch->n_peers; i++)
        if (i != watch->rank)
            (void)send_to(watch, i, &watch->alive);
}

static void hear_all(cf_watch *watch)
{
    for (int i = 0; i < HEARD_AT_ONCE && watch->request != NULL; i++) {
        const message *m = &watch->arriving;
        bool done = false;

        if (cf_link_test(watch->link, watch->request, &done) != CF_OK || !done)
            return;
        watch->request = NULL;
        if (m->from < watch->n_peers)
            cf_watch_hear(watch, m->from);
        if (m->kind == FAILED)
            (void)decide(watch, CF_WATCH_TOLD);
        if (listen(watch) != CF_OK)
            watch->request = NULL;
    }
}

/* A connection that breaks off takes along what has not been read from it, so
 * this one stays while the others listen. */
void cf_watch_tell(cf_watch *watch)
{
    const uint64_t end_ns = cf_clock_ns() + TELLING;

    (void)pthread_mutex_lock(&watch->lock);
    watch->failed = (message){watch->rank, FAILED};
    while (cf_clock_ns() < end_ns) {
        for (uint32_t i = 0; i < watch->n_peers; i++) {
            watched *p = &watch->peers[i];

            if (i != watch->rank && p->gone_ns == 0 && !p->is_told)
                p->is_told = send_to(watch, i, &watch->failed);
        }
        hear_all(watch);
        (void)nanosleep(&(struct timespec){.tv_nsec = MS}, NULL);
    }
    (void)pthread_mutex_unlock(&watch->lock);
}

/* ---- judging; under the lock ---- */

static bool is_gone(const watched *p)
{
    uint64_t start = 0;
    char state = 'X';

    return p->is_near && (!process_read(p->is.pid, &state, &start) ||
                          start != p->is.start || strchr("ZXx", state) != NULL);
}

/* What is known of the process behind a silence. */
static const char *why_silent(const watched *p)
{
    uint64_t start;
    char state;

    if (!p->is_near || !process_read(p->is.pid, &state, &start))
        return ": look at its machine and the network between, or raise "
               "--stall-timeout";
    if (state == 'T' || state == 't')
        return "; its process is stopped: continue it, or end it";
    return "; its process is there: raise --stall-timeout if it needs longer";
}

/* How much later than the first this rank speaks of a loss that all notice. */
static uint64_t turn_ns(const cf_watch *watch, uint32_t lost)
{
    const uint32_t up = (lost + watch->n_peers - watch->rank) % watch->n_peers;
    const uint32_t down = watch->n_peers - up;
    const uint32_t turns = (up < down ? up : down) - 1;

    return TURN * (uint64_t)(turns < TURNS_MAX ? turns : TURNS_MAX);
}

static void notice_gone(cf_watch *watch, uint32_t index)
{
    const watched *p = &watch->peers[index];

    /* To one that was stopped, all others are gone: they have told why. */
    if (cf_clock_ns() < atomic_load(&watch->excused_ns))
        (void)decide(watch, CF_WATCH_TOLD);
    else if (decide(watch, CF_WATCH_GONE))
        cf_log_error("rank %u (host %s, process %" PRId32
                     ") is gone: its last message, or the kernel's, says why",
                     (unsigned)index, p->is.host, p->is.pid);
}

static void notice_silent(cf_watch *watch, uint32_t index, uint64_t silent_ns)
{
    const watched *p = &watch->peers[index];

    if (decide(watch, CF_WATCH_SILENT))
        cf_log_error("rank %u (host %s, process %" PRId32
                     ") has been silent for %" PRIu64 " s%s",
                     (unsigned)index, p->is.host, p->is.pid, silent_ns / SECOND,
                     why_silent(p));
}

static void judge(cf_watch *watch, uint32_t index, uint64_t since_ns,
                  uint64_t patience_ns)
{
    watched *p = &watch->peers[index];
    const uint64_t now_ns = cf_watch_now(watch);
    const uint64_t heard_ns = atomic_load(&p->heard_ns);
    const uint64_t from_ns = heard_ns > since_ns ? heard_ns : since_ns;

    if (p->gone_ns == 0 && is_gone(p))
        p->gone_ns = now_ns;
    if (p->gone_ns != 0 && now_ns - p->gone_ns > GONE_PATIENCE + patience_ns)
        notice_gone(watch, index);
    else if (now_ns > from_ns &&
             now_ns - from_ns > atomic_load(&watch->timeout_ns) + patience_ns)
        notice_silent(watch, index, now_ns - from_ns);
}

static void judge_all(cf_watch *watch, uint32_t peer, uint64_t since_ns)
{
    for (uint32_t i = 0; i < watch->n_peers; i++) {
        if (atomic_load(&watch->verdict) != CF_WATCH_WELL)
            return;
        if (i != watch->rank)
            judge(watch, i,
                  peer == i || peer == CF_LINK_ANY ? since_ns : UINT64_MAX,
                  peer == i ? 0 : turn_ns(watch, i));
    }
}

cf_watch_verdict cf_watch_look(cf_watch *watch, uint32_t peer,
                               uint64_t since_ns)
{
    uint64_t now_ns, step_ns;

    /* Another thread is looking. */
    if (pthread_mutex_trylock(&watch->lock) != 0)
        return cf_watch_verdict_now(watch);
    now_ns = cf_clock_ns();
    step_ns = now_ns - watch->looked_ns;
    watch->looked_ns = now_ns;
    (void)atomic_fetch_add(&watch->awake_ns,
                           step_ns < AWAKE_STEP_MAX ? step_ns : AWAKE_STEP_MAX);
    show(watch, now_ns);
    hear_all(watch);
    if (now_ns - watch->judged_ns >= JUDGE_EVERY) {
        watch->judged_ns = now_ns;
        judge_all(watch, peer, since_ns);
    }
    (void)pthread_mutex_unlock(&watch->lock);
    return cf_watch_verdict_now(watch);
}

cf_watch_verdict cf_watch_poll(cf_watch *watch)
{
    return cf_watch_look(watch, CF_LINK_ANY, UINT64_MAX);
}

/* The one that was heard last the longest time ago. */
static uint32_t most_silent(const cf_watch *watch)
{
    uint32_t index = watch->rank == 0 ? 1 : 0;

    for (uint32_t i = index + 1; i < watch->n_peers; i++)
        if (i != watch->rank && atomic_load(&watch->peers[i].heard_ns) <
                                    atomic_load(&watch->peers[index].heard_ns))
            index = i;
    return index;
}

/* The first rank of this node that is gone; n_peers: none. */
static uint32_t find_gone(const cf_watch *watch)
{
    uint32_t i = 0;

    while (i < watch->n_peers &&
           (i == watch->rank || !is_gone(&watch->peers[i])))
        i++;
    return i;
}

bool cf_watch_misses(cf_watch *watch)
{
    const uint64_t now_ns = cf_clock_ns();

    if (watch->guarded_ns != 0 && now_ns - watch->guarded_ns > STOPPED)
        atomic_store(&watch->excused_ns, now_ns + EXCUSE);
    watch->guarded_ns = now_ns;
    if (find_gone(watch) == watch->n_peers)
        watch->missed_ns = 0;
    else if (watch->missed_ns == 0)
        watch->missed_ns = now_ns;
    return watch->missed_ns != 0 && now_ns - watch->missed_ns > MISSED;
}

/* Whoever is in MPI may hold the lock. */
cf_watch_verdict cf_watch_explain(cf_watch *watch, uint32_t peer,
                                  uint64_t stuck_ns)
{
    const uint32_t gone = find_gone(watch);

    if (gone < watch->n_peers)
        notice_gone(watch, gone);
    else if (stuck_ns > atomic_load(&watch->timeout_ns))
        notice_silent(watch, peer == CF_LINK_ANY ? most_silent(watch) : peer,
                      stuck_ns);
    return cf_watch_verdict_now(watch);
}
