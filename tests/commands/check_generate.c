/* check_generate.c - the generate command, with a tokenizer of a few lines of
 * shell: what it prints, when it stops, and how it errs.
 *
 * scripts/tokenizer itself is tested in tests/scripts/test_generate.py.
 */
#include <check.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/commands/sandbox.h"

/* Says that the prompt is [1, 2, 3], and of every token its number. */
static const char COUNTING[] = "echo '[1, 2, 3]'\n"
                               "while read -r token; do\n"
                               "    echo \"\\\" $token\\\"\"\n"
                               "done\n"
                               "echo '\"!\"'\n";

static void tokenizer_set(const sandbox *box, const char *script)
{
    char *path = path_in(box->folder, "tokenizer");
    char *text = text_format("#!/bin/sh\n%s", script);

    file_write(path, text, strlen(text));
    ck_assert_int_eq(chmod(path, 0755), 0);
    ck_assert_int_eq(setenv("CHUNKFLOW_TOKENIZER", path, 1), 0);
    free(text);
    free(path);
}

static sandbox box_open(void)
{
    sandbox box = sandbox_open();

    tokenizer_set(&box, COUNTING);
    config_patch(&box, "{\"eos_token_id\": []}");
    return box;
}

/* chunkflow generate of the sandbox's model, and further words up to a NULL. */
static parity_command generate(const sandbox *box, ...)
{
    const char *program = getenv("CHUNKFLOW");
    parity_command command = {.exit_code = -1};
    va_list words;

    command_add(&command, program != NULL ? program : "./src/chunkflow",
                "generate", "--model", box->model, "--threads", "1", "--quiet",
                NULL);
    va_start(words, box);
    for (const char *word = va_arg(words, const char *); word != NULL;
         word = va_arg(words, const char *))
        command_add(&command, word, NULL);
    va_end(words);
    return command;
}

static json_t *json_run(parity_command *command, const sandbox *box)
{
    json_t *result;

    command_add(command, "--json", NULL);
    command_expect(command, box->folder, 0);
    result = json_loads(command->out, 0, NULL);
    if (result == NULL)
        command_blame(command, "not one JSON object");
    command_close(command);
    return result;
}

/* The text that the counting tokenizer makes of tokens, the last `n_mute` of which
 * it does not see. */
static char *text_of(const json_t *tokens, size_t n_mute)
{
    char *text = strdup("");

    for (size_t i = 0; i + n_mute < json_array_size(tokens); i++) {
        char *longer = text_format(
            "%s %d", text, (int)json_integer_value(json_array_get(tokens, i)));

        free(text);
        text = longer;
    }
    return text;
}

static json_int_t token_at(const json_t *result, size_t i)
{
    return json_integer_value(
        json_array_get(json_object_get(result, "tokens"), i));
}

static void check_stop(const json_t *result, size_t n_tokens, const char *why)
{
    ck_assert_uint_eq(json_array_size(json_object_get(result, "tokens")),
                      n_tokens);
    ck_assert_str_eq(json_string_value(json_object_get(result, "stop")), why);
}

/* ---- what it says ---- */

START_TEST(text_comes_as_it_is_with_a_line_end_behind_it)
{
    sandbox box = box_open();
    parity_command json =
        generate(&box, "--prompt", "x", "--max-new-tokens", "5", NULL);
    parity_command plain =
        generate(&box, "--messages", "x", "--max-new-tokens", "5", NULL);
    json_t *result = json_run(&json, &box);
    char *text = text_of(json_object_get(result, "tokens"), 0);
    char *said = text_format("%s!\n", text);

    check_stop(result, 5, "max_new_tokens");
    ck_assert_uint_eq(json_array_size(json_object_get(result, "prompt_tokens")),
                      3);
    ck_assert_int_eq(strncmp(json_string_value(json_object_get(result, "text")),
                             text, strlen(text)),
                     0);
    command_expect(&plain, box.folder, 0);
    ck_assert_str_eq(plain.out, said);
    ck_assert_str_eq(plain.err, "");
    command_close(&plain);
    free(said);
    free(text);
    json_decref(result);
    sandbox_close(&box);
}
END_TEST

START_TEST(chunk_size_and_compute_type_say_the_same)
{
    static const char *const sizes[] = {"1", "2", "512"};
    static const char *const types[] = {"fp32", "fp64"};
    sandbox box = box_open();
    json_t *first = NULL;

    for (size_t i = 0; i < LENGTH(sizes) * LENGTH(types); i++) {
        parity_command command =
            generate(&box, "--prompt", "x", "--max-new-tokens", "20",
                     "--chunk-size", sizes[i % LENGTH(sizes)], "--compute",
                     types[i / LENGTH(sizes)], NULL);
        json_t *result = json_run(&command, &box);

        if (first == NULL)
            first = json_incref(result);
        ck_assert(json_equal(first, result));
        json_decref(result);
    }
    json_decref(first);
    sandbox_close(&box);
}
END_TEST

