/* output.h - the run folder: made, guarded, cleared. */
#ifndef CF_OUTPUT_H
#define CF_OUTPUT_H

#include <chunkflow/base.h>

/* What to do with a run folder that is not empty. */
typedef enum cf_output_mode {
    CF_OUTPUT_NEW,       /* refuse it */
    CF_OUTPUT_OVERWRITE, /* remove what a run writes, and nothing else */
    CF_OUTPUT_RESUME     /* leave it */
} cf_output_mode;

/* Whether cf_output_open would have the folder: nothing is made or removed.
 * Errors, logged: CF_INVALID. */
CF_MUST_USE cf_status cf_output_check(const char *path, cf_output_mode mode,
                                      const char *model);

/* Have a writable run folder at path.  Refused when the model that the run starts
 * from, or its adapter, is among what would be removed.  Errors, logged: CF_INVALID. */
CF_MUST_USE cf_status cf_output_open(const char *path, cf_output_mode mode,
                                     const char *model);

#endif
