/* plan.c - the plan command: what `train` should be given for this model, this
 * data and so much memory.  planning.h says how far to believe it.
 */
#include "src/commands.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/calibration.h"
#include "src/costs_file.h"
#include "src/log.h"
#include "src/plan_explain.h"
#include "src/planning.h"

/* Of times from built-in costs and one GEMM. */
#define BUILT_IN_ERROR 0.33

enum {
    RUNNERS_UP = 5
};

typedef struct plan {
    const cf_options *options;
    cf_training training;
    cf_planning planning;
    double scale; /* of compute seconds */
    double error; /* of times */
} plan;

static const cf_planner_point *best_of(const plan *p)
{
    return &p->planning.points[p->planning.best];
}

static double step_s(const plan *p, const cf_planner_point *point)
{
    return cf_planning_step_s(&p->planning, point, p->scale);
}

static double tokens_per_s(const plan *p, const cf_planner_point *point)
{
    return cf_planning_tokens_per_s(&p->planning, point, p->scale);
}

/* ---- JSON ---- */

static void stages_json_print(const plan *p)
{
    const cf_layout *layout = &p->planning.layout;

    printf(", \"stages\": [");
    for (uint32_t s = 0; s < layout->n_stages; s++)
        printf("%s{\"first_layer\": %" PRIu32 ", \"end_layer\": %" PRIu32
               ", \"predicted_bytes\": %zu}",
               s > 0 ? ", " : "", layout->stages[s].first_layer,
               layout->stages[s].end_layer, layout->bytes[s]);
    printf("]");
}

static void candidate_json_print(const plan *p, const cf_planner_point *c)
{
    printf("{\"pipeline_stages\": %" PRIu32 ", \"chunk_size\": %" PRIu32
           ", \"retain_chunks\": %" PRIu32
           ", \"recompute\": \"%s\", \"keep_attention\": %s, "
           "\"predicted_bytes\": %zu, \"fits\": %s",
           c->n_stages, c->chunk_size_tok, c->retained_chunks_max,
           cf_recompute_str(c->recompute), c->keep_attention ? "true" : "false",
           c->bytes, c->fits ? "true" : "false");
    if (c->fits)
        printf(", \"cost\": %.17g, \"step_s\": %.17g", c->time, step_s(p, c));
    printf("}");
}

static void json_print(const plan *p)
{
    const cf_planning *planning = &p->planning;
    const cf_planner_point *best = best_of(p);

    printf("{\"ranks\": %" PRIu32 ", \"pipeline_stages\": %" PRIu32
           ", \"chunk_size\": %" PRIu32 ", \"retain_chunks\": %" PRIu32
           ", \"recompute\": \"%s\", \"keep_attention\": %s, "
           "\"predicted_bytes\": %zu, \"step_s\": "
           "%.17g, \"tokens_per_s\": %.17g, \"bubble_ratio\": %.17g, "
           "\"costs\": \"%s\", \"error\": %.17g, \"batches\": %zu, "
           "\"longest\": %" PRIu32,
           planning->n_ranks, best->n_stages, best->chunk_size_tok,
           best->retained_chunks_max, cf_recompute_str(best->recompute),
           best->keep_attention ? "true" : "false", best->bytes,
           step_s(p, best), tokens_per_s(p, best), best->bubble_ratio,
           p->training.costs.is_measured ? "measured" : "built-in", p->error,
           planning->n_batches, p->training.longest.len_tok[0]);
    stages_json_print(p);
    printf(", \"candidates\": [");
    for (size_t i = 0; i < planning->n_points; i++) {
        printf("%s", i > 0 ? ", " : "");
        candidate_json_print(p, &planning->points[i]);
    }
    printf("]}\n");
}

/* ---- text ---- */

static void point_print(const plan *p, const cf_planner_point *point,
                        const char *why)
{
    char bytes[32];

    if (p->planning.n_ranks > 1)
        printf("%6" PRIu32 " ", point->n_stages);
    printf("%10" PRIu32 " %6" PRIu32 " %10s %9s %12s", point->chunk_size_tok,
           point->retained_chunks_max, cf_recompute_str(point->recompute),
           point->keep_attention ? "kept" : "again",
           cf_bytes_format(point->bytes, bytes, sizeof(bytes)));
    if (point->fits)
        printf(" %10.4g %3.0f %% %10.4g", step_s(p, point), 100 * p->error,
               tokens_per_s(p, point));
    else
        printf(" %10s %5s %10s", "-", "-", "-");
    printf("  %s\n", why);
}

