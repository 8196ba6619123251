/* generate.c - the generate command: what a model says to a prompt. */
#include "src/commands.h"

#include <inttypes.h>
#include <stdlib.h>

#include "src/clock.h"
#include "src/generation.h"
#include "src/generation_config.h"
#include "src/log.h"
#include "src/run.h"
#include "src/tokenizer.h"

/* Why there is no further token. */
typedef enum stop_reason {
    STOP_EOS,
    STOP_NEW_TOKENS,
    STOP_POSITIONS
} stop_reason;

static const char *const stop_names[] = {
    [STOP_EOS] = "eos",
    [STOP_NEW_TOKENS] = "max_new_tokens",
    [STOP_POSITIONS] = "max_position_embeddings",
};

typedef struct generating {
    const cf_options *options;
    cf_run run;
    cf_generation_config config;
    cf_prompt prompt;
    cf_tokenizer tokenizer;
    json_t *tokens; /* of the prompt */
    cf_generation generation;
    stop_reason stop;
    double seconds; /* from the prompt to the last token */
    FILE *out;      /* where the text goes: standard output, or json_text */
    char *json_text;
    size_t json_text_bytes;
} generating;

/* ---- the prompt ---- */

static cf_status prompt_check(const cf_prompt *prompt)
{
    if ((prompt->text == NULL) != (prompt->messages == NULL))
        return CF_OK;
    cf_log_error(prompt->text == NULL
                     ? "generate needs --prompt TEXT or --messages FILE; "
                       "chunkflow generate --help says more"
                     : "--prompt and --messages: the model answers to one of "
                       "them; choose one");
    return CF_INVALID;
}

/* How many tokens there may be in all: the model knows no position beyond its
 * last one. */
static cf_status capacity_find(generating *g)
{
    const uint64_t n_prompt = json_array_size(g->tokens);
    const uint64_t most = g->config.max_position_tok;
    uint64_t capacity = n_prompt + g->options->new_tok_max;

    if (n_prompt >= most) {
        cf_log_error("the prompt has %" PRIu64 " tokens, and %s knows %" PRIu64
                     " positions (max_position_embeddings of its config.json): "
                     "shorten it",
                     n_prompt, g->options->model, most);
        return CF_INVALID;
    }
    g->stop = capacity > most ? STOP_POSITIONS : STOP_NEW_TOKENS;
    if (capacity > most)
        capacity = most;
    g->generation.n_prompt = (uint32_t)n_prompt;
    g->generation.capacity_tok = (uint32_t)capacity;
    return CF_OK;
}

static cf_status prompt_read(generating *g)
{
    cf_status status =
        cf_tokenizer_open(g->options->model, &g->prompt, &g->tokenizer);

    if (status == CF_OK)
        status = cf_tokenizer_prompt(&g->tokenizer, g->run.model.config.vocab,
                                     &g->tokens);
    return status == CF_OK ? capacity_find(g) : status;
}

/* ---- memory ---- */

static void carve(void *context, cf_arena *arena)
{
    generating *g = context;

    cf_model_carve(&g->run.model, CF_MODEL_EVAL, arena);
    cf_generation_carve(&g->generation, &g->run.model, arena);
}

static cf_status place(generating *g)
{
    const cf_options *options = g->options;
    const cf_step_plan_need need = {.longest_tok = g->generation.capacity_tok,
                                    .chunk_size_tok = options->chunk_size_tok};
    cf_arena sizes;
    cf_status status;

    g->generation.chunk_size_tok = options->chunk_size_tok;
    g->generation.sampling = (cf_sampling){.temperature = options->temperature,
                                           .top_p = options->top_p,
                                           .seed = options->seed};
    status = cf_run_size(&g->run, carve, g, &need, &sizes);
    if (status == CF_OK)
        status = cf_run_place(&g->run, &sizes, carve, g);
    if (status == CF_OK)
        status = cf_run_load(&g->run);
    for (uint32_t i = 0; status == CF_OK && i < g->generation.n_prompt; i++)
        g->generation.tokens[i] =
            (uint32_t)json_integer_value(json_array_get(g->tokens, i));
    return status;
}

