/* check_model_config.c - config.json in, rotary frequencies out.
 *
 * Defaults are those of transformers 5.24 (LlamaConfig, Qwen2Config,
 * Qwen3Config); golden frequencies are its ROPE_INIT_FUNCTIONS with every
 * float32 made float64.
 */
#include "src/model_config.h"

#include "src/model_config_text.h"
#include "tests/lib/temp_folder.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Sizes that every config below has, unless it overrides one by name. */
static const char SIZES[] =
    "\"vocab_size\": 100, \"hidden_size\": 64, \"intermediate_size\": 96, "
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
    "\"num_key_value_heads\": 2";

static cf_status read_text(const char *text, cf_model_config *config_p,
                           captured_log *log)
{
    char *folder = temp_folder_open();
    cf_status status;

    temp_file_write_text(folder, "config.json", text);
    captured_log_begin(log);
    status = cf_model_config_read(folder, config_p);
    captured_log_end(log);
    temp_folder_close(folder);
    return status;
}

/* {"model_type": TYPE, SIZES, MORE}. */
static cf_status read_with(const char *type, const char *more,
                           cf_model_config *config_p, captured_log *log)
{
    char *text;
    cf_status status;

    ck_assert_int_ge(asprintf(&text, "{\"model_type\": \"%s\", %s%s%s}", type,
                              SIZES, *more == '\0' ? "" : ", ", more),
                     0);
    status = read_text(text, config_p, log);
    free(text);
    return status;
}

static cf_model_config read_good(const char *type, const char *more)
{
    cf_model_config config;
    captured_log log;
    cf_status status = read_with(type, more, &config, &log);

    ck_assert_msg(status == CF_OK && log.text[0] == '\0',
                  "%s with %s: status %d, %s", type, more, (int)status,
                  log.text);
    return config;
}

START_TEST(llama_defaults_are_those_of_transformers)
{
    cf_model_config c = read_good("llama", "");

    ck_assert_int_eq(c.family, CF_FAMILY_LLAMA);
    ck_assert_uint_eq(c.vocab, 100);
    ck_assert_uint_eq(c.hidden, 64);
    ck_assert_uint_eq(c.ffn, 96);
    ck_assert_uint_eq(c.n_layers, 2);
    ck_assert_uint_eq(c.n_heads, 4);
    ck_assert_uint_eq(c.n_kv_heads, 2);
    ck_assert_uint_eq(c.head_dim, 16);
    ck_assert(c.rms_norm_eps == 1e-6);
    ck_assert(!c.tied && !c.attention_bias && !c.attention_o_bias);
    ck_assert(!c.mlp_bias && !c.qk_norm);
    ck_assert_int_eq(c.rope.kind, CF_ROPE_DEFAULT);
    ck_assert(c.rope.theta == 10000 && c.rope.attention_factor == 1);
}
END_TEST

START_TEST(qwen_defaults_are_those_of_transformers)
{
    cf_model_config c = read_good("qwen2", "");

    ck_assert_int_eq(c.family, CF_FAMILY_QWEN2);
    ck_assert(c.attention_bias && !c.attention_o_bias && !c.qk_norm);
    ck_assert(!c.tied);
    ck_assert_uint_eq(c.head_dim, 16);
    c = read_good("qwen3", "");
    ck_assert_int_eq(c.family, CF_FAMILY_QWEN3);
    ck_assert(!c.attention_bias && !c.attention_o_bias && c.qk_norm);
    ck_assert_uint_eq(c.head_dim, 128);
    c = read_good("qwen3", "\"attention_bias\": true");
    ck_assert(c.attention_bias && c.attention_o_bias);
}
END_TEST

