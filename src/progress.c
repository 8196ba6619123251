/* progress.c - see progress.h. */
#include "src/progress.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "src/clock.h"
#include "src/size.h"

enum {
    BAR_COLUMNS = 20,
    BAR_COLUMNS_NARROW = 10,
    NARROW = 64, /* columns below which the bar is short */
    COLUMNS_WITHOUT_WINDOW = 80,
    FIELD_MAX_BYTES = 64,
    N_FIELDS_MAX = 8
};

#define REDRAW_S 0.1

static bool is_set(const char *variable)
{
    const char *value = getenv(variable);

    return value != NULL && value[0] != '\0';
}

/* One that understands a carriage return and "clear the rest". */
static bool is_terminal(void)
{
    const char *kind = getenv("TERM");

    return isatty(STDERR_FILENO) == 1 &&
           (kind == NULL || strcmp(kind, "dumb") != 0);
}

void cf_progress_open(uint64_t n_steps, uint32_t log_every, bool has_bubble,
                      bool quiet, cf_progress *progress)
{
    *progress = (cf_progress){
        .n_steps = n_steps,
        .log_every = log_every,
        .has_bubble = has_bubble,
        .quiet = quiet,
        .on_terminal = is_terminal(),
        .in_color = !is_set("NO_COLOR"),
    };
}

/* ---- a line of fields ---- */

/* Fields from the left; the larger the weight, the sooner one is left out. */
typedef struct field {
    char text[FIELD_MAX_BYTES];
    int weight;
} field;

typedef struct line {
    field fields[N_FIELDS_MAX];
    size_t n;
} line;

static void __attribute__((format(printf, 3, 4)))
line_add(line *l, int weight, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)vsnprintf(l->fields[l->n].text, FIELD_MAX_BYTES, format, args);
    va_end(args);
    l->fields[l->n++].weight = weight;
}

static size_t line_join(const line *l, char *buf, size_t size)
{
    size_t n = 0;

    for (size_t i = 0; i < l->n; i++)
        n += (size_t)snprintf(buf + n, size - n, "%s%s", i > 0 ? "  " : "",
                              l->fields[i].text);
    return n;
}

static void line_drop_heaviest(line *l)
{
    size_t heaviest = 0;

    for (size_t i = 1; i < l->n; i++)
        if (l->fields[i].weight > l->fields[heaviest].weight)
            heaviest = i;
    l->n--;
    memmove(&l->fields[heaviest], &l->fields[heaviest + 1],
            (l->n - heaviest) * sizeof(l->fields[0]));
}

/* One column less than the window has: some terminals wrap at the last. */
static size_t columns(void)
{
    struct winsize window;

    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &window) != 0 || window.ws_col == 0)
        return COLUMNS_WITHOUT_WINDOW - 1;
    return (size_t)window.ws_col - 1;
}

/* Carriage return, the line, clear what an older, longer one left.  Of a bar the
 * part that is done has a colour. */
static void draw(cf_progress *progress, line *l)
{
    const size_t width = columns();
    char text[N_FIELDS_MAX * (FIELD_MAX_BYTES + 2)];
    size_t n = line_join(l, text, sizeof(text));
    int bar, end;

    while (n > width && l->n > 1) {
        line_drop_heaviest(l);
        n = line_join(l, text, sizeof(text));
    }
    if (n > width)
        text[width] = '\0';
    bar = (int)strcspn(text, "#");
    end = bar + (int)strspn(text + bar, "#");
    if (progress->in_color && end > bar)
        (void)fprintf(stderr, "\r%.*s\x1b[32m%.*s\x1b[0m%s\x1b[K", bar, text,
                      end - bar, text + bar, text + end);
    else
        (void)fprintf(stderr, "\r%s\x1b[K", text);
    progress->is_drawn = true;
    progress->drawn_s = cf_clock_s();
}

void cf_progress_end_line(cf_progress *progress)
{
    if (progress->is_drawn)
        (void)fputc('\n', stderr);
    progress->is_drawn = false;
}

/* ---- what is on it ---- */

static const char *format_bytes(uint64_t bytes, char *buf, size_t size)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    size_t unit = 0;

    while (value >= 1000 && unit + 1 < sizeof(units) / sizeof(units[0])) {
        value /= 1024;
        unit++;
    }
    (void)snprintf(buf, size, "%.*f %s", unit != 0 && value < 100 ? 1 : 0,
                   value, units[unit]);
    return buf;
}

