/* check_commands.c - bad input: one clear line, the exit code of INTERFACE
 * section 5, and nothing half-written.  What good runs leave behind is in
 * check_runs.c.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/commands/runs.h"
#include "tests/commands/sandbox.h"

enum {
    PARTS_MAX = 4
};

/* ---- config.json ---- */

static const struct config_case {
    const char *patch;
    const char *parts[PARTS_MAX];
} config_cases[] = {
    {"{\"hidden_size\": null}", {"config.json", "hidden_size", "missing"}},
    {"{\"model_type\": null}", {"config.json", "model_type"}},
    {"{\"hidden_size\": -24}", {"hidden_size", "-24"}},
    {"{\"num_hidden_layers\": 0}", {"num_hidden_layers", "is 0"}},
    {"{\"num_hidden_layers\": 1000000}", {"num_hidden_layers", "1000000"}},
    {"{\"vocab_size\": \"53\"}", {"vocab_size", "\"53\""}},
    {"{\"rms_norm_eps\": 0}", {"rms_norm_eps", "above 0"}},
    {"{\"num_key_value_heads\": 2}",
     {"num_key_value_heads", "num_attention_heads"}},
    {"{\"num_attention_heads\": 5}", {"hidden_size", "num_attention_heads"}},
    {"{\"head_dim\": 7}", {"head_dim", "even"}},
    {"{\"model_type\": \"mixtral\"}", {"model_type", "mixtral", "llama"}},
    {"{\"num_local_experts\": 8}", {"num_local_experts", "mixture of experts"}},
    {"{\"model_type\": \"qwen2\", \"num_key_value_heads\": 3,"
     " \"use_sliding_window\": true, \"sliding_window\": 8,"
     " \"max_window_layers\": 0}",
     {"use_sliding_window", "not supported"}},
    {"{\"model_type\": \"qwen3\", \"num_key_value_heads\": 3,"
     " \"layer_types\": [\"full_attention\", \"sliding_attention\"]}",
     {"layer_types", "layer 1", "sliding_attention"}},
    {"{\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2}}",
     {"rope_scaling", "dynamic"}},
    {"{\"rope_scaling\": {\"rope_type\": \"linear\", \"type\": \"yarn\","
     " \"factor\": 2}}",
     {"rope_scaling", "yarn", "linear"}},
    {"{\"quantization_config\": {}}", {"quantization_config", "quantised"}},
    {"{\"hidden_act\": \"gelu\"}", {"hidden_act", "gelu", "silu"}},
    /* The config is fine alone, but not with the weights. */
    {"{\"vocab_size\": 54}",
     {"model.embed_tokens.weight", "[53, 24]", "[54, 24]"}},
    {"{\"num_hidden_layers\": 3}", {"model.layers.2.", "missing"}},
    {"{\"num_hidden_layers\": 1}", {"model.layers.1.", "not part"}},
    {"{\"attention_bias\": true}", {"q_proj.bias", "missing"}},
    {"{\"tie_word_embeddings\": true}",
     {"lm_head.weight", "differs", "tie_word_embeddings"}},
};

START_TEST(a_bad_config_is_an_error_that_names_the_field)
{
    const struct config_case *c = &config_cases[_i];
    sandbox box = sandbox_open();
    parity_command train = box_command("train", &box);

    config_patch(&box, c->patch);
    expect_error(&train, &box, 3, c->parts);
    ck_assert(!exists(box.folder, "run"));
    sandbox_close(&box);
}
END_TEST

START_TEST(a_config_that_is_not_json_is_an_error_with_its_line)
{
    sandbox box = sandbox_open();
    char *path = path_in(box.model, "config.json");
    parity_command train = box_command("train", &box);

    file_write(path, "{\n\"model_type\": llama\n}", 24);
    expect_error(&train, &box, 3,
                 (const char *[]){"config.json", "line 2", NULL});
    free(path);
    sandbox_close(&box);
}
END_TEST

