/* check_engine.c - a training step on tiny models: memory, bits, isolation.
 *
 * Linked with malloc, calloc and realloc wrapped, so that a call of our own
 * code inside a step is seen. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "src/run.h"
#include "src/step.h"
#include "tests/lib/temp_folder.h"

#define FIXTURES CF_TEST_SRCDIR "/tests/parity/fixtures/"

/* ---- allocations ---- */

static size_t allocations;

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *old, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *old, size_t size);

void *__wrap_malloc(size_t size)
{
    allocations++;
    return __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size)
{
    allocations++;
    return __real_calloc(n, size);
}

void *__wrap_realloc(void *old, size_t size)
{
    allocations++;
    return __real_realloc(old, size);
}

/* ---- a run of a few steps ---- */

typedef struct setting {
    const char *fixture;
    const char *data; /* NULL: the fixture's own */
    cf_compute compute;
    cf_recompute policy;
    uint32_t chunk_size_tok;
    uint32_t retained_chunks_max;
} setting;

typedef struct bench {
    char *model, *data;
    cf_options options;
    cf_run run;
    cf_batches batches;
    cf_step_plan_need need;
    cf_step_plan plan;
    cf_engine engine;
    cf_arena sizes;
    uint64_t n_updates;
} bench;

static char *joined(const char *a, const char *b)
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
    cf_engine_carve(&b->engine, &b->run.model, &b->need.engine,
                    b->options.recompute, CF_GRADIENTS_YES, arena);
}

static void bench_open(bench *b, const setting *s)
{
    memset(b, 0, sizeof(*b));
    b->model = joined(FIXTURES, s->fixture);
    b->data =
        s->data != NULL ? joined(s->data, "") : joined(b->model, "/data.jsonl");
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
    };
    ck_assert_int_eq(cf_run_open(&b->options, &b->run), CF_OK);
    ck_assert_int_eq(cf_batches_open(b->run.dataset, &b->options, &b->batches),
                     CF_OK);
    ck_assert_int_eq(
        cf_step_plan_bound(b->run.dataset, b->batches.eligible,
                           b->batches.n_eligible, b->batches.global_batch,
                           s->chunk_size_tok, s->retained_chunks_max, &b->need),
        CF_OK);
    ck_assert_int_eq(cf_run_size(&b->run, carve, b, &b->need, &b->sizes),
                     CF_OK);
    ck_assert_int_eq(cf_run_place(&b->run, &b->sizes, carve, b), CF_OK);
    ck_assert_int_eq(cf_model_load(&b->run.model, b->model), CF_OK);
}

static void bench_close(bench *b)
{
    cf_batches_close(&b->batches);
    cf_run_close(&b->run);
    free(b->data);
    free(b->model);
}

static cf_status bench_step(bench *b, uint64_t number, cf_step_report *report)
{
    const cf_step step = {.dataset = b->run.dataset,
                          .need = &b->need,
                          .model = &b->run.model,
                          .engine = &b->engine,
                          .plan = &b->plan};

    b->plan.n_batch = cf_batches_at(&b->batches, number, b->plan.batch);
    return cf_step_run(&step, &b->options, number, b->batches.n_steps,
                       &b->n_updates, report);
}

static uint32_t longest_of_batch(const bench *b)
{
    uint32_t longest = 0;

    for (size_t i = 0; i < b->plan.n_sequences; i++)
        if (b->plan.len_tok[i] > longest)
            longest = b->plan.len_tok[i];
    return longest;
}

/* ---- tests ---- */

static const setting settings[] = {
    {"llama-mha", NULL, CF_COMPUTE_FP32, CF_RECOMPUTE_SELECTIVE, 16, 1},
    {"llama-bias", NULL, CF_COMPUTE_FP64, CF_RECOMPUTE_NONE, 7, 3},
    {"qwen2-tied", NULL, CF_COMPUTE_FP32, CF_RECOMPUTE_LAYER, 16, 2},
    {"qwen3-untied", NULL, CF_COMPUTE_FP64, CF_RECOMPUTE_SELECTIVE, 16, 99},
};
enum {
    N_SETTINGS = sizeof(settings) / sizeof(settings[0])
};

