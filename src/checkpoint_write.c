/* checkpoint_write.c - a training state, streamed to disk beside the training.
 *
 * One save at a time: begin hands it to the thread, which goes from reading
 * (weights and moments into files, hashed on the way) to syncing (on the disk,
 * named, older ones removed) and back to idle.
 *
 * (1) Between begin and release the arrays are read; the caller keeps its hands
 *     off them.
 * (2) What the two threads share is guarded by the lock; the thread owns the
 *     rest while it is not idle, the caller while it is.
 * (3) A save that fails removes what it wrote before it lets the caller go on:
 *     a disk that it filled has room again for the caller's own files.
 * (4) The threads of all ranks save together, and after each part of it they
 *     tell each other how it went: all go on, or none.  Rank 0 makes, names and
 *     removes folders, and says what there is to say.
 */
#include "src/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "src/checkpoint_folder.h"
#include "src/checkpoint_tensors.h"
#include "src/clock.h"
#include "src/files.h"
#include "src/hash.h"
#include "src/log.h"

enum {
    NAME_BYTES_MAX = 64 /* of what follows the path of checkpoints/ */
};

typedef enum save_phase {
    IDLE,
    READING, /* weights and moments are being read */
    SYNCING  /* they have been */
} save_phase;

/* Why a save failed, in place of a log line of the thread's own. */
typedef struct failure {
    int error; /* errno; 0: it did not fail */
    char what[40];
    uint64_t free_bytes; /* of the disk, when it was full */
} failure;

/* How a part of a save went on one rank, as the ranks tell each other. */
typedef struct outcome {
    failure failed;
    uint64_t hashes[CF_CHECKPOINT_FILES]; /* of what the rank wrote */
} outcome;

struct cf_checkpoint {
    cf_comm *lane; /* borrowed */
    bool is_root;
    char *checkpoints; /* owned: OUTPUT/checkpoints */
    char *metrics;     /* owned: OUTPUT/metrics.jsonl */
    char *temporary;   /* owned: room for the names below */
    char *complete;
    char *path;
    size_t path_bytes;
    cf_checkpoint_tensors files[CF_CHECKPOINT_FILES];
    cf_checkpoint_state state;
    char text[CF_CHECKPOINT_STATE_BYTES_MAX];
    uint64_t saved_step;
    uint64_t *good;  /* owned: complete states, descending; of rank 0 */
    uint64_t *found; /* owned: room for what is in the folder */
    size_t n_good;
    size_t keep;
    outcome mine;
    outcome *all;   /* owned: of each rank */
    failure failed; /* of the first rank that did */
    int last_error; /* told already */
    double began_s, save_s, waited_s;

    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    save_phase phase;
    bool quit;
};

/* ---- one save, in the thread ---- */

/* Keep what could not be done, and errno; the first of a part counts. */
static void fail(cf_checkpoint *c, const char *what)
{
    failure *failed = &c->mine.failed;
    struct statvfs info;

    if (failed->error != 0)
        return;
    failed->error = errno != 0 ? errno : EIO;
    (void)snprintf(failed->what, sizeof(failed->what), "%s", what);
    if (statvfs(c->checkpoints, &info) == 0)
        failed->free_bytes = (uint64_t)info.f_bavail * info.f_frsize;
}

static bool went_well(const cf_checkpoint *c)
{
    return c->mine.failed.error == 0 && c->failed.error == 0;
}

/* FOLDER/NAME, valid until the next call. */
static const char *path_in(cf_checkpoint *c, const char *folder,
                           const char *name)
{
    (void)snprintf(c->path, c->path_bytes, "%s/%s", folder, name);
    return c->path;
}

/* (4).  Whether it went well on all ranks. */
static bool agree(cf_checkpoint *c)
{
    const uint32_t n_ranks = cf_comm_size(c->lane);

    if (cf_comm_gather(c->lane, &c->mine, sizeof(c->mine), c->all) != CF_OK) {
        errno = ECOMM;
        fail(c, "hear from the other ranks");
        c->failed = c->mine.failed;
    }
    for (uint32_t rank = 0; rank < n_ranks && c->failed.error == 0; rank++)
        c->failed = c->all[rank].failed;
    return c->failed.error == 0;
}

