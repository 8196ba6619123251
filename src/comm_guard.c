/* comm_guard.c - see comm_guard.h. */
#include "src/comm_guard.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

#include "src/comm_link.h"
#include "src/log.h"

struct cf_guard {
    pthread_t thread;
    pthread_mutex_t lock; /* for all below */
    pthread_cond_t changed;
    void (*look)(void *);
    void *argument;
    bool is_over;
    bool has_end;
    unsigned ticks_left; /* with an end */
    int code;
};

static void tick(cf_guard *g)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += CF_GUARD_TICK_MS * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    (void)pthread_cond_timedwait(&g->changed, &g->lock, &until);
}

static void *stand(void *argument)
{
    cf_guard *g = argument;

    (void)pthread_mutex_lock(&g->lock);
    while (!g->is_over) {
        if (g->has_end && g->ticks_left-- == 0)
            cf_link_leave(g->code);
        if (!g->has_end)
            g->look(g->argument);
        tick(g);
    }
    (void)pthread_mutex_unlock(&g->lock);
    return NULL;
}

/* Signals are for the threads that work. */
static int start(cf_guard *g)
{
    sigset_t all, before;
    int result;

    sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    result = pthread_create(&g->thread, NULL, stand, g);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return result;
}

cf_status cf_guard_open(void (*look)(void *), void *argument,
                        cf_guard **guard_p)
{
    cf_guard *g = calloc(1, sizeof(*g));
    pthread_condattr_t monotonic;

    if (g == NULL)
        return cf_log_no_memory("the guard of the ranks");
    g->look = look;
    g->argument = argument;
    (void)pthread_mutex_init(&g->lock, NULL);
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&g->changed, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    if (start(g) != 0) {
        (void)pthread_cond_destroy(&g->changed);
        (void)pthread_mutex_destroy(&g->lock);
        free(g);
        return cf_log_no_memory("a thread");
    }
    *guard_p = g;
    return CF_OK;
}

void cf_guard_set_end(cf_guard *guard, unsigned seconds, int code)
{
    (void)pthread_mutex_lock(&guard->lock);
    guard->has_end = true;
    guard->ticks_left = seconds * 1000 / CF_GUARD_TICK_MS;
    guard->code = code;
    (void)pthread_mutex_unlock(&guard->lock);
}

void cf_guard_close(cf_guard *guard)
{
    if (guard == NULL)
        return;
    (void)pthread_mutex_lock(&guard->lock);
    guard->is_over = true;
    (void)pthread_cond_signal(&guard->changed);
    (void)pthread_mutex_unlock(&guard->lock);
    (void)pthread_join(guard->thread, NULL);
    (void)pthread_cond_destroy(&guard->changed);
    (void)pthread_mutex_destroy(&guard->lock);
    free(guard);
}
