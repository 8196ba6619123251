/* dataset_jsonl.c - pre-tokenised JSONL, {"input_ids": [...], "labels": [...]}.
 *
 * The file is read once, line by line; what stays is four bytes a token, and
 * four more where there are labels.
 *
 * (1) Line n + 1 is sequence n: an empty line is an error, except behind the
 *     last one.
 */
#include "src/dataset_part.h"

#include "src/log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LABEL_OF_NO_TARGET = -100
}; /* Hugging Face's */

#define NO_LABELS SIZE_MAX

typedef struct tok_array {
    uint32_t *tok;
    size_t n;
    size_t capacity;
} tok_array;

typedef struct jsonl_sequence {
    size_t first_id;    /* into ids */
    size_t first_label; /* into labels, or NO_LABELS: all but the first */
    uint32_t n_tok;
} jsonl_sequence;

typedef struct jsonl_part {
    char *path;
    uint32_t vocab;
    tok_array ids;
    tok_array labels; /* CF_NO_TARGET for -100 */
    jsonl_sequence *sequences;
    size_t n;
    size_t capacity;
} jsonl_part;

static void part_close(void *state)
{
    jsonl_part *part = state;

    free(part->path);
    free(part->ids.tok);
    free(part->labels.tok);
    free(part->sequences);
    free(part);
}

static void part_read(const void *state, size_t sequence, uint32_t first_tok,
                      uint32_t n_tok, uint32_t *ids, uint32_t *targets)
{
    const jsonl_part *part = state;
    const jsonl_sequence *s = &part->sequences[sequence];
    const uint32_t *labels = s->first_label == NO_LABELS
                                 ? part->ids.tok + s->first_id
                                 : part->labels.tok + s->first_label;

    for (uint32_t i = 0; i < n_tok; i++) {
        uint32_t position = first_tok + i;

        ids[i] = part->ids.tok[s->first_id + position];
        targets[i] =
            position + 1 < s->n_tok ? labels[position + 1] : CF_NO_TARGET;
    }
}

static size_t part_where(const void *state, size_t sequence, char *buf,
                         size_t size)
{
    const jsonl_part *part = state;

    return (size_t)snprintf(buf, size, "%s:%zu", part->path, sequence + 1);
}

static size_t line_number(const jsonl_part *part)
{
    return part->n + 1;
}

/* One value of a list as a token, or as CF_NO_TARGET when that is allowed. */
static cf_status read_tok(const jsonl_part *part, const char *key,
                          size_t position, const json_t *value,
                          bool may_be_none, uint32_t *tok_p)
{
    json_int_t number = json_integer_value(value);

    if (!json_is_integer(value)) {
        cf_log_error("%s:%zu: %s[%zu] is not a whole number", part->path,
                     line_number(part), key, position);
        return CF_MALFORMED;
    }
    if (may_be_none && number == LABEL_OF_NO_TARGET) {
        *tok_p = CF_NO_TARGET;
        return CF_OK;
    }
    if (number < 0 || number >= (json_int_t)part->vocab) {
        cf_log_error("%s:%zu: %s[%zu] is %" JSON_INTEGER_FORMAT
                     ", outside the model's vocabulary of %" PRIu32
                     "; was the data tokenised for this model?",
                     part->path, line_number(part), key, position, number,
                     part->vocab);
        return CF_MALFORMED;
    }
    *tok_p = (uint32_t)number;
    return CF_OK;
}

static cf_status append_list(const jsonl_part *part, const char *key,
                             const json_t *list, bool may_be_none,
                             tok_array *array)
{
    const size_t n = json_array_size(list);
    uint32_t *grown;

    grown = cf_array_grow(array->tok, &array->capacity, array->n, n,
                          sizeof(*array->tok));
    if (grown == NULL)
        return CF_NO_MEMORY;
    array->tok = grown;
    for (size_t i = 0; i < n; i++) {
        cf_status status = read_tok(part, key, i, json_array_get(list, i),
                                    may_be_none, &array->tok[array->n + i]);

        if (status != CF_OK)
            return status;
    }
    array->n += n;
    return CF_OK;
}

/* The line is of another kind: the message says what to do about it. */
static cf_status refuse_without_ids(const jsonl_part *part, const json_t *line)
{
    static const char *const raw_keys[] = {"messages", "conversations",
                                           "prompt", "text"};

    for (size_t i = 0; i < sizeof(raw_keys) / sizeof(raw_keys[0]); i++) {
        if (json_object_get(line, raw_keys[i]) != NULL) {
            cf_log_error("%s:%zu: has \"%s\" but no \"input_ids\": tokenise it "
                         "first with scripts/prepare",
                         part->path, line_number(part), raw_keys[i]);
            return CF_MALFORMED;
        }
    }
    cf_log_error("%s:%zu: \"input_ids\" is missing", part->path,
                 line_number(part));
    return CF_MALFORMED;
}

