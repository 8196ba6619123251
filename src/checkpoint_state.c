/* checkpoint_state.c - see checkpoint_state.h. */
#include "src/checkpoint_state.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "src/hash.h"
#include "src/log.h"

/* The last key.  Its value is the hash of all bytes before the key. */
static const char checksum_key[] = "\"checksum\": \"";

enum {
    HASH_DIGITS = 16
};

/* ---- out ---- */

typedef struct writer {
    char *buf;
    size_t size;
    size_t n; /* >= size: it did not fit */
} writer;

static void CF_PRINTF(2, 3) put(writer *w, const char *format, ...)
{
    size_t room = w->n < w->size ? w->size - w->n : 0;
    va_list args;

    va_start(args, format);
    w->n +=
        (size_t)vsnprintf(room > 0 ? w->buf + w->n : NULL, room, format, args);
    va_end(args);
}

static void put_string(writer *w, const char *text)
{
    put(w, "\"");
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\')
            put(w, "\\%c", *text);
        else if ((unsigned char)*text < ' ')
            put(w, "\\u%04x", (unsigned)(unsigned char)*text);
        else
            put(w, "%c", *text);
    }
    put(w, "\"");
}

static void put_options(writer *w, const cf_checkpoint_state *state)
{
    put(w, "  \"options\": {");
    for (size_t i = 0; i < state->n_options; i++) {
        put(w, "%s\n    ", i > 0 ? "," : "");
        put_string(w, state->options[i].name);
        put(w, ": ");
        put_string(w, state->options[i].value);
    }
    put(w, "\n  },\n");
}

static void put_count(writer *w, const char *key, const cf_ledger_count *count)
{
    put(w,
        "    \"%s\": {\"sequences\": %" PRIu64 ", \"tokens\": %" PRIu64 "},\n",
        key, count->sequences, count->tokens);
}

static void put_ledger(writer *w, const cf_ledger *ledger)
{
    put(w, "  \"ledger\": {\n");
    put_count(w, "read", &ledger->read);
    put_count(w, "trained", &ledger->trained);
    put_count(w, "masked", &ledger->masked);
    put_count(w, "skipped_max_length", &ledger->skipped_max_length);
    put(w, "    \"trained_target_tokens\": %" PRIu64 "\n  },\n",
        ledger->trained_target_tokens);
}

static void put_file(writer *w, const char *name,
                     const cf_checkpoint_file *file, const char *end)
{
    put(w,
        "    \"%s\": {\"bytes\": %" PRIu64 ", \"header\": \"%016" PRIx64
        "\", \"tensors\": \"%016" PRIx64 "\"}%s",
        name, file->bytes, file->header_hash, file->tensors_hash, end);
}

size_t cf_checkpoint_state_format(const cf_checkpoint_state *state, char *buf,
                                  size_t size)
{
    writer w = {.buf = buf, .size = size};

    put(&w, "{\n  \"format\": %d,\n  \"chunkflow\": \"" CF_VERSION "\",\n",
        CF_CHECKPOINT_FORMAT);
    put(&w, "  \"step\": %" PRIu64 ",\n", state->step);
    put(&w, "  \"n_steps\": %" PRIu64 ",\n", state->n_steps);
    put(&w, "  \"n_updates\": %" PRIu64 ",\n", state->n_updates);
    put(&w, "  \"model\": \"%016" PRIx64 "\",\n", state->model_hash);
    put(&w, "  \"data\": \"%016" PRIx64 "\",\n", state->data_hash);
    put(&w, "  \"chunk_size\": %" PRIu32 ",\n", state->chunk_size_tok);
    put_options(&w, state);
    put_ledger(&w, &state->ledger);
    put(&w, "  \"files\": {\n");
    put_file(&w, "weights.safetensors", &state->weights, ",\n");
    put_file(&w, "moments.safetensors", &state->moments, "\n  },\n  ");
    if (w.n >= size)
        return 0;
    put(&w, "%s%016" PRIx64 "\"\n}\n", checksum_key, cf_hash_of(buf, w.n, 0));
    return w.n < size ? w.n : 0;
}

/* ---- in ---- */

/* The first thing wrong is kept; later reads do nothing harmful. */
typedef struct reader {
    const char *why; /* NULL: nothing */
} reader;

static void blame(reader *r, const char *why)
{
    if (r->why == NULL)
        r->why = why;
}

static const json_t *get_object(reader *r, const json_t *object,
                                const char *key)
{
    const json_t *value = json_object_get(object, key);

    if (!json_is_object(value))
        blame(r, "a part of it is missing");
    return value;
}

static uint64_t get_whole(reader *r, const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    if (!json_is_integer(value) || json_integer_value(value) < 0) {
        blame(r, "a number in it is missing or negative");
        return 0;
    }
    return (uint64_t)json_integer_value(value);
}

/* A number that earlier versions did not write: 0 there. */
static uint32_t get_later_count(reader *r, const json_t *object,
                                const char *key)
{
    uint64_t value = 0;

    if (json_object_get(object, key) != NULL)
        value = get_whole(r, object, key);
    if (value > UINT32_MAX)
        blame(r, "a number in it is too large");
    return (uint32_t)value;
}

