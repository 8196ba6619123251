/* plan.c - the plan command: what `train` should be given for this model, this
 * data and so much memory.
 *
 * (1) Bytes are those of train's own dry carve, to the byte.
 * (2) Times are a simulation of real batches under the costs of forecast.c and a
 *     built-in share for each op; only the seconds depend on the measured GEMM,
 *     so that the choice is the same every time.
 * (3) No weight is loaded.
 */
#include "src/commands.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "src/cost_file.h"
#include "src/log.h"
#include "src/planner.h"
#include "src/rehearsal.h"
#include "src/training.h"

/* What an op costs beside its tokens, in linear layers of one token: the weights
 * come from memory once more. */
#define OP_TOK 48.0

enum {
    SAMPLE_MAX = 16, /* batches that are timed */
    RUNNERS_UP = 5
};

typedef struct planning {
    const cf_options *options;
    cf_options trial; /* with the point in it; borrows its strings */
    cf_training training;
    uint32_t longest_tok;
    double update_s;
    double flop_per_s;
    uint32_t *len_tok; /* owned: of the sample's batches, one behind another */
    size_t first[SAMPLE_MAX + 1];
    size_t n_batches;
    uint64_t tokens;
    double target_share;      /* tokens of the sample that are targets */
    cf_planner_point *points; /* owned */
    size_t n_points;
    size_t best;
} planning;

static const char *const policy_names[] = {
    [CF_RECOMPUTE_NONE] = "none",
    [CF_RECOMPUTE_SELECTIVE] = "selective",
    [CF_RECOMPUTE_LAYER] = "layer",
};

/* ---- bytes ---- */

static void size_close(planning *p)
{
    cf_validation_close(&p->training.validation);
    cf_batches_close(&p->training.batches);
}

/* Leaves training open, sized for the point.  No budget: how much a point over
 * it needs is worth telling. */
static cf_status size_open(planning *p, const cf_planner_point *point)
{
    p->trial.chunk_size_tok = point->chunk_size_tok;
    p->trial.retained_chunks_max = point->retained_chunks_max;
    p->trial.recompute = point->recompute;
    p->trial.memory_bytes = SIZE_MAX;
    return cf_training_size_up(&p->training);
}

static cf_status size_point(void *context, cf_planner_point *point)
{
    planning *p = context;
    cf_status status = size_open(p, point);

    point->bytes = p->training.sizes.used;
    size_close(p);
    return status;
}

/* ---- time ---- */

static cf_stage_cost cost_of(const planning *p, cf_recompute policy)
{
    const cf_forecast *f = &p->training.forecast;
    const bool again = policy == CF_RECOMPUTE_LAYER;
    const double linear = f->trained * (f->linear_backward + again);
    const double head =
        (1 + f->linear_backward) * f->target_flop * p->target_share;
    const cf_cost_terms forward = {.per_op = OP_TOK * f->token_flop,
                                   .per_tok = f->token_flop,
                                   .per_pair = f->pair_flop};
    const cf_cost_terms backward = {
        .per_op = linear * OP_TOK * f->token_flop,
        .per_tok = linear * f->token_flop + head,
        .per_pair = f->trained * CF_ATTENTION_BACKWARD * f->pair_flop};

    return (cf_stage_cost){.terms = {[CF_OP_FORWARD] = forward,
                                     [CF_OP_FORWARD_KEEP] = forward,
                                     [CF_OP_RECOMPUTE] = forward,
                                     [CF_OP_BACKWARD] = backward}};
}

static cf_status time_point(void *context, cf_planner_point *point)
{
    const planning *p = context;
    cf_stage_cost stage = cost_of(p, point->recompute);
    const cf_measured_cost cost = {.n_stages = 1, .stages = &stage};
    cf_rehearsal_input input = {
        .n_replicas = 1,
        .chunk_size_tok = point->chunk_size_tok,
        .params = {.n_stages = 1,
                   .retained_chunks_max = point->retained_chunks_max,
                   .kind = CF_SCHEDULE_STATE_AWARE},
        .cost = {.compute = cf_measured_cost_compute, .context = &cost},
    };

    for (size_t i = 0; i < p->n_batches; i++) {
        cf_rehearsal rehearsal;
        cf_status status;

        input.len_tok = p->len_tok + p->first[i];
        input.n_sequences = p->first[i + 1] - p->first[i];
        status = cf_rehearsal_open(&input, &rehearsal);
        if (status != CF_OK)
            return status;
        point->time += rehearsal.makespan;
        point->bubble_ratio += rehearsal.bubble_ratio / (double)p->n_batches;
        cf_rehearsal_close(&rehearsal);
    }
    return CF_OK;
}

static double step_s(const planning *p, const cf_planner_point *point)
{
    return point->time / p->flop_per_s / (double)p->n_batches + p->update_s;
}

static double tokens_per_s(const planning *p, const cf_planner_point *point)
{
    return (double)p->tokens / (double)p->n_batches / step_s(p, point);
}

/* ---- the question ---- */