static cf_status check_lists(const jsonl_part *part, const json_t *line,
                             const json_t *ids, const json_t *labels)
{
    if (ids == NULL)
        return refuse_without_ids(part, line);
    if (!json_is_array(ids) || (labels != NULL && !json_is_array(labels))) {
        cf_log_error("%s:%zu: \"%s\" is not a list", part->path,
                     line_number(part),
                     json_is_array(ids) ? "labels" : "input_ids");
        return CF_MALFORMED;
    }
    if (labels != NULL && json_array_size(labels) != json_array_size(ids)) {
        cf_log_error("%s:%zu: %zu labels for %zu input_ids", part->path,
                     line_number(part), json_array_size(labels),
                     json_array_size(ids));
        return CF_MALFORMED;
    }
    if (json_array_size(ids) >= UINT32_MAX) {
        cf_log_error("%s:%zu: %zu tokens are too many for one sequence",
                     part->path, line_number(part), json_array_size(ids));
        return CF_MALFORMED;
    }
    return CF_OK;
}

static uint32_t count_targets(const jsonl_part *part, const jsonl_sequence *s)
{
    uint32_t n = 0;

    if (s->first_label == NO_LABELS)
        return s->n_tok > 0 ? s->n_tok - 1 : 0;
    for (uint32_t i = 1; i < s->n_tok; i++)
        n += part->labels.tok[s->first_label + i] != CF_NO_TARGET;
    return n;
}

static cf_status append_sequence(jsonl_part *part, const json_t *line,
                                 cf_sequence_table *table)
{
    const json_t *ids = json_object_get(line, "input_ids");
    const json_t *labels = json_object_get(line, "labels");
    jsonl_sequence s = {part->ids.n, NO_LABELS, (uint32_t)json_array_size(ids)};
    jsonl_sequence *grown;
    cf_status status = check_lists(part, line, ids, labels);

    if (status == CF_OK)
        status = append_list(part, "input_ids", ids, false, &part->ids);
    if (status == CF_OK && labels != NULL) {
        s.first_label = part->labels.n;
        status = append_list(part, "labels", labels, true, &part->labels);
    }
    if (status != CF_OK)
        return status;
    grown = cf_array_grow(part->sequences, &part->capacity, part->n, 1,
                          sizeof(*grown));
    if (grown == NULL)
        return CF_NO_MEMORY;
    part->sequences = grown;
    part->sequences[part->n++] = s;
    /* NULL, and so none, when there is no source or it is no string. */
    return cf_sequence_table_append(
        table, s.n_tok, count_targets(part, &s),
        json_string_value(json_object_get(line, "source")));
}

static cf_status parse_line(jsonl_part *part, const char *text, size_t n,
                            cf_sequence_table *table)
{
    json_error_t error;
    json_t *line = json_loadb(text, n, JSON_REJECT_DUPLICATES, &error);
    cf_status status;

    if (line == NULL && json_error_code(&error) == json_error_out_of_memory)
        return CF_NO_MEMORY;
    if (line == NULL) {
        cf_log_error("%s:%zu: malformed JSON at character %d: %s", part->path,
                     line_number(part), error.position, error.text);
        return CF_MALFORMED;
    }
    if (json_is_object(line)) {
        status = append_sequence(part, line, table);
    } else {
        cf_log_error("%s:%zu: is not an object such as {\"input_ids\": [1, 2]}",
                     part->path, line_number(part));
        status = CF_MALFORMED;
    }
    json_decref(line);
    return status;
}

static bool at_end(FILE *file)
{
    int c = getc(file);

    if (c != EOF)
        (void)ungetc(c, file);
    return c == EOF;
}

static cf_status read_lines(jsonl_part *part, FILE *file,
                            cf_sequence_table *table)
{
    char *text = NULL;
    size_t text_bytes = 0;
    ssize_t n;
    cf_status status = CF_OK;

    errno = 0;
    while (status == CF_OK && (n = getline(&text, &text_bytes, file)) >= 0) {
        if (n > 0 && text[n - 1] == '\n')
            n--;
        if (n > 0 && text[n - 1] == '\r')
            n--;
        if (n > 0) {
            status = parse_line(part, text, (size_t)n, table);
        } else if (!at_end(file)) {
            cf_log_error("%s:%zu: is an empty line", part->path,
                         line_number(part));
            status = CF_MALFORMED;
        }
        errno = 0;
    }
    if (status == CF_OK && !feof(file)) {
        cf_log_error("%s:%zu: cannot be read: %s", part->path,
                     line_number(part), strerror(errno != 0 ? errno : EIO));
        status = CF_MALFORMED;
    }
    free(text);
    return status;
}

cf_status cf_dataset_part_open_jsonl(const char *path, uint32_t vocab,
                                     cf_sequence_table *table,
                                     cf_dataset_part *part_p)
{
    FILE *file = fopen(path, "re");
    jsonl_part *part;
    cf_status status = CF_NO_MEMORY;

    if (file == NULL) {
        cf_log_error("%s: %s", path, strerror(errno));
        return CF_MALFORMED;
    }
    part = calloc(1, sizeof(*part));
    if (part == NULL)
        goto close_file;
    part->vocab = vocab;
    part->path = strdup(path);
    if (part->path != NULL)
        status = read_lines(part, file, table);
    if (status != CF_OK) {
        part_close(part);
        goto close_file;
    }
    part_p->state = part;
    part_p->close = part_close;
    part_p->read = part_read;
    part_p->where = part_where;
close_file:
    (void)fclose(file);
    return status;
}