static uint64_t get_hash(reader *r, const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    uint64_t hash = 0;

    if (text == NULL || strlen(text) != HASH_DIGITS ||
        strspn(text, "0123456789abcdef") != HASH_DIGITS)
        blame(r, "a hash in it is missing or malformed");
    else
        (void)sscanf(text, "%" SCNx64, &hash);
    return hash;
}

static cf_ledger_count get_count(reader *r, const json_t *ledger,
                                 const char *key)
{
    const json_t *count = get_object(r, ledger, key);

    return (cf_ledger_count){
        .sequences = get_whole(r, count, "sequences"),
        .tokens = get_whole(r, count, "tokens"),
    };
}

static void get_ledger(reader *r, const json_t *state, cf_ledger *ledger)
{
    const json_t *object = get_object(r, state, "ledger");

    *ledger = (cf_ledger){
        .read = get_count(r, object, "read"),
        .trained = get_count(r, object, "trained"),
        .masked = get_count(r, object, "masked"),
        .skipped_max_length = get_count(r, object, "skipped_max_length"),
        .trained_target_tokens = get_whole(r, object, "trained_target_tokens"),
    };
    if (ledger->read.sequences != ledger->trained.sequences +
                                      ledger->masked.sequences +
                                      ledger->skipped_max_length.sequences ||
        ledger->read.tokens != ledger->trained.tokens + ledger->masked.tokens +
                                   ledger->skipped_max_length.tokens)
        blame(r, "its ledger does not add up");
}

static void get_options(reader *r, const json_t *state,
                        cf_checkpoint_state *state_p)
{
    json_t *object = json_object_get(state, "options");
    const char *name;
    json_t *value;

    if (!json_is_object(object) ||
        json_object_size(object) > CF_CHECKPOINT_OPTIONS_MAX) {
        blame(r, "its options are missing or too many");
        return;
    }
    json_object_foreach (object, name, value) {
        cf_checkpoint_option *option = &state_p->options[state_p->n_options++];
        const char *text = json_string_value(value);

        if (text == NULL || strlen(text) >= sizeof(option->value) ||
            strlen(name) >= sizeof(option->name)) {
            blame(r, "one of its options is malformed");
            return;
        }
        memcpy(option->name, name, strlen(name) + 1);
        memcpy(option->value, text, strlen(text) + 1);
    }
}

static void get_file(reader *r, const json_t *files, const char *name,
                     cf_checkpoint_file *file)
{
    const json_t *object = get_object(r, files, name);

    file->bytes = get_whole(r, object, "bytes");
    file->header_hash = get_hash(r, object, "header");
    file->tensors_hash = get_hash(r, object, "tensors");
}

static void get_state(reader *r, const json_t *object,
                      cf_checkpoint_state *state_p)
{
    const json_t *files;

    if (get_whole(r, object, "format") != CF_CHECKPOINT_FORMAT)
        blame(r, "it was written by another version");
    state_p->step = get_whole(r, object, "step");
    state_p->n_steps = get_whole(r, object, "n_steps");
    state_p->n_updates = get_whole(r, object, "n_updates");
    if (state_p->step == 0 || state_p->step > state_p->n_steps ||
        state_p->n_updates > state_p->step)
        blame(r, "its steps do not add up");
    state_p->model_hash = get_hash(r, object, "model");
    state_p->data_hash = get_hash(r, object, "data");
    state_p->chunk_size_tok = get_later_count(r, object, "chunk_size");
    get_options(r, object, state_p);
    get_ledger(r, object, &state_p->ledger);
    files = get_object(r, object, "files");
    get_file(r, files, "weights.safetensors", &state_p->weights);
    get_file(r, files, "moments.safetensors", &state_p->moments);
}

/* The text ends with the checksum of what stands before it, and nothing else. */
static bool checksum_agrees(const char *text, size_t n)
{
    char tail[sizeof(checksum_key) + HASH_DIGITS + sizeof("\"\n}\n")];
    size_t n_tail = sizeof(checksum_key) - 1 + HASH_DIGITS + strlen("\"\n}\n");

    if (n < n_tail)
        return false;
    (void)snprintf(tail, sizeof(tail), "%s%016" PRIx64 "\"\n}\n", checksum_key,
                   cf_hash_of(text, n - n_tail, 0));
    return memcmp(text + n - n_tail, tail, n_tail) == 0;
}

cf_status cf_checkpoint_state_parse(const char *text, size_t n,
                                    cf_checkpoint_state *state_p,
                                    const char **why_p)
{
    cf_checkpoint_state state = {0};
    reader r = {0};
    json_error_t error;
    json_t *object = NULL;

    if (n > CF_CHECKPOINT_STATE_BYTES_MAX || !checksum_agrees(text, n))
        blame(&r, "state.json is cut off or damaged");
    else
        object = json_loadb(text, n, JSON_REJECT_DUPLICATES, &error);
    if (object == NULL)
        blame(&r, "state.json is not valid JSON");
    else
        get_state(&r, object, &state);
    json_decref(object);
    if (r.why != NULL) {
        *why_p = r.why;
        return CF_MALFORMED;
    }
    *state_p = state;
    return CF_OK;
}
