/* rehearsal.c - see rehearsal.h: the step over all replicas. */
#include "src/rehearsal.h"

#include <stdlib.h>

#include "src/log.h"
#include "src/placement.h"

bool cf_rehearsal_is_whole(const cf_rehearsal_input *input)
{
    return input->params.kind == CF_SCHEDULE_1F1B ||
           input->params.kind == CF_SCHEDULE_1F1B_RECOMPUTE;
}

static cf_status no_memory(const cf_rehearsal_input *input)
{
    cf_log_error("no memory for a batch of %zu sequences", input->n_sequences);
    return CF_NO_MEMORY;
}

/* ---- placement ---- */

/* What a sequence costs wherever it is packed or cut: its tokens and its pairs
 * of tokens, forward and backward. */
static void predict(const cf_rehearsal_input *input, double *cost)
{
    for (size_t i = 0; i < input->n_sequences; i++) {
        const double n_tok = input->len_tok[i];

        cost[i] = input->sequence.per_tok * n_tok +
                  input->sequence.per_pair * n_tok * n_tok / 2;
    }
}

/* Fill replica_of, [n_sequences], and the loads. */
static cf_status place(const cf_rehearsal_input *input, uint32_t *replica_of,
                       cf_rehearsed_replica *replicas)
{
    double *cost = calloc(input->n_sequences + (size_t)1, sizeof(*cost));
    double *load = calloc(input->n_replicas, sizeof(*load));
    void *scratch = NULL;
    size_t scratch_bytes;
    cf_status status = cf_placement_bound(input->n_sequences, input->n_replicas,
                                          &scratch_bytes);

    if (status == CF_OK)
        scratch = malloc(scratch_bytes);
    if (cost == NULL || load == NULL || scratch == NULL) {
        status = no_memory(input);
        goto free_all;
    }
    predict(input, cost);
    status = cf_placement_build(cost, input->n_sequences, input->n_replicas,
                                scratch, scratch_bytes, replica_of, load);
    if (status != CF_OK) {
        cf_log_error(
            "the cost: a sequence of these lengths costs more than can "
            "be counted");
        goto free_all;
    }
    for (size_t i = 0; i < input->n_sequences; i++)
        replicas[replica_of[i]].n_sequences++;
    for (uint32_t r = 0; r < input->n_replicas; r++)
        replicas[r].load = load[r];

free_all:
    free(cost);
    free(load);
    free(scratch);
    return status;
}

/* ---- the replicas, one after another ---- */

static cf_status rehearse(const cf_rehearsal_input *input,
                          const uint32_t *replica_of, uint32_t replica,
                          size_t n_sequences, cf_rehearsed_pipeline *pipeline)
{
    pipeline->len_tok = calloc(n_sequences + 1, sizeof(uint32_t));
    if (pipeline->len_tok == NULL)
        return no_memory(input);
    for (size_t i = 0; i < input->n_sequences; i++) {
        if (replica_of[i] == replica)
            pipeline->len_tok[pipeline->n_sequences++] = input->len_tok[i];
    }
    return cf_rehearsed_pipeline_open(input, pipeline);
}

static void raise_to(uint64_t *peak, uint64_t value)
{
    if (*peak < value)
        *peak = value;
}

static void raise_peaks(cf_stage_peak *peaks, const cf_stage_peak *others,
                        uint32_t n_stages)
{
    for (uint32_t s = 0; s < n_stages; s++) {
        raise_to(&peaks[s].kept_tok, others[s].kept_tok);
        raise_to(&peaks[s].kept_chunks, others[s].kept_chunks);
        raise_to(&peaks[s].kv_tok, others[s].kv_tok);
        raise_to(&peaks[s].input_tok, others[s].input_tok);
        raise_to(&peaks[s].messages, others[s].messages);
    }
}

/* Work of a replica's stages in units of time; the step's shares are sums of
 * these over all stages of all replicas. */
