/* rope.c - rotary frequencies, as transformers' ROPE_INIT_FUNCTIONS have them.
 *
 * (1) All in double: transformers forms these in float32, which at position 1M
 *     already moves an angle by more than 0.01.
 */
#include "src/model_config.h"

#include <assert.h>
#include <math.h>

static const double PI = 3.14159265358979323846;

/* Wavelengths beyond the original context are stretched by factor, short ones
 * stay, those between are blended (Llama 3.1). */
static double llama3_frequency(const cf_rope_config *rope, double inv_freq)
{
    double turns = rope->original_max_position * inv_freq / (2 * PI);
    double smooth;

    if (turns < rope->low_freq_factor)
        return inv_freq / rope->factor;
    if (turns > rope->high_freq_factor)
        return inv_freq;
    smooth = (turns - rope->low_freq_factor) /
             (rope->high_freq_factor - rope->low_freq_factor);
    return (1 - smooth) * inv_freq / rope->factor + smooth * inv_freq;
}

/* The dimension that makes so many turns within the original context. */
static double yarn_dim(const cf_rope_config *rope, double head_dim,
                       double turns)
{
    return head_dim * log(rope->original_max_position / (turns * 2 * PI)) /
           (2 * log(rope->theta));
}

/* A ramp over the dimensions, from keeping the frequency (fast ones) to
 * dividing it by factor (slow ones). */
static void yarn_frequencies(const cf_rope_config *rope, uint32_t head_dim,
                             double *inv_freq)
{
    double low = yarn_dim(rope, head_dim, rope->beta_fast);
    double high = yarn_dim(rope, head_dim, rope->beta_slow);

    if (rope->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, head_dim - 1.0);
    if (low == high)
        high += 0.001;
    for (uint32_t i = 0; i < head_dim / 2; i++) {
        double ramp = fmin(fmax((i - low) / (high - low), 0), 1);

        inv_freq[i] =
            inv_freq[i] / rope->factor * ramp + inv_freq[i] * (1 - ramp);
    }
}

void cf_rope_frequencies(const cf_rope_config *rope, uint32_t head_dim,
                         double *inv_freq, double *factor_p)
{
    assert(head_dim % 2 == 0);

    for (uint32_t i = 0; i < head_dim / 2; i++)
        inv_freq[i] = 1 / pow(rope->theta, 2.0 * i / head_dim);

    switch (rope->kind) {
    case CF_ROPE_DEFAULT:
        break;
    case CF_ROPE_LINEAR:
        for (uint32_t i = 0; i < head_dim / 2; i++)
            inv_freq[i] /= rope->factor;
        break;
    case CF_ROPE_LLAMA3:
        for (uint32_t i = 0; i < head_dim / 2; i++)
            inv_freq[i] = llama3_frequency(rope, inv_freq[i]);
        break;
    case CF_ROPE_YARN:
        yarn_frequencies(rope, head_dim, inv_freq);
        break;
    }
    *factor_p = rope->attention_factor;
}