/* Batches of the first epoch, evenly spread; without a target no cost. */
static void sample_batches(planning *p, uint32_t *batch)
{
    const cf_batches *batches = &p->training.batches;
    const uint32_t *len_tok = cf_dataset_lengths(batches->dataset);
    const uint32_t *targets = cf_dataset_target_counts(batches->dataset);
    const uint64_t n_steps = batches->n_steps;
    uint64_t with_target = 0, n_targets = 0;
    size_t used = 0;

    p->n_batches = n_steps < SAMPLE_MAX ? (size_t)n_steps : SAMPLE_MAX;
    for (size_t i = 0; i < p->n_batches; i++) {
        const uint64_t step = 1 + n_steps * i / p->n_batches;
        const size_t n = cf_batches_at(batches, step, batch);

        for (size_t j = 0; j < n; j++) {
            p->tokens += len_tok[batch[j]];
            if (targets[batch[j]] == 0)
                continue;
            with_target += len_tok[batch[j]];
            n_targets += targets[batch[j]];
            p->len_tok[used++] = len_tok[batch[j]];
        }
        p->first[i + 1] = used;
    }
    if (with_target > 0)
        p->target_share = (double)n_targets / (double)with_target;
}

static cf_status sample_open(planning *p)
{
    const size_t n = p->training.need.n_batch;
    uint32_t *batch = calloc(n, sizeof(*batch));
    cf_status status = CF_OK;

    p->len_tok = calloc(n, SAMPLE_MAX * sizeof(*p->len_tok));
    p->points = calloc(CF_PLANNER_POINTS_MAX, sizeof(*p->points));
    if (batch == NULL || p->len_tok == NULL || p->points == NULL) {
        cf_log_error("no memory for %d batches of %zu sequences", SAMPLE_MAX,
                     n);
        status = CF_NO_MEMORY;
    } else {
        sample_batches(p, batch);
    }
    free(batch);
    return status;
}

/* What does not depend on the point. */
static cf_status question_open(planning *p)
{
    const cf_planner_point any = {.chunk_size_tok = CF_PLANNER_SIZE_MIN,
                                  .retained_chunks_max = 1,
                                  .recompute = CF_RECOMPUTE_SELECTIVE};
    cf_status status = size_open(p, &any);

    p->longest_tok = p->training.need.longest_tok;
    if (status == CF_OK)
        status = cf_forecast_open(&p->training.run.model, &p->training.need,
                                  CF_RECOMPUTE_NONE, 1, &p->training.forecast);
    p->update_s = p->training.forecast.update_s;
    p->flop_per_s = p->training.forecast.flop_per_s;
    if (status == CF_OK)
        status = sample_open(p);
    size_close(p);
    return status;
}

static size_t kv_bytes(const cf_arena *sizes)
{
    size_t sum = 0;

    for (size_t i = 0; i < sizes->n_lines; i++) {
        if (sizes->lines[i].lifetime == CF_LIFETIME_GROUP)
            sum += sizes->lines[i].bytes;
    }
    return sum;
}

static cf_status refuse(planning *p)
{
    const cf_planner_point *least =
        &p->points[cf_planner_smallest(p->points, p->n_points)];
    char have[32], want[32], kv[32];
    cf_status status = size_open(p, least);

    if (status == CF_OK) {
        cf_log_error(
            "--memory %s is too little: the least is %s (%zu bytes), with "
            "--chunk-size %" PRIu32 " --retain-chunks %" PRIu32
            " --recompute %s, of which %s are KV state for the longest "
            "sequence of %" PRIu32 " tokens; give that much, or a smaller "
            "--max-length",
            cf_bytes_format((size_t)p->options->memory_bytes, have,
                            sizeof(have)),
            cf_bytes_format(least->bytes, want, sizeof(want)), least->bytes,
            least->chunk_size_tok, least->retained_chunks_max,
            policy_names[least->recompute],
            cf_bytes_format(kv_bytes(&p->training.sizes), kv, sizeof(kv)),
            p->longest_tok);
        status = CF_NO_MEMORY;
    }
    size_close(p);
    return status;
}

/* ---- the answer ---- */

static void json_print(const planning *p)
{
    const cf_planner_point *best = &p->points[p->best];

    printf("{\"chunk_size\": %" PRIu32 ", \"retain_chunks\": %" PRIu32
           ", \"recompute\": \"%s\", \"predicted_bytes\": %zu, \"step_s\": "
           "%.17g, \"tokens_per_s\": %.17g, \"bubble_ratio\": %.17g, "
           "\"costs\": \"built-in\", \"batches\": %zu, \"longest\": %" PRIu32
           ", \"candidates\": [",
           best->chunk_size_tok, best->retained_chunks_max,
           policy_names[best->recompute], best->bytes, step_s(p, best),
           tokens_per_s(p, best), best->bubble_ratio, p->n_batches,
           p->longest_tok);
    for (size_t i = 0; i < p->n_points; i++) {
        const cf_planner_point *c = &p->points[i];

        printf("%s{\"chunk_size\": %" PRIu32 ", \"retain_chunks\": %" PRIu32
               ", \"recompute\": \"%s\", \"predicted_bytes\": %zu, "
               "\"fits\": %s",
               i > 0 ? ", " : "", c->chunk_size_tok, c->retained_chunks_max,
               policy_names[c->recompute], c->bytes,
               c->fits ? "true" : "false");
        if (c->fits)
            printf(", \"cost\": %.17g", c->time);
        printf("}");
    }
    printf("]}\n");
}

