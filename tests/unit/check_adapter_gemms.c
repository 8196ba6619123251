/* check_adapter_gemms.c - an adapter inside the engine: its gradients against
 * finite differences, its bits, its memory, its first values.
 */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/adapter.h"
#include "tests/lib/allocations.h"
#include "tests/lib/bench.h"

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

/* With q/k norms, with biases, tied; of all targets, and with holes. */
static const struct {
    const char *fixture, *targets;
    uint32_t rank;
} cases[] = {
    {"qwen3-untied", NULL, 3},
    {"llama-bias", "k_proj,o_proj,up_proj", 5},
    {"qwen2-tied", "v_proj,q_proj,gate_proj,down_proj", 1},
    {"llama-gqa-llama3", "down_proj", 40},
};
enum {
    N_CASES = LENGTH(cases)
};

static bench_setting setting_of(int index, cf_compute compute)
{
    return (bench_setting){cases[index].fixture,
                           NULL,
                           compute,
                           CF_RECOMPUTE_SELECTIVE,
                           16,
                           2,
                           false};
}

static void open_case(bench *b, int index, const bench_setting *s)
{
    bench_open_adapted(b, s, cases[index].rank, cases[index].targets);
}

/* B is zero at first, which hides half of the gradients: move it. */
static void b_randomise(cf_model *model)
{
    uint32_t state = 1;

    for (size_t i = model->n_folder_params; i < model->n_params; i++) {
        const cf_param *p = &model->params[i];
        void *x = cf_model_at(model, model->masters, p);

        for (size_t j = 0; strstr(p->name, "lora_B") != NULL && j < p->n; j++) {
            double value;

            state = state * 1664525 + 1013904223;
            value = (double)(state >> 8) / (1 << 25) - 0.25;
            if (model->kernels->acc_bytes == sizeof(double))
                ((double *)x)[j] = value;
            else
                ((float *)x)[j] = (float)value;
        }
    }
    cf_model_pack(model);
}

/* ---- gradients ---- */

static double loss_at(bench *b)
{
    const cf_step step = {.dataset = b->run.dataset,
                          .need = &b->need,
                          .comm = b->run.comm,
                          .model = &b->run.model,
                          .engine = &b->engine,
                          .plan = &b->plan};
    double loss;

    ck_assert_int_eq(bench_prepare(b, 1), CF_OK);
    ck_assert_int_eq(cf_step_plan_build(&b->plan, b->run.dataset, &b->need),
                     CF_OK);
    ck_assert_int_eq(cf_step_gradients(&step, 1, &loss), CF_OK);
    return loss;
}

/* By a central difference over a step. */
static double slope(bench *b, double *x, double step)
{
    const double was = *x;
    double loss[2];

    for (int side = 0; side < 2; side++) {
        *x = was + (side == 0 ? -step : step);
        cf_model_pack(&b->run.model);
        loss[side] = loss_at(b);
    }
    *x = was;
    cf_model_pack(&b->run.model);
    return (loss[1] - loss[0]) / (2 * step);
}

START_TEST(gradients_are_finite_differences)
{
    const bench_setting s = setting_of(_i, CF_COMPUTE_FP64);
    const double step = 1e-4;
    bench b;
    cf_model *model = &b.run.model;

    open_case(&b, _i, &s);
    b_randomise(model);
    for (size_t i = model->n_folder_params; i < model->n_params; i++) {
        const cf_param *p = &model->params[i];
        double *x = cf_model_at(model, model->masters, p);
        const size_t at = (7 * i + 3) % p->n;
        double gradient, difference;

        (void)loss_at(&b);
        gradient = ((double *)cf_model_at(model, model->gradients, p))[at];
        /* Without the term of the step squared (Richardson). */
        difference =
            (4 * slope(&b, x + at, step / 2) - slope(&b, x + at, step)) / 3;
        ck_assert_msg(fabs(gradient - difference) <=
                          1e-7 * (fabs(gradient) + 1e-2),
                      "%s[%zu]: %.12g, by differences %.12g", p->name, at,
                      gradient, difference);
    }
    bench_close(&b);
}
END_TEST

START_TEST(only_the_adapter_has_gradients_and_moves)
{
    const bench_setting s = setting_of(_i, CF_COMPUTE_FP32);
    cf_step_report report;
    bench b, before;
    const cf_model *model = &b.run.model;

    open_case(&b, _i, &s);
    open_case(&before, _i, &s);
    for (uint64_t step = 1; step <= 3; step++)
        ck_assert_int_eq(bench_step(&b, step, &report), CF_OK);
    for (size_t i = 0; i < model->n_params; i++) {
        const cf_param *p = &model->params[i];
        const cf_model *first = &before.run.model;
        bool same =
            memcmp(cf_model_at(model, model->masters, p),
                   cf_model_at(first, first->masters, &first->params[i]),
                   p->n * 4) == 0;

        ck_assert_msg(same == (i < model->n_folder_params), "%s %s", p->name,
                      same ? "did not move" : "moved");
        ck_assert_int_eq(p->trained, i >= model->n_folder_params);
    }
    bench_close(&before);
    bench_close(&b);
}
END_TEST

