/* calibration_samples.c - see calibration_samples.h. */
#include "src/calibration_samples.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void cf_calibration_begin_pass(cf_calibration_samples *samples)
{
    memset(samples->n_ops, 0, sizeof(samples->n_ops));
}

void cf_calibration_append(cf_calibration_samples *samples, int part,
                           double n_tok, double n_pairs, double seconds)
{
    cf_timed_op *op = &samples->ops[part][samples->n_ops[part]];

    assert(samples->n_ops[part] < CF_TIMED_OPS_MAX &&
           op->n < CF_TIMED_PASSES_MAX);
    op->n_tok = n_tok;
    op->n_pairs = n_pairs;
    op->seconds[op->n++] = fmax(seconds, 0);
    samples->n_ops[part]++;
}

int cf_seconds_ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void medians_take(cf_calibration_samples *samples, int part)
{
    cf_cost_sample *medians = samples->medians[part];
    size_t n = 0;

    for (size_t i = 0; i < CF_TIMED_OPS_MAX; i++) {
        cf_timed_op *op = &samples->ops[part][i];

        if (op->n == 0)
            continue;
        qsort(op->seconds, op->n, sizeof(*op->seconds), cf_seconds_ascending);
        medians[n++] = (cf_cost_sample){op->n_tok, op->n_pairs,
                                        op->seconds[(op->n - 1) / 2]};
    }
    samples->n_medians[part] = n;
}

static cf_cost_terms fit_of(const cf_calibration_samples *samples, int part)
{
    return cf_cost_fit(samples->medians[part], samples->n_medians[part]);
}

void cf_calibration_fit(cf_calibration_samples *samples,
                        const cf_model_config *config, cf_costs *costs)
{
    cf_cost_terms forward, backward;

    for (int part = 0; part < CF_TIMED_PARTS; part++)
        medians_take(samples, part);
    forward = fit_of(samples, CF_TIMED_FORWARD);
    backward = fit_of(samples, CF_TIMED_ATTENTION_BACKWARD);
    costs->attention = fit_of(samples, CF_TIMED_ATTENTION_FORWARD);
    costs->forward = cf_cost_terms_sum(forward, costs->attention);
    costs->forward_kv = cf_cost_terms_times(forward, cf_costs_kv_share(config));
    for (int i = 0; i < CF_RECOMPUTES; i++)
        costs->backward[i] =
            cf_cost_terms_sum(fit_of(samples, CF_TIMED_BACKWARD + i), backward);
    costs->head = fit_of(samples, CF_TIMED_HEAD);
    costs->chunk_forward = fit_of(samples, CF_TIMED_CHUNK_FORWARD);
    costs->chunk_backward = fit_of(samples, CF_TIMED_CHUNK_BACKWARD);
}

static bool is_of_layers(int part)
{
    return part != CF_TIMED_HEAD && part != CF_TIMED_CHUNK_FORWARD &&
           part != CF_TIMED_CHUNK_BACKWARD;
}

double cf_calibration_fit_error(const cf_calibration_samples *samples,
                                double n_layers)
{
    double off = 0, all = 0;

    for (int part = 0; part < CF_TIMED_PARTS; part++) {
        const cf_cost_terms terms = fit_of(samples, part);
        const double times = is_of_layers(part) ? n_layers : 1;

        for (size_t i = 0; i < samples->n_medians[part]; i++) {
            const cf_cost_sample *s = &samples->medians[part][i];
            const double fitted = cf_cost_terms_s(&terms, s->n_tok, s->n_pairs);

            off += times * fabs(s->seconds - fitted);
            all += times * s->seconds;
        }
    }
    return all > 0 ? off / all : 0;
}