static void point_print(const planning *p, const cf_planner_point *point,
                        const char *why)
{
    char bytes[32];

    printf("%10" PRIu32 " %6" PRIu32 " %10s %12s", point->chunk_size_tok,
           point->retained_chunks_max, policy_names[point->recompute],
           cf_bytes_format(point->bytes, bytes, sizeof(bytes)));
    if (point->fits)
        printf(" %10.4g %10.4g", step_s(p, point), tokens_per_s(p, point));
    else
        printf(" %10s %10s", "-", "-");
    printf("  %s\n", why);
}

static void runner_up_print(const planning *p, const cf_planner_point *point)
{
    const cf_planner_point *best = &p->points[p->best];
    const double slower = step_s(p, point) / step_s(p, best) - 1;
    char why[64];

    if (point->time > best->time)
        (void)snprintf(why, sizeof(why), "%.2g %% slower", 100 * slower);
    else
        (void)snprintf(why, sizeof(why), "%s",
                       point->bytes > best->bytes ? "as fast, more memory"
                                                  : "the same");
    point_print(p, point, why);
}

/* The next best ones: each time the best behind the last one printed. */
static void runners_up_print(const planning *p)
{
    size_t last = p->best;

    for (size_t n = 0; n < RUNNERS_UP; n++) {
        size_t next = p->n_points;

        for (size_t i = 0; i < p->n_points; i++) {
            const cf_planner_point *c = &p->points[i];
            const cf_planner_point *before = &p->points[last];
            const bool is_behind =
                cf_planner_is_better(before, c) ||
                (!cf_planner_is_better(c, before) && i > last);

            if (c->fits && is_behind &&
                (next == p->n_points ||
                 cf_planner_is_better(c, &p->points[next])))
                next = i;
        }
        if (next == p->n_points)
            return;
        runner_up_print(p, &p->points[next]);
        last = next;
    }
}

/* What did not fit, with the chosen ChunkSize or the chosen K. */
static void rejected_print(const planning *p)
{
    const cf_planner_point *best = &p->points[p->best];
    char budget[32], why[64];

    (void)snprintf(why, sizeof(why), "over %s",
                   cf_bytes_format((size_t)p->options->memory_bytes, budget,
                                   sizeof(budget)));
    for (size_t i = 0; i < p->n_points; i++) {
        const cf_planner_point *c = &p->points[i];

        if (!c->fits && c->recompute == best->recompute &&
            (c->chunk_size_tok == best->chunk_size_tok ||
             c->retained_chunks_max == best->retained_chunks_max))
            point_print(p, c, why);
    }
}

static void text_print(const planning *p)
{
    const cf_planner_point *best = &p->points[p->best];

    printf("--chunk-size %" PRIu32 " --retain-chunks %" PRIu32
           " --recompute %s\n\n",
           best->chunk_size_tok, best->retained_chunks_max,
           policy_names[best->recompute]);
    printf("%10s %6s %10s %12s %10s %10s\n", "ChunkSize", "K", "recompute",
           "memory", "s/step", "tokens/s");
    point_print(p, best, "chosen");
    runners_up_print(p);
    rejected_print(p);
    printf("\nbubble ratio %.5f; longest sequence %" PRIu32
           " tokens; %zu batches looked at, %zu settings\n"
           "Memory is exact.  Times are an estimate from one GEMM and built-in "
           "costs:\nexpect a third more or less.\n",
           best->bubble_ratio, p->longest_tok, p->n_batches, p->n_points);
}

static cf_status answer(planning *p)
{
    const cf_planner_oracle oracle = {
        .size = size_point, .time = time_point, .context = p};
    cf_status status = question_open(p);

    if (status != CF_OK)
        return status;
    p->n_points = cf_planner_list(p->longest_tok, p->points);
    status = cf_planner_search(p->points, p->n_points, p->options->memory_bytes,
                               &oracle, &p->best);
    if (status != CF_OK)
        return status;
    if (p->best == p->n_points)
        return refuse(p);
    if (p->options->json)
        json_print(p);
    else
        text_print(p);
    return CF_OK;
}

int cf_command_plan(const cf_options *options, cf_comm *comm)
{
    planning p = {.options = options, .trial = *options, .target_share = 1};
    cf_status status;

    p.trial.command = CF_COMMAND_TRAIN;
    p.trial.schedule = CF_SCHEDULE_STATE_AWARE;
    p.trial.pipeline_stages = 1;
    p.training.options = &p.trial;
    p.training.comm = comm;
    status = cf_run_open(&p.trial, comm, &p.training.run);
    if (status == CF_OK)
        status = answer(&p);
    cf_run_close(&p.training.run);
    free(p.points);
    free(p.len_tok);
    return cf_exit_code(status);
}