START_TEST(left_out_kv_heads_differ_by_family)
{
    static const char TEXT[] =
        "{\"model_type\": \"%s\", \"vocab_size\": 100, \"hidden_size\": 64, "
        "\"intermediate_size\": 96, \"num_hidden_layers\": 2, "
        "\"num_attention_heads\": %d%s}";
    static const struct {
        const char *type;
        int n_heads;
        const char *more;
        uint32_t n_kv_heads; /* 0: an error */
    } CASES[] = {
        {"llama", 4, "", 4},
        {"llama", 4, ", \"num_key_value_heads\": null", 4},
        {"qwen2", 4, ", \"num_key_value_heads\": null", 4},
        {"qwen2", 32, "", 32},
        {"qwen2", 4, "", 0},
        {"qwen3", 4, "", 0},
    };

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        char text[512];
        cf_model_config c = {0};
        captured_log log;

        snprintf(text, sizeof(text), TEXT, CASES[i].type, CASES[i].n_heads,
                 CASES[i].more);
        if (CASES[i].n_kv_heads == 0) {
            ck_assert_int_eq(read_text(text, &c, &log), CF_MALFORMED);
            ck_assert_msg(captured_log_is_error(
                              &log, "\"num_key_value_heads\" is 32 when left "
                                    "out, which does not divide"),
                          "%s", log.text);
        } else {
            ck_assert_int_eq(read_text(text, &c, &log), CF_OK);
            ck_assert_uint_eq(c.n_kv_heads, CASES[i].n_kv_heads);
        }
    }
}
END_TEST

START_TEST(fields_that_are_there_are_taken)
{
    cf_model_config c = read_good(
        "llama", "\"head_dim\": 20, \"rms_norm_eps\": 1e-5, "
                 "\"tie_word_embeddings\": true, \"attention_bias\": true, "
                 "\"mlp_bias\": true, \"rope_theta\": 500000, "
                 "\"torch_dtype\": \"bfloat16\", \"no_such_field\": [1]");

    ck_assert_uint_eq(c.head_dim, 20);
    ck_assert(c.rms_norm_eps == 1e-5);
    ck_assert(c.tied && c.attention_bias && c.attention_o_bias && c.mlp_bias);
    ck_assert(c.rope.theta == 500000);
}
END_TEST

START_TEST(what_is_there_but_inactive_is_accepted)
{
    static const char *const CASES[] = {
        "\"sliding_window\": 8, \"use_sliding_window\": false",
        "\"sliding_window\": 8",
        "\"sliding_window\": null, \"use_sliding_window\": true",
        "\"sliding_window\": 8, \"use_sliding_window\": true, "
        "\"max_window_layers\": 2",
        "\"layer_types\": [\"full_attention\", \"full_attention\"]",
        "\"quantization_config\": null",
        "\"num_experts\": 0",
        "\"attention_dropout\": 0.0, \"pretraining_tp\": 1",
        "\"hidden_act\": \"silu\"",
        "\"rope_scaling\": null, \"rope_parameters\": {}",
        "\"partial_rotary_factor\": 1.0",
    };

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++)
        read_good("qwen2", CASES[i]);
}
END_TEST

START_TEST(both_spellings_of_rope_are_one)
{
    static const char *const CASES[] = {
        "\"rope_theta\": 5e5, \"rope_scaling\": {\"rope_type\": \"llama3\", "
        "\"factor\": 8.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
        "\"original_max_position_embeddings\": 8192}",
        "\"rope_theta\": 5e5, \"rope_scaling\": {\"type\": \"llama3\", "
        "\"factor\": 8, \"low_freq_factor\": 1, \"high_freq_factor\": 4}, "
        "\"max_position_embeddings\": 8192",
        "\"rope_parameters\": {\"rope_type\": \"llama3\", \"rope_theta\": 5e5, "
        "\"factor\": 8.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
        "\"original_max_position_embeddings\": 8192}",
        "\"rope_theta\": 5e5, \"rope_scaling\": {\"type\": \"llama3\", "
        "\"factor\": 8, \"low_freq_factor\": 1, \"high_freq_factor\": 4}, "
        "\"max_position_embeddings\": 8192, \"rope_parameters\": {"
        "\"rope_type\": \"llama3\", \"rope_theta\": 5e5, \"factor\": 8.0, "
        "\"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0}",
    };

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        cf_rope_config r = read_good("llama", CASES[i]).rope;

        ck_assert_int_eq(r.kind, CF_ROPE_LLAMA3);
        ck_assert(r.theta == 5e5 && r.factor == 8 && r.low_freq_factor == 1 &&
                  r.high_freq_factor == 4 && r.original_max_position == 8192);
    }
}
END_TEST

