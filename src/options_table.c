/* options_table.c - every option there is, and how a name is found.
 *
 * A new row is a new promise to users: it needs a line in the test that freezes
 * the list.
 */
#include "src/options_table.h"

#include "src/log.h"

#include <stddef.h>
#include <string.h>

#define TRAIN    (1U << CF_COMMAND_TRAIN)
#define EVAL     (1U << CF_COMMAND_EVAL)
#define VERIFY   (1U << CF_COMMAND_VERIFY)
#define GENERATE (1U << CF_COMMAND_GENERATE)
#define SIMULATE (1U << CF_COMMAND_SIMULATE)
#define EXPORT   (1U << CF_COMMAND_EXPORT)
#define REPORT   (1U << CF_COMMAND_REPORT)
#define MERGE    (1U << CF_COMMAND_MERGE)
#define PLAN     (1U << CF_COMMAND_PLAN)
#define STEP     (TRAIN | VERIFY) /* commands that run an optimizer step's loss */
#define ALL      (TRAIN | EVAL | VERIFY)
#define EVERY    (ALL | GENERATE | EXPORT | MERGE | SIMULATE | PLAN)

/* Tokens, chunks and sequences are uint32_t, and sums of a few stay inside. */
#define COUNT_MAX (1U << 30)

#define FIELD(of_kind, name) \
    .kind = CF_OPTION_##of_kind, .field = offsetof(cf_options, name)
