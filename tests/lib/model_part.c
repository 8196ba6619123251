/* model_part.c - see model_part.h. */
#include "tests/lib/model_part.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

#include "tests/lib/temp_folder.h"

void model_part_write_config(const char *folder, bool is_tied)
{
    char text[1024];

    (void)snprintf(
        text, sizeof(text),
        "{\"architectures\": [\"Qwen2ForCausalLM\"], \"model_type\": "
        "\"qwen2\",\n"
        "\"hidden_size\": 48, \"intermediate_size\": 90,\n"
        "\"num_hidden_layers\": %d, \"num_attention_heads\": 4,\n"
        "\"num_key_value_heads\": 2, \"hidden_act\": \"silu\",\n"
        "\"vocab_size\": 301, \"rms_norm_eps\": 1e-06,\n"
        "\"rope_theta\": 1000000.0, \"tie_word_embeddings\": %s}\n",
        MODEL_PART_LAYERS, is_tied ? "true" : "false");
    temp_file_write_text(folder, "config.json", text);
}

static void carve(model_part *part)
{
    cf_arena sizes;

    cf_arena_open_dry(&sizes);
    cf_model_carve(&part->model, CF_MODEL_TRAIN, &sizes);
    ck_assert_int_eq(cf_arena_open(sizes.used, &part->arena), CF_OK);
    cf_model_carve(&part->model, CF_MODEL_TRAIN, &part->arena);
    ck_assert_uint_eq(part->arena.used, sizes.used);
}

void model_part_open(model_part *part, const char *folder, cf_compute compute,
                     const char *freeze, model_grid grid, uint32_t rank)
{
    const uint32_t stage = rank % grid.n_stages;
    const cf_stage layers = {
        .first_layer = MODEL_PART_LAYERS * stage / grid.n_stages,
        .end_layer = MODEL_PART_LAYERS * (stage + 1) / grid.n_stages,
        .is_first = stage == 0,
        .is_last = stage + 1 == grid.n_stages,
    };
    const char *why;

    memset(part, 0, sizeof(*part));
    ck_assert_int_eq(cf_cpu_kernels(compute, &part->kernels, &why), CF_OK);
    ck_assert_int_eq(cf_model_open(folder, &part->kernels, &part->model),
                     CF_OK);
    cf_model_take_stage(&part->model, &layers);
    if (freeze != NULL)
        ck_assert_int_eq(cf_model_freeze(&part->model, freeze), CF_OK);
    cf_model_take_shard(&part->model, rank / grid.n_stages, grid.n_replicas);
    carve(part);
}

void model_part_close(model_part *part)
{
    cf_arena_close(&part->arena);
    cf_model_close(&part->model);
}

void *model_part_at(const model_part *part, model_array array,
                    const cf_param *p, cf_extent *extent_p)
{
    const cf_model *model = &part->model;
    char *data;

    *extent_p = (cf_extent){.n = p->n};
    if (array == ARRAY_MASTERS)
        return cf_model_at(model, model->masters, p);
    *extent_p = cf_model_shard_of(model, p);
    if (extent_p->n == 0)
        return NULL;
    if (array != ARRAY_GRADIENTS)
        return cf_model_moment_at(
            model, array == ARRAY_MOMENT1 ? model->moment1 : model->moment2, p);
    data = cf_model_at(model, model->gradients, p);
    return data + extent_p->first * part->kernels.acc_bytes;
}

/* Small, with few bits, so that every type holds it. */
static double value_of(model_array array, size_t param, size_t element)
{
    const size_t mixed = (element + 7 * param + 3 * array) * 2654435761u;

    return (double)(mixed % 255) / 128 - 0.5;
}

/* Write the values of an array, or find out whether they are there. */
static bool visit(const model_part *part, model_array array, bool is_filling)
{
    const bool wide = part->kernels.acc_bytes == sizeof(double);

    for (size_t i = 0; i < part->model.n_params; i++) {
        cf_extent extent;
        void *data =
            model_part_at(part, array, &part->model.params[i], &extent);

        for (size_t j = 0; data != NULL && j < extent.n; j++) {
            const double value = value_of(array, i, extent.first + j);

            if (!is_filling && value != (wide ? ((double *)data)[j]
                                              : (double)((float *)data)[j]))
                return false;
            if (wide)
                ((double *)data)[j] = value;
            else
                ((float *)data)[j] = (float)value;
        }
    }
    return true;
}

void model_part_fill(model_part *part)
{
    for (model_array array = 0; array < N_ARRAYS; array++)
        (void)visit(part, array, true);
}

bool model_part_is_filled(const model_part *part, model_array array)
{
    return visit(part, array, false);
}
