/* costs.c - see costs.h. */
#include "src/costs.h"

#include "src/activations.h"
#include "src/cost_fit.h"
#include "src/forecast.h"

/* What an op costs beside its tokens, in linear layers of one token: the weights
 * come from memory once more. */
#define OP_TOK 48.0

/* Between two ranks of one node, through shared memory. */
#define MESSAGE_S           5e-5
#define MESSAGE_BYTES_PER_S 4e9
#define SUM_BYTES_PER_S     2e9

const char *cf_recompute_str(cf_recompute recompute)
{
    static const char *const names[CF_RECOMPUTES] = {
        [CF_RECOMPUTE_NONE] = "none",
        [CF_RECOMPUTE_SELECTIVE] = "selective",
        [CF_RECOMPUTE_LAYER] = "layer",
    };

    return names[recompute];
}

double cf_costs_kv_share(const cf_model_config *config)
{
    const double n_q = (double)config->n_heads * config->head_dim;
    const double n_qkv =
        n_q + 2 * (double)config->n_kv_heads * config->head_dim;

    /* Each a multiple of the hidden size. */
    return n_qkv / (n_qkv + n_q + 3 * (double)config->ffn);
}

cf_costs cf_costs_built_in(const cf_model *model)
{
    const cf_forecast f = cf_forecast_flops(model);
    const double n_layers = model->config.n_layers;
    const double tok_s = f.token_flop / n_layers / CF_NOMINAL_FLOP_PER_S;
    const double pair_s = f.pair_flop / n_layers / CF_NOMINAL_FLOP_PER_S;
    const double target_s = f.target_flop / CF_NOMINAL_FLOP_PER_S;
    const double kv = cf_costs_kv_share(&model->config);
    cf_costs costs = {
        .forward = {.per_op = OP_TOK * tok_s,
                    .per_tok = tok_s,
                    .per_pair = pair_s},
        .attention = {.per_pair = pair_s},
        .forward_kv = {.per_op = kv * OP_TOK * tok_s, .per_tok = kv * tok_s},
        .head = {.per_tok = (1 + f.linear_backward) * target_s},
        .update_element_s = cf_forecast_update_element_s(model),
    };

    for (int policy = 0; policy < CF_RECOMPUTES; policy++) {
        const double linear =
            f.linear_backward + (policy == CF_RECOMPUTE_LAYER);

        costs.backward[policy] =
            (cf_cost_terms){.per_op = linear * OP_TOK * tok_s,
                            .per_tok = linear * tok_s,
                            .per_pair = CF_ATTENTION_BACKWARD * pair_s};
    }
    return costs;
}

cf_stage_cost cf_costs_stage(const cf_costs *costs, const cf_model *model,
                             cf_kept keep, double target_share)
{
    const cf_stage *stage = &model->stage;
    const double n_layers = stage->end_layer - stage->first_layer;
    const double n_backward = cf_n_backward_layers(model);
    const cf_cost_terms kept = cf_cost_terms_sum(
        cf_cost_terms_times(costs->forward, n_layers), costs->chunk_forward);
    cf_cost_terms dropped = kept, again = kept;
    cf_cost_terms backward =
        cf_cost_terms_times(costs->backward[keep.recompute], n_backward);

    if (keep.attention)
        again = cf_cost_terms_sum(
            kept, cf_cost_terms_times(costs->attention, -n_layers));
    if (n_backward > 0)
        backward = cf_cost_terms_sum(backward, costs->chunk_backward);
    if (stage->is_last) {
        cf_cost_terms head = costs->head;

        head.per_tok *= target_share;
        backward = cf_cost_terms_sum(backward, head);
        dropped = cf_cost_terms_sum(
            cf_cost_terms_times(costs->forward, n_layers - 1),
            cf_cost_terms_sum(costs->forward_kv, costs->chunk_forward));
        if (keep.attention)
            dropped = cf_cost_terms_sum(dropped, costs->attention);
    }
    return (cf_stage_cost){.terms = {[CF_OP_FORWARD] = dropped,
                                     [CF_OP_FORWARD_KEEP] = kept,
                                     [CF_OP_RECOMPUTE] = again,
                                     [CF_OP_BACKWARD] = backward}};
}

cf_cost_terms cf_costs_message(const cf_model *model)
{
    const double tok_bytes =
        (double)model->config.hidden * (double)model->kernels->acc_bytes;

    return (cf_cost_terms){.per_op = MESSAGE_S,
                           .per_tok = tok_bytes / MESSAGE_BYTES_PER_S};
}

/* Moments are sharded: a replica updates its part, and the others' weights come
 * to it as its gradients went to them. */
double cf_costs_step_end_s(const cf_costs *costs, const cf_model *model,
                           uint32_t n_replicas)
{
    const double n = (double)model->n_trained_elements;
    const double moved = 2 * n * (double)model->kernels->acc_bytes *
                         (n_replicas - 1) / n_replicas;

    return n * costs->update_element_s / n_replicas + moved / SUM_BYTES_PER_S;
}
