/* model_config_text.c - config.json as text, for those who hand it on.
 *
 * The text is edited in place of being parsed and printed: 1e-05 stays 1e-05,
 * and what we do not know stays as its author wrote it.
 */
#include "src/model_config_text.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char SPACE[] = " \t\r\n";

/* Behind the string that begins at this quote. */
static const char *skip_string(const char *at)
{
    for (at++; *at != '"'; at++)
        if (*at == '\\')
            at++;
    return at + 1;
}

/* Behind the value that begins here. */
static const char *skip_value(const char *at)
{
    const char *end = at;
    size_t depth = 0;

    while (depth > 0 || strchr(",}]", *at) == NULL) {
        if (*at == '"') {
            at = skip_string(at);
            end = at;
            continue;
        }
        if (*at == '{' || *at == '[')
            depth++;
        if (*at == '}' || *at == ']')
            depth--;
        if (strchr(SPACE, *at) == NULL)
            end = at + 1;
        at++;
    }
    return end;
}

/* Whether this key is that name; its spelling may have escapes. */
static bool is_key(const char *begin, const char *end, const char *name)
{
    json_t *key =
        json_loadb(begin, (size_t)(end - begin), JSON_DECODE_ANY, NULL);
    bool is = key != NULL && strcmp(json_string_value(key), name) == 0;

    json_decref(key);
    return is;
}

/* The value of a member of the outermost object. */
static bool find_value(const char *text, const char *name, const char **begin_p,
                       const char **end_p)
{
    const char *at = strchr(text, '{') + 1;

    for (;;) {
        const char *key, *begin, *end;

        key = at + strspn(at, SPACE);
        if (*key != '"')
            return false;
        at = skip_string(key);
        begin = at + strspn(at, SPACE) + 1; /* the colon */
        begin += strspn(begin, SPACE);
        end = skip_value(begin);
        if (is_key(key, at, name)) {
            *begin_p = begin;
            *end_p = end;
            return true;
        }
        at = end + strspn(end, SPACE);
        if (*at == ',')
            at++;
    }
}

/* text with begin .. end replaced by before, value and after; takes text over. */
static char *replace(char *text, const char *begin, const char *end,
                     const char *before, const char *value, const char *after)
{
    char *out;

    if (asprintf(&out, "%.*s%s%s%s%s", (int)(begin - text), text, before, value,
                 after, end) < 0)
        out = NULL;
    free(text);
    return out;
}

char *cf_config_text_with_dtype(const char *text, const char *dtype)
{
    static const char *const NAMES[] = {"torch_dtype", "dtype"};
    char *out = strdup(text);
    bool found = false;
    const char *begin, *end;

    for (size_t i = 0; i < 2 && out != NULL; i++)
        if (find_value(out, NAMES[i], &begin, &end)) {
            out = replace(out, begin, end, "\"", dtype, "\"");
            found = true;
        }
    if (out == NULL || found)
        return out;
    begin = strchr(out, '{') + 1;
    return replace(out, begin, begin, "\n  \"dtype\": \"", dtype, "\",");
}