/* ---- weights ---- */

#define NORM "model.norm.weight"
#define GATE "model.layers.1.mlp.gate_proj.weight"

static json_t *tensor_of(weights *w, const char *name)
{
    return json_object_get(w->header, name);
}

static void missing(weights *w)
{
    /* A name that is read over, so that only the lack is wrong. */
    json_object_set(w->header, "old.rotary_emb.inv_freq", tensor_of(w, NORM));
    json_object_del(w->header, NORM);
}

static void unknown(weights *w)
{
    json_object_set_new(w->header, "model.extra",
                        json_pack("{s:s, s:[i], s:[I, I]}", "dtype", "F32",
                                  "shape", 1, "data_offsets",
                                  (json_int_t)w->n_data,
                                  (json_int_t)w->n_data + 4));
    w->n_data += 4;
}

static void wrong_shape(weights *w)
{
    json_object_set_new(tensor_of(w, NORM), "shape",
                        json_pack("[i, i]", 2, SANDBOX_HIDDEN / 2));
}

static void negative_shape(weights *w)
{
    json_object_set_new(tensor_of(w, NORM), "shape",
                        json_pack("[i]", -SANDBOX_HIDDEN));
}

static void shape_past_its_bytes(weights *w)
{
    json_object_set_new(tensor_of(w, NORM), "shape",
                        json_pack("[i]", SANDBOX_HIDDEN + 1));
}

static void shape_past_64_bits(weights *w)
{
    json_object_set_new(tensor_of(w, NORM), "shape",
                        json_loads("[4294967296, 4294967296, 24]", 0, NULL));
}

static void wrong_dtype(weights *w)
{
    json_object_set_new(tensor_of(w, NORM), "dtype", json_string("I32"));
}

static void overlap(weights *w)
{
    weights_move(w, NORM, 0, 4 * SANDBOX_HIDDEN);
}

static void out_of_range(weights *w)
{
    weights_move(w, NORM, w->n_data + 4, w->n_data + 4 + 4 * SANDBOX_HIDDEN);
}

static void backwards(weights *w)
{
    weights_move(w, NORM, weights_end(w, NORM), weights_begin(w, NORM));
}

static void truncated_data(weights *w)
{
    w->n_data -= 4;
}

static void more_data(weights *w)
{
    w->n_data += 4;
}

static void element_set(weights *w, size_t element, float value)
{
    memcpy(w->data + weights_begin(w, GATE) + element * sizeof(value), &value,
           sizeof(value));
}

static void not_a_number(weights *w)
{
    element_set(w, 2 * SANDBOX_HIDDEN + 1, __builtin_nanf(""));
}

static void infinite(weights *w)
{
    element_set(w, 0, -__builtin_inff());
}

static const struct weights_case {
    void (*edit)(weights *w);
    const char *parts[PARTS_MAX];
} weights_cases[] = {
    {missing, {NORM, "missing"}},
    {unknown, {"model.safetensors", "model.extra"}},
    {wrong_shape, {"model.safetensors", NORM, "[2, 12]", "[24]"}},
    {negative_shape, {"model.safetensors", NORM, "shape"}},
    {shape_past_its_bytes, {"model.safetensors", NORM, "96 bytes"}},
    {shape_past_64_bits, {"model.safetensors", NORM, "shape"}},
    {wrong_dtype, {"model.safetensors", NORM, "I32", "F32"}},
    {overlap, {"model.safetensors", "overlap"}},
    {out_of_range, {"model.safetensors", "hole"}},
    {backwards, {"model.safetensors", NORM, "data_offsets"}},
    {truncated_data, {"model.safetensors", "truncated", "4 bytes"}},
    {more_data, {"model.safetensors", "4 bytes"}},
    {not_a_number, {"model.safetensors", GATE, "NaN", "row 2"}},
    {infinite, {"model.safetensors", GATE, "Inf", "row 0"}},
};

