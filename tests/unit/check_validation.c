/* check_validation.c - evaluations between steps: memory, bits, when they come,
 * which is the best; and the forecast of a run that has them.
 *
 * Linked with malloc, calloc and realloc wrapped, so that a call of our own code
 * inside a pass is seen. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "src/forecast.h"
#include "src/validation.h"
#include "tests/lib/allocations.h"
#include "tests/lib/bench.h"
#include "tests/lib/scratch.h"

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

/* ---- two that take turns ---- */

typedef struct tenant {
    size_t bytes;
    char *first, *second;
} tenant;

static void tenant_carve(void *context, cf_arena *arena)
{
    tenant *t = context;

    t->first = cf_arena_take(arena, CF_LIFETIME_OP, "first", t->bytes, 1);
    t->second = cf_arena_take(arena, CF_LIFETIME_OP, "second", 64, 1);
}

START_TEST(an_overlay_takes_only_what_it_needs_beyond)
{
    static const struct {
        size_t below, over, total, n_lines;
    } cases[] = {
        {640, 64, 64 + 640 + 64, 3},
        {640, 640, 64 + 640 + 64, 3},
        {64, 640, 64 + 640 + 64, 4},
    };

    for (size_t i = 0; i < LENGTH(cases); i++) {
        tenant below = {.bytes = cases[i].below};
        tenant over = {.bytes = cases[i].over};
        cf_arena arena;

        cf_arena_open_dry(&arena);
        cf_arena_take(&arena, CF_LIFETIME_RUN, "run", 64, 1);
        tenant_carve(&below, &arena);
        cf_arena_overlay(&arena, 64, "beyond", tenant_carve, &over);
        ck_assert_uint_eq(arena.used, cases[i].total);
        ck_assert_uint_eq(arena.n_lines, cases[i].n_lines);
        ck_assert(!arena.overflow);
        over.bytes = SIZE_MAX - 10;
        cf_arena_overlay(&arena, 64, "beyond", tenant_carve, &over);
        ck_assert(arena.overflow);
    }
}
END_TEST

START_TEST(a_turn_begins_with_cleared_memory_and_spares_the_rest)
{
    tenant below = {.bytes = 128}, over = {.bytes = 256};
    char *run;
    cf_arena arena;

    ck_assert_int_eq(cf_arena_open(64 + 256 + 64, &arena), CF_OK);
    run = cf_arena_take(&arena, CF_LIFETIME_RUN, "run", 64, 1);
    memset(run, 'r', 64);
    tenant_carve(&below, &arena);
    memset(below.first, 'b', 128 + 64);
    cf_arena_overlay(&arena, 64, "beyond", tenant_carve, &over);
    cf_arena_take_turn(&arena, 64, tenant_carve, &over);
    ck_assert_ptr_eq(over.first, below.first);
    for (size_t i = 0; i < 256 + 64; i++)
        ck_assert_int_eq(over.first[i], 0);
    memset(over.first, 'o', 256 + 64);
    cf_arena_take_turn(&arena, 64, tenant_carve, &below);
    for (size_t i = 0; i < 128 + 64; i++)
        ck_assert_int_eq(below.first[i], 0);
    for (size_t i = 0; i < 64; i++)
        ck_assert_int_eq(run[i], 'r');
    cf_arena_close(&arena);
}
END_TEST

/* ---- passes between steps ---- */

/* A bench whose training engine shares its memory with evaluations. */
typedef struct shared_bench {
    bench b;
    cf_evaluation evaluation;
    size_t from;
} shared_bench;

static void train_carve(void *context, cf_arena *arena)
{
    bench *b = context;

    cf_engine_carve(&b->engine, &b->run.model, &b->need.engine,
                    b->options.recompute, CF_GRADIENTS_YES, arena);
}

static void evaluation_carve(void *context, cf_arena *arena)
{
    shared_bench *s = context;

    cf_evaluation_carve(&s->evaluation, &s->b.run.model, arena);
}

