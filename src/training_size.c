/* training_size.c - what a run needs, told before a weight is loaded. */
#include "src/training.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/log.h"
#include "src/placement.h"

void cf_training_begin(const cf_options *options, cf_comm *comm, cf_training *t)
{
    memset(t, 0, sizeof(*t));
    t->resolved = *options;
    t->options = &t->resolved;
    t->comm = comm;
}

void cf_training_end(cf_training *t)
{
    cf_saver_close(&t->saver);
    cf_validation_close(&t->validation);
    cf_longest_close(&t->longest);
    cf_batches_close(&t->batches);
    cf_run_close(&t->run);
    cf_kv_file_close(&t->kv_file);
}

static cf_status warmup_check(const cf_training *t)
{
    if (t->options->warmup_steps <= t->batches.n_steps)
        return CF_OK;
    cf_log_error("--warmup-steps %" PRIu64 " is more than the %" PRIu64
                 " steps of this run: use fewer",
                 t->options->warmup_steps, t->batches.n_steps);
    return CF_INVALID;
}

static double op_flop(const cf_training *t, const cf_op *op)
{
    return cf_forecast_op_flop(&t->forecast, &t->plan.chunks.chunks[op->chunk],
                               op->kind, t->run.model.stage.is_last);
}

static void progress_draw(const cf_training *t)
{
    const size_t step_peak = cf_engine_peak_bytes(&t->engine);
    const cf_progress_at at = {
        .step = t->progress.step,
        .chunks_done = t->progress.chunks_done,
        .n_chunks = t->plan.chunks.n_chunks,
        .done = t->progress.flop_done / t->progress.flop,
        .elapsed_s = t->engine.span_s,
        .tokens = t->plan.tokens,
        .run_eta_s =
            cf_forecast_remaining_after_s(&t->forecast, t->progress.forecast_s),
        .peak_bytes = step_peak > t->peak_bytes ? step_peak : t->peak_bytes,
    };

    cf_metrics_progress(t->metrics, &at);
}

/* The next op of this stage's list has run. */
static void observe(void *context)
{
    cf_training *t = context;
    const cf_schedule *s = &t->plan.schedule;
    const cf_op *first = s->ops + s->first_op[t->need.stage];
    const size_t n =
        s->first_op[t->need.stage + 1] - s->first_op[t->need.stage];
    const cf_op *op = &first[t->progress.ops_done++];

    cf_trace_op_done(&t->trace, t->engine.op_begin, t->engine.span_s);
    cf_pictures_op_done(&t->pictures, t->engine.op_begin, t->engine.span_s);
    t->progress.chunks_done += op->kind == CF_OP_BACKWARD;
    t->progress.flop_done += op_flop(t, op);
    for (size_t i = 0; i < n && t->progress.ops_done == 1; i++)
        t->progress.flop += op_flop(t, &first[i]);
    if (cf_metrics_progress_is_due(t->metrics))
        progress_draw(t);
}

void cf_training_carve_engine(void *context, cf_arena *arena)
{
    cf_training *t = context;

    cf_engine_carve(&t->engine, &t->run.model, &t->need.engine,
                    t->options->recompute, CF_GRADIENTS_YES, arena);
    t->engine.observe = observe;
    t->engine.observer = t;
    t->engine.times = t->options->verbose ? &t->times : NULL;
}

static void placing_carve(cf_training *t, cf_arena *arena)
{
    static const char what[] = "plan and schedule";
    const size_t n = t->need.n_batch;
    const uint32_t n_replicas = t->run.grid.n_replicas;

    t->plan.replica = t->run.grid.replica;
    if (n_replicas == 1)
        return;
    t->plan.replica_of = cf_arena_take(arena, CF_LIFETIME_RUN, what, n,
                                       sizeof(*t->plan.replica_of));
    t->placing.cost = cf_arena_take(arena, CF_LIFETIME_RUN, what, n,
                                    sizeof(*t->placing.cost));
    t->placing.load = cf_arena_take(arena, CF_LIFETIME_RUN, what, n_replicas,
                                    sizeof(*t->placing.load));
    t->placing.scratch = cf_arena_take(arena, CF_LIFETIME_RUN, what,
                                       t->placing.scratch_bytes, 1);
}

void cf_training_carve(void *context, cf_arena *arena)
{
    cf_training *t = context;
    size_t engine_from;

    cf_model_carve(&t->run.model, CF_MODEL_TRAIN, arena);
    cf_step_plan_carve(&t->plan, &t->need, arena);
    placing_carve(t, arena);
    cf_step_shares_carve(&t->shares, t->comm, &t->run.grid, arena);
    t->ends =
        cf_arena_take(arena, CF_LIFETIME_RUN, "bookkeeping",
                      (size_t)t->run.grid.n_stages * t->run.grid.n_replicas,
                      sizeof(*t->ends));
    cf_reduction_carve(&t->reduction, t->comm, &t->run.grid, &t->run.model,
                       arena);
    engine_from = arena->used;
    cf_training_carve_engine(t, arena);
    cf_validation_carve(&t->validation, engine_from, arena);
}

