/* signals.c - see signals.h.
 *
 * (1) The handler calls only what is safe in one: sigaction and raise.
 */
#include "src/signals.h"

#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>

static const int handled[] = {SIGTERM, SIGINT, SIGUSR1};

enum {
    N_HANDLED = sizeof(handled) / sizeof(handled[0])
};

/* The one thing in the program that is written from outside of it; a handler
 * has no other way to say something. */
static atomic_int noted;

static void note(int signal)
{
    int none = 0;
    struct sigaction by_default = {.sa_handler = SIG_DFL};

    if (atomic_compare_exchange_strong(&noted, &none, signal))
        return;
    (void)sigaction(signal, &by_default, NULL);
    (void)raise(signal); /* delivered when the handler returns */
}

static void set_all(const struct sigaction *action)
{
    for (size_t i = 0; i < N_HANDLED; i++)
        (void)sigaction(handled[i], action, NULL);
}

void cf_signals_open(void)
{
    struct sigaction action = {.sa_handler = note, .sa_flags = SA_RESTART};

    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < N_HANDLED; i++)
        sigaddset(&action.sa_mask, handled[i]);
    atomic_store(&noted, 0);
    set_all(&action);
}

void cf_signals_close(void)
{
    struct sigaction by_default = {.sa_handler = SIG_DFL};

    set_all(&by_default);
}

int cf_signals_noted(void)
{
    return atomic_load(&noted);
}

const char *cf_signal_name(int signal)
{
    switch (signal) {
    case SIGTERM:
        return "SIGTERM";
    case SIGINT:
        return "SIGINT";
    default:
        return "SIGUSR1";
    }
}
