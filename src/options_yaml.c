/* options_yaml.c - the --config file in, the resolved configuration out.
 *
 * The file is one mapping of option names, - written _, to scalars, or to lists
 * of them where an option may be given more than once.  It is read event by
 * event, so that aliases, which could blow a small file up, never are followed.
 */
#include "src/options_table.h"

#include "src/log.h"

#include <errno.h>
#include <string.h>
#include <yaml.h>

/* ---- reading ---- */

typedef struct yaml_reader {
    yaml_parser_t parser;
    yaml_event_t event; /* the current one; owned */
    FILE *file;
    const char *path;
    cf_options_draft *draft;
} yaml_reader;

static size_t line_of(const yaml_mark_t *mark)
{
    return mark->line + 1;
}

static cf_status complain(const yaml_reader *reader, const char *problem)
{
    cf_log_error("%s:%zu: %s", reader->path, line_of(&reader->event.start_mark),
                 problem);
    return CF_INVALID;
}

static cf_status next(yaml_reader *reader)
{
    const yaml_parser_t *parser = &reader->parser;

    yaml_event_delete(&reader->event);
    errno = 0;
    if (yaml_parser_parse(&reader->parser, &reader->event))
        return CF_OK;
    if (ferror(reader->file))
        cf_log_error("%s: cannot be read: %s", reader->path,
                     strerror(errno != 0 ? errno : EIO));
    else if (parser->error == YAML_MEMORY_ERROR)
        cf_log_error("%s: out of memory", reader->path);
    else
        cf_log_error("%s:%zu: not YAML: %s", reader->path,
                     line_of(&parser->problem_mark),
                     parser->problem != NULL ? parser->problem : "malformed");
    return parser->error == YAML_MEMORY_ERROR ? CF_NO_MEMORY : CF_INVALID;
}

/* The current event's text, or NULL: not a scalar, or with a NUL inside. */
static const char *scalar(const yaml_reader *reader)
{
    const char *text;

    if (reader->event.type != YAML_SCALAR_EVENT)
        return NULL;
    text = (const char *)reader->event.data.scalar.value;
    return strlen(text) == reader->event.data.scalar.length ? text : NULL;
}

/* A value that the command line has too is checked all the same. */
static cf_status set(const yaml_reader *reader, const cf_option *option,
                     const char *where)
{
    cf_options_draft *draft = reader->draft;
    bool overridden = draft->on_line.options[option - cf_option_table];
    const char *text = scalar(reader);

    if (text == NULL) {
        cf_log_error("%s: its value must be a single word or number%s", where,
                     option->kind == CF_OPTION_TEXTS ? ", or a list of them"
                                                     : "");
        return CF_INVALID;
    }
    return cf_option_set(overridden ? &draft->overridden : draft->options,
                         option, where, text);
}

static cf_status read_list(yaml_reader *reader, const cf_option *option,
                           const char *where)
{
    cf_status status;

    while ((status = next(reader)) == CF_OK &&
           reader->event.type != YAML_SEQUENCE_END_EVENT) {
        status = set(reader, option, where);
        if (status != CF_OK)
            break;
    }
    return status;
}

static cf_status read_value(yaml_reader *reader, const cf_option *option,
                            const cf_later_option *later, const char *where)
{
    const char *text = scalar(reader);
    cf_options_given *given = &reader->draft->in_file;

    if (later != NULL)
        return cf_option_refuse(later, where, text, given);
    if (given->options[option - cf_option_table]) {
        cf_log_error("%s: is given twice; leave one out", where);
        return CF_INVALID;
    }
    given->options[option - cf_option_table] = true;
    if (option->kind == CF_OPTION_TEXTS &&
        reader->event.type == YAML_SEQUENCE_START_EVENT)
        return read_list(reader, option, where);
    return set(reader, option, where);
}

/* The key is the current event. */
static cf_status read_entry(yaml_reader *reader)
{
    const cf_option *option;
    const cf_later_option *later;
    const char *key = scalar(reader);
    char name[64];
    char where[1024];
    cf_option_word word = {name, where, CF_SPELLING_KEY};
    cf_status status;

    if (key == NULL)
        return complain(reader, "a key must be the name of an option");
    (void)snprintf(name, sizeof(name), "%s", key);
    (void)snprintf(where, sizeof(where), "%s:%zu: %s", reader->path,
                   line_of(&reader->event.start_mark), name);
    for (char *c = name; *c != '\0'; c++) {
        /* chunk-size is no key: ? is in no name, so it is not found. */
        if (*c == '-')
            *c = '?';
        else if (*c == '_')
            *c = '-';
    }
    status =
        cf_option_find(reader->draft->options->command, &word, &option, &later);
    if (status == CF_OK)
        status = next(reader);
    if (status == CF_OK)
        status = read_value(reader, option, later, where);
    return status;
}

static cf_status read_mapping(yaml_reader *reader)
{
    cf_status status;

    if (reader->event.type != YAML_MAPPING_START_EVENT)
        return complain(reader, "must be a mapping, as in chunk_size: 2048");
    while ((status = next(reader)) == CF_OK &&
           reader->event.type != YAML_MAPPING_END_EVENT) {
        status = read_entry(reader);
        if (status != CF_OK)
            break;
    }
    return status;
}

