/* model_export.c - see model_export.h. */
#include "src/model_export.h"

#include <stdlib.h>

#include "src/adapter.h"
#include "src/adapter_folder.h"
#include "src/files.h"
#include "src/log.h"
#include "src/model_folder.h"

static cf_dtype dtype_of(const cf_param *p, cf_export_dtype dtype)
{
    switch (dtype) {
    case CF_EXPORT_FP32:
        return CF_DTYPE_F32;
    case CF_EXPORT_BF16:
        return CF_DTYPE_BF16;
    case CF_EXPORT_MODEL:
        break;
    }
    return p->file_dtype;
}

/* Of the replicas of a stage, the first writes. */
static const void *data_of(const cf_model *model, const cf_param *p)
{
    return p->owned && model->shard == 0 ? cf_model_at(model, model->masters, p)
                                         : NULL;
}

cf_status cf_model_export_list(cf_comm *comm, const cf_model *model,
                               size_t first, size_t end, cf_export_dtype dtype,
                               cf_tensor_source **sources_p)
{
    cf_tensor_source *sources = calloc(end - first, sizeof(*sources));
    cf_status status = CF_OK;

    if (sources == NULL)
        status = cf_log_no_memory("the list of tensors");
    status = cf_comm_agree(comm, status);
    if (status != CF_OK) {
        free(sources);
        return status;
    }
    for (size_t i = first; i < end; i++) {
        const cf_param *p = &model->params[i];

        sources[i - first] = (cf_tensor_source){
            .name = p->name,
            .dtype = dtype_of(p, dtype),
            .n_dims = p->n_dims,
            .dims = {p->dims[0], p->dims[1]},
            .data = data_of(model, p),
        };
    }
    *sources_p = sources;
    return CF_OK;
}

cf_status cf_model_export(cf_comm *comm, const cf_model *model,
                          const char *from, const char *to,
                          cf_export_dtype dtype)
{
    cf_tensor_source *sources;
    cf_status status = cf_model_export_list(
        comm, model, 0, model->n_folder_params, dtype, &sources);

    if (status != CF_OK)
        return status;
    status = cf_model_folder_write(comm, from, to, model->kernels->compute,
                                   sources, model->n_folder_params);
    free(sources);
    return status;
}

/* ---- what was trained ---- */

cf_status cf_trained_write(cf_comm *comm, const cf_model *model,
                           const char *from, const char *to,
                           cf_export_dtype dtype)
{
    return cf_model_has_adapter(model)
               ? cf_adapter_write(comm, model, from, to, dtype)
               : cf_model_export(comm, model, from, to, dtype);
}

cf_status cf_trained_load(cf_model *model, const char *folder)
{
    return cf_model_has_adapter(model) ? cf_adapter_load(model, folder)
                                       : cf_model_load(model, folder);
}

static cf_status merged_write(cf_comm *comm, cf_model *model, const char *from,
                              const char *to, cf_export_dtype dtype)
{
    cf_status status = cf_comm_agree(comm, cf_adapter_merge(model));

    return status == CF_OK ? cf_model_export(comm, model, from, to, dtype)
                           : status;
}

cf_status cf_trained_deliver(cf_comm *comm, cf_model *model, const char *from,
                             const char *output, const cf_options *options)
{
    const char *const names[] = {
        cf_model_has_adapter(model) ? "adapter" : "model",
        options->merge ? "model" : NULL,
    };
    cf_status status = CF_OK;

    for (size_t i = 0; i < 2 && names[i] != NULL && status == CF_OK; i++) {
        char *to = cf_path_join(output, "/", names[i]);

        status = cf_comm_agree(comm, to != NULL ? CF_OK : CF_NO_MEMORY);
        if (status == CF_OK)
            status = i == 0 ? cf_trained_write(comm, model, from, to,
                                               options->export_dtype)
                            : merged_write(comm, model, from, to,
                                           options->export_dtype);
        free(to);
    }
    return status;
}
