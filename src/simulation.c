/* simulation.c - the simulate command: one global batch, placed, scheduled and
 * timed on paper (rehearsal.h), and what it prints.
 */
#include "src/commands.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/arena.h"
#include "src/batches.h"
#include "src/cost_file.h"
#include "src/dataset.h"
#include "src/file_write.h"
#include "src/lengths.h"
#include "src/log.h"
#include "src/rehearsal_bytes.h"
#include "src/rehearsal_search.h"
#include "src/run.h"
#include "src/timeline.h"

typedef struct what_if {
    const cf_options *options;
    cf_rehearsal_input input;
    uint32_t *len_tok; /* owned; of the input */
    cf_cost_table table;
    cf_measured_cost measured; /* owned; in place of the table */
    cf_rehearsal rehearsal;
    cf_search search;      /* of candidates; none without --search */
    cf_stage_bytes *bytes; /* [n_stages], owned; NULL without --model */
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
static cf_status read_table(const char *text, cf_cost_table *costs_p)
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

static cf_status read_cost(what_if *w)
{
    const cf_options *options = w->options;
    const cf_cost_table *table = &w->table;
    cf_rehearsal_input *input = &w->input;
    cf_status status;

    if (options->cost != NULL && options->cost_file != NULL) {
        cf_log_error("--cost and --cost-file exclude each other: drop one");
        return CF_INVALID;
    }
    if (options->cost_file != NULL) {
        status = cf_measured_cost_open(options->cost_file,
                                       input->params.n_stages, &w->measured);
        input->cost = (cf_cost_model){.compute = cf_measured_cost_compute,
                                      .message = cf_measured_cost_message,
                                      .context = &w->measured};
        input->sequence = w->measured.sequence;
        return status;
    }
    status = read_table(options->cost, &w->table);
    input->cost = (cf_cost_model){.compute = cf_cost_compute, .context = table};
    input->sequence = (cf_cost_terms){
        .per_tok = table->forward.per_tok + table->backward.per_tok,
        .per_pair = table->forward.per_pair + table->backward.per_pair};
    return status;
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
            w->len_tok[w->input.n_sequences++] =
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
        return cf_lengths_read(options->lengths, &w->len_tok,
                               &w->input.n_sequences);
    return read_data(w);
}

/* ---- the question ---- */

/* Options that have no meaning without, or beside, another. */
static cf_status check_together(const cf_options *options,
                                const cf_rehearsal_input *input)
{
    if (options->layers_per_stage != NULL && options->model == NULL) {
        cf_log_error("--layers-per-stage: there are no layers without --model");
        return CF_INVALID;
    }
    if (options->search && cf_rehearsal_is_whole(input)) {
        cf_log_error("--search: %s takes sequences whole, so there is no "
                     "ChunkSize and no K to choose",
                     cf_schedule_kind_str(input->params.kind));
        return CF_INVALID;
    }
    if (!options->search && options->memory_tok > 0) {
        cf_log_error("--memory-tokens is the cap of a --search, which is not "
                     "asked for");
        return CF_INVALID;
    }
    return CF_OK;
}

static cf_status read_question(what_if *w)
{
    const cf_options *options = w->options;
    cf_status status;

    w->input.n_replicas = options->replicas;
    w->input.chunk_size_tok = options->chunk_size_tok;
    w->input.params = (cf_schedule_params){
        .n_stages = options->pipeline_stages,
        .retained_chunks_max = options->retained_chunks_max,
        .kind = options->schedule,
    };
    status = check_together(options, &w->input);
    if (status == CF_OK)
        status = read_cost(w);
    if (status == CF_OK)
        status = read_batch(w);
    w->input.len_tok = w->len_tok;
    return status;
}

/* The best candidate becomes the question. */
static cf_status search(what_if *w)
{
    const uint64_t cap = w->options->memory_tok;
    const cf_candidate *best;
    cf_status status =
        cf_search_open(&w->input, cap > 0 ? cap : UINT64_MAX, &w->search);

    if (status != CF_OK)
        return status;
    if (w->search.best == w->search.n_candidates) {
        cf_log_error("--memory-tokens %" PRIu64 ": no ChunkSize from 1K to 32K "
                     "keeps so few activations on %" PRIu32 " stages",
                     cap, w->input.params.n_stages);
        return CF_NO_MEMORY;
    }
    best = &w->search.candidates[w->search.best];
    w->input.chunk_size_tok = best->chunk_size_tok;
    w->input.params.retained_chunks_max = best->retained_chunks_max;
    return CF_OK;
}

static cf_status read_bytes(what_if *w)
{
    w->bytes = calloc(w->input.params.n_stages, sizeof(*w->bytes));
    if (w->bytes == NULL) {
        cf_log_error("no memory for the bytes of %" PRIu32 " stages",
                     w->input.params.n_stages);
        return CF_NO_MEMORY;
    }
    return cf_rehearsal_bytes(w->options, &w->input, &w->rehearsal, w->bytes);
}

/* ---- JSON ---- */

/* One uint64_t field, at this offset, of an element a stage. */
static void stages_json_print(const what_if *w, const char *name,
                              const void *elements, size_t element_bytes,
                              size_t offset)
{
    printf(", \"%s\": [", name);
    for (uint32_t s = 0; s < w->input.params.n_stages; s++) {
        uint64_t value;

        memcpy(&value, (const char *)elements + s * element_bytes + offset,
               sizeof(value));
        printf("%s%" PRIu64, s > 0 ? ", " : "", value);
    }
    printf("]");
}

static void peaks_json_print(const what_if *w)
{
    static const struct {
        const char *name;
        size_t offset;
    } fields[] = {
        {"peak_tokens", offsetof(cf_stage_peak, kept_tok)},
        {"peak_chunks", offsetof(cf_stage_peak, kept_chunks)},
        {"peak_kv_tokens", offsetof(cf_stage_peak, kv_tok)},
        {"peak_input_tokens", offsetof(cf_stage_peak, input_tok)},
        {"peak_messages", offsetof(cf_stage_peak, messages)},
    };

    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
        stages_json_print(w, fields[i].name, w->rehearsal.peaks,
                          sizeof(*w->rehearsal.peaks), fields[i].offset);
}

static void bytes_json_print(const what_if *w)
{
    stages_json_print(w, "peak_bytes", w->bytes, sizeof(*w->bytes),
                      offsetof(cf_stage_bytes, kept));
    stages_json_print(w, "peak_kv_bytes", w->bytes, sizeof(*w->bytes),
                      offsetof(cf_stage_bytes, kv));
    stages_json_print(w, "peak_input_bytes", w->bytes, sizeof(*w->bytes),
                      offsetof(cf_stage_bytes, input));
}

static void replicas_json_print(const what_if *w)
{
    printf(", \"load_ratio\": %.17g, \"replicas\": [", w->rehearsal.load_ratio);
    for (uint32_t r = 0; r < w->input.n_replicas; r++) {
        const cf_rehearsed_replica *replica = &w->rehearsal.replicas[r];

        printf("%s{\"sequences\": %zu, \"load\": %.17g, \"makespan\": %.17g, "
               "\"bubble_ratio\": %.17g}",
               r > 0 ? ", " : "", replica->n_sequences, replica->load,
               replica->makespan, replica->bubble_ratio);
    }
    printf("]");
}

static void search_json_print(const what_if *w)
{
    printf(", \"chunk_size\": %" PRIu32 ", \"retain_chunks\": %" PRIu32
           ", \"candidates\": [",
           w->input.chunk_size_tok, w->input.params.retained_chunks_max);
    for (size_t i = 0; i < w->search.n_candidates; i++) {
        const cf_candidate *c = &w->search.candidates[i];

        printf("%s{\"chunk_size\": %" PRIu32 ", \"retain_chunks\": %" PRIu32
               ", \"makespan\": %.17g, \"bubble_ratio\": %.17g, "
               "\"useful\": %.17g, \"peak_tokens\": %" PRIu64 ", \"fits\": %s}",
               i > 0 ? ", " : "", c->chunk_size_tok, c->retained_chunks_max,
               c->makespan, c->bubble_ratio, c->useful, c->kept_tok,
               c->fits ? "true" : "false");
    }
    printf("]");
}

static void json_print(const what_if *w)
{
    const cf_rehearsal *rehearsal = &w->rehearsal;

    printf("{\"makespan\": %.17g, \"bubble_ratio\": %.17g, \"useful\": %.17g",
           rehearsal->makespan, rehearsal->bubble_ratio, rehearsal->useful);
    peaks_json_print(w);
    if (w->bytes != NULL)
        bytes_json_print(w);
    if (w->input.n_replicas > 1)
        replicas_json_print(w);
    if (w->options->search)
        search_json_print(w);
    printf("}\n");
}

/* ---- text ---- */

static uint64_t token_count(const what_if *w)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < w->input.n_sequences; i++)
        sum += w->len_tok[i];
    return sum;
}

