/* calibration.c - see calibration.h. */
#include "src/calibration.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/adapter_options.h"
#include "src/calibration_samples.h"
#include "src/clock.h"
#include "src/engine.h"
#include "src/forecast.h"
#include "src/log.h"
#include "src/machine.h"
#include "src/optimizer.h"
#include "src/step_plan.h"

enum {
    SMALL_LAYER_ELEMENTS = 1 << 20,
    LAYERS_OF_SMALL = 8, /* so that what a chunk costs besides is little */
    RUNGS_MIN = 8,       /* two sizes of everything, whatever it takes */
    SEQUENCES_MAX = 8,   /* of a rung */
    CHECKS = 3
};

#define CHECK_SHARE  0.15 /* of the time, for the check at the end */
#define WEIGHTS_SIZE 0.05

/* One step that is timed: chunks of one sequence, or several sequences. */
typedef struct rung {
    uint32_t chunk_tok;
    uint32_t retained;
    cf_recompute policy;
    cf_made_sequence sequences[SEQUENCES_MAX]; /* up to n_tok 0 */
} rung;

#define ONE(tok, n, of_policy, n_targets)     \
    {                                         \
        (tok), (n), CF_RECOMPUTE_##of_policy, \
        {                                     \
            {                                 \
                (tok) * (n), (n_targets)      \
            }                                 \
        }                                     \
    }

/* From small to large, all policies at the same sizes; the first wakes threads and
 * pages and is not counted. */
static const rung rungs[] = {
    ONE(64, 2, SELECTIVE, 32),   ONE(64, 2, SELECTIVE, 64),
    ONE(64, 1, NONE, 16),        ONE(64, 1, LAYER, 16),
    ONE(256, 1, SELECTIVE, 128), ONE(256, 1, NONE, 16),
    ONE(256, 1, LAYER, 16),      ONE(256, 3, SELECTIVE, 64),
    ONE(512, 4, SELECTIVE, 256), ONE(1024, 1, SELECTIVE, 16),
    ONE(1024, 1, NONE, 16),      ONE(1024, 1, LAYER, 16),
    ONE(2048, 1, SELECTIVE, 16), ONE(2048, 1, NONE, 16),
    ONE(2048, 1, LAYER, 16),
};

/* Not fitted to: a packed chunk, and a sequence of which two chunks are dropped. */
static const rung check = {
    384,
    1,
    CF_RECOMPUTE_SELECTIVE,
    {{1000, 200}, {150, 30}, {90, 20}, {60, 20}, {40, 20}},
};

enum {
    N_RUNGS = sizeof(rungs) / sizeof(rungs[0]),
    N_SEQUENCES_MAX = (N_RUNGS + 1) * SEQUENCES_MAX
};

typedef struct calibration {
    const cf_options *options;
    cf_kernels kernels; /* timed */
    cf_op_times times;
    cf_model model; /* a few layers, first and last stage at once */
    cf_dataset *dataset;
    size_t first_sequence[N_RUNGS + 1];
    cf_arena weights;
    cf_arena room; /* for the largest rung */
    double begin_s, end_s;
    double work, worked_s; /* so far, in forward tokens of a layer */

    /* The rung that runs. */
    const rung *rung;
    bool is_counted;
    cf_step_plan_need need;
    cf_step_plan plan;
    cf_engine engine;
    size_t ops_done;
    double before[CF_TIME_KINDS];

    cf_calibration_samples samples;
} calibration;

static uint32_t n_layers(const calibration *c)
{
    return c->model.stage.end_layer;
}

/* ---- model and data ---- */

static cf_status adapt(calibration *c)
{
    cf_adapter_spec spec;
    cf_status status = cf_adapter_options_spec(c->options, &spec);

    if (status != CF_OK || spec.rank == 0)
        return status;
    return cf_model_adapt(&c->model, &spec);
}

/* A few layers, which are the whole pipeline. */
static cf_status model_open(calibration *c)
{
    cf_status status = cf_model_open(c->options->model, &c->kernels, &c->model);
    const cf_model_config *config = &c->model.config;
    cf_stage stage = {.is_first = true, .is_last = true};
    uint64_t layer_elements;

    if (status == CF_OK)
        status = adapt(c);
    if (status != CF_OK)
        return status;
    layer_elements = (uint64_t)config->hidden * 3 * config->ffn;
    stage.end_layer =
        layer_elements < SMALL_LAYER_ELEMENTS ? LAYERS_OF_SMALL : 1;
    if (stage.end_layer > config->n_layers)
        stage.end_layer = config->n_layers;
    cf_model_take_stage(&c->model, &stage);
    return CF_OK;
}