typedef struct work {
    double busy;
    double useful;
} work;

static cf_status run_replica(const cf_rehearsal_input *input,
                             const uint32_t *replica_of, uint32_t replica,
                             cf_rehearsal *rehearsal, work *sum)
{
    cf_rehearsed_replica *entry = &rehearsal->replicas[replica];
    cf_rehearsed_pipeline pipeline = {0};
    const cf_simulation *simulation = &pipeline.simulation;
    cf_status status =
        rehearse(input, replica_of, replica, entry->n_sequences, &pipeline);

    /* Behind the first pipeline, which refuses more stages than fit. */
    if (status == CF_OK && rehearsal->peaks == NULL) {
        rehearsal->peaks =
            calloc(input->params.n_stages, sizeof(*rehearsal->peaks));
        if (rehearsal->peaks == NULL)
            status = no_memory(input);
    }
    if (status != CF_OK) {
        cf_rehearsed_pipeline_close(&pipeline);
        return status;
    }
    entry->makespan = simulation->makespan;
    entry->bubble_ratio = simulation->bubble_ratio;
    sum->busy += (1 - simulation->bubble_ratio) * simulation->makespan;
    sum->useful += simulation->useful * simulation->makespan;
    raise_peaks(rehearsal->peaks, simulation->peaks, input->params.n_stages);
    if (replica == 0 || rehearsal->makespan < simulation->makespan) {
        rehearsal->makespan = simulation->makespan;
        cf_rehearsed_pipeline_close(&rehearsal->slowest);
        rehearsal->slowest = pipeline;
    } else {
        cf_rehearsed_pipeline_close(&pipeline);
    }
    return CF_OK;
}

/* One replica is the whole: its numbers stay as they are, to the bit. */
static void sum_up(const cf_rehearsal_input *input, const work *sum,
                   cf_rehearsal *rehearsal)
{
    const cf_simulation *slowest = &rehearsal->slowest.simulation;
    const double all = input->n_replicas * rehearsal->makespan;
    double load = 0;
    double most = 0;

    rehearsal->bubble_ratio = slowest->bubble_ratio;
    rehearsal->useful = slowest->useful;
    if (input->n_replicas > 1 && all > 0) {
        rehearsal->bubble_ratio = 1 - sum->busy / all;
        rehearsal->useful = sum->useful / all;
    }
    for (uint32_t r = 0; r < input->n_replicas; r++) {
        load += rehearsal->replicas[r].load;
        if (most < rehearsal->replicas[r].load)
            most = rehearsal->replicas[r].load;
    }
    rehearsal->load_ratio = load > 0 ? most * input->n_replicas / load : 1;
}

cf_status cf_rehearsal_open(const cf_rehearsal_input *input,
                            cf_rehearsal *rehearsal)
{
    uint32_t *replica_of =
        calloc(input->n_sequences + (size_t)1, sizeof(*replica_of));
    work sum = {0};
    cf_status status;

    *rehearsal = (cf_rehearsal){0};
    rehearsal->replicas =
        calloc(input->n_replicas, sizeof(*rehearsal->replicas));
    if (replica_of == NULL || rehearsal->replicas == NULL)
        status = no_memory(input);
    else
        status = place(input, replica_of, rehearsal->replicas);

    for (uint32_t r = 0; status == CF_OK && r < input->n_replicas; r++)
        status = run_replica(input, replica_of, r, rehearsal, &sum);
    free(replica_of);
    if (status == CF_OK)
        sum_up(input, &sum, rehearsal);
    else
        cf_rehearsal_close(rehearsal);
    return status;
}

void cf_rehearsal_close(cf_rehearsal *rehearsal)
{
    cf_rehearsed_pipeline_close(&rehearsal->slowest);
    free(rehearsal->replicas);
    free(rehearsal->peaks);
    *rehearsal = (cf_rehearsal){0};
}