static void make_folder(cf_checkpoint *c)
{
    if (mkdir(c->checkpoints, 0777) != 0 && errno != EEXIST)
        fail(c, "make the folder");
    else if (cf_checkpoint_remove(c->temporary) != 0 ||
             mkdir(c->temporary, 0777) != 0)
        fail(c, "make a folder");
    for (size_t i = 0; i < CF_CHECKPOINT_FILES && went_well(c); i++) {
        const cf_checkpoint_tensors *file = &c->files[i];
        const char *what = cf_checkpoint_tensors_create(
            file, path_in(c, c->temporary, file->name));

        if (what != NULL)
            fail(c, what);
    }
}

static void write_tensors(cf_checkpoint *c)
{
    for (size_t i = 0; i < CF_CHECKPOINT_FILES && went_well(c); i++) {
        cf_checkpoint_tensors *file = &c->files[i];
        const char *what = cf_checkpoint_tensors_write(
            file, path_in(c, c->temporary, file->name), &c->mine.hashes[i]);

        if (what != NULL)
            fail(c, what);
    }
}

/* Closes them on every rank before rank 0 may have to remove them (3). */
static void sync_tensors(cf_checkpoint *c)
{
    for (size_t i = 0; i < CF_CHECKPOINT_FILES; i++) {
        const char *what = cf_checkpoint_tensors_sync(&c->files[i]);

        if (what != NULL)
            fail(c, what);
    }
}

static void sync_folder(cf_checkpoint *c, const char *folder)
{
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    /* Some file systems cannot sync a folder; they say EINVAL. */
    if (fd < 0 || (fsync(fd) != 0 && errno != EINVAL))
        fail(c, "sync the folder");
    if (fd >= 0)
        close(fd);
}

static cf_checkpoint_file describe_file(const cf_checkpoint *c, size_t index)
{
    const cf_checkpoint_tensors *file = &c->files[index];
    cf_checkpoint_file said = {
        .bytes = file->bytes,
        .header_hash = cf_hash_of(file->head, file->n_head, 0),
    };

    for (uint32_t rank = 0; rank < cf_comm_size(c->lane); rank++)
        said.tensors_hash += c->all[rank].hashes[index];
    return said;
}

