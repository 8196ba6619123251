/* check_generation.c - what a model says, against transformers.
 *
 * (1) Greedy tokens are those of transformers, and the logits behind the prompt
 *     too, for any ChunkSize of the prefill.
 * (2) One token at a time is the same as all of them in a prompt.
 * (3) A fixed seed gives the same tokens every time.
 */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/adapter_options.h"
#include "src/generation.h"
#include "src/generation_config.h"
#include "src/run.h"
#include "tests/parity/parity.h"

static const char *const names[] = {
    "adapter-all-targets",
    "llama-bias",
    "llama-gqa-llama3",
    "llama-linear-sharded",
    "llama-mha",
    "llama-yarn",
    "qwen2-tied",
    "qwen3-mqa-new-spelling",
    "qwen3-mqa-old-spelling",
    "qwen3-untied",
};

/* ---- a model that speaks ---- */

typedef struct speaker {
    cf_options options; /* owns its strings */
    cf_run run;
    cf_generation generation;
} speaker;

static void carve(void *context, cf_arena *arena)
{
    speaker *s = context;

    cf_model_carve(&s->run.model, CF_MODEL_EVAL, arena);
    cf_generation_carve(&s->generation, &s->run.model, arena);
}

static speaker *speaker_open(const json_t *expected, cf_compute compute,
                             uint32_t chunk_size_tok)
{
    speaker *s = calloc(1, sizeof(*s));
    char *fixtures = fixtures_folder();
    const char *adapter =
        json_string_value(json_object_get(expected, "adapter"));

    ck_assert_ptr_nonnull(s);
    s->options = (cf_options){.command = CF_COMMAND_GENERATE,
                              .compute = compute,
                              .threads = 1,
                              .chunk_size_tok = chunk_size_tok};
    s->options.model =
        text_format("%s/%s", fixtures,
                    json_string_value(json_object_get(expected, "base")));
    if (adapter != NULL)
        s->options.adapter =
            text_format("%s/../adapters/%s/adapter", fixtures, adapter);
    free(fixtures);
    ck_assert_int_eq(cf_adapter_options_resolve(&s->options), CF_OK);
    ck_assert_int_eq(cf_run_open(&s->options, NULL, &s->run), CF_OK);
    return s;
}

/* With the sampling set, ready for its first token. */
static void speaker_ask(speaker *s, const json_t *prompt, uint32_t n_new)
{
    const cf_step_plan_need need = {0};
    cf_generation *g = &s->generation;
    cf_arena sizes;

    g->chunk_size_tok = s->options.chunk_size_tok;
    g->n_prompt = (uint32_t)json_array_size(prompt);
    g->capacity_tok = g->n_prompt + n_new;
    ck_assert_int_eq(cf_run_size(&s->run, carve, s, &need, &sizes), CF_OK);
    ck_assert_int_eq(cf_run_place(&s->run, &sizes, carve, s), CF_OK);
    ck_assert_int_eq(cf_run_load(&s->run), CF_OK);
    for (uint32_t i = 0; i < g->n_prompt; i++)
        g->tokens[i] = (uint32_t)json_integer_value(json_array_get(prompt, i));
}

static void speaker_close(speaker *s)
{
    cf_run_close(&s->run);
    cf_options_close(&s->options);
    free(s);
}

static double logit(const speaker *s, size_t i)
{
    return s->run.kernels.acc_bytes == sizeof(double)
               ? ((const double *)s->generation.logits)[i]
               : (double)((const float *)s->generation.logits)[i];
}

/* max|a - b| / max|b|. */
static double logits_rel(const speaker *s, const json_t *wanted)
{
    double worst = 0, top = 0;

    ck_assert_uint_eq(json_array_size(wanted), s->run.model.config.vocab);
    for (size_t i = 0; i < json_array_size(wanted); i++) {
        const double value = json_number_value(json_array_get(wanted, i));

        worst = fmax(worst, fabs(logit(s, i) - value));
        top = fmax(top, fabs(value));
    }
    return worst / top;
}

/* ---- the references ---- */

static json_t *expected_open(const char *name)
{
    char *fixtures = fixtures_folder();
    char *path =
        text_format("%s/../generations/%s/expected.json", fixtures, name);
    json_t *expected = json_read(path);

    free(path);
    free(fixtures);
    return expected;
}

