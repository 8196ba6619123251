/* output.h - the run folder: made, guarded, cleared. */
#ifndef CF_OUTPUT_H
#define CF_OUTPUT_H

#include <chunkflow/base.h>

#include <stdbool.h>

/* Have an empty, writable run folder at path.  One that holds something is
 * refused unless overwrite is set, which removes what a run writes (INTERFACE
 * section 3) and nothing else.  Errors, logged: CF_INVALID. */
CF_MUST_USE cf_status cf_output_open(const char *path, bool overwrite);

#endif