/* Small numbers: what a kernel takes does not depend on them, but for zeros and
 * what is not finite. */
static void weights_fill(calibration *c)
{
    const size_t n = c->model.n_elements;
    uint32_t x = 1;

    for (size_t i = 0; i < n; i++) {
        double value;

        x = x * 1664525u + 1013904223u;
        value = WEIGHTS_SIZE * ((double)x / UINT32_MAX - 0.5);
        if (c->kernels.acc_bytes == sizeof(double))
            ((double *)c->model.masters)[i] = value;
        else
            ((float *)c->model.masters)[i] = (float)value;
    }
    cf_model_pack(&c->model);
}

static cf_status weights_open(calibration *c)
{
    cf_arena dry;
    cf_status status;

    cf_arena_open_dry(&dry);
    cf_model_carve(&c->model, CF_MODEL_TRAIN, &dry);
    status = cf_machine_check_gemm();
    if (status == CF_OK)
        status = cf_arena_open(dry.used, &c->weights);
    if (status != CF_OK)
        return status;
    cf_model_carve(&c->model, CF_MODEL_TRAIN, &c->weights);
    weights_fill(c);
    return CF_OK;
}

static size_t sequence_count(const rung *r)
{
    size_t n = 0;

    while (n < SEQUENCES_MAX && r->sequences[n].n_tok > 0)
        n++;
    return n;
}

static const rung *rung_at(size_t i)
{
    return i < N_RUNGS ? &rungs[i] : &check;
}

static cf_status data_open(calibration *c)
{
    cf_made_sequence all[N_SEQUENCES_MAX];
    size_t n = 0;

    for (size_t i = 0; i <= N_RUNGS; i++) {
        const rung *r = rung_at(i);

        c->first_sequence[i] = n;
        for (size_t s = 0; s < sequence_count(r); s++)
            all[n++] = r->sequences[s];
    }
    return cf_dataset_open_made(all, n, c->model.config.vocab, &c->dataset);
}

/* ---- a rung ---- */

static cf_status rung_bound(calibration *c, size_t index)
{
    const rung *r = rung_at(index);
    const size_t n = sequence_count(r);
    const cf_step_plan_params params = {
        .n_batch = n,
        .chunk_size_tok = r->chunk_tok,
        .schedule = {.n_stages = 1,
                     .retained_chunks_max = r->retained,
                     .kind = CF_SCHEDULE_STATE_AWARE}};
    uint32_t sequences[SEQUENCES_MAX];

    for (size_t i = 0; i < n; i++)
        sequences[i] = (uint32_t)(c->first_sequence[index] + i);
    c->rung = r;
    return cf_step_plan_bound(c->dataset, sequences, n, &params, &c->need);
}

static void rung_carve(calibration *c, cf_arena *arena)
{
    cf_step_plan_carve(&c->plan, &c->need, arena);
    cf_engine_carve(&c->engine, &c->model, &c->need.engine, c->rung->policy,
                    CF_GRADIENTS_YES, arena);
}

/* Room for the largest, all its pages real. */
static cf_status room_open(calibration *c)
{
    size_t bytes = 0;
    cf_status status;

    for (size_t i = 0; i <= N_RUNGS; i++) {
        cf_arena dry;

        status = rung_bound(c, i);
        if (status != CF_OK)
            return status;
        cf_arena_open_dry(&dry);
        rung_carve(c, &dry);
        if (dry.used > bytes)
            bytes = dry.used;
    }
    return cf_arena_open(bytes, &c->room);
}

static double pairs_of(const calibration *c, const cf_chunk *chunk)
{
    double sum = 0;

    for (uint32_t i = 0; i < chunk->n_pieces; i++) {
        const double n = c->plan.chunks.pieces[chunk->first_piece + i].n_tok;

        sum += n * chunk->prefix_tok + n * n / 2;
    }
    return sum;
}

