/* check_options.c - the command line, the file, and the way between them. */
#include <check.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "src/options_table.h"
#include "tests/lib/scratch.h"

enum {
    WORDS_MAX = 64
};

/* Opens "chunkflow" and the words of a line, split at spaces. */
static cf_status open_line(const char *line, cf_options *options,
                           cf_options_outcome *outcome)
{
    char *copy = strdup(line);
    char program[] = "chunkflow";
    char *argv[WORDS_MAX + 1] = {program};
    char *rest = NULL;
    int argc = 1;
    cf_status status;

    for (char *word = strtok_r(copy, " ", &rest); word != NULL;
         word = strtok_r(NULL, " ", &rest))
        argv[argc++] = word;
    status = cf_options_open(argc, argv, options, outcome);
    free(copy);
    return status;
}

static cf_options options_of(const char *line)
{
    cf_options options;
    cf_options_outcome outcome;

    ck_assert_int_eq(open_line(line, &options, &outcome), CF_OK);
    ck_assert_int_eq(outcome, CF_OPTIONS_RUN);
    return options;
}

/* Refused with exactly one line, which holds the text. */
static void check_refused(const char *line, const char *text)
{
    cf_options options;
    cf_options_outcome outcome;
    cf_status status;
    const char *log;

    errors_begin();
    status = open_line(line, &options, &outcome);
    log = errors_end();
    ck_assert_msg(status == CF_INVALID, "%s: taken", line);
    ck_assert_ptr_eq(strstr(log, "chunkflow: error: "), log);
    ck_assert_msg(strstr(log, text) != NULL, "'%s' is not in: %s", text, log);
    ck_assert_ptr_eq(strchr(log, '\n'), log + strlen(log) - 1);
}

/* ---- the list ---- */

/* A new option is a new promise: think, then add it here. */
static const char *const names_of_train =
    "model data data-weights output overwrite resume save-every "
    "save-minutes keep "
    "chunk-size retain-chunks pipeline-stages layers-per-stage schedule "
    "recompute keep-attention kv-dir kv-memory compute backend threads "
    "stall-timeout memory "
    "global-batch tokens-per-batch "
    "steps epochs "
    "max-length seed "
    "no-shuffle learning-rate min-learning-rate lr-schedule warmup-steps "
    "weight-decay adam-beta1 adam-beta2 adam-eps grad-clip freeze "
    "lora-rank lora-alpha lora-targets init-adapter merge "
    "eval-data eval-every keep-best patience export-dtype "
    "dry-run log-every quiet verbose trace config help version ";
static const char *const names_of_eval =
    "model data adapter chunk-size compute backend threads memory max-length json "
    "quiet config help version ";
static const char *const names_of_verify =
    "model data data-weights "
    "chunk-size retain-chunks recompute compute backend threads "
    "memory global-batch tokens-per-batch "
    "max-length seed no-shuffle freeze "
    "lora-rank lora-alpha lora-targets init-adapter against tolerance "
    "quiet "
    "config help version ";
static const char *const names_of_generate =
    "model prompt messages adapter chunk-size compute backend threads memory "
    "seed max-new-tokens temperature top-p json quiet config help version ";
static const char *const names_of_export =
    "model output step merge export-dtype quiet config help version ";
static const char *const names_of_merge =
    "model adapter output export-dtype quiet config help version ";
static const char *const names_of_simulate =
    "model data data-weights lengths chunk-size retain-chunks pipeline-stages "
    "layers-per-stage schedule recompute compute "
    "global-batch tokens-per-batch "
    "max-length seed no-shuffle json replicas search memory-tokens cost "
    "cost-file svg trace config help version ";

static const char *const names_of_plan =
    "model data data-weights chunk-size retain-chunks ranks pipeline-stages "
    "compute backend threads memory global-batch "
    "tokens-per-batch steps epochs max-length seed no-shuffle freeze "
    "lora-rank lora-alpha lora-targets init-adapter calibrate explain json "
    "config help version ";

static const char *const names_of_report = "output help version ";

START_TEST(each_command_has_these_options_and_no_other)
{
    static const char *const *const wanted[] = {
        [CF_COMMAND_TRAIN] = &names_of_train,
        [CF_COMMAND_EVAL] = &names_of_eval,
        [CF_COMMAND_VERIFY] = &names_of_verify,
        [CF_COMMAND_GENERATE] = &names_of_generate,
        [CF_COMMAND_EXPORT] = &names_of_export,
        [CF_COMMAND_MERGE] = &names_of_merge,
        [CF_COMMAND_SIMULATE] = &names_of_simulate,
        [CF_COMMAND_PLAN] = &names_of_plan,
        [CF_COMMAND_REPORT] = &names_of_report,
    };
    char names[1024];
    size_t n = 0;

    for (size_t i = 0; i < cf_option_count; i++) {
        if ((cf_option_table[i].commands & 1U << _i) != 0)
            n += (size_t)snprintf(names + n, sizeof(names) - n, "%s ",
                                  cf_option_table[i].name);
    }
    ck_assert_str_eq(names, *wanted[_i]);
}
END_TEST