static cf_status memory_size(cf_training *t)
{
    const size_t budget = cf_run_budget(&t->run);

    cf_arena_open_dry(&t->sizes);
    cf_training_carve(t, &t->sizes);
    if (!t->sizes.overflow && t->sizes.used <= budget)
        return CF_OK;
    return cf_training_refuse(t, budget);
}

static size_t kv_layer_bytes(const cf_training *t)
{
    const cf_model *model = &t->run.model;
    const cf_attn_shape shape = {.n_heads = model->config.n_heads,
                                 .n_kv_heads = model->config.n_kv_heads,
                                 .head_dim = model->config.head_dim};

    return cf_kv_file_layer_bytes(&t->run.kernels, &shape,
                                  t->need.engine.kv.n_pages);
}

/* The lowest layers have their KV state in memory, as many as --kv-memory has
 * room for. */
static void kv_spread(cf_training *t)
{
    const cf_stage *stage = &t->run.model.stage;
    const uint32_t n_layers = stage->end_layer - stage->first_layer;
    const uint64_t n_memory = t->options->kv_memory / kv_layer_bytes(t);

    t->need.engine.kv.n_file_layers =
        n_memory < n_layers ? n_layers - (uint32_t)n_memory : 0;
    t->need.engine.kv.file = t->kv_file.at;
}

size_t cf_training_kv_file_bytes(const cf_training *t)
{
    return t->need.engine.kv.n_file_layers * kv_layer_bytes(t);
}

cf_status cf_training_open_kv_file(cf_training *t)
{
    const size_t bytes = cf_training_kv_file_bytes(t);
    cf_status status;

    if (bytes == 0)
        return CF_OK;
    status = cf_kv_file_open(t->options->kv_dir, bytes, &t->kv_file);
    t->need.engine.kv.file = t->kv_file.at;
    return status;
}

cf_status cf_training_bound(cf_training *t)
{
    const cf_step_plan_params params = {
        .n_batch = t->batches.global_batch,
        .chunk_size_tok = t->options->chunk_size_tok,
        .schedule = {.n_stages = t->run.grid.n_stages,
                     .retained_chunks_max = t->options->retained_chunks_max,
                     .kind = t->options->schedule},
        .stage = t->run.grid.stage,
        .keep_attention = t->options->keep_attention,
    };
    cf_status status = cf_step_plan_bound_of(&t->longest, &params, &t->need);

    if (status == CF_OK && t->options->kv_dir != NULL)
        kv_spread(t);
    if (status == CF_OK)
        status = cf_placement_bound(t->need.n_batch, t->run.grid.n_replicas,
                                    &t->placing.scratch_bytes);
    return status == CF_OK ? cf_validation_bound(&t->validation) : status;
}

cf_status cf_training_open_data(cf_training *t)
{
    cf_status status = cf_batches_open(t->run.dataset, t->options, &t->batches);

    if (status == CF_OK)
        status = warmup_check(t);
    if (status == CF_OK)
        status = cf_longest_open(t->run.dataset, t->batches.drawable,
                                 t->batches.n_drawable, t->batches.global_batch,
                                 &t->longest);
    if (status == CF_OK)
        status = cf_validation_open(t->options, &t->run, &t->validation);
    return status;
}

cf_status cf_training_size_up(cf_training *t)
{
    cf_status status = cf_training_bound(t);

    return status == CF_OK ? memory_size(t) : status;
}

/* What is left of the run will take, told from the lengths of its sequences. */
cf_status cf_training_open_forecast(cf_training *t)
{
    const uint64_t first_step = t->saver.start.step + 1;
    uint32_t *batch = calloc(t->need.n_batch, sizeof(*batch));
    cf_status status;

    if (batch == NULL) {
        cf_log_error("no memory for a batch of %zu sequences", t->need.n_batch);
        return CF_NO_MEMORY;
    }
    status = cf_forecast_open(&t->run.model, &t->need, t->options->recompute,
                              cf_comm_size(t->comm), &t->forecast);
    if (status == CF_OK)
        status = cf_training_use_costs(t);
    if (status == CF_OK) {
        cf_forecast_add_steps(&t->forecast, &t->batches, first_step,
                              t->batches.n_steps, batch);
        cf_validation_forecast(&t->validation, first_step, t->batches.n_steps,
                               &t->forecast);
    }
    free(batch);
    return status;
}

/* What the ranks need, so that rank 0 can tell the most of them. */
cf_status cf_training_share_predicted(cf_training *t)
{
    const uint32_t n_ranks = cf_comm_size(t->comm);
    const uint64_t mine = t->sizes.used;
    uint64_t *all = calloc(n_ranks, sizeof(*all));
    cf_status status =
        cf_comm_agree(t->comm, all != NULL ? CF_OK : CF_NO_MEMORY);

    if (status == CF_OK)
        status = cf_comm_gather(t->comm, &mine, sizeof(mine), all);
    for (uint32_t i = 0; i < n_ranks && status == CF_OK; i++)
        if (all[i] > t->predicted_bytes)
            t->predicted_bytes = (size_t)all[i];
    free(all);
    return status;
}
