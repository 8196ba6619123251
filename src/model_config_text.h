/* model_config_text.h - config.json as text, for those who hand it on. */
#ifndef CF_MODEL_CONFIG_TEXT_H
#define CF_MODEL_CONFIG_TEXT_H

#include <chunkflow/base.h>

/* The text of a valid config.json with its dtype set ("bfloat16"), under each
 * of the names torch_dtype and dtype that is there, or as dtype when none is;
 * every other byte stays.  free() it; NULL when out of memory. */
char *cf_config_text_with_dtype(const char *text, const char *dtype);

#endif
