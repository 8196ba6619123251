/* report.c - the report command: what a run folder holds, as one HTML page.
 *
 * It reads what the run has written so far and asks for nothing else, so that it
 * works on a run that is finished, goes on, or is dead.
 */
#include "src/commands.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>

#include "src/file_write.h"
#include "src/files.h"
#include "src/log.h"
#include "src/report_page.h"
#include "src/run.h"

/* When a file of the run was written last, 0 when it is not there. */
static double written_s(const char *folder, const char *name)
{
    char *path = cf_path_join(folder, "/", name);
    struct stat s = {0};
    double time_s = 0;

    if (path != NULL && stat(path, &s) == 0)
        time_s = (double)s.st_mtim.tv_sec + 1e-9 * (double)s.st_mtim.tv_nsec;
    free(path);
    return time_s;
}

/* A JSON file of the run; NULL when it is not there, or torn. */
static json_t *json_of(const char *folder, const char *name)
{
    char *path = cf_path_join(folder, "/", name);
    json_t *object = path != NULL ? json_load_file(path, 0, NULL) : NULL;

    free(path);
    return object;
}

static cf_status page_open(const char *folder, cf_report_page *page)
{
    const double metrics_s = written_s(folder, "metrics.jsonl");
    const double ledger_s = written_s(folder, "ledger.json");
    char *metrics = cf_path_join(folder, "/", "metrics.jsonl");
    cf_status status = CF_NO_MEMORY;

    page->folder = folder;
    if (written_s(folder, "config.yaml") == 0 && metrics_s == 0) {
        cf_log_error("'%s' is no run folder: name the --output of a train",
                     folder);
        free(metrics);
        return CF_INVALID;
    }
    page->facts = json_of(folder, "run.json");
    page->ledger = json_of(folder, "ledger.json");
    /* The ledger is the last that a run writes; one that goes on after it left
     * it standing. */
    page->is_finished = ledger_s > 0 && ledger_s >= metrics_s;
    page->idle_s = metrics_s > 0 ? (double)time(NULL) - metrics_s : 0;
    if (metrics != NULL)
        status = cf_history_read(metrics, &page->history);
    free(metrics);
    return status;
}

static void page_close(cf_report_page *page)
{
    cf_history_close(&page->history);
    json_decref(page->ledger);
    json_decref(page->facts);
}

int cf_command_report(const cf_options *options)
{
    cf_report_page page = {0};
    char *path = cf_path_join(options->output, "/", "report.html");
    cf_status status =
        path != NULL ? page_open(options->output, &page) : CF_NO_MEMORY;

    if (status == CF_OK)
        status = cf_file_write(path, cf_report_page_write, &page);
    if (status == CF_OK)
        (void)puts(path);
    page_close(&page);
    free(path);
    return cf_exit_code(status);
}