START_TEST(yarn_takes_its_defaults)
{
    cf_rope_config r =
        read_good("qwen2", "\"rope_scaling\": {\"type\": \"yarn\", "
                           "\"factor\": 4.0}")
            .rope;

    ck_assert_int_eq(r.kind, CF_ROPE_YARN);
    ck_assert(r.original_max_position == 32768);
    ck_assert(r.beta_fast == 32 && r.beta_slow == 1 && r.truncate);
    ck_assert(fabs(r.attention_factor - 1.138629436111989) < 1e-15);

    r = read_good("llama", "\"rope_scaling\": {\"type\": \"yarn\", "
                           "\"factor\": null, "
                           "\"original_max_position_embeddings\": 512}")
            .rope;
    ck_assert(r.factor == 4 && r.original_max_position == 512);
}
END_TEST

/* Each wrong config and what the one line must say. */
static const struct bad_case {
    const char *type;
    const char *more;
    const char *part;
} BAD[] = {
    {"mistral", "", "field \"model_type\" is \"mistral\", which is not"},
    {"qwen2_moe", "", "\"model_type\" is \"qwen2_moe\""},
    {"qwen2", "\"use_sliding_window\": true, \"max_window_layers\": 1",
     "\"use_sliding_window\" is true (from layer 1 on)"},
    {"qwen2", "\"layer_types\": [\"full_attention\", \"sliding_attention\"]",
     "\"layer_types\" gives layer 1 the type \"sliding_attention\""},
    {"qwen3", "\"layer_types\": [\"full_attention\"]",
     "\"layer_types\" has 1 entries for num_hidden_layers 2"},
    {"qwen3", "\"layer_types\": 3", "\"layer_types\" must be an array"},
    {"llama", "\"quantization_config\": {\"bits\": 4}",
     "\"quantization_config\" says that the weights are quantised"},
    {"llama", "\"num_local_experts\": 8", "\"num_local_experts\" makes this"},
    {"llama", "\"hidden_act\": \"gelu\"", "\"hidden_act\" is \"gelu\""},
    {"llama", "\"attention_dropout\": 0.1", "\"attention_dropout\" is not 0"},
    {"llama", "\"pretraining_tp\": 2", "\"pretraining_tp\" is 2"},
    {"llama", "\"head_dim\": 15", "\"head_dim\" is 15, but must be even"},
    {"llama", "\"head_dim\": 512", "\"head_dim\" is 512"},
    {"llama", "\"head_dim\": 0", "\"head_dim\" is 0"},
    {"llama", "\"rms_norm_eps\": 0", "\"rms_norm_eps\" is 0"},
    {"llama", "\"rms_norm_eps\": -1e-5", "\"rms_norm_eps\" is -1"},
    {"llama", "\"rms_norm_eps\": \"1e-5\"", "\"rms_norm_eps\" is \"1e-5\""},
    {"llama", "\"tie_word_embeddings\": 1", "\"tie_word_embeddings\" is 1"},
    {"llama", "\"rope_theta\": 0", "\"rope_theta\" is 0"},
    {"llama", "\"rope_theta\": -10000.0", "\"rope_theta\" is -10000"},
    {"llama", "\"partial_rotary_factor\": 0.5", "\"partial_rotary_factor\" is"},
    {"llama", "\"rope_scaling\": 4", "\"rope_scaling\" must be an object"},
    {"llama", "\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2}",
     "\"rope_scaling.rope_type\" is \"dynamic\""},
    {"llama", "\"rope_parameters\": {\"rope_type\": \"longrope\"}",
     "\"rope_parameters.rope_type\" is \"longrope\""},
    {"llama", "\"rope_parameters\": {\"rope_type\": \"proportional\"}",
     "\"rope_parameters.rope_type\" is \"proportional\""},
    {"llama", "\"rope_parameters\": {\"partial_rotary_factor\": 0.25}",
     "\"rope_parameters.partial_rotary_factor\" is 0.25"},
    {"llama", "\"rope_scaling\": {\"factor\": 4.0}",
     "\"rope_scaling.factor\" is not known for rope_type \"default\""},
    {"llama", "\"rope_scaling\": {\"type\": \"linear\"}",
     "\"rope_scaling.factor\" is missing"},
    {"llama", "\"rope_scaling\": {\"type\": \"linear\", \"factor\": -1}",
     "\"rope_scaling.factor\" is -1"},
    {"llama",
     "\"rope_scaling\": {\"type\": \"linear\", \"rope_type\": \"yarn\"}",
     "\"rope_scaling.type\" is \"linear\", but rope_type is \"yarn\""},
    {"llama",
     "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, \"betafast\": 1}",
     "\"rope_scaling.betafast\" is not known for rope_type \"yarn\""},
    {"llama", "\"rope_scaling\": {\"type\": \"yarn\"}",
     "\"rope_scaling.factor\" is missing"},
    {"llama",
     "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, \"beta_fast\": 1, "
     "\"beta_slow\": 2}",
     "\"rope_scaling.beta_fast\" is 1, below beta_slow 2"},
    {"llama",
     "\"rope_scaling\": {\"type\": \"llama3\", \"factor\": 4, "
     "\"low_freq_factor\": 4, \"high_freq_factor\": 4}",
     "\"rope_scaling.high_freq_factor\" is 4, not above"},
    {"llama",
     "\"rope_scaling\": {\"type\": \"llama3\", \"factor\": 4, "
     "\"low_freq_factor\": 4}",
     "\"rope_scaling.high_freq_factor\" is missing"},
    {"llama", "\"rope_theta\": 5e5, \"rope_parameters\": {\"rope_theta\": 1e4}",
     "\"rope_parameters.rope_theta\" is 10000, but rope_theta beside it is"},
    {"llama",
     "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}, "
     "\"rope_parameters\": {\"rope_type\": \"linear\", \"factor\": 4}",
     "\"rope_parameters\" and rope_scaling say different things"},
};