static void runner_up_print(const plan *p, const cf_planner_point *point)
{
    const cf_planner_point *best = best_of(p);
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
static void runners_up_print(const plan *p)
{
    const cf_planning *planning = &p->planning;
    size_t last = planning->best;

    for (size_t n = 0; n < RUNNERS_UP; n++) {
        size_t next = planning->n_points;

        for (size_t i = 0; i < planning->n_points; i++) {
            const cf_planner_point *c = &planning->points[i];
            const cf_planner_point *before = &planning->points[last];
            const bool is_behind =
                cf_planner_is_better(before, c) ||
                (!cf_planner_is_better(c, before) && i > last);

            if (c->fits && is_behind &&
                (next == planning->n_points ||
                 cf_planner_is_better(c, &planning->points[next])))
                next = i;
        }
        if (next == planning->n_points)
            return;
        runner_up_print(p, &planning->points[next]);
        last = next;
    }
}

/* What the one setting is in which a point differs from the choice, as in "K=2";
 * NULL: there is none, or there are several. */
static const char *difference(const cf_planner_point *best,
                              const cf_planner_point *c, char *buf, size_t size)
{
    int n = 0;

    if (c->n_stages != best->n_stages) {
        (void)snprintf(buf, size, "%" PRIu32 " stage%s", c->n_stages,
                       c->n_stages > 1 ? "s" : "");
        n++;
    }
    if (c->chunk_size_tok != best->chunk_size_tok) {
        (void)snprintf(buf, size, "ChunkSize %" PRIu32, c->chunk_size_tok);
        n++;
    }
    if (c->retained_chunks_max != best->retained_chunks_max) {
        (void)snprintf(buf, size, "K=%" PRIu32, c->retained_chunks_max);
        n++;
    }
    if (c->keep_attention != best->keep_attention) {
        (void)snprintf(buf, size, "attention %s",
                       c->keep_attention ? "kept" : "again");
        n++;
    }
    if (c->recompute != best->recompute) {
        (void)snprintf(buf, size, "recompute %s",
                       cf_recompute_str(c->recompute));
        n++;
    }
    return n == 1 ? buf : NULL;
}

/* What did not fit, one setting away from the choice. */
static void rejected_print(const plan *p)
{
    for (size_t i = 0; i < p->planning.n_points; i++) {
        const cf_planner_point *c = &p->planning.points[i];
        char what[48], bytes[32], why[128];

        if (c->fits || difference(best_of(p), c, what, sizeof(what)) == NULL)
            continue;
        (void)snprintf(why, sizeof(why), "%s would need %s", what,
                       cf_bytes_format(c->bytes, bytes, sizeof(bytes)));
        point_print(p, c, why);
    }
}

/* The stages of the choice. */
static void stages_print(const plan *p)
{
    const cf_layout *layout = &p->planning.layout;

    printf("\n%6s %12s %12s   (%" PRIu32 " replica%s)\n", "stage", "layers",
           "memory", layout->n_replicas, layout->n_replicas > 1 ? "s" : "");
    for (uint32_t s = 0; s < layout->n_stages; s++) {
        char layers[32], bytes[32];

        (void)snprintf(layers, sizeof(layers), "%" PRIu32 "-%" PRIu32,
                       layout->stages[s].first_layer,
                       layout->stages[s].end_layer - 1);
        printf("%6" PRIu32 " %12s %12s\n", s, layers,
               cf_bytes_format(layout->bytes[s], bytes, sizeof(bytes)));
    }
}

static void basis_print(const plan *p)
{
    if (p->training.costs.is_measured)
        printf("Memory is exact.  Times are from costs measured on this "
               "machine, which a step they\nwere not fitted to took within "
               "%.1f %%.\n",
               100 * p->error);
    else
        printf("Memory is exact.  Times are an estimate from one GEMM and "
               "built-in costs:\nexpect a third more or less; plan --calibrate "
               "measures this machine.\n");
    if (p->planning.n_ranks > 1)
        printf("Messages between ranks are assumed, not measured: ranks of one "
               "node.\n");
}

static void text_print(const plan *p)
{
    const cf_planner_point *best = best_of(p);

    if (p->planning.n_ranks > 1)
        printf("--pipeline-stages %" PRIu32 " ", best->n_stages);
    printf("--chunk-size %" PRIu32 " --retain-chunks %" PRIu32
           " --recompute %s%s\n\n",
           best->chunk_size_tok, best->retained_chunks_max,
           cf_recompute_str(best->recompute),
           best->keep_attention ? " --keep-attention" : "");
    if (p->planning.n_ranks > 1)
        printf("%6s ", "stages");
    printf("%10s %6s %10s %9s %12s %10s %5s %10s\n", "ChunkSize", "K",
           "recompute", "attention", "memory", "s/step", "+-", "tokens/s");
    point_print(p, best, "chosen");
    runners_up_print(p);
    rejected_print(p);
    if (p->planning.n_ranks > 1)
        stages_print(p);
    printf("\nbubble ratio %.5f; longest sequence %" PRIu32
           " tokens; %zu batches looked at, %zu settings\n",
           best->bubble_ratio, p->training.longest.len_tok[0],
           p->planning.n_batches, p->planning.n_points);
    basis_print(p);
}

/* ---- the question ---- */

/* Measure, and keep the costs where they will be found. */
static cf_status calibrate(plan *p)
{
    const cf_run *run = &p->training.run;
    char *path;
    cf_costs costs;
    cf_status status = cf_costs_path(&run->model, &path);

    if (status == CF_OK && path == NULL) {
        cf_log_error("--calibrate has no place for the costs: set HOME, or "
                     "XDG_CACHE_HOME");
        status = CF_INVALID;
    }
    if (status == CF_OK)
        status =
            cf_calibrate(p->options, &run->kernels, CF_CALIBRATION_S, &costs);
    if (status == CF_OK)
        status = cf_costs_write(path, &run->model, &costs);
    if (status == CF_OK)
        cf_log_info("costs of this machine are in %s", path);
    free(path);
    return status;
}

/* How much slower this machine is than what costs are in. */
static cf_status scale_find(plan *p)
{
    cf_training *t = &p->training;
    cf_status status;

    p->scale = 1;
    p->error = t->costs.error;
    if (t->costs.is_measured)
        return CF_OK;
    status = cf_forecast_open(&t->run.model, &t->need, CF_RECOMPUTE_NONE, 1,
                              &t->forecast);
    p->scale = CF_NOMINAL_FLOP_PER_S / t->forecast.flop_per_s;
    p->error = BUILT_IN_ERROR;
    return status;
}

static cf_status answer_print(plan *p)
{
    cf_planner_point best = *best_of(p);
    cf_status status = scale_find(p);

    if (status == CF_OK) /* its table, and its stages */
        status = cf_planning_size(&p->planning, &best);
    if (status != CF_OK)
        return status;
    if (p->options->json)
        json_print(p);
    else
        text_print(p);
    if (p->options->explain)
        status = cf_plan_explain(&p->planning, &best, stdout);
    return status;
}

static cf_status answer(plan *p)
{
    const cf_options *options = p->options;
    const cf_planner_range range = {
        .chunk_size_tok = options->chunk_size_tok,
        .retained_chunks_max = options->retained_chunks_max,
        .recompute_is_free = true,
        .attention_is_free = true,
        .n_ranks = options->ranks,
        .n_stages = options->pipeline_stages,
    };
    cf_status status = CF_OK;

    if (options->calibrate)
        status = calibrate(p);
    if (status == CF_OK)
        status = cf_training_open_data(&p->training);
    if (status == CF_OK)
        status = cf_planning_costs(&p->training);
    if (status == CF_OK)
        status = cf_planning_open(&p->training, options->ranks, &p->planning);
    if (status == CF_OK)
        status = cf_planning_search(&p->planning, range, options->memory_bytes);
    if (status != CF_OK)
        return status;
    if (p->planning.best == p->planning.n_points)
        return cf_planning_refuse(&p->planning, options->memory_bytes);
    return answer_print(p);
}

static cf_status check_together(const cf_options *options)
{
    if (options->json && options->explain) {
        cf_log_error("--json and --explain exclude each other: drop one");
        return CF_INVALID;
    }
    if (options->pipeline_stages > 0 &&
        options->ranks % options->pipeline_stages != 0) {
        cf_log_error("--ranks %" PRIu32
                     " are not divisible by --pipeline-stages %" PRIu32,
                     options->ranks, options->pipeline_stages);
        return CF_INVALID;
    }
    return CF_OK;
}

int cf_command_plan(const cf_options *options, cf_comm *comm)
{
    plan p = {.options = options};
    cf_status status = check_together(options);

    cf_training_begin(options, comm, &p.training);
    p.training.resolved.command = CF_COMMAND_TRAIN;
    p.training.resolved.schedule = CF_SCHEDULE_STATE_AWARE;
    p.training.resolved.pipeline_stages = 1; /* that are here */
    if (status == CF_OK)
        status = cf_run_open(p.training.options, comm, &p.training.run);
    if (status == CF_OK)
        status = answer(&p);
    cf_planning_close(&p.planning);
    cf_training_end(&p.training);
    return cf_exit_code(status);
}
