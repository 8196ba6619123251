/* optimizer.c - see optimizer.h. */
#include "src/optimizer.h"

#include <math.h>

double cf_learning_rate(const cf_options *options, uint64_t step,
                        uint64_t n_steps)
{
    const double peak = options->learning_rate;
    const double floor_rate = options->min_learning_rate;
    const uint64_t warmup = options->warmup_steps;
    double t;

    if (step <= warmup)
        return peak * (double)step / (double)warmup;
    t = (double)(step - warmup) / (double)(n_steps - warmup);
    switch (options->lr_schedule) {
    case CF_LR_CONSTANT:
        break;
    case CF_LR_LINEAR:
        return peak + (floor_rate - peak) * t;
    case CF_LR_COSINE:
        return floor_rate + (peak - floor_rate) * (1 + cos(M_PI * t)) / 2;
    }
    return peak;
}

double cf_clip_coefficient(double norm, double max_norm)
{
    double coefficient = max_norm / (norm + 1e-6);

    return max_norm > 0 && coefficient < 1 ? coefficient : 1;
}

void cf_optimizer_update(cf_model *model, const cf_options *options,
                         double learning_rate, double clip_coefficient,
                         uint64_t n_updates)
{
    const cf_kernels *k = model->kernels;
    cf_adamw_params adamw = {
        .learning_rate = learning_rate,
        .beta1 = options->adam_beta1,
        .beta2 = options->adam_beta2,
        .eps = options->adam_eps,
        .correction1 = 1 - pow(options->adam_beta1, (double)n_updates),
        .correction2 = 1 - pow(options->adam_beta2, (double)n_updates),
        .g_scale = clip_coefficient,
    };

    for (size_t i = 0; i < model->n_params; i++) {
        const cf_param *p = &model->params[i];
        const cf_extent part = cf_model_shard_of(model, p);
        const size_t from = part.first * k->acc_bytes;

        if (part.n == 0)
            continue;
        /* Vectors (norms, biases) are not decayed. */
        adamw.weight_decay = p->n_dims >= 2 ? options->weight_decay : 0;
        k->adamw(k, part.n, &adamw,
                 cf_at(cf_model_at(model, model->gradients, p), from),
                 cf_at(cf_model_at(model, model->masters, p), from),
                 cf_model_moment_at(model, model->moment1, p),
                 cf_model_moment_at(model, model->moment2, p));
    }
}
