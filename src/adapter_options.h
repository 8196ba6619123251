/* adapter_options.h - what the options say of an adapter. */
#ifndef CF_ADAPTER_OPTIONS_H
#define CF_ADAPTER_OPTIONS_H

#include "src/adapter.h"
#include "src/options.h"

/* Hold the options of an adapter against each other and, where they name a folder,
 * against what is in it; then rank, alpha and targets are those of the folder.
 * Errors, logged: CF_INVALID, and those of cf_adapter_config_read. */
CF_MUST_USE cf_status cf_adapter_options_resolve(cf_options *options);

/* The adapter that they ask for; rank 0: none.  Errors, logged: CF_INVALID. */
CF_MUST_USE cf_status cf_adapter_options_spec(const cf_options *options,
                                              cf_adapter_spec *spec_p);

enum {
    CF_ADAPTER_TARGETS_BYTES_MAX = 96
};

/* "q_proj,v_proj", into as many bytes.  Returns buf. */
const char *cf_adapter_targets_format(unsigned targets, char *buf);

#endif