START_TEST(bad_weights_are_an_error_that_names_the_tensor)
{
    const struct weights_case *c = &weights_cases[_i];
    sandbox box = sandbox_open();
    char *path = path_in(box.model, "model.safetensors");
    weights w = weights_open(path);
    parity_command train = box_command("train", &box);
    const char *parts[PARTS_MAX + 1] = {NULL};

    memcpy(parts, c->parts, sizeof(c->parts));
    c->edit(&w);
    weights_close(&w);
    expect_error(&train, &box, 3, parts);
    ck_assert(!exists(box.folder, "run"));
    free(path);
    sandbox_close(&box);
}
END_TEST

static const struct header_case {
    size_t n_kept;   /* bytes of the file */
    uint64_t length; /* what it says of its header; 0: the truth */
    const char *part;
} header_cases[] = {
    {0, 0, "empty"},
    {7, 0, "truncated"},
    {100, 0, "truncated"},
    {SIZE_MAX, UINT64_MAX, "header"},
    {SIZE_MAX, 90000000, "truncated"},
    {SIZE_MAX, 10, "header"},
};

START_TEST(a_safetensors_header_that_lies_is_an_error)
{
    const struct header_case *c = &header_cases[_i];
    sandbox box = sandbox_open();
    char *path = path_in(box.model, "model.safetensors");
    parity_command train = box_command("train", &box);
    size_t n;
    char *bytes = file_read(path, &n);

    if (c->length != 0)
        memcpy(bytes, &c->length, sizeof(c->length));
    file_write(path, bytes, n < c->n_kept ? n : c->n_kept);
    expect_error(&train, &box, 3,
                 (const char *[]){"model.safetensors", c->part, NULL});
    ck_assert(!exists(box.folder, "run"));
    free(bytes);
    free(path);
    sandbox_close(&box);
}
END_TEST

/* ---- files that are not there ---- */

START_TEST(a_model_folder_that_is_none_is_an_error_that_names_it)
{
    static const char *const names[] = {"nowhere", "data.jsonl", "empty",
                                        "no-weights"};
    sandbox box = sandbox_open();
    char *model = path_in(box.folder, names[_i]);
    char *empty = path_in(box.folder, "empty");
    char *no_weights = path_in(box.folder, "no-weights");
    parity_command train = command_open("train", model, box.data);

    ck_assert_int_eq(mkdir(empty, 0777), 0);
    if (strcmp(names[_i], "no-weights") == 0) {
        char *weights_file = path_in(box.model, "model.safetensors");

        ck_assert_int_eq(unlink(weights_file), 0);
        ck_assert_int_eq(rename(box.model, no_weights), 0);
        free(weights_file);
    }
    command_add(&train, "--output", box.run, NULL);
    expect_error(&train, &box, 3, (const char *[]){model, NULL});
    ck_assert(!exists(box.folder, "run"));
    free(no_weights);
    free(empty);
    free(model);
    sandbox_close(&box);
}
END_TEST

/* ---- data ---- */

