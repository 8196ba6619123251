/* options_table.h - one row an option: private to options*.c and its tests.
 *
 * The table drives flags, YAML keys, --help and the saved configuration.  A row
 * says where its value lies in cf_options, how it is written, which values are
 * allowed, and which commands have it.
 */
#ifndef CF_OPTIONS_TABLE_H
#define CF_OPTIONS_TABLE_H

#include "src/options.h"
#include "src/size.h"

typedef enum cf_option_kind {
    CF_OPTION_TEXT,     /* char * */
    CF_OPTION_TEXTS,    /* char **, with its count in count_field */
    CF_OPTION_FLAG,     /* bool */
    CF_OPTION_FLAG_OFF, /* bool that is false when the flag is given */
    CF_OPTION_U32,
    CF_OPTION_U64,
    CF_OPTION_REAL,   /* double, finite */
    CF_OPTION_CHOICE, /* an enum */
    CF_OPTION_CONFIG, /* these three have no field and stand on the */
    CF_OPTION_HELP,   /* command line only */
    CF_OPTION_VERSION
} cf_option_kind;

typedef struct cf_choice {
    const char *name; /* NULL ends a list */
    unsigned value;
    bool later; /* INTERFACE has it, this version does not */
} cf_choice;

typedef struct cf_option {
    const char *name;     /* as in --name; the YAML key has _ for - */
    const char *metavar;  /* of its value in --help; NULL: a flag */
    const char *help;     /* short: a line of --help has 80 columns */
    const char *initial;  /* default, as a user would write it; NULL: unset,
                             which is NULL, 0, false or, for a real, -1 */
    const char *fallback; /* what unset means, for --help; may be NULL */
    unsigned commands;    /* 1 << cf_command, ored */
    unsigned required;    /* by these commands */
    cf_option_kind kind;
    size_t field;       /* offset in cf_options */
    size_t count_field; /* of a list */
    cf_unit unit;       /* whole numbers: range min .. max */
    uint64_t min, max;
    double low, high; /* reals */
    bool above_low;   /* low itself is not allowed */
    bool below_high;  /* high itself is not allowed */
    const cf_choice *choices;
    const char *word; /* for 0, in a U32 that else may not be 0; NULL: none */
    unsigned word_commands; /* that take it */
    unsigned word_initial;  /* of them, those whose default it is */
    bool identity;          /* --resume refuses another value */
    bool once; /* of this start only: not in the saved configuration */
} cf_option;

/* In the order of --help and of the saved configuration. */
extern const cf_option cf_option_table[];
extern const size_t cf_option_count;

/* Not below cf_option_count. */
enum {
    CF_OPTIONS_MAX = 96
};

/* What stands before a word: --learning-rate, or learning_rate. */
typedef enum cf_spelling {
    CF_SPELLING_FLAG,
    CF_SPELLING_KEY
} cf_spelling;

/* An option of INTERFACE that this version does not have yet. */
typedef struct cf_later_option {
    const char *name;
    unsigned commands;
    const char *accepted; /* the one value that asks for nothing new, or NULL */
} cf_later_option;

/* What was given so far. */
typedef struct cf_options_given {
    bool options[CF_OPTIONS_MAX];
    bool later[CF_OPTIONS_MAX];
} cf_options_given;

/* A name as it was written, and where. */
typedef struct cf_option_word {
    const char *name;  /* in the spelling of the table, without -- */
    const char *where; /* with the name as written, for messages */
    cf_spelling spelling;
} cf_option_word;

/* The option that a command has under this name: exactly one of option_p and
 * later_p is set, the other NULL.  Errors, logged with the nearest known name:
 * CF_INVALID. */
CF_MUST_USE cf_status cf_option_find(cf_command command,
                                     const cf_option_word *word,
                                     const cf_option **option_p,
                                     const cf_later_option **later_p);

/* CF_OK when the value is the one that asks for nothing new, for the first time.
 * Else CF_INVALID, logged: not there yet, or given twice.  value may be NULL. */
CF_MUST_USE cf_status cf_option_refuse(const cf_later_option *later,
                                       const char *where, const char *value,
                                       cf_options_given *given);

/* argv[1] as a command.  Errors, logged: CF_INVALID. */
CF_MUST_USE cf_status cf_command_find(const char *name, cf_command *command_p);

/* ---- values (options_value.c) ---- */

/* Parse text and store it; a list grows by it.  where is for messages, NULL for
 * a default.  Errors, logged: CF_INVALID, CF_NO_MEMORY. */
CF_MUST_USE cf_status cf_option_set(cf_options *options,
                                    const cf_option *option, const char *where,
                                    const char *text);

/* Every field of every option to its default.  Errors, logged: CF_NO_MEMORY. */
CF_MUST_USE cf_status cf_option_set_defaults(cf_options *options);

/* The word that a command takes for 0 in this option; NULL: none. */
const char *cf_option_word_of(cf_command command, const cf_option *option);

bool cf_option_is_set(const cf_options *options, const cf_option *option);

/* Give back the text or texts that an option owns; none is left. */
void cf_option_free(cf_options *options, const cf_option *option);

/* The texts of a list; borrowed. */
char *const *cf_option_texts(const cf_options *options, const cf_option *option,
                             size_t *n_p);

/* A value that is set, other than a list, as cf_option_set reads it back. */
size_t cf_option_format(const cf_options *options, const cf_option *option,
                        char *buf, size_t size);

/* ---- where values come from ---- */

/* Options while they are put together: the command line first, then the file,
 * whose values are all checked, but kept only where the line has none. */
typedef struct cf_options_draft {
    cf_options *options;
    cf_options overridden; /* values of the file, dropped in the end */
    cf_options_given on_line;
    cf_options_given in_file;
} cf_options_draft;

/* Read a --config file into a draft (options_yaml.c).  Errors, logged with file
 * and line: CF_INVALID, CF_NO_MEMORY. */
CF_MUST_USE cf_status cf_options_read_file(const char *path,
                                           cf_options_draft *draft);

/* ---- --help (options_help.c) ---- */

void cf_help_print(FILE *file);
void cf_help_print_command(FILE *file, cf_command command);

/* ---- --completion (options_completion.c) ---- */

/* What a shell needs to complete commands, options and their values.  False:
 * there is no such shell here, and nothing was written. */
bool cf_completion_print(FILE *file, const char *shell);

#endif