static void search_text_print(const what_if *w)
{
    size_t n_over = 0;

    printf("%10s %6s %12s %13s %8s %12s\n", "ChunkSize", "K", "makespan",
           "bubble ratio", "useful", "activations");
    for (size_t i = 0; i < w->search.n_candidates; i++) {
        const cf_candidate *c = &w->search.candidates[i];

        n_over += !c->fits;
        if (c->fits)
            printf("%10" PRIu32 " %6" PRIu32 " %12.8g %13.5f %8.5f %12" PRIu64
                   "%s\n",
                   c->chunk_size_tok, c->retained_chunks_max, c->makespan,
                   c->bubble_ratio, c->useful, c->kept_tok,
                   i == w->search.best ? "  best" : "");
    }
    if (n_over > 0)
        printf("%10zu more that keep over %" PRIu64 " tokens a stage\n", n_over,
               w->options->memory_tok);
    printf("\n");
}

static void replicas_text_print(const what_if *w)
{
    printf("%7s %9s %12s %12s %13s\n", "replica", "sequences", "load",
           "makespan", "bubble ratio");
    for (uint32_t r = 0; r < w->input.n_replicas; r++) {
        const cf_rehearsed_replica *replica = &w->rehearsal.replicas[r];

        printf("%7" PRIu32 " %9zu %12.8g %12.8g %13.5f\n", r,
               replica->n_sequences, replica->load, replica->makespan,
               replica->bubble_ratio);
    }
    printf("largest load / mean load %.5f\n\n", w->rehearsal.load_ratio);
}

