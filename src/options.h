/* options.h - what the user asked for: command line, YAML file, defaults.
 *
 * One table (options.c) drives the flags, the YAML keys, --help, the man page
 * and the saved configuration.  The command line wins over the file, the file
 * over the default.  An option that a command does not have is an error, never
 * a silent no-op.
 */
#ifndef CF_OPTIONS_H
#define CF_OPTIONS_H

#include <chunkflow/base.h>
#include <chunkflow/schedule.h>

#include <stdbool.h>
#include <stdio.h>

#include "kernels/kernels.h"

typedef enum cf_command {
    CF_COMMAND_TRAIN,
    CF_COMMAND_EVAL,
    CF_COMMAND_VERIFY,
    CF_COMMAND_GENERATE,
    CF_COMMAND_EXPORT,
    CF_COMMAND_MERGE,
    CF_COMMAND_SIMULATE,
    CF_COMMAND_PLAN,
    CF_COMMAND_REPORT
} cf_command;

typedef enum cf_lr_schedule {
    CF_LR_CONSTANT,
    CF_LR_LINEAR,
    CF_LR_COSINE
} cf_lr_schedule;

/* What a retained chunk keeps of each layer. */
typedef enum cf_recompute {
    CF_RECOMPUTE_NONE,      /* everything */
    CF_RECOMPUTE_SELECTIVE, /* all but norms and SwiGLU */
    CF_RECOMPUTE_LAYER      /* layer inputs, attention output and its LSE */
} cf_recompute;

typedef enum cf_backend {
    CF_BACKEND_AUTO,
    CF_BACKEND_CPU,
    CF_BACKEND_CUDA
} cf_backend;

typedef enum cf_export_dtype {
    CF_EXPORT_MODEL, /* as the model folder has it */
    CF_EXPORT_FP32,
    CF_EXPORT_BF16
} cf_export_dtype;

/* INTERFACE section 2, one field an option.  More than a dozen fields, since
 * this is the user's whole say; each module reads only what it needs.  Strings
 * are owned by the options; NULL means not given. */
typedef struct cf_options {
    cf_command command;

    char *model;
    char **data; /* n_data prefixes or .jsonl files */
    size_t n_data;
    char *data_weights; /* as "3,1"; NULL = every sequence once */
    char *output;
    bool overwrite;
    bool resume;
    uint64_t save_every; /* steps; 0 = at the end only */
    uint64_t save_s;     /* seconds; 0 = not by time */
    uint32_t keep;

    uint32_t chunk_size_tok;      /* 0 = auto */
    uint32_t retained_chunks_max; /* 0 = auto */
    uint32_t pipeline_stages;
    uint32_t ranks;         /* plan */
    char *layers_per_stage; /* as "9,9,8,4"; NULL = by cost */
    cf_schedule_kind schedule;
    cf_recompute recompute;
    bool keep_attention; /* of dropped chunks */
    char *kv_dir;        /* NULL: KV state is in memory */
    uint64_t kv_memory;  /* bytes of it that stay there */
    cf_compute compute;
    cf_backend backend;
    uint32_t threads;      /* 0 = as many as there are cores */
    uint64_t memory_bytes; /* 0 = what the machine or its cgroup has */
    uint64_t stall_timeout_s;

    uint32_t global_batch;     /* 0 = no limit beside tokens_per_batch */
    uint64_t tokens_per_batch; /* 0 = by sequences */
    uint64_t steps;            /* 0 = by epochs */
    uint64_t step;             /* export; 0 = the newest */
    uint32_t epochs;
    uint32_t max_length_tok; /* 0 = none */
    uint64_t seed;
    bool shuffle;

    double learning_rate;
    double min_learning_rate;
    cf_lr_schedule lr_schedule;
    uint64_t warmup_steps;
    double weight_decay;
    double adam_beta1;
    double adam_beta2;
    double adam_eps;
    double grad_clip; /* 0 = off */
    char *freeze;     /* what is not trained; NULL = nothing */

    /* Filled from the adapter where there is one (adapter_options.h). */
    uint32_t lora_rank; /* 0 = full fine-tuning */
    double lora_alpha;  /* < 0 = 2 lora_rank */
    char *lora_targets; /* as "q_proj,v_proj"; NULL = all */
    char *adapter;      /* folder of --init-adapter or --adapter */
    bool merge;

    char **eval_data; /* as data; none: no evaluation while training */
    size_t n_eval_data;
    uint64_t eval_every; /* steps; 0 = only at the end */
    bool keep_best;
    uint64_t patience; /* evaluations; 0 = never stop early */

    cf_export_dtype export_dtype;
    bool dry_run;
    uint32_t log_every;
    bool quiet;
    bool verbose;

    char *against;    /* verify */
    double tolerance; /* verify; < 0 = by compute type */
    bool json;        /* eval, generate, simulate, plan */
    bool calibrate;   /* plan, as the next */
    bool explain;

    /* generate */
    char *prompt;   /* text; or messages */
    char *messages; /* file */
    uint32_t new_tok_max;
    double temperature; /* 0 = the likeliest token */
    double top_p;

    /* simulate */
    char *lengths; /* file; or data */
    uint32_t replicas;
    bool search;         /* choose ChunkSize and K */
    uint64_t memory_tok; /* the cap of a search; 0 = none */
    char *cost;          /* NULL = linear */
    char *cost_file;     /* JSON, in place of cost */
    char *svg;
    char *trace;
} cf_options;

typedef enum cf_options_outcome {
    CF_OPTIONS_RUN,  /* go on */
    CF_OPTIONS_SHOWN /* --help or --version was printed: exit 0 */
} cf_options_outcome;

/* Parse argv (argv[1] is the command) and the --config file it names.  On
 * CF_OK close options_p when done.  Errors are logged: CF_INVALID. */
CF_MUST_USE cf_status cf_options_open(int argc, char **argv,
                                      cf_options *options_p,
                                      cf_options_outcome *outcome_p);
void cf_options_close(cf_options *options);

/* As the user types it. */
const char *cf_command_name(cf_command command);

/* One of the options that decide the numbers of a run, which --resume therefore
 * holds on to. */
typedef struct cf_option_text {
    const char *name;
    char value[1024]; /* as a user would write it; "" when it is not set */
} cf_option_text;

/* Number index of them; false: there are no more. */
bool cf_options_identity(const cf_options *options, size_t index,
                         cf_option_text *text_p);

/* The resolved configuration as YAML, which --config reads back to the same
 * options.  CF_IO when a write failed (not logged). */
CF_MUST_USE cf_status cf_options_write(const cf_options *options, FILE *file);

#endif