START_TEST(k_and_recompute_change_no_bits)
{
    const int index = _i % N_CASES;
    bench_setting s =
        setting_of(index, _i < N_CASES ? CF_COMPUTE_FP32 : CF_COMPUTE_BF16);
    bench first;

    open_case(&first, index, &s);
    for (uint32_t k = 1; k <= 9; k += 4)
        for (int policy = CF_RECOMPUTE_NONE; policy <= CF_RECOMPUTE_LAYER;
             policy++) {
            cf_step_report x, y;
            bench b;

            s.retained_chunks_max = k;
            s.policy = (cf_recompute)policy;
            bench_close(&first);
            s.retained_chunks_max = 1;
            open_case(&first, index, &s);
            s.retained_chunks_max = k;
            open_case(&b, index, &s);
            for (uint64_t step = 1; step <= 2; step++) {
                ck_assert_int_eq(bench_step(&first, step, &x), CF_OK);
                ck_assert_int_eq(bench_step(&b, step, &y), CF_OK);
                ck_assert_mem_eq(&x.loss, &y.loss, sizeof(double));
                ck_assert_mem_eq(&x.grad_norm, &y.grad_norm, sizeof(double));
            }
            ck_assert_mem_eq(first.run.model.masters, b.run.model.masters,
                             4 * b.run.model.n_elements);
            bench_close(&b);
        }
    bench_close(&first);
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

/* Tensors of the adapter on cache lines of their own, but for the A of a group,
 * which lie behind one another: at least their elements, at most a line more
 * each. */
START_TEST(memory_is_that_of_the_adapter)
{
    const bench_setting s = setting_of(_i, CF_COMPUTE_FP32);
    const cf_model *model;
    size_t least = 0, most;
    cf_step_report report;
    bench b, whole;

    bench_open(&whole, &s);
    open_case(&b, _i, &s);
    model = &b.run.model;
    for (size_t i = model->n_folder_params; i < model->n_params; i++)
        least += 4 * model->params[i].n;
    most = least + 64 * (model->n_params - model->n_folder_params);
    ck_assert_uint_ge(line_bytes(&b, "gradients"), least);
    ck_assert_uint_le(line_bytes(&b, "gradients"), most);
    ck_assert_uint_eq(line_bytes(&b, "Adam moments"),
                      2 * line_bytes(&b, "gradients"));
    ck_assert_uint_le(line_bytes(&b, "master weights"),
                      line_bytes(&whole, "master weights") + most + 64);
    for (uint64_t step = 1; step <= b.batches.n_steps; step++) {
        ck_assert_int_eq(bench_step(&b, step, &report), CF_OK);
        ck_assert_uint_le(report.peak_bytes, b.sizes.used);
        ck_assert_uint_eq(cf_engine_peak_bytes(&b.engine), report.peak_bytes);
    }
    bench_close(&b);
    bench_close(&whole);
}
END_TEST

START_TEST(a_step_allocates_nothing)
{
    const bench_setting s = setting_of(_i, CF_COMPUTE_FP32);
    cf_step_report report;
    size_t before, after;
    cf_status status;
    bench b;

    open_case(&b, _i, &s);
    ck_assert_int_eq(bench_prepare(&b, 1), CF_OK);
    before = allocations();
    status = bench_step(&b, 1, &report);
    after = allocations();
    ck_assert_int_eq(status, CF_OK);
    ck_assert_uint_eq(after, before);
    bench_close(&b);
}
END_TEST

/* ---- first values ---- */

START_TEST(a_new_adapter_begins_as_peft_has_it)
{
    const bench_setting s = setting_of(_i, CF_COMPUTE_FP64);
    double sum = 0, sum_squares = 0, largest = 0;
    size_t n = 0;
    bench b;
    cf_model *model = &b.run.model;

    open_case(&b, _i, &s);
    for (size_t i = model->n_folder_params; i < model->n_params; i++) {
        const cf_param *p = &model->params[i];
        const double *x = cf_model_at(model, model->masters, p);
        const double scale = sqrt((double)p->dims[1]);

        for (size_t j = 0; j < p->n; j++) {
            if (strstr(p->name, "lora_B") != NULL) {
                ck_assert(x[j] == 0);
                continue;
            }
            ck_assert(fabs(x[j]) * scale <= 1);
            largest = fmax(largest, fabs(x[j]) * scale);
            sum += x[j] * scale;
            sum_squares += x[j] * x[j] * scale * scale;
            n++;
        }
    }
    /* Uniform in [-1, 1]: mean 0, variance 1/3; within four deviations. */
    ck_assert_double_le(fabs(sum / (double)n), 4 * sqrt(1 / (3.0 * (double)n)));
    ck_assert_double_le(fabs(sum_squares / (double)n - 1 / 3.0),
                        4 * sqrt(4 / (45.0 * (double)n)));
    ck_assert_double_ge(largest, 0.95);
    bench_close(&b);
}
END_TEST

START_TEST(the_seed_alone_decides_the_first_values)
{
    const bench_setting s = setting_of(0, CF_COMPUTE_FP32);
    bench a, b;
    size_t bytes;

    open_case(&a, 0, &s);
    open_case(&b, 0, &s);
    bytes = 4 * a.run.model.n_elements;
    ck_assert_mem_eq(a.run.model.masters, b.run.model.masters, bytes);
    cf_adapter_init(&b.run.model, 1);
    ck_assert_int_ne(memcmp(a.run.model.masters, b.run.model.masters, bytes),
                     0);
    cf_adapter_init(&b.run.model, 0);
    ck_assert_mem_eq(a.run.model.masters, b.run.model.masters, bytes);
    bench_close(&b);
    bench_close(&a);
}
END_TEST

/* ---- merging ---- */

START_TEST(a_merged_weight_is_w_plus_scale_b_a)
{
    const bench_setting s = setting_of(_i, CF_COMPUTE_FP64);
    size_t n_merged = 0;
    bench b, before;
    const cf_model *model = &b.run.model;

    open_case(&b, _i, &s);
    open_case(&before, _i, &s);
    b_randomise(&b.run.model);
    ck_assert_int_eq(cf_adapter_merge(&b.run.model), CF_OK);
    for (size_t i = 0; i < model->n_folder_params; i++) {
        const cf_model *first = &before.run.model;
        const cf_param *p = &model->params[i], *pa, *pb;
        const double *w = cf_model_at(model, model->masters, p);
        const double *w0 =
            cf_model_at(first, first->masters, &first->params[i]);
        const size_t stem = strlen(p->name) - strlen(".weight");
        char name[2][CF_PARAM_NAME_MAX + 32];

        for (int ab = 0; ab < 2; ab++)
            snprintf(name[ab], sizeof(name[ab]),
                     "base_model.model.%.*s.lora_%c.weight", (int)stem, p->name,
                     "AB"[ab]);
        pa = cf_model_find_param(model, name[0]);
        pb = cf_model_find_param(model, name[1]);
        if (pa == NULL) {
            ck_assert_mem_eq(w, w0, 8 * p->n);
            continue;
        }
        n_merged++;
        for (size_t row = 0; row < p->dims[0]; row++)
            for (size_t col = 0; col < p->dims[1]; col++) {
                const double *x = cf_model_at(model, model->masters, pa);
                const double *y = cf_model_at(model, model->masters, pb);
                double sum = 0;

                for (size_t r = 0; r < cases[_i].rank; r++)
                    sum +=
                        y[row * cases[_i].rank + r] * x[r * p->dims[1] + col];
                ck_assert_double_eq_tol(w[row * p->dims[1] + col],
                                        w0[row * p->dims[1] + col] + 2 * sum,
                                        1e-14 * (double)cases[_i].rank);
            }
    }
    ck_assert_uint_eq(2 * n_merged, model->n_params - model->n_folder_params);
    bench_close(&before);
    bench_close(&b);
}
END_TEST

/* In bf16 the masters are float, and merging rounds them once, to float. */
START_TEST(merging_in_bf16_is_merging_in_fp32)
{
    bench_setting s = setting_of(_i, CF_COMPUTE_FP32);
    bench fp32, bf16;

    open_case(&fp32, _i, &s);
    s.compute = CF_COMPUTE_BF16;
    open_case(&bf16, _i, &s);
    b_randomise(&fp32.run.model);
    b_randomise(&bf16.run.model);
    ck_assert_int_eq(cf_adapter_merge(&fp32.run.model), CF_OK);
    ck_assert_int_eq(cf_adapter_merge(&bf16.run.model), CF_OK);
    ck_assert_mem_eq(fp32.run.model.masters, bf16.run.model.masters,
                     4 * fp32.run.model.n_elements);
    bench_close(&bf16);
    bench_close(&fp32);
}
END_TEST

static Suite *suite_open(void)
{
    Suite *suite = suite_create("adapter_gemms");
    TCase *all = tcase_create("adapter");

    tcase_add_loop_test(all, gradients_are_finite_differences, 0, N_CASES);
    tcase_add_loop_test(all, only_the_adapter_has_gradients_and_moves, 0,
                        N_CASES);
    tcase_add_loop_test(all, k_and_recompute_change_no_bits, 0, 2 * N_CASES);
    tcase_add_loop_test(all, memory_is_that_of_the_adapter, 0, N_CASES);
    tcase_add_loop_test(all, a_step_allocates_nothing, 0, N_CASES);
    tcase_add_loop_test(all, a_new_adapter_begins_as_peft_has_it, 0, N_CASES);
    tcase_add_test(all, the_seed_alone_decides_the_first_values);
    tcase_add_loop_test(all, a_merged_weight_is_w_plus_scale_b_a, 0, N_CASES);
    tcase_add_loop_test(all, merging_in_bf16_is_merging_in_fp32, 0, N_CASES);
    tcase_set_timeout(all, 120);
    suite_add_tcase(suite, all);
    return suite;
}

int main(void)
{
    SRunner *runner = srunner_create(suite_open());
    int n_failed;

    srunner_run_all(runner, CK_NORMAL);
    n_failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return n_failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
