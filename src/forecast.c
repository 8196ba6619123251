/* forecast.c - see forecast.h. */
#include "src/forecast.h"

#include <stdio.h>

#include "src/adapter.h"
#include "src/clock.h"
#include "src/machine.h"
#include "src/size.h"

/* How much slower than a GEMM the other parts were, measured on two processors:
 * attention by flop, and norms, SwiGLU and rotations as a share of the linear
 * layers. */
#define ATTENTION_SLOWNESS 1.4
#define ELEMENTWISE_SHARE  1.15

/* A backward, in forwards. */
#define LINEAR_BACKWARD 2.0
#define FROZEN_BACKWARD 1.0 /* of the input only */

/* The optimizer reads gradient, weight and moments, writes three of them, and
 * the norm and the clearing pass over the gradients again. */
#define UPDATE_ELEMENTS_MOVED 10.0
#define UPDATE_BYTES_PER_S    8e9

#define MEASURE_S 0.05

enum {
    GEMM_TOK = 256, /* the GEMM that is timed: large enough to be typical */
    GEMM_WIDTH_MAX = 1024,
    WALK_STEPS_MAX = 4096 /* more steps are told from these */
};

/* ---- the machine ---- */

static size_t width_of(uint32_t n)
{
    return n < GEMM_WIDTH_MAX ? n : GEMM_WIDTH_MAX;
}

/* Forwards of one linear layer until the time is up; the first, which wakes the
 * threads, is not timed. */
static double gemm_flop_per_s(const cf_kernels *k, const cf_weight *w,
                              const void *x, void *y, void *scratch)
{
    const double flop = 2.0 * GEMM_TOK * (double)w->n_out * (double)w->n_in;
    double start, took;
    size_t n = 0;

    k->linear_forward(k, w, GEMM_TOK, x, y, scratch);
    start = cf_clock_s();
    do {
        k->linear_forward(k, w, GEMM_TOK, x, y, scratch);
        n++;
        took = cf_clock_s() - start;
    } while (took < MEASURE_S);
    return flop * (double)n / took;
}

static void carve_gemm(const cf_kernels *k, cf_weight *w, void **x_p,
                       void **y_p, void **scratch_p, cf_arena *arena)
{
    static const char what[] = "one GEMM";

    w->master = cf_arena_take(arena, CF_LIFETIME_OP, what, w->n_out * w->n_in,
                              k->acc_bytes);
    w->packed = NULL;
    if (k->weight_packed_bytes(k, w->n_out, w->n_in) > 0)
        w->packed =
            cf_arena_take(arena, CF_LIFETIME_OP, what,
                          k->weight_packed_bytes(k, w->n_out, w->n_in), 1);
    *x_p = cf_arena_take(arena, CF_LIFETIME_OP, what, GEMM_TOK * w->n_in,
                         k->act_bytes);
    *y_p = cf_arena_take(arena, CF_LIFETIME_OP, what, GEMM_TOK * w->n_out,
                         k->act_bytes);
    *scratch_p = cf_arena_take(
        arena, CF_LIFETIME_OP, what,
        k->linear_scratch_bytes(k, GEMM_TOK, w->n_out, w->n_in), 1);
}

static cf_status machine_measure(const cf_model *model, double *flop_per_s_p)
{
    const cf_kernels *k = model->kernels;
    cf_weight w = {.n_out = width_of(2 * model->config.ffn),
                   .n_in = width_of(model->config.hidden)};
    cf_arena arena;
    void *x, *y, *scratch;
    cf_status status;

    cf_arena_open_dry(&arena);
    carve_gemm(k, &w, &x, &y, &scratch, &arena);
    status = cf_machine_check_gemm();
    if (status == CF_OK)
        status = cf_arena_open(arena.used, &arena);
    if (status != CF_OK)
        return status;
    carve_gemm(k, &w, &x, &y, &scratch, &arena);
    k->weight_pack(k, &w);
    *flop_per_s_p = gemm_flop_per_s(k, &w, x, y, scratch);
    cf_arena_close(&arena);
    return CF_OK;
}

/* ---- costs ---- */

static double adapter_elements(const cf_model *model)
{
    double n = 0;

    for (size_t i = model->n_folder_params; i < model->n_params; i++)
        n += (double)model->params[i].n;
    return n;
}

