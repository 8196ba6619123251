/* check_model_split.c - what the ranks of a grid hold, own and update: together
 * all of it, and no element twice. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/optimizer.h"
#include "tests/lib/model_part.h"
#include "tests/lib/temp_folder.h"

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

/* ---- shards of tables made by hand ---- */

/* Around the limits of rows and of blocks. */
static const size_t sizes[] = {1, 15, 4095, 4096, 4097, 9000};
enum {
    N_SIZES = LENGTH(sizes),
    TENSORS_MAX = 4,
    PLACES = 5
};
static const uint32_t shards[] = {1, 2, 3, 4, 7, 3000};

/* A table of vectors, of which the bits of `trained` are trained, and which begin
 * anywhere in a row of elements, as parts of a GEMM group do. */
static void table_make(cf_model *model, cf_param *params, const size_t *n,
                       size_t n_params, unsigned trained)
{
    const cf_stage all = {.is_first = true, .is_last = true};

    memset(model, 0, sizeof(*model));
    model->params = params;
    model->n_params = n_params;
    for (size_t i = 0; i < n_params; i++)
        params[i] = (cf_param){.n = n[i],
                               .offset = i * PLACES,
                               .layer = UINT32_MAX,
                               .parts = CF_PART_NORMS,
                               .trained = (trained >> i & 1) != 0};
    cf_model_take_stage(model, &all);
}

/* The shards are runs of the gradients, one behind the other, cut where a block
 * begins or between tensors, and as even as that allows. */
static void expect_cuts(const cf_model *model, uint32_t n)
{
    const size_t all = model->n_trained_elements;

    ck_assert_uint_eq(cf_model_shard_at(model, 0, n), 0);
    ck_assert_uint_eq(cf_model_shard_at(model, n, n), all);
    for (uint32_t i = 0; i < n; i++) {
        const size_t at = cf_model_shard_at(model, i, n);
        const double even = (double)all * i / n;

        ck_assert_uint_le(at, cf_model_shard_at(model, i + 1, n));
        ck_assert(fabs((double)at - even) <=
                  CF_NORM_BLOCK / 2 + CF_PARAM_ALIGN);
        for (size_t j = 0; j < model->n_params; j++) {
            const cf_param *p = &model->params[j];

            if (p->trained && at > p->trained_offset &&
                at < p->trained_offset + p->n)
                ck_assert_uint_eq((at - p->trained_offset) % CF_NORM_BLOCK, 0);
        }
    }
}

static void expect_each_element_once(cf_model *model, uint32_t n)
{
    size_t next[TENSORS_MAX] = {0};

    for (uint32_t i = 0; i < n; i++) {
        cf_model_take_shard(model, i, n);
        for (size_t j = 0; j < model->n_params; j++) {
            const cf_extent part = cf_model_shard_of(model, &model->params[j]);

            if (part.n == 0)
                continue;
            ck_assert_uint_eq(part.first, next[j]);
            next[j] += part.n;
        }
    }
    for (size_t j = 0; j < model->n_params; j++)
        ck_assert_uint_eq(next[j],
                          model->params[j].trained ? model->params[j].n : 0);
}

START_TEST(shards_have_every_trained_element_once)
{
    const size_t n_params = (size_t)_i + 1;
    size_t n_tables = 1;

    for (size_t i = 0; i < n_params; i++)
        n_tables *= N_SIZES;
    for (size_t table = 0; table < n_tables; table++)
        for (unsigned trained = 0; trained < 1u << n_params; trained++) {
            cf_param params[TENSORS_MAX];
            size_t n[TENSORS_MAX];
            size_t digits = table;
            cf_model model;

            for (size_t i = 0; i < n_params; i++, digits /= N_SIZES)
                n[i] = sizes[digits % N_SIZES];
            table_make(&model, params, n, n_params, trained);
            for (size_t i = 0; i < LENGTH(shards); i++) {
                if (shards[i] > 100 && n_params > 2)
                    continue;
                expect_cuts(&model, shards[i]);
                expect_each_element_once(&model, shards[i]);
            }
        }
}
END_TEST

/* ---- stages ---- */

static const char *const freezes[] = {NULL, "embeddings", "layers:0-1",
                                      "layers:1-3,norms", "biases,mlp"};
enum {
    N_FREEZES = LENGTH(freezes)
};

/* A pipeline by the layers where a stage begins, as bits 1 .. LAYERS - 1. */
static cf_stage stage_at(unsigned begins, uint32_t first)
{
    cf_stage stage = {.first_layer = first, .end_layer = first + 1};

    while (stage.end_layer < MODEL_PART_LAYERS &&
           (begins >> stage.end_layer & 1) == 0)
        stage.end_layer++;
    stage.is_first = first == 0;
    stage.is_last = stage.end_layer == MODEL_PART_LAYERS;
    return stage;
}

