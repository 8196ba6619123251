/* model_load.c - weights from a model folder, or an adapter's, into the masters.
 *
 * Every tensor of the table must be there with its shape; every tensor of the
 * folder must be understood; no value that is held may be NaN or Inf.
 */
#include "src/model.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/adapter.h"
#include "src/files.h"
#include "src/log.h"

static void shape_format(uint32_t n_dims, const uint64_t *dims, char *buf,
                         size_t size)
{
    size_t used = (size_t)snprintf(buf, size, "[");

    for (uint32_t i = 0; i < n_dims && used < size; i++)
        used += (size_t)snprintf(buf + used, size - used, "%s%" PRIu64,
                                 i > 0 ? ", " : "", dims[i]);
    if (used < size)
        snprintf(buf + used, size - used, "]");
}

/* Where tensors come from, for messages. */
typedef struct origin {
    const char *folder;
    const char *asks;   /* who says what their shapes are */
    const char *mend;   /* a tensor that is not as it says */
    const char *damage; /* what holds a NaN */
} origin;

static cf_status shape_check(const origin *from, const cf_param *p,
                             const cf_tensor *tensor)
{
    char want[64], have[128];

    if (tensor->n_dims == p->n_dims &&
        memcmp(tensor->dims, p->dims, p->n_dims * sizeof(p->dims[0])) == 0)
        return CF_OK;
    shape_format(p->n_dims, p->dims, want, sizeof(want));
    shape_format(tensor->n_dims, tensor->dims, have, sizeof(have));
    cf_log_error("%s: tensor '%s' has shape %s, %s for %s: %s", tensor->path,
                 tensor->name, have, from->asks, want, from->mend);
    return CF_MALFORMED;
}

static cf_status finite_check(const origin *from, const cf_model *model,
                              const cf_tensor *tensor, const void *values)
{
    const cf_kernels *k = model->kernels;
    size_t n_rows = (size_t)tensor->dims[0];
    size_t n_cols = (size_t)tensor->n / (n_rows > 0 ? n_rows : 1);
    size_t row = k->first_bad_row(k, n_rows, n_cols, values);

    if (row == n_rows)
        return CF_OK;
    cf_log_error("%s: tensor '%s' holds a NaN or Inf in row %zu: the %s is "
                 "damaged, get it again",
                 tensor->path, tensor->name, row, from->damage);
    return CF_MALFORMED;
}

static bool is_of_folder(const cf_model *model, const cf_param *p)
{
    return (size_t)(p - model->params) < model->n_folder_params;
}

static cf_status param_load(cf_model *model, cf_param *p, const origin *from,
                            const cf_tensors *tensors)
{
    const cf_tensor *tensor = cf_tensors_find(tensors, p->name);
    void *dst = cf_model_at(model, model->masters, p);
    cf_status status;

    if (tensor == NULL) {
        cf_log_error("%s: tensor '%s' is missing from the weights: %s",
                     from->folder, p->name, from->mend);
        return CF_MALFORMED;
    }
    status = shape_check(from, p, tensor);
    if (status != CF_OK)
        return status;
    /* An adapter leaves in fp32, however it came. */
    if (is_of_folder(model, p))
        p->file_dtype = tensor->dtype;
    if (dst == NULL)
        return CF_OK;
    cf_tensor_read(tensor, 0, p->n, model->kernels->compute, dst);
    cf_tensor_release(tensor);
    return finite_check(from, model, tensor, dst);
}

/* A tied config whose file carries lm_head.weight too: fine when it equals the
 * embedding, row by row so that no second copy of it is needed.  The first
 * stage, which has it, looks. */