static void check_tokens(const speaker *s, const json_t *tokens)
{
    const cf_generation *g = &s->generation;

    for (uint32_t i = 0; i < json_array_size(tokens); i++)
        ck_assert_msg(g->tokens[g->n_prompt + i] ==
                          json_integer_value(json_array_get(tokens, i)),
                      "prompt of %u, chunks of %u: token %u is %u",
                      (unsigned)g->n_prompt, (unsigned)g->chunk_size_tok,
                      (unsigned)i, (unsigned)g->tokens[g->n_prompt + i]);
}

static const struct {
    cf_compute compute;
    double logits_rel;
} precisions[] = {
    {CF_COMPUTE_FP64, 1e-12},
    {CF_COMPUTE_FP32, 2e-5},
};

static void check_case(const json_t *expected, const json_t *c,
                       size_t precision, uint32_t chunk_size_tok)
{
    const json_t *tokens = json_object_get(c, "tokens");
    const uint32_t n_new = (uint32_t)json_array_size(tokens);
    speaker *s =
        speaker_open(expected, precisions[precision].compute, chunk_size_tok);
    uint32_t token;

    ck_assert_uint_gt(n_new, 8);
    speaker_ask(s, json_object_get(c, "prompt"), n_new);
    for (uint32_t i = 0; i < n_new; i++) {
        ck_assert_int_eq(cf_generation_next(&s->generation, &token), CF_OK);
        if (i > 0)
            continue;
        const double rel = logits_rel(s, json_object_get(c, "logits"));

        ck_assert_msg(rel <= precisions[precision].logits_rel,
                      "the logits are off by %g", rel);
    }
    check_tokens(s, tokens);
    speaker_close(s);
}

START_TEST(greedy_tokens_are_those_of_transformers_for_any_chunk_size)
{
    json_t *expected = expected_open(names[_i]);
    const json_t *cases = json_object_get(expected, "cases"), *c;
    size_t i;

    ck_assert_uint_ge(json_array_size(cases), 4);
    json_array_foreach (cases, i, c)
        for (size_t p = 0; p < LENGTH(precisions); p++)
            for (size_t size = 0; size < LENGTH(chunk_sizes); size++)
                check_case(expected, c, p, chunk_sizes[size]);
    json_decref(expected);
}
END_TEST

/* In bf16 there is no reference: only that it says something, and the same for
 * any ChunkSize, where the first logits are near. */
START_TEST(logits_in_bf16_are_near_those_of_transformers)
{
    json_t *expected = expected_open(names[_i]);
    const json_t *c = json_array_get(json_object_get(expected, "cases"), 2);

    for (size_t size = 0; size < LENGTH(chunk_sizes); size++) {
        speaker *s = speaker_open(expected, CF_COMPUTE_BF16, chunk_sizes[size]);
        uint32_t token;

        speaker_ask(s, json_object_get(c, "prompt"), 1);
        ck_assert_int_eq(cf_generation_next(&s->generation, &token), CF_OK);
        ck_assert(logits_rel(s, json_object_get(c, "logits")) < 5e-2);
        speaker_close(s);
    }
    json_decref(expected);
}
END_TEST

/* What was said one token at a time is a prompt the next time: the logits behind
 * it are those that were there. */
START_TEST(a_token_at_a_time_is_the_same_as_a_prompt)
{
    json_t *expected = expected_open(names[_i]);
    const json_t *c = json_array_get(json_object_get(expected, "cases"), 1);
    json_t *longer = json_copy(json_object_get(c, "prompt"));
    json_t *logits = json_array();
    speaker *s = speaker_open(expected, CF_COMPUTE_FP64, 16);
    const uint32_t n_new = 12;
    uint32_t token;

    speaker_ask(s, json_object_get(c, "prompt"), n_new);
    for (uint32_t i = 0; i < n_new; i++)
        ck_assert_int_eq(cf_generation_next(&s->generation, &token), CF_OK);
    for (uint32_t i = 0; i + 1 < n_new; i++)
        json_array_append(longer,
                          json_array_get(json_object_get(c, "tokens"), i));
    for (size_t i = 0; i < s->run.model.config.vocab; i++)
        json_array_append_new(logits, json_real(logit(s, i)));
    speaker_close(s);

    s = speaker_open(expected, CF_COMPUTE_FP64, 512);
    speaker_ask(s, longer, 1);
    ck_assert_int_eq(cf_generation_next(&s->generation, &token), CF_OK);
    ck_assert(logits_rel(s, logits) <= 1e-12);
    speaker_close(s);
    json_decref(logits);
    json_decref(longer);
    json_decref(expected);
}
END_TEST

