/* size.c - quantities as people write them (size.h). */
#include "src/size.h"

#include <inttypes.h>
#include <stdio.h>
#include <strings.h>

enum {
    FRACTION_DIGITS_MAX = 6
};

typedef struct suffix {
    cf_unit unit;
    const char *text;
    uint64_t factor; /* below 2^44, so that a fraction times it fits */
} suffix;

static const suffix suffixes[] = {
    {CF_UNIT_BYTES, "KiB", 1ULL << 10},
    {CF_UNIT_BYTES, "MiB", 1ULL << 20},
    {CF_UNIT_BYTES, "GiB", 1ULL << 30},
    {CF_UNIT_BYTES, "TiB", 1ULL << 40},
    {CF_UNIT_BYTES, "KB", 1000ULL},
    {CF_UNIT_BYTES, "MB", 1000000ULL},
    {CF_UNIT_BYTES, "GB", 1000000000ULL},
    {CF_UNIT_BYTES, "TB", 1000000000000ULL},
    {CF_UNIT_TOKENS, "K", 1ULL << 10},
    {CF_UNIT_TOKENS, "M", 1ULL << 20},
    {CF_UNIT_SECONDS, "s", 1},
    {CF_UNIT_SECONDS, "m", 60},
    {CF_UNIT_SECONDS, "h", 3600},
    {CF_UNIT_MINUTES, "s", 1},
    {CF_UNIT_MINUTES, "m", 60},
    {CF_UNIT_MINUTES, "h", 3600},
};

/* 0 when the unit has no such suffix. */
static uint64_t suffix_factor(cf_unit unit, const char *text)
{
    for (size_t i = 0; i < sizeof(suffixes) / sizeof(suffixes[0]); i++) {
        if (suffixes[i].unit == unit && strcasecmp(suffixes[i].text, text) == 0)
            return suffixes[i].factor;
    }
    return 0;
}

static int is_digit(char c)
{
    return c >= '0' && c <= '9';
}

cf_status cf_size_parse(const char *text, cf_unit unit, uint64_t *value_p)
{
    uint64_t whole = 0;
    uint64_t fraction = 0;
    uint64_t fraction_of = 1;
    uint64_t factor = unit == CF_UNIT_MINUTES ? 60 : 1;

    if (!is_digit(*text))
        return CF_INVALID;
    for (; is_digit(*text); text++) {
        if (__builtin_mul_overflow(whole, (uint64_t)10, &whole) ||
            __builtin_add_overflow(whole, (uint64_t)(*text - '0'), &whole))
            return CF_OVERFLOW;
    }
    if (*text == '.' && unit == CF_UNIT_BYTES) {
        int n_digits = 0;

        for (text++; is_digit(*text); text++) {
            if (++n_digits > FRACTION_DIGITS_MAX)
                return CF_INVALID;
            fraction = fraction * 10 + (uint64_t)(*text - '0');
            fraction_of *= 10;
        }
        if (n_digits == 0 || *text == '\0')
            return CF_INVALID;
    }
    if (*text != '\0') {
        factor = suffix_factor(unit, text + (*text == ' '));
        if (factor == 0)
            return CF_INVALID;
    }
    if (__builtin_mul_overflow(whole, factor, &whole) ||
        __builtin_add_overflow(whole, fraction * factor / fraction_of, &whole))
        return CF_OVERFLOW;
    *value_p = whole;
    return CF_OK;
}

const char *cf_time_format(double time_s, char *buf, size_t size)
{
    const uint64_t s = time_s < 1e15 ? (uint64_t)(time_s + 0.5) : 0;

    if (s < 60)
        (void)snprintf(buf, size, "%" PRIu64 "s", s);
    else if (s < 3600)
        (void)snprintf(buf, size, "%" PRIu64 "m%02" PRIu64 "s", s / 60, s % 60);
    else
        (void)snprintf(buf, size, "%" PRIu64 "h%02" PRIu64 "m", s / 3600,
                       s % 3600 / 60);
    return buf;
}
