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
#include <time.h>
#include <unistd.h>

#include "src/checkpoint_folder.h"
#include "src/files.h"
#include "src/hash.h"
#include "src/log.h"

enum {
    WRITE_BYTES = 1 << 20, /* hashed and written while in the cache */
    N_FILES = 2,
    NAME_BYTES_MAX = 64 /* of what follows the path of checkpoints/ */
};

/* A run of bytes of one tensor. */
typedef struct span {
    const char *data;
    size_t bytes;
} span;

/* One safetensors file, as every save writes it. */
typedef struct tensor_file {
    const char *name;
    char *head; /* owned */
    size_t n_head;
    uint64_t bytes;
    span *spans; /* owned */
    size_t n_spans;
    int fd; /* -1: not open */
} tensor_file;

typedef enum save_phase {
    IDLE,
    READING, /* weights and moments are being read */
    SYNCING  /* they have been */
} save_phase;

/* Why a save failed, in place of a log line of the thread's own. */
typedef struct failure {
    int error; /* errno; 0: it did not fail */
    const char *what;
    uint64_t free_bytes; /* of the disk, when it was full */
} failure;

struct cf_checkpoint {
    char *checkpoints; /* owned: OUTPUT/checkpoints */
    char *metrics;     /* owned: OUTPUT/metrics.jsonl */
    char *temporary;   /* owned: room for the names below */
    char *complete;
    char *path;
    size_t path_bytes;
    tensor_file files[N_FILES];
    uint64_t bytes; /* of both */
    cf_checkpoint_state state;
    char text[CF_CHECKPOINT_STATE_BYTES_MAX];
    uint64_t *good;  /* owned: complete states, descending */
    uint64_t *found; /* owned: room for what is in the folder */
    size_t n_good;
    size_t keep;
    failure failed;
    int last_error; /* told already */
    double began_s, save_s, waited_s;

    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    save_phase phase;
    bool quit;
};

static double seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- one save, in the thread ---- */

/* Always -1, with errno and what could not be done kept for the caller. */
static int fail(cf_checkpoint *c, const char *what)
{
    struct statvfs info;

    if (c->failed.error != 0)
        return -1;
    c->failed.error = errno != 0 ? errno : EIO;
    c->failed.what = what;
    if (statvfs(c->checkpoints, &info) == 0)
        c->failed.free_bytes = (uint64_t)info.f_bavail * info.f_frsize;
    return -1;
}

/* FOLDER/NAME, valid until the next call. */
static const char *path_in(cf_checkpoint *c, const char *folder,
                           const char *name)
{
    (void)snprintf(c->path, c->path_bytes, "%s/%s", folder, name);
    return c->path;
}

static int write_span(cf_checkpoint *c, const tensor_file *file, cf_hash *hash,
                      const void *data, size_t bytes)
{
    const char *at = data;

    for (size_t n; bytes > 0; at += n, bytes -= n) {
        n = bytes < WRITE_BYTES ? bytes : WRITE_BYTES;
        cf_hash_append(hash, at, n);
        if (cf_write_all(file->fd, at, n) != 0)
            return fail(c, "write the tensors");
    }
    return 0;
}

/* A full disk is told before minutes of writing; a file system that cannot say
 * is asked again by every write. */
static int reserve_room(cf_checkpoint *c, const tensor_file *file)
{
    if (fallocate(file->fd, 0, 0, (off_t)file->bytes) != 0 &&
        (errno == ENOSPC || errno == EDQUOT || errno == EFBIG))
        return fail(c, "write the tensors");
    return 0;
}

static int write_tensors(cf_checkpoint *c, tensor_file *file,
                         cf_checkpoint_file *written)
{
    cf_hash hash;

    cf_hash_begin(&hash);
    file->fd = open(path_in(c, c->temporary, file->name),
                    O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file->fd < 0)
        return fail(c, "create a file");
    if (reserve_room(c, file) != 0 ||
        write_span(c, file, &hash, file->head, file->n_head) != 0)
        return -1;
    for (size_t i = 0; i < file->n_spans; i++)
        if (write_span(c, file, &hash, file->spans[i].data,
                       file->spans[i].bytes) != 0)
            return -1;
    *written =
        (cf_checkpoint_file){.bytes = file->bytes, .hash = cf_hash_end(&hash)};
    return 0;
}

