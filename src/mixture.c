/* mixture.c - how an epoch draws from several --data (mixture.h).
 *
 * (1) The places of an epoch are laid out part by part, n_drawn for each, and
 *     shuffled as a whole; the k-th place of a part in epoch e is step
 *     e * n_drawn + k of its walk.
 * (2) Without weights there is one part, drawn once: the order is the one of
 *     order.h over all sequences.
 */
#include "src/mixture.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/log.h"
#include "src/order.h"

/* ---- weights ---- */

static cf_status refuse_weights(const char *text, size_t n_parts)
{
    cf_log_error("--data-weights: \"%.100s\" is not a list of %zu positive "
                 "numbers such as 3,1: one for each --data",
                 text, n_parts);
    return CF_INVALID;
}

/* Decimal only: strtod would also take hexadecimal, inf and nan. */
static cf_status weights_parse(const char *text, double *weights, size_t n)
{
    const char *at = text;

    if (text[strspn(text, "0123456789.eE+-, ")] != '\0')
        return refuse_weights(text, n);
    for (size_t i = 0; i < n; i++) {
        char *end;

        weights[i] = strtod(at, &end);
        end += strspn(end, " ");
        if (end == at || !isfinite(weights[i]) || !(weights[i] > 0) ||
            *end != (i + 1 < n ? ',' : '\0'))
            return refuse_weights(text, n);
        at = end + 1;
    }
    return CF_OK;
}

/* ---- shares of an epoch ---- */

/* Each part gets its share rounded down, and those with the largest rest one
 * more until the epoch is full; of equal rests the first. */
static void shares_set(cf_mixture *mixture, const double *weights, double *rest)
{
    double sum = 0;
    uint64_t left = mixture->n;

    for (size_t i = 0; i < mixture->n_parts; i++)
        sum += weights[i];
    for (size_t i = 0; i < mixture->n_parts; i++) {
        const double share = (double)mixture->n * (weights[i] / sum);
        uint64_t whole = (uint64_t)share;

        whole = whole < left ? whole : left;
        mixture->parts[i].n_drawn = whole;
        rest[i] = share - (double)whole;
        left -= whole;
    }
    for (; left > 0; left--) {
        size_t most = 0;

        for (size_t i = 1; i < mixture->n_parts; i++)
            most = rest[i] > rest[most] ? i : most;
        mixture->parts[most].n_drawn++;
        rest[most] -= 1;
    }
}

static cf_status shares_check(const cf_mixture *mixture)
{
    for (size_t i = 0; i < mixture->n_parts; i++) {
        const cf_mixture_part *part = &mixture->parts[i];

        if (part->n == 0) {
            cf_log_error("--data-weights: --data number %zu has no sequence "
                         "within --max-length to draw: leave it out",
                         i + 1);
            return CF_MALFORMED;
        }
        if (part->n_drawn == 0) {
            cf_log_error(
                "--data-weights: the weight of --data number %zu gives "
                "it none of the %" PRIu64 " sequences of an epoch: "
                "raise it, or leave this data out",
                i + 1, mixture->n);
            return CF_INVALID;
        }
    }
    return CF_OK;
}

static cf_status weights_apply(cf_mixture *mixture, const char *text)
{
    const size_t n = mixture->n_parts;
    double *weights = calloc(2 * n, sizeof(*weights));
    cf_status status;

    if (weights == NULL)
        return CF_NO_MEMORY;
    status = weights_parse(text, weights, n);
    if (status == CF_OK)
        shares_set(mixture, weights, weights + n);
    if (status == CF_OK)
        status = shares_check(mixture);
    free(weights);
    return status;
}

/* ---- the mixture ---- */

cf_status cf_mixture_open(const size_t *part_sequences, size_t n_parts,
                          const char *weights, cf_mixture *mixture)
{
    uint64_t place = 0;
    cf_status status = CF_OK;

    mixture->n_parts = weights != NULL ? n_parts : 1;
    mixture->n = 0;
    mixture->parts = calloc(mixture->n_parts, sizeof(*mixture->parts));
    if (mixture->parts == NULL)
        status = CF_NO_MEMORY;
    for (size_t i = 0; status == CF_OK && i < n_parts; i++) {
        cf_mixture_part *part = &mixture->parts[weights != NULL ? i : 0];

        if (part->n == 0)
            part->first = mixture->n;
        part->n += part_sequences[i];
        part->n_drawn = part->n;
        mixture->n += part_sequences[i];
    }
    if (status == CF_OK && weights != NULL)
        status = weights_apply(mixture, weights);
    if (status == CF_NO_MEMORY)
        (void)cf_log_no_memory("the shares of --data");
    if (status != CF_OK) {
        cf_mixture_close(mixture);
        return status;
    }
    for (size_t i = 0; i < mixture->n_parts; i++) {
        mixture->parts[i].first_place = place;
        place += mixture->parts[i].n_drawn;
    }
    return CF_OK;
}

void cf_mixture_close(cf_mixture *mixture)
{
    free(mixture->parts);
    *mixture = (cf_mixture){0};
}

/* The walk of a part at a step, counted over all epochs. */
static size_t walk_at(const cf_mixture *mixture, size_t part, uint64_t step)
{
    const cf_mixture_part *p = &mixture->parts[part];
    const uint64_t round = step / p->n;
    uint64_t index = step % p->n;

    /* Parts of one size must not walk alike. */
    if (mixture->shuffle)
        index =
            cf_order_shuffled(mixture->seed + 0x9e3779b97f4a7c15 * (part + 1),
                              round, p->n, index);
    return p->first + index;
}

size_t cf_mixture_at(const cf_mixture *mixture, uint64_t epoch, uint64_t place)
{
    size_t part = mixture->n_parts - 1;

    if (mixture->shuffle)
        place = cf_order_shuffled(mixture->seed, epoch, mixture->n, place);
    if (mixture->n_parts == 1)
        return place; /* (2) */
    while (mixture->parts[part].first_place > place)
        part--;
    return walk_at(mixture, part,
                   epoch * mixture->parts[part].n_drawn +
                       (place - mixture->parts[part].first_place));
}

uint64_t cf_mixture_repeats(const cf_mixture *mixture, size_t part)
{
    const cf_mixture_part *p = &mixture->parts[part];

    if (mixture->n_parts == 1)
        return 1;
    /* That many rounds at most begin, go through, or end in an epoch. */
    return (p->n_drawn + p->n - 1) / p->n + 1;
}