static const struct data_case {
    const char *text;
    const char *parts[PARTS_MAX];
} data_cases[] = {
    {"", {"data.jsonl", "empty"}},
    {"\n", {"data.jsonl", "empty"}},
    {"{\"input_ids\": [1, 2]}\n{\"input_ids\": [1, 2}\n",
     {"data.jsonl:2:", "malformed JSON"}},
    {"{\"input_ids\": [1, 2]}\n\n{\"input_ids\": [1, 2]}\n",
     {"data.jsonl:2:", "empty line"}},
    {"{\"input_ids\": [1, 2]}\n{\"input_ids\": [1, 2]}\n"
     "{\"input_ids\": [1, 53]}\n",
     {"data.jsonl:3:", "input_ids[1] is 53", "vocabulary of 53"}},
    {"{\"input_ids\": [-1, 2]}\n", {"data.jsonl:1:", "input_ids[0] is -1"}},
    {"{\"input_ids\": [1, 2], \"labels\": [1, 53]}\n",
     {"data.jsonl:1:", "labels[1] is 53"}},
    {"{\"input_ids\": [1, 2], \"labels\": [1, -99]}\n",
     {"data.jsonl:1:", "labels[1] is -99"}},
    {"{\"input_ids\": [1, 2], \"labels\": [1]}\n",
     {"data.jsonl:1:", "1 labels", "2 input_ids"}},
    {"{\"input_ids\": [1, 2.5]}\n", {"data.jsonl:1:", "whole number"}},
    {"{\"input_ids\": [99999999999999999999]}\n", {"data.jsonl:1:"}},
    {"{\"input_ids\": \"abc\"}\n", {"data.jsonl:1:", "not a list"}},
    {"{\"text\": \"abc\"}\n", {"data.jsonl:1:", "scripts/prepare"}},
    {"{\"ids\": [1, 2]}\n", {"data.jsonl:1:", "input_ids", "missing"}},
    {"[1, 2]\n", {"data.jsonl:1:", "object"}},
    {"{\"input_ids\": [1, 2], \"labels\": [-100, -100]}\n"
     "{\"input_ids\": [1]}\n{\"input_ids\": []}\n",
     {"none of the 3 sequences", "target"}},
};

START_TEST(bad_data_is_an_error_that_names_file_and_line)
{
    const struct data_case *c = &data_cases[_i];
    sandbox box = sandbox_open();
    parity_command train = box_command("train", &box);
    parity_command eval = box_command("eval", &box);
    parity_command verify = box_command("verify", &box);

    data_set(&box, c->text);
    expect_error(&train, &box, 3, c->parts);
    expect_error(&eval, &box, 3, c->parts);
    expect_error(&verify, &box, 3, c->parts);
    ck_assert(!exists(box.folder, "run"));
    sandbox_close(&box);
}
END_TEST

START_TEST(data_that_is_not_there_is_an_error_that_names_it)
{
    static const char *const names[] = {"none.jsonl", "none", "model"};
    sandbox box = sandbox_open();
    char *data = path_in(box.folder, names[_i]);
    parity_command train = command_open("train", box.model, data);

    command_add(&train, "--output", box.run, NULL);
    expect_error(&train, &box, 3, (const char *[]){data, NULL});
    ck_assert(!exists(box.folder, "run"));
    free(data);
    sandbox_close(&box);
}
END_TEST

/* ---- options ---- */

static const struct option_case {
    const char *words[4];
    const char *parts[PARTS_MAX];
} option_cases[] = {
    {{"--chunk-sise", "7"}, {"--chunk-sise", "--chunk-size"}},
    {{"--chunk-size", "0"}, {"--chunk-size", "\"0\"", "from 1"}},
    {{"--chunk-size"}, {"--chunk-size", "needs a value"}},
    {{"--chunk-size", "7", "--chunk-size", "7"}, {"--chunk-size", "twice"}},
    {{"--retain-chunks", "0"}, {"--retain-chunks", "\"0\""}},
    {{"--global-batch", "-1"}, {"--global-batch", "\"-1\""}},
    {{"--steps", "1e3"}, {"--steps", "\"1e3\"", "whole number"}},
    {{"--epochs", "0"}, {"--epochs", "\"0\""}},
    {{"--learning-rate", "nan"}, {"--learning-rate", "\"nan\""}},
    {{"--adam-beta2", "1"}, {"--adam-beta2", "below 1"}},
    {{"--memory", "lots"}, {"--memory", "\"lots\"", "8GiB"}},
    {{"--lr-schedule", "step"}, {"--lr-schedule", "cosine"}},
    {{"--json"}, {"--json", "eval", "train"}},
    {{"--warmup-steps", "9", "--steps", "8"}, {"--warmup-steps", "8"}},
    {{"--backend", "cuda"}, {"--backend", "cuda"}},
    {{"more"}, {"more", "--"}},
    {{"--config", "/nowhere/run.yaml"}, {"/nowhere/run.yaml"}},
};