/* Of the op that has ended: seconds by kind, those of all layers together. */
static void split(calibration *c, const cf_op *op, const double *kinds,
                  double all_s)
{
    const cf_chunk *chunk = &c->plan.chunks.chunks[op->chunk];
    const double n = chunk->n_tok, pairs = pairs_of(c, chunk);
    const bool is_backward = op->kind == CF_OP_BACKWARD;
    const double attention =
        kinds[CF_TIME_ATTENTION_FORWARD] + kinds[CF_TIME_ATTENTION_BACKWARD];
    const double linear = kinds[CF_TIME_GEMM_FORWARD] +
                          kinds[CF_TIME_GEMM_BACKWARD] + kinds[CF_TIME_NORMS] +
                          kinds[CF_TIME_ROPE_QKV] + kinds[CF_TIME_SWIGLU] +
                          kinds[CF_TIME_COPIES];
    const double rest = all_s - attention - linear - kinds[CF_TIME_HEAD];

    cf_calibration_append(&c->samples,
                          is_backward ? CF_TIMED_ATTENTION_BACKWARD
                                      : CF_TIMED_ATTENTION_FORWARD,
                          n, pairs, attention / n_layers(c));
    cf_calibration_append(&c->samples,
                          is_backward ? CF_TIMED_BACKWARD + (int)c->rung->policy
                                      : CF_TIMED_FORWARD,
                          n, 0, linear / n_layers(c));
    cf_calibration_append(&c->samples,
                          is_backward ? CF_TIMED_CHUNK_BACKWARD
                                      : CF_TIMED_CHUNK_FORWARD,
                          n, 0, rest);
    if (is_backward && c->engine.input.n_targets > 0)
        cf_calibration_append(&c->samples, CF_TIMED_HEAD,
                              c->engine.input.n_targets, 0,
                              kinds[CF_TIME_HEAD]);
}

/* An op of the list has run. */
static void op_done(void *context)
{
    calibration *c = context;
    const cf_op *op = &c->plan.schedule.ops[c->ops_done++];
    double kinds[CF_TIME_KINDS];

    for (int i = 0; i < CF_TIME_KINDS; i++)
        kinds[i] = c->times.step[i] - c->before[i];
    memcpy(c->before, c->times.step, sizeof(c->before));
    /* A dropped forward leaves out most of the last layer. */
    if (c->is_counted && op->kind != CF_OP_FORWARD)
        split(c, op, kinds, c->engine.span_s - c->engine.op_begin);
}

static cf_status ops_run(calibration *c)
{
    const cf_engine_batch batch = {
        .dataset = c->dataset,
        .sequences = c->plan.sequences,
        .step = 1,
        .loss_scale = 1 / (double)c->plan.target_tokens,
    };
    cf_op_ref where = {0};
    cf_status status;

    cf_op_times_begin_step(&c->times);
    cf_model_zero_gradients(&c->model);
    status = cf_engine_begin_step(&c->engine, &batch, &c->plan.chunks,
                                  &c->plan.schedule);
    memcpy(c->before, c->times.step, sizeof(c->before));
    c->ops_done = 0;
    if (status == CF_OK)
        status = cf_execute(&c->plan.chunks, &c->plan.schedule, 0,
                            &cf_engine_callbacks, &c->engine, &where);
    return status == CF_OK ? cf_engine_end_step(&c->engine) : status;
}

static cf_status rung_run(calibration *c, size_t index)
{
    cf_status status = rung_bound(c, index);

    if (status != CF_OK)
        return status;
    c->room.used = 0;
    memset(c->room.base, 0, c->room.capacity);
    rung_carve(c, &c->room);
    c->engine.times = &c->times;
    c->engine.observe = op_done;
    c->engine.observer = c;
    c->plan.n_batch = sequence_count(c->rung);
    for (size_t i = 0; i < c->plan.n_batch; i++)
        c->plan.batch[i] = (uint32_t)(c->first_sequence[index] + i);
    status = cf_step_plan_build(&c->plan, c->dataset, &c->need);
    return status == CF_OK ? ops_run(c) : status;
}

/* ---- all of them, as time allows ---- */

/* About what a rung costs, in a unit of its own. */
static double work_of(const calibration *c, const rung *r)
{
    const cf_forecast f = cf_forecast_flops(&c->model);
    const double share = (double)n_layers(c) / c->model.config.n_layers;
    double sum = 0;

    for (size_t i = 0; i < sequence_count(r); i++) {
        const double n = r->sequences[i].n_tok;

        sum +=
            share * (1 + f.linear_backward) * n * f.token_flop +
            share * 2 * n * n * f.pair_flop +
            (1 + f.linear_backward) * r->sequences[i].n_targets * f.target_flop;
    }
    return sum;
}

static double left_s(const calibration *c)
{
    return c->end_s - cf_clock_s();
}