#define LIST(name) \
    FIELD(TEXTS, name), .count_field = offsetof(cf_options, n_##name)
#define WHOLE(bits, name, of_unit, from, to) \
    FIELD(U##bits, name), .unit = CF_UNIT_##of_unit, .min = (from), .max = (to)
#define REAL(name, from, to) FIELD(REAL, name), .low = (from), .high = (to)

static const cf_choice recomputes[] = {
    {"none", CF_RECOMPUTE_NONE, false},
    {"selective", CF_RECOMPUTE_SELECTIVE, false},
    {"layer", CF_RECOMPUTE_LAYER, false},
    {NULL, 0, false},
};

static const cf_choice computes[] = {
    {"fp32", CF_COMPUTE_FP32, false},
    {"bf16", CF_COMPUTE_BF16, false},
    {"fp64", CF_COMPUTE_FP64, false},
    {NULL, 0, false},
};

static const cf_choice backends[] = {
    {"auto", CF_BACKEND_AUTO, false},
    {"cpu", CF_BACKEND_CPU, false},
    {"cuda", CF_BACKEND_CUDA, true},
    {NULL, 0, false},
};

static const cf_choice schedules[] = {
    {"state-aware", CF_SCHEDULE_STATE_AWARE, false},
    {"paper", CF_SCHEDULE_PAPER, false},
    {"1f1b", CF_SCHEDULE_1F1B, false},
    {"1f1b-recompute", CF_SCHEDULE_1F1B_RECOMPUTE, false},
    {"state-aware-long-first", CF_SCHEDULE_LONG_FIRST, false},
    {NULL, 0, false},
};

static const cf_choice lr_schedules[] = {
    {"constant", CF_LR_CONSTANT, false},
    {"linear", CF_LR_LINEAR, false},
    {"cosine", CF_LR_COSINE, false},
    {NULL, 0, false},
};

static const cf_choice export_dtypes[] = {
    {"model", CF_EXPORT_MODEL, false},
    {"fp32", CF_EXPORT_FP32, false},
    {"bf16", CF_EXPORT_BF16, false},
    {NULL, 0, false},
};

/* clang-format off */
const cf_option cf_option_table[] = {
    {.name = "model", .metavar = "DIR", .commands = EVERY,
     .required = ALL | GENERATE | MERGE | PLAN,
     FIELD(TEXT, model), .help = "Hugging Face folder to start from"},
    {.name = "data", .metavar = "FILE", .commands = ALL | SIMULATE | PLAN,
     .required = ALL | PLAN,
     LIST(data), .help = ".jsonl, or prefix of .bin/.idx; repeatable"},
    {.name = "data-weights", .metavar = "LIST", .commands = STEP | SIMULATE | PLAN,
     .identity = true, FIELD(TEXT, data_weights), .fallback = "all once",
     .help = "how often each --data is drawn, as in 3,1"},
    {.name = "lengths", .metavar = "FILE", .commands = SIMULATE,
     FIELD(TEXT, lengths), .help = "a length in tokens a line, for --data"},
    {.name = "prompt", .metavar = "TEXT", .commands = GENERATE,
     FIELD(TEXT, prompt), .help = "text to go on with"},
    {.name = "messages", .metavar = "FILE", .commands = GENERATE,
     FIELD(TEXT, messages), .help = "JSON: a chat to answer, for --prompt"},
    {.name = "adapter", .metavar = "DIR", .commands = EVAL | GENERATE | MERGE,
     .required = MERGE, FIELD(TEXT, adapter), .fallback = "none",
     .help = "PEFT folder of an adapter"},
    {.name = "output", .metavar = "DIR",
     .commands = TRAIN | EXPORT | MERGE | REPORT,
     .required = TRAIN | EXPORT | MERGE | REPORT,
     FIELD(TEXT, output), .help = "run folder"},
    {.name = "overwrite", .commands = TRAIN, .once = true,
     FIELD(FLAG, overwrite), .help = "replace an earlier run in it"},
    {.name = "resume", .commands = TRAIN, .once = true,
     FIELD(FLAG, resume), .help = "go on from its newest state, if any"},
    {.name = "save-every", .metavar = "N", .commands = TRAIN,
     WHOLE(64, save_every, COUNT, 1, 1ULL << 48), .fallback = "at the end",
     .help = "steps between training states"},
    {.name = "save-minutes", .metavar = "M", .commands = TRAIN,
     WHOLE(64, save_s, MINUTES, 1, 1ULL << 32), .fallback = "at the end",
     .help = "minutes between them, or 90s, 2h"},
    {.name = "keep", .metavar = "N", .commands = TRAIN,
     WHOLE(32, keep, COUNT, 1, 1024), .initial = "2",
     .help = "training states that stay"},

    {.name = "chunk-size", .metavar = "TOK",
     .commands = ALL | GENERATE | SIMULATE | PLAN,
     WHOLE(32, chunk_size_tok, TOKENS, 1, COUNT_MAX), .initial = "2048",
     .word = "auto", .word_commands = TRAIN | PLAN, .word_initial = PLAN,
     .help = "tokens per chunk"},
    {.name = "retain-chunks", .metavar = "K", .commands = STEP | SIMULATE | PLAN,
     WHOLE(32, retained_chunks_max, COUNT, 1, COUNT_MAX), .initial = "1",
     .word = "auto", .word_commands = TRAIN | PLAN, .word_initial = PLAN,
     .help = "chunks of a group whose activations are kept"},
    {.name = "ranks", .metavar = "N", .commands = PLAN,
     WHOLE(32, ranks, COUNT, 1, 4096), .initial = "1",
     .help = "of the run that is planned"},
    {.name = "pipeline-stages", .metavar = "P",
     .commands = TRAIN | SIMULATE | PLAN,
     WHOLE(32, pipeline_stages, COUNT, 1, COUNT_MAX), .initial = "1",
     .word = "auto", .word_commands = PLAN, .word_initial = PLAN,
     .help = "that the layers are spread over"},
    {.name = "layers-per-stage", .metavar = "LIST", .commands = TRAIN | SIMULATE,
     FIELD(TEXT, layers_per_stage), .fallback = "by cost",
     .help = "layers of each stage, as in 9,9,8,4"},
    {.name = "schedule", .metavar = "NAME", .commands = TRAIN | SIMULATE,
     FIELD(CHOICE, schedule), .choices = schedules, .initial = "state-aware",
     .help = "order"},
    {.name = "recompute", .metavar = "POLICY", .commands = STEP | SIMULATE,
     FIELD(CHOICE, recompute), .choices = recomputes, .initial = "selective",
     .help = "inside one"},
    {.name = "keep-attention", .commands = TRAIN, FIELD(FLAG, keep_attention),
     .help = "of dropped chunks: recompute without it"},
    {.name = "kv-dir", .metavar = "DIR", .commands = TRAIN, FIELD(TEXT, kv_dir),
     .fallback = "in memory", .help = "of a file for KV state"},
    {.name = "kv-memory", .metavar = "SIZE", .commands = TRAIN,
     WHOLE(64, kv_memory, BYTES, 1, UINT64_MAX), .fallback = "none",
     .help = "of KV state that is not in it"},
    {.name = "compute", .metavar = "TYPE", .commands = ALL | GENERATE | SIMULATE | PLAN,
     .identity = true,
     FIELD(CHOICE, compute), .choices = computes, .initial = "fp32",
     .help = "of GEMMs and activations"},
    {.name = "backend", .metavar = "NAME", .commands = ALL | GENERATE | PLAN,
     FIELD(CHOICE, backend), .choices = backends, .initial = "auto",
     .help = "runs on"},
    {.name = "threads", .metavar = "N", .commands = ALL | GENERATE | PLAN,
     WHOLE(32, threads, COUNT, 1, 65536), .fallback = "cores",
     .help = "of each rank"},
    {.name = "stall-timeout", .metavar = "TIME", .commands = TRAIN,
     WHOLE(64, stall_timeout_s, SECONDS, 1, 1ULL << 32), .initial = "10m",
     .help = "silence after which a rank counts as lost"},
    {.name = "memory", .metavar = "SIZE", .commands = ALL | GENERATE | PLAN,
     .required = PLAN,
     WHOLE(64, memory_bytes, BYTES, 1, UINT64_MAX), .fallback = "RAM or cgroup",
     .help = "refuse a run that needs more"},

    {.name = "global-batch", .metavar = "N", .commands = STEP | SIMULATE | PLAN,
     .identity = true,
     WHOLE(32, global_batch, COUNT, 1, COUNT_MAX), .fallback = "32",
     .help = "sequences per step"},
    {.name = "tokens-per-batch", .metavar = "N", .commands = STEP | SIMULATE | PLAN,
     .identity = true, WHOLE(64, tokens_per_batch, TOKENS, 1, 1ULL << 48),
     .fallback = "by sequences", .help = "tokens per step, at least"},
    {.name = "steps", .metavar = "N", .commands = TRAIN | PLAN,
     WHOLE(64, steps, COUNT, 1, 1ULL << 48), .fallback = "by epochs",
     .help = "optimizer steps"},
    {.name = "step", .metavar = "N", .commands = EXPORT,
     WHOLE(64, step, COUNT, 1, 1ULL << 48), .fallback = "the newest",
     .help = "of the training state to export"},
    {.name = "epochs", .metavar = "N", .commands = TRAIN | PLAN,
     WHOLE(32, epochs, COUNT, 1, COUNT_MAX), .initial = "1",
     .help = "passes over the data, without --steps"},
    {.name = "max-length", .metavar = "TOK", .commands = ALL | SIMULATE | PLAN,
     .identity = true,
     WHOLE(32, max_length_tok, TOKENS, 1, UINT32_MAX), .fallback = "none",
     .help = "skip, and count, longer sequences"},
    {.name = "seed", .metavar = "N", .commands = STEP | GENERATE | SIMULATE | PLAN,
     .identity = true,
     WHOLE(64, seed, COUNT, 0, UINT64_MAX), .initial = "0",
     .help = "of whatever is random"},
    {.name = "no-shuffle", .commands = STEP | SIMULATE | PLAN, .identity = true,
     FIELD(FLAG_OFF, shuffle), .help = "take the sequences in file order"},

    {.name = "learning-rate", .metavar = "X", .commands = TRAIN, .identity = true,
     REAL(learning_rate, 0, 1000), .initial = "2e-5", .help = "the peak"},
    {.name = "min-learning-rate", .metavar = "X", .commands = TRAIN, .identity = true,
     REAL(min_learning_rate, 0, 1000), .initial = "0",
     .help = "of the last step"},
    {.name = "lr-schedule", .metavar = "NAME", .commands = TRAIN, .identity = true,
     FIELD(CHOICE, lr_schedule), .choices = lr_schedules, .initial = "cosine",
     .help = "in between"},
    {.name = "warmup-steps", .metavar = "N", .commands = TRAIN, .identity = true,
     WHOLE(64, warmup_steps, COUNT, 0, 1ULL << 48), .initial = "0",
     .help = "steps of rising learning rate"},
    {.name = "weight-decay", .metavar = "X", .commands = TRAIN, .identity = true,
     REAL(weight_decay, 0, 1000), .initial = "0",
     .help = "decoupled, on matrices only"},
    {.name = "adam-beta1", .metavar = "X", .commands = TRAIN, .identity = true,
     REAL(adam_beta1, 0, 1), .below_high = true, .initial = "0.9",
     .help = "decay of the first moment"},
    {.name = "adam-beta2", .metavar = "X", .commands = TRAIN, .identity = true,
     REAL(adam_beta2, 0, 1), .below_high = true, .initial = "0.999",
     .help = "decay of the second moment"},
    {.name = "adam-eps", .metavar = "X", .commands = TRAIN, .identity = true,
     REAL(adam_eps, 0, 1), .above_low = true, .initial = "1e-8",
     .help = "added to the root of the second moment"},
    {.name = "grad-clip", .metavar = "X", .commands = TRAIN, .identity = true,
     REAL(grad_clip, 0, 1e30), .initial = "1",
     .help = "largest gradient norm; 0 = off"},
    {.name = "freeze", .metavar = "LIST", .commands = STEP | PLAN, .identity = true,
     FIELD(TEXT, freeze), .fallback = "nothing",
     .help = "not to train, as in embeddings,layers:0-7"},
    {.name = "lora-rank", .metavar = "R", .commands = STEP | PLAN, .identity = true,
     WHOLE(32, lora_rank, COUNT, 0, 1U << 16), .initial = "0",
     .help = "of an adapter beside the frozen model; 0 = full"},
    {.name = "lora-alpha", .metavar = "X", .commands = STEP | PLAN, .identity = true,
     REAL(lora_alpha, 0, 1e9), .above_low = true, .fallback = "2R",
     .help = "its scale is X / R"},
    {.name = "lora-targets", .metavar = "LIST", .commands = STEP | PLAN,
     .identity = true, FIELD(TEXT, lora_targets), .fallback = "all linear",
     .help = "as in q_proj,v_proj"},
    {.name = "init-adapter", .metavar = "DIR", .commands = STEP | PLAN,
     FIELD(TEXT, adapter), .fallback = "a new one",
     .help = "PEFT folder to go on from"},
    {.name = "merge", .commands = TRAIN | EXPORT,
     FIELD(FLAG, merge), .help = "write the merged model too"},

    {.name = "eval-data", .metavar = "FILE", .commands = TRAIN,
     LIST(eval_data), .fallback = "none",
     .help = "to evaluate on between steps; repeatable"},
    {.name = "eval-every", .metavar = "N", .commands = TRAIN,
     WHOLE(64, eval_every, COUNT, 1, 1ULL << 48), .fallback = "at the end",
     .help = "steps between evaluations"},
    {.name = "keep-best", .commands = TRAIN,
     FIELD(FLAG, keep_best), .help = "export the model of the best evaluation"},
    {.name = "patience", .metavar = "N", .commands = TRAIN,
     WHOLE(64, patience, COUNT, 1, 1ULL << 48), .fallback = "never",
     .help = "stop after N evaluations without a better one"},

    {.name = "export-dtype", .metavar = "TYPE",
     .commands = TRAIN | EXPORT | MERGE,
     FIELD(CHOICE, export_dtype), .choices = export_dtypes, .initial = "model",
     .help = "of the weights"},
    {.name = "against", .metavar = "FILE", .commands = VERIFY,
     FIELD(TEXT, against), .fallback = "the unsplit step",
     .help = ".safetensors with gradients"},
    {.name = "tolerance", .metavar = "X", .commands = VERIFY,
     REAL(tolerance, 0, 1e30), .fallback = "by type",
     .help = "largest relative difference"},
    {.name = "max-new-tokens", .metavar = "TOK", .commands = GENERATE,
     WHOLE(32, new_tok_max, TOKENS, 1, COUNT_MAX), .initial = "256",
     .help = "at most so many, where no end token comes"},
    {.name = "temperature", .metavar = "X", .commands = GENERATE,
     REAL(temperature, 0, 1000), .initial = "0",
     .help = "of a draw; 0 = the likeliest token"},
    {.name = "top-p", .metavar = "X", .commands = GENERATE,
     REAL(top_p, 0, 1), .above_low = true, .initial = "1",
     .help = "draw from the likeliest that have X together"},
    {.name = "dry-run", .commands = TRAIN,
     FIELD(FLAG, dry_run), .help = "counts, memory and plan; no training"},
    {.name = "calibrate", .commands = PLAN,
     FIELD(FLAG, calibrate), .help = "measure this machine first, for 20 seconds"},
    {.name = "explain", .commands = PLAN,
     FIELD(FLAG, explain), .help = "the memory of the choice, as a formula"},
    {.name = "json", .commands = EVAL | GENERATE | SIMULATE | PLAN,
     FIELD(FLAG, json), .help = "one JSON object instead"},
    {.name = "log-every", .metavar = "N", .commands = TRAIN,
     WHOLE(32, log_every, COUNT, 1, COUNT_MAX), .initial = "1",
     .help = "steps between lines of progress"},
    {.name = "quiet", .commands = EVERY & ~(SIMULATE | PLAN),
     FIELD(FLAG, quiet), .help = "no progress"},
    {.name = "verbose", .commands = TRAIN,
     FIELD(FLAG, verbose), .help = "op list and times of every step"},
    {.name = "replicas", .metavar = "N", .commands = SIMULATE,
     WHOLE(32, replicas, COUNT, 1, 65536), .initial = "1",
     .help = "that the sequences are placed on"},
    {.name = "search", .commands = SIMULATE,
     FIELD(FLAG, search), .help = "find the best ChunkSize and K"},
    {.name = "memory-tokens", .metavar = "TOK", .commands = SIMULATE,
     WHOLE(64, memory_tok, TOKENS, 1, 1ULL << 48), .fallback = "none",
     .help = "cap of a search: kept tokens of a stage"},
    {.name = "cost", .metavar = "COST", .commands = SIMULATE,
     FIELD(TEXT, cost), .fallback = "linear",
     .help = "linear, or of an OP,TOKEN,PAIR[,LEAST]"},
    {.name = "cost-file", .metavar = "FILE", .commands = SIMULATE,
     FIELD(TEXT, cost_file), .fallback = "none",
     .help = "costs of every stage, as JSON"},
    {.name = "svg", .metavar = "FILE", .commands = SIMULATE,
     FIELD(TEXT, svg), .fallback = "none", .help = "picture of the timeline"},
    {.name = "trace", .metavar = "FILE", .commands = TRAIN | SIMULATE,
     FIELD(TEXT, trace), .fallback = "none",
     .help = "every op and when, for ui.perfetto.dev"},
    {.name = "config", .metavar = "FILE", .commands = EVERY,
     .kind = CF_OPTION_CONFIG,
     .help = "YAML with these names, _ for -; flags win"},
    {.name = "help", .commands = EVERY | REPORT, .kind = CF_OPTION_HELP,
     .help = "this page"},
    {.name = "version", .commands = EVERY | REPORT, .kind = CF_OPTION_VERSION,
     .help = "the version"},
};
/* clang-format on */

const size_t cf_option_count =
    sizeof(cf_option_table) / sizeof(cf_option_table[0]);

_Static_assert(sizeof(cf_option_table) / sizeof(cf_option_table[0]) <=
                   CF_OPTIONS_MAX,
               "a draft has room for every option");

static const cf_later_option later_options[] = {
    {"pipeline-stages", VERIFY, "1"},
    {"schedule", VERIFY | PLAN, "state-aware"},
    {"tensor-parallel", STEP, "1"},
    {"lora-dropout", STEP, "0"},
};

typedef struct command_row {
    const char *name;
    cf_command command;
    bool later;
} command_row;

static const command_row commands[] = {
    {"train", CF_COMMAND_TRAIN, false},
    {"eval", CF_COMMAND_EVAL, false},
    {"verify", CF_COMMAND_VERIFY, false},
    {"generate", CF_COMMAND_GENERATE, false},
    {"plan", CF_COMMAND_PLAN, false},
    {"simulate", CF_COMMAND_SIMULATE, false},
    {"export", CF_COMMAND_EXPORT, false},
    {"merge", CF_COMMAND_MERGE, false},
    {"report", CF_COMMAND_REPORT, false},
};

enum {
    N_LATER = sizeof(later_options) / sizeof(later_options[0]),
    N_COMMANDS = sizeof(commands) / sizeof(commands[0]),
    NAME_MAX_BYTES = 64 /* a longer word is near nothing */
};

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Letters to insert, drop, change or swap with a neighbour. */
static size_t edit_distance(const char *a, const char *b)
{
    size_t rows[3][NAME_MAX_BYTES + 1];
    size_t *older = rows[0];
    size_t *above = rows[1];
    size_t *row = rows[2];
    const size_t n_a = strlen(a);
    const size_t n_b = strlen(b);

    if (n_a > NAME_MAX_BYTES || n_b > NAME_MAX_BYTES)
        return n_a + n_b;
    for (size_t j = 0; j <= n_b; j++)
        row[j] = j;
    for (size_t i = 1; i <= n_a; i++) {
        size_t *free_row = older;

        older = above;
        above = row;
        row = free_row;
        row[0] = i;
        for (size_t j = 1; j <= n_b; j++) {
            row[j] = least(least(above[j], row[j - 1]) + 1,
                           above[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = least(row[j], older[j - 2] + 1);
        }
    }
    return row[n_b];
}

/* Worth naming as the nearest. */
static bool is_candidate(cf_command command, const cf_option *option,
                         cf_spelling spelling)
{
    return (option->commands & 1U << command) != 0 &&
           (option->kind < CF_OPTION_CONFIG ||
            (option->kind == CF_OPTION_CONFIG && spelling == CF_SPELLING_FLAG));
}

static const char *nearest_option(cf_command command,
                                  const cf_option_word *word)
{
    const char *nearest = NULL;
    size_t smallest = SIZE_MAX;

    for (size_t i = 0; i < cf_option_count; i++) {
        size_t distance;

        if (!is_candidate(command, &cf_option_table[i], word->spelling))
            continue;
        distance = edit_distance(word->name, cf_option_table[i].name);
        if (distance < smallest) {
            smallest = distance;
            nearest = cf_option_table[i].name;
        }
    }
    return nearest;
}

/* "--dry-run" or "dry_run". */
static void spell(const char *name, cf_spelling spelling, char *buf,
                  size_t size)
{
    (void)snprintf(buf, size, "%s%s", spelling == CF_SPELLING_FLAG ? "--" : "",
                   name);
    if (spelling == CF_SPELLING_KEY) {
        for (char *c = buf; *c != '\0'; c++) {
            if (*c == '-')
                *c = '_';
        }
    }
}

static const cf_option *option_named(const char *name)
{
    for (size_t i = 0; i < cf_option_count; i++) {
        if (strcmp(cf_option_table[i].name, name) == 0)
            return &cf_option_table[i];
    }
    return NULL;
}

static const cf_later_option *later_named(const char *name)
{
    for (size_t i = 0; i < N_LATER; i++) {
        if (strcmp(later_options[i].name, name) == 0)
            return &later_options[i];
    }
    return NULL;
}

/* The first command of a set. */
static const char *command_with(unsigned set)
{
    return cf_command_name((cf_command)__builtin_ctz(set));
}

cf_status cf_option_find(cf_command command, const cf_option_word *word,
                         const cf_option **option_p,
                         const cf_later_option **later_p)
{
    const unsigned bit = 1U << command;
    const cf_option *option = option_named(word->name);
    const cf_later_option *later = later_named(word->name);
    char nearest[NAME_MAX_BYTES];

    if (option != NULL && option->kind >= CF_OPTION_CONFIG &&
        word->spelling == CF_SPELLING_KEY) {
        cf_log_error("%s: stands on the command line only", word->where);
        return CF_INVALID;
    }
    if (option != NULL && (option->commands & bit) != 0) {
        *option_p = option;
        *later_p = NULL;
        return CF_OK;
    }
    if (later != NULL && (later->commands & bit) != 0) {
        *option_p = NULL;
        *later_p = later;
        return CF_OK;
    }
    if (option != NULL || later != NULL) {
        cf_log_error(
            "%s: is an option of %s, not of %s", word->where,
            command_with(option != NULL ? option->commands : later->commands),
            cf_command_name(command));
        return CF_INVALID;
    }
    spell(nearest_option(command, word), word->spelling, nearest,
          sizeof(nearest));
    cf_log_error("%s: unknown option; the nearest is %s", word->where, nearest);
    return CF_INVALID;
}

cf_status cf_option_refuse(const cf_later_option *later, const char *where,
                           const char *value, cf_options_given *given)
{
    bool *before = &given->later[later - later_options];

    if (*before) {
        cf_log_error("%s: is given twice; leave one out", where);
        return CF_INVALID;
    }
    if (later->accepted == NULL)
        cf_log_error("%s: is not there yet in this version", where);
    else if (value == NULL)
        cf_log_error("%s: needs a value", where);
    else if (strcmp(value, later->accepted) != 0)
        cf_log_error("%s: %.100s is not there yet in this version, only %s is",
                     where, value, later->accepted);
    else
        *before = true;
    return *before ? CF_OK : CF_INVALID;
}

cf_status cf_command_find(const char *name, cf_command *command_p)
{
    const char *nearest = NULL;
    size_t smallest = SIZE_MAX;

    for (size_t i = 0; i < N_COMMANDS; i++) {
        size_t distance = edit_distance(name, commands[i].name);

        if (distance == 0 && commands[i].later) {
            cf_log_error("%s: this command is not there yet in this version",
                         name);
            return CF_INVALID;
        }
        if (distance == 0) {
            *command_p = commands[i].command;
            return CF_OK;
        }
        if (distance < smallest && !commands[i].later) {
            smallest = distance;
            nearest = commands[i].name;
        }
    }
    cf_log_error("%.100s: unknown command; the nearest is %s", name, nearest);
    return CF_INVALID;
}

const char *cf_command_name(cf_command command)
{
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (commands[i].command == command)
            return commands[i].name;
    }
    return "";
}
