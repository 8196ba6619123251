/* output.c - see output.h. */
#include "src/output.h"

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <libgen.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/files.h"
#include "src/log.h"

/* Everything that a run writes, now or in an earlier version. */
static const char *const run_files[] = {
    "config.yaml",     "metrics.jsonl",    "events.out.tfevents.*",
    "ledger.json",     "checkpoints",      "model",
    "model.tmp*",      "model.old",        "adapter",
    "schedule.svg",    "loss.svg",         "lengths.svg",
    "memory.svg",      "config.yaml.tmp*", "ledger.json.tmp*",
    "adapter.tmp*",    "adapter.old",      "best",
    "best.tmp*",       "best.old",         "run.json",
    "run.json.tmp*",   "report.html",      "schedule.svg.tmp",
    "loss.svg.tmp",    "lengths.svg.tmp",  "memory.svg.tmp",
    "report.html.tmp",
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
        return cf_log_no_memory("a path");
    for (char *at = copy + 1; status == CF_OK; at++) {
        char was = *at;

        if (was != '/' && was != '\0')
            continue;
        *at = '\0';
        if (mkdir(copy, 0777) != 0 && errno != EEXIST) {
            cf_log_error("cannot make the folder '%s' of --output: %s; name a "
                         "folder that can be made",
                         copy, strerror(errno));
            status = CF_INVALID;
        }
        *at = was;
        if (was == '\0')
            break;
    }
    free(copy);
    return status;
}

/* Whether a path is another one or lies in it, whatever links lead there. */
static bool is_within(const char *path, const char *other)
{
    char *real = realpath(path, NULL), *real_other = realpath(other, NULL);
    bool within = false;

    if (real != NULL && real_other != NULL) {
        size_t n = strlen(real_other);

        within = strncmp(real, real_other, n) == 0 &&
                 (real[n] == '/' || real[n] == '\0');
    }
    free(real_other);
    free(real);
    return within;
}

/* A run that starts from the model, or the adapter, of an earlier run must not
 * remove it. */
static cf_status model_check(const char *path, const char *model)
{
    if (!is_within(model, path))
        return CF_OK;
    cf_log_error("'%s' of --model or --init-adapter is part of the run that "
                 "--overwrite would remove: name another --output, or move it "
                 "first",
                 model);
    return CF_INVALID;
}

static cf_status path_remove(const char *path, const char *unused)
{
    (void)unused;
    return cf_path_remove(path);
}

typedef cf_status path_visit(const char *path, const char *model);

/* Visit each run file in the folder, until one visit fails. */
static cf_status run_files_visit(const char *folder, DIR *dir,
                                 path_visit *visit, const char *model)
{
    const struct dirent *entry;
    cf_status status = CF_OK;

    rewinddir(dir);
    while (status == CF_OK && (entry = readdir(dir)) != NULL) {
        char *path;

        if (!is_run_file(entry->d_name))
            continue;
        path = cf_path_join(folder, "/", entry->d_name);
        status = path == NULL ? CF_NO_MEMORY : visit(path, model);
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

/* Whether a run in this mode may use the folder, which is there. */
static cf_status folder_check(const char *path, DIR *dir, cf_output_mode mode,
                              const char *model)
{
    if (dir == NULL || access(path, W_OK | X_OK) != 0) {
        cf_log_error("cannot write into --output '%s': %s; name a folder that "
                     "you may write to",
                     path, strerror(errno));
        return CF_INVALID;
    }
    if (mode == CF_OUTPUT_NEW && !is_empty(dir)) {
        cf_log_error("--output '%s' is not empty: name another folder, or add "
                     "--resume to go on with the run in it or --overwrite to "
                     "replace it",
                     path);
        return CF_INVALID;
    }
    return mode == CF_OUTPUT_OVERWRITE
               ? run_files_visit(path, dir, model_check, model)
               : CF_OK;
}

/* Whether folders_make could make a folder that is not there: the nearest one
 * above it that is takes a new name. */
static cf_status above_check(const char *path)
{
    char *copy = strdup(path), *above = copy;
    cf_status status = CF_OK;

    if (copy == NULL)
        return cf_log_no_memory("a path");
    do
        above = dirname(above);
    while (access(above, F_OK) != 0 && errno == ENOENT);
    if (access(above, W_OK | X_OK) != 0) {
        cf_log_error("cannot make the folder '%s' of --output: %s; name a "
                     "folder that can be made",
                     path, strerror(errno));
        status = CF_INVALID;
    }
    free(copy);
    return status;
}

static cf_status refuse_empty(void)
{
    cf_log_error("--output is empty: name a folder");
    return CF_INVALID;
}

cf_status cf_output_check(const char *path, cf_output_mode mode,
                          const char *model)
{
    cf_status status;
    DIR *dir;

    if (path[0] == '\0')
        return refuse_empty();
    dir = opendir(path);
    status = dir == NULL && errno == ENOENT
                 ? above_check(path)
                 : folder_check(path, dir, mode, model);
    if (dir != NULL)
        closedir(dir);
    return status;
}

cf_status cf_output_open(const char *path, cf_output_mode mode,
                         const char *model)
{
    cf_status status;
    DIR *dir;

    if (path[0] == '\0')
        return refuse_empty();
    status = folders_make(path);
    if (status != CF_OK)
        return status;
    dir = opendir(path);
    status = folder_check(path, dir, mode, model);
    if (status == CF_OK && mode == CF_OUTPUT_OVERWRITE)
        status = run_files_visit(path, dir, path_remove, model);
    if (dir != NULL)
        closedir(dir);
    return status;
}
