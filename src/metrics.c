/* metrics.c - metrics.jsonl, and the line of progress.
 *
 * On a terminal one line is drawn over and over, cut to the width of the window;
 * into a file or pipe it is one plain line every log_every steps, and one for
 * the last.  metrics.jsonl has every step.
 *
 * (1) Nothing is allocated after open, since appending happens inside a step;
 *     only the line of an evaluation, which stands between steps, may.
 */
#include "src/metrics.h"

#include "src/clock.h"
#include "src/files.h"
#include "src/log.h"
#include "src/size.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum {
    LINE_MAX_BYTES = 1024,
    BAR_COLUMNS = 20,
    PENDING_BYTES = 1 << 16,     /* the longest lines, by far */
    PENDING_BYTES_MAX = 1 << 22, /* while the disk is full */
    WIDTH_WITHOUT_WINDOW = 80
};

#define REDRAW_S 0.1

struct cf_metrics {
    int fd; /* of metrics.jsonl; -1: none */
    char *path;
    FILE *lines;   /* in memory: what is not in the file yet */
    char *pending; /* owned by lines */
    size_t n_pending;
    size_t n_out;   /* bytes of it that are in the file */
    bool is_behind; /* told that the disk is full */
    uint64_t n_steps;
    uint32_t log_every;
    uint32_t n_stages, n_replicas;
    bool quiet;
    bool on_terminal;
    bool is_drawn; /* the cursor stands behind a line of ours */
    double drawn_s;
    char last[LINE_MAX_BYTES]; /* what the last step reported, as shown */
};

/* A line in memory allocates nothing once there was one as long. */
static bool room_make(FILE *lines)
{
    if (lines == NULL)
        return false;
    for (size_t i = 0; i < PENDING_BYTES; i++)
        (void)fputc(' ', lines);
    (void)fflush(lines);
    rewind(lines);
    return !ferror(lines);
}

cf_status cf_metrics_open(const cf_metrics_params *params,
                          cf_metrics **metrics_p)
{
    cf_metrics *metrics = calloc(1, sizeof(*metrics));

    if (metrics == NULL)
        goto out_of_memory;
    metrics->fd = -1;
    metrics->n_steps = params->n_steps;
    metrics->log_every = params->log_every;
    metrics->n_stages = params->n_stages;
    metrics->n_replicas = params->n_replicas;
    metrics->quiet = params->quiet;
    metrics->on_terminal = isatty(STDERR_FILENO) == 1;
    if (params->path != NULL) {
        metrics->path = strdup(params->path);
        metrics->lines = open_memstream(&metrics->pending, &metrics->n_pending);
        if (metrics->path == NULL || !room_make(metrics->lines))
            goto close_metrics;
        metrics->fd =
            open(params->path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
        if (metrics->fd < 0) {
            cf_status status = cf_io_error(params->path, "open it", 0);

            cf_metrics_close(metrics);
            return status;
        }
    }
    *metrics_p = metrics;
    return CF_OK;

close_metrics:
    cf_metrics_close(metrics);
out_of_memory:
    cf_log_error("metrics: out of memory");
    return CF_NO_MEMORY;
}

void cf_metrics_close(cf_metrics *metrics)
{
    if (metrics == NULL)
        return;
    cf_metrics_end_line(metrics);
    if (metrics->fd >= 0 && close(metrics->fd) != 0)
        cf_log_error("%s: %s", metrics->path, strerror(errno));
    if (metrics->lines != NULL)
        fclose(metrics->lines);
    free(metrics->pending);
    free(metrics->path);
    free(metrics);
}

/* ---- for people ---- */

static void format_bytes(uint64_t bytes, char *buf, size_t size)
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
}

static double tokens_per_s(const cf_step_report *report)
{
    return report->step_s > 0 ? (double)report->tokens / report->step_s : 0;
}

