/* bench.h - train's engine on a tiny model, step by step, without the command.
 *
 * Every function fails the test when something under it fails.
 */
#ifndef CF_TEST_BENCH_H
#define CF_TEST_BENCH_H

#include "src/run.h"
#include "src/step.h"

#define BENCH_FIXTURES CF_TEST_SRCDIR "/tests/parity/fixtures/"

typedef struct bench_setting {
    const char *fixture;
    const char *data; /* NULL: the fixture's own */
    cf_compute compute;
    cf_recompute policy;
    uint32_t chunk_size_tok;
    uint32_t retained_chunks_max;
    bool keep_attention;
} bench_setting;

typedef struct bench {
    char *model, *data, *freeze, *targets; /* owned */
    cf_options options;
    cf_run run;
    cf_batches batches;
    cf_step_plan_need need;
    cf_step_plan plan;
    cf_engine engine;
    cf_step_shares shares;
    cf_reduction reduction;
    cf_arena sizes; /* what was predicted */
    uint64_t n_updates;
} bench;

/* A model with its weights, ready for step 1: batches of 4, a learning rate of
 * 1e-2.  The second leaves a list as --freeze has it untrained; NULL: none. */
void bench_open(bench *b, const bench_setting *s);
void bench_open_frozen(bench *b, const bench_setting *s, const char *freeze);

/* The same beside a new adapter of this rank, alpha twice that, and these
 * targets, NULL: all. */
void bench_open_adapted(bench *b, const bench_setting *s, uint32_t rank,
                        const char *targets);
void bench_close(bench *b);

/* Have the sequences of a step decoded, which bench_step does otherwise. */
cf_status bench_prepare(bench *b, uint64_t number);

/* One whole step. */
cf_status bench_step(bench *b, uint64_t number, cf_step_report *report);

/* Tokens of the longest sequence of the last step. */
uint32_t bench_longest_of_batch(const bench *b);

/* a and b, one behind the other, in fresh memory. */
char *bench_path(const char *a, const char *b);

#endif
