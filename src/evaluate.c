/* evaluate.c - the eval command: loss and perplexity on the chunk path.
 *
 * The whole data set is planned as one batch and run forward only, so the loss
 * has the bits of a training step's on the same sequences, and the memory is
 * that of one chunk and the longest sequence's KV state.
 */
#include "src/commands.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/log.h"
#include "src/run.h"

/* A sum of losses over some of the sequences. */
typedef struct tally {
    double loss; /* sum, not mean */
    uint64_t sequences;
    uint64_t target_tokens;
} tally;

static const struct {
    const char *name;
    uint32_t below_tok;
} buckets[] = {
    {"<1K", 1024},     {"1K-4K", 4096},       {"4K-8K", 8192},
    {"8K-32K", 32768}, {">=32K", UINT32_MAX},
};
enum {
    N_BUCKETS = sizeof(buckets) / sizeof(buckets[0])
};

typedef struct evaluation {
    const cf_options *options;
    cf_run run;
    cf_batches batches;
    cf_step_plan_need need;
    cf_step_plan plan;
    cf_engine engine;
    tally by_bucket[N_BUCKETS];
    tally *by_source; /* owned */
    double loss;      /* mean over all target tokens */
} evaluation;

static void carve(void *context, cf_arena *arena)
{
    evaluation *e = context;

    cf_model_carve(&e->run.model, CF_MODEL_EVAL, arena);
    cf_step_plan_carve(&e->plan, &e->need, arena);
    cf_engine_carve(&e->engine, &e->run.model, &e->need.engine,
                    CF_RECOMPUTE_SELECTIVE, CF_GRADIENTS_NO, arena);
}

/* ---- the pass ---- */

static cf_status chunks_run(evaluation *e)
{
    const cf_engine_batch batch = {
        .dataset = e->run.dataset, .sequences = e->plan.sequences, .step = 1};
    cf_status status = cf_step_plan_build(&e->plan, e->run.dataset, &e->need);

    if (status != CF_OK)
        return status;
    cf_engine_begin_step(&e->engine, &batch, &e->plan.chunks);
    for (uint32_t chunk = 0; chunk < e->plan.chunks.n_chunks && status == CF_OK;
         chunk++)
        status = cf_engine_evaluate(&e->engine, &e->plan.chunks, chunk);
    /* The very expression of a training step: equal bits. */
    e->loss = cf_engine_loss(&e->engine, &e->plan.chunks) *
              (1 / (double)e->plan.target_tokens);
    return status;
}

/* ---- tallies ---- */

static size_t bucket_of(uint32_t len_tok)
{
    size_t bucket = 0;

    while (bucket + 1 < N_BUCKETS && len_tok >= buckets[bucket].below_tok)
        bucket++;
    return bucket;
}

static void tally_add(tally *t, double loss, uint32_t n_sequences,
                      uint32_t n_targets)
{
    t->loss += loss;
    t->sequences += n_sequences;
    t->target_tokens += n_targets;
}

