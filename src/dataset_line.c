/* dataset_line.c - one line of pre-tokenised JSONL (dataset_line.h).
 *
 * (1) Jansson decides what a line means.  The fast reader of
 *     dataset_line_plain.c takes only lines of which it is sure, and gives what
 *     this one would.
 */
#include "src/dataset_line.h"

#include "src/dataset_part.h"
#include "src/log.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* One value of a list as a token, or as CF_NO_TARGET when that is allowed. */
static cf_status read_tok(const cf_line_place *place, const char *key,
                          size_t position, const json_t *value,
                          bool may_be_none, uint32_t *tok_p)
{
    json_int_t number = json_integer_value(value);

    if (!json_is_integer(value)) {
        cf_log_error("%s:%zu: %s[%zu] is not a whole number; correct it",
                     place->path, place->number, key, position);
        return CF_MALFORMED;
    }
    if (may_be_none && number == CF_LABEL_OF_NO_TARGET) {
        *tok_p = CF_NO_TARGET;
        return CF_OK;
    }
    if (number < 0 || number >= (json_int_t)place->vocab) {
        cf_log_error("%s:%zu: %s[%zu] is %" JSON_INTEGER_FORMAT
                     ", outside the model's vocabulary of %" PRIu32
                     "; was the data tokenised for this model?",
                     place->path, place->number, key, position, number,
                     place->vocab);
        return CF_MALFORMED;
    }
    *tok_p = (uint32_t)number;
    return CF_OK;
}

static cf_status read_list(const cf_line_place *place, const char *key,
                           const json_t *list, bool may_be_none,
                           uint32_t *largest, cf_tok_array *array)
{
    const size_t n = json_array_size(list);
    uint32_t *grown =
        cf_array_grow(array->tok, &array->capacity, 0, n, sizeof(*grown));

    if (grown == NULL)
        return CF_NO_MEMORY;
    array->tok = grown;
    for (size_t i = 0; i < n; i++) {
        cf_status status = read_tok(place, key, i, json_array_get(list, i),
                                    may_be_none, &array->tok[i]);

        if (status != CF_OK)
            return status;
        if (array->tok[i] != CF_NO_TARGET && array->tok[i] > *largest)
            *largest = array->tok[i];
    }
    return CF_OK;
}

/* The line is of another kind: the message says what to do about it. */
static cf_status refuse_without_ids(const cf_line_place *place,
                                    const json_t *object)
{
    static const char *const raw_keys[] = {"messages", "conversations",
                                           "prompt", "text"};

    for (size_t i = 0; i < sizeof(raw_keys) / sizeof(raw_keys[0]); i++) {
        if (json_object_get(object, raw_keys[i]) != NULL) {
            cf_log_error("%s:%zu: has \"%s\" but no \"input_ids\": tokenise it "
                         "first with scripts/prepare",
                         place->path, place->number, raw_keys[i]);
            return CF_MALFORMED;
        }
    }
    cf_log_error("%s:%zu: \"input_ids\" is missing; give each line "
                 "its token ids",
                 place->path, place->number);
    return CF_MALFORMED;
}

static cf_status check_lists(const cf_line_place *place, const json_t *object,
                             const json_t *ids, const json_t *labels)
{
    if (ids == NULL)
        return refuse_without_ids(place, object);
    if (!json_is_array(ids) || (labels != NULL && !json_is_array(labels))) {
        cf_log_error("%s:%zu: \"%s\" is not a list; write its ids "
                     "as in [1, 2]",
                     place->path, place->number,
                     json_is_array(ids) ? "labels" : "input_ids");
        return CF_MALFORMED;
    }
    if (labels != NULL && json_array_size(labels) != json_array_size(ids)) {
        cf_log_error("%s:%zu: %zu labels for %zu input_ids; give each "
                     "id one",
                     place->path, place->number, json_array_size(labels),
                     json_array_size(ids));
        return CF_MALFORMED;
    }
    if (json_array_size(ids) >= UINT32_MAX) {
        cf_log_error("%s:%zu: %zu tokens are too many for one sequence; "
                     "cut it",
                     place->path, place->number, json_array_size(ids));
        return CF_MALFORMED;
    }
    return CF_OK;
}

static cf_status read_object(cf_line *line, const cf_line_place *place,
                             const json_t *object)
{
    const json_t *ids = json_object_get(object, "input_ids");
    const json_t *labels = json_object_get(object, "labels");
    /* None, when there is no source or it is no string. */
    const char *source = json_string_value(json_object_get(object, "source"));
    cf_status status = check_lists(place, object, ids, labels);

    if (status != CF_OK)
        return status;
    line->n_tok = (uint32_t)json_array_size(ids);
    line->largest = 0;
    status =
        read_list(place, "input_ids", ids, false, &line->largest, &line->ids);
    /* Without labels every token is its own. */
    if (status == CF_OK)
        status = labels != NULL ? read_list(place, "labels", labels, true,
                                            &line->largest, &line->targets)
                                : read_list(place, "input_ids", ids, false,
                                            &line->largest, &line->targets);
    if (status == CF_OK && source != NULL) {
        line->source = strdup(source);
        if (line->source == NULL)
            status = CF_NO_MEMORY;
    }
    return status;
}

static cf_status read_any(cf_line *line, const cf_line_place *place,
                          const char *text, size_t n)
{
    json_error_t error;
    json_t *value = json_loadb(text, n, JSON_REJECT_DUPLICATES, &error);
    cf_status status;

    if (value == NULL && json_error_code(&error) == json_error_out_of_memory)
        return CF_NO_MEMORY;
    if (value == NULL) {
        cf_log_error("%s:%zu: malformed JSON at character %d: %s; "
                     "correct it",
                     place->path, place->number, error.position, error.text);
        return CF_MALFORMED;
    }
    if (json_is_object(value)) {
        status = read_object(line, place, value);
    } else {
        cf_log_error("%s:%zu: is not an object such as {\"input_ids\": [1, 2]}",
                     place->path, place->number);
        status = CF_MALFORMED;
    }
    json_decref(value);
    return status;
}

/* The target of position i is the label of position i + 1; label 0 goes. */
static void labels_shift(cf_line *line)
{
    uint32_t *targets = line->targets.tok;

    line->n_targets = 0;
    if (line->n_tok == 0)
        return;
    memmove(targets, targets + 1, (line->n_tok - 1) * sizeof(*targets));
    targets[line->n_tok - 1] = CF_NO_TARGET;
    for (uint32_t i = 0; i < line->n_tok; i++)
        line->n_targets += targets[i] != CF_NO_TARGET;
}

cf_status cf_line_read(cf_line *line, const cf_line_place *place,
                       const char *text, size_t n)
{
    bool taken;
    cf_status status;

    free(line->source);
    line->source = NULL;
    status = cf_line_read_plain(line, place->vocab, text, n, &taken);
    if (status == CF_OK && !taken) {
        free(line->source);
        line->source = NULL;
        status = read_any(line, place, text, n);
    }
    if (status == CF_OK)
        labels_shift(line);
    return status;
}

void cf_line_close(cf_line *line)
{
    free(line->ids.tok);
    free(line->targets.tok);
    free(line->source);
    *line = (cf_line){0};
}