static int read_arrays(cf_checkpoint *c)
{
    if (mkdir(c->checkpoints, 0777) != 0 && errno != EEXIST)
        return fail(c, "make the folder");
    if (cf_checkpoint_remove(c->temporary) != 0 ||
        mkdir(c->temporary, 0777) != 0)
        return fail(c, "make a folder");
    if (write_tensors(c, &c->files[0], &c->state.weights) != 0 ||
        write_tensors(c, &c->files[1], &c->state.moments) != 0)
        return -1;
    return 0;
}

static int sync_folder(cf_checkpoint *c, const char *folder)
{
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int result = 0;

    /* Some file systems cannot sync a folder; they say EINVAL. */
    if (fd < 0 || (fsync(fd) != 0 && errno != EINVAL))
        result = fail(c, "sync the folder");
    if (fd >= 0)
        close(fd);
    return result;
}

static int close_files(cf_checkpoint *c)
{
    int result = 0;

    for (size_t i = 0; i < N_FILES; i++) {
        if (c->files[i].fd < 0)
            continue;
        if (c->failed.error == 0 && fsync(c->files[i].fd) != 0)
            result = fail(c, "sync the tensors");
        if (close(c->files[i].fd) != 0 && c->failed.error == 0)
            result = fail(c, "close a file");
        c->files[i].fd = -1;
    }
    return result;
}

