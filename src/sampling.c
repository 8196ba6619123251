/* sampling.c - see sampling.h.
 *
 * The fewest and likeliest are taken off a heap, so that a vocabulary is never
 * sorted for the handful of tokens that matter.
 */
#include "src/sampling.h"

#include <math.h>
#include <stdbool.h>

#include "src/hash.h"

/* Of equals the first one. */
static bool is_before(const cf_candidate *a, const cf_candidate *b)
{
    return a->logit > b->logit ||
           (!(a->logit < b->logit) && a->token < b->token);
}

static size_t likeliest(size_t n, const cf_candidate *candidates)
{
    size_t best = 0;

    for (size_t i = 1; i < n; i++)
        if (is_before(&candidates[i], &candidates[best]))
            best = i;
    return best;
}

/* Logits become weights, exp((logit - max) / temperature); returns their sum. */
static double weigh(size_t n, cf_candidate *candidates, double temperature)
{
    const double max = candidates[likeliest(n, candidates)].logit;
    double sum = 0;

    for (size_t i = 0; i < n; i++) {
        candidates[i].logit = exp((candidates[i].logit - max) / temperature);
        sum += candidates[i].logit;
    }
    return sum;
}

/* ---- the fewest and likeliest ---- */

static void swap(cf_candidate *a, cf_candidate *b)
{
    const cf_candidate c = *a;

    *a = *b;
    *b = c;
}

/* Below `at` all is a heap; now at `at` too. */
static void sift_down(size_t n, cf_candidate *heap, size_t at)
{
    for (;;) {
        size_t child = 2 * at + 1;

        if (child >= n)
            return;
        if (child + 1 < n && is_before(&heap[child + 1], &heap[child]))
            child++;
        if (!is_before(&heap[child], &heap[at]))
            return;
        swap(&heap[child], &heap[at]);
        at = child;
    }
}

/* Move them to the end of the array, until they weigh `least`.  Returns where
 * they begin; in *sum_p what they weigh. */
static size_t take_likeliest(size_t n, cf_candidate *candidates, double least,
                             double *sum_p)
{
    size_t first = n;
    double sum = 0;

    for (size_t at = n / 2; at-- > 0;)
        sift_down(n, candidates, at);
    do {
        first--;
        swap(&candidates[0], &candidates[first]);
        sift_down(first, candidates, 0);
        sum += candidates[first].logit;
    } while (sum < least && first > 0);
    *sum_p = sum;
    return first;
}

/* ---- the draw ---- */

/* From 0 to below 1. */
static double uniform(uint64_t seed, uint64_t position)
{
    return (double)(cf_hash_of(&position, sizeof(position), seed) >> 11) *
           0x1p-53;
}

uint32_t cf_sampling_choose(const cf_sampling *sampling, size_t n,
                            cf_candidate *candidates, uint64_t position)
{
    size_t first = 0, last = n - 1;
    double sum, left;

    if (!(sampling->temperature > 0))
        return candidates[likeliest(n, candidates)].token;
    sum = weigh(n, candidates, sampling->temperature);
    if (sampling->top_p < 1)
        first = take_likeliest(n, candidates, sampling->top_p * sum, &sum);
    left = uniform(sampling->seed, position) * sum;
    /* Rounding may leave a little: one that weighs nothing is never drawn. */
    while (last > first && !(candidates[last].logit > 0))
        last--;
    for (size_t i = first; i < last; i++) {
        left -= candidates[i].logit;
        if (left < 0)
            return candidates[i].token;
    }
    return candidates[last].token;
}