START_TEST(a_step_allocates_nothing)
{
    bench b;
    cf_step_report report;

    bench_open(&b, &settings[_i]);
    for (uint64_t step = 1; step <= b.batches.n_steps; step++) {
        size_t before = allocations, after;
        cf_status status = bench_step(&b, step, &report);

        after = allocations; /* Check itself allocates in its asserts */
        ck_assert_int_eq(status, CF_OK);
        ck_assert_uint_eq(after, before);
    }
    bench_close(&b);
}
END_TEST

START_TEST(the_wrapped_allocator_is_seen)
{
    void *(*volatile allocate)(size_t) = malloc; /* not optimised away */
    size_t before = allocations;

    free(allocate(1));
    ck_assert_uint_eq(allocations, before + 1);
}
END_TEST

START_TEST(peak_is_never_above_the_prediction_and_meets_it_at_the_longest)
{
    bench b;
    cf_step_report report;
    int met = 0;

    bench_open(&b, &settings[_i]);
    ck_assert_uint_gt(b.need.longest_tok, settings[_i].chunk_size_tok);
    for (uint64_t step = 1; step <= b.batches.n_steps; step++) {
        ck_assert_int_eq(bench_step(&b, step, &report), CF_OK);
        ck_assert_uint_le(report.peak_bytes, b.sizes.used);
        if (longest_of_batch(&b) == b.need.longest_tok) {
            ck_assert_uint_eq(report.peak_bytes, b.sizes.used);
            met = 1;
        }
    }
    ck_assert_int_eq(met, 1);
    bench_close(&b);
}
END_TEST

START_TEST(pages_and_slots_are_all_given_back)
{
    bench b;
    cf_step_report report;

    bench_open(&b, &settings[_i]);
    for (uint64_t step = 1; step <= b.batches.n_steps; step++) {
        ck_assert_int_eq(bench_step(&b, step, &report), CF_OK);
        ck_assert_uint_eq(b.engine.kv.pages.n_taken, 0);
        ck_assert_uint_eq(b.engine.acts.pool.n_taken, 0);
    }
    bench_close(&b);
}
END_TEST

/* Gradients of the first step, a copy that the caller frees. */
static void *first_gradients(const setting *s, size_t *bytes_p, double *loss_p)
{
    bench b;
    cf_step_report report;
    void *copy;

    bench_open(&b, s);
    ck_assert_int_eq(bench_step(&b, 1, &report), CF_OK);
    *bytes_p = b.run.model.n_elements * b.run.kernels.acc_bytes;
    *loss_p = report.loss;
    copy = malloc(*bytes_p);
    ck_assert_ptr_nonnull(copy);
    memcpy(copy, b.run.model.gradients, *bytes_p);
    bench_close(&b);
    return copy;
}

START_TEST(gradients_have_the_same_bits_for_every_k_and_policy)
{
    static const char *const fixtures[] = {"llama-bias", "qwen3-untied",
                                           "qwen2-tied"};
    static const uint32_t ks[] = {1, 2, 3, 99};
    const setting first = {fixtures[_i],      NULL, CF_COMPUTE_FP32,
                           CF_RECOMPUTE_NONE, 16,   1};
    size_t bytes;
    double loss;
    void *expected = first_gradients(&first, &bytes, &loss);

    for (size_t k = 0; k < sizeof(ks) / sizeof(ks[0]); k++)
        for (int policy = CF_RECOMPUTE_NONE; policy <= CF_RECOMPUTE_LAYER;
             policy++) {
            setting s = first;
            size_t n;
            double x;
            void *got;

            s.retained_chunks_max = ks[k];
            s.policy = (cf_recompute)policy;
            got = first_gradients(&s, &n, &x);
            ck_assert_uint_eq(n, bytes);
            ck_assert_msg(memcmp(&x, &loss, sizeof(x)) == 0 &&
                              memcmp(got, expected, bytes) == 0,
                          "%s differs at K = %u, policy %d", fixtures[_i],
                          (unsigned)ks[k], policy);
            free(got);
        }
    free(expected);
}
END_TEST

