/* costs_file.h - measured costs in the user's cache, one file for each machine,
 * model and build.
 *
 *     ~/.cache/chunkflow/costs-0123456789abcdef.json
 *
 * (XDG_CACHE_HOME in the place of ~/.cache, when it is set).  The name is a hash
 * of the key, which the file repeats in words: the processor, the threads of a
 * rank, the kernels, the shape of a layer and of the head, the adapter, the
 * version and the compiler.  The number of layers is not in it: costs are of one.
 */
#ifndef CF_COSTS_FILE_H
#define CF_COSTS_FILE_H

#include <chunkflow/base.h>

#include "src/costs.h"

/* Where costs of this model under its kernels belong; the caller frees.  *path_p
 * is NULL when there is neither XDG_CACHE_HOME nor HOME.  Errors, logged:
 * CF_NO_MEMORY. */
CF_MUST_USE cf_status cf_costs_path(const cf_model *model, char **path_p);

/* The costs of a file at cf_costs_path, if there is one: *found_p.  One that
 * cannot be used is warned of, and is none. */
void cf_costs_read(const char *path, const cf_model *model, cf_costs *costs,
                   bool *found_p);

/* Write them, with the folders above.  Errors, logged: CF_IO, CF_NO_MEMORY. */
CF_MUST_USE cf_status cf_costs_write(const char *path, const cf_model *model,
                                     const cf_costs *costs);

#endif