/* All but the number of the step. */
static void format_report(cf_metrics *metrics, const cf_step_report *report)
{
    char loss[32] = "-";
    char bubble[32] = "";
    char peak[32];
    char eta[32];

    if (report->has_loss)
        (void)snprintf(loss, sizeof(loss), "%.4f", report->loss);
    format_bytes(report->peak_bytes, peak, sizeof(peak));
    cf_time_format(report->eta_s, eta, sizeof(eta));
    if (metrics->n_stages > 1)
        (void)snprintf(bubble, sizeof(bubble), "  bubble %.1f %%",
                       100 * report->bubble_ratio);
    (void)snprintf(metrics->last, sizeof(metrics->last),
                   "loss %s  lr %.3g  %.0f tok/s%s  peak %s  ETA %s", loss,
                   report->learning_rate, tokens_per_s(report), bubble, peak,
                   eta);
}

/* One column less than the window has: some terminals wrap at the last. */
static size_t columns(void)
{
    struct winsize window;

    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &window) != 0 || window.ws_col == 0)
        return WIDTH_WITHOUT_WINDOW - 1;
    return (size_t)window.ws_col - 1;
}

/* Carriage return, the line, clear what an older, longer one left. */
static void draw(cf_metrics *metrics, const char *line)
{
    (void)fprintf(stderr, "\r%.*s\x1b[K", (int)columns(), line);
    metrics->is_drawn = true;
    metrics->drawn_s = cf_clock_s();
}

void cf_metrics_end_line(cf_metrics *metrics)
{
    if (metrics->is_drawn)
        (void)fputc('\n', stderr);
    metrics->is_drawn = false;
}

void cf_metrics_progress(cf_metrics *metrics, uint64_t step, size_t ops_done,
                         size_t n_ops)
{
    char bar[BAR_COLUMNS + 1];
    char line[LINE_MAX_BYTES + 128];
    size_t filled;

    if (metrics->quiet || !metrics->on_terminal || n_ops == 0 ||
        cf_clock_s() - metrics->drawn_s < REDRAW_S)
        return;
    if (ops_done > n_ops)
        ops_done = n_ops;
    filled = (size_t)((double)ops_done / (double)n_ops * BAR_COLUMNS);
    memset(bar, '.', BAR_COLUMNS);
    memset(bar, '#', filled);
    bar[BAR_COLUMNS] = '\0';
    (void)snprintf(line, sizeof(line),
                   "step %" PRIu64 "/%" PRIu64 "  [%s] %.0f %%  %s", step,
                   metrics->n_steps, bar,
                   100 * (double)ops_done / (double)n_ops, metrics->last);
    draw(metrics, line);
}

static void show(cf_metrics *metrics, const cf_step_report *report)
{
    char line[LINE_MAX_BYTES + 128];

    format_report(metrics, report);
    if (metrics->quiet)
        return;
    (void)snprintf(line, sizeof(line), "step %" PRIu64 "/%" PRIu64 "  %s",
                   report->step, metrics->n_steps, metrics->last);
    if (metrics->on_terminal)
        draw(metrics, line);
    else if (report->step % metrics->log_every == 0 ||
             report->step == metrics->n_steps)
        (void)fprintf(stderr, "%s\n", line);
}

/* ---- for programs ---- */

/* JSON has no NaN and no infinity. */
static void write_real(FILE *file, const char *key, bool is_known, double value)
{
    if (is_known && isfinite(value))
        (void)fprintf(file, ", \"%s\": %.17g", key, value);
    else
        (void)fprintf(file, ", \"%s\": null", key);
}

static void write_whole(FILE *file, const char *key, uint64_t value)
{
    (void)fprintf(file, ", \"%s\": %" PRIu64, key, value);
}

/* What of the pending bytes the file takes now. */
static bool write_pending(cf_metrics *metrics, size_t n)
{
    while (metrics->n_out < n) {
        ssize_t written = write(metrics->fd, metrics->pending + metrics->n_out,
                                n - metrics->n_out);

        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return false;
        metrics->n_out += (size_t)written;
    }
    return true;
}

/* A full disk is waited for: the lines stay in memory, a torn one is completed
 * when there is room again. */
