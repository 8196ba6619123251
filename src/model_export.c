/* model_export.c - see model_export.h. */
#include "src/model_export.h"

#include <stdlib.h>

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

cf_status cf_model_export(cf_comm *comm, const cf_model *model,
                          const char *from, const char *to,
                          cf_export_dtype dtype)
{
    cf_tensor_source *sources = calloc(model->n_params, sizeof(*sources));
    cf_status status = CF_OK;

    if (sources == NULL)
        status = cf_log_no_memory("the list of tensors");
    status = cf_comm_agree(comm, status);
    for (size_t i = 0; i < model->n_params && status == CF_OK; i++) {
        const cf_param *p = &model->params[i];

        sources[i] = (cf_tensor_source){
            .name = p->name,
            .dtype = dtype_of(p, dtype),
            .n_dims = p->n_dims,
            .dims = {p->dims[0], p->dims[1]},
            .data = data_of(model, p),
        };
    }
    if (status == CF_OK)
        status = cf_model_folder_write(comm, from, to, model->kernels->compute,
                                       sources, model->n_params);
    free(sources);
    return status;
}
