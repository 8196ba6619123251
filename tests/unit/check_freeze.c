/* check_freeze.c - --freeze: the same bits where it trains, nothing where it
 * does not, and the memory of the difference.
 */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/model_export.h"
#include "tests/lib/alone.h"
#include "tests/lib/bench.h"
#include "tests/lib/temp_folder.h"

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

static const char *const fixtures[] = {
    "llama-mha",
    "llama-bias",
    "llama-gqa-llama3",
    "llama-linear-sharded",
    "llama-yarn",
    "qwen2-tied",
    "qwen3-mqa-new-spelling",
    "qwen3-mqa-old-spelling",
    "qwen3-untied",
};
enum {
    N_FIXTURES = LENGTH(fixtures)
};

/* first_backward is the lowest layer with anything trained in it or below it,
 * which in a model of two layers may be none, 2. */
static const struct {
    const char *list;
    uint32_t first_backward;
} lists[] = {
    {"embeddings", 0},
    {"head", 0},
    {"norms", 0},
    {"attention", 0},
    {"mlp", 0},
    {"layers:0", 0},
    {"layers:1,norms", 0},
    {"layers:0-1", 0},
    {"embeddings,layers:0", 1},
    {"layers:0,embeddings,norms", 1},
    {"attention,embeddings,layers:0-0,mlp", 1},
    {"embeddings,layers:0-1", 2},
};
enum {
    N_LISTS = LENGTH(lists)
};

/* A frozen run and a whole one, at the same point. */
typedef struct pair {
    bench frozen, whole;
} pair;

static void pair_open(pair *p, const bench_setting *s, const char *list)
{
    bench_open_frozen(&p->frozen, s, list);
    bench_open(&p->whole, s);
}

static void pair_close(pair *p)
{
    bench_close(&p->whole);
    bench_close(&p->frozen);
}

/* ---- bits ---- */

static void expect_equal_gradients(const pair *p, const char *what)
{
    const cf_model *frozen = &p->frozen.run.model;
    const cf_model *whole = &p->whole.run.model;
    size_t n_frozen = 0;

    for (size_t i = 0; i < whole->n_params; i++) {
        const cf_param *f = &frozen->params[i];
        const cf_param *w = &whole->params[i];

        n_frozen += !f->trained;
        if (f->trained)
            ck_assert_msg(memcmp(cf_model_at(frozen, frozen->gradients, f),
                                 cf_model_at(whole, whole->gradients, w),
                                 w->n * whole->kernels->acc_bytes) == 0,
                          "%s: other gradient of %s", what, w->name);
        else
            ck_assert_ptr_null(cf_model_at(frozen, frozen->gradients, f));
    }
    ck_assert_uint_gt(n_frozen, 0);
    ck_assert_uint_lt(n_frozen, whole->n_params);
}

/* Of the frozen run's own gradients, in plain order. */
static double norm_of_trained(const bench *b)
{
    const cf_model *model = &b->run.model;
    double sum = 0;

    for (size_t i = 0; i < model->n_params; i++) {
        const cf_param *p = &model->params[i];
        const float *g = cf_model_at(model, model->gradients, p);

        for (size_t j = 0; g != NULL && j < p->n; j++)
            sum += (double)g[j] * g[j];
    }
    return sqrt(sum);
}

START_TEST(trained_tensors_have_the_gradients_of_an_unfrozen_run)
{
    for (size_t l = 0; l < N_LISTS; l++)
        for (uint32_t k = 1; k <= 3; k++) {
            const bench_setting s = {fixtures[_i],
                                     NULL,
                                     CF_COMPUTE_FP32,
                                     (cf_recompute)(k - 1),
                                     k == 3 ? 64 : 16,
                                     k,
                                     false};
            cf_step_report frozen, whole;
            pair p;
            double norm;

            pair_open(&p, &s, lists[l].list);
            ck_assert_int_eq(bench_step(&p.frozen, 1, &frozen), CF_OK);
            ck_assert_int_eq(bench_step(&p.whole, 1, &whole), CF_OK);
            ck_assert_mem_eq(&frozen.loss, &whole.loss, sizeof(double));
            expect_equal_gradients(&p, lists[l].list);
            norm = norm_of_trained(&p.frozen);
            ck_assert_double_eq_tol(frozen.grad_norm, norm, 1e-12 * norm);
            pair_close(&p);
        }
}
END_TEST

