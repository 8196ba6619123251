/* report_page.c - see report_page.h. */
#include "src/report_page.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/arena.h"
#include "src/files.h"
#include "src/picture.h"
#include "src/size.h"
#include "src/svg.h"

static const char style[] =
    "<style>:root{color-scheme:light dark}body{font:16px/1.5 system-ui,"
    "sans-serif;max-width:1320px;margin:0 auto;padding:24px;background:#fff;"
    "color:#1f2328}h1{margin-bottom:0}h2{margin:40px 0 8px;font-size:20px}"
    "figure{margin:16px 0;padding:8px;border:1px solid #d9dde2;border-radius:"
    "8px;overflow-x:auto}table{border-collapse:collapse}td,th{padding:3px 24px "
    "3px 0;text-align:left;vertical-align:top;border-bottom:1px solid #d9dde2}"
    "td.number{text-align:right;font-variant-numeric:tabular-nums}dl{display:"
    "flex;flex-wrap:wrap;gap:12px;padding:0}dl div{border:1px solid #d9dde2;"
    "border-radius:8px;padding:8px 16px}dt{color:#59636e;font-size:14px}dd{"
    "margin:0;font-size:20px;font-weight:600}pre{padding:12px;background:"
    "#f4f6f8;border-radius:8px;overflow-x:auto}section{display:flex;flex-wrap:"
    "wrap;gap:0 64px}"
    "@media(prefers-color-scheme:dark){body{background:#0d1117;color:#e6edf3}"
    "figure,td,th,dl div{border-color:#30363d}dt{color:#9aa4ae}pre{background:"
    "#161b22}}</style>\n";

/* ---- pieces ---- */

static void tile(FILE *file, const char *name, const char *value)
{
    (void)fprintf(file, "<div><dt>%s</dt><dd>", name);
    cf_markup_write(file, value);
    (void)fputs("</dd></div>\n", file);
}

/* "retain_chunks" as words. */
static void write_name(FILE *file, const char *key)
{
    for (; *key != '\0'; key++)
        (void)fputc(*key == '_' ? ' ' : *key, file);
}

static void write_value(FILE *file, const json_t *value)
{
    if (json_is_string(value))
        cf_markup_write(file, json_string_value(value));
    else if (json_is_integer(value))
        (void)fprintf(file, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    else if (json_is_number(value))
        (void)fprintf(file, "%.6g", json_number_value(value));
}

/* The fields of a part of run.json, one a line. */
static void table_of(FILE *file, const char *title, json_t *object)
{
    const char *key;
    json_t *value;

    if (!json_is_object(object))
        return;
    (void)fprintf(file, "<div><h2>%s</h2><table>\n", title);
    json_object_foreach (object, key, value) {
        (void)fputs("<tr><td>", file);
        write_name(file, key);
        (void)fputs("</td><td>", file);
        write_value(file, value);
        (void)fputs("</td></tr>\n", file);
    }
    (void)fputs("</table></div>\n", file);
}

/* A file of the run as it is; nothing when it is not there. */
static bool copy_file(FILE *file, const char *folder, const char *name,
                      bool as_markup)
{
    char *path = cf_path_join(folder, "/", name);
    FILE *from = path != NULL ? fopen(path, "re") : NULL;
    char line[4096];

    free(path);
    while (from != NULL && fgets(line, sizeof(line), from) != NULL) {
        if (as_markup)
            (void)fputs(line, file);
        else
            cf_markup_write(file, line);
    }
    if (from != NULL)
        fclose(from);
    return from != NULL;
}

/* ---- sections ---- */

static double last_of(const double *values, size_t n)
{
    while (n > 0 && !isfinite(values[n - 1]))
        n--;
    return n > 0 ? values[n - 1] : NAN;
}

static double sum_of(const double *values, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += isfinite(values[i]) ? values[i] : 0;
    return sum;
}

static double most_of(const double *values, size_t n)
{
    double most = 0;

    for (size_t i = 0; i < n; i++)
        most = values[i] > most ? values[i] : most;
    return most;
}

/* 0 when it is not known. */
static uint64_t steps_of(const cf_report_page *page)
{
    return (uint64_t)json_integer_value(
        json_object_get(json_object_get(page->facts, "plan"), "steps"));
}

static void write_state(FILE *file, const cf_report_page *page)
{
    const cf_history *h = &page->history;
    const double step = last_of(h->columns[CF_HISTORY_STEP], h->n_steps);
    const char *began =
        json_string_value(json_object_get(page->facts, "began"));
    char ago[32];

    (void)fputs("<p>", file);
    if (page->is_finished)
        (void)fputs("Finished", file);
    else if (h->n_steps == 0)
        (void)fputs("Not finished: no step is done yet", file);
    else
        (void)fprintf(file, "Not finished: the last step was done %s ago",
                      cf_time_format(page->idle_s, ago, sizeof(ago)));
    if (isfinite(step) && steps_of(page) > 0)
        (void)fprintf(file, "; step %.0f of %" PRIu64, step, steps_of(page));
    if (began != NULL)
        (void)fprintf(file, "; begun %s", began);
    (void)fputs(".</p>\n", file);
}

static void write_tiles(FILE *file, const cf_report_page *page)
{
    const cf_history *h = &page->history;
    const size_t n = h->n_steps;
    const double time_s = sum_of(h->columns[CF_HISTORY_STEP_S], n);
    const double tokens = sum_of(h->columns[CF_HISTORY_TOKENS], n);
    char text[64];

    if (n == 0)
        return;
    (void)fputs("<dl>\n", file);
    (void)snprintf(text, sizeof(text), "%.4f",
                   last_of(h->columns[CF_HISTORY_LOSS], n));
    tile(file, "last loss", text);
    if (h->n_evals > 0) {
        (void)snprintf(text, sizeof(text), "%.4f",
                       last_of(h->eval_loss, h->n_evals));
        tile(file, "last evaluation", text);
    }
    (void)snprintf(text, sizeof(text), "%.0f", tokens);
    tile(file, "tokens", text);
    tile(file, "in the steps", cf_time_format(time_s, text, sizeof(text)));
    (void)snprintf(text, sizeof(text), "%.0f",
                   time_s > 0 ? tokens / time_s : 0);
    tile(file, "tokens a second", text);
    tile(file, "memory peak, most over ranks",
         cf_bytes_format((size_t)most_of(h->columns[CF_HISTORY_PEAK_BYTES], n),
                         text, sizeof(text)));
    (void)fputs("</dl>\n", file);
}

static cf_status write_pictures(FILE *file, const cf_report_page *page)
{
    static const char *const others[] = {"lengths.svg", "memory.svg",
                                         "schedule.svg"};
    const cf_picture_loss loss = {.history = &page->history,
                                  .n_steps = steps_of(page)};
    cf_status status;

    (void)fputs("<h2>Pictures</h2>\n<figure>\n", file);
    status = cf_picture_write_loss(file, &loss);
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        (void)fputs("</figure>\n<figure>\n", file);
        if (!copy_file(file, page->folder, others[i], true))
            (void)fprintf(file, "%s is not there yet.\n", others[i]);
    }
    (void)fputs("</figure>\n", file);
    return status;
}