START_TEST(a_bad_option_is_an_error_that_names_it)
{
    const struct option_case *c = &option_cases[_i];
    sandbox box = sandbox_open();
    parity_command train = box_command("train", &box);

    for (size_t i = 0; i < LENGTH(c->words) && c->words[i] != NULL; i++)
        command_add(&train, c->words[i], NULL);
    expect_error(&train, &box, 2, c->parts);
    ck_assert(!exists(box.folder, "run"));
    sandbox_close(&box);
}
END_TEST

static const struct yaml_case {
    const char *text;
    const char *parts[PARTS_MAX];
} yaml_cases[] = {
    {"seed: 1\nchunk_sise: 7\n", {"run.yaml:2", "chunk_sise", "chunk_size"}},
    {"chunk-size: 7\n", {"run.yaml:1", "chunk_size"}},
    {"chunk_size: 0\n", {"run.yaml:1", "chunk_size", "\"0\""}},
    {"seed: 1\nseed: 1\n", {"run.yaml:2", "seed", "twice"}},
    {"seed: [1]\n", {"run.yaml:1", "seed"}},
    {"seed: *other\n", {"run.yaml:1", "seed"}},
    {"- seed\n", {"run.yaml:1", "mapping"}},
    {"seed: \"1\n", {"run.yaml:", "not YAML"}},
    {"json: true\n", {"run.yaml:1", "json", "eval"}},
};

START_TEST(a_bad_key_is_an_error_with_its_line)
{
    const struct yaml_case *c = &yaml_cases[_i];
    sandbox box = sandbox_open();
    char *path = path_in(box.folder, "run.yaml");
    parity_command train = box_command("train", &box);

    file_write(path, c->text, strlen(c->text));
    command_add(&train, "--config", path, NULL);
    expect_error(&train, &box, 2, c->parts);
    ck_assert(!exists(box.folder, "run"));
    free(path);
    sandbox_close(&box);
}
END_TEST

/* ---- memory ---- */

START_TEST(what_does_not_fit_is_refused_before_loading)
{
    static const char *const commands[] = {"train", "eval", "verify"};
    sandbox box = sandbox_open();
    char *path = path_in(box.model, "model.safetensors");
    parity_command command = box_command(commands[_i], &box);

    file_write(path, "damaged", 7);
    command_add(&command, "--memory", "10KB", NULL);
    command_run(&command, box.folder);
    /* An option of train alone, or a length of nothing, would be no help. */
    if (strcmp(commands[_i], "eval") == 0 &&
        strstr(command.err, "--retain-chunks") != NULL)
        command_blame(&command, "eval has no such option");
    if (strstr(command.err, "--max-length 0") != NULL)
        command_blame(&command, "nobody can use that");
    free(command.out);
    free(command.err);
    expect_error(&command, &box, 4,
                 (const char *[]){"memory", "9.77 KiB", "130 tokens", NULL});
    ck_assert(!exists(box.folder, "run"));
    free(path);
    sandbox_close(&box);
}
END_TEST

/* ---- numbers that are not finite ---- */

START_TEST(a_learning_rate_that_is_too_large_ends_with_step_and_layer)
{
    sandbox box = sandbox_open();
    parity_command train = box_command("train", &box);

    /* Decay alone multiplies the matrices by -1e6 a step. */
    command_add(&train, "--learning-rate", "1000", "--weight-decay", "1000",
                "--lr-schedule", "constant", "--steps", "30", "--global-batch",
                "2", NULL);
    expect_error(
        &train, &box, 7,
        (const char *[]){"step ", "not finite", "--learning-rate", NULL});
    ck_assert(!exists(box.run, "model"));
    ck_assert(!exists(box.run, "model.tmp"));
    ck_assert(!exists(box.run, "ledger.json"));
    sandbox_close(&box);
}
END_TEST