static const char *format_bar(double done, char *buf)
{
    const int n = columns() < NARROW ? BAR_COLUMNS_NARROW : BAR_COLUMNS;
    const int filled = (int)(done * n);

    memset(buf, '.', (size_t)n);
    memset(buf, '#', (size_t)filled);
    buf[n] = '\0';
    return buf;
}

static void add_step(const cf_progress *progress, uint64_t step, line *l)
{
    line_add(l, 0, "step %" PRIu64 "/%" PRIu64, step, progress->n_steps);
}

bool cf_progress_is_due(const cf_progress *progress)
{
    return !progress->quiet && progress->on_terminal &&
           cf_clock_s() - progress->drawn_s >= REDRAW_S;
}

static double within(double value, double low, double high)
{
    if (!(value > low)) /* NaN too */
        return low;
    return value < high ? value : high;
}

void cf_progress_within_step(cf_progress *progress, const cf_progress_at *at)
{
    const double done = within(at->done, 0, 1);
    const double rest_s = done > 0 ? at->elapsed_s * (1 - done) / done : 0;
    char bar[BAR_COLUMNS + 1], buf[32], step_eta[32];
    line l = {.n = 0};

    add_step(progress, at->step, &l);
    line_add(&l, 1, "[%s]", format_bar(done, bar));
    line_add(&l, 3, "%zu/%zu chunks%s", at->chunks_done, at->n_chunks,
             at->tokens == 0 ? " of the evaluation" : "");
    if (at->tokens > 0 && at->elapsed_s > 0)
        line_add(&l, 4, "%.0f tok/s",
                 done * (double)at->tokens / at->elapsed_s);
    if (progress->loss[0] != '\0')
        line_add(&l, 2, "loss %s", progress->loss);
    if (at->peak_bytes > 0)
        line_add(&l, 6, "peak %s",
                 format_bytes(at->peak_bytes, buf, sizeof(buf)));
    if (done > 0 && at->elapsed_s > 0)
        line_add(&l, 5, "ETA %s, run %s",
                 cf_time_format(rest_s, step_eta, sizeof(step_eta)),
                 cf_time_format(rest_s + at->run_eta_s, buf, sizeof(buf)));
    draw(progress, &l);
}

/* Into a file every field has its place, whatever its weight. */
static void report_line(const cf_progress *progress,
                        const cf_progress_report *report, line *l)
{
    char peak[32], eta[32];

    add_step(progress, report->step, l);
    line_add(l, 1, "loss %s", progress->loss);
    line_add(l, 5, "lr %.3g", report->learning_rate);
    line_add(l, 3, "%.0f tok/s", report->tokens_per_s);
    if (progress->has_bubble)
        line_add(l, 6, "bubble %.1f %%", 100 * report->bubble_ratio);
    line_add(l, 4, "peak %s",
             format_bytes(report->peak_bytes, peak, sizeof(peak)));
    line_add(l, 2, "ETA %s", cf_time_format(report->eta_s, eta, sizeof(eta)));
}

void cf_progress_step_done(cf_progress *progress,
                           const cf_progress_report *report)
{
    char text[N_FIELDS_MAX * (FIELD_MAX_BYTES + 2)];
    line l = {.n = 0};

    if (progress->quiet)
        return;
    if (report->has_loss)
        (void)snprintf(progress->loss, sizeof(progress->loss), "%.4f",
                       report->loss);
    else
        (void)snprintf(progress->loss, sizeof(progress->loss), "-");
    report_line(progress, report, &l);
    if (progress->on_terminal) {
        draw(progress, &l);
    } else if (report->step % progress->log_every == 0 ||
               report->step == progress->n_steps) {
        (void)line_join(&l, text, sizeof(text));
        (void)fprintf(stderr, "%s\n", text);
    }
}

void cf_progress_evaluated(cf_progress *progress, uint64_t step, double loss,
                           double took_s, bool is_best)
{
    char took[32];

    if (progress->quiet)
        return;
    (void)fprintf(stderr,
                  "%sstep %" PRIu64 "/%" PRIu64
                  "  evaluation: loss %.4f  perplexity %.4g  in %s%s%s\n",
                  progress->is_drawn ? "\r" : "", step, progress->n_steps, loss,
                  exp(loss), cf_time_format(took_s, took, sizeof(took)),
                  is_best ? "  (best)" : "",
                  progress->is_drawn ? "\x1b[K" : "");
    progress->is_drawn = false;
}
