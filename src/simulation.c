/* simulation.c - the simulate command: one global batch, scheduled and timed on
 * paper.  No model, no ranks, no kernels.
 *
 * The plan, the schedule and their checks are those of `train`, so what is drawn
 * here is what would run there.
 */
#include "src/commands.h"

#include <chunkflow/simulate.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/arena.h"
#include "src/batches.h"
#include "src/dataset.h"
#include "src/file_write.h"
#include "src/lengths.h"
#include "src/log.h"
#include "src/machine.h"
#include "src/run.h"
#include "src/timeline.h"

typedef struct what_if {
    const cf_options *options;
    cf_cost_table costs;
    uint32_t *len_tok; /* owned, as all arrays of the next three */
    size_t n_sequences;
    cf_chunk_plan plan;
    cf_schedule schedule;
    cf_simulation simulation;
    size_t bytes; /* of these arrays */
} what_if;

/* ---- the cost ---- */

/* Numbers between commas; returns how many, 0 when anything else is there. */
static size_t read_numbers(const char *text, double *numbers, size_t n_max)
{
    for (size_t n = 1;; n++) {
        char *end;

        numbers[n - 1] = strtod(text, &end);
        if (end == text || !isfinite(numbers[n - 1]) || numbers[n - 1] < 0)
            return 0;
        if (*end == '\0')
            return n;
        if (*end != ',' || n == n_max)
            return 0;
        text = end + 1;
    }
}

/* linear, or OP,TOKEN,PAIR[,LEAST].  A backward is two forwards, but two and a
 * half in its attention: five products of matrices against two. */
static cf_status read_cost(const char *text, cf_cost_table *costs_p)
{
    double numbers[4] = {0};
    size_t n;

    if (text == NULL || strcmp(text, "linear") == 0) {
        *costs_p = cf_cost_linear();
        return CF_OK;
    }
    n = read_numbers(text, numbers, 4);
    if (n < 3 || numbers[3] > UINT32_MAX) {
        cf_log_error("--cost: \"%.100s\" is neither linear nor the time of an "
                     "op, a token and a pair of tokens, as in 0.05,1e-3,3e-8",
                     text);
        return CF_INVALID;
    }
    costs_p->forward = (cf_cost_terms){numbers[0], numbers[1], numbers[2]};
    costs_p->backward =
        (cf_cost_terms){2 * numbers[0], 2 * numbers[1], 2.5 * numbers[2]};
    costs_p->least_tok = (uint32_t)numbers[3];
    return CF_OK;
}

/* ---- the batch ---- */

/* The first batch of `train`: those of its sequences that have a target. */
static cf_status batch_of(what_if *w, const cf_dataset *dataset,
                          const cf_batches *batches)
{
    uint32_t *sequences = calloc(batches->global_batch, sizeof(*sequences));
    size_t n;

    w->len_tok = calloc(batches->global_batch, sizeof(*w->len_tok));
    if (sequences == NULL || w->len_tok == NULL) {
        cf_log_error("no memory for a batch of %" PRIu32 " sequences",
                     batches->global_batch);
        free(sequences);
        return CF_NO_MEMORY;
    }
    n = cf_batches_at(batches, 1, sequences);
    for (size_t i = 0; i < n; i++) {
        if (cf_dataset_target_counts(dataset)[sequences[i]] > 0)
            w->len_tok[w->n_sequences++] =
                cf_dataset_lengths(dataset)[sequences[i]];
    }
    free(sequences);
    return CF_OK;
}

/* Without a model every id that is not negative is in the vocabulary. */
static cf_status read_data(what_if *w)
{
    cf_dataset *dataset;
    cf_batches batches;
    cf_status status = cf_dataset_open(w->options->data, w->options->n_data,
                                       UINT32_C(1) << 31, &dataset);

    if (status != CF_OK)
        return status;
    status = cf_batches_open(dataset, w->options, &batches);
    if (status == CF_OK) {
        status = batch_of(w, dataset, &batches);
        cf_batches_close(&batches);
    }
    cf_dataset_close(dataset);
    return status;
}

static cf_status read_batch(what_if *w)
{
    const cf_options *options = w->options;

    if ((options->lengths != NULL) == (options->n_data > 0)) {
        cf_log_error("simulate takes one global batch, from %s--lengths FILE "
                     "or from --data FILE",
                     options->lengths != NULL ? "either " : "");
        return CF_INVALID;
    }
    if (options->lengths != NULL)
        return cf_lengths_read(options->lengths, &w->len_tok, &w->n_sequences);
    return read_data(w);
}

/* ---- memory ---- */