static void shared_carve(void *context, cf_arena *arena)
{
    shared_bench *s = context;

    cf_model_carve(&s->b.run.model, CF_MODEL_TRAIN, arena);
    cf_step_plan_carve(&s->b.plan, &s->b.need, arena);
    cf_step_shares_carve(&s->b.shares, s->b.run.comm, &s->b.run.grid, arena);
    s->from = arena->used;
    train_carve(&s->b, arena);
    cf_arena_overlay(arena, s->from, "evaluation", evaluation_carve, s);
}

/* The bench of a setting, in an arena of ours; it evaluates on all its data. */
static void shared_open(shared_bench *s, const bench_setting *setting)
{
    cf_evaluation_params params = {.option = "--data",
                                   .chunk_size_tok = setting->chunk_size_tok};

    memset(s, 0, sizeof(*s));
    bench_open(&s->b, setting);
    cf_arena_close(&s->b.run.arena);
    params.dataset = s->b.run.dataset;
    ck_assert_int_eq(cf_evaluation_open(&params, &s->evaluation), CF_OK);
    ck_assert_int_eq(
        cf_run_size(&s->b.run, shared_carve, s, &s->b.need, &s->b.sizes),
        CF_OK);
    ck_assert_int_eq(cf_run_place(&s->b.run, &s->b.sizes, shared_carve, s),
                     CF_OK);
    ck_assert_int_eq(cf_model_load(&s->b.run.model, s->b.model), CF_OK);
}

static void shared_close(shared_bench *s)
{
    cf_evaluation_close(&s->evaluation);
    bench_close(&s->b);
}

/* Decoded sequences are the data set's to allocate: they are made ready. */
static void evaluate(shared_bench *s, uint64_t step)
{
    size_t before, after;
    cf_status status = cf_dataset_prepare(
        s->b.run.dataset, s->evaluation.sequences, s->evaluation.n_sequences);

    ck_assert_int_eq(status, CF_OK);
    cf_arena_take_turn(&s->b.run.arena, s->from, evaluation_carve, s);
    before = allocations();
    status = cf_evaluation_run(&s->evaluation, step);
    after = allocations();
    ck_assert_int_eq(status, CF_OK);
    ck_assert_uint_eq(after, before);
    ck_assert_uint_le(cf_engine_peak_bytes(&s->evaluation.engine),
                      s->b.sizes.used);
    cf_arena_take_turn(&s->b.run.arena, s->from, train_carve, &s->b);
}

static const bench_setting settings[] = {
    {"llama-mha", NULL, CF_COMPUTE_FP32, CF_RECOMPUTE_SELECTIVE, 16, 1, false},
    {"llama-bias", NULL, CF_COMPUTE_FP64, CF_RECOMPUTE_NONE, 7, 3, false},
    {"qwen2-tied", NULL, CF_COMPUTE_FP32, CF_RECOMPUTE_LAYER, 16, 2, false},
    {"qwen3-untied", NULL, CF_COMPUTE_FP64, CF_RECOMPUTE_SELECTIVE, 300, 1,
     false},
};

START_TEST(a_pass_between_steps_changes_no_bit_of_training)
{
    shared_bench with, without;
    cf_step_report report;
    size_t bytes;

    shared_open(&with, &settings[_i]);
    shared_open(&without, &settings[_i]);
    for (uint64_t step = 1; step <= 3; step++) {
        cf_step_report other;

        evaluate(&with, step);
        ck_assert_int_eq(bench_step(&with.b, step, &report), CF_OK);
        ck_assert_int_eq(bench_step(&without.b, step, &other), CF_OK);
        ck_assert_mem_eq(&report.loss, &other.loss, sizeof(double));
        ck_assert_mem_eq(&report.grad_norm, &other.grad_norm, sizeof(double));
        ck_assert_uint_eq(report.peak_bytes, other.peak_bytes);
    }
    bytes = with.b.run.model.n_elements * with.b.run.kernels.acc_bytes;
    ck_assert_mem_eq(with.b.run.model.masters, without.b.run.model.masters,
                     bytes);
    shared_close(&with);
    shared_close(&without);
}
END_TEST

