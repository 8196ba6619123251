/* pictures.c - see pictures.h. */
#include "src/pictures.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/clock.h"
#include "src/file_write.h"
#include "src/files.h"
#include "src/log.h"
#include "src/timeline.h"

#define AT_LEAST_S 10.0
#define TIMES_COST 50.0

cf_status cf_pictures_open(const char *folder, cf_comm *comm,
                           const cf_grid *grid, size_t capacity,
                           cf_pictures *pictures)
{
    *pictures =
        (cf_pictures){.comm = comm, .grid = *grid, .capacity = capacity};
    pictures->folder = strdup(folder);
    pictures->times = calloc(capacity + 1, sizeof(*pictures->times));
    if (pictures->folder == NULL || pictures->times == NULL)
        return cf_log_no_memory("the pictures of the run");
    return CF_OK;
}

void cf_pictures_close(cf_pictures *pictures)
{
    free(pictures->times);
    free(pictures->folder);
    *pictures = (cf_pictures){0};
}

/* ---- the times of a step ---- */

void cf_pictures_begin_step(cf_pictures *pictures)
{
    pictures->n_times = 0;
}

void cf_pictures_op_done(cf_pictures *pictures, double start_s, double end_s)
{
    if (pictures->n_times < pictures->capacity)
        pictures->times[pictures->n_times++] = (cf_op_time){start_s, end_s};
}

bool cf_pictures_are_due(const cf_pictures *pictures)
{
    return cf_clock_s() >= pictures->due_s;
}

/* Rank 0: what the stages behind it tell. */
static cf_status times_receive(cf_pictures *pictures, const cf_schedule *s)
{
    cf_status status = CF_OK;

    for (uint32_t stage = 1; status == CF_OK && stage < pictures->grid.n_stages;
         stage++) {
        const size_t first = s->first_op[stage];
        const size_t n = s->first_op[stage + 1] - first;
        cf_request request = {0};

        status = cf_comm_recv(pictures->comm, stage, pictures->times + first,
                              n * sizeof(*pictures->times), &request);
        if (status == CF_OK)
            status = cf_comm_wait(pictures->comm, &request);
    }
    return status;
}

cf_status cf_pictures_collect(cf_pictures *pictures, uint64_t step,
                              const cf_step_plan *plan)
{
    const cf_schedule *s = &plan->schedule;
    const uint32_t stage = pictures->grid.stage;
    cf_request request = {0};
    cf_status status;

    if (pictures->grid.replica != 0)
        return CF_OK;
    cf_comm_note(pictures->comm, step, UINT32_MAX, "collect the pictures");
    if (stage == 0) {
        status = times_receive(pictures, s);
    } else {
        const size_t n = s->first_op[stage + 1] - s->first_op[stage];

        status = cf_comm_send(pictures->comm, 0, pictures->times,
                              n * sizeof(*pictures->times), &request);
        if (status == CF_OK)
            status = cf_comm_wait(pictures->comm, &request);
    }
    cf_comm_note(pictures->comm, 0, UINT32_MAX, NULL);
    return status;
}

/* ---- drawing ---- */

static bool is_artist(const cf_pictures *pictures)
{
    return pictures->folder != NULL && cf_comm_rank(pictures->comm) == 0;
}

static void write_picture(cf_pictures *pictures, const char *name,
                          cf_file_fill fill, const void *content)
{
    char *path = cf_path_join(pictures->folder, "/", name);

    if (path != NULL && cf_file_replace(path, fill, content) != CF_OK &&
        !pictures->is_told) {
        cf_log_warn("%s: cannot be written: %s; the run goes on without "
                    "pictures",
                    path, strerror(errno));
        pictures->is_told = true;
    }
    free(path);
}

/* Until the last op, and the share of it that the stages were idle. */
static void times_sum(const cf_pictures *pictures, const cf_schedule *s,
                      cf_simulation *simulation)
{
    const uint32_t n_stages = s->params.n_stages;
    double busy = 0;

    for (size_t i = 0; i < s->first_op[n_stages]; i++) {
        const cf_op_time time = pictures->times[i];

        if (time.end > simulation->makespan)
            simulation->makespan = time.end;
        if (s->ops[i].kind <= CF_OP_BACKWARD)
            busy += time.end - time.start;
    }
    if (simulation->makespan > 0)
        simulation->bubble_ratio = 1 - busy / (simulation->makespan * n_stages);
}

void cf_pictures_draw_schedule(cf_pictures *pictures, uint64_t step,
                               const cf_step_plan *plan)
{
    cf_simulation simulation = {.times = pictures->times};
    char what[64];
    const cf_timeline timeline = {.plan = &plan->chunks,
                                  .schedule = &plan->schedule,
                                  .simulation = &simulation,
                                  .what = what,
                                  .unit = "s"};

    if (!is_artist(pictures))
        return;
    times_sum(pictures, &plan->schedule, &simulation);
    (void)snprintf(what, sizeof(what), "Step %" PRIu64 "%s: ", step,
                   pictures->grid.n_replicas > 1 ? ", replica 0" : "");
    write_picture(pictures, "schedule.svg", cf_timeline_write_svg, &timeline);
}

void cf_pictures_draw_lengths(cf_pictures *pictures,
                              const cf_picture_lengths *lengths)
{
    if (is_artist(pictures))
        write_picture(pictures, "lengths.svg", cf_picture_write_lengths,
                      lengths);
}

/* Without memory for the history there are no curves. */
static void draw_history(cf_pictures *pictures, uint64_t n_steps,
                         const cf_picture_memory *memory, const char *metrics)
{
    cf_history history;
    const cf_picture_loss loss = {.history = &history, .n_steps = n_steps};
    cf_picture_memory with_history = *memory;

    if (cf_history_read(metrics, &history) != CF_OK)
        return;
    with_history.history = &history;
    write_picture(pictures, "loss.svg", cf_picture_write_loss, &loss);
    write_picture(pictures, "memory.svg", cf_picture_write_memory,
                  &with_history);
    cf_history_close(&history);
}

void cf_pictures_draw_curves(cf_pictures *pictures, uint64_t n_steps,
                             const cf_picture_memory *memory)
{
    const double start = cf_clock_s();
    char *metrics;
    double took;

    if (!is_artist(pictures))
        return;
    metrics = cf_path_join(pictures->folder, "/", "metrics.jsonl");
    if (metrics != NULL)
        draw_history(pictures, n_steps, memory, metrics);
    free(metrics);
    took = cf_clock_s() - start;
    pictures->due_s =
        start +
        (took * TIMES_COST > AT_LEAST_S ? took * TIMES_COST : AT_LEAST_S);
}