static void tallies_fill(evaluation *e)
{
    const cf_chunk_plan *chunks = &e->plan.chunks;
    const cf_dataset *dataset = e->run.dataset;
    const uint32_t *targets = cf_dataset_target_counts(dataset);

    for (size_t i = 0; i < chunks->n_pieces; i++) {
        const cf_piece *piece = &chunks->pieces[i];
        const uint32_t sequence = e->plan.sequences[piece->seq];
        const uint32_t source = cf_dataset_source(dataset, sequence);
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

/* ---- printing ---- */

static void row_print(const char *name, const tally *t)
{
    double loss = t->loss / (double)t->target_tokens;

    printf("  %-16s %10" PRIu64 " %14" PRIu64 " %10.6f %12.4f\n", name,
           t->sequences, t->target_tokens, loss, exp(loss));
}

static void table_print(const evaluation *e)
{
    printf("loss %.17g\nperplexity %.6g\n", e->loss, exp(e->loss));
    printf("sequences %zu, tokens %" PRIu64 ", target tokens %" PRIu64 "\n",
           e->plan.n_batch, e->plan.tokens, e->plan.target_tokens);
    printf("  %-16s %10s %14s %10s %12s\n", "length", "sequences",
           "target tokens", "loss", "perplexity");
    for (size_t i = 0; i < N_BUCKETS; i++)
        if (e->by_bucket[i].target_tokens > 0)
            row_print(buckets[i].name, &e->by_bucket[i]);
    if (cf_dataset_n_sources(e->run.dataset) == 0)
        return;
    printf("  %s\n", "source");
    for (size_t i = 0; i < cf_dataset_n_sources(e->run.dataset); i++)
        if (e->by_source[i].target_tokens > 0)
            row_print(cf_dataset_source_name(e->run.dataset, i),
                      &e->by_source[i]);
}

static json_t *row_json(const char *name, const tally *t)
{
    return json_pack("{s:s, s:f, s:I, s:I}", "name", name, "loss",
                     t->loss / (double)t->target_tokens, "sequences",
                     (json_int_t)t->sequences, "target_tokens",
                     (json_int_t)t->target_tokens);
}

static cf_status json_print(const evaluation *e)
{
    const cf_dataset *dataset = e->run.dataset;
    json_t *rows = json_array(), *sources = json_array();
    json_t *root =
        json_pack("{s:f, s:f, s:I, s:I, s:I}", "loss", e->loss, "perplexity",
                  exp(e->loss), "sequences", (json_int_t)e->plan.n_batch,
                  "tokens", (json_int_t)e->plan.tokens, "target_tokens",
                  (json_int_t)e->plan.target_tokens);
    int failed = 0;

    for (size_t i = 0; i < N_BUCKETS; i++)
        if (e->by_bucket[i].target_tokens > 0)
            failed |= json_array_append_new(
                rows, row_json(buckets[i].name, &e->by_bucket[i]));
    for (size_t i = 0; i < cf_dataset_n_sources(dataset); i++)
        if (e->by_source[i].target_tokens > 0)
            failed |= json_array_append_new(
                sources,
                row_json(cf_dataset_source_name(dataset, i), &e->by_source[i]));
    failed |= json_object_set_new(root, "buckets", rows);
    if (json_array_size(sources) > 0)
        failed |= json_object_set(root, "sources", sources);
    failed |= json_dumpf(root, stdout, JSON_REAL_PRECISION(17));
    putchar('\n');
    json_decref(sources);
    json_decref(root);
    if (failed == 0)
        return CF_OK;
    cf_log_error("cannot write the result as JSON: a value is not finite or "
                 "standard output is closed");
    return CF_IO;
}

/* ---- the command ---- */

static cf_status data_open(evaluation *e)
{
    size_t n = cf_dataset_n_sources(e->run.dataset);
    cf_status status = cf_batches_open(e->run.dataset, e->options, &e->batches);

    if (status != CF_OK)
        return status;
    e->by_source = calloc(n > 0 ? n : 1, sizeof(*e->by_source));
    if (e->by_source == NULL)
        return CF_NO_MEMORY;
    return cf_step_plan_bound(e->run.dataset, e->batches.eligible,
                              e->batches.n_eligible, e->batches.n_eligible,
                              e->options->chunk_size_tok, 0, &e->need);
}

static cf_status evaluate(evaluation *e)
{
    cf_arena sizes;
    cf_status status = data_open(e);

    if (status == CF_OK)
        status = cf_run_size(&e->run, carve, e, &e->need, &sizes);
    if (status == CF_OK)
        status = cf_run_place(&e->run, &sizes, carve, e);
    if (status == CF_OK)
        status = cf_model_load(&e->run.model, e->options->model);
    if (status != CF_OK)
        return status;

    e->plan.n_batch = e->batches.n_eligible;
    memcpy(e->plan.batch, e->batches.eligible,
           e->plan.n_batch * sizeof(*e->plan.batch));
    status = chunks_run(e);
    if (status != CF_OK)
        return status;
    tallies_fill(e);
    if (e->options->json)
        return json_print(e);
    table_print(e);
    return CF_OK;
}

int cf_command_eval(const cf_options *options)
{
    evaluation e = {.options = options};
    cf_status status = cf_run_open(options, &e.run);

    if (status == CF_OK) {
        status = evaluate(&e);
        free(e.by_source);
        cf_batches_close(&e.batches);
        cf_run_close(&e.run);
    }
    return cf_exit_code(status);
}
