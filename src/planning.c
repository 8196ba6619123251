/* planning.c - see planning.h. */
#include "src/planning.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "src/costs_file.h"
#include "src/forecast.h"
#include "src/log.h"
#include "src/rehearsal.h"

/* Batches are left out when all points together would simulate more ops. */
#define SIMULATED_OPS_MAX 2e7

/* ---- costs ---- */

static cf_status costs_find(cf_training *t, cf_costs *costs)
{
    char *path = NULL;
    bool found = false;
    cf_status status = cf_costs_path(&t->run.model, &path);

    if (status == CF_OK && path != NULL)
        cf_costs_read(path, &t->run.model, costs, &found);
    free(path);
    return status;
}

cf_status cf_planning_costs(cf_training *t)
{
    cf_status status = CF_OK;

    t->costs = cf_costs_built_in(&t->run.model);
    if (cf_training_is_root(t))
        status = costs_find(t, &t->costs);
    status = cf_comm_agree(t->comm, status);
    if (status == CF_OK)
        status = cf_comm_broadcast(t->comm, 0, &t->costs, sizeof(t->costs));
    return status;
}

/* ---- the layout of a number of stages ---- */

static void layout_close(cf_layout *layout)
{
    free(layout->stages);
    free(layout->largest);
    free(layout->bytes);
    free(layout->costs);
    *layout = (cf_layout){0};
}

/* The first replica whose shard of the stage's moments is the largest. */
static uint32_t largest_shard(const cf_model *model, uint32_t n_replicas)
{
    uint32_t largest = 0;
    size_t most = 0;

    for (uint32_t i = 0; i < n_replicas; i++) {
        const size_t n = cf_model_shard_at(model, i + 1, n_replicas) -
                         cf_model_shard_at(model, i, n_replicas);

        if (n > most) {
            most = n;
            largest = i;
        }
    }
    return largest;
}

static void sequence_add(const cf_stage_cost *cost, uint32_t n_stages,
                         cf_cost_terms *sum)
{
    const cf_cost_terms *f = &cost->terms[CF_OP_FORWARD_KEEP];
    const cf_cost_terms *b = &cost->terms[CF_OP_BACKWARD];

    sum->per_tok += (f->per_tok + b->per_tok) / n_stages;
    sum->per_pair += (f->per_pair + b->per_pair) / n_stages;
}

/* Of all stages, for a way to keep chunks. */
static cf_stage_cost *layout_costs(const cf_layout *layout, cf_kept kept)
{
    const size_t at = 2 * (size_t)kept.recompute + kept.attention;

    return layout->costs + at * layout->n_stages;
}

static cf_status layout_stage(cf_planning *p, cf_layout *layout, uint32_t s)
{
    cf_model *model = &p->t->run.model;
    double end_s;
    cf_status status = cf_stage_split(model->config.n_layers, layout->n_stages,
                                      p->t->options->layers_per_stage, p->split,
                                      s, &layout->stages[s]);

    if (status != CF_OK)
        return status;
    cf_model_take_stage(model, &layout->stages[s]);
    layout->largest[s] = largest_shard(model, layout->n_replicas);
    for (int i = 0; i < 2 * CF_RECOMPUTES; i++) {
        const cf_kept kept = {(cf_recompute)(i / 2), i % 2 == 1};

        layout_costs(layout, kept)[s] =
            cf_costs_stage(&p->t->costs, model, kept, p->target_share);
    }
    sequence_add(&layout->costs[s], layout->n_stages, &layout->sequence);
    end_s = cf_costs_step_end_s(&p->t->costs, model, layout->n_replicas);
    if (end_s > layout->step_end_s)
        layout->step_end_s = end_s;
    return CF_OK;
}

static cf_status layout_open(cf_planning *p, uint32_t n_stages)
{
    cf_layout *layout = &p->layout;
    cf_status status = CF_OK;

    if (layout->n_stages == n_stages)
        return CF_OK;
    layout_close(layout);
    *layout = (cf_layout){
        .n_replicas = p->n_ranks / n_stages,
        .stages = calloc(n_stages, sizeof(cf_stage)),
        .largest = calloc(n_stages, sizeof(uint32_t)),
        .bytes = calloc(n_stages, sizeof(size_t)),
        .costs =
            calloc((size_t)n_stages * 2 * CF_RECOMPUTES, sizeof(cf_stage_cost)),
    };
    if (layout->stages == NULL || layout->largest == NULL ||
        layout->bytes == NULL || layout->costs == NULL)
        return cf_log_no_memory("the stages of a plan");
    layout->n_stages = n_stages;
    for (uint32_t s = 0; status == CF_OK && s < n_stages; s++)
        status = layout_stage(p, layout, s);
    return status;
}

/* ---- bytes ---- */