START_TEST(a_pass_has_the_bits_of_a_step_on_the_same_batch)
{
    shared_bench s;
    cf_step_report report;
    double loss;

    shared_open(&s, &settings[_i]);
    s.evaluation.n_sequences =
        cf_batches_at(&s.b.batches, 1, s.evaluation.sequences);
    evaluate(&s, 1);
    loss = s.evaluation.loss;
    evaluate(&s, 1);
    ck_assert_mem_eq(&loss, &s.evaluation.loss, sizeof(double));
    ck_assert_int_eq(bench_step(&s.b, 1, &report), CF_OK);
    ck_assert_mem_eq(&loss, &report.loss, sizeof(double));
    shared_close(&s);
}
END_TEST

/* n tokens a line. */
static const char *sequences_write(const char *name, const uint32_t *n_tok,
                                   size_t n)
{
    const char *path = scratch_path(name);
    FILE *file = fopen(path, "we");

    ck_assert_ptr_nonnull(file);
    for (size_t i = 0; i < n; i++) {
        (void)fputs("{\"input_ids\": [1", file);
        for (uint32_t t = 1; t < n_tok[i]; t++)
            (void)fprintf(file, ", %u", 1 + t % 9);
        (void)fputs("]}\n", file);
    }
    ck_assert_int_eq(fclose(file), 0);
    return path;
}

static cf_evaluation evaluation_of(const char *path, uint32_t max_length_tok,
                                   cf_dataset **dataset_p)
{
    char *copy = strdup(path);
    cf_evaluation_params params = {.option = "--eval-data",
                                   .max_length_tok = max_length_tok,
                                   .chunk_size_tok = 16};
    cf_evaluation evaluation;

    ck_assert_int_eq(cf_dataset_open(&copy, 1, 64, dataset_p), CF_OK);
    params.dataset = *dataset_p;
    ck_assert_int_eq(cf_evaluation_open(&params, &evaluation), CF_OK);
    free(copy);
    return evaluation;
}

START_TEST(sequences_that_are_too_long_are_left_out_and_counted)
{
    static const uint32_t n_tok[] = {5, 300, 20, 21, 20};
    cf_dataset *dataset;
    cf_evaluation e = evaluation_of(
        sequences_write("e.jsonl", n_tok, LENGTH(n_tok)), 20, &dataset);

    ck_assert_uint_eq(e.n_sequences, 3);
    ck_assert_uint_eq(e.n_too_long, 2);
    ck_assert_uint_eq(e.sequences[2], 4);
    ck_assert_uint_eq(e.need.longest_tok, 20);
    cf_evaluation_close(&e);
    cf_dataset_close(dataset);
}
END_TEST

START_TEST(data_without_a_target_is_refused_by_its_option)
{
    static const uint32_t one = 1;
    char *path = strdup(sequences_write("e.jsonl", &one, 1));
    cf_evaluation_params params = {.option = "--eval-data",
                                   .chunk_size_tok = 16};
    cf_dataset *dataset;
    cf_evaluation evaluation;

    ck_assert_int_eq(cf_dataset_open(&path, 1, 64, &dataset), CF_OK);
    params.dataset = dataset;
    errors_begin();
    ck_assert_int_eq(cf_evaluation_open(&params, &evaluation), CF_MALFORMED);
    ck_assert_ptr_nonnull(strstr(errors_end(), "--eval-data has a target"));
    cf_dataset_close(dataset);
    free(path);
}
END_TEST

/* ---- when ---- */

static cf_validation validation_every(const cf_options *options)
{
    static char there; /* a data set that nobody looks into */

    return (cf_validation){.options = options,
                           .dataset = (cf_dataset *)(void *)&there};
}