/* Whether the tensor, as the exported file has it, is the one it came from. */
static bool is_unchanged(const cf_tensors *from, const cf_tensors *to,
                         const char *name)
{
    const cf_tensor *a = cf_tensors_find(from, name);
    const cf_tensor *b = cf_tensors_find(to, name);
    const size_t bytes[] = {[CF_DTYPE_F32] = 4,
                            [CF_DTYPE_F64] = 8,
                            [CF_DTYPE_F16] = 2,
                            [CF_DTYPE_BF16] = 2};

    ck_assert_ptr_nonnull(a);
    ck_assert_ptr_nonnull(b);
    ck_assert_int_eq(a->dtype, b->dtype);
    ck_assert_uint_eq(a->n, b->n);
    return memcmp(a->data, b->data, a->n * bytes[a->dtype]) == 0;
}

static void expect_frozen_exported_as_it_came(const bench *b, const char *list)
{
    char *folder = temp_folder_open();
    char *path = bench_path(folder, "/model");
    cf_tensors *from, *to;

    ck_assert_int_eq(cf_model_export(alone(), &b->run.model, b->model, path,
                                     CF_EXPORT_MODEL),
                     CF_OK);
    ck_assert_int_eq(cf_tensors_open_folder(b->model, &from), CF_OK);
    ck_assert_int_eq(cf_tensors_open_folder(path, &to), CF_OK);
    for (size_t i = 0; i < b->run.model.n_params; i++) {
        const cf_param *p = &b->run.model.params[i];

        ck_assert_msg(is_unchanged(from, to, p->name) == !p->trained,
                      "%s: %s %s", list, p->name,
                      p->trained ? "did not move" : "moved");
    }
    cf_tensors_close(to);
    cf_tensors_close(from);
    free(path);
    temp_folder_close(folder);
}

START_TEST(frozen_tensors_leave_as_they_came_and_the_others_move)
{
    const bench_setting s = {
        fixtures[_i], NULL, CF_COMPUTE_FP32, CF_RECOMPUTE_SELECTIVE, 16, 1,
        false};

    for (size_t l = 0; l < N_LISTS; l++) {
        cf_step_report report;
        bench b;

        bench_open_frozen(&b, &s, lists[l].list);
        b.options.weight_decay = 0.1;
        for (uint64_t step = 1; step <= b.batches.n_steps; step++)
            ck_assert_int_eq(bench_step(&b, step, &report), CF_OK);
        expect_frozen_exported_as_it_came(&b, lists[l].list);
        bench_close(&b);
    }
}
END_TEST

/* ---- memory ---- */

static size_t line_bytes(const bench *b, const char *what)
{
    for (size_t i = 0; i < b->sizes.n_lines; i++)
        if (strcmp(b->sizes.lines[i].what, what) == 0)
            return b->sizes.lines[i].bytes;
    return 0;
}

static size_t rounded_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

/* Bytes of one flat array of trained tensors in fp32: each on a cache line of
 * its own, but for k and v behind q, and up behind gate. */
static size_t trained_bytes(const cf_model *model)
{
    size_t n = 0;

    for (size_t i = 0; i < model->n_params; i++) {
        const cf_param *p = &model->params[i];
        bool behind = strstr(p->name, ".k_proj.") != NULL ||
                      strstr(p->name, ".v_proj.") != NULL ||
                      strstr(p->name, ".up_proj.") != NULL;

        if (p->trained)
            n = (behind ? n : rounded_up(n, 16)) + p->n;
    }
    return rounded_up(4 * n, 64);
}

