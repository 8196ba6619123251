/* rehearsal_bytes.c - see rehearsal_bytes.h. */
#include "src/rehearsal_bytes.h"

#include "src/activations.h"
#include "src/arena.h"
#include "src/forecast.h"
#include "src/log.h"
#include "src/model.h"
#include "src/stage_split.h"

/* The tokens that a slot has room for: chunks are no longer, nor, where they are
 * whole sequences, are these. */
static uint32_t slot_tok(const cf_rehearsal_input *input)
{
    uint64_t sum = 0;
    uint32_t longest = 1;

    for (size_t i = 0; i < input->n_sequences; i++) {
        sum += input->len_tok[i];
        if (longest < input->len_tok[i])
            longest = input->len_tok[i];
    }
    if (cf_rehearsal_is_whole(input))
        return longest;
    return sum < input->chunk_size_tok ? (uint32_t)sum : input->chunk_size_tok;
}

/* As the engine would lay it out. */
static size_t slot_bytes(const cf_model *model, cf_recompute policy,
                         uint32_t n_tok)
{
    cf_activations acts;
    cf_arena sizes;

    cf_arena_open_dry(&sizes);
    cf_activations_carve(&acts, model, policy, 1, n_tok, &sizes);
    return acts.slot_bytes;
}

static void stage_bytes(const cf_options *options, const cf_model *model,
                        uint32_t n_tok, const cf_stage_peak *peak,
                        cf_stage_bytes *bytes)
{
    const cf_model_config *c = &model->config;
    const cf_kernels *k = model->kernels;
    const uint64_t n_layers = model->stage.end_layer - model->stage.first_layer;
    const uint64_t kv_tok_bytes = 2 * n_layers * c->n_kv_heads * c->head_dim *
                                  (k->act_bytes + k->acc_bytes);

    *bytes = (cf_stage_bytes){
        .first_layer = model->stage.first_layer,
        .end_layer = model->stage.end_layer,
        .kept =
            peak->kept_chunks * slot_bytes(model, options->recompute, n_tok),
        .kv = peak->kv_tok * kv_tok_bytes,
        .input = peak->input_tok * c->hidden * k->acc_bytes,
    };
}

static cf_status split(const cf_options *options,
                       const cf_rehearsal_input *input,
                       const cf_rehearsal *rehearsal, cf_model *model,
                       cf_stage_bytes *bytes)
{
    const uint32_t n_stages = input->params.n_stages;
    const cf_stage_costs costs =
        cf_forecast_stage_costs_of(model, input->len_tok, input->n_sequences);
    const uint32_t n_tok = slot_tok(input);

    for (uint32_t s = 0; s < n_stages; s++) {
        cf_stage stage;
        cf_status status =
            cf_stage_split(model->config.n_layers, n_stages,
                           options->layers_per_stage, costs, s, &stage);

        if (status != CF_OK)
            return status;
        cf_model_take_stage(model, &stage);
        stage_bytes(options, model, n_tok, &rehearsal->peaks[s], &bytes[s]);
    }
    return CF_OK;
}

cf_status cf_rehearsal_bytes(const cf_options *options,
                             const cf_rehearsal_input *input,
                             const cf_rehearsal *rehearsal,
                             cf_stage_bytes *bytes)
{
    const char *why = "";
    cf_kernels kernels;
    cf_model model;
    cf_status status = cf_cpu_kernels(options->compute, &kernels, &why);

    if (status != CF_OK) {
        cf_log_error("the CPU backend cannot run: %s", why);
        return status;
    }
    status = cf_model_open(options->model, &kernels, &model);
    if (status != CF_OK)
        return status;
    status = split(options, input, rehearsal, &model, bytes);
    cf_model_close(&model);
    return status;
}