/* Three documents; token `changed` of the second is 9 instead of 8. */
static void documents_write(const char *path, int changed)
{
    FILE *file = fopen(path, "w");

    ck_assert_ptr_nonnull(file);
    for (int document = 0; document < 3; document++) {
        int n = 5 + 4 * document;

        fprintf(file, "{\"input_ids\": [");
        for (int i = 0; i < n; i++)
            fprintf(file, "%s%d", i > 0 ? ", " : "",
                    document == 1 && i == changed ? 9 : 8 + (i % 5) * 3);
        fprintf(file, "]}\n");
    }
    fclose(file);
}

/* Losses by sequence of the documents, packed and cut by chunk_size_tok. */
static void losses_by_sequence(const setting *s, double losses[3])
{
    bench b;
    cf_step_report report;

    bench_open(&b, s);
    ck_assert_int_eq(bench_step(&b, 1, &report), CF_OK);
    memset(losses, 0, 3 * sizeof(losses[0]));
    for (size_t i = 0; i < b.plan.chunks.n_pieces; i++)
        losses[b.plan.sequences[b.plan.chunks.pieces[i].seq]] +=
            b.engine.piece_loss[i];
    bench_close(&b);
}

START_TEST(a_changed_token_moves_no_other_document)
{
    static const uint32_t chunk_sizes[] = {4, 6, 9, 64};
    char *folder = temp_folder_open();
    char *path = joined(folder, "/documents.jsonl");
    const setting s = {"llama-gqa-llama3", path,
                       CF_COMPUTE_FP32,    CF_RECOMPUTE_SELECTIVE,
                       chunk_sizes[_i],    1};
    double before[3], after[3];

    documents_write(path, -1);
    losses_by_sequence(&s, before);
    for (int changed = 0; changed < 8; changed++) {
        documents_write(path, changed);
        losses_by_sequence(&s, after);
        ck_assert_mem_eq(&before[0], &after[0], sizeof(double));
        ck_assert_mem_eq(&before[2], &after[2], sizeof(double));
        ck_assert_double_ne(before[1], after[1]);
    }
    free(path);
    temp_folder_close(folder);
}
END_TEST

START_TEST(a_document_does_not_notice_its_neighbours)
{
    char *folder = temp_folder_open();
    char *path = joined(folder, "/documents.jsonl");
    setting s = {"qwen3-untied",         path, CF_COMPUTE_FP64,
                 CF_RECOMPUTE_SELECTIVE, 64,   1};
    double packed[3], alone[3];

    documents_write(path, -1);
    losses_by_sequence(&s, packed);
    s.chunk_size_tok = 5; /* the longer ones become groups of their own */
    losses_by_sequence(&s, alone);
    for (int i = 0; i < 3; i++)
        ck_assert_double_eq_tol(packed[i], alone[i], 1e-13 * alone[i]);
    free(path);
    temp_folder_close(folder);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine");
    TCase *memory = tcase_create("memory");
    TCase *bits = tcase_create("bits");
    TCase *isolation = tcase_create("isolation");
    SRunner *runner;
    int failed;

    tcase_set_timeout(memory, 120);
    tcase_add_test(memory, the_wrapped_allocator_is_seen);
    tcase_add_loop_test(memory, a_step_allocates_nothing, 0, N_SETTINGS);
    tcase_add_loop_test(
        memory, peak_is_never_above_the_prediction_and_meets_it_at_the_longest,
        0, N_SETTINGS);
    tcase_add_loop_test(memory, pages_and_slots_are_all_given_back, 0,
                        N_SETTINGS);
    suite_add_tcase(suite, memory);
    tcase_set_timeout(bits, 120);
    tcase_add_loop_test(
        bits, gradients_have_the_same_bits_for_every_k_and_policy, 0, 3);
    suite_add_tcase(suite, bits);
    tcase_set_timeout(isolation, 120);
    tcase_add_loop_test(isolation, a_changed_token_moves_no_other_document, 0,
                        4);
    tcase_add_test(isolation, a_document_does_not_notice_its_neighbours);
    suite_add_tcase(suite, isolation);

    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
