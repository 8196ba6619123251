/* evaluation.c - see evaluation.h. */
#include "src/evaluation.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/log.h"

static const struct {
    const char *name;
    uint32_t below_tok;
} buckets[CF_LENGTH_BUCKETS] = {
    {"<1K", 1024},     {"1K-4K", 4096},       {"4K-8K", 8192},
    {"8K-32K", 32768}, {">=32K", UINT32_MAX},
};

/* ---- what to run ---- */

static cf_status sequences_collect(const cf_evaluation_params *params,
                                   cf_evaluation *evaluation)
{
    const size_t n = cf_dataset_count(params->dataset);
    const uint32_t *len_tok = cf_dataset_lengths(params->dataset);
    const uint32_t *targets = cf_dataset_target_counts(params->dataset);
    const uint32_t max_tok =
        params->max_length_tok > 0 ? params->max_length_tok : UINT32_MAX;
    uint64_t n_targets = 0;

    evaluation->sequences =
        malloc((n > 0 ? n : 1) * sizeof(*evaluation->sequences));
    if (evaluation->sequences == NULL) {
        cf_log_error("no memory for %zu sequences of %s", n, params->option);
        return CF_NO_MEMORY;
    }
    for (size_t i = 0; i < n; i++) {
        if (len_tok[i] > max_tok) {
            evaluation->n_too_long++;
            continue;
        }
        evaluation->sequences[evaluation->n_sequences++] = (uint32_t)i;
        n_targets += targets[i];
    }
    if (n_targets > 0)
        return CF_OK;
    cf_log_error("none of the %zu sequences of %s has a target%s: nothing to "
                 "compute a loss from",
                 n, params->option,
                 params->max_length_tok > 0 ? " within --max-length" : "");
    return CF_MALFORMED;
}

cf_status cf_evaluation_bound(cf_evaluation *evaluation,
                              uint32_t chunk_size_tok)
{
    const cf_step_plan_params plan = {.n_batch = evaluation->n_sequences,
                                      .chunk_size_tok = chunk_size_tok,
                                      .schedule = {.n_stages = 1}};

    return cf_step_plan_bound_of(&evaluation->longest, &plan,
                                 &evaluation->need);
}

cf_status cf_evaluation_open(const cf_evaluation_params *params,
                             cf_evaluation *evaluation)
{
    cf_status status;

    *evaluation = (cf_evaluation){
        .dataset = params->dataset, .comm = params->comm, .grid = params->grid};
    if (params->comm == NULL)
        evaluation->grid = (cf_grid){.n_stages = 1, .n_replicas = 1};
    status = sequences_collect(params, evaluation);
    if (status == CF_OK)
        status = cf_longest_open(params->dataset, evaluation->sequences,
                                 evaluation->n_sequences,
                                 evaluation->n_sequences, &evaluation->longest);
    if (status == CF_OK && params->chunk_size_tok > 0)
        status = cf_evaluation_bound(evaluation, params->chunk_size_tok);
    if (status != CF_OK)
        cf_evaluation_close(evaluation);
    return status;
}

void cf_evaluation_close(cf_evaluation *evaluation)
{
    cf_longest_close(&evaluation->longest);
    free(evaluation->sequences);
    memset(evaluation, 0, sizeof(*evaluation));
}

void cf_evaluation_carve(cf_evaluation *evaluation, cf_model *model,
                         cf_arena *arena)
{
    cf_step_plan_carve(&evaluation->plan, &evaluation->need, arena);
    evaluation->by_source = cf_arena_take(
        arena, CF_LIFETIME_RUN, "bookkeeping",
        cf_dataset_n_sources(evaluation->dataset), sizeof(cf_tally));
    cf_engine_carve(&evaluation->engine, model, &evaluation->need.engine,
                    CF_RECOMPUTE_SELECTIVE, CF_GRADIENTS_NO, arena);
}

/* ---- the pass ---- */