/* The tokens of a draw, n of them. */
static void drawn(const json_t *expected, cf_sampling sampling, uint32_t n,
                  uint32_t *tokens)
{
    const json_t *c = json_array_get(json_object_get(expected, "cases"), 1);
    speaker *s = speaker_open(expected, CF_COMPUTE_FP32, 7);

    s->generation.sampling = sampling;
    speaker_ask(s, json_object_get(c, "prompt"), n);
    for (uint32_t i = 0; i < n; i++)
        ck_assert_int_eq(cf_generation_next(&s->generation, &tokens[i]), CF_OK);
    speaker_close(s);
}

START_TEST(a_seed_gives_the_same_tokens_every_time)
{
    json_t *expected = expected_open("llama-mha");
    const cf_sampling one = {.temperature = 1.5, .top_p = 0.9, .seed = 1};
    const cf_sampling two = {.temperature = 1.5, .top_p = 0.9, .seed = 2};
    uint32_t tokens[3][24];

    drawn(expected, one, 24, tokens[0]);
    drawn(expected, one, 24, tokens[1]);
    drawn(expected, two, 24, tokens[2]);
    ck_assert_mem_eq(tokens[0], tokens[1], sizeof(tokens[0]));
    ck_assert_mem_ne(tokens[0], tokens[2], sizeof(tokens[0]));
    json_decref(expected);
}
END_TEST

/* What was carved is all that is used, and the pages are those of the tokens. */
START_TEST(pages_are_those_of_prompt_and_new_tokens)
{
    json_t *expected = expected_open("llama-mha");
    const json_t *c = json_array_get(json_object_get(expected, "cases"), 3);
    speaker *s = speaker_open(expected, CF_COMPUTE_FP32, 64);
    const cf_pool *pages = &s->generation.engine.kv.pages;
    uint32_t token;

    speaker_ask(s, json_object_get(c, "prompt"), 24);
    ck_assert_uint_eq(pages->n_blocks, 2);
    for (uint32_t i = 0; i < 24; i++) {
        ck_assert_int_eq(cf_generation_next(&s->generation, &token), CF_OK);
        ck_assert_uint_eq(pages->n_taken, 250 + i <= 256 ? 1 : 2);
    }
    speaker_close(s);
    json_decref(expected);
}
END_TEST

/* As the families' own classes have it. */
START_TEST(a_config_without_end_tokens_has_those_of_its_family)
{
    static const struct {
        const char *fixture;
        cf_family family;
        size_t n_eos;
        uint32_t max_position_tok;
    } cases[] = {
        {"llama-mha", CF_FAMILY_LLAMA, 1, 256},
        {"qwen2-tied", CF_FAMILY_QWEN2, 0, 256},
        {"qwen3-mqa-new-spelling", CF_FAMILY_QWEN3, 0, 192},
    };
    char *fixtures = fixtures_folder();

    for (size_t i = 0; i < LENGTH(cases); i++) {
        char *folder = text_format("%s/%s", fixtures, cases[i].fixture);
        cf_generation_config config;

        ck_assert_int_eq(
            cf_generation_config_read(folder, cases[i].family, &config), CF_OK);
        ck_assert_uint_eq(config.n_eos, cases[i].n_eos);
        ck_assert_uint_eq(config.max_position_tok, cases[i].max_position_tok);
        ck_assert(cf_generation_config_ends(&config, 2) ==
                  (cases[i].n_eos == 1));
        free(folder);
    }
    free(fixtures);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("generation");
    TCase *tcase = tcase_create("generation");
    SRunner *runner;
    int n_failed;

    tcase_set_timeout(tcase, 300);
    tcase_add_loop_test(
        tcase, greedy_tokens_are_those_of_transformers_for_any_chunk_size, 0,
        LENGTH(names));
    tcase_add_loop_test(tcase, logits_in_bf16_are_near_those_of_transformers, 0,
                        LENGTH(names));
    tcase_add_loop_test(tcase, a_token_at_a_time_is_the_same_as_a_prompt, 0,
                        LENGTH(names));
    tcase_add_test(tcase, a_seed_gives_the_same_tokens_every_time);
    tcase_add_test(tcase, pages_are_those_of_prompt_and_new_tokens);
    tcase_add_test(tcase, a_config_without_end_tokens_has_those_of_its_family);
    suite_add_tcase(suite, tcase);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    n_failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return n_failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