START_TEST(frozen_tensors_and_layers_take_no_memory)
{
    const bench_setting s = {
        fixtures[_i], NULL, CF_COMPUTE_FP32, CF_RECOMPUTE_SELECTIVE, 16, 2,
        false};

    for (size_t l = 0; l < N_LISTS; l++) {
        static const char slots[] = "activations of retained chunks";
        static const char dkv[] = "gradients of the KV state";
        static const char dx[] = "gradients of one layer's activations";
        const cf_model *model;
        size_t n_layers, n_backward, x_out, head = 0;
        pair p;

        pair_open(&p, &s, lists[l].list);
        model = &p.frozen.run.model;
        n_layers = model->config.n_layers;
        n_backward = n_layers - lists[l].first_backward;
        x_out = rounded_up(4UL * p.whole.need.engine.kv.chunk_tok *
                               model->config.hidden,
                           64) *
                p.whole.need.engine.n_slots;
        if (model->config.tied && model->params[0].trained)
            head = rounded_up(4 * model->params[0].n, 64);

        ck_assert_uint_eq(line_bytes(&p.frozen, "gradients"),
                          trained_bytes(model) + head);
        ck_assert_uint_eq(line_bytes(&p.frozen, "Adam moments"),
                          2 * trained_bytes(model));
        ck_assert_uint_eq(line_bytes(&p.frozen, dkv) * n_layers,
                          line_bytes(&p.whole, dkv) * n_backward);
        ck_assert_uint_eq((line_bytes(&p.frozen, slots) - x_out) * n_layers,
                          (line_bytes(&p.whole, slots) - x_out) * n_backward);
        ck_assert_uint_eq(line_bytes(&p.frozen, dx),
                          n_backward > 0 ? line_bytes(&p.whole, dx) : 0);
        ck_assert_uint_eq(line_bytes(&p.frozen, "master weights"),
                          line_bytes(&p.whole, "master weights"));
        ck_assert_uint_lt(p.frozen.sizes.used, p.whole.sizes.used);
        pair_close(&p);
    }
}
END_TEST

START_TEST(peak_is_as_predicted)
{
    const bench_setting s = {
        fixtures[_i], NULL, CF_COMPUTE_FP32, CF_RECOMPUTE_LAYER, 16, 2, false};

    for (size_t l = 0; l < N_LISTS; l++) {
        cf_step_report report;
        bool met = false;
        bench b;

        bench_open_frozen(&b, &s, lists[l].list);
        for (uint64_t step = 1; step <= b.batches.n_steps; step++) {
            ck_assert_int_eq(bench_step(&b, step, &report), CF_OK);
            ck_assert_uint_le(report.peak_bytes, b.sizes.used);
            if (bench_longest_of_batch(&b) == b.need.longest_tok) {
                ck_assert_uint_eq(report.peak_bytes, b.sizes.used);
                met = true;
            }
        }
        ck_assert(met);
        bench_close(&b);
    }
}
END_TEST

/* ---- what is wrong ---- */

START_TEST(a_damaged_frozen_layer_is_found)
{
    const bench_setting s = {
        "qwen3-untied", NULL, CF_COMPUTE_FP32, CF_RECOMPUTE_SELECTIVE, 16, 1,
        false};
    cf_step_report report;
    cf_status status;
    captured_log log;
    bench b;

    bench_open_frozen(&b, &s, "embeddings,layers:0-1");
    for (size_t i = 0; i < b.run.model.n_params; i++) {
        const cf_param *p = &b.run.model.params[i];

        if (strcmp(p->name, "model.layers.0.mlp.down_proj.weight") == 0)
            ((float *)b.run.model.masters)[p->offset] = INFINITY;
    }
    captured_log_begin(&log);
    status = bench_step(&b, 1, &report);
    captured_log_end(&log);
    ck_assert_int_eq(status, CF_NOT_FINITE);
    ck_assert(captured_log_is_error(&log, "first in layer 0"));
    bench_close(&b);
}
END_TEST

static const struct {
    const char *fixture;
    const char *list;
    const char *message;
} refusals[] = {
    {"llama-mha", "norm", "'norm' is not one of embeddings, head, norms, "},
    {"llama-mha", "norms,", "'' is not one of"},
    {"llama-mha", ",norms", "'' is not one of"},
    {"llama-mha", "norms, head", "' head' is not one of"},
    {"llama-mha", "NORMS", "'NORMS' is not one of"},
    {"llama-mha", "layers", "'layers' is not one of"},
    {"llama-mha", "layers:", "'layers:' is not one of"},
    {"llama-mha", "layers:x", "'layers:x' is not one of"},
    {"llama-mha", "layers:-1", "'layers:-1' is not one of"},
    {"llama-mha", "layers:0-", "'layers:0-' is not one of"},
    {"llama-mha", "layers:0-1-1", "'layers:0-1-1' is not one of"},
    {"llama-mha", "layers:0x1", "'layers:0x1' is not one of"},
    {"llama-mha", "layers:4294967296", "is not one of"},
    {"llama-mha", "layers:4294967295", "the model has layers 0 to 1"},
    {"llama-mha",
     "a-name-so-long-that-it-does-not-fit-into-the-room-for-one-item-of-a-list",
     "is not one of"},
    {"llama-mha", "layers:2", "'layers:2': the model has layers 0 to 1"},
    {"llama-mha", "norms,layers:0-2", "'layers:0-2': the model has layers"},
    {"llama-mha", "layers:1-0", "'layers:1-0': the model has layers"},
    {"llama-mha", "biases", "the model has no biases"},
    {"llama-mha", "embeddings,head,norms,layers:0-1",
     "--freeze embeddings,head,norms,layers:0-1: nothing is left to train"},
    {"qwen2-tied", "embeddings,norms,layers:0-1", "nothing is left to train"},
    {"qwen2-tied", "head,norms,attention,mlp", "nothing is left to train"},
};

