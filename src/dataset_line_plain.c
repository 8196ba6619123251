/* dataset_line_plain.c - the fast reader of a plain line (dataset_line.h).
 *
 * (1) What it takes is good JSON in the eyes of jansson too, without a key given
 *     twice, and every id and label is inside the vocabulary.
 * (2) At the least doubt it does not take the line: escapes, other keys,
 *     fractions, signs, numbers of more than nine digits, bytes above 126.
 */
#include "src/dataset_line.h"

#include "src/dataset_part.h"

#include <stdlib.h>
#include <string.h>

typedef struct scanner {
    const char *at;
    const char *end;
    uint32_t vocab;
} scanner;

/* The first two are also their place in keys. */
typedef enum plain_kind {
    PLAIN_IDS,
    PLAIN_LABELS,
    PLAIN_MASK, /* read and dropped */
    PLAIN_TEXT
} plain_kind;

static const struct {
    const char *name;
    plain_kind kind;
} keys[] = {
    {"input_ids", PLAIN_IDS},       {"labels", PLAIN_LABELS},
    {"attention_mask", PLAIN_MASK}, {"token_type_ids", PLAIN_MASK},
    {"source", PLAIN_TEXT},
};
enum {
    N_KEYS = sizeof(keys) / sizeof(keys[0]),
    DIGITS_MAX = 9
};

/* What was found of a line so far. */
typedef struct plain_line {
    cf_line *line;
    size_t n_ids;
    size_t n_labels;
    bool seen[N_KEYS];
    cf_status status;
} plain_line;

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* The next byte that is no space, not taken; NUL at the end. */
static char peek(scanner *s)
{
    while (s->at < s->end && is_space(*s->at))
        s->at++;
    return s->at < s->end ? *s->at : '\0';
}

static bool take(scanner *s, char c)
{
    if (peek(s) != c || s->at == s->end)
        return false;
    s->at++;
    return true;
}

/* A string without escapes, of printable ASCII. */
static bool take_text(scanner *s, const char **text_p, size_t *n_p)
{
    const char *first;

    if (!take(s, '"'))
        return false;
    first = s->at;
    while (s->at < s->end && *s->at >= ' ' && *s->at <= '~' && *s->at != '"' &&
           *s->at != '\\')
        s->at++;
    *text_p = first;
    *n_p = (size_t)(s->at - first);
    return take(s, '"') && s->at == first + *n_p + 1;
}

/* Digits without a leading zero, as JSON has it. */
static bool take_digits(scanner *s, uint32_t *value_p)
{
    const char *first = s->at;
    uint32_t value = 0;

    while (s->at < s->end && *s->at >= '0' && *s->at <= '9' &&
           s->at - first <= DIGITS_MAX)
        value = value * 10 + (uint32_t)(*s->at++ - '0');
    *value_p = value;
    return s->at > first && s->at - first <= DIGITS_MAX &&
           (*first != '0' || s->at == first + 1);
}

/* A number of a list: a token, or -100 among labels. */
static bool take_tok(scanner *s, plain_kind kind, uint32_t *tok_p)
{
    static const char none[] = "-100";
    const size_t n_none = sizeof(none) - 1;

    if (peek(s) == '-') {
        if (kind != PLAIN_LABELS || (size_t)(s->end - s->at) < n_none ||
            memcmp(s->at, none, n_none) != 0)
            return false;
        s->at += n_none;
        *tok_p = CF_NO_TARGET;
        return true;
    }
    return take_digits(s, tok_p) && (kind == PLAIN_MASK || *tok_p < s->vocab);
}

static cf_status append_tok(cf_tok_array *array, size_t n, uint32_t tok)
{
    uint32_t *grown;

    if (n >= array->capacity || array->tok == NULL) {
        grown =
            cf_array_grow(array->tok, &array->capacity, n, 1, sizeof(*grown));
        if (grown == NULL)
            return CF_NO_MEMORY;
        array->tok = grown;
    }
    array->tok[n] = tok;
    return CF_OK;
}

/* array is NULL for a list that is dropped. */
static bool take_list(scanner *s, plain_kind kind, plain_line *p,
                      cf_tok_array *array, size_t *n_p)
{
    uint32_t largest = p->line->largest;
    size_t n = 0;
    uint32_t tok;

    if (!take(s, '['))
        return false;
    if (take(s, ']'))
        goto done;
    do {
        if (!take_tok(s, kind, &tok))
            return false;
        if (array == NULL)
            continue;
        if (tok != CF_NO_TARGET && tok > largest)
            largest = tok;
        p->status = append_tok(array, n++, tok);
        if (p->status != CF_OK)
            return false;
    } while (take(s, ','));
    if (!take(s, ']'))
        return false;
done:
    p->line->largest = largest;
    *n_p = n;
    return true;
}

static bool take_value(scanner *s, plain_kind kind, plain_line *p)
{
    const char *text;
    size_t n;

    switch (kind) {
    case PLAIN_IDS:
        return take_list(s, kind, p, &p->line->ids, &p->n_ids);
    case PLAIN_LABELS:
        return take_list(s, kind, p, &p->line->targets, &p->n_labels);
    case PLAIN_MASK:
        return take_list(s, kind, p, NULL, &n);
    case PLAIN_TEXT:
        break;
    }
    if (!take_text(s, &text, &n))
        return false;
    p->line->source = strndup(text, n);
    if (p->line->source == NULL)
        p->status = CF_NO_MEMORY;
    return p->line->source != NULL;
}

static bool take_member(scanner *s, plain_line *p)
{
    const char *name;
    size_t n;
    size_t key = 0;

    if (!take_text(s, &name, &n))
        return false;
    while (key < N_KEYS && (strlen(keys[key].name) != n ||
                            memcmp(keys[key].name, name, n) != 0))
        key++;
    if (key == N_KEYS || p->seen[key])
        return false;
    p->seen[key] = true;
    return take(s, ':') && take_value(s, keys[key].kind, p);
}

static bool take_line(scanner *s, plain_line *p)
{
    if (!take(s, '{'))
        return false;
    do {
        if (!take_member(s, p))
            return false;
    } while (take(s, ','));
    if (!take(s, '}') || peek(s) != '\0' || s->at != s->end)
        return false;
    return p->seen[PLAIN_IDS] && p->n_ids < UINT32_MAX &&
           (!p->seen[PLAIN_LABELS] || p->n_labels == p->n_ids);
}

cf_status cf_line_read_plain(cf_line *line, uint32_t vocab, const char *text,
                             size_t n, bool *taken_p)
{
    scanner s = {text, text + n, vocab};
    plain_line p = {.line = line, .status = CF_OK};
    uint32_t *labels;

    line->largest = 0;
    *taken_p = take_line(&s, &p);
    if (!*taken_p)
        return p.status;
    line->n_tok = (uint32_t)p.n_ids;
    if (p.seen[PLAIN_LABELS] || line->n_tok == 0)
        return CF_OK;
    /* Without labels every token is its own. */
    labels = cf_array_grow(line->targets.tok, &line->targets.capacity, 0,
                           p.n_ids, sizeof(*labels));
    if (labels == NULL)
        return CF_NO_MEMORY;
    line->targets.tok = labels;
    memcpy(labels, line->ids.tok, p.n_ids * sizeof(*labels));
    return CF_OK;
}