static int write_state(cf_checkpoint *c)
{
    size_t n = cf_checkpoint_state_format(&c->state, c->text, sizeof(c->text));
    int fd = open(path_in(c, c->temporary, "state.json"),
                  O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    int result = 0;

    errno = fd < 0 ? errno : 0;
    if (fd < 0 || n == 0 || cf_write_all(fd, c->text, n) != 0 || fsync(fd) != 0)
        result = fail(c, "write state.json");
    if (fd >= 0 && close(fd) != 0 && result == 0)
        result = fail(c, "close state.json");
    return result;
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
static int give_name(cf_checkpoint *c)
{
    if (cf_checkpoint_remove(c->complete) != 0 && errno != ENOTDIR)
        return fail(c, "remove a damaged state");
    if (rename(c->temporary, c->complete) != 0)
        return fail(c, "give it its name");
    return sync_folder(c, c->checkpoints);
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

static int finish(cf_checkpoint *c)
{
    if (close_files(c) != 0 || write_state(c) != 0 ||
        sync_folder(c, c->temporary) != 0)
        return -1;
    sync_metrics(c);
    return give_name(c);
}

static void save(cf_checkpoint *c)
{
    int result = read_arrays(c);

    if (result == 0) {
        enter(c, SYNCING);
        result = finish(c);
    }
    if (result == 0) {
        prune(c);
    } else {
        (void)close_files(c);
        (void)cf_checkpoint_remove(c->temporary); /* (3) */
    }
    c->save_s = seconds() - c->began_s;
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
    c->failed = (failure){0};
    c->waited_s = 0;
    c->began_s = seconds();
    (void)snprintf(c->complete, c->path_bytes, "%s/step-%" PRIu64,
                   c->checkpoints, step);
    (void)snprintf(c->temporary, c->path_bytes,
                   "%s/step-%" PRIu64 CF_CHECKPOINT_TEMPORARY, c->checkpoints,
                   step);
    enter(c, READING);
}

static void wait_while(cf_checkpoint *c, save_phase first, save_phase second)
{
    double start = seconds();

    pthread_mutex_lock(&c->lock);
    while (c->phase == first || c->phase == second)
        pthread_cond_wait(&c->changed, &c->lock);
    pthread_mutex_unlock(&c->lock);
    c->waited_s += seconds() - start;
}

void cf_checkpoint_release(cf_checkpoint *c)
{
    wait_while(c, READING, READING);
}

static void tell_failure(const cf_checkpoint *c)
{
    char older[80] = "there is no older one";
    char room[96] = "";

    if (c->n_good > 0)
        (void)snprintf(older, sizeof(older),
                       "that of step %" PRIu64 " is still good", c->good[0]);
    if (c->failed.error == ENOSPC || c->failed.error == EDQUOT)
        (void)snprintf(room, sizeof(room),
                       " (it needs %" PRIu64 " bytes, %" PRIu64 " are free)",
                       c->bytes, c->failed.free_bytes);
    cf_log_warn("the state of step %" PRIu64 " is not saved, %s: %s: cannot "
                "%s: %s%s; training goes on",
                c->state.step, older, c->checkpoints, c->failed.what,
                strerror(c->failed.error), room);
}

void cf_checkpoint_wait(cf_checkpoint *c)
{
    wait_while(c, READING, SYNCING);
    if (c->failed.error != 0 && c->failed.error != c->last_error)
        tell_failure(c);
    c->last_error = c->failed.error;
}

uint64_t cf_checkpoint_saved_step(const cf_checkpoint *c)
{
    return c->n_good > 0 ? c->good[0] : 0;
}

void cf_checkpoint_times(const cf_checkpoint *c, double *save_s_p,
                         double *waited_s_p)
{
    *save_s_p = c->save_s;
    *waited_s_p = c->waited_s;
}

/* ---- open and close ---- */

/* Tensors of one flat array, under PREFIX and the parameter's name. */
static cf_status array_append(const cf_model *model, const char *name_prefix,
                              void *array, cf_tensor_source *sources,
                              tensor_file *file)
{
    const size_t acc_bytes = model->kernels->acc_bytes;

    for (size_t i = 0; i < model->n_params; i++) {
        const cf_param *p = &model->params[i];
        const void *data = cf_model_at(model, array, p);
        char *name;

        if (data == NULL) /* frozen: it has no moments */
            continue;
        name = cf_path_join(name_prefix, "", p->name);
        if (name == NULL)
            return CF_NO_MEMORY;
        sources[file->n_spans] = (cf_tensor_source){
            .name = name,
            .dtype = acc_bytes == sizeof(double) ? CF_DTYPE_F64 : CF_DTYPE_F32,
            .n_dims = p->n_dims,
            .dims = {p->dims[0], p->dims[1]},
            .data = data,
        };
        file->spans[file->n_spans++] =
            (span){.data = data, .bytes = p->n * acc_bytes};
    }
    return CF_OK;
}

static cf_status file_lay_out(const cf_model *model, tensor_file *file,
                              const char *const *prefixes, void *const *arrays,
                              size_t n_arrays)
{
    size_t capacity = n_arrays * model->n_params;
    cf_tensor_source *sources = calloc(capacity, sizeof(*sources));
    cf_status status = CF_OK;
    uint64_t data_bytes;

    file->spans = calloc(capacity, sizeof(*file->spans));
    if (sources == NULL || file->spans == NULL)
        status = CF_NO_MEMORY;
    for (size_t i = 0; i < n_arrays && status == CF_OK; i++)
        status = array_append(model, prefixes[i], arrays[i], sources, file);
    if (status == CF_OK)
        status = cf_tensors_head_format(sources, file->n_spans, &file->head,
                                        &file->n_head, &data_bytes);
    if (status == CF_OK)
        file->bytes = file->n_head + data_bytes;
    for (size_t i = 0; sources != NULL && i < file->n_spans; i++)
        free((char *)sources[i].name);
    free(sources);
    return status;
}

static cf_status files_lay_out(cf_checkpoint *c, const cf_model *model)
{
    static const char *const plain[] = {""};
    static const char *const adam[] = {"exp_avg.", "exp_avg_sq."};
    void *const masters[] = {model->masters};
    void *const moments[] = {model->moment1, model->moment2};
    cf_status status;

    c->files[0] = (tensor_file){.name = "weights.safetensors", .fd = -1};
    c->files[1] = (tensor_file){.name = "moments.safetensors", .fd = -1};
    status = file_lay_out(model, &c->files[0], plain, masters, 1);
    if (status == CF_OK)
        status = file_lay_out(model, &c->files[1], adam, moments, 2);
    c->bytes = c->files[0].bytes + c->files[1].bytes;
    return status;
}

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
    for (size_t i = 0; i < N_FILES; i++) {
        free(c->files[i].spans);
        free(c->files[i].head);
    }
    free(c->found);
    free(c->good);
    free(c->path);
    free(c->complete);
    free(c->temporary);
    free(c->metrics);
    free(c->checkpoints);
    free(c);
}

cf_status cf_checkpoint_open(const cf_checkpoint_params *params,
                             cf_checkpoint **checkpoint_p)
{
    cf_checkpoint *c = calloc(1, sizeof(*c));
    cf_status status = CF_NO_MEMORY;

    if (c == NULL)
        goto out_of_memory;
    c->keep = params->keep;
    c->state = *params->state;
    status = paths_make(c, params->output);
    if (status == CF_OK)
        status = good_list(c, params->state->step);
    if (status == CF_OK)
        status = files_lay_out(c, params->model);
    if (status == CF_OK)
        status = thread_start(c);
    if (status != CF_OK) {
        memory_free(c);
        goto out_of_memory;
    }
    cf_checkpoint_remove_temporaries(c->checkpoints);
    *checkpoint_p = c;
    return CF_OK;

out_of_memory:
    cf_log_error("no memory to save the training state in '%s'",
                 params->output);
    return status;
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
