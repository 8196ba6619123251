/* options.c - the command line, and how it and the file become options. */
#include "src/options_table.h"

#include "src/log.h"

#include <stdlib.h>
#include <string.h>

/* Words of the command line, from the left. */
typedef struct line_words {
    char **words;
    int n_words;
    int next;
    const char *config; /* of --config, or NULL */
} line_words;

/* One --name, --name value or --name=value. */
typedef struct given_option {
    char name[64];     /* as written, cut; without -- */
    char where[72];    /* --name */
    const char *value; /* after the =, or NULL */
} given_option;

static cf_status split(const char *word, given_option *argument_p)
{
    const char *equals;
    size_t n;

    if (strcmp(word, "-h") == 0)
        word = "--help";
    equals = strchr(word, '=');
    n = equals != NULL ? (size_t)(equals - word) : strlen(word);
    if (strncmp(word, "--", 2) != 0 || n <= 2) {
        cf_log_error("%.100s: not an option; options begin with -- and values "
                     "follow their option",
                     word);
        return CF_INVALID;
    }
    n -= 2;
    if (n >= sizeof(argument_p->name))
        n = sizeof(argument_p->name) - 1;
    memcpy(argument_p->name, word + 2, n);
    argument_p->name[n] = '\0';
    (void)snprintf(argument_p->where, sizeof(argument_p->where), "--%s",
                   argument_p->name);
    argument_p->value = equals != NULL ? equals + 1 : NULL;
    return CF_OK;
}

/* `report RUN` is `report --output=RUN`. */
static bool is_run(const char *word, cf_command command,
                   given_option *argument_p)
{
    if (command != CF_COMMAND_REPORT || word[0] == '-')
        return false;
    *argument_p =
        (given_option){.name = "output", .where = "RUN", .value = word};
    return true;
}

/* The value behind the =, or else the next word.  NULL, logged: there is none.
 * A value that begins with -- has to be written behind a =. */
static const char *take_value(line_words *line, const given_option *argument,
                              const char *metavar)
{
    if (argument->value != NULL)
        return argument->value;
    if (line->next < line->n_words &&
        strncmp(line->words[line->next], "--", 2) != 0)
        return line->words[line->next++];
    cf_log_error("%s: needs a value, as in %s %s", argument->where,
                 argument->where, metavar);
    return NULL;
}

static cf_status refuse_twice(cf_options_draft *draft, const cf_option *option,
                              const given_option *argument)
{
    bool *given = &draft->on_line.options[option - cf_option_table];

    if (*given && option->kind != CF_OPTION_TEXTS) {
        cf_log_error("%s: is given twice; leave one out", argument->where);
        return CF_INVALID;
    }
    *given = true;
    return CF_OK;
}

/* An option with a value or a flag.  A flag may have one too, --json=false, to
 * win over a file. */
static cf_status take_option(line_words *line, const cf_option *option,
                             const given_option *argument,
                             cf_options_draft *draft)
{
    const char *value = argument->value != NULL ? argument->value : "true";
    cf_status status = refuse_twice(draft, option, argument);

    if (status != CF_OK)
        return status;
    if (option->metavar != NULL) {
        value = take_value(line, argument, option->metavar);
        if (value == NULL)
            return CF_INVALID;
    }
    if (option->kind == CF_OPTION_CONFIG) {
        line->config = value;
        return CF_OK;
    }
    return cf_option_set(draft->options, option, argument->where, value);
}

static cf_status take_later(line_words *line, const cf_later_option *later,
                            const given_option *argument,
                            cf_options_draft *draft)
{
    const char *value = argument->value;

    if (later->accepted != NULL) {
        value = take_value(line, argument, later->accepted);
        if (value == NULL)
            return CF_INVALID;
    }
    return cf_option_refuse(later, argument->where, value, &draft->on_line);
}

static cf_status read_line(line_words *line, cf_options_draft *draft,
                           cf_options_outcome *outcome_p)
{
    const cf_command command = draft->options->command;
    cf_status status = CF_OK;

    while (status == CF_OK && line->next < line->n_words) {
        const cf_option *option;
        const cf_later_option *later;
        given_option argument;
        cf_option_word word = {argument.name, argument.where, CF_SPELLING_FLAG};

        const char *text = line->words[line->next++];

        if (!is_run(text, command, &argument))
            status = split(text, &argument);
        if (status == CF_OK)
            status = cf_option_find(command, &word, &option, &later);
        if (status != CF_OK)
            return status;
        if (later != NULL) {
            status = take_later(line, later, &argument, draft);
        } else if (option->kind == CF_OPTION_HELP) {
            cf_help_print_command(stdout, command);
            *outcome_p = CF_OPTIONS_SHOWN;
            return CF_OK;
        } else if (option->kind == CF_OPTION_VERSION) {
            (void)puts("chunkflow " CF_VERSION);
            *outcome_p = CF_OPTIONS_SHOWN;
            return CF_OK;
        } else {
            status = take_option(line, option, &argument, draft);
        }
    }
    return status;
}

