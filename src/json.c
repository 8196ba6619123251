/* json.c - typed fields of a JSON object, over jansson. */
#include "src/json.h"

#include "src/log.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

cf_status cf_json_load(const char *path, json_t **object_p)
{
    json_error_t error;
    json_t *object;
    FILE *file = fopen(path, "re");

    if (file == NULL) {
        cf_log_error("%s: cannot open it: %s; check the path", path,
                     strerror(errno));
        return CF_MALFORMED;
    }
    object = json_loadf(file, JSON_REJECT_DUPLICATES, &error);
    fclose(file);
    if (object == NULL) {
        cf_log_error("%s: line %d, column %d: not valid JSON: %s; repair the "
                     "file or fetch it again",
                     path, error.line, error.column, error.text);
        return CF_MALFORMED;
    }
    if (!json_is_object(object)) {
        cf_log_error("%s: must hold one JSON object; fetch the file again",
                     path);
        json_decref(object);
        return CF_MALFORMED;
    }
    *object_p = object;
    return CF_OK;
}

const json_t *cf_json_get(const cf_json_reader *reader, const char *field)
{
    const json_t *value = json_object_get(reader->object, field);

    return json_is_null(value) ? NULL : value;
}

void cf_json_error(cf_json_reader *reader, const char *field,
                   const char *format, ...)
{
    char text[512];
    va_list args;

    if (reader->status != CF_OK)
        return;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    cf_log_error("%s: field \"%s%s\" %s", reader->path, reader->prefix, field,
                 text);
    reader->status = CF_MALFORMED;
}

void cf_json_require(cf_json_reader *reader, const char *field)
{
    if (cf_json_get(reader, field) == NULL)
        cf_json_error(reader, field, "is missing; add it");
}

/* "is -2", "is 0.5", "is \"two\"", "is an array": the beginning of a message
 * about a value that is not what it must be. */
static void format_value(const json_t *value, char *buf, size_t size)
{
    switch (json_typeof(value)) {
    case JSON_INTEGER:
        snprintf(buf, size, "is %lld", (long long)json_integer_value(value));
        break;
    case JSON_REAL:
        snprintf(buf, size, "is %.17g", json_real_value(value));
        break;
    case JSON_STRING:
        snprintf(buf, size, "is \"%.100s\"", json_string_value(value));
        break;
    case JSON_OBJECT:
        snprintf(buf, size, "is an object");
        break;
    case JSON_ARRAY:
        snprintf(buf, size, "is an array");
        break;
    case JSON_TRUE:
        snprintf(buf, size, "is true");
        break;
    case JSON_FALSE:
        snprintf(buf, size, "is false");
        break;
    case JSON_NULL:
        snprintf(buf, size, "is null");
        break;
    }
}

static const json_t *get_unless_failed(const cf_json_reader *reader,
                                       const char *field)
{
    return reader->status == CF_OK ? cf_json_get(reader, field) : NULL;
}

void cf_json_read_uint(cf_json_reader *reader, const char *field, uint32_t min,
                       uint32_t max, uint32_t *value_p)
{
    const json_t *value = get_unless_failed(reader, field);
    json_int_t number = json_integer_value(value);
    char is[160];

    if (value == NULL)
        return;
    if (!json_is_integer(value) || number < (json_int_t)min ||
        number > (json_int_t)max) {
        format_value(value, is, sizeof(is));
        cf_json_error(reader, field,
                      "%s, but must be a whole number from %u to %u; correct "
                      "it",
                      is, min, max);
        return;
    }
    *value_p = (uint32_t)number;
}

void cf_json_read_above(cf_json_reader *reader, const char *field, double min,
                        double *value_p)
{
    const json_t *value = get_unless_failed(reader, field);
    char is[160];

    if (value == NULL)
        return;
    if (!json_is_number(value) || !(json_number_value(value) > min) ||
        !isfinite(json_number_value(value))) {
        format_value(value, is, sizeof(is));
        cf_json_error(reader, field,
                      "%s, but must be a number above %g; correct it", is, min);
        return;
    }
    *value_p = json_number_value(value);
}

void cf_json_read_bool(cf_json_reader *reader, const char *field, bool *value_p)
{
    const json_t *value = get_unless_failed(reader, field);
    char is[160];

    if (value == NULL)
        return;
    if (!json_is_boolean(value)) {
        format_value(value, is, sizeof(is));
        cf_json_error(reader, field,
                      "%s, but must be true or false; correct it", is);
        return;
    }
    *value_p = json_is_true(value);
}

void cf_json_read_string(cf_json_reader *reader, const char *field,
                         const char **value_p)
{
    const json_t *value = get_unless_failed(reader, field);
    char is[160];

    if (value == NULL)
        return;
    if (!json_is_string(value)) {
        format_value(value, is, sizeof(is));
        cf_json_error(reader, field, "%s, but must be a string; correct it",
                      is);
        return;
    }
    *value_p = json_string_value(value);
}
