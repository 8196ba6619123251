/* model_export.h - the masters out as a Hugging Face folder. */
#ifndef CF_MODEL_EXPORT_H
#define CF_MODEL_EXPORT_H

#include "src/model.h"
#include "src/options.h"

/* Errors, logged: CF_IO, CF_NO_MEMORY. */
CF_MUST_USE cf_status cf_model_export(const cf_model *model, const char *from,
                                      const char *to, cf_export_dtype dtype);

#endif