START_TEST(a_seed_repeats_a_draw)
{
    sandbox box = box_open();
    json_t *results[3];

    for (size_t i = 0; i < 3; i++) {
        parity_command command = generate(
            &box, "--prompt", "x", "--max-new-tokens", "20", "--temperature",
            "2", "--top-p", "0.95", "--seed", i < 2 ? "7" : "8", NULL);

        results[i] = json_run(&command, &box);
    }
    ck_assert(json_equal(results[0], results[1]));
    ck_assert(!json_equal(results[0], results[2]));
    for (size_t i = 0; i < 3; i++)
        json_decref(results[i]);
    sandbox_close(&box);
}
END_TEST

/* ---- when it stops ---- */

static void folder_write(const sandbox *box, const char *name, const char *text)
{
    char *path = path_in(box->model, name);

    file_write(path, text, strlen(text));
    free(path);
}

/* A text with a token's number in the place of its %. */
static char *with_token(const char *text, int token)
{
    const char *at = strchr(text, '%');

    if (at == NULL)
        return strdup(text);
    return text_format("%.*s%d%s", (int)(at - text), text, token, at + 1);
}

/* The third token ends the text, wherever that is said; it is no text itself. */
START_TEST(an_end_token_ends_the_text)
{
    static const struct {
        const char *config;     /* % stands for the token */
        const char *generation; /* likewise; "": there is none */
        size_t n_tokens;
    } cases[] = {
        {"{\"eos_token_id\": %}", "", 3},
        {"{\"eos_token_id\": [52, %]}", "", 3},
        {"{\"eos_token_id\": []}", "{\"eos_token_id\": [%, 52]}", 3},
        {"{\"eos_token_id\": []}", "{\"eos_token_id\": %}", 3},
        {"{\"eos_token_id\": %}", "{\"temperature\": 0.6}", 3},
        /* The file that is there for it wins. */
        {"{\"eos_token_id\": %}", "{\"eos_token_id\": null}", 10},
    };
    sandbox box = box_open();
    parity_command command =
        generate(&box, "--prompt", "x", "--max-new-tokens", "10", NULL);
    json_t *all = json_run(&command, &box);
    const int third = (int)token_at(all, 2);

    ck_assert(third != token_at(all, 0) && third != token_at(all, 1));
    ck_assert_int_ne(third, 52);
    for (size_t i = 0; i < LENGTH(cases); i++) {
        char *config = with_token(cases[i].config, third);
        char *generation = with_token(cases[i].generation, third);
        json_t *result;

        config_patch(&box, config);
        if (generation[0] != '\0')
            folder_write(&box, "generation_config.json", generation);
        command =
            generate(&box, "--prompt", "x", "--max-new-tokens", "10", NULL);
        result = json_run(&command, &box);
        check_stop(result, cases[i].n_tokens,
                   cases[i].n_tokens == 3 ? "eos" : "max_new_tokens");
        if (cases[i].n_tokens == 3) {
            char *text = text_of(json_object_get(result, "tokens"), 1);
            const char *said =
                json_string_value(json_object_get(result, "text"));

            ck_assert_uint_eq(strlen(said), strlen(text) + 1);
            free(text);
        }
        json_decref(result);
        free(generation);
        free(config);
    }
    json_decref(all);
    sandbox_close(&box);
}
END_TEST

START_TEST(it_stops_at_the_last_position)
{
    sandbox box = box_open();
    parity_command command = generate(&box, "--prompt", "x", NULL);
    json_t *result;

    config_patch(&box, "{\"max_position_embeddings\": 8}");
    result = json_run(&command, &box);
    check_stop(result, 5, "max_position_embeddings");
    json_decref(result);
    sandbox_close(&box);
}
END_TEST

START_TEST(a_summary_goes_to_standard_error)
{
    sandbox box = box_open();
    parity_command command =
        generate(&box, "--prompt", "x", "--max-new-tokens", "2", NULL);

    command_be_loud(&command);
    command_expect(&command, box.folder, 0);
    if (strstr(command.err, "chunkflow: 2 tokens after a prompt of 3") == NULL)
        command_blame(&command, "no summary");
    command_close(&command);
    sandbox_close(&box);
}
END_TEST

/* ---- errors ---- */