static cf_status refuse_size(const what_if *w, size_t bytes)
{
    char size[32];

    cf_log_error("plan and schedule of %zu sequences on %" PRIu32
                 " stages need %s of memory: use a larger --chunk-size or "
                 "fewer --pipeline-stages",
                 w->n_sequences, w->options->pipeline_stages,
                 bytes == SIZE_MAX
                     ? "more than can be counted"
                     : cf_bytes_format(bytes, size, sizeof(size)));
    return CF_NO_MEMORY;
}

/* An array of n zeroed elements, counted; n may be 0. */
static cf_status take(what_if *w, size_t n, size_t element_bytes, void *array_p)
{
    size_t bytes;
    void *array;

    if (__builtin_mul_overflow(n, element_bytes, &bytes) ||
        __builtin_add_overflow(w->bytes, bytes, &w->bytes))
        return refuse_size(w, SIZE_MAX);
    if (w->bytes > cf_machine_memory_bytes())
        return refuse_size(w, w->bytes);
    array = calloc(n > 0 ? n : 1, element_bytes);
    if (array == NULL)
        return refuse_size(w, w->bytes);
    memcpy(array_p, &array, sizeof(array));
    return CF_OK;
}

static void close_all(what_if *w)
{
    free(w->len_tok);
    free(w->plan.chunks);
    free(w->plan.pieces);
    free(w->plan.scratch);
    free(w->schedule.ops);
    free(w->schedule.first_op);
    free(w->schedule.scratch);
    free(w->simulation.peaks);
    free(w->simulation.times);
    free(w->simulation.scratch);
}

/* ---- plan, schedule, simulation ---- */

/* What went wrong inside is a bug, or a size. */
static cf_status explain(const what_if *w, const char *what, cf_status status,
                         const char *rule)
{
    if (status == CF_OVERFLOW)
        return refuse_size(w, SIZE_MAX);
    cf_log_error("the %s of these lengths is wrong (%s): please report it with "
                 "the lengths",
                 what, rule != NULL ? rule : cf_status_str(status));
    return status;
}

static bool takes_whole(const cf_options *options)
{
    return options->schedule == CF_SCHEDULE_1F1B ||
           options->schedule == CF_SCHEDULE_1F1B_RECOMPUTE;
}

static cf_status build_plan(what_if *w)
{
    const bool whole = takes_whole(w->options);
    const uint32_t chunk_size_tok = w->options->chunk_size_tok;
    cf_chunk_plan *plan = &w->plan;
    cf_status status =
        whole ? cf_chunk_plan_bound_whole(w->n_sequences, &plan->capacity)
              : cf_chunk_plan_bound(w->len_tok, w->n_sequences, chunk_size_tok,
                                    &plan->capacity);

    if (status != CF_OK)
        return explain(w, "size of the plan", status, NULL);
    status = take(w, plan->capacity.n_chunks, sizeof(cf_chunk), &plan->chunks);
    if (status == CF_OK)
        status =
            take(w, plan->capacity.n_pieces, sizeof(cf_piece), &plan->pieces);
    if (status == CF_OK)
        status = take(w, plan->capacity.scratch_bytes, 1, &plan->scratch);
    if (status != CF_OK)
        return status;

    status = whole ? cf_chunk_plan_build_whole(w->len_tok, w->n_sequences, plan)
                   : cf_chunk_plan_build(w->len_tok, w->n_sequences,
                                         chunk_size_tok, plan);
    if (status == CF_OK)
        status = cf_chunk_plan_check(plan, w->len_tok, w->n_sequences);
    return status == CF_OK ? CF_OK : explain(w, "chunk plan", status, NULL);
}

static cf_status build_schedule(what_if *w)
{
    const cf_schedule_params params = {
        .n_stages = w->options->pipeline_stages,
        .retained_chunks_max = w->options->retained_chunks_max,
        .kind = w->options->schedule,
    };
    cf_schedule *schedule = &w->schedule;
    cf_schedule_need need;
    cf_op_ref where = {0};
    cf_status status = cf_schedule_bound(&w->plan, &params, &need);

    if (status != CF_OK)
        return explain(w, "size of the schedule", status, NULL);
    status = take(w, need.n_ops, sizeof(cf_op), &schedule->ops);
    if (status == CF_OK)
        status = take(w, params.n_stages + (size_t)1, sizeof(size_t),
                      &schedule->first_op);
    if (status == CF_OK)
        status = take(w, need.scratch_bytes, 1, &schedule->scratch);
    if (status != CF_OK)
        return status;

    schedule->ops_capacity = need.n_ops;
    schedule->scratch_bytes = need.scratch_bytes;
    status = cf_schedule_build(&w->plan, &params, schedule);
    if (status == CF_OK)
        status = cf_schedule_check(&w->plan, schedule, &where);
    return status == CF_OK ? CF_OK : explain(w, "schedule", status, where.rule);
}