static void peaks_text_print(const what_if *w)
{
    printf("largest at one time, in tokens\n  %5s %12s %8s %12s %12s %9s\n",
           "stage", "activations", "chunks", "KV state", "stage input",
           "messages");
    for (uint32_t s = 0; s < w->input.params.n_stages; s++) {
        const cf_stage_peak *peak = &w->rehearsal.peaks[s];

        printf("  %5" PRIu32 " %12" PRIu64 " %8" PRIu64 " %12" PRIu64
               " %12" PRIu64 " %9" PRIu64 "\n",
               s, peak->kept_tok, peak->kept_chunks, peak->kv_tok,
               peak->input_tok, peak->messages);
    }
}

static void bytes_text_print(const what_if *w)
{
    printf("\nand in bytes of the model\n  %5s %9s %12s %12s %12s\n", "stage",
           "layers", "activations", "KV state", "stage input");
    for (uint32_t s = 0; s < w->input.params.n_stages; s++) {
        const cf_stage_bytes *bytes = &w->bytes[s];
        const uint64_t values[] = {bytes->kept, bytes->kv, bytes->input};
        char layers[32];

        (void)snprintf(layers, sizeof(layers), "%" PRIu32 "-%" PRIu32,
                       bytes->first_layer, bytes->end_layer - 1);
        printf("  %5" PRIu32 " %9s", s, layers);
        for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
            char size[32];

            printf(" %12s", cf_bytes_format(values[i], size, sizeof(size)));
        }
        printf("\n");
    }
}

static cf_status text_print(const what_if *w, const cf_timeline *timeline)
{
    const cf_rehearsal *rehearsal = &w->rehearsal;
    const cf_rehearsed_pipeline *slowest = &rehearsal->slowest;
    char heading[128];
    cf_status status;

    (void)cf_timeline_heading(timeline, heading, sizeof(heading));
    if (w->options->search)
        search_text_print(w);
    printf("%s: %zu sequences, %" PRIu64 " tokens", heading,
           w->input.n_sequences, token_count(w));
    if (w->input.n_replicas > 1) {
        printf(", %" PRIu32 " replicas\n\n", w->input.n_replicas);
        replicas_text_print(w);
        printf("the slowest: %zu sequences", slowest->n_sequences);
    }
    printf(", %zu chunks in %" PRIu32 " groups\n\n", slowest->plan.n_chunks,
           slowest->plan.n_groups);
    status = cf_timeline_write_text(stdout, timeline);
    printf("\nmakespan      %.10g\nbubble ratio  %.5f\nuseful        %.5f\n\n",
           rehearsal->makespan, rehearsal->bubble_ratio, rehearsal->useful);
    peaks_text_print(w);
    if (w->bytes != NULL)
        bytes_text_print(w);
    return status;
}

/* ---- the command ---- */

static cf_status results_write(const what_if *w)
{
    const cf_rehearsed_pipeline *slowest = &w->rehearsal.slowest;
    const cf_timeline timeline = {.plan = &slowest->plan,
                                  .schedule = &slowest->schedule,
                                  .simulation = &slowest->simulation};
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
    cf_status status = read_question(&w);

    if (status == CF_OK && options->search)
        status = search(&w);
    if (status == CF_OK)
        status = cf_rehearsal_open(&w.input, &w.rehearsal);
    if (status == CF_OK && options->model != NULL)
        status = read_bytes(&w);
    if (status == CF_OK)
        status = results_write(&w);
    cf_rehearsal_close(&w.rehearsal);
    cf_search_close(&w.search);
    free(w.bytes);
    cf_measured_cost_close(&w.measured);
    free(w.len_tok);
    return cf_exit_code(status);
}
