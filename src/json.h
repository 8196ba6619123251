/* json.h - typed fields of a JSON object, with one clear error each.
 *
 * A reader stands for one object in one file.  Its failure is sticky: the first
 * bad field is logged (file, field, what it must be) and sets status, and every
 * later call does nothing, so that a list of fields reads as a list.  A field
 * that is left out or null keeps the value that the caller put there: its
 * default.
 */
#ifndef CF_JSON_H
#define CF_JSON_H

#include <chunkflow/base.h>

#include <jansson.h>
#include <stdbool.h>

typedef struct cf_json_reader {
    const char *path;     /* of the file, for messages; borrowed */
    const char *prefix;   /* before field names in messages: "" or "rope." */
    const json_t *object; /* borrowed */
    cf_status status;     /* CF_OK, or the first failure */
} cf_json_reader;

/* Load a file that holds one JSON object; json_decref() what comes back.  A key
 * given twice is an error.  Errors, logged: CF_MALFORMED. */
CF_MUST_USE cf_status cf_json_load(const char *path, json_t **object_p);

/* The value of a field, NULL when it is left out or null. */
const json_t *cf_json_get(const cf_json_reader *reader, const char *field);

/* Log what is wrong with a field, and what to do; status becomes CF_MALFORMED
 * unless there was an earlier failure, which then is the one in the log. */
void cf_json_error(cf_json_reader *reader, const char *field,
                   const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* A field that must be there. */
void cf_json_require(cf_json_reader *reader, const char *field);

/* A whole number from min to max. */
void cf_json_read_uint(cf_json_reader *reader, const char *field, uint32_t min,
                       uint32_t max, uint32_t *value_p);

/* A number above min, whole or not. */
void cf_json_read_above(cf_json_reader *reader, const char *field, double min,
                        double *value_p);

void cf_json_read_bool(cf_json_reader *reader, const char *field,
                       bool *value_p);

/* Borrowed from the object. */
void cf_json_read_string(cf_json_reader *reader, const char *field,
                         const char **value_p);

#endif
