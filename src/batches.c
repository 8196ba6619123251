/* batches.c - see batches.h. */
#include "src/batches.h"

#include <stdlib.h>
#include <string.h>

#include "src/log.h"

/* Where the batches of one epoch begin: the one that was asked for last. */
struct cf_batch_bounds {
    uint64_t epoch;
    uint64_t steps_before; /* of all earlier epochs */
    uint64_t n;
    uint32_t first[]; /* [n + 1]: places, then the end of the epoch */
};

static bool too_long(const cf_batches *batches, uint32_t len_tok)
{
    return batches->max_length_tok > 0 && len_tok > batches->max_length_tok;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* ---- what takes a place ---- */

static cf_status eligible_collect(cf_batches *batches)
{
    const size_t n = cf_dataset_count(batches->dataset);
    const uint32_t *len_tok = cf_dataset_lengths(batches->dataset);
    const uint32_t *targets = cf_dataset_target_counts(batches->dataset);
    uint64_t n_targets = 0;

    batches->eligible = malloc((n > 0 ? n : 1) * sizeof(*batches->eligible));
    if (batches->eligible == NULL)
        return CF_NO_MEMORY;
    for (size_t i = 0; i < n; i++) {
        if (too_long(batches, len_tok[i]))
            continue;
        batches->eligible[batches->n_eligible++] = (uint32_t)i;
        n_targets += targets[i];
    }
    if (n_targets > 0)
        return CF_OK;
    cf_log_error("none of the %zu sequences of --data has a target%s: nothing "
                 "to compute a loss from; check their labels or mask",
                 n, batches->max_length_tok > 0 ? " within --max-length" : "");
    return CF_MALFORMED;
}

static cf_status mixture_open(cf_batches *batches, const char *weights)
{
    const size_t n_parts = cf_dataset_n_parts(batches->dataset);
    size_t *part_sequences = calloc(n_parts, sizeof(*part_sequences));
    size_t part = 0;
    cf_status status;

    if (part_sequences == NULL)
        return CF_NO_MEMORY;
    for (size_t i = 0; i < batches->n_eligible; i++) {
        while (batches->eligible[i] >=
               cf_dataset_part_first(batches->dataset, part + 1))
            part++;
        part_sequences[part]++;
    }
    status =
        cf_mixture_open(part_sequences, n_parts, weights, &batches->mixture);
    free(part_sequences);
    return status;
}

static cf_status drawable_collect(cf_batches *batches)
{
    const cf_mixture *mixture = &batches->mixture;
    size_t n = 0;

    for (size_t p = 0; p < mixture->n_parts; p++)
        n += mixture->parts[p].n * cf_mixture_repeats(mixture, p);
    batches->drawable = malloc(n * sizeof(*batches->drawable));
    if (batches->drawable == NULL)
        return CF_NO_MEMORY;
    for (size_t p = 0; p < mixture->n_parts; p++) {
        const cf_mixture_part *part = &mixture->parts[p];

        for (uint64_t r = cf_mixture_repeats(mixture, p); r > 0; r--) {
            memcpy(batches->drawable + batches->n_drawable,
                   batches->eligible + part->first,
                   part->n * sizeof(*batches->drawable));
            batches->n_drawable += part->n;
        }
    }
    return CF_OK;
}

/* ---- batches by tokens ---- */

static int ascending(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return (x > y) - (x < y);
}

/* No batch has more sequences than if the shortest of all came together. */
static cf_status global_batch_bound(cf_batches *batches)
{
    const uint32_t *len_tok = cf_dataset_lengths(batches->dataset);
    uint32_t *sorted = malloc(batches->n_drawable * sizeof(*sorted));
    uint64_t n_tok = 0;
    size_t n = 0;

    if (sorted == NULL)
        return CF_NO_MEMORY;
    for (size_t i = 0; i < batches->n_drawable; i++)
        sorted[i] = len_tok[batches->drawable[i]];
    qsort(sorted, batches->n_drawable, sizeof(*sorted), ascending);
    while (n < batches->n_drawable && n_tok < batches->tokens_per_batch)
        n_tok += sorted[n++];
    batches->global_batch = (uint32_t)least(batches->global_batch, n);
    free(sorted);
    return CF_OK;
}

static uint32_t sequence_at(const cf_batches *batches, uint64_t epoch,
                            uint64_t place)
{
    return batches->eligible[cf_mixture_at(&batches->mixture, epoch, place)];
}

/* The place behind the batch that begins at a place. */
static uint64_t batch_end(const cf_batches *batches, uint64_t epoch,
                          uint64_t place)
{
    const uint32_t *len_tok = cf_dataset_lengths(batches->dataset);
    const uint64_t most =
        least(place + batches->global_batch, batches->mixture.n);
    uint64_t n_tok = 0;

    if (batches->tokens_per_batch == 0)
        return most;
    while (place < most && n_tok < batches->tokens_per_batch)
        n_tok += len_tok[sequence_at(batches, epoch, place++)];
    return place;
}

/* Turn to an epoch, the first or the one behind the present one. */
static void bounds_set(const cf_batches *batches, uint64_t epoch)
{
    struct cf_batch_bounds *bounds = batches->bounds;
    uint64_t place = 0;
    uint64_t n = 0;

    bounds->steps_before = epoch > 0 ? bounds->steps_before + bounds->n : 0;
    while (place < batches->mixture.n) {
        bounds->first[n++] = (uint32_t)place;
        place = batch_end(batches, epoch, place);
    }
    bounds->first[n] = (uint32_t)place;
    bounds->n = n;
    bounds->epoch = epoch;
}

/* Exact, since the learning rate of step 1 depends on it. */
static cf_status bounds_open(cf_batches *batches, const cf_options *options)
{
    cf_status status = global_batch_bound(batches);

    if (status != CF_OK)
        return status;
    batches->bounds =
        malloc(sizeof(*batches->bounds) +
               (batches->mixture.n + 1) * sizeof(batches->bounds->first[0]));
    if (batches->bounds == NULL)
        return CF_NO_MEMORY;
    bounds_set(batches, 0);
    for (uint64_t epoch = 1; options->steps == 0 && epoch < options->epochs;
         epoch++)
        bounds_set(batches, epoch);
    batches->n_steps = batches->bounds->steps_before + batches->bounds->n;
    return CF_OK;
}

/* ---- open and close ---- */

static cf_status parts_open(cf_batches *batches, const cf_options *options)
{
    cf_status status = eligible_collect(batches);

    if (status == CF_OK)
        status = mixture_open(batches, options->data_weights);
    if (status == CF_OK)
        status = drawable_collect(batches);
    if (status != CF_OK)
        return status;
    if (batches->global_batch == 0 ||
        batches->global_batch > batches->mixture.n)
        batches->global_batch = (uint32_t)batches->mixture.n;
    if (batches->tokens_per_batch > 0)
        return bounds_open(batches, options);
    batches->n_steps = options->epochs *
                       ((batches->mixture.n - 1) / batches->global_batch + 1);
    return CF_OK;
}

cf_status cf_batches_open(const cf_dataset *dataset, const cf_options *options,
                          cf_batches *batches)
{
    cf_status status;

    *batches = (cf_batches){
        .dataset = dataset,
        .mixture = {.seed = options->seed, .shuffle = options->shuffle},
        .max_length_tok = options->max_length_tok,
        .global_batch = options->global_batch,
        .tokens_per_batch = options->tokens_per_batch};
    status = parts_open(batches, options);
    if (status == CF_NO_MEMORY)
        cf_log_error("no memory for the order of %zu sequences: end other "
                     "programs or use less data",
                     cf_dataset_count(dataset));
    if (status != CF_OK) {
        cf_batches_close(batches);
        return status;
    }
    if (options->steps > 0)
        batches->n_steps = options->steps;
    return CF_OK;
}

void cf_batches_close(cf_batches *batches)
{
    free(batches->eligible);
    free(batches->drawable);
    free(batches->bounds);
    cf_mixture_close(&batches->mixture);
    memset(batches, 0, sizeof(*batches));
}

/* ---- steps ---- */

/* The places of a step in its epoch. */
typedef struct step_places {
    uint64_t epoch;
    uint64_t first;
    uint64_t end;
} step_places;

static step_places places_of(const cf_batches *batches, uint64_t step)
{
    const uint64_t index = step - 1;
    const struct cf_batch_bounds *bounds = batches->bounds;
    uint64_t per_epoch;
    step_places places;

    if (bounds == NULL) {
        per_epoch = (batches->mixture.n - 1) / batches->global_batch + 1;
        places.epoch = index / per_epoch;
        places.first = index % per_epoch * batches->global_batch;
        places.end = batch_end(batches, places.epoch, places.first);
        return places;
    }
    if (index < bounds->steps_before)
        bounds_set(batches, 0);
    while (index >= bounds->steps_before + bounds->n)
        bounds_set(batches, bounds->epoch + 1);
    places.epoch = bounds->epoch;
    places.first = bounds->first[index - bounds->steps_before];
    places.end = bounds->first[index - bounds->steps_before + 1];
    return places;
}

size_t cf_batches_at(const cf_batches *batches, uint64_t step,
                     uint32_t *sequences)
{
    const step_places places = places_of(batches, step);
    size_t n = 0;

    for (uint64_t i = places.first; i < places.end; i++)
        sequences[n++] = sequence_at(batches, places.epoch, i);
    return n;
}

/* ---- the ledger ---- */

static void count_one(const cf_batches *batches, size_t sequence,
                      cf_ledger *ledger)
{
    cf_ledger_add(ledger, cf_dataset_lengths(batches->dataset)[sequence],
                  cf_dataset_target_counts(batches->dataset)[sequence],
                  batches->max_length_tok);
}

static void count_skipped(const cf_batches *batches, cf_ledger *ledger)
{
    const uint32_t *len_tok = cf_dataset_lengths(batches->dataset);
    const size_t n = cf_dataset_count(batches->dataset);

    if (batches->n_eligible == n)
        return;
    for (size_t i = 0; i < n; i++)
        if (too_long(batches, len_tok[i]))
            count_one(batches, i, ledger);
}

void cf_batches_count(const cf_batches *batches, uint64_t step,
                      const uint32_t *sequences, size_t n, cf_ledger *ledger)
{
    for (size_t i = 0; i < n; i++)
        count_one(batches, sequences[i], ledger);
    if (places_of(batches, step).first == 0)
        count_skipped(batches, ledger);
}

void cf_batches_count_epoch(const cf_batches *batches, cf_ledger *ledger)
{
    for (uint64_t place = 0; place < batches->mixture.n; place++)
        count_one(batches, sequence_at(batches, 0, place), ledger);
    count_skipped(batches, ledger);
}
