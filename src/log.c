/* log.c - one line on standard error.
 *
 * (1) A line is one write(), so that the lines of several ranks do not mix.
 * (2) A line is one line: control characters that came in with a name or a
 *     value are shown as '?', a text that is too long ends in "...".
 * (3) What several ranks hold is written here alone, under a lock.
 */
#include "src/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    LINE_MAX_BYTES = 4096
};

static void write_whole(const char *text, size_t n)
{
    while (n > 0) {
        ssize_t written = write(STDERR_FILENO, text, n);

        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return;
        text += written;
        n -= (size_t)written;
    }
}

static void CF_PRINTF(2, 0)
    log_line(const char *level, const char *format, va_list args)
{
    char line[LINE_MAX_BYTES];
    int saved_errno = errno;
    size_t room = sizeof(line) - 1; /* the newline takes the last byte */
    size_t head = (size_t)snprintf(line, room, "chunkflow: %s", level);
    int body = vsnprintf(line + head, room - head, format, args);
    size_t n = head + (body > 0 ? (size_t)body : 0);

    if (n > room - 1) {
        n = room - 1;
        memcpy(line + n - 3, "...", 3);
    }
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)line[i] < ' ' || line[i] == 127)
            line[i] = '?';
    line[n] = '\n';
    write_whole(line, n + 1);
    errno = saved_errno;
}

/* What this process is among several.  It is written before there is a second
 * thread, but for what is held. */
static struct {
    pthread_mutex_t lock;
    bool is_one_of_several;
    uint32_t rank;
    char held[LINE_MAX_BYTES]; /* an error; "": none */
} several = {.lock = PTHREAD_MUTEX_INITIALIZER};

void cf_log_hold(uint32_t rank)
{
    several.is_one_of_several = true;
    several.rank = rank;
}

static void CF_PRINTF(1, 0) hold(const char *format, va_list args)
{
    (void)pthread_mutex_lock(&several.lock);
    (void)vsnprintf(several.held, sizeof(several.held), format, args);
    (void)pthread_mutex_unlock(&several.lock);
}

static void CF_PRINTF(2, 3) log_now(const char *level, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    log_line(level, format, args);
    va_end(args);
}

void cf_log_tell(const char *place)
{
    (void)pthread_mutex_lock(&several.lock);
    if (several.held[0] != '\0')
        log_now("error: ", "%s%s", place, several.held);
    several.held[0] = '\0';
    (void)pthread_mutex_unlock(&several.lock);
}

void cf_log_drop(void)
{
    (void)pthread_mutex_lock(&several.lock);
    several.held[0] = '\0';
    (void)pthread_mutex_unlock(&several.lock);
}

void cf_log_error(const char *format, ...)
{
    int saved_errno = errno;
    va_list args;

    va_start(args, format);
    if (several.is_one_of_several)
        hold(format, args);
    else
        log_line("error: ", format, args);
    va_end(args);
    errno = saved_errno;
}

void cf_log_warn(const char *format, ...)
{
    va_list args;

    if (several.rank != 0)
        return;
    va_start(args, format);
    log_line("warning: ", format, args);
    va_end(args);
}

void cf_log_info(const char *format, ...)
{
    va_list args;

    if (several.rank != 0)
        return;
    va_start(args, format);
    log_line("", format, args);
    va_end(args);
}
