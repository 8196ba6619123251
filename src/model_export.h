/* model_export.h - the masters out, as a Hugging Face folder or as an adapter. */
#ifndef CF_MODEL_EXPORT_H
#define CF_MODEL_EXPORT_H

#include "src/model.h"
#include "src/options.h"

/* The model folder's tensors.  All ranks write what they own (model_folder.h);
 * the types of all tensors are those of the folder that the model was loaded
 * from.  Errors, logged, and the same on all ranks: those of
 * cf_model_folder_write. */
CF_MUST_USE cf_status cf_model_export(cf_comm *comm, const cf_model *model,
                                      const char *from, const char *to,
                                      cf_export_dtype dtype);

/* Tensors first .. end - 1 of the table as this rank writes them; free() the
 * list.  Errors, logged, and the same on all ranks: CF_NO_MEMORY. */
CF_MUST_USE cf_status cf_model_export_list(cf_comm *comm, const cf_model *model,
                                           size_t first, size_t end,
                                           cf_export_dtype dtype,
                                           cf_tensor_source **sources_p);

/* What was trained, out and in again: the adapter of a model that has one, else
 * the model. */
CF_MUST_USE cf_status cf_trained_write(cf_comm *comm, const cf_model *model,
                                       const char *from, const char *to,
                                       cf_export_dtype dtype);
CF_MUST_USE cf_status cf_trained_load(cf_model *model, const char *folder);

/* The result of a run: OUTPUT/model, or OUTPUT/adapter, and then OUTPUT/model too
 * where --merge asks for it, after which the model's weights have the adapter in
 * them. */
CF_MUST_USE cf_status cf_trained_deliver(cf_comm *comm, cf_model *model,
                                         const char *from, const char *output,
                                         const cf_options *options);

#endif