static size_t bucket_of(uint32_t len_tok)
{
    size_t bucket = 0;

    while (bucket + 1 < CF_LENGTH_BUCKETS &&
           len_tok >= buckets[bucket].below_tok)
        bucket++;
    return bucket;
}

static void tally_add(cf_tally *t, double loss, uint32_t n_sequences,
                      uint32_t n_targets)
{
    t->loss += loss;
    t->sequences += n_sequences;
    t->target_tokens += n_targets;
}

static void tallies_fill(cf_evaluation *e)
{
    const cf_chunk_plan *chunks = &e->plan.chunks;
    const uint32_t *targets = cf_dataset_target_counts(e->dataset);

    memset(e->by_bucket, 0, sizeof(e->by_bucket));
    for (size_t i = 0; i < chunks->n_pieces; i++) {
        const cf_piece *piece = &chunks->pieces[i];
        const uint32_t sequence = e->plan.sequences[piece->seq];
        const uint32_t source = cf_dataset_source(e->dataset, sequence);
        /* A long sequence has many pieces and is counted with its first. */
        const int first = piece->first_tok == 0;
        const uint32_t n_targets = first ? targets[sequence] : 0;
        const double loss = e->engine.piece_loss[i];

        tally_add(&e->by_bucket[bucket_of(e->plan.len_tok[piece->seq])], loss,
                  first, n_targets);
        if (source != UINT32_MAX)
            tally_add(&e->by_source[source], loss, first, n_targets);
    }
}

/* Only one chunk's sequences are decoded at a time.  The batch is planned, so
 * its place is free. */
static cf_status chunk_prepare(cf_evaluation *e, uint32_t chunk)
{
    const cf_chunk *c = &e->plan.chunks.chunks[chunk];

    for (uint32_t i = 0; i < c->n_pieces; i++)
        e->plan.batch[i] =
            e->plan.sequences[e->plan.chunks.pieces[c->first_piece + i].seq];
    return cf_dataset_prepare(e->dataset, e->plan.batch, c->n_pieces);
}

/* Where the chunks of a replica begin: at the first group behind its share of the
 * tokens, which are what a chunk costs where no sequence is very long. */
static uint32_t replica_begins(const cf_chunk_plan *plan, uint64_t n_tok,
                               const cf_grid *grid, uint32_t replica)
{
    uint64_t before = 0;
    uint32_t chunk = 0;

    while (chunk < plan->n_chunks &&
           (plan->chunks[chunk].in_group > 0 ||
            before * grid->n_replicas < n_tok * replica))
        before += plan->chunks[chunk++].n_tok;
    return chunk;
}

static uint64_t plan_tok(const cf_chunk_plan *plan)
{
    uint64_t n_tok = 0;

    for (size_t i = 0; i < plan->n_chunks; i++)
        n_tok += plan->chunks[i].n_tok;
    return n_tok;
}

static bool is_alone(const cf_evaluation *e)
{
    return e->comm == NULL || cf_comm_size(e->comm) == 1;
}

/* The chunks of this replica, and the losses of all. */
static cf_status chunks_run(cf_evaluation *e, const cf_engine_batch *batch)
{
    const cf_chunk_plan *chunks = &e->plan.chunks;
    const uint64_t n_tok = plan_tok(chunks);
    const uint32_t end =
        replica_begins(chunks, n_tok, &e->grid, e->grid.replica + 1);
    uint32_t chunk = replica_begins(chunks, n_tok, &e->grid, e->grid.replica);
    cf_status status =
        cf_engine_begin_pass(&e->engine, batch, chunks, chunk, end);

    for (; chunk < end && status == CF_OK; chunk++) {
        if (is_alone(e) && e->stop != NULL && e->stop() != 0)
            return CF_OK;
        status = chunk_prepare(e, chunk);
        if (status == CF_OK)
            status = cf_engine_evaluate(&e->engine, chunks, chunk);
    }
    if (status == CF_OK)
        status = cf_engine_end_step(&e->engine);
    if (status == CF_OK && e->comm != NULL)
        status =
            cf_comm_sum_sparse(e->comm, chunks->n_pieces, e->engine.piece_loss);
    e->is_complete = status == CF_OK;
    return status;
}