/* An empty file has no document, and gives nothing. */
static cf_status read_document(yaml_reader *reader)
{
    cf_status status = next(reader); /* stream start */

    if (status == CF_OK)
        status = next(reader);
    if (status != CF_OK || reader->event.type == YAML_STREAM_END_EVENT)
        return status;
    status = next(reader);
    if (status == CF_OK)
        status = read_mapping(reader);
    if (status == CF_OK)
        status = next(reader); /* document end */
    if (status == CF_OK)
        status = next(reader);
    if (status == CF_OK && reader->event.type != YAML_STREAM_END_EVENT)
        return complain(reader, "a second document; only one is read");
    return status;
}

cf_status cf_options_read_file(const char *path, cf_options_draft *draft)
{
    yaml_reader reader = {.path = path, .draft = draft};
    cf_status status;

    reader.file = fopen(path, "re");
    if (reader.file == NULL) {
        cf_log_error("--config: %s: %s", path, strerror(errno));
        return CF_INVALID;
    }
    if (!yaml_parser_initialize(&reader.parser)) {
        cf_log_error("%s: out of memory", path);
        status = CF_NO_MEMORY;
        goto close_file;
    }
    yaml_parser_set_input_file(&reader.parser, reader.file);
    status = read_document(&reader);
    yaml_event_delete(&reader.event);
    yaml_parser_delete(&reader.parser);
close_file:
    (void)fclose(reader.file);
    return status;
}

/* ---- writing ---- */

static bool emit(yaml_emitter_t *emitter, yaml_event_t *event, int made)
{
    return made && yaml_emitter_emit(emitter, event);
}

static bool emit_scalar(yaml_emitter_t *emitter, const char *text,
                        yaml_scalar_style_t style)
{
    yaml_event_t event;

    return emit(emitter, &event,
                yaml_scalar_event_initialize(&event, NULL, NULL,
                                             (const yaml_char_t *)text,
                                             (int)strlen(text), 1, 1, style));
}

static bool emit_key(yaml_emitter_t *emitter, const cf_option *option)
{
    char key[64];

    (void)snprintf(key, sizeof(key), "%s", option->name);
    for (char *c = key; *c != '\0'; c++) {
        if (*c == '-')
            *c = '_';
    }
    return emit_scalar(emitter, key, YAML_PLAIN_SCALAR_STYLE);
}

static bool emit_list(yaml_emitter_t *emitter, char *const *texts, size_t n)
{
    yaml_event_t event;
    bool ok = emit(emitter, &event,
                   yaml_sequence_start_event_initialize(
                       &event, NULL, NULL, 1, YAML_BLOCK_SEQUENCE_STYLE));

    for (size_t i = 0; ok && i < n; i++)
        ok = emit_scalar(emitter, texts[i], YAML_SINGLE_QUOTED_SCALAR_STYLE);
    return ok &&
           emit(emitter, &event, yaml_sequence_end_event_initialize(&event));
}

static bool emit_value(yaml_emitter_t *emitter, const cf_options *options,
                       const cf_option *option)
{
    char *const *texts;
    size_t n_texts;
    char text[64];

    switch (option->kind) {
    case CF_OPTION_TEXT:
        return emit_scalar(
            emitter,
            *(char *const *)(const void *)((const char *)options +
                                           option->field),
            YAML_SINGLE_QUOTED_SCALAR_STYLE);
    case CF_OPTION_TEXTS:
        texts = cf_option_texts(options, option, &n_texts);
        return emit_list(emitter, texts, n_texts);
    default:
        (void)cf_option_format(options, option, text, sizeof(text));
        return emit_scalar(emitter, text, YAML_PLAIN_SCALAR_STYLE);
    }
}

static bool emit_options(yaml_emitter_t *emitter, const cf_options *options)
{
    yaml_event_t event;
    bool ok =
        emit(emitter, &event,
             yaml_stream_start_event_initialize(&event, YAML_UTF8_ENCODING)) &&
        emit(emitter, &event,
             yaml_document_start_event_initialize(&event, NULL, NULL, NULL,
                                                  1)) &&
        emit(emitter, &event,
             yaml_mapping_start_event_initialize(&event, NULL, NULL, 1,
                                                 YAML_BLOCK_MAPPING_STYLE));

    for (size_t i = 0; ok && i < cf_option_count; i++) {
        const cf_option *option = &cf_option_table[i];

        if ((option->commands & 1U << options->command) != 0 && !option->once &&
            cf_option_is_set(options, option))
            ok = emit_key(emitter, option) &&
                 emit_value(emitter, options, option);
    }
    return ok &&
           emit(emitter, &event, yaml_mapping_end_event_initialize(&event)) &&
           emit(emitter, &event,
                yaml_document_end_event_initialize(&event, 1)) &&
           emit(emitter, &event, yaml_stream_end_event_initialize(&event));
}

cf_status cf_options_write(const cf_options *options, FILE *file)
{
    yaml_emitter_t emitter;
    bool ok;

    (void)fprintf(file,
                  "# chunkflow " CF_VERSION
                  ": chunkflow %s --config FILE repeats this\n",
                  cf_command_name(options->command));
    if (!yaml_emitter_initialize(&emitter))
        return CF_IO;
    yaml_emitter_set_output_file(&emitter, file);
    yaml_emitter_set_unicode(&emitter, 1);
    yaml_emitter_set_width(&emitter, -1); /* never fold a path */
    ok = emit_options(&emitter, options);
    yaml_emitter_delete(&emitter);
    return ok && fflush(file) == 0 && !ferror(file) ? CF_OK : CF_IO;
}