/* Run rungs from the first on while they fit; *n_p: how many did. */
static cf_status pass_run(calibration *c, size_t *n_p)
{
    cf_calibration_begin_pass(&c->samples);
    for (size_t i = 0; i < *n_p; i++) {
        const double work = work_of(c, &rungs[i]);
        const double start = cf_clock_s();
        cf_status status;

        if (c->worked_s > 0 && (*n_p < N_RUNGS || i >= RUNGS_MIN) &&
            work * c->worked_s / c->work > left_s(c)) {
            *n_p = i;
            return CF_OK;
        }
        c->is_counted = i > 0;
        status = rung_run(c, i);
        if (status != CF_OK)
            return status;
        c->work += i > 0 ? work : 0;
        c->worked_s += i > 0 ? cf_clock_s() - start : 0;
    }
    return CF_OK;
}

static cf_status passes_run(calibration *c)
{
    size_t n = N_RUNGS;
    cf_status status = pass_run(c, &n);
    const size_t n_first = n;

    for (int i = 1; status == CF_OK && n == n_first && i < CF_TIMED_PASSES_MAX;
         i++)
        status = pass_run(c, &n);
    return status;
}

static double update_element_s(calibration *c)
{
    const double start = cf_clock_s();

    cf_model_zero_gradients(&c->model);
    cf_model_finish_gradients(&c->model);
    cf_model_norm_partials(&c->model);
    (void)cf_model_norm(&c->model);
    cf_optimizer_update(&c->model, c->options, 0, 1, 1);
    cf_model_pack(&c->model);
    return (cf_clock_s() - start) / (double)c->model.n_trained_elements;
}

/* ---- the costs ---- */

/* What the ops of the step that ran should take. */
static double predicted_s(const calibration *c, const cf_costs *costs)
{
    uint64_t n_tok = 0;
    cf_stage_cost stage;
    const cf_measured_cost cost = {.n_stages = 1, .stages = &stage};
    const cf_schedule *s = &c->plan.schedule;
    double sum = 0;

    for (size_t i = 0; i < c->plan.n_sequences; i++)
        n_tok += c->plan.len_tok[i];
    stage = cf_costs_stage(costs, &c->model, (cf_kept){c->rung->policy, false},
                           (double)c->plan.target_tokens / (double)n_tok);
    for (size_t i = s->first_op[0]; i < s->first_op[1]; i++)
        sum += cf_measured_cost_compute(&cost, &c->plan.chunks, 0, s->ops[i]);
    return sum;
}

/* At least once, and again while there is time. */
static cf_status check_run(calibration *c, cf_costs *costs)
{
    double measured_s[CHECKS], predicted = 0, off;
    int n = 0;

    c->is_counted = false;
    while (n == 0 || (n < CHECKS && left_s(c) > measured_s[n - 1])) {
        cf_status status = rung_run(c, N_RUNGS);

        if (status != CF_OK)
            return status;
        measured_s[n++] = c->engine.busy_s;
        predicted = predicted_s(c, costs);
    }
    qsort(measured_s, (size_t)n, sizeof(*measured_s), cf_seconds_ascending);
    off = fabs(predicted - measured_s[n / 2]) / measured_s[n / 2];
    costs->error =
        fmax(cf_calibration_fit_error(&c->samples, n_layers(c)), off);
    return CF_OK;
}

static cf_status measure(calibration *c, double budget_s, cf_costs *costs)
{
    cf_status status = model_open(c);

    c->begin_s = cf_clock_s();
    c->end_s = c->begin_s + (1 - CHECK_SHARE) * budget_s;
    if (status == CF_OK)
        status = weights_open(c);
    if (status == CF_OK)
        status = data_open(c);
    if (status == CF_OK)
        status = room_open(c);
    if (status == CF_OK)
        status = passes_run(c);
    if (status != CF_OK)
        return status;
    *costs = (cf_costs){.is_measured = true};
    cf_calibration_fit(&c->samples, &c->model.config, costs);
    (void)update_element_s(c); /* the moments become real */
    costs->update_element_s = update_element_s(c);
    c->end_s = c->begin_s + budget_s;
    return check_run(c, costs);
}

cf_status cf_calibrate(const cf_options *options, const cf_kernels *kernels,
                       double budget_s, cf_costs *costs_p)
{
    calibration *c = calloc(1, sizeof(*c));
    cf_costs costs;
    cf_status status;

    if (c == NULL)
        return cf_log_no_memory("a calibration");
    c->options = options;
    c->kernels = *kernels;
    cf_op_times_install(&c->times, &c->kernels);
    status = measure(c, budget_s, &costs);
    if (status == CF_OK)
        *costs_p = costs;
    cf_arena_close(&c->room);
    cf_arena_close(&c->weights);
    cf_dataset_close(c->dataset);
    cf_model_close(&c->model);
    free(c);
    return status;
}