cf_status cf_planning_size_stage(cf_planning *p, uint32_t s, cf_arena *sizes)
{
    cf_training *t = p->t;
    const cf_layout *layout = &p->layout;
    cf_status status;

    t->run.grid = (cf_grid){.n_stages = layout->n_stages,
                            .n_replicas = layout->n_replicas,
                            .stage = s,
                            .replica = layout->largest[s]};
    cf_model_take_stage(&t->run.model, &layout->stages[s]);
    cf_model_take_shard(&t->run.model, layout->largest[s], layout->n_replicas);
    status = cf_training_bound(t);
    if (status != CF_OK)
        return status;
    cf_arena_open_dry(sizes);
    cf_training_carve(t, sizes);
    if (sizes->overflow)
        sizes->used = SIZE_MAX;
    return CF_OK;
}

static void options_take(cf_options *options, const cf_planner_point *point)
{
    options->pipeline_stages = point->n_stages;
    options->chunk_size_tok = point->chunk_size_tok;
    options->retained_chunks_max = point->retained_chunks_max;
    options->recompute = point->recompute;
    options->keep_attention = point->keep_attention;
}

cf_status cf_planning_size(cf_planning *p, cf_planner_point *point)
{
    cf_arena most = {0};
    cf_status status = layout_open(p, point->n_stages);

    options_take(&p->t->resolved, point);
    for (uint32_t s = 0; status == CF_OK && s < point->n_stages; s++) {
        cf_arena sizes;

        status = cf_planning_size_stage(p, s, &sizes);
        if (status != CF_OK)
            return status;
        p->layout.bytes[s] = sizes.used;
        if (s == 0 || sizes.used > most.used)
            most = sizes;
    }
    if (status != CF_OK)
        return status;
    p->t->sizes = most;
    point->bytes = most.used;
    return CF_OK;
}

/* ---- time ---- */

cf_status cf_planning_time(cf_planning *p, cf_planner_point *point)
{
    const cf_training *t = p->t;
    cf_measured_cost cost = {.n_stages = point->n_stages,
                             .message = cf_costs_message(&t->run.model)};
    cf_status status = layout_open(p, point->n_stages);
    cf_rehearsal_input input = {
        .n_replicas = p->n_ranks / point->n_stages,
        .chunk_size_tok = point->chunk_size_tok,
        .params = {.n_stages = point->n_stages,
                   .retained_chunks_max = point->retained_chunks_max,
                   .kind = t->options->schedule},
        .cost = {.compute = cf_measured_cost_compute,
                 .message = cf_measured_cost_message,
                 .context = &cost},
        .sequence = p->layout.sequence,
    };

    if (status != CF_OK)
        return status;
    cost.stages = layout_costs(
        &p->layout, (cf_kept){point->recompute, point->keep_attention});
    point->compute_s = point->bubble_ratio = 0;
    for (size_t i = 0; status == CF_OK && i < p->n_batches; i++) {
        cf_rehearsal rehearsal;

        input.len_tok = p->len_tok + p->first[i];
        input.n_sequences = p->first[i + 1] - p->first[i];
        status = cf_rehearsal_open(&input, &rehearsal);
        if (status != CF_OK)
            return status;
        point->compute_s += rehearsal.makespan;
        point->bubble_ratio += rehearsal.bubble_ratio / (double)p->n_batches;
        cf_rehearsal_close(&rehearsal);
    }
    point->time =
        point->compute_s + p->layout.step_end_s * (double)p->n_batches;
    return status;
}

double cf_planning_step_s(const cf_planning *p, const cf_planner_point *point,
                          double scale)
{
    const double end_s = point->time - point->compute_s;

    return (scale * point->compute_s + end_s) / (double)p->n_batches;
}

double cf_planning_tokens_per_s(const cf_planning *p,
                                const cf_planner_point *point, double scale)
{
    double sum = 0;

    for (size_t i = 0; i < p->n_batches; i++)
        sum += (double)p->tokens[i];
    return sum / (double)p->n_batches / cf_planning_step_s(p, point, scale);
}

/* ---- the batches ---- */

/* Batch i of n of the first epoch, evenly spread; without a target no cost. */
static void batches_sample(cf_planning *p, uint32_t *batch)
{
    const cf_batches *batches = &p->t->batches;
    const uint32_t *len_tok = cf_dataset_lengths(batches->dataset);
    const uint32_t *targets = cf_dataset_target_counts(batches->dataset);
    uint64_t with_target = 0, n_targets = 0;
    size_t used = 0;

    for (size_t i = 0; i < p->n_batches; i++) {
        size_t n;

        p->step[i] = 1 + batches->n_steps * i / p->n_batches;
        n = cf_batches_at(batches, p->step[i], batch);
        for (size_t j = 0; j < n; j++) {
            p->tokens[i] += len_tok[batch[j]];
            if (targets[batch[j]] == 0)
                continue;
            with_target += len_tok[batch[j]];
            n_targets += targets[batch[j]];
            p->len_tok[used++] = len_tok[batch[j]];
        }
        p->first[i + 1] = used;
    }
    p->target_share =
        with_target > 0 ? (double)n_targets / (double)with_target : 1;
}