static bool is_tied_head(const cf_param *p)
{
    return (p->parts & CF_PART_EMBEDDINGS) && (p->parts & CF_PART_HEAD);
}

/* Held tensors lie behind one another as they do among all. */
static void expect_stage(const cf_model *whole, const cf_model *model,
                         unsigned *owners)
{
    size_t end = 0, trained_end = 0;

    ck_assert_uint_eq(model->n_norm_partials, whole->n_norm_partials);
    ck_assert_uint_eq(model->first_backward_layer, whole->first_backward_layer);
    for (size_t i = 0; i < model->n_params; i++) {
        const cf_param *p = &model->params[i], *w = &whole->params[i];

        owners[i] += p->owned;
        ck_assert_uint_eq(p->first_partial, w->first_partial);
        ck_assert(p->held ==
                  (p->owned || (is_tied_head(p) && model->stage.is_last)));
        if (p->held) {
            ck_assert_uint_ge(p->offset, end);
            ck_assert_uint_lt(p->offset - end, CF_PARAM_ALIGN);
            ck_assert_uint_eq(p->offset % CF_PARAM_ALIGN,
                              w->offset % CF_PARAM_ALIGN);
            end = p->offset + p->n;
        }
        if (p->owned && p->trained) {
            ck_assert_uint_ge(p->trained_offset, trained_end);
            ck_assert_uint_lt(p->trained_offset - trained_end, CF_PARAM_ALIGN);
            trained_end = p->trained_offset + p->n;
        }
    }
    ck_assert_uint_eq(model->n_elements, end);
    ck_assert_uint_eq(model->n_trained_elements, trained_end);
}

static void model_open(cf_model *model, const cf_kernels *kernels,
                       const char *folder, const cf_stage *stage,
                       const char *freeze)
{
    ck_assert_int_eq(cf_model_open(folder, kernels, model), CF_OK);
    if (stage != NULL)
        cf_model_take_stage(model, stage);
    if (freeze != NULL)
        ck_assert_int_eq(cf_model_freeze(model, freeze), CF_OK);
}

START_TEST(stages_own_every_tensor_once)
{
    const bool is_tied = _i % 2 == 1;
    const char *freeze = freezes[_i / 2];
    char *folder = temp_folder_open();
    cf_kernels kernels;
    cf_model whole;
    const char *why;

    ck_assert_int_eq(cf_cpu_kernels(CF_COMPUTE_FP32, &kernels, &why), CF_OK);
    model_part_write_config(folder, is_tied);
    model_open(&whole, &kernels, folder, NULL, freeze);
    for (unsigned begins = 0; begins < 1u << MODEL_PART_LAYERS; begins += 2) {
        unsigned owners[128] = {0};
        cf_stage stage = {0};

        ck_assert_uint_le(whole.n_params, LENGTH(owners));
        while (stage.end_layer < MODEL_PART_LAYERS) {
            cf_model model;

            stage = stage_at(begins, stage.end_layer);
            model_open(&model, &kernels, folder, &stage, freeze);
            expect_stage(&whole, &model, owners);
            cf_model_close(&model);
        }
        for (size_t i = 0; i < whole.n_params; i++)
            ck_assert_uint_eq(owners[i], 1);
    }
    cf_model_close(&whole);
    temp_folder_close(folder);
}
END_TEST

/* ---- the norm and the update ---- */

static const model_grid grids[] = {{1, 1}, {2, 1}, {4, 1}, {1, 2},
                                   {2, 2}, {1, 3}, {4, 4}, {3, 5}};
enum {
    N_GRIDS = LENGTH(grids)
};

/* One update of a rank's part from gradients that are known. */
static void update(model_part *part, double norm)
{
    const cf_options options = {.weight_decay = 0.1,
                                .adam_beta1 = 0.9,
                                .adam_beta2 = 0.99,
                                .adam_eps = 1e-8};

    cf_optimizer_update(&part->model, &options, 1e-2,
                        cf_clip_coefficient(norm, 1), 3);
}

/* What a rank has updated, against the same of the whole, to the bit. */
static void expect_updated(const model_part *part, const model_part *whole)
{
    const size_t acc_bytes = part->kernels.acc_bytes;

    for (size_t i = 0; i < part->model.n_params; i++)
        for (model_array array = 0; array < N_ARRAYS; array++) {
            const cf_param *p = &part->model.params[i];
            const cf_param *w = &whole->model.params[i];
            const cf_extent shard = cf_model_shard_of(&part->model, p);
            cf_extent mine, all;
            const char *a = model_part_at(part, array, p, &mine);
            const char *b = model_part_at(whole, array, w, &all);

            if (shard.n == 0)
                continue;
            ck_assert_mem_eq(a + (shard.first - mine.first) * acc_bytes,
                             b + shard.first * acc_bytes, shard.n * acc_bytes);
        }
}