START_TEST(what_is_not_supported_is_one_line_naming_it)
{
    const struct bad_case *bad = &BAD[_i];
    cf_model_config c;
    captured_log log;

    ck_assert_int_eq(read_with(bad->type, bad->more, &c, &log), CF_MALFORMED);
    ck_assert_msg(captured_log_is_error(&log, bad->part), "%s: %s", bad->more,
                  log.text);
    ck_assert_ptr_nonnull(strstr(log.text, "/config.json: "));
}
END_TEST

START_TEST(a_size_that_is_missing_or_wrong_is_named)
{
    static const char *const FIELDS[] = {
        "vocab_size",        "hidden_size",         "intermediate_size",
        "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    };
    static const char *const VALUES[] = {
        "0", "-2", "1.5", "\"two\"", "[2]", "99999999999", "true", "{}"};

    for (size_t i = 0; i < 6; i++) {
        for (size_t v = 0; v <= 8; v++) {
            char text[512] = "{\"model_type\": \"llama\"", part[64];
            cf_model_config c;
            captured_log log;

            for (size_t j = 0; j < 6; j++) {
                size_t n = strlen(text);

                if (j == i && v == 8)
                    continue;
                snprintf(text + n, sizeof(text) - n, ", \"%s\": %s", FIELDS[j],
                         j == i ? VALUES[v] : "4");
            }
            strcat(text,
                   v == 8 && i == 5 ? ", \"num_key_value_heads\": 3}" : "}");
            snprintf(part, sizeof(part), "field \"%s\" is %s", FIELDS[i],
                     v == 8 && i < 5 ? "missing" : "");
            ck_assert_int_eq(read_text(text, &c, &log), CF_MALFORMED);
            ck_assert_msg(captured_log_is_error(&log, part), "%s: %s", text,
                          log.text);
        }
    }
}
END_TEST

START_TEST(hidden_that_heads_do_not_divide_is_an_error)
{
    cf_model_config c;
    captured_log log;

    ck_assert_int_eq(
        read_text("{\"model_type\": \"llama\", \"vocab_size\": 9, "
                  "\"hidden_size\": 65, \"intermediate_size\": 8, "
                  "\"num_hidden_layers\": 1, \"num_attention_heads\": 4}",
                  &c, &log),
        CF_MALFORMED);
    ck_assert(captured_log_is_error(&log, "\"hidden_size\" is 65"));
}
END_TEST

START_TEST(a_file_that_is_no_config_is_one_line)
{
    static const struct {
        const char *text, *part;
    } CASES[] = {
        {"", "not valid JSON"},
        {"[]", "must hold one JSON object"},
        {"{\"model_type\": \"llama\",\n}", "line 2, column 1: not valid JSON"},
        {"{\"a\": 1, \"a\": 2}", "not valid JSON: duplicate object key"},
        {"{}", "field \"model_type\" is missing"},
        {"{\"model_type\": 3}", "field \"model_type\" is 3, but must be"},
        {"{\"model_type\": \"a\\nb\"}", "\"model_type\" is \"a?b\""},
    };
    cf_model_config c;
    captured_log log;

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        ck_assert_int_eq(read_text(CASES[i].text, &c, &log), CF_MALFORMED);
        ck_assert_msg(captured_log_is_error(&log, CASES[i].part), "%s",
                      log.text);
    }
    captured_log_begin(&log);
    ck_assert_int_eq(cf_model_config_read("/no/such/folder", &c), CF_MALFORMED);
    captured_log_end(&log);
    ck_assert(captured_log_is_error(&log, "/no/such/folder/config.json: cannot "
                                          "open it: No such file"));
}
END_TEST

