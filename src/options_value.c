/* options_value.c - the text of a value, in and out.
 *
 * (1) What cf_option_format writes, cf_option_set reads back to the same bits.
 */
#include "src/options_table.h"

#include "src/log.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(cf_recompute) == sizeof(unsigned) &&
                   sizeof(cf_compute) == sizeof(unsigned) &&
                   sizeof(cf_backend) == sizeof(unsigned) &&
                   sizeof(cf_lr_schedule) == sizeof(unsigned) &&
                   sizeof(cf_export_dtype) == sizeof(unsigned),
               "an enum field is written as an unsigned");

static void *field_of(cf_options *options, const cf_option *option)
{
    return (char *)options + option->field;
}

/* Of a list. */
static size_t *count_of(cf_options *options, const cf_option *option)
{
    return (size_t *)(void *)((char *)options + option->count_field);
}

static const void *field_in(const cf_options *options, const cf_option *option)
{
    return (const char *)options + option->field;
}

const char *cf_option_word_of(cf_command command, const cf_option *option)
{
    return (option->word_commands & 1U << command) != 0 ? option->word : NULL;
}

/* What a value must be, for "... is not %s". */
static void expected(const cf_options *options, const cf_option *option,
                     char *buf, size_t size)
{
    const char *word = cf_option_word_of(options->command, option);
    static const char *const units[] = {
        [CF_UNIT_COUNT] = "a whole number",
        [CF_UNIT_BYTES] = "a size, such as 8GiB or 500MB,",
        [CF_UNIT_TOKENS] = "a number of tokens, such as 4096 or 4K,",
        [CF_UNIT_SECONDS] = "a time, such as 90s or 2h,",
        [CF_UNIT_MINUTES] = "a time, such as 10, for minutes, 90s or 2h,",
    };
    size_t n = 0;

    switch (option->kind) {
    case CF_OPTION_U32:
    case CF_OPTION_U64:
        (void)snprintf(buf, size, "%s from %" PRIu64 " to %" PRIu64 "%s%s",
                       units[option->unit], option->min, option->max,
                       word != NULL ? ", or " : "", word != NULL ? word : "");
        break;
    case CF_OPTION_REAL:
        (void)snprintf(buf, size, "a number %s %g %s %g",
                       option->above_low ? "above" : "from", option->low,
                       option->below_high ? "to below" : "to", option->high);
        break;
    case CF_OPTION_CHOICE:
        n = (size_t)snprintf(buf, size, "one of");
        for (const cf_choice *c = option->choices; c->name != NULL; c++)
            n += (size_t)snprintf(buf + n, size - n, " %s", c->name);
        break;
    default:
        (void)snprintf(buf, size, "true or false");
    }
}

/* Decimal only: strtod would also take hexadecimal, inf and nan. */
static bool parse_real(const cf_option *option, const char *text,
                       double *value_p)
{
    char *end;
    double value;

    if (*text == '\0' || text[strspn(text, "0123456789.eE+-")] != '\0')
        return false;
    value = strtod(text, &end);
    if (*end != '\0' || !isfinite(value))
        return false;
    if (value < option->low || (option->above_low && value == option->low) ||
        value > option->high || (option->below_high && value == option->high))
        return false;
    *value_p = value;
    return true;
}

static bool parse_bool(const char *text, bool *value_p)
{
    *value_p = strcmp(text, "true") == 0;
    return *value_p || strcmp(text, "false") == 0;
}

static const cf_choice *parse_choice(const cf_option *option, const char *text)
{
    for (const cf_choice *c = option->choices; c->name != NULL; c++) {
        if (strcmp(c->name, text) == 0)
            return c;
    }
    return NULL;
}

/* Everything that is not a string.  False: the text is not a value of it. */
static bool set_plain(void *field, const cf_option *option, const char *text)
{
    uint64_t whole;
    bool flag;

    switch (option->kind) {
    case CF_OPTION_U32:
    case CF_OPTION_U64:
        if (cf_size_parse(text, option->unit, &whole) != CF_OK ||
            whole < option->min || whole > option->max)
            return false;
        if (option->kind == CF_OPTION_U32)
            *(uint32_t *)field = (uint32_t)whole;
        else
            *(uint64_t *)field = whole;
        return true;
    case CF_OPTION_REAL:
        return parse_real(option, text, field);
    case CF_OPTION_CHOICE: {
        const cf_choice *choice = parse_choice(option, text);

        if (choice == NULL)
            return false;
        *(unsigned *)field = choice->value;
        return true;
    }
    default:
        if (!parse_bool(text, &flag))
            return false;
        *(bool *)field = flag != (option->kind == CF_OPTION_FLAG_OFF);
        return true;
    }
}

/* Strings go into a YAML file, which holds UTF-8 only. */
static bool is_utf8(const char *text)
{
    json_t *string = json_string(text);

    json_decref(string);
    return string != NULL;
}

static cf_status set_text(cf_options *options, const cf_option *option,
                          const char *where, const char *text)
{
    char *copy;

    if (*text == '\0' || !is_utf8(text)) {
        cf_log_error("%s: is %s", where,
                     *text == '\0' ? "empty" : "not in UTF-8");
        return CF_INVALID;
    }
    copy = strdup(text);
    if (copy == NULL)
        goto out_of_memory;
    if (option->kind == CF_OPTION_TEXTS) {
        char ***list = field_of(options, option);
        size_t *n = count_of(options, option);
        char **longer = realloc(*list, (*n + 1) * sizeof(*longer));

        if (longer == NULL)
            goto free_copy;
        *list = longer;
        longer[(*n)++] = copy;
    } else {
        char **field = field_of(options, option);

        free(*field);
        *field = copy;
    }
    return CF_OK;

free_copy:
    free(copy);
out_of_memory:
    cf_log_error("%s: out of memory", where);
    return CF_NO_MEMORY;
}