START_TEST(evaluations_come_every_n_steps_and_at_the_end)
{
    for (uint64_t every = 0; every <= 5; every++)
        for (uint64_t n_steps = 1; n_steps <= 12; n_steps++) {
            const cf_options options = {.eval_every = every};
            cf_validation v = validation_every(&options);
            uint64_t n_left = 0;

            for (uint64_t step = n_steps; step > 0; step--) {
                const bool due = cf_validation_is_due(&v, step, n_steps);

                ck_assert_int_eq(due, step == n_steps ||
                                          (every > 0 && step % every == 0));
                n_left += due;
                ck_assert_uint_eq(cf_validation_count(&v, step, n_steps),
                                  n_left);
            }
            ck_assert_uint_eq(cf_validation_count(&v, n_steps + 1, n_steps), 0);
        }
}
END_TEST

START_TEST(an_evaluation_is_made_once_and_none_without_data)
{
    const cf_options options = {.eval_every = 2, .patience = 1};
    cf_validation v = validation_every(&options);

    (void)cf_best_add(&v.best, 4, 1);
    ck_assert(!cf_validation_is_due(&v, 2, 10));
    ck_assert(!cf_validation_is_due(&v, 4, 10));
    ck_assert(cf_validation_is_due(&v, 6, 10));
    ck_assert(!cf_validation_is_due(&v, 0, 10));
    ck_assert(!cf_validation_is_over(&v));
    (void)cf_best_add(&v.best, 6, 1);
    ck_assert(cf_validation_is_over(&v));
    v.dataset = NULL;
    ck_assert(!cf_validation_is_due(&v, 6, 10));
    ck_assert(!cf_validation_is_over(&v));
    ck_assert_uint_eq(cf_validation_count(&v, 1, 10), 0);
}
END_TEST

/* ---- the best ---- */

START_TEST(the_best_is_the_lowest_and_the_earlier_of_equals)
{
    static const struct {
        double loss;
        bool is_best;
        uint64_t step, n_since;
    } rows[] = {
        {3, true, 10, 0},  {3, false, 10, 1},   {2.5, true, 30, 0},
        {4, false, 30, 1}, {2.5, false, 30, 2}, {2.4, true, 60, 0},
    };
    cf_best best = {0};

    for (size_t i = 0; i < LENGTH(rows); i++) {
        ck_assert_int_eq(cf_best_add(&best, 10 * (i + 1), rows[i].loss),
                         rows[i].is_best);
        ck_assert_uint_eq(best.step, rows[i].step);
        ck_assert_uint_eq(best.n_since, rows[i].n_since);
        ck_assert_uint_eq(best.last_step, 10 * (i + 1));
        ck_assert_int_eq(cf_best_is_over(&best, 2), rows[i].n_since >= 2);
        ck_assert(!cf_best_is_over(&best, 0));
        ck_assert(!cf_best_is_over(&best, 3));
    }
}
END_TEST

static const char *const metrics_lines =
    "{\"step\": 1, \"loss\": 1.5}\n"
    "{\"step\": 2, \"loss\": null}\n"
    "{\"step\": 2, \"eval\": true, \"loss\": 0.30000000000000004}\n"
    "{\"step\": 3, \"loss\": 0.1}\n"
    "\n"
    "{\"step\": 4, \"loss\": 0.1}\n"
    "{\"step\": 4, \"eval\": true, \"loss\": 0.3, \"buckets\": []}\n"
    "{\"step\": 6, \"eval\": true, \"loss\": 0.4}\n"
    "{\"step\": 8, \"eval\": true, \"loss\": 0.2}";