/* Any text gives a status, never a crash. */
START_TEST(damaged_configs_never_crash)
{
    const unsigned seed = 20250101;
    char *folder = temp_folder_open();
    char good[1024], text[1024];
    size_t n;

    snprintf(good, sizeof(good),
             "{\"model_type\": \"qwen2\", %s, \"layer_types\": "
             "[\"full_attention\", \"full_attention\"], \"rope_theta\": 1e6, "
             "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4.0, "
             "\"attention_factor\": 1.1, \"truncate\": true}}",
             SIZES);
    n = strlen(good);
    srand(seed);
    for (size_t round = 0; round < n + 3000; round++) {
        cf_model_config c;
        captured_log log;
        cf_status status;

        memcpy(text, good, n + 1);
        if (round < n)
            text[round] = '\0';
        for (int flip = rand() % 3; round >= n && flip >= 0; flip--)
            text[(size_t)rand() % n] = (char)(rand() % 255 + 1);
        temp_file_write_text(folder, "config.json", text);
        captured_log_begin(&log);
        status = cf_model_config_read(folder, &c);
        captured_log_end(&log);
        ck_assert_msg(status == CF_OK || captured_log_is_error(&log, ""),
                      "seed %u round %zu: %s", seed, round, log.text);
        ck_assert(round >= n || status == CF_MALFORMED);
    }
    temp_folder_close(folder);
}
END_TEST

/* ---- rotary frequencies ---- */

static const struct golden {
    const char *rope;
    uint32_t head_dim;
    double factor;
    double sum; /* of all frequencies */
    struct {
        uint32_t index;
        double inv_freq;
    } at[8];
    uint32_t n_at;
} GOLDEN[] = {
    {"\"rope_type\": \"default\"", 8, 1, 1.111, {{1, 0.1}, {3, 0.001}}, 2},
    {"\"rope_type\": \"linear\", \"factor\": 4",
     8,
     1,
     0.27775,
     {{0, 0.25}, {3, 0.00025}},
     2},
    {"\"rope_type\": \"llama3\", \"rope_theta\": 500000.0, \"factor\": 32.0, "
     "\"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
     "\"original_max_position_embeddings\": 8192",
     128,
     1,
     5.385182233878147,
     {{1, 0.8146172338565447},
      {16, 0.03760603093086393},
      {21, 0.013490419890226748},
      {32, 0.00042955679655936815},
      {42, 5.687232150457046e-06},
      {48, 1.661967467795309e-06},
      {63, 7.672314972286278e-08}},
     7},
    {"\"rope_type\": \"yarn\", \"rope_theta\": 1000000.0, \"factor\": 4.0, "
     "\"original_max_position_embeddings\": 32768",
     128,
     1.138629436111989,
     5.144034721740073,
     {{1, 0.8058421877614819},
      {16, 0.03162277660168379},
      {21, 0.010746078283213174},
      {32, 0.0006029411764705882},
      {42, 2.8869549617236455e-05},
      {48, 7.905694150420949e-06},
      {63, 3.102344401879299e-07}},
     7},
    {"\"rope_type\": \"yarn\", \"factor\": 8.0, \"beta_fast\": 24.0, "
     "\"beta_slow\": 2.0, \"truncate\": false, \"mscale\": 0.8, "
     "\"mscale_all_dim\": 0.5, \"original_max_position_embeddings\": 4096",
     64,
     1.0565079928608092,
     3.956808271882503,
     {{1, 0.7498942093324559},
      {8, 0.1},
      {10, 0.056234132519034905},
      {16, 0.005410620146957718},
      {21, 0.00029642171320770687},
      {24, 0.000125},
      {31, 1.666901790204155e-05}},
     7},
    {"\"rope_type\": \"yarn\", \"factor\": 16.0, \"attention_factor\": 1.25, "
     "\"original_max_position_embeddings\": 256",
     32,
     1.25,
     1.898673602881515,
     {{1, 0.4870277548523559},
      {4, 0.04642857142857144},
      {5, 0.018577347350038315},
      {8, 0.000625},
      {10, 0.00019764235376052369},
      {12, 6.25e-05},
      {15, 1.1114246312743267e-05}},
     7},
};