static cf_status simulate(what_if *w)
{
    const uint32_t n_stages = w->schedule.params.n_stages;
    const cf_cost_model cost = {.compute = cf_cost_compute,
                                .context = &w->costs};
    cf_simulation *simulation = &w->simulation;
    cf_op_ref where;
    cf_status status =
        cf_simulate_bound(&w->schedule, &simulation->scratch_bytes);

    if (status != CF_OK)
        return explain(w, "size of the simulation", status, NULL);
    status = take(w, n_stages, sizeof(cf_stage_peak), &simulation->peaks);
    if (status == CF_OK)
        status = take(w, w->schedule.first_op[n_stages], sizeof(cf_op_time),
                      &simulation->times);
    if (status == CF_OK)
        status = take(w, simulation->scratch_bytes, 1, &simulation->scratch);
    if (status != CF_OK)
        return status;

    status = cf_simulate(&w->plan, &w->schedule, &cost, simulation, &where);
    return status == CF_OK ? CF_OK
                           : explain(w, "simulation", status, where.rule);
}

/* ---- results ---- */

static void json_print(const what_if *w)
{
    const cf_simulation *simulation = &w->simulation;

    printf("{\"makespan\": %.17g, \"bubble_ratio\": %.17g, \"useful\": %.17g, "
           "\"peak_tokens\": [",
           simulation->makespan, simulation->bubble_ratio, simulation->useful);
    for (uint32_t s = 0; s < w->schedule.params.n_stages; s++)
        printf("%s%" PRIu64, s > 0 ? ", " : "", simulation->peaks[s].kept_tok);
    printf("]}\n");
}

static uint64_t token_count(const what_if *w)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < w->n_sequences; i++)
        sum += w->len_tok[i];
    return sum;
}

static cf_status text_print(const what_if *w, const cf_timeline *timeline)
{
    const cf_simulation *simulation = &w->simulation;
    const uint32_t n_stages = w->schedule.params.n_stages;
    char heading[128];
    cf_status status;

    (void)cf_timeline_heading(timeline, heading, sizeof(heading));
    printf("%s: %zu sequences, %" PRIu64 " tokens, %zu chunks in %" PRIu32
           " groups\n\n",
           heading, w->n_sequences, token_count(w), w->plan.n_chunks,
           w->plan.n_groups);
    status = cf_timeline_write_text(stdout, timeline);
    printf("\nmakespan      %.10g\nbubble ratio  %.5f\nuseful        %.5f\n\n",
           simulation->makespan, simulation->bubble_ratio, simulation->useful);
    printf("largest at one time, in tokens\n  %5s %12s %8s %12s %12s %9s\n",
           "stage", "activations", "chunks", "KV state", "stage input",
           "messages");
    for (uint32_t s = 0; s < n_stages; s++) {
        const cf_stage_peak *peak = &simulation->peaks[s];

        printf("  %5" PRIu32 " %12" PRIu64 " %8" PRIu64 " %12" PRIu64
               " %12" PRIu64 " %9" PRIu64 "\n",
               s, peak->kept_tok, peak->kept_chunks, peak->kv_tok,
               peak->input_tok, peak->messages);
    }
    return status;
}

static cf_status results_write(const what_if *w)
{
    const cf_timeline timeline = {.plan = &w->plan,
                                  .schedule = &w->schedule,
                                  .simulation = &w->simulation};
    cf_status status = CF_OK;

    if (w->options->svg != NULL)
        status =
            cf_file_write(w->options->svg, cf_timeline_write_svg, &timeline);
    if (status == CF_OK && w->options->trace != NULL)
        status = cf_file_write(w->options->trace, cf_timeline_write_trace,
                               &timeline);
    if (status != CF_OK)
        return status;

    if (w->options->json)
        json_print(w);
    else
        status = text_print(w, &timeline);
    if (status != CF_OK || fflush(stdout) != 0) {
        cf_log_error("cannot write the result: standard output is closed");
        return CF_IO;
    }
    return CF_OK;
}

int cf_command_simulate(const cf_options *options)
{
    what_if w = {.options = options};
    cf_status status = read_cost(options->cost, &w.costs);

    if (status == CF_OK)
        status = read_batch(&w);
    if (status == CF_OK)
        status = build_plan(&w);
    if (status == CF_OK)
        status = build_schedule(&w);
    if (status == CF_OK)
        status = simulate(&w);
    if (status == CF_OK)
        status = results_write(&w);
    close_all(&w);
    return cf_exit_code(status);
}
