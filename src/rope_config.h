/* rope_config.h - the rotary part of config.json. */
#ifndef CF_ROPE_CONFIG_H
#define CF_ROPE_CONFIG_H

#include "src/json.h"
#include "src/model_config.h"

/* Read the rotary fields of a whole config.  max_position is the family's
 * default of max_position_embeddings.  Errors are the reader's. */
void cf_rope_config_read(cf_json_reader *reader, double max_position,
                         cf_rope_config *config_p);

#endif
