/* log.c - one line on standard error.
 *
 * (1) A line is one write(), so that the lines of several ranks do not mix.
 * (2) A line is one line: control characters that came in with a name or a
 *     value are shown as '?', a text that is too long ends in "...".
 */
#include "src/log.h"

#include <errno.h>
#include <stdarg.h>
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

void cf_log_error(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    log_line("error: ", format, args);
    va_end(args);
}

void cf_log_warn(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    log_line("warning: ", format, args);
    va_end(args);
}

void cf_log_info(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    log_line("", format, args);
    va_end(args);
}