static void write_state(cf_checkpoint *c)
{
    size_t n;
    int fd;

    c->state.weights = describe_file(c, 0);
    c->state.moments = describe_file(c, 1);
    n = cf_checkpoint_state_format(&c->state, c->text, sizeof(c->text));
    fd = open(path_in(c, c->temporary, "state.json"),
              O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    errno = fd < 0 ? errno : 0;
    if (fd < 0 || n == 0 || cf_write_all(fd, c->text, n) != 0 || fsync(fd) != 0)
        fail(c, "write state.json");
    if (fd >= 0 && close(fd) != 0)
        fail(c, "close state.json");
}

/* The steps whose metrics a state stands behind are on the disk before it. */
static void sync_metrics(const cf_checkpoint *c)
{
    int fd = open(c->metrics, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return;
    (void)fsync(fd);
    close(fd);
}

/* Anything of that name was damaged, or the run would have begun behind it. */
static void give_name(cf_checkpoint *c)
{
    if (cf_checkpoint_remove(c->complete) != 0 && errno != ENOTDIR)
        fail(c, "remove a damaged state");
    else if (rename(c->temporary, c->complete) != 0)
        fail(c, "give it its name");
    else
        sync_folder(c, c->checkpoints);
}

static bool is_good(const cf_checkpoint *c, uint64_t step)
{
    for (size_t i = 0; i < c->n_good; i++)
        if (c->good[i] == step)
            return true;
    return false;
}

/* Everything up to the newest step but the states to keep.  What cannot be
 * removed stays: it harms nobody. */
static void prune(cf_checkpoint *c)
{
    size_t n_found;

    if (c->n_good == c->keep)
        c->n_good--;
    memmove(c->good + 1, c->good, c->n_good * sizeof(*c->good));
    c->good[0] = c->state.step;
    c->n_good++;
    n_found = cf_checkpoint_steps(c->checkpoints, c->found, 2 * c->keep + 1);
    for (size_t i = 0; i < n_found; i++) {
        char name[NAME_BYTES_MAX];

        if (c->found[i] > c->state.step || is_good(c, c->found[i]))
            continue;
        (void)snprintf(name, sizeof(name), "step-%" PRIu64, c->found[i]);
        (void)cf_checkpoint_remove(path_in(c, c->checkpoints, name));
    }
}

static void enter(cf_checkpoint *c, save_phase phase)
{
    pthread_mutex_lock(&c->lock);
    c->phase = phase;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

static void complete(cf_checkpoint *c)
{
    write_state(c);
    if (went_well(c))
        sync_folder(c, c->temporary);
    if (!went_well(c))
        return;
    sync_metrics(c);
    give_name(c);
}

/* Whether all of it is complete. */
static bool save_parts(cf_checkpoint *c)
{
    if (c->is_root)
        make_folder(c);
    if (!agree(c))
        return false;
    write_tensors(c);
    if (went_well(c))
        enter(c, SYNCING);
    sync_tensors(c);
    if (!agree(c))
        return false;
    if (c->is_root)
        complete(c);
    return agree(c);
}

static void save(cf_checkpoint *c)
{
    if (save_parts(c)) {
        c->saved_step = c->state.step;
        if (c->is_root)
            prune(c);
    } else if (c->is_root) {
        (void)cf_checkpoint_remove(c->temporary); /* (3) */
    }
    c->save_s = cf_clock_s() - c->began_s;
    enter(c, IDLE);
}

static void *work(void *context)
{
    cf_checkpoint *c = context;

    for (;;) {
        bool quit;

        pthread_mutex_lock(&c->lock);
        while (c->phase == IDLE && !c->quit)
            pthread_cond_wait(&c->changed, &c->lock);
        quit = c->phase == IDLE;
        pthread_mutex_unlock(&c->lock);
        if (quit)
            return NULL;
        save(c);
    }
}

/* ---- the caller's side ---- */

void cf_checkpoint_begin(cf_checkpoint *c, uint64_t step, uint64_t n_updates,
                         const cf_ledger *ledger)
{
    c->state.step = step;
    c->state.n_updates = n_updates;
    c->state.ledger = *ledger;
    c->mine = (outcome){0};
    c->failed = (failure){0};
    c->waited_s = 0;
    c->began_s = cf_clock_s();
    (void)snprintf(c->complete, c->path_bytes, "%s/step-%" PRIu64,
                   c->checkpoints, step);
    (void)snprintf(c->temporary, c->path_bytes,
                   "%s/step-%" PRIu64 CF_CHECKPOINT_TEMPORARY, c->checkpoints,
                   step);
    enter(c, READING);
}

static void wait_while(cf_checkpoint *c, save_phase first, save_phase second)
{
    double start = cf_clock_s();

    pthread_mutex_lock(&c->lock);
    while (c->phase == first || c->phase == second)
        pthread_cond_wait(&c->changed, &c->lock);
    pthread_mutex_unlock(&c->lock);
    c->waited_s += cf_clock_s() - start;
}

void cf_checkpoint_release(cf_checkpoint *c)
{
    wait_while(c, READING, READING);
}

static void tell_failure(const cf_checkpoint *c)
{
    char older[80] = "there is no older one";
    char room[96] = "";

    if (c->saved_step > 0)
        (void)snprintf(older, sizeof(older),
                       "that of step %" PRIu64 " is still good", c->saved_step);
    if (c->failed.error == ENOSPC || c->failed.error == EDQUOT)
        (void)snprintf(room, sizeof(room),
                       " (it needs %" PRIu64 " bytes, %" PRIu64 " are free)",
                       c->files[0].bytes + c->files[1].bytes,
                       c->failed.free_bytes);
    cf_log_warn("the state of step %" PRIu64 " is not saved, %s: %s: cannot "
                "%s: %s%s; training goes on",
                c->state.step, older, c->checkpoints, c->failed.what,
                strerror(c->failed.error), room);
}

void cf_checkpoint_wait(cf_checkpoint *c)
{
    wait_while(c, READING, SYNCING);
    if (c->is_root && c->failed.error != 0 && c->failed.error != c->last_error)
        tell_failure(c);
    c->last_error = c->failed.error;
}

uint64_t cf_checkpoint_saved_step(const cf_checkpoint *c)
{
    return c->saved_step;
}

void cf_checkpoint_times(const cf_checkpoint *c, double *save_s_p,
                         double *waited_s_p)
{
    *save_s_p = c->save_s;
    *waited_s_p = c->waited_s;
}

/* ---- open and close ---- */

static cf_status paths_make(cf_checkpoint *c, const char *output)
{
    c->checkpoints = cf_path_join(output, "/", "checkpoints");
    c->metrics = cf_path_join(output, "/", "metrics.jsonl");
    if (c->checkpoints == NULL || c->metrics == NULL)
        return CF_NO_MEMORY;
    c->path_bytes = strlen(c->checkpoints) + 2 * NAME_BYTES_MAX;
    c->temporary = malloc(c->path_bytes);
    c->complete = malloc(c->path_bytes);
    c->path = malloc(c->path_bytes);
    return c->temporary != NULL && c->complete != NULL && c->path != NULL
               ? CF_OK
               : CF_NO_MEMORY;
}

/* The state resumed from and those before it; any behind it is damaged. */
static cf_status good_list(cf_checkpoint *c, uint64_t resumed)
{
    size_t n;

    c->good = calloc(c->keep, sizeof(*c->good));
    c->found = calloc(2 * c->keep + 1, sizeof(*c->found));
    if (c->good == NULL || c->found == NULL)
        return CF_NO_MEMORY;
    n = cf_checkpoint_steps(c->checkpoints, c->found, 2 * c->keep + 1);
    for (size_t i = 0; i < n && c->n_good < c->keep; i++)
        if (c->found[i] <= resumed)
            c->good[c->n_good++] = c->found[i];
    if (c->n_good > 0)
        c->saved_step = c->good[0];
    return CF_OK;
}

/* Signals are for the thread that trains. */
static cf_status thread_start(cf_checkpoint *c)
{
    sigset_t all, before;
    int error;

    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->changed, NULL);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&c->thread, NULL, work, c);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error == 0)
        return CF_OK;
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    return CF_NO_MEMORY;
}