START_TEST(a_loss_that_is_not_finite_names_step_layer_and_sequence)
{
    static const char *const commands[] = {"train", "eval", "verify"};
    sandbox box = sandbox_open();
    char *path = path_in(box.model, "model.safetensors");
    weights w = weights_open(path);
    parity_command command = box_command(commands[_i], &box);
    const float huge = 3e38f;

    /* Layer 1 is the first whose output overflows. */
    for (size_t at = weights_begin(&w, GATE); at < weights_end(&w, GATE);
         at += sizeof(huge))
        memcpy(w.data + at, &huge, sizeof(huge));
    weights_close(&w);
    data_set(&box, "{\"input_ids\": [1]}\n{\"input_ids\": [3, 4, 5]}\n");
    expect_error(&command, &box, 7,
                 (const char *[]){"step 1:", "layer 1", "sequence 1",
                                  "data.jsonl:2", NULL});
    free(path);
    sandbox_close(&box);
}
END_TEST

/* ---- verify ---- */

START_TEST(a_gradient_that_is_not_a_number_is_a_difference)
{
    parity_fixture fixture = fixture_open(SANDBOX_FIXTURE);
    sandbox box = sandbox_open();
    char *path = path_in(box.folder, "gradients.safetensors");
    parity_command verify = box_command("verify", &box);
    const double nan = __builtin_nan("");
    size_t n;
    char *bytes = file_read(fixture.gradients, &n);
    weights w;

    file_write(path, bytes, n);
    w = weights_open(path);
    /* Neither the last of its tensor nor in the last tensor. */
    memcpy(w.data + weights_begin(&w, GATE), &nan, sizeof(nan));
    weights_close(&w);
    command_add(&verify, "--compute", "fp64", "--against", path, "--no-shuffle",
                "--global-batch", "4", NULL);
    command_expect(&verify, box.folder, 6);
    if (strstr(verify.out, "verify: chunked != ") == NULL)
        command_blame(&verify, "the verdict must tell a difference");
    command_close(&verify);
    free(bytes);
    free(path);
    sandbox_close(&box);
    fixture_close(&fixture);
}
END_TEST

/* The tensor at the end of the data, from F64 to F32. */
static void last_tensor_narrow(weights *w)
{
    const char *name, *last = NULL;
    json_t *tensor;
    size_t begin, n;

    json_object_foreach (w->header, name, tensor)
        if (json_object_get(tensor, "dtype") != NULL &&
            weights_end(w, name) == w->n_data)
            last = name;
    ck_assert_ptr_nonnull(last);
    begin = weights_begin(w, last);
    n = (w->n_data - begin) / sizeof(double);
    for (size_t i = 0; i < n; i++) {
        double wide;
        float narrow;

        memcpy(&wide, w->data + begin + i * sizeof(wide), sizeof(wide));
        narrow = (float)wide;
        memcpy(w->data + begin + i * sizeof(narrow), &narrow, sizeof(narrow));
    }
    json_object_set_new(tensor_of(w, last), "dtype", json_string("F32"));
    w->n_data = begin + n * sizeof(float);
    weights_move(w, last, begin, w->n_data);
}

START_TEST(one_coarse_gradient_widens_the_tolerance)
{
    parity_fixture fixture = fixture_open(SANDBOX_FIXTURE);
    sandbox box = sandbox_open();
    char *path = path_in(box.folder, "gradients.safetensors");
    parity_command verify = box_command("verify", &box);
    size_t n;
    char *bytes = file_read(fixture.gradients, &n);
    weights w;

    file_write(path, bytes, n);
    w = weights_open(path);
    last_tensor_narrow(&w);
    weights_close(&w);
    command_add(&verify, "--compute", "fp64", "--against", path, "--no-shuffle",
                "--global-batch", "4", NULL);
    command_expect(&verify, box.folder, 0);
    expect_verdict(&verify, "==", path, "fp64", 1e-4);
    free(verify.out);
    free(verify.err);
    command_add(&verify, "--tolerance", "1e-8", NULL);
    command_expect(&verify, box.folder, 6);
    command_close(&verify);
    free(bytes);
    free(path);
    sandbox_close(&box);
    fixture_close(&fixture);
}
END_TEST

