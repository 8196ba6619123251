/* model_export.c - see model_export.h. */
#include "src/model_export.h"

#include <stdlib.h>
#include <string.h>

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

cf_status cf_model_export(const cf_model *model, const char *from,
                          const char *to, cf_export_dtype dtype)
{
    const cf_kernels *k = model->kernels;
    cf_tensor_source *sources = calloc(model->n_params, sizeof(*sources));
    cf_status status;

    if (sources == NULL) {
        cf_log_error("no memory to list the tensors of '%s'", to);
        return CF_NO_MEMORY;
    }
    for (size_t i = 0; i < model->n_params; i++) {
        const cf_param *p = &model->params[i];

        sources[i] = (cf_tensor_source){
            .name = p->name,
            .dtype = dtype_of(p, dtype),
            .n_dims = p->n_dims,
            .dims = {p->dims[0], p->dims[1]},
            .data = cf_at(model->masters, p->offset * k->acc_bytes),
        };
    }
    status =
        cf_model_folder_write(from, to, k->compute, sources, model->n_params);
    free(sources);
    return status;
}