cf_status cf_evaluation_run(cf_evaluation *e, uint64_t step)
{
    const cf_engine_batch batch = {.dataset = e->dataset,
                                   .sequences = e->plan.sequences,
                                   .step = step,
                                   .comm = e->comm};
    cf_status status;

    e->is_complete = false;
    e->plan.n_batch = e->n_sequences;
    memcpy(e->plan.batch, e->sequences, e->n_sequences * sizeof(uint32_t));
    status = cf_step_plan_build(&e->plan, e->dataset, &e->need);
    if (status == CF_OK)
        status = chunks_run(e, &batch);
    if (status != CF_OK || !e->is_complete)
        return status;
    /* The very expression of a training step: equal bits. */
    e->loss = cf_engine_loss(&e->engine, &e->plan.chunks) *
              (1 / (double)e->plan.target_tokens);
    tallies_fill(e);
    return CF_OK;
}

/* ---- results ---- */

static void row_print(const char *name, const cf_tally *t)
{
    double loss = t->loss / (double)t->target_tokens;

    printf("  %-16s %10" PRIu64 " %14" PRIu64 " %10.6f %12.4f\n", name,
           t->sequences, t->target_tokens, loss, exp(loss));
}

void cf_evaluation_print(const cf_evaluation *e)
{
    printf("loss %.17g\nperplexity %.6g\n", e->loss, exp(e->loss));
    printf("sequences %zu, tokens %" PRIu64 ", target tokens %" PRIu64 "\n",
           e->plan.n_batch, e->plan.tokens, e->plan.target_tokens);
    printf("  %-16s %10s %14s %10s %12s\n", "length", "sequences",
           "target tokens", "loss", "perplexity");
    for (size_t i = 0; i < CF_LENGTH_BUCKETS; i++)
        if (e->by_bucket[i].target_tokens > 0)
            row_print(buckets[i].name, &e->by_bucket[i]);
    if (cf_dataset_n_sources(e->dataset) == 0)
        return;
    printf("  %s\n", "source");
    for (size_t i = 0; i < cf_dataset_n_sources(e->dataset); i++)
        if (e->by_source[i].target_tokens > 0)
            row_print(cf_dataset_source_name(e->dataset, i), &e->by_source[i]);
}

static json_t *row_json(const char *name, const cf_tally *t)
{
    return json_pack("{s:s, s:f, s:I, s:I}", "name", name, "loss",
                     t->loss / (double)t->target_tokens, "sequences",
                     (json_int_t)t->sequences, "target_tokens",
                     (json_int_t)t->target_tokens);
}

/* JSON has no infinity. */
static json_t *real_json(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

json_t *cf_evaluation_json(const cf_evaluation *e)
{
    json_t *rows = json_array(), *sources = json_array();
    json_t *root = json_pack(
        "{s:o, s:o, s:I, s:I, s:I}", "loss", real_json(e->loss), "perplexity",
        real_json(exp(e->loss)), "sequences", (json_int_t)e->plan.n_batch,
        "tokens", (json_int_t)e->plan.tokens, "target_tokens",
        (json_int_t)e->plan.target_tokens);
    int failed = 0;

    for (size_t i = 0; i < CF_LENGTH_BUCKETS; i++)
        if (e->by_bucket[i].target_tokens > 0)
            failed |= json_array_append_new(
                rows, row_json(buckets[i].name, &e->by_bucket[i]));
    for (size_t i = 0; i < cf_dataset_n_sources(e->dataset); i++)
        if (e->by_source[i].target_tokens > 0)
            failed |= json_array_append_new(
                sources, row_json(cf_dataset_source_name(e->dataset, i),
                                  &e->by_source[i]));
    failed |= json_object_set_new(root, "buckets", rows);
    if (json_array_size(sources) > 0)
        failed |= json_object_set(root, "sources", sources);
    json_decref(sources);
    if (failed == 0)
        return root;
    json_decref(root);
    return NULL;
}