static cf_status tied_head_check(const cf_model *model, const cf_tensor *tensor)
{
    const size_t hidden = model->config.hidden;
    const size_t row_bytes = hidden * model->kernels->acc_bytes;
    const size_t n_rows = model->stage.is_first ? model->config.vocab : 0;
    const uint64_t dims[2] = {model->config.vocab, hidden};
    void *row;
    bool equal =
        tensor->n_dims == 2 && memcmp(tensor->dims, dims, sizeof(dims)) == 0;

    if (equal && n_rows > 0) {
        row = malloc(row_bytes);
        if (row == NULL) {
            cf_log_error("no memory to compare '%s'", tensor->name);
            return CF_NO_MEMORY;
        }
        for (size_t i = 0; i < n_rows && equal; i++) {
            cf_tensor_read(tensor, i * hidden, hidden, model->kernels->compute,
                           row);
            equal = memcmp(row, (const char *)model->embedding + i * row_bytes,
                           row_bytes) == 0;
        }
        free(row);
    }
    if (equal)
        return CF_OK;
    cf_log_error("%s: 'lm_head.weight' differs from the embedding, but "
                 "config.json says tie_word_embeddings: set it to false",
                 tensor->path);
    return CF_MALFORMED;
}

static bool name_known(const cf_model *model, const char *name)
{
    const cf_param *p = cf_model_find_param(model, name);

    return p != NULL && is_of_folder(model, p);
}

/* Rotary tables that old folders carry; they follow from the config. */
static bool name_is_derived(const char *name)
{
    const char *end = strstr(name, ".rotary_emb.inv_freq");

    return end != NULL && strcmp(end, ".rotary_emb.inv_freq") == 0;
}

static cf_status others_check(const cf_model *model, const cf_tensors *tensors)
{
    cf_status status = CF_OK;

    for (size_t i = 0; i < cf_tensors_count(tensors) && status == CF_OK; i++) {
        const cf_tensor *tensor = cf_tensors_at(tensors, i);

        if (name_known(model, tensor->name) || name_is_derived(tensor->name))
            continue;
        if (model->config.tied && strcmp(tensor->name, "lm_head.weight") == 0) {
            status = tied_head_check(model, tensor);
            continue;
        }
        cf_log_error("%s: tensor '%s' is not part of the model that "
                     "config.json describes: chunkflow would drop it; "
                     "correct config.json, or remove the tensor",
                     tensor->path, tensor->name);
        status = CF_MALFORMED;
    }
    return status;
}

cf_status cf_model_load(cf_model *model, const char *folder)
{
    const origin from = {
        .folder = folder,
        .asks = "config.json asks",
        .mend = "correct config.json, or get the model again",
        .damage = "model",
    };
    cf_tensors *tensors;
    cf_status status = cf_tensors_open_folder(folder, &tensors);

    if (status != CF_OK)
        return status;
    for (size_t i = 0; i < model->n_folder_params && status == CF_OK; i++)
        status = param_load(model, &model->params[i], &from, tensors);
    if (status == CF_OK)
        status = others_check(model, tensors);
    cf_tensors_close(tensors);
    if (status == CF_OK)
        cf_model_pack(model);
    return status;
}

/* ---- adapters ---- */

static cf_status adapter_others_check(const cf_model *model,
                                      const cf_tensors *tensors)
{
    for (size_t i = 0; i < cf_tensors_count(tensors); i++) {
        const cf_tensor *tensor = cf_tensors_at(tensors, i);

        if (cf_model_find_param(model, tensor->name) != NULL)
            continue;
        cf_log_error("%s: tensor '%s' does not belong to an adapter of this "
                     "model with the target_modules of adapter_config.json: "
                     "name the model that it was made for",
                     tensor->path, tensor->name);
        return CF_MALFORMED;
    }
    return CF_OK;
}

cf_status cf_adapter_load(cf_model *model, const char *folder)
{
    const origin from = {
        .folder = folder,
        .asks = "the model and adapter_config.json ask",
        .mend = "name the model that the adapter was made for, or get the "
                "adapter again",
        .damage = "adapter",
    };
    char *path = cf_path_join(folder, "/", "adapter_model.safetensors");
    cf_tensors *tensors;
    cf_status status = CF_NO_MEMORY;

    if (path != NULL)
        status = cf_tensors_open_file(path, &tensors);
    free(path);
    if (status != CF_OK)
        return status;
    for (size_t i = model->n_folder_params;
         i < model->n_params && status == CF_OK; i++)
        status = param_load(model, &model->params[i], &from, tensors);
    if (status == CF_OK)
        status = adapter_others_check(model, tensors);
    cf_tensors_close(tensors);
    if (status == CF_OK)
        cf_model_pack(model);
    return status;
}