cf_status cf_planning_open(cf_training *t, uint32_t n_ranks, cf_planning *p)
{
    const size_t n = t->batches.global_batch;
    const uint64_t n_steps = t->batches.n_steps;
    uint32_t *batch = calloc(n, sizeof(*batch));
    cf_status status = CF_OK;

    *p = (cf_planning){
        .t = t,
        .n_ranks = n_ranks,
        .split = cf_forecast_stage_costs(&t->run.model, t->run.dataset),
        .n_batches = n_steps < CF_PLANNING_BATCHES_MAX
                         ? (size_t)n_steps
                         : CF_PLANNING_BATCHES_MAX,
        .len_tok = calloc(n, CF_PLANNING_BATCHES_MAX * sizeof(*p->len_tok)),
    };
    if (batch == NULL || p->len_tok == NULL)
        status = cf_log_no_memory("the batches of a plan");
    else
        batches_sample(p, batch);
    free(batch);
    return status;
}

void cf_planning_close(cf_planning *p)
{
    if (p->t == NULL)
        return;
    cf_run_retake_part(&p->t->run);
    layout_close(&p->layout);
    free(p->len_tok);
    free(p->points);
    *p = (cf_planning){0};
}

/* ---- the search ---- */

static cf_status size_point(void *context, cf_planner_point *point)
{
    return cf_planning_size(context, point);
}

static cf_status time_point(void *context, cf_planner_point *point)
{
    return cf_planning_time(context, point);
}

/* About the ops that timing all points over a batch simulates: a forward and a
 * backward of every chunk on every stage. */
static double batch_ops(const cf_planning *p, size_t i)
{
    double sum = 0;

    for (size_t at = 0; at < p->n_points; at++) {
        const cf_planner_point *point = &p->points[at];
        double n_tok = 0;

        for (size_t j = p->first[i]; j < p->first[i + 1]; j++)
            n_tok += p->len_tok[j];
        sum += 2 * point->n_stages * (n_tok / point->chunk_size_tok + 1);
    }
    return sum;
}

/* Leave the last batches out, so that an answer does not take long. */
static void batches_limit(cf_planning *p)
{
    double sum = 0;
    size_t n = 0;

    while (n < p->n_batches) {
        sum += batch_ops(p, n);
        if (n > 0 && sum > SIMULATED_OPS_MAX)
            break;
        n++;
    }
    if (n < p->n_batches)
        p->n_batches = n;
}

cf_status cf_planning_search(cf_planning *p, cf_planner_range range,
                             uint64_t budget)
{
    const cf_planner_oracle oracle = {
        .size = size_point, .time = time_point, .context = p};

    range.longest_tok = p->t->longest.len_tok[0];
    range.n_layers = p->t->run.model.config.n_layers;
    p->n_points = cf_planner_list(&range, NULL);
    p->points = calloc(p->n_points, sizeof(*p->points));
    if (p->points == NULL)
        return cf_log_no_memory("the settings of a plan");
    (void)cf_planner_list(&range, p->points);
    batches_limit(p);
    return cf_planner_search(p->points, p->n_points, budget, &oracle, &p->best);
}

/* ---- what does not fit ---- */

size_t cf_planning_kv_bytes(const cf_arena *sizes)
{
    size_t sum = 0;

    for (size_t i = 0; i < sizes->n_lines; i++)
        if (sizes->lines[i].lifetime == CF_LIFETIME_GROUP)
            sum += sizes->lines[i].bytes;
    return sum;
}

cf_status cf_planning_refuse(cf_planning *p, uint64_t budget)
{
    cf_planner_point least =
        p->points[cf_planner_smallest(p->points, p->n_points)];
    char have[32], want[32], kv[32], stages[48] = "";
    cf_status status = cf_planning_size(p, &least);

    if (status != CF_OK)
        return status;
    if (p->n_ranks > 1)
        (void)snprintf(stages, sizeof(stages), " --pipeline-stages %" PRIu32,
                       least.n_stages);
    cf_log_error(
        "%s of memory are too little%s: the least is %s (%zu bytes), with "
        "--chunk-size %" PRIu32 " --retain-chunks %" PRIu32
        " --recompute %s%s%s, of which %s are KV state for the longest "
        "sequence of %" PRIu32 " tokens%s; give that much, or a smaller "
        "--max-length",
        cf_bytes_format((size_t)budget, have, sizeof(have)),
        p->n_ranks > 1 ? " for each rank" : "",
        cf_bytes_format(least.bytes, want, sizeof(want)), least.bytes,
        least.chunk_size_tok, least.retained_chunks_max,
        cf_recompute_str(least.recompute),
        least.keep_attention ? " --keep-attention" : "", stages,
        cf_bytes_format(cf_planning_kv_bytes(&p->t->sizes), kv, sizeof(kv)),
        p->t->longest.len_tok[0],
        p->t->options->kv_dir == NULL ? ", which --kv-dir puts into a file"
                                      : "");
    return CF_NO_MEMORY;
}
