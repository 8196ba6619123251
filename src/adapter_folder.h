/* adapter_folder.h - adapters as PEFT keeps them: adapter_config.json and
 * adapter_model.safetensors.
 *
 * What of PEFT's LoRA is not here is refused by name when a configuration asks
 * for it: ranks of their own for some layers, rsLoRA, DoRA, trained biases and
 * the like.
 */
#ifndef CF_ADAPTER_FOLDER_H
#define CF_ADAPTER_FOLDER_H

#include "src/adapter.h"
#include "src/comm.h"
#include "src/options.h"

/* What an adapter is read for: dropout, which only training does, is refused
 * there. */
typedef enum cf_adapter_use {
    CF_ADAPTER_TRAIN,
    CF_ADAPTER_APPLY
} cf_adapter_use;

/* The configuration in a folder.  Errors, logged, naming the field:
 * CF_MALFORMED. */
CF_MUST_USE cf_status cf_adapter_config_read(const char *folder,
                                             cf_adapter_use use,
                                             cf_adapter_spec *spec_p);

/* Write the folder `to`, which PEFT loads beside the model `base`.  All ranks
 * call it, each with what it owns.  Errors, logged, and the same on all ranks:
 * those of cf_folder_write. */
CF_MUST_USE cf_status cf_adapter_write(cf_comm *comm, const cf_model *model,
                                       const char *base, const char *to,
                                       cf_export_dtype dtype);

#endif