/* Unlike other defaults, this one depends on what else was asked for. */
static void resolve_batch(cf_options *options)
{
    if (options->global_batch == 0 && options->tokens_per_batch == 0)
        options->global_batch = 32;
}

static cf_status check_required(const cf_options *options)
{
    const unsigned bit = 1U << options->command;

    for (size_t i = 0; i < cf_option_count; i++) {
        const cf_option *option = &cf_option_table[i];

        if ((option->required & bit) != 0 &&
            !cf_option_is_set(options, option)) {
            cf_log_error("%s needs --%s %s; chunkflow %s --help says more",
                         cf_command_name(options->command), option->name,
                         option->metavar, cf_command_name(options->command));
            return CF_INVALID;
        }
    }
    return CF_OK;
}

/* Options that each are good, but not beside the other. */
static cf_status check_together(const cf_options *options)
{
    if (options->resume && options->overwrite)
        cf_log_error("--resume and --overwrite: the one keeps what the other "
                     "removes; choose one");
    else if (options->keep_attention && options->schedule == CF_SCHEDULE_PAPER)
        cf_log_error(
            "--keep-attention and --schedule paper: what is kept stays "
            "where a chunk is recomputed on the spot; choose another "
            "schedule");
    else if (options->kv_memory > 0 && options->kv_dir == NULL)
        cf_log_error(
            "--kv-memory needs --kv-dir: what is not in memory needs a "
            "folder to be in");
    else
        return CF_OK;
    return CF_INVALID;
}

/* True when the first word asks for something that was printed. */
static bool show(const char *word)
{
    if (strcmp(word, "--version") == 0)
        (void)puts("chunkflow " CF_VERSION);
    else if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0)
        cf_help_print(stdout);
    else
        return false;
    return true;
}

/* --completion SHELL. */
static cf_status show_completion(const char *shell)
{
    if (shell != NULL && cf_completion_print(stdout, shell))
        return CF_OK;
    cf_log_error("--completion: needs the name of a shell, bash or zsh");
    return CF_INVALID;
}

cf_status cf_options_open(int argc, char **argv, cf_options *options_p,
                          cf_options_outcome *outcome_p)
{
    cf_options options = {0};
    cf_options_draft draft = {.options = &options};
    cf_options_outcome outcome = CF_OPTIONS_RUN;
    line_words line = {.words = argv, .n_words = argc, .next = 2};
    cf_status status;

    if (argc < 2) {
        cf_log_error("no command; chunkflow --help lists them");
        return CF_INVALID;
    }
    if (show(argv[1])) {
        *options_p = options;
        *outcome_p = CF_OPTIONS_SHOWN;
        return CF_OK;
    }
    if (strcmp(argv[1], "--completion") == 0) {
        *options_p = options;
        *outcome_p = CF_OPTIONS_SHOWN;
        return show_completion(argc > 2 ? argv[2] : NULL);
    }
    status = cf_command_find(argv[1], &options.command);
    draft.overridden.command = options.command;
    if (status == CF_OK)
        status = cf_option_set_defaults(&options);
    if (status == CF_OK)
        status = read_line(&line, &draft, &outcome);
    if (status == CF_OK && outcome == CF_OPTIONS_RUN && line.config != NULL)
        status = cf_options_read_file(line.config, &draft);
    if (status == CF_OK && outcome == CF_OPTIONS_RUN)
        status = check_required(&options);
    resolve_batch(&options);
    if (status == CF_OK)
        status = check_together(&options);
    cf_options_close(&draft.overridden);
    if (status != CF_OK) {
        cf_options_close(&options);
        return status;
    }
    *options_p = options;
    *outcome_p = outcome;
    return CF_OK;
}

void cf_options_close(cf_options *options)
{
    if (options == NULL)
        return;
    for (size_t i = 0; i < cf_option_count; i++)
        cf_option_free(options, &cf_option_table[i]);
    *options = (cf_options){0};
}
