/* batches.c - see batches.h. */
#include "src/batches.h"

#include <stdlib.h>
#include <string.h>

#include "src/log.h"
#include "src/order.h"

static bool too_long(const cf_batches *batches, uint32_t len_tok)
{
    return batches->max_length_tok > 0 && len_tok > batches->max_length_tok;
}

static cf_status eligible_collect(cf_batches *batches)
{
    const size_t n = cf_dataset_count(batches->dataset);
    const uint32_t *len_tok = cf_dataset_lengths(batches->dataset);
    const uint32_t *targets = cf_dataset_target_counts(batches->dataset);
    uint64_t n_targets = 0;

    batches->eligible = malloc((n > 0 ? n : 1) * sizeof(*batches->eligible));
    if (batches->eligible == NULL) {
        cf_log_error("no memory for the order of %zu sequences", n);
        return CF_NO_MEMORY;
    }
    for (size_t i = 0; i < n; i++) {
        if (too_long(batches, len_tok[i]))
            continue;
        batches->eligible[batches->n_eligible++] = (uint32_t)i;
        n_targets += targets[i];
    }
    if (n_targets > 0)
        return CF_OK;
    cf_log_error("none of the %zu sequences of --data has a target%s: nothing "
                 "to compute a loss from",
                 n, batches->max_length_tok > 0 ? " within --max-length" : "");
    free(batches->eligible);
    batches->eligible = NULL;
    return CF_MALFORMED;
}

cf_status cf_batches_open(const cf_dataset *dataset, const cf_options *options,
                          cf_batches *batches)
{
    cf_status status;

    *batches = (cf_batches){.dataset = dataset,
                            .max_length_tok = options->max_length_tok,
                            .global_batch = options->global_batch,
                            .seed = options->seed,
                            .shuffle = options->shuffle};
    status = eligible_collect(batches);
    if (status != CF_OK)
        return status;
    if (batches->global_batch > batches->n_eligible)
        batches->global_batch = (uint32_t)batches->n_eligible;
    batches->steps_per_epoch =
        (batches->n_eligible - 1) / batches->global_batch + 1;
    batches->n_steps = options->steps > 0
                           ? options->steps
                           : options->epochs * batches->steps_per_epoch;
    return CF_OK;
}

void cf_batches_close(cf_batches *batches)
{
    free(batches->eligible);
    memset(batches, 0, sizeof(*batches));
}

size_t cf_batches_at(const cf_batches *batches, uint64_t step,
                     uint32_t *sequences)
{
    const uint64_t epoch = (step - 1) / batches->steps_per_epoch;
    const uint64_t n = batches->n_eligible;
    uint64_t first =
        (step - 1) % batches->steps_per_epoch * batches->global_batch;
    size_t count = 0;

    for (uint64_t i = first; i < n && count < batches->global_batch; i++) {
        uint64_t at = batches->shuffle
                          ? cf_order_shuffled(batches->seed, epoch, n, i)
                          : i;

        sequences[count++] = batches->eligible[at];
    }
    return count;
}

void cf_batches_count(const cf_batches *batches, uint64_t step,
                      const uint32_t *sequences, size_t n, cf_ledger *ledger)
{
    const uint32_t *len_tok = cf_dataset_lengths(batches->dataset);
    const uint32_t *targets = cf_dataset_target_counts(batches->dataset);

    for (size_t i = 0; i < n; i++)
        cf_ledger_add(ledger, len_tok[sequences[i]], targets[sequences[i]],
                      batches->max_length_tok);
    if ((step - 1) % batches->steps_per_epoch != 0 ||
        batches->n_eligible == cf_dataset_count(batches->dataset))
        return;
    for (size_t i = 0; i < cf_dataset_count(batches->dataset); i++)
        if (too_long(batches, len_tok[i]))
            cf_ledger_add(ledger, len_tok[i], targets[i],
                          batches->max_length_tok);
}
