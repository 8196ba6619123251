/* bench.c - see bench.h. */
#include "tests/lib/bench.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/alone.h"

char *bench_path(const char *a, const char *b)
{
    char *path = malloc(strlen(a) + strlen(b) + 1);

    ck_assert_ptr_nonnull(path);
    strcpy(path, a);
    strcat(path, b);
    return path;
}

static void carve(void *context, cf_arena *arena)
{
    bench *b = context;

    cf_model_carve(&b->run.model, CF_MODEL_TRAIN, arena);
    cf_step_plan_carve(&b->plan, &b->need, arena);
    cf_step_shares_carve(&b->shares, b->run.comm, &b->run.grid, arena);
    cf_reduction_carve(&b->reduction, b->run.comm, &b->run.grid, &b->run.model,
                       arena);
    cf_engine_carve(&b->engine, &b->run.model, &b->need.engine,
                    b->options.recompute, CF_GRADIENTS_YES, arena);
}

static void open_all(bench *b, const bench_setting *s, const char *freeze,
                     uint32_t rank, const char *targets)
{
    cf_step_plan_params params = {
        .chunk_size_tok = s->chunk_size_tok,
        .keep_attention = s->keep_attention,
        .schedule = {.n_stages = 1,
                     .retained_chunks_max = s->retained_chunks_max}};

    memset(b, 0, sizeof(*b));
    b->model = bench_path(BENCH_FIXTURES, s->fixture);
    b->data = s->data != NULL ? bench_path(s->data, "")
                              : bench_path(b->model, "/data.jsonl");
    b->freeze = freeze != NULL ? bench_path(freeze, "") : NULL;
    b->targets = targets != NULL ? bench_path(targets, "") : NULL;
    b->options = (cf_options){
        .model = b->model,
        .data = &b->data,
        .n_data = 1,
        .compute = s->compute,
        .recompute = s->policy,
        .chunk_size_tok = s->chunk_size_tok,
        .retained_chunks_max = s->retained_chunks_max,
        .threads = 1,
        .global_batch = 4,
        .epochs = 1,
        .learning_rate = 1e-2,
        .lr_schedule = CF_LR_CONSTANT,
        .adam_beta1 = 0.9,
        .adam_beta2 = 0.999,
        .adam_eps = 1e-8,
        .grad_clip = 1,
        .freeze = b->freeze,
        .lora_rank = rank,
        .lora_targets = b->targets,
    };
    ck_assert_int_eq(cf_run_open(&b->options, NULL, &b->run), CF_OK);
    ck_assert_int_eq(cf_batches_open(b->run.dataset, &b->options, &b->batches),
                     CF_OK);
    b->run.comm = alone();
    params.n_batch = b->batches.global_batch;
    ck_assert_int_eq(cf_step_plan_bound(b->run.dataset, b->batches.eligible,
                                        b->batches.n_eligible, &params,
                                        &b->need),
                     CF_OK);
    ck_assert_int_eq(cf_run_size(&b->run, carve, b, &b->need, &b->sizes),
                     CF_OK);
    ck_assert_int_eq(cf_run_place(&b->run, &b->sizes, carve, b), CF_OK);
    ck_assert_int_eq(cf_run_load(&b->run), CF_OK);
}

void bench_open(bench *b, const bench_setting *s)
{
    bench_open_frozen(b, s, NULL);
}

void bench_open_frozen(bench *b, const bench_setting *s, const char *freeze)
{
    open_all(b, s, freeze, 0, NULL);
}

void bench_open_adapted(bench *b, const bench_setting *s, uint32_t rank,
                        const char *targets)
{
    open_all(b, s, NULL, rank, targets);
}

void bench_close(bench *b)
{
    cf_batches_close(&b->batches);
    cf_run_close(&b->run);
    free(b->targets);
    free(b->freeze);
    free(b->data);
    free(b->model);
}

cf_status bench_prepare(bench *b, uint64_t number)
{
    b->plan.n_batch = cf_batches_at(&b->batches, number, b->plan.batch);
    return cf_dataset_prepare(b->run.dataset, b->plan.batch, b->plan.n_batch);
}

cf_status bench_step(bench *b, uint64_t number, cf_step_report *report)
{
    const cf_step step = {.dataset = b->run.dataset,
                          .need = &b->need,
                          .comm = b->run.comm,
                          .shares = &b->shares,
                          .reduction = &b->reduction,
                          .model = &b->run.model,
                          .engine = &b->engine,
                          .plan = &b->plan};
    cf_status status = bench_prepare(b, number);

    if (status != CF_OK)
        return status;
    return cf_step_run(&step, &b->options, number, b->batches.n_steps,
                       &b->n_updates, report);
}

uint32_t bench_longest_of_batch(const bench *b)
{
    uint32_t longest = 0;

    for (size_t i = 0; i < b->plan.n_sequences; i++)
        if (b->plan.len_tok[i] > longest)
            longest = b->plan.len_tok[i];
    return longest;
}
