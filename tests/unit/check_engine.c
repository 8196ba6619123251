/* check_engine.c - a training step on tiny models: memory, bits, isolation.
 *
 * Linked with malloc, calloc and realloc wrapped, so that a call of our own
 * code inside a step is seen. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/allocations.h"
#include "tests/lib/bench.h"
#include "tests/lib/temp_folder.h"

/* ---- tests ---- */

static const bench_setting settings[] = {
    {"llama-mha", NULL, CF_COMPUTE_FP32, CF_RECOMPUTE_SELECTIVE, 16, 1, false},
    {"llama-bias", NULL, CF_COMPUTE_FP64, CF_RECOMPUTE_NONE, 7, 3, false},
    {"qwen2-tied", NULL, CF_COMPUTE_FP32, CF_RECOMPUTE_LAYER, 16, 2, false},
    {"qwen3-untied", NULL, CF_COMPUTE_FP64, CF_RECOMPUTE_SELECTIVE, 16, 99,
     false},
    {"qwen2-tied", NULL, CF_COMPUTE_BF16, CF_RECOMPUTE_SELECTIVE, 16, 2, false},
    {"qwen3-untied", NULL, CF_COMPUTE_BF16, CF_RECOMPUTE_LAYER, 16, 1, false},
    {"qwen2-tied", NULL, CF_COMPUTE_FP32, CF_RECOMPUTE_LAYER, 16, 1, true},
    {"qwen3-untied", NULL, CF_COMPUTE_BF16, CF_RECOMPUTE_NONE, 7, 2, true},
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
        size_t before, after;
        cf_status status;

        /* Outside a step. */
        ck_assert_int_eq(bench_prepare(&b, step), CF_OK);
        before = allocations();
        status = bench_step(&b, step, &report);
        after = allocations(); /* Check itself allocates in its asserts */
        ck_assert_int_eq(status, CF_OK);
        ck_assert_uint_eq(after, before);
    }
    bench_close(&b);
}
END_TEST

START_TEST(the_wrapped_allocator_is_seen)
{
    void *(*volatile allocate)(size_t) = malloc; /* not optimised away */
    size_t before = allocations();

    free(allocate(1));
    ck_assert_uint_eq(allocations(), before + 1);
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
        if (bench_longest_of_batch(&b) == b.need.longest_tok) {
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
        ck_assert_uint_eq(b.engine.dropped.pool.n_taken, 0);
    }
    bench_close(&b);
}
END_TEST

/* Gradients of the first step, a copy that the caller frees. */
static void *first_gradients(const bench_setting *s, size_t *bytes_p,
                             double *loss_p)
{
    bench b;
    cf_step_report report;
    void *copy;

    bench_open(&b, s);
    ck_assert_int_eq(bench_step(&b, 1, &report), CF_OK);
    *bytes_p = b.run.model.n_trained_elements * b.run.kernels.acc_bytes;
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
    enum {
        N_POLICIES = CF_RECOMPUTE_LAYER + 1
    };
    const char *fixture = fixtures[_i / 2];
    const cf_compute compute = _i % 2 ? CF_COMPUTE_BF16 : CF_COMPUTE_FP32;
    const bench_setting first = {fixture, NULL, compute, CF_RECOMPUTE_NONE,
                                 16,      1,    false};
    size_t bytes;
    double loss;
    void *expected = first_gradients(&first, &bytes, &loss);

    for (size_t i = 0; i < 2 * N_POLICIES * sizeof(ks) / sizeof(ks[0]); i++) {
        bench_setting s = first;
        size_t n;
        double x;
        void *got;

        s.keep_attention = i % 2;
        s.policy = (cf_recompute)(i / 2 % N_POLICIES);
        s.retained_chunks_max = ks[i / 2 / N_POLICIES];
        got = first_gradients(&s, &n, &x);
        ck_assert_uint_eq(n, bytes);
        ck_assert_msg(memcmp(&x, &loss, sizeof(x)) == 0 &&
                          memcmp(got, expected, bytes) == 0,
                      "%s differs at K = %u, policy %d%s", fixture,
                      (unsigned)s.retained_chunks_max, (int)s.policy,
                      s.keep_attention ? ", attention kept" : "");
        free(got);
    }
    free(expected);
}
END_TEST

/* ---- attention that is kept ---- */

static cf_kernels kernels_inside;
static size_t n_attention_forwards;

static void count_attention(const cf_kernels *k, const cf_attn_shape *shape,
                            const cf_attn_batch *batch, uint32_t key_begin,
                            uint32_t key_end, const void *q, void *o, void *lse,
                            void *scratch)
{
    n_attention_forwards++;
    kernels_inside.attention_forward(k, shape, batch, key_begin, key_end, q, o,
                                     lse, scratch);
}

START_TEST(attention_that_is_kept_runs_once_a_chunk_and_layer)
{
    bench_setting s = {
        "llama-bias", NULL, CF_COMPUTE_FP32, (cf_recompute)_i, 7, 1, false};
    size_t n_chunks, n_layers;
    cf_step_report report;
    bench b;

    for (int keep = 0; keep < 2; keep++) {
        s.keep_attention = keep;
        bench_open(&b, &s);
        kernels_inside = b.run.kernels;
        b.run.kernels.attention_forward = count_attention;
        n_attention_forwards = 0;
        ck_assert_int_eq(bench_step(&b, 1, &report), CF_OK);
        n_chunks = b.plan.chunks.n_chunks;
        n_layers = b.run.model.config.n_layers;
        ck_assert_uint_gt(report.recomputed_chunks, 0);
        /* Without it a dropped chunk has none in the last layer. */
        ck_assert_uint_eq(n_attention_forwards,
                          keep ? n_chunks * n_layers
                               : n_chunks * n_layers +
                                     report.recomputed_chunks * (n_layers - 1));
        bench_close(&b);
    }
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
static void losses_by_sequence(const bench_setting *s, double losses[3])
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
    char *path = bench_path(folder, "/documents.jsonl");
    const bench_setting s = {"llama-gqa-llama3",
                             path,
                             CF_COMPUTE_FP32,
                             CF_RECOMPUTE_SELECTIVE,
                             chunk_sizes[_i],
                             1,
                             false};
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
    char *path = bench_path(folder, "/documents.jsonl");
    bench_setting s = {
        "qwen3-untied", path, CF_COMPUTE_FP64, CF_RECOMPUTE_SELECTIVE, 64, 1,
        false};
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
        bits, gradients_have_the_same_bits_for_every_k_and_policy, 0, 6);
    tcase_add_loop_test(
        bits, attention_that_is_kept_runs_once_a_chunk_and_layer, 0, 3);
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