START_TEST(a_bad_list_is_refused_with_one_line)
{
    char *folder = bench_path(BENCH_FIXTURES, refusals[_i].fixture);
    cf_kernels kernels;
    const char *why;
    captured_log log;
    cf_model model;
    cf_status status;

    ck_assert_int_eq(cf_cpu_kernels(CF_COMPUTE_FP32, &kernels, &why), CF_OK);
    ck_assert_int_eq(cf_model_open(folder, &kernels, &model), CF_OK);
    captured_log_begin(&log);
    status = cf_model_freeze(&model, refusals[_i].list);
    captured_log_end(&log);
    ck_assert_int_eq(status, CF_INVALID);
    ck_assert_msg(captured_log_is_error(&log, refusals[_i].message), "%s",
                  log.text);
    cf_model_close(&model);
    free(folder);
}
END_TEST

/* ---- which tensors an item names ---- */

static const struct {
    const char *fixture;
    const char *list;
    const char *part; /* in the names of what is frozen, and in no other */
} items[] = {
    {"llama-mha", "embeddings", "embed_tokens"},
    {"llama-mha", "head", "lm_head"},
    {"qwen2-tied", "head", "embed_tokens"},
    {"qwen2-tied", "embeddings", "embed_tokens"},
    {"qwen3-untied", "norms", "norm"},
    {"qwen3-untied", "attention", "self_attn."},
    {"qwen3-untied", "mlp", ".mlp."},
    {"llama-bias", "biases", ".bias"},
    {"qwen2-tied", "biases", ".bias"},
    {"qwen3-untied", "layers:2", ".layers.2."},
    {"qwen3-untied", "layers:0-2", ".layers."},
};

START_TEST(an_item_names_the_tensors_of_its_part)
{
    char *folder = bench_path(BENCH_FIXTURES, items[_i].fixture);
    cf_kernels kernels;
    const char *why;
    cf_model model;

    ck_assert_int_eq(cf_cpu_kernels(CF_COMPUTE_FP32, &kernels, &why), CF_OK);
    ck_assert_int_eq(cf_model_open(folder, &kernels, &model), CF_OK);
    ck_assert_int_eq(cf_model_freeze(&model, items[_i].list), CF_OK);
    for (size_t i = 0; i < model.n_params; i++)
        ck_assert_msg(
            model.params[i].trained ==
                (strstr(model.params[i].name, items[_i].part) == NULL),
            "%s", model.params[i].name);
    cf_model_close(&model);
    free(folder);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("freeze");
    TCase *list = tcase_create("list");
    TCase *bits = tcase_create("bits");
    TCase *memory = tcase_create("memory");
    SRunner *runner;
    int failed;

    tcase_add_loop_test(list, an_item_names_the_tensors_of_its_part, 0,
                        LENGTH(items));
    tcase_add_loop_test(list, a_bad_list_is_refused_with_one_line, 0,
                        LENGTH(refusals));
    suite_add_tcase(suite, list);

    tcase_set_timeout(bits, 120);
    tcase_add_loop_test(bits,
                        trained_tensors_have_the_gradients_of_an_unfrozen_run,
                        0, N_FIXTURES);
    tcase_add_loop_test(bits,
                        frozen_tensors_leave_as_they_came_and_the_others_move,
                        0, N_FIXTURES);
    tcase_add_test(bits, a_damaged_frozen_layer_is_found);
    suite_add_tcase(suite, bits);

    tcase_set_timeout(memory, 120);
    tcase_add_loop_test(memory, frozen_tensors_and_layers_take_no_memory, 0,
                        N_FIXTURES);
    tcase_add_loop_test(memory, peak_is_as_predicted, 0, N_FIXTURES);
    suite_add_tcase(suite, memory);

    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