START_TEST(the_best_is_told_from_the_lines_of_evaluations)
{
    static const struct {
        uint64_t last_step, n, step, n_since;
        double loss;
    } rows[] = {
        {0, 0, 0, 0, 0},   {1, 0, 0, 0, 0},   {2, 1, 2, 0, 0.1 + 0.2},
        {5, 2, 4, 0, 0.3}, {7, 3, 4, 1, 0.3}, {99, 4, 8, 0, 0.2},
    };
    const char *path = scratch_write_text("metrics.jsonl", metrics_lines);

    for (size_t i = 0; i < LENGTH(rows); i++) {
        cf_best best;

        ck_assert_int_eq(cf_best_read(path, rows[i].last_step, &best), CF_OK);
        ck_assert_uint_eq(best.n_evaluations, rows[i].n);
        ck_assert_uint_eq(best.step, rows[i].step);
        ck_assert_uint_eq(best.n_since, rows[i].n_since);
        ck_assert_double_eq(best.loss, rows[i].loss);
    }
}
END_TEST

START_TEST(metrics_that_are_no_json_are_named_and_none_are_fine)
{
    const char *path =
        scratch_write_text("metrics.jsonl", "{\"step\": 1}\n{\"step\": ");
    cf_best best = {.n_evaluations = 7};

    errors_begin();
    ck_assert_int_eq(cf_best_read(path, 9, &best), CF_MALFORMED);
    ck_assert_ptr_nonnull(strstr(errors_end(), "metrics.jsonl: not one JSON"));
    ck_assert_uint_eq(best.n_evaluations, 7);
    ck_assert_int_eq(cf_best_read(scratch_path("none"), 9, &best), CF_OK);
    ck_assert_uint_eq(best.n_evaluations, 0);
}
END_TEST

/* ---- the forecast ---- */

/* As of a small model at 1 Gflop/s, chunks of 2048 of which one is kept. */
static const cf_forecast small_model = {
    .token_flop = 2e6,
    .target_flop = 1e6,
    .pair_flop = 1e3,
    .trained = 1,
    .linear_backward = 2,
    .retained_tok = 2048,
    .update_s = 0.5,
    .flop_per_s = 1e9,
};

START_TEST(a_long_sequence_is_forecast_to_take_longer_than_its_tokens)
{
    static const uint32_t n_tok[] = {4096, 2048, 2048, 2048};
    static const uint32_t all[] = {0, 1, 2, 3};
    cf_dataset *dataset;
    cf_evaluation e = evaluation_of(
        sequences_write("e.jsonl", n_tok, LENGTH(n_tok)), 0, &dataset);
    cf_forecast f = small_model;
    const double one = cf_forecast_step_s(&f, dataset, &all[0], 1);
    const double two = cf_forecast_step_s(&f, dataset, &all[1], 2);
    const double three = cf_forecast_step_s(&f, dataset, &all[1], 3);
    const double passed = cf_forecast_evaluation_s(&f, dataset, &all[1], 2);

    /* By hand: pairs, tokens and targets of two times 2048. */
    ck_assert_double_eq_tol(two,
                            0.5 + 2 *
                                      (2048 * 2049 / 2 * 1e3 * 3.5 +
                                       2048 * 2e6 * 3 + 2047 * 1e6 * 3) *
                                      1e-9,
                            1e-9 * two);
    ck_assert_double_gt(one, two);
    ck_assert_double_eq_tol(three - two, (two - 0.5) / 2, 1e-9);
    ck_assert_double_lt(passed, (two - 0.5) / 3 + 1e-9);
    f.trained = 0.5;
    ck_assert_double_lt(cf_forecast_step_s(&f, dataset, &all[1], 2), two);
    f = small_model;
    f.retained_tok = 4096; /* nothing is computed again */
    ck_assert_double_lt(cf_forecast_step_s(&f, dataset, &all[0], 1), one);
    cf_evaluation_close(&e);
    cf_dataset_close(dataset);
}
END_TEST

