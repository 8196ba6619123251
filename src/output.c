/* output.c - see output.h. */
#include "src/output.h"

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/files.h"
#include "src/log.h"

/* Everything that a run writes, now or in an earlier version. */
static const char *const run_files[] = {
    "config.yaml",  "metrics.jsonl",    "events.out.tfevents.*",
    "ledger.json",  "checkpoints",      "model",
    "model.tmp*",   "model.old",        "adapter",
    "schedule.svg", "loss.svg",         "lengths.svg",
    "memory.svg",   "config.yaml.tmp*", "ledger.json.tmp*",
};

static bool is_run_file(const char *name)
{
    for (size_t i = 0; i < sizeof(run_files) / sizeof(run_files[0]); i++)
        if (fnmatch(run_files[i], name, 0) == 0)
            return true;
    return false;
}

/* mkdir -p */
static cf_status folders_make(const char *path)
{
    char *copy = strdup(path);
    cf_status status = CF_OK;

    if (copy == NULL)
        return CF_NO_MEMORY;
    for (char *at = copy + 1; status == CF_OK; at++) {
        char was = *at;

        if (was != '/' && was != '\0')
            continue;
        *at = '\0';
        if (mkdir(copy, 0777) != 0 && errno != EEXIST) {
            cf_log_error("cannot make the folder '%s' of --output: %s", copy,
                         strerror(errno));
            status = CF_INVALID;
        }
        *at = was;
        if (was == '\0')
            break;
    }
    free(copy);
    return status;
}

static cf_status run_files_remove(const char *folder, DIR *dir)
{
    struct dirent *entry;
    cf_status status = CF_OK;

    while (status == CF_OK && (entry = readdir(dir)) != NULL) {
        char *path;

        if (!is_run_file(entry->d_name))
            continue;
        path = cf_path_join(folder, "/", entry->d_name);
        status = path == NULL ? CF_NO_MEMORY : cf_path_remove(path);
        free(path);
    }
    return status;
}

static bool is_empty(DIR *dir)
{
    struct dirent *entry;

    while ((entry = readdir(dir)) != NULL)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            return false;
    return true;
}

cf_status cf_output_open(const char *path, cf_output_mode mode)
{
    cf_status status;
    DIR *dir;

    if (path[0] == '\0') {
        cf_log_error("--output is empty: name a folder");
        return CF_INVALID;
    }
    status = folders_make(path);
    if (status != CF_OK)
        return status;
    dir = opendir(path);
    if (dir == NULL || access(path, W_OK | X_OK) != 0) {
        cf_log_error("cannot write into --output '%s': %s", path,
                     strerror(errno));
        status = CF_INVALID;
    } else if (mode == CF_OUTPUT_OVERWRITE) {
        status = run_files_remove(path, dir);
    } else if (mode == CF_OUTPUT_NEW && !is_empty(dir)) {
        cf_log_error("--output '%s' is not empty: name another folder, or add "
                     "--resume to go on with the run in it or --overwrite to "
                     "replace it",
                     path);
        status = CF_INVALID;
    }
    if (dir != NULL)
        closedir(dir);
    return status;
}