cf_status cf_option_set(cf_options *options, const cf_option *option,
                        const char *where, const char *text)
{
    const char *word;
    char expectation[160];

    if (option->kind == CF_OPTION_TEXT || option->kind == CF_OPTION_TEXTS)
        return set_text(options, option, where, text);
    if (option->kind == CF_OPTION_CHOICE) {
        const cf_choice *choice = parse_choice(option, text);

        if (choice != NULL && choice->later) {
            cf_log_error("%s: %s is not there yet in this version", where,
                         text);
            return CF_INVALID;
        }
    }
    word = cf_option_word_of(options->command, option);
    if (word != NULL && strcmp(text, word) == 0) {
        *(uint32_t *)field_of(options, option) = 0;
        return CF_OK;
    }
    if (set_plain(field_of(options, option), option, text))
        return CF_OK;
    expected(options, option, expectation, sizeof(expectation));
    cf_log_error("%s: \"%.100s\" is not %s", where, text, expectation);
    return CF_INVALID;
}

cf_status cf_option_set_defaults(cf_options *options)
{
    for (size_t i = 0; i < cf_option_count; i++) {
        const cf_option *option = &cf_option_table[i];
        cf_status status = CF_OK;

        if ((option->word_initial & 1U << options->command) != 0)
            continue; /* 0 it is */
        if (option->initial != NULL)
            status =
                cf_option_set(options, option, option->name, option->initial);
        else if (option->kind == CF_OPTION_REAL)
            *(double *)field_of(options, option) = -1;
        else if (option->kind == CF_OPTION_FLAG_OFF)
            *(bool *)field_of(options, option) = true;
        if (status != CF_OK)
            return status;
    }
    return CF_OK;
}

void cf_option_free(cf_options *options, const cf_option *option)
{
    if (option->kind == CF_OPTION_TEXT) {
        char **field = field_of(options, option);

        free(*field);
        *field = NULL;
    }
    if (option->kind == CF_OPTION_TEXTS) {
        char ***list = field_of(options, option);
        size_t *n = count_of(options, option);

        while (*n > 0)
            free((*list)[--*n]);
        free(*list);
        *list = NULL;
    }
}

char *const *cf_option_texts(const cf_options *options, const cf_option *option,
                             size_t *n_p)
{
    *n_p = *(const size_t *)(const void *)((const char *)options +
                                           option->count_field);
    return *(char **const *)field_in(options, option);
}

bool cf_option_is_set(const cf_options *options, const cf_option *option)
{
    const void *field = field_in(options, option);
    size_t n_texts;

    switch (option->kind) {
    case CF_OPTION_TEXT:
        return *(char *const *)field != NULL;
    case CF_OPTION_TEXTS:
        (void)cf_option_texts(options, option, &n_texts);
        return n_texts != 0;
    case CF_OPTION_U32:
        return option->initial != NULL || *(const uint32_t *)field != 0;
    case CF_OPTION_U64:
        return option->initial != NULL || *(const uint64_t *)field != 0;
    case CF_OPTION_REAL:
        return option->initial != NULL || *(const double *)field >= 0;
    default:
        return option->kind < CF_OPTION_CONFIG;
    }
}

/* As few digits as bring the same double back. */
static size_t format_real(double value, char *buf, size_t size)
{
    size_t n = 0;

    for (int digits = 1; digits <= 17; digits++) {
        n = (size_t)snprintf(buf, size, "%.*g", digits, value);
        if (strtod(buf, NULL) == value)
            break;
    }
    return n;
}

static const char *choice_name(const cf_option *option, unsigned value)
{
    const cf_choice *c = option->choices;

    while (c->name != NULL && c->value != value)
        c++;
    return c->name != NULL ? c->name : "";
}

size_t cf_option_format(const cf_options *options, const cf_option *option,
                        char *buf, size_t size)
{
    const void *field = field_in(options, option);

    switch (option->kind) {
    case CF_OPTION_TEXT:
        return (size_t)snprintf(buf, size, "%s", *(char *const *)field);
    case CF_OPTION_U32:
        if (option->word != NULL && *(const uint32_t *)field == 0)
            return (size_t)snprintf(buf, size, "%s", option->word);
        return (size_t)snprintf(buf, size, "%" PRIu32,
                                *(const uint32_t *)field);
    case CF_OPTION_U64:
        return (size_t)snprintf(buf, size, "%" PRIu64 "%s",
                                *(const uint64_t *)field,
                                option->unit == CF_UNIT_MINUTES ? "s" : "");
    case CF_OPTION_REAL:
        return format_real(*(const double *)field, buf, size);
    case CF_OPTION_CHOICE:
        return (size_t)snprintf(buf, size, "%s",
                                choice_name(option, *(const unsigned *)field));
    default:
        return (size_t)snprintf(buf, size, "%s",
                                *(const bool *)field !=
                                        (option->kind == CF_OPTION_FLAG_OFF)
                                    ? "true"
                                    : "false");
    }
}

bool cf_options_identity(const cf_options *options, size_t index,
                         cf_option_text *text_p)
{
    for (size_t i = 0; i < cf_option_count; i++) {
        const cf_option *option = &cf_option_table[i];

        if (!option->identity || index-- > 0)
            continue;
        text_p->name = option->name;
        text_p->value[0] = '\0';
        if (cf_option_is_set(options, option))
            (void)cf_option_format(options, option, text_p->value,
                                   sizeof(text_p->value));
        return true;
    }
    return false;
}