START_TEST(a_forecast_is_corrected_by_what_has_run)
{
    cf_forecast f = small_model;
    char text[64];

    f.n_steps = 10;
    f.steps_s = 1000;
    cf_forecast_add(&f, 1000);
    cf_forecast_add(&f, 200);
    ck_assert_double_eq(cf_forecast_remaining_s(&f), 1200);
    ck_assert_str_eq(cf_forecast_format(&f, text, sizeof(text)),
                     "about 1m40s a step, 20m00s to the end");
    cf_forecast_pass(&f, 200, 100); /* the long step, twice as fast */
    ck_assert_double_eq(cf_forecast_remaining_s(&f), 500);
    ck_assert_str_eq(cf_forecast_format(&f, text, sizeof(text)),
                     "about 50s a step, 8m20s to the end");
    cf_forecast_pass(&f, 1000, 500);
    ck_assert_double_eq(cf_forecast_remaining_s(&f), 0);
}
END_TEST

START_TEST(steps_left_are_forecast_from_their_own_batches)
{
    bench b;
    cf_forecast f, rest;
    uint32_t batch[8];
    double sum = 0;

    bench_open(&b, &settings[0]);
    ck_assert_int_eq(
        cf_forecast_open(&b.run.model, &b.need, CF_RECOMPUTE_SELECTIVE, 1, &f),
        CF_OK);
    ck_assert_double_gt(f.flop_per_s, 0);
    rest = f;
    cf_forecast_add_steps(&f, &b.batches, 1, b.batches.n_steps, batch);
    cf_forecast_add_steps(&rest, &b.batches, 3, b.batches.n_steps, batch);
    for (uint64_t step = 1; step <= b.batches.n_steps; step++) {
        size_t n = cf_batches_at(&b.batches, step, batch);

        sum += cf_forecast_step_s(&f, b.run.dataset, batch, n);
        if (step == 2)
            ck_assert_double_eq_tol(f.run_s - sum, rest.run_s, 1e-9 * sum);
    }
    ck_assert_uint_eq(f.n_steps, b.batches.n_steps);
    ck_assert_double_eq_tol(f.run_s, sum, 1e-9 * sum);
    cf_forecast_add_steps(&f, &b.batches, b.batches.n_steps + 1,
                          b.batches.n_steps, batch);
    ck_assert_double_eq_tol(f.run_s, sum, 1e-9 * sum);
    bench_close(&b);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("validation");
    TCase *memory = tcase_create("memory");
    TCase *passes = tcase_create("passes");
    TCase *files = tcase_create("files");
    SRunner *runner;
    int failed;

    tcase_add_test(memory, an_overlay_takes_only_what_it_needs_beyond);
    tcase_add_test(memory,
                   a_turn_begins_with_cleared_memory_and_spares_the_rest);
    suite_add_tcase(suite, memory);

    tcase_set_timeout(passes, 120);
    tcase_add_loop_test(passes, a_pass_between_steps_changes_no_bit_of_training,
                        0, LENGTH(settings));
    tcase_add_loop_test(passes, a_pass_has_the_bits_of_a_step_on_the_same_batch,
                        0, LENGTH(settings));
    tcase_add_test(passes, steps_left_are_forecast_from_their_own_batches);
    suite_add_tcase(suite, passes);

    tcase_add_checked_fixture(files, scratch_open, scratch_close);
    tcase_add_test(files, sequences_that_are_too_long_are_left_out_and_counted);
    tcase_add_test(files, data_without_a_target_is_refused_by_its_option);
    tcase_add_test(files, evaluations_come_every_n_steps_and_at_the_end);
    tcase_add_test(files, an_evaluation_is_made_once_and_none_without_data);
    tcase_add_test(files, the_best_is_the_lowest_and_the_earlier_of_equals);
    tcase_add_test(files, the_best_is_told_from_the_lines_of_evaluations);
    tcase_add_test(files, metrics_that_are_no_json_are_named_and_none_are_fine);
    tcase_add_test(files,
                   a_long_sequence_is_forecast_to_take_longer_than_its_tokens);
    tcase_add_test(files, a_forecast_is_corrected_by_what_has_run);
    suite_add_tcase(suite, files);

    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