START_TEST(frequencies_are_those_of_transformers_in_double)
{
    const struct golden *g = &GOLDEN[_i];
    double inv_freq[128], factor, sum = 0;
    char more[512];
    cf_rope_config rope;

    snprintf(more, sizeof(more), "\"rope_parameters\": {%s}", g->rope);
    rope = read_good("llama", more).rope;
    cf_rope_frequencies(&rope, g->head_dim, inv_freq, &factor);
    for (uint32_t i = 0; i < g->head_dim / 2; i++)
        sum += inv_freq[i];
    ck_assert_double_eq_tol(factor, g->factor, 1e-15);
    ck_assert_double_eq_tol(sum, g->sum, 1e-13);
    for (uint32_t i = 0; i < g->n_at; i++) {
        double want = g->at[i].inv_freq;

        ck_assert_double_eq_tol(inv_freq[g->at[i].index], want, 1e-14 * want);
    }
}
END_TEST

/* ---- config as text ---- */

START_TEST(only_the_dtype_of_a_config_text_changes)
{
    static const struct {
        const char *in, *out;
    } CASES[] = {
        {"{\n  \"torch_dtype\": \"float32\",\n  \"eps\": 1e-05\n}\n",
         "{\n  \"torch_dtype\": \"bfloat16\",\n  \"eps\": 1e-05\n}\n"},
        {"{\"a\": {\"dtype\": 1}, \"dtype\" :null }",
         "{\"a\": {\"dtype\": 1}, \"dtype\" :\"bfloat16\" }"},
        {"{\"x\": [\"dtype\", {\"b\": \"}\\\"]\"}], \"dtype\": {\"a\": [1]}, "
         "\"torch_dtype\": \"f\\\"\"}",
         "{\"x\": [\"dtype\", {\"b\": \"}\\\"]\"}], \"dtype\": \"bfloat16\", "
         "\"torch_dtype\": \"bfloat16\"}"},
        {"{\n  \"x\": 1\n}", "{\n  \"dtype\": \"bfloat16\",\n  \"x\": 1\n}"},
    };

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        char *out = cf_config_text_with_dtype(CASES[i].in, "bfloat16");

        ck_assert_str_eq(out, CASES[i].out);
        free(out);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("model_config");
    TCase *cases = tcase_create("model_config");
    SRunner *runner;
    int failed;

    tcase_add_test(cases, llama_defaults_are_those_of_transformers);
    tcase_add_test(cases, qwen_defaults_are_those_of_transformers);
    tcase_add_test(cases, left_out_kv_heads_differ_by_family);
    tcase_add_test(cases, fields_that_are_there_are_taken);
    tcase_add_test(cases, what_is_there_but_inactive_is_accepted);
    tcase_add_test(cases, both_spellings_of_rope_are_one);
    tcase_add_test(cases, yarn_takes_its_defaults);
    tcase_add_loop_test(cases, what_is_not_supported_is_one_line_naming_it, 0,
                        sizeof(BAD) / sizeof(BAD[0]));
    tcase_add_test(cases, a_size_that_is_missing_or_wrong_is_named);
    tcase_add_test(cases, hidden_that_heads_do_not_divide_is_an_error);
    tcase_add_test(cases, a_file_that_is_no_config_is_one_line);
    tcase_add_test(cases, damaged_configs_never_crash);
    tcase_add_loop_test(cases, frequencies_are_those_of_transformers_in_double,
                        0, sizeof(GOLDEN) / sizeof(GOLDEN[0]));
    tcase_add_test(cases, only_the_dtype_of_a_config_text_changes);
    tcase_set_timeout(cases, 60);
    suite_add_tcase(suite, cases);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