static void write_ledger_row(FILE *file, const char *name, const json_t *count)
{
    (void)fprintf(file,
                  "<tr><td>%s</td><td class=\"number\">%" JSON_INTEGER_FORMAT
                  "</td><td class=\"number\">%" JSON_INTEGER_FORMAT
                  "</td></tr>\n",
                  name, json_integer_value(json_object_get(count, "sequences")),
                  json_integer_value(json_object_get(count, "tokens")));
}

/* The run's own, or what an epoch of it reads. */
static void write_ledger(FILE *file, const cf_report_page *page)
{
    const json_t *ledger = page->is_finished
                               ? page->ledger
                               : json_object_get(page->facts, "epoch");

    if (ledger == NULL)
        return;
    (void)fprintf(file,
                  "<div><h2>Ledger%s</h2><table>\n<tr><th></th><th>sequences"
                  "</th><th>tokens</th></tr>\n",
                  page->is_finished ? "" : " of an epoch");
    write_ledger_row(file, "read =", json_object_get(ledger, "read"));
    write_ledger_row(file, "trained", json_object_get(ledger, "trained"));
    write_ledger_row(file, "+ masked", json_object_get(ledger, "masked"));
    write_ledger_row(file, "+ skipped, longer than max_length",
                     json_object_get(ledger, "skipped"));
    (void)fputs("</table></div>\n", file);
}

cf_status cf_report_page_write(FILE *file, const void *content)
{
    const cf_report_page *page = content;
    cf_status status;

    (void)fprintf(
        file,
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
        "<meta name=\"viewport\" content=\"width=device-width\">\n<title>");
    cf_markup_write(file, page->folder);
    (void)fputs("</title>\n", file);
    (void)fputs(style, file);
    (void)fputs("</head><body>\n<h1>", file);
    cf_markup_write(file, page->folder);
    (void)fputs("</h1>\n", file);
    write_state(file, page);
    write_tiles(file, page);
    status = write_pictures(file, page);
    (void)fputs("<section>\n", file);
    write_ledger(file, page);
    table_of(file, "Plan", json_object_get(page->facts, "plan"));
    table_of(file, "Model", json_object_get(page->facts, "model"));
    table_of(file, "Versions", json_object_get(page->facts, "versions"));
    (void)fputs("</section>\n<h2>Configuration</h2>\n<pre>", file);
    (void)copy_file(file, page->folder, "config.yaml", false);
    (void)fputs("</pre>\n</body></html>\n", file);
    return status == CF_OK && ferror(file) ? CF_IO : status;
}