static const struct refused_case {
    const char *tokenizer; /* NULL: the counting one */
    const char *words[4];
    int exit_code;
    const char *part;
} refused_cases[] = {
    {NULL, {NULL}, 2, "generate needs --prompt TEXT or --messages FILE"},
    {NULL, {"--prompt", "x", "--messages=y"}, 2, "choose one"},
    {NULL, {"--prompt", "x", "--top-p=0"}, 2, "--top-p"},
    {NULL, {"--prompt", "x", "--temperature=-1"}, 2, "--temperature"},
    {NULL, {"--prompt", "x", "--data=y"}, 2, "--data: is an option of train"},
    {NULL, {"--prompt", "x", "--memory=1KiB"}, 4, "or --max-new-tokens"},
    {"echo '[]'\n", {"--prompt", "x"}, 2, "the prompt has no tokens"},
    {"echo '[1, 99]'\n",
     {"--prompt", "x"},
     3,
     "token 1 of the prompt is 99, outside the model's vocabulary of 53"},
    {"echo '[1, -1]'\n", {"--prompt", "x"}, 3, "token 1 of the prompt is -1"},
    {"echo '\"a\"'\n", {"--prompt", "x"}, 1, "an answer of another kind"},
    {"echo '[1]'; while read x; do echo 5; done\n",
     {"--prompt", "x"},
     1,
     "an answer of another kind"},
    {"exit 9\n", {"--prompt", "x"}, 1, "ended without an answer (returned 9)"},
    {"kill -9 $$\n", {"--prompt", "x"}, 1, "(signal 9)"},
    {"echo '[1]'; read x; exit 4\n", {"--prompt", "x"}, 1, "(returned 4)"},
    /* What it says itself is not said again. */
    {"echo 'chunkflow: error: of its own' >&2; exit 3\n",
     {"--prompt", "x"},
     3,
     "of its own"},
    {"echo 'chunkflow: error: of its own' >&2; exit 2\n",
     {"--prompt", "x"},
     2,
     "of its own"},
};

START_TEST(what_is_wrong_is_said_in_one_line)
{
    const struct refused_case *c = &refused_cases[_i];
    sandbox box = box_open();
    parity_command command = generate(&box, NULL);

    if (c->tokenizer != NULL)
        tokenizer_set(&box, c->tokenizer);
    for (size_t i = 0; c->words[i] != NULL; i++)
        command_add(&command, c->words[i], NULL);
    expect_error(&command, &box, c->exit_code, (const char *[]){c->part, NULL});
    sandbox_close(&box);
}
END_TEST

START_TEST(a_prompt_beyond_the_last_position_is_refused)
{
    sandbox box = box_open();
    parity_command command = generate(&box, "--prompt", "x", NULL);

    config_patch(&box, "{\"max_position_embeddings\": 3}");
    expect_error(&command, &box, 2,
                 (const char *[]){"the prompt has 3 tokens", "3 positions",
                                  "shorten it", NULL});
    sandbox_close(&box);
}
END_TEST

START_TEST(an_end_token_that_is_none_names_the_field)
{
    sandbox box = box_open();
    parity_command command = generate(&box, "--prompt", "x", NULL);

    folder_write(&box, "generation_config.json", "{\"eos_token_id\": \"a\"}");
    expect_error(
        &command, &box, 3,
        (const char *[]){"generation_config.json", "eos_token_id", NULL});
    sandbox_close(&box);
}
END_TEST

START_TEST(a_tokenizer_that_is_not_there_is_named)
{
    sandbox box = box_open();
    parity_command command = generate(&box, "--prompt", "x", NULL);

    ck_assert_int_eq(setenv("CHUNKFLOW_TOKENIZER", "/nowhere/tokenizer", 1), 0);
    expect_error(&command, &box, 1,
                 (const char *[]){"cannot start /nowhere/tokenizer", NULL});
    sandbox_close(&box);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("generate");
    TCase *tcase = tcase_create("generate");
    SRunner *runner;
    int n_failed;

    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, text_comes_as_it_is_with_a_line_end_behind_it);
    tcase_add_test(tcase, chunk_size_and_compute_type_say_the_same);
    tcase_add_test(tcase, a_seed_repeats_a_draw);
    tcase_add_test(tcase, an_end_token_ends_the_text);
    tcase_add_test(tcase, it_stops_at_the_last_position);
    tcase_add_test(tcase, a_summary_goes_to_standard_error);
    tcase_add_loop_test(tcase, what_is_wrong_is_said_in_one_line, 0,
                        LENGTH(refused_cases));
    tcase_add_test(tcase, a_prompt_beyond_the_last_position_is_refused);
    tcase_add_test(tcase, an_end_token_that_is_none_names_the_field);
    tcase_add_test(tcase, a_tokenizer_that_is_not_there_is_named);
    suite_add_tcase(suite, tcase);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    n_failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return n_failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