static cf_status flush(cf_metrics *metrics, size_t n_pending_max)
{
    errno = 0;
    if (fflush(metrics->lines) == 0 && !ferror(metrics->lines) &&
        write_pending(metrics, (size_t)ftell(metrics->lines))) {
        rewind(metrics->lines);
        metrics->n_out = 0;
        metrics->is_behind = false;
        return CF_OK;
    }
    if ((errno == ENOSPC || errno == EDQUOT) &&
        (size_t)ftell(metrics->lines) <= n_pending_max) {
        if (!metrics->is_behind)
            cf_log_warn("%s: cannot be written: %s; its lines wait for room",
                        metrics->path, strerror(errno));
        metrics->is_behind = true;
        return CF_OK;
    }
    return cf_io_error(metrics->path, "write it", 0);
}

static cf_status write_report(cf_metrics *metrics, const cf_step_report *report)
{
    FILE *file = metrics->lines;

    (void)fprintf(file, "{\"step\": %" PRIu64, report->step);
    write_real(file, "loss", report->has_loss, report->loss);
    write_real(file, "grad_norm", report->has_loss, report->grad_norm);
    write_real(file, "learning_rate", true, report->learning_rate);
    write_whole(file, "sequences", report->sequences);
    write_whole(file, "tokens", report->tokens);
    write_whole(file, "target_tokens", report->target_tokens);
    write_whole(file, "chunks", report->chunks);
    write_whole(file, "recomputed_chunks", report->recomputed_chunks);
    write_real(file, "step_s", true, report->step_s);
    write_real(file, "tokens_per_s", true, tokens_per_s(report));
    write_whole(file, "peak_bytes", report->peak_bytes);
    if (metrics->n_stages > 1)
        write_real(file, "bubble_ratio", true, report->bubble_ratio);
    if (metrics->n_replicas > 1)
        write_real(file, "load_max_over_mean", true,
                   report->load_max_over_mean);
    if (metrics->n_stages > 1 || metrics->n_replicas > 1) {
        write_whole(file, "sent_bytes", report->sent_bytes);
        write_real(file, "waited_s", true, report->waited_s);
    }
    (void)fputs("}\n", file);
    return flush(metrics, PENDING_BYTES_MAX);
}

cf_status cf_metrics_append(cf_metrics *metrics, const cf_step_report *report)
{
    show(metrics, report);
    return metrics->fd >= 0 ? write_report(metrics, report) : CF_OK;
}

/* ---- evaluations ---- */

static void show_evaluation(cf_metrics *metrics, const cf_eval_report *report)
{
    char took[32];

    if (metrics->quiet)
        return;
    cf_time_format(report->step_s, took, sizeof(took));
    (void)fprintf(stderr,
                  "%sstep %" PRIu64 "/%" PRIu64
                  "  evaluation: loss %.4f  perplexity %.4g  in %s%s%s\n",
                  metrics->is_drawn ? "\r" : "", report->step, metrics->n_steps,
                  report->loss, exp(report->loss), took,
                  report->is_best ? "  (best)" : "",
                  metrics->is_drawn ? "\x1b[K" : "");
    metrics->is_drawn = false;
}

static cf_status write_evaluation(cf_metrics *metrics,
                                  const cf_eval_report *report)
{
    json_t *line =
        json_pack("{s:I, s:b}", "step", (json_int_t)report->step, "eval", 1);
    int failed = json_object_update(line, (json_t *)report->result);

    failed |= json_object_set_new(line, "step_s", json_real(report->step_s));
    failed |= json_object_set_new(line, "peak_bytes",
                                  json_integer((json_int_t)report->peak_bytes));
    if (failed != 0) {
        cf_log_error("%s: no memory for the line of an evaluation",
                     metrics->path);
        json_decref(line);
        return CF_NO_MEMORY;
    }
    (void)json_dumpf(line, metrics->lines, JSON_REAL_PRECISION(17));
    (void)fputc('\n', metrics->lines);
    json_decref(line);
    return flush(metrics, PENDING_BYTES_MAX);
}

cf_status cf_metrics_append_evaluation(cf_metrics *metrics,
                                       const cf_eval_report *report)
{
    show_evaluation(metrics, report);
    return metrics->fd >= 0 ? write_evaluation(metrics, report) : CF_OK;
}

cf_status cf_metrics_settle(cf_metrics *metrics)
{
    return metrics->fd >= 0 ? flush(metrics, 0) : CF_OK;
}