static void open_filled(model_part *part, const char *folder,
                        const char *freeze, model_grid grid, uint32_t rank)
{
    model_part_open(part, folder, CF_COMPUTE_FP32, freeze, grid, rank);
    model_part_fill(part);
    for (size_t i = 0; i < part->model.n_params; i++) {
        cf_extent extent;
        float *v =
            model_part_at(part, ARRAY_MOMENT2, &part->model.params[i], &extent);

        for (size_t j = 0; v != NULL && j < extent.n; j++)
            v[j] = fabsf(v[j]);
    }
    cf_model_norm_partials(&part->model);
}

START_TEST(norm_and_update_have_the_bits_of_one_rank)
{
    const model_grid grid = grids[_i % N_GRIDS];
    const char *freeze = freezes[_i / N_GRIDS];
    const uint32_t n_ranks = grid.n_stages * grid.n_replicas;
    char *folder = temp_folder_open();
    model_part whole, parts[16];
    size_t n_partials, n_moments = 0;
    double norm, *sum;

    model_part_write_config(folder, true);
    open_filled(&whole, folder, freeze, (model_grid){1, 1}, 0);
    n_partials = whole.model.n_norm_partials;
    sum = calloc(n_partials, sizeof(*sum));
    norm = cf_model_norm(&whole.model);
    ck_assert(norm > 1);
    for (uint32_t rank = 0; rank < n_ranks; rank++) {
        open_filled(&parts[rank], folder, freeze, grid, rank);
        n_moments +=
            parts[rank].model.shard_end - parts[rank].model.shard_begin;
        for (size_t i = 0; i < n_partials; i++) {
            const double mine = parts[rank].model.norm_partials[i];

            ck_assert(mine == 0 || sum[i] == 0);
            sum[i] += mine;
        }
    }
    ck_assert_mem_eq(sum, whole.model.norm_partials, n_partials * sizeof(*sum));
    /* All of the moments, but for the padding in front of a stage's tensors. */
    ck_assert_uint_le(n_moments, whole.model.n_trained_elements);
    ck_assert_uint_gt(n_moments + (size_t)n_ranks * CF_PARAM_ALIGN,
                      whole.model.n_trained_elements);
    update(&whole, norm);
    for (uint32_t rank = 0; rank < n_ranks; rank++) {
        update(&parts[rank], norm);
        expect_updated(&parts[rank], &whole);
        model_part_close(&parts[rank]);
    }
    model_part_close(&whole);
    free(sum);
    temp_folder_close(folder);
}
END_TEST

/* The head's gradient is made on the last stage and added on the first. */
START_TEST(a_tied_head_has_its_accumulator_at_both_ends)
{
    char *folder = temp_folder_open();
    model_part part;

    model_part_write_config(folder, true);
    for (uint32_t rank = 0; rank < 3; rank++) {
        model_part_open(&part, folder, CF_COMPUTE_FP32, NULL,
                        (model_grid){3, 1}, rank);
        ck_assert((part.model.d_head != NULL) == (rank != 1));
        ck_assert((part.model.d_embedding != NULL) == (rank == 0));
        ck_assert((part.model.head.d_weight != NULL) == (rank == 2));
        ck_assert((part.model.embedding != NULL) == (rank == 0));
        ck_assert((part.model.head.weight.master != NULL) == (rank == 2));
        ck_assert((part.model.final_norm.weight != NULL) == (rank == 2));
        if (rank == 0) {
            ((float *)part.model.d_head)[5] = 3;
            ((float *)part.model.d_embedding)[5] = 4;
            cf_model_finish_gradients(&part.model);
            ck_assert(((float *)part.model.d_embedding)[5] == 7);
        }
        model_part_close(&part);
    }
    temp_folder_close(folder);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("model_split");
    TCase *tcase = tcase_create("cf_model_split");
    SRunner *runner;
    int failed;

    tcase_set_timeout(tcase, 600);
    tcase_add_loop_test(tcase, shards_have_every_trained_element_once, 0,
                        TENSORS_MAX);
    tcase_add_loop_test(tcase, stages_own_every_tensor_once, 0, 2 * N_FREEZES);
    tcase_add_loop_test(tcase, norm_and_update_have_the_bits_of_one_rank, 0,
                        N_GRIDS * N_FREEZES);
    tcase_add_test(tcase, a_tied_head_has_its_accumulator_at_both_ends);
    suite_add_tcase(suite, tcase);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
