/* model_export.h - the masters out as a Hugging Face folder. */
#ifndef CF_MODEL_EXPORT_H
#define CF_MODEL_EXPORT_H

#include "src/model.h"
#include "src/options.h"

/* All ranks write what they own (model_folder.h); the types of all tensors are
 * those of the folder that the model was loaded from.  Errors, logged, and the
 * same on all ranks: those of cf_model_folder_write. */
CF_MUST_USE cf_status cf_model_export(cf_comm *comm, const cf_model *model,
                                      const char *from, const char *to,
                                      cf_export_dtype dtype);

#endif