START_TEST(a_tolerance_of_nothing_finds_the_rounding)
{
    sandbox box = sandbox_open();
    parity_command verify = box_command("verify", &box);

    command_add(&verify, "--chunk-size", "7", "--tolerance", "0", NULL);
    command_expect(&verify, box.folder, 6);
    expect_verdict(&verify, "!=", "unsplit", "fp32", 0);
    ck_assert_str_eq(verify.err, "");
    command_close(&verify);
    sandbox_close(&box);
}
END_TEST

START_TEST(a_result_that_cannot_be_written_is_an_error)
{
    static const char *const commands[] = {"eval", "verify"};
    sandbox box = sandbox_open();
    char *out = path_in(box.folder, "standard-output");
    parity_command command = box_command(commands[_i], &box);

    /* Where command_run sends standard output. */
    ck_assert_int_eq(symlink("/dev/full", out), 0);
    expect_error(&command, &box, 1,
                 (const char *[]){"standard output", "No space left", NULL});
    free(out);
    sandbox_close(&box);
}
END_TEST

static Suite *suite_open(void)
{
    Suite *suite = suite_create("commands");
    TCase *model = tcase_create("model");
    TCase *data = tcase_create("data");
    TCase *options = tcase_create("options");
    TCase *steps = tcase_create("steps");

    tcase_add_loop_test(model, a_bad_config_is_an_error_that_names_the_field, 0,
                        LENGTH(config_cases));
    tcase_add_test(model, a_config_that_is_not_json_is_an_error_with_its_line);
    tcase_add_loop_test(model, bad_weights_are_an_error_that_names_the_tensor,
                        0, LENGTH(weights_cases));
    tcase_add_loop_test(model, a_safetensors_header_that_lies_is_an_error, 0,
                        LENGTH(header_cases));
    tcase_add_loop_test(
        model, a_model_folder_that_is_none_is_an_error_that_names_it, 0, 4);
    suite_add_tcase(suite, model);

    tcase_add_loop_test(data, bad_data_is_an_error_that_names_file_and_line, 0,
                        LENGTH(data_cases));
    tcase_add_loop_test(data, data_that_is_not_there_is_an_error_that_names_it,
                        0, 3);
    suite_add_tcase(suite, data);

    tcase_add_loop_test(options, a_bad_option_is_an_error_that_names_it, 0,
                        LENGTH(option_cases));
    tcase_add_loop_test(options, a_bad_key_is_an_error_with_its_line, 0,
                        LENGTH(yaml_cases));
    suite_add_tcase(suite, options);

    tcase_set_timeout(steps, 60);
    tcase_add_loop_test(steps, what_does_not_fit_is_refused_before_loading, 0,
                        3);
    tcase_add_test(steps,
                   a_learning_rate_that_is_too_large_ends_with_step_and_layer);
    tcase_add_loop_test(
        steps, a_loss_that_is_not_finite_names_step_layer_and_sequence, 0, 3);
    tcase_add_test(steps, a_gradient_that_is_not_a_number_is_a_difference);
    tcase_add_test(steps, one_coarse_gradient_widens_the_tolerance);
    tcase_add_test(steps, a_tolerance_of_nothing_finds_the_rounding);
    tcase_add_loop_test(steps, a_result_that_cannot_be_written_is_an_error, 0,
                        2);
    suite_add_tcase(suite, steps);
    suite_add_tcase(suite, run_folder_tests());
    return suite;
}

int main(void)
{
    SRunner *runner = srunner_create(suite_open());
    int n_failed;

    srunner_run_all(runner, CK_NORMAL);
    n_failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return n_failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