cf_forecast cf_forecast_flops(const cf_model *model)
{
    const cf_model_config *c = &model->config;
    const double hidden = c->hidden, layers = c->n_layers;
    const double n_q = (double)c->n_heads * c->head_dim;
    const double n_kv = (double)c->n_kv_heads * c->head_dim;
    const double weights =
        hidden * (2 * n_q + 2 * n_kv) + 3 * hidden * (double)c->ffn;

    return (cf_forecast){
        .token_flop = 2 * (weights * layers + adapter_elements(model)) *
                      ELEMENTWISE_SHARE,
        .linear_backward =
            cf_model_has_adapter(model) ? FROZEN_BACKWARD : LINEAR_BACKWARD,
        .target_flop = 2 * hidden * (double)c->vocab,
        .pair_flop = 4 * n_q * layers * ATTENTION_SLOWNESS,
        .trained = (layers - model->first_backward_layer) / layers,
    };
}

double cf_forecast_update_element_s(const cf_model *model)
{
    return UPDATE_ELEMENTS_MOVED * (double)model->kernels->acc_bytes /
           UPDATE_BYTES_PER_S;
}

cf_status cf_forecast_open(const cf_model *model, const cf_step_plan_need *need,
                           cf_recompute policy, uint32_t n_ranks,
                           cf_forecast *forecast)
{
    const uint64_t retained =
        (uint64_t)need->chunk_size_tok * need->params.retained_chunks_max;
    cf_status status;

    *forecast = cf_forecast_flops(model);
    forecast->linear_again = policy == CF_RECOMPUTE_LAYER;
    forecast->attention_again = need->engine.keep_attention ? 0 : 1;
    forecast->retained_tok =
        retained < UINT32_MAX ? (uint32_t)retained : UINT32_MAX;
    forecast->update_s =
        (double)model->n_trained_elements * cf_forecast_update_element_s(model);
    status = machine_measure(model, &forecast->flop_per_s);
    forecast->flop_per_s *= n_ranks;
    return status;
}

/* Queries times keys that they see. */
static double pairs(double n_tok)
{
    return n_tok * (n_tok + 1) / 2;
}

static double forward_flop(const cf_forecast *f, double n_tok)
{
    return n_tok * f->token_flop + pairs(n_tok) * f->pair_flop;
}

static double recompute_flop(const cf_forecast *f, double n_tok)
{
    return n_tok * f->token_flop +
           pairs(n_tok) * f->pair_flop * f->attention_again;
}

/* Forward, backward, and the forward again of what was not retained. */
static double training_flop(const cf_forecast *f, uint32_t len_tok,
                            uint32_t n_targets)
{
    const double n = len_tok;
    const double again =
        len_tok > f->retained_tok ? n - (double)f->retained_tok : 0;
    const double backward =
        n * f->token_flop * (f->linear_backward + f->linear_again) +
        pairs(n) * f->pair_flop * CF_ATTENTION_BACKWARD;

    return forward_flop(f, n) + recompute_flop(f, again) +
           f->trained * backward +
           (1 + f->linear_backward) * f->target_flop * (double)n_targets;
}

double cf_forecast_step_s(const cf_forecast *forecast,
                          const cf_dataset *dataset, const uint32_t *sequences,
                          size_t n)
{
    const uint32_t *len_tok = cf_dataset_lengths(dataset);
    const uint32_t *targets = cf_dataset_target_counts(dataset);
    double flop = 0;

    for (size_t i = 0; i < n; i++)
        if (targets[sequences[i]] > 0)
            flop += training_flop(forecast, len_tok[sequences[i]],
                                  targets[sequences[i]]);
    return flop / forecast->flop_per_s + forecast->update_s;
}

double cf_forecast_sequence_flop(const cf_forecast *forecast, uint32_t len_tok,
                                 uint32_t n_targets)
{
    return n_targets > 0 ? training_flop(forecast, len_tok, n_targets) : 0;
}

double cf_forecast_op_flop(const cf_forecast *forecast, const cf_chunk *chunk,
                           cf_op_kind kind, bool has_head)
{
    const double n = chunk->n_tok;
    const double linear = n * forecast->token_flop;
    const double attention =
        (n * chunk->prefix_tok + pairs(n)) * forecast->pair_flop;
    const double head =
        has_head ? (1 + LINEAR_BACKWARD) * forecast->target_flop * n : 0;

    switch (kind) {
    case CF_OP_FORWARD:
    case CF_OP_FORWARD_KEEP:
        return linear + attention;
    case CF_OP_RECOMPUTE:
        return linear + attention * forecast->attention_again;
    case CF_OP_BACKWARD:
        return linear * (LINEAR_BACKWARD + forecast->linear_again) +
               attention * CF_ATTENTION_BACKWARD + head;
    default:
        return 0; /* a message */
    }
}

/* Sums over the data that is trained on. */
typedef struct data_sums {
    double n_tok;
    double n_pairs;
    double n_targets;
} data_sums;