START_TEST(help_is_one_screen_with_every_option_on_a_line_of_its_own)
{
    char line[32];
    cf_options options;
    cf_options_outcome outcome;
    const char *text;
    size_t n_lines = 0;

    (void)snprintf(line, sizeof(line), "%s --help",
                   cf_command_name((cf_command)_i));
    output_begin();
    ck_assert_int_eq(open_line(line, &options, &outcome), CF_OK);
    text = output_end();
    ck_assert_int_eq(outcome, CF_OPTIONS_SHOWN);
    cf_options_close(&options);
    for (size_t i = 0; i < cf_option_count; i++) {
        char flag[64];

        (void)snprintf(flag, sizeof(flag), "\n  --%s ",
                       cf_option_table[i].name);
        ck_assert_int_eq(strstr(text, flag) != NULL,
                         (cf_option_table[i].commands & 1U << _i) != 0);
    }
    for (const char *at = text; *at != '\0'; at = strchr(at, '\n') + 1) {
        ck_assert_int_le(strchr(at, '\n') - at, 80);
        n_lines++;
    }
    ck_assert_uint_le(n_lines, 64);
}
END_TEST

START_TEST(help_and_version_are_results)
{
    static const char *const cases[][2] = {
        {"--version", "chunkflow 0.1.0\n"},
        {"train --version", "chunkflow 0.1.0\n"},
        {"--help", "usage: chunkflow COMMAND"},
        {"-h", "usage: chunkflow COMMAND"},
        {"eval -h", "usage: chunkflow eval --model DIR --data FILE [options]"},
        {"train --steps 3 --help",
         "usage: chunkflow train --model DIR --data FILE --output DIR"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        cf_options options;
        cf_options_outcome outcome;
        const char *text;

        output_begin();
        ck_assert_int_eq(open_line(cases[i][0], &options, &outcome), CF_OK);
        text = output_end();
        ck_assert_int_eq(outcome, CF_OPTIONS_SHOWN);
        ck_assert_ptr_eq(strstr(text, cases[i][1]), text);
        cf_options_close(&options);
    }
}
END_TEST

/* ---- the command line ---- */

START_TEST(defaults_are_those_of_the_interface)
{
    cf_options o = options_of("train --model m --data d --output o");

    ck_assert_int_eq(o.command, CF_COMMAND_TRAIN);
    ck_assert_str_eq(o.model, "m");
    ck_assert_uint_eq(o.n_data, 1);
    ck_assert_str_eq(o.data[0], "d");
    ck_assert_str_eq(o.output, "o");
    ck_assert(!o.overwrite && o.shuffle && !o.dry_run && !o.quiet &&
              !o.verbose && !o.json);
    ck_assert_uint_eq(o.chunk_size_tok, 2048);
    ck_assert_uint_eq(o.retained_chunks_max, 1);
    ck_assert_int_eq(o.recompute, CF_RECOMPUTE_SELECTIVE);
    ck_assert_int_eq(o.compute, CF_COMPUTE_FP32);
    ck_assert_int_eq(o.backend, CF_BACKEND_AUTO);
    ck_assert_uint_eq(o.threads, 0);
    ck_assert_uint_eq(o.memory_bytes, 0);
    ck_assert_uint_eq(o.global_batch, 32);
    ck_assert_uint_eq(o.steps, 0);
    ck_assert_uint_eq(o.epochs, 1);
    ck_assert_uint_eq(o.max_length_tok, 0);
    ck_assert_uint_eq(o.seed, 0);
    ck_assert(o.learning_rate == 2e-5 && o.min_learning_rate == 0 &&
              o.weight_decay == 0 && o.adam_beta1 == 0.9 &&
              o.adam_beta2 == 0.999 && o.adam_eps == 1e-8 && o.grad_clip == 1);
    ck_assert_int_eq(o.lr_schedule, CF_LR_COSINE);
    ck_assert_uint_eq(o.warmup_steps, 0);
    ck_assert_ptr_null(o.freeze);
    ck_assert_int_eq(o.export_dtype, CF_EXPORT_MODEL);
    ck_assert_uint_eq(o.log_every, 1);
    ck_assert_ptr_null(o.against);
    ck_assert(o.tolerance < 0);
    cf_options_close(&o);
}
END_TEST

START_TEST(a_value_may_stand_behind_a_space_or_an_equals_sign)
{
    cf_options o = options_of(
        "train --model=m=1 --data a --data=b --data a --output=--o --overwrite "
        "--chunk-size 4K --retain-chunks=3 --memory 1.5GiB --no-shuffle "
        "--seed 18446744073709551615 --learning-rate .5e-3 --compute fp64 "
        "--recompute layer --lr-schedule=linear --quiet=false "
        "--freeze norms,layers:0-3 "
        "--pipeline-stages 1 --schedule state-aware");

    ck_assert_str_eq(o.model, "m=1");
    ck_assert_str_eq(o.output, "--o");
    ck_assert_uint_eq(o.n_data, 3);
    ck_assert_str_eq(o.data[1], "b");
    ck_assert_str_eq(o.data[2], "a");
    ck_assert(o.overwrite && !o.shuffle && !o.quiet);
    ck_assert_uint_eq(o.chunk_size_tok, 4096);
    ck_assert_uint_eq(o.retained_chunks_max, 3);
    ck_assert_uint_eq(o.memory_bytes, 3ULL << 29);
    ck_assert_uint_eq(o.seed, UINT64_MAX);
    ck_assert(o.learning_rate == 0.0005);
    ck_assert_int_eq(o.compute, CF_COMPUTE_FP64);
    ck_assert_int_eq(o.recompute, CF_RECOMPUTE_LAYER);
    ck_assert_int_eq(o.lr_schedule, CF_LR_LINEAR);
    ck_assert_str_eq(o.freeze, "norms,layers:0-3");
    cf_options_close(&o);
}
END_TEST

START_TEST(auto_is_0_where_a_command_takes_it)
{
    cf_options o = options_of("plan --model m --data d --memory 1");

    ck_assert_uint_eq(o.chunk_size_tok, 0);
    ck_assert_uint_eq(o.retained_chunks_max, 0);
    ck_assert_uint_eq(o.pipeline_stages, 0);
    ck_assert_uint_eq(o.ranks, 1);
    cf_options_close(&o);
    o = options_of("train --model m --data d --output o --chunk-size auto "
                   "--retain-chunks=auto");
    ck_assert_uint_eq(o.chunk_size_tok, 0);
    ck_assert_uint_eq(o.retained_chunks_max, 0);
    ck_assert_uint_eq(o.pipeline_stages, 1);
    cf_options_close(&o);
}
END_TEST

#define TRAIN "train --model m --data d --output o "

static const struct {
    const char *line;
    const char *message;
} refusals[] = {
    {"", "no command"},
    {"trian", "trian: unknown command; the nearest is train"},
    {"simulate --output o", "--output: is an option of train, not of simulate"},
    {"simulate --schedule zigzag",
     "--schedule: \"zigzag\" is not one of state-aware paper 1f1b"},
    {"simulate --pipeline-stages 0",
     "--pipeline-stages: \"0\" is not a whole number"},
    {"plan --model m --data d", "plan needs --memory SIZE"},
    {"plan --model m --data d --memory 1 --schedule paper",
     "paper is not there yet in this version"},
    {"plan --model m --data d --memory 1 --ranks auto",
     "--ranks: \"auto\" is not a whole number from 1 to 4096"},
    {"eval --model m --data d --chunk-size auto",
     "--chunk-size: \"auto\" is not a number of tokens"},
    {"verify --model m --data d --retain-chunks auto",
     "--retain-chunks: \"auto\" is not"},
    {TRAIN "--pipeline-stages auto", "--pipeline-stages: \"auto\" is not"},
    {TRAIN "--chunk-size automatic", "from 1 to 1073741824, or auto"},
    {"export", "export needs --output DIR"},
    {"train --data d --output o", "train needs --model DIR"},
    {"train --model m --output o", "train needs --data FILE"},
    {"train --model m --data d", "train needs --output DIR"},
    {"eval --model m", "eval needs --data FILE"},
    {"verify", "verify needs --model DIR"},
    {"generate --prompt x", "generate needs --model DIR"},
    {"generate --model m --top-p 0", "--top-p: \"0\" is not a number above 0"},
    {"generate --model m --temperature -1", "--temperature: \"-1\" is not"},
    {"train --prompt x", "--prompt: is an option of generate, not of train"},
    {TRAIN "--chunk-sise 3", "--chunk-sise: unknown option; the nearest is "
                             "--chunk-size"},
    {TRAIN "--learnign-rate=3", "the nearest is --learning-rate"},
    {TRAIN "--no_shuffle", "the nearest is --no-shuffle"},
    {TRAIN "--json", "--json: is an option of eval, not of train"},
    {"eval --steps 3", "--steps: is an option of train, not of eval"},
    {"eval --resume", "--resume: is an option of train, not of eval"},
    {TRAIN "--resume --overwrite", "--resume and --overwrite"},
    {TRAIN "--save-minutes 0", "--save-minutes: \"0\" is not a time"},
    {TRAIN "--keep 0", "--keep: \"0\" is not a whole number from 1"},
    {TRAIN "x", "x: not an option"},
    {TRAIN "-x", "-x: not an option"},
    {TRAIN "--", "--: not an option"},
    {TRAIN "--=3", "--=3: not an option"},
    {TRAIN "--steps", "--steps: needs a value, as in --steps N"},
    {TRAIN "--steps --quiet", "--steps: needs a value"},
    {TRAIN "--steps 3 --steps 3", "--steps: is given twice"},
    {TRAIN "--quiet --quiet", "--quiet: is given twice"},
    {TRAIN "--config a --config b", "--config: is given twice"},
    {TRAIN "--model n", "--model: is given twice"},
    {TRAIN "--lora-rank 0 --lora-rank 0", "--lora-rank: is given twice"},
    {"train --model=", "--model: is empty"},
    {"train --model \xff", "--model: is not in UTF-8"},
    {TRAIN "--freeze=", "--freeze: is empty"},
    {TRAIN "--freeze", "--freeze: needs a value, as in --freeze LIST"},
    {"eval --freeze norms", "--freeze: is an option of train, not of eval"},
    {TRAIN "--quiet=1", "--quiet: \"1\" is not true or false"},
    {TRAIN "--chunk-size 0",
     "--chunk-size: \"0\" is not a number of tokens, such as 4096 or 4K, from "
     "1 to 1073741824"},
    {TRAIN "--chunk-size -1", "--chunk-size: \"-1\" is not"},
    {TRAIN "--chunk-size 1073741825", "\"1073741825\" is not"},
    {TRAIN "--chunk-size 4294967297", "\"4294967297\" is not"},
    {TRAIN "--chunk-size 99999999999999999999", "is not"},
    {TRAIN "--chunk-size 12x", "\"12x\" is not"},
    {TRAIN "--chunk-size 4KiB", "\"4KiB\" is not"},
    {TRAIN "--retain-chunks 1.5",
     "\"1.5\" is not a whole number from 1 to 1073741824"},
    {TRAIN "--retain-chunks 4K", "\"4K\" is not"},
    {TRAIN "--kv-memory 1GiB", "--kv-memory needs --kv-dir"},
    {TRAIN "--kv-dir", "--kv-dir: needs a value"},
    {TRAIN "--keep-attention --schedule paper",
     "--keep-attention and --schedule paper: what is kept stays"},
    {TRAIN "--steps 0", "\"0\" is not a whole number from 1"},
    {TRAIN "--threads 0", "\"0\" is not a whole number from 1"},
    {TRAIN "--memory 8Gib!", "\"8Gib!\" is not a size, such as 8GiB or 500MB"},
    {TRAIN "--memory 1.5", "\"1.5\" is not a size"},
    {TRAIN "--memory 99999999999TiB", "is not a size"},
    {TRAIN "--seed 18446744073709551616", "is not a whole number"},
    {TRAIN "--learning-rate nan", "\"nan\" is not a number from 0 to 1000"},
    {TRAIN "--learning-rate inf", "\"inf\" is not"},
    {TRAIN "--learning-rate 0x1p3", "\"0x1p3\" is not"},
    {TRAIN "--learning-rate 1e999", "\"1e999\" is not"},
    {TRAIN "--learning-rate -1e-5", "\"-1e-5\" is not"},
    {TRAIN "--learning-rate 1e-5x", "\"1e-5x\" is not"},
    {TRAIN "--learning-rate=", "\"\" is not a number"},
    {TRAIN "--adam-beta1 1", "\"1\" is not a number from 0 to below 1"},
    {TRAIN "--adam-eps 0", "\"0\" is not a number above 0 to 1"},
    {TRAIN "--compute fp16", "\"fp16\" is not one of fp32 bf16 fp64"},
    {TRAIN "--compute FP32", "\"FP32\" is not one of"},
    {TRAIN "--backend cuda", "--backend: cuda is not there yet"},
    {TRAIN "--eval-every 0", "--eval-every: \"0\" is not a whole number"},
    {TRAIN "--eval-data=", "--eval-data: is empty"},
    {TRAIN "--patience x", "--patience: \"x\" is not a whole number"},
    {"eval --model m --data d --eval-data e",
     "--eval-data: is an option of train, not of eval"},
    {TRAIN "--lora-rank x", "--lora-rank: \"x\" is not a whole number from 0"},
    {TRAIN "--lora-alpha 0", "--lora-alpha: \"0\" is not a number above 0"},
    {TRAIN "--lora-dropout 0.1", "--lora-dropout: 0.1 is not there yet"},
    {"eval --lora-rank 8", "--lora-rank: is an option of train, not of eval"},
    {"merge --model m --output o", "merge needs --adapter DIR"},
    {TRAIN "--tensor-parallel 2", "--tensor-parallel: 2 is not there yet"},
    {"verify --model m --data d --pipeline-stages 2",
     "--pipeline-stages: 2 is not there yet in this version, only 1 is"},
    {"verify --model m --data d --schedule 1f1b",
     "--schedule: 1f1b is not there yet"},
    {TRAIN "--schedule 1f2b", "--schedule: "},
    {TRAIN "--pipeline-stages 0",
     "--pipeline-stages: \"0\" is not a whole number"},
    {TRAIN "--schedule", "--schedule: needs a value"},
};

START_TEST(a_bad_line_is_refused_with_one_line)
{
    check_refused(refusals[_i].line, refusals[_i].message);
}
END_TEST

/* ---- the file ---- */

static cf_options options_with_file(const char *yaml, const char *line)
{
    char words[1024];

    (void)snprintf(words, sizeof(words), "%s --config %s", line,
                   scratch_write_text("run.yaml", yaml));
    return options_of(words);
}

START_TEST(the_line_wins_over_the_file_and_the_file_over_the_default)
{
    cf_options o = options_with_file("# a comment\n"
                                     "model: 'from file'\n"
                                     "data: [a, \"b c\"]\n"
                                     "chunk_size: 4K\n"
                                     "steps: 7\n"
                                     "no_shuffle: true\n"
                                     "learning_rate: 1e-3\n"
                                     "pipeline_stages: 1\n"
                                     "quiet: true\n",
                                     "train --output o --steps 9 "
                                     "--quiet=false");

    ck_assert_str_eq(o.model, "from file");
    ck_assert_uint_eq(o.n_data, 2);
    ck_assert_str_eq(o.data[1], "b c");
    ck_assert_uint_eq(o.chunk_size_tok, 4096);
    ck_assert_uint_eq(o.steps, 9);
    ck_assert(!o.shuffle && !o.quiet);
    ck_assert(o.learning_rate == 1e-3);
    ck_assert_uint_eq(o.global_batch, 32);
    cf_options_close(&o);
}
END_TEST

START_TEST(data_of_the_line_takes_the_place_of_data_of_the_file)
{
    cf_options o =
        options_with_file("model: m\ndata: [a, b]\n", "eval --data c");

    ck_assert_uint_eq(o.n_data, 1);
    ck_assert_str_eq(o.data[0], "c");
    cf_options_close(&o);
    o = options_with_file("model: m\ndata: just one\n", "eval");
    ck_assert_uint_eq(o.n_data, 1);
    ck_assert_str_eq(o.data[0], "just one");
    cf_options_close(&o);
}
END_TEST

START_TEST(an_empty_file_says_nothing)
{
    cf_options o = options_with_file("# nothing\n", "eval --model m --data d");

    ck_assert_uint_eq(o.chunk_size_tok, 2048);
    cf_options_close(&o);
}
END_TEST

static const struct {
    const char *yaml;
    const char *message;
} bad_files[] = {
    {"model: m\n\nchunk_sise: 3\n",
     "run.yaml:3: chunk_sise: unknown option; the nearest is chunk_size"},
    {"chunk-size: 3\n", "run.yaml:1: chunk-size: unknown option; the nearest "
                        "is chunk_size"},
    {"hlep: 3\n", "run.yaml:1: hlep: unknown option; the nearest is "},
    {"config: x\n", "run.yaml:1: config: stands on the command line only"},
    {"help: true\n", "run.yaml:1: help: stands on the command line only"},
    {"json: true\n", "run.yaml:1: json: is an option of eval, not of train"},
    {"steps: 3\nsteps: 3\n", "run.yaml:2: steps: is given twice"},
    {"data: a\ndata: b\n", "run.yaml:2: data: is given twice"},
    {"lora_rank: 0\nlora_rank: 0\n", "run.yaml:2: lora_rank: is given twice"},
    {"steps: x\n", "run.yaml:1: steps: \"x\" is not a whole number from 1"},
    {"steps:\n", "run.yaml:1: steps: \"\" is not"},
    {"seed: 0\nsteps: [3]\n", "run.yaml:2: steps: its value must be a single"},
    {"data: [[a]]\n", "run.yaml:1: data: its value must be a single"},
    {"data: {a: b}\n", "run.yaml:1: data: its value must be a single"},
    {"seed: 0 \nquiet: 1\n", "run.yaml:2: quiet: \"1\" is not true or false"},
    {"model: ''\n", "run.yaml:1: model: is empty"},
    {"model: \"a\\0b\"\n", "run.yaml:1: model: its value must be"},
    {"model: \"a\nsteps: 3\n", "run.yaml:"},
    {"- a\n- b\n", "run.yaml:1: must be a mapping"},
    {"just text\n", "run.yaml:1: must be a mapping"},
    {"? [a]\n: b\n", "run.yaml:1: a key must be the name of an option"},
    {"seed: &x 3\nsteps: *x\n", "run.yaml:2: steps: its value must be"},
    {"seed: 3\n---\nseed: 3\n", "run.yaml:2: a second document"},
    {"seed: 3\n\tsteps: 4\n", "run.yaml:2: not YAML: "},
    {"{", "not YAML: "},
    {"tensor_parallel: 2\n", "run.yaml:1: tensor_parallel: 2 is not there yet"},
    {"lora_dropout: 0.1\n", "run.yaml:1: lora_dropout: 0.1 is not there yet"},
    {"tensor_parallel: [a]\n", "run.yaml:1: tensor_parallel: needs a value"},
    {"lora_rank: [a]\n", "run.yaml:1: lora_rank: its value must be a single"},
    {"seed: 1\nglobal_batch: 0\n", "run.yaml:2: global_batch: \"0\" is not"},
    {"\xff\xfe\x01", "run.yaml"},
};

START_TEST(a_bad_file_is_refused_with_its_name_and_line)
{
    char line[1024];

    /* global_batch is on the line too: the file's is checked all the same. */
    (void)snprintf(line, sizeof(line),
                   "train --output o --global-batch 3 --config %s",
                   scratch_write_text("run.yaml", bad_files[_i].yaml));
    check_refused(line, bad_files[_i].message);
}
END_TEST

START_TEST(a_file_that_cannot_be_read_is_named)
{
    char line[1024];

    (void)snprintf(line, sizeof(line), "train --config %s",
                   scratch_path("none.yaml"));
    check_refused(line, "none.yaml: No such file");
    ck_assert_int_eq(mkdir(scratch_path("folder"), 0777), 0);
    (void)snprintf(line, sizeof(line), "train --config %s",
                   scratch_path("folder"));
    check_refused(line, "folder: cannot be read: Is a directory");
}
END_TEST

/* ---- there and back ---- */

static void check_equal_texts(char *const *a, size_t n_a, char *const *b,
                              size_t n_b)
{
    ck_assert_uint_eq(n_a, n_b);
    for (size_t i = 0; i < n_a; i++)
        ck_assert_str_eq(a[i], b[i]);
}

static void check_equal(const cf_options *a, const cf_options *b)
{
    char text_a[2048];
    char text_b[2048];

    ck_assert_int_eq(a->command, b->command);
    for (size_t i = 0; i < cf_option_count; i++) {
        const cf_option *option = &cf_option_table[i];

        if (option->once)
            continue;
        ck_assert_int_eq(cf_option_is_set(a, option),
                         cf_option_is_set(b, option));
        if (option->kind == CF_OPTION_TEXTS || !cf_option_is_set(a, option))
            continue;
        (void)cf_option_format(a, option, text_a, sizeof(text_a));
        (void)cf_option_format(b, option, text_b, sizeof(text_b));
        ck_assert_str_eq(text_a, text_b);
        if (option->kind == CF_OPTION_REAL)
            ck_assert_mem_eq((const char *)a + option->field,
                             (const char *)b + option->field, sizeof(double));
    }
    check_equal_texts(a->data, a->n_data, b->data, b->n_data);
    check_equal_texts(a->eval_data, a->n_eval_data, b->eval_data,
                      b->n_eval_data);
}

/* Text that YAML finds hard: quotes, colons, spaces at the ends, control
 * characters, letters beyond ASCII, words that look like numbers. */
static void random_text(uint64_t *random, char *text)
{
    static const char *const bits[] = {
        "a",  "'",  "\"",   ": ",   " #",       " ",
        "\n", "\t", "\x01", "\x7f", "é",        "字",
        "😀",  "\\", "-",    "- ",   "?",        "%",
        "@",  "&",  "*",    "!",    "|",        ">",
        "{",  "}",  "[",    ",",    "~",        "null",
        "1",  "0x", "true", "\r",   "\xc2\x85", "\xe2\x80\xa8",
        "/",  "..", "=",    "^",
    };
    uint64_t n = 1 + scratch_random_below(random, 30);

    *text = '\0';
    for (uint64_t i = 0; i < n; i++)
        (void)strcat(
            text,
            bits[scratch_random_below(random, sizeof(bits) / sizeof(bits[0]))]);
}

static void random_value(uint64_t *random, const cf_option *option, char *text)
{
    uint64_t span = option->max - option->min;
    const cf_choice *choice = option->choices;
    double share = (double)(scratch_random(random) >> 11) / 9007199254740992.0;

    switch (option->kind) {
    case CF_OPTION_TEXT:
    case CF_OPTION_TEXTS:
        random_text(random, text);
        break;
    case CF_OPTION_U32:
    case CF_OPTION_U64:
        span >>= scratch_random_below(random, 64);
        (void)sprintf(
            text, "%llu%s",
            (unsigned long long)(option->min +
                                 (span == UINT64_MAX
                                      ? scratch_random(random)
                                      : scratch_random(random) % (span + 1))),
            option->unit == CF_UNIT_MINUTES ? "s" : "");
        break;
    case CF_OPTION_REAL:
        share = pow(share, (double)scratch_random_below(random, 40));
        if (share == 1)
            share = 0.5;
        (void)sprintf(text, "%.17g",
                      option->low + share * (option->high - option->low));
        break;
    case CF_OPTION_CHOICE:
        while (choice[1].name != NULL && !choice[1].later &&
               scratch_random_below(random, 2) == 0)
            choice++;
        (void)strcpy(text, choice->name);
        break;
    default:
        (void)strcpy(text, scratch_random_below(random, 2) ? "true" : "false");
    }
}

static cf_options random_options(uint64_t *random, cf_command command)
{
    cf_options options = {.command = command};
    char text[256];

    ck_assert_int_eq(cf_option_set_defaults(&options), CF_OK);
    for (size_t i = 0; i < cf_option_count; i++) {
        const cf_option *option = &cf_option_table[i];
        uint64_t times = scratch_random_below(random, 3) > 0;

        if ((option->commands & 1U << command) == 0 ||
            option->kind >= CF_OPTION_CONFIG)
            continue;
        if (option->required != 0)
            times = 1;
        if (option->kind == CF_OPTION_TEXTS)
            times = 1 + scratch_random_below(random, 3);
        while (times-- > 0) {
            random_value(random, option, text);
            ck_assert_int_eq(
                cf_option_set(&options, option, option->name, text), CF_OK);
        }
    }
    /* As reading does it: one of the two is always there. */
    if (options.global_batch == 0 && options.tokens_per_batch == 0)
        options.global_batch = 32;
    if (options.schedule == CF_SCHEDULE_PAPER) /* they exclude each other */
        options.keep_attention = false;
    if (options.kv_dir == NULL) /* it needs one */
        options.kv_memory = 0;
    return options;
}

static cf_options written_and_read(const cf_options *options)
{
    char line[1024];
    const char *path = scratch_path("out.yaml");
    FILE *file = fopen(path, "we");

    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(cf_options_write(options, file), CF_OK);
    ck_assert_int_eq(fclose(file), 0);
    (void)snprintf(line, sizeof(line), "%s --config %s",
                   cf_command_name(options->command), path);
    return options_of(line);
}

START_TEST(what_is_written_is_read_back_to_the_same_bits)
{
    uint64_t random = scratch_seed();

    for (int i = 0; i < 300; i++) {
        cf_options options = random_options(&random, (cf_command)_i);
        cf_options back = written_and_read(&options);

        check_equal(&options, &back);
        cf_options_close(&options);
        cf_options_close(&back);
    }
}
END_TEST

START_TEST(the_written_file_has_every_option_that_is_set)
{
    cf_options o = options_of("verify --model m --data d --tolerance 1e-3");
    FILE *file = fopen(scratch_path("out.yaml"), "we");
    char *text;

    ck_assert_int_eq(cf_options_write(&o, file), CF_OK);
    (void)fclose(file);
    text = scratch_read("out.yaml", NULL);
    ck_assert_str_eq(
        text, "# chunkflow 0.1.0: chunkflow verify --config FILE repeats this\n"
              "model: 'm'\ndata:\n- 'd'\nchunk_size: 2048\nretain_chunks: 1\n"
              "recompute: selective\ncompute: fp32\nbackend: auto\n"
              "global_batch: 32\nseed: 0\nno_shuffle: false\nlora_rank: 0\n"
              "tolerance: 0.001\nquiet: false\n");
    free(text);
    cf_options_close(&o);
}
END_TEST

START_TEST(a_full_disk_is_reported)
{
    cf_options o = options_of("eval --model m --data d");
    FILE *file = fopen("/dev/full", "we");

    ck_assert_int_eq(cf_options_write(&o, file), CF_IO);
    (void)fclose(file);
    cf_options_close(&o);
}
END_TEST

START_TEST(a_mutated_file_never_crashes)
{
    static const char yaml[] = "model: 'm'\ndata:\n- 'a'\n- \"b\\n\"\n"
                               "chunk_size: 4K\nlearning_rate: 1e-3\n"
                               "no_shuffle: false\nsteps: 3\n# end\n";
    uint64_t random = scratch_seed();

    for (int i = 0; i < 3000; i++) {
        unsigned char text[512];
        size_t n = sizeof(yaml) - 1;
        char line[1024];
        cf_options options;
        cf_options_outcome outcome;
        cf_status status;

        memcpy(text, yaml, n);
        n = scratch_mutate(&random, text, n, sizeof(text));
        (void)snprintf(line, sizeof(line), "train --output o --config %s",
                       scratch_write("run.yaml", text, n));
        errors_begin();
        status = open_line(line, &options, &outcome);
        (void)errors_end();
        if (status == CF_OK)
            cf_options_close(&options);
        else
            ck_assert_int_eq(status, CF_INVALID);
    }
}
END_TEST

/* ---- sizes ---- */

static const struct {
    const char *text;
    cf_unit unit;
    cf_status status;
    uint64_t value;
} sizes[] = {
    {"0", CF_UNIT_COUNT, CF_OK, 0},
    {"18446744073709551615", CF_UNIT_COUNT, CF_OK, UINT64_MAX},
    {"18446744073709551616", CF_UNIT_COUNT, CF_OVERFLOW, 0},
    {"", CF_UNIT_COUNT, CF_INVALID, 0},
    {"+1", CF_UNIT_COUNT, CF_INVALID, 0},
    {" 1", CF_UNIT_COUNT, CF_INVALID, 0},
    {"1K", CF_UNIT_COUNT, CF_INVALID, 0},
    {"4096", CF_UNIT_TOKENS, CF_OK, 4096},
    {"4K", CF_UNIT_TOKENS, CF_OK, 4096},
    {"4k", CF_UNIT_TOKENS, CF_OK, 4096},
    {"2M", CF_UNIT_TOKENS, CF_OK, 2097152},
    {"4KB", CF_UNIT_TOKENS, CF_INVALID, 0},
    {"4.5K", CF_UNIT_TOKENS, CF_INVALID, 0},
    {"100", CF_UNIT_BYTES, CF_OK, 100},
    {"3KiB", CF_UNIT_BYTES, CF_OK, 3072},
    {"3 MiB", CF_UNIT_BYTES, CF_OK, 3145728},
    {"3GiB", CF_UNIT_BYTES, CF_OK, 3221225472},
    {"3KB", CF_UNIT_BYTES, CF_OK, 3000},
    {"3MB", CF_UNIT_BYTES, CF_OK, 3000000},
    {"3gb", CF_UNIT_BYTES, CF_OK, 3000000000},
    {"0.1GiB", CF_UNIT_BYTES, CF_OK, 107374182},
    {"1.999999TiB", CF_UNIT_BYTES, CF_OK, 2199022156040},
    {"1.9999999TiB", CF_UNIT_BYTES, CF_INVALID, 0},
    {"1.GiB", CF_UNIT_BYTES, CF_INVALID, 0},
    {"1.5", CF_UNIT_BYTES, CF_INVALID, 0},
    {"3G", CF_UNIT_BYTES, CF_INVALID, 0},
    {"3GiBs", CF_UNIT_BYTES, CF_INVALID, 0},
    {"3 ", CF_UNIT_BYTES, CF_INVALID, 0},
    {"16777216TiB", CF_UNIT_BYTES, CF_OVERFLOW, 0},
    {"90s", CF_UNIT_SECONDS, CF_OK, 90},
    {"90", CF_UNIT_SECONDS, CF_OK, 90},
    {"10m", CF_UNIT_SECONDS, CF_OK, 600},
    {"2h", CF_UNIT_SECONDS, CF_OK, 7200},
    {"2d", CF_UNIT_SECONDS, CF_INVALID, 0},
    {"10", CF_UNIT_MINUTES, CF_OK, 600},
    {"90s", CF_UNIT_MINUTES, CF_OK, 90},
    {"10m", CF_UNIT_MINUTES, CF_OK, 600},
};

START_TEST(a_size_is_what_is_written_beside_it)
{
    uint64_t value = 0;

    ck_assert_int_eq(cf_size_parse(sizes[_i].text, sizes[_i].unit, &value),
                     sizes[_i].status);
    ck_assert_uint_eq(value, sizes[_i].value);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("options");
    TCase *list = tcase_create("list");
    TCase *line = tcase_create("line");
    TCase *file = tcase_create("file");
    TCase *size = tcase_create("cf_size_parse");
    SRunner *runner;
    int failed;

    tcase_add_loop_test(list, each_command_has_these_options_and_no_other,
                        CF_COMMAND_TRAIN, CF_COMMAND_REPORT + 1);
    tcase_add_loop_test(
        list, help_is_one_screen_with_every_option_on_a_line_of_its_own,
        CF_COMMAND_TRAIN, CF_COMMAND_REPORT + 1);
    tcase_add_test(list, help_and_version_are_results);
    suite_add_tcase(suite, list);

    tcase_add_test(line, defaults_are_those_of_the_interface);
    tcase_add_test(line, a_value_may_stand_behind_a_space_or_an_equals_sign);
    tcase_add_test(line, auto_is_0_where_a_command_takes_it);
    tcase_add_loop_test(line, a_bad_line_is_refused_with_one_line, 0,
                        sizeof(refusals) / sizeof(refusals[0]));
    suite_add_tcase(suite, line);

    tcase_add_checked_fixture(file, scratch_open, scratch_close);
    tcase_set_timeout(file, 120);
    tcase_add_test(file,
                   the_line_wins_over_the_file_and_the_file_over_the_default);
    tcase_add_test(file, data_of_the_line_takes_the_place_of_data_of_the_file);
    tcase_add_test(file, an_empty_file_says_nothing);
    tcase_add_loop_test(file, a_bad_file_is_refused_with_its_name_and_line, 0,
                        sizeof(bad_files) / sizeof(bad_files[0]));
    tcase_add_test(file, a_file_that_cannot_be_read_is_named);
    tcase_add_loop_test(file, what_is_written_is_read_back_to_the_same_bits,
                        CF_COMMAND_TRAIN, CF_COMMAND_SIMULATE + 1);
    tcase_add_test(file, the_written_file_has_every_option_that_is_set);
    tcase_add_test(file, a_full_disk_is_reported);
    tcase_add_test(file, a_mutated_file_never_crashes);
    suite_add_tcase(suite, file);

    tcase_add_loop_test(size, a_size_is_what_is_written_beside_it, 0,
                        sizeof(sizes) / sizeof(sizes[0]));
    suite_add_tcase(suite, size);

    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