/* ---- the answer ---- */

/* Takes text over. */
static void text_write(const generating *g, json_t *text)
{
    (void)fwrite(json_string_value(text), 1, json_string_length(text), g->out);
    (void)fflush(g->out);
    json_decref(text);
}

static cf_status tokens_make(generating *g)
{
    cf_generation *generation = &g->generation;
    json_t *text;
    cf_status status = CF_OK;

    while (status == CF_OK && generation->n_tok < generation->capacity_tok) {
        uint32_t token;

        status = cf_generation_next(generation, &token);
        if (status != CF_OK)
            return status;
        if (cf_generation_config_ends(&g->config, token)) {
            g->stop = STOP_EOS;
            break;
        }
        status = cf_tokenizer_text(&g->tokenizer, token, &text);
        if (status == CF_OK)
            text_write(g, text);
    }
    if (status == CF_OK)
        status = cf_tokenizer_end(&g->tokenizer, &text);
    if (status == CF_OK)
        text_write(g, text);
    return status;
}

static void summary_print(const generating *g)
{
    static const char *const why[] = {
        [STOP_EOS] = "an end token came",
        [STOP_NEW_TOKENS] = "--max-new-tokens",
        [STOP_POSITIONS] = "the model has no further position",
    };
    const cf_generation *generation = &g->generation;

    if (g->options->quiet)
        return;
    cf_log_info("%u tokens after a prompt of %u, in %.1f s; stopped: %s",
                (unsigned)(generation->n_tok - generation->n_prompt),
                (unsigned)generation->n_prompt, g->seconds, why[g->stop]);
}

static cf_status json_print(generating *g)
{
    const cf_generation *generation = &g->generation;
    json_t *tokens = json_array(), *result;
    int failed = fclose(g->out);

    g->out = NULL;
    for (uint32_t i = generation->n_prompt; i < generation->n_tok; i++)
        failed |= json_array_append_new(
            tokens, json_integer((json_int_t)generation->tokens[i]));
    result = json_pack("{s:O, s:o, s:o, s:s}", "prompt_tokens", g->tokens,
                       "tokens", tokens, "text",
                       json_stringn(g->json_text, g->json_text_bytes), "stop",
                       stop_names[g->stop]);
    failed |= result == NULL || json_dumpf(result, stdout, 0) != 0;
    putchar('\n');
    json_decref(result);
    if (failed == 0)
        return CF_OK;
    cf_log_error("cannot write the result as JSON: out of memory, or standard "
                 "output is closed");
    return CF_IO;
}

static cf_status out_open(generating *g)
{
    g->out = stdout;
    if (!g->options->json)
        return CF_OK;
    g->out = open_memstream(&g->json_text, &g->json_text_bytes);
    return g->out != NULL ? CF_OK : cf_log_no_memory("the text");
}

static cf_status generate(generating *g)
{
    double begin;
    cf_status status = prompt_read(g);

    if (status == CF_OK)
        status = place(g);
    if (status == CF_OK)
        status = out_open(g);
    begin = cf_clock_s();
    if (status == CF_OK)
        status = tokens_make(g);
    if (status != CF_OK)
        return status;
    g->seconds = cf_clock_s() - begin;
    if (g->options->json)
        status = json_print(g);
    else
        putchar('\n');
    summary_print(g);
    return status;
}

int cf_command_generate(const cf_options *options)
{
    generating g = {.options = options,
                    .prompt = {options->prompt, options->messages},
                    .tokenizer = {.questions = -1}};
    cf_status status = prompt_check(&g.prompt);

    if (status == CF_OK)
        status = cf_run_open(options, NULL, &g.run);
    if (status == CF_OK)
        status = cf_generation_config_read(
            options->model, g.run.model.config.family, &g.config);
    if (status == CF_OK)
        status = generate(&g);
    cf_tokenizer_close(&g.tokenizer);
    if (g.out != NULL && g.out != stdout)
        fclose(g.out);
    free(g.json_text);
    json_decref(g.tokens);
    cf_run_close(&g.run);
    return cf_exit_code(status);
}