static void add_sequence(data_sums *sums, uint32_t len_tok, uint32_t n_targets)
{
    if (n_targets == 0)
        return;
    sums->n_tok += len_tok;
    sums->n_pairs += pairs(len_tok);
    sums->n_targets += n_targets;
}

static cf_stage_costs stage_costs(const cf_model *model, data_sums sums)
{
    const cf_forecast f = cf_forecast_flops(model);
    const double n_tok = sums.n_tok > 0 ? sums.n_tok : 1;

    return (cf_stage_costs){
        .layer =
            (f.token_flop * (1 + f.linear_backward) +
             f.pair_flop * (1 + CF_ATTENTION_BACKWARD) * sums.n_pairs / n_tok) /
            model->config.n_layers,
        .head =
            f.target_flop * (1 + f.linear_backward) * sums.n_targets / n_tok,
    };
}

cf_stage_costs cf_forecast_stage_costs(const cf_model *model,
                                       const cf_dataset *dataset)
{
    data_sums sums = {0};

    for (size_t i = 0; i < cf_dataset_count(dataset); i++)
        add_sequence(&sums, cf_dataset_lengths(dataset)[i],
                     cf_dataset_target_counts(dataset)[i]);
    return stage_costs(model, sums);
}

cf_stage_costs cf_forecast_stage_costs_of(const cf_model *model,
                                          const uint32_t *len_tok, size_t n)
{
    data_sums sums = {0};

    for (size_t i = 0; i < n; i++)
        add_sequence(&sums, len_tok[i], len_tok[i] - 1);
    return stage_costs(model, sums);
}

double cf_forecast_evaluation_s(const cf_forecast *forecast,
                                const cf_dataset *dataset,
                                const uint32_t *sequences, size_t n)
{
    const uint32_t *len_tok = cf_dataset_lengths(dataset);
    const uint32_t *targets = cf_dataset_target_counts(dataset);
    double flop = 0;

    for (size_t i = 0; i < n; i++)
        if (targets[sequences[i]] > 0)
            flop += forward_flop(forecast, len_tok[sequences[i]]) +
                    forecast->target_flop * (double)targets[sequences[i]];
    return flop / forecast->flop_per_s;
}

/* ---- the run ---- */

void cf_forecast_add_steps(cf_forecast *forecast, const cf_batches *batches,
                           uint64_t first_step, uint64_t last_step,
                           uint32_t *scratch)
{
    const uint64_t n =
        last_step + 1 > first_step ? last_step + 1 - first_step : 0;
    const uint64_t n_walked = n < WALK_STEPS_MAX ? n : WALK_STEPS_MAX;
    double walked_s = 0;

    for (uint64_t i = 0; i < n_walked; i++)
        walked_s +=
            cf_forecast_step_s(forecast, batches->dataset, scratch,
                               cf_batches_at(batches, first_step + i, scratch));
    if (n_walked == 0)
        return;
    walked_s *= (double)n / (double)n_walked;
    forecast->n_steps += n;
    forecast->steps_s += walked_s;
    cf_forecast_add(forecast, walked_s);
}

void cf_forecast_add(cf_forecast *forecast, double forecast_s)
{
    forecast->run_s += forecast_s;
}

void cf_forecast_pass(cf_forecast *forecast, double forecast_s,
                      double measured_s)
{
    forecast->passed_s += forecast_s;
    forecast->measured_s += measured_s;
}

static double correction(const cf_forecast *forecast)
{
    return forecast->passed_s > 0 ? forecast->measured_s / forecast->passed_s
                                  : 1;
}

double cf_forecast_remaining_after_s(const cf_forecast *forecast,
                                     double forecast_s)
{
    const double rest_s = forecast->run_s - forecast->passed_s - forecast_s;

    return rest_s > 0 ? rest_s * correction(forecast) : 0;
}

double cf_forecast_remaining_s(const cf_forecast *forecast)
{
    return cf_forecast_remaining_after_s(forecast, 0);
}

const char *cf_forecast_format(const cf_forecast *forecast, char *buf,
                               size_t size)
{
    const double n_steps =
        forecast->n_steps > 0 ? (double)forecast->n_steps : 1;
    const double step_s = forecast->steps_s / n_steps * correction(forecast);
    char step[32], rest[32];

    if (step_s < 10)
        (void)snprintf(step, sizeof(step), "%.2g s", step_s);
    else
        (void)cf_time_format(step_s, step, sizeof(step));
    (void)snprintf(
        buf, size, "about %s a step, %s to the end", step,
        cf_time_format(cf_forecast_remaining_s(forecast), rest, sizeof(rest)));
    return buf;
}