static void memory_free(cf_checkpoint *c)
{
    cf_checkpoint_tensors_close(c->files);
    free(c->all);
    free(c->found);
    free(c->good);
    free(c->path);
    free(c->complete);
    free(c->temporary);
    free(c->metrics);
    free(c->checkpoints);
    free(c);
}

static cf_status memory_take(const cf_checkpoint_params *params,
                             cf_checkpoint *c)
{
    cf_status status = paths_make(c, params->output);

    c->keep = params->keep;
    c->state = *params->state;
    c->all = calloc(cf_comm_size(c->lane), sizeof(*c->all));
    if (c->all == NULL)
        status = CF_NO_MEMORY;
    if (status == CF_OK)
        status = cf_checkpoint_tensors_open(params->model, c->files);
    if (status == CF_OK && c->is_root)
        status = good_list(c, params->state->step);
    return status;
}

/* What goes wrong on this rank alone, before the ranks meet. */
static cf_status open_alone(const cf_checkpoint_params *params,
                            cf_checkpoint **checkpoint_p)
{
    cf_checkpoint *c = calloc(1, sizeof(*c));
    cf_status status = CF_NO_MEMORY;

    if (c != NULL) {
        c->lane = params->lane;
        c->is_root = cf_comm_rank(c->lane) == 0;
        status = memory_take(params, c);
        if (status == CF_OK)
            status = thread_start(c);
        if (status != CF_OK)
            memory_free(c);
    }
    if (status == CF_OK)
        *checkpoint_p = c;
    else
        cf_log_error("no memory to save the training state in '%s'",
                     params->output);
    return status;
}

cf_status cf_checkpoint_open(const cf_checkpoint_params *params,
                             cf_checkpoint **checkpoint_p)
{
    cf_checkpoint *c = NULL;
    cf_status status = cf_comm_agree(params->lane, open_alone(params, &c));

    if (status == CF_OK)
        status = cf_comm_broadcast(c->lane, 0, &c->saved_step,
                                   sizeof(c->saved_step));
    if (status != CF_OK) {
        cf_checkpoint_close(c);
        return status;
    }
    if (c->is_root)
        cf_checkpoint_remove_temporaries(c->checkpoints);
    *checkpoint_p = c;
    return CF_OK;
}

void cf_checkpoint_close(cf_checkpoint *c)
{
    if (c == NULL)
        return;
    pthread_mutex_lock(&c->lock);
    c->quit = true;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    pthread_join(c->thread, NULL);
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    memory_free(c);
}
