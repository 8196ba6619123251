/* generation_config.h - where a model says that a text ends. */
#ifndef CF_GENERATION_CONFIG_H
#define CF_GENERATION_CONFIG_H

#include <chunkflow/base.h>

#include <stdbool.h>

#include "src/model_config.h"

enum {
    CF_EOS_MAX = 64
};

typedef struct cf_generation_config {
    uint32_t eos[CF_EOS_MAX];
    size_t n_eos;              /* 0: nothing ends a text */
    uint32_t max_position_tok; /* max_position_embeddings; UINT32_MAX: none */
} cf_generation_config;

/* eos_token_id, a number or a list, of FOLDER/generation_config.json, or where
 * that says nothing, of config.json; where that leaves it out too, what
 * transformers has for the family.  Errors, logged: CF_MALFORMED,
 * CF_NO_MEMORY. */
CF_MUST_USE cf_status cf_generation_config_read(const char *folder,
                                                cf_family family,
                                                cf_generation_config *config_p);

bool cf_generation_config_ends(const cf_generation_config *config,
                               uint32_t token);

#endif
