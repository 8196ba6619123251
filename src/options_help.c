/* options_help.c - --help, from the table: one screen a command. */
#include "src/options_table.h"

#include <string.h>

enum {
    HELP_COLUMN = 27,
    HELP_WIDTH = 80
};

static const char *command_help(cf_command command)
{
    switch (command) {
    case CF_COMMAND_TRAIN:
        return "fine-tune a model, chunk by chunk";
    case CF_COMMAND_EVAL:
        return "loss and perplexity, per length bucket, on the chunk path";
    case CF_COMMAND_VERIFY:
        return "prove chunked == unsplit on your own model and data";
    case CF_COMMAND_GENERATE:
        return "what a model says to a prompt, token by token";
    case CF_COMMAND_EXPORT:
        return "write a Hugging Face folder from a training state";
    case CF_COMMAND_MERGE:
        return "write a model folder with an adapter in its weights";
    case CF_COMMAND_SIMULATE:
        return "schedule a batch without a model: bubbles, peaks, timeline";
    case CF_COMMAND_PLAN:
        return "choose ChunkSize and K for a model, data and memory";
    case CF_COMMAND_REPORT:
        return "a run as one HTML page; DIR may stand alone, as in report RUN";
    }
    return "";
}

void cf_help_print(FILE *file)
{
    (void)fputs("usage: chunkflow COMMAND [options]\n\n"
                "Chunk-centric long-context fine-tuning.\n\n",
                file);
    for (unsigned command = CF_COMMAND_TRAIN; command <= CF_COMMAND_REPORT;
         command++)
        (void)fprintf(file, "  %-8s %s\n", cf_command_name(command),
                      command_help(command));
    (void)fputs("\nchunkflow COMMAND --help lists the options of a command, "
                "chunkflow --version\nprints the version.\n",
                file);
}

/* The help of an option, with its choices, or its word. */
static void format_help(const cf_option *option, unsigned bit, char *buf,
                        size_t size)
{
    const char *separator = ": ";
    size_t n = (size_t)snprintf(buf, size, "%s", option->help);

    if ((option->word_commands & bit) != 0)
        (void)snprintf(buf + n, size - n, ", or %s", option->word);

    if (option->choices == NULL)
        return;
    for (const cf_choice *c = option->choices; c->name != NULL; c++) {
        if (c->later || n >= size)
            continue;
        n += (size_t)snprintf(buf + n, size - n, "%s%s", separator, c->name);
        separator = ", ";
    }
}

/* What stands behind it in brackets. */
static void format_default(const cf_option *option, unsigned bit, char *buf,
                           size_t size)
{
    const char *text = option->initial;

    if ((option->required & bit) != 0)
        text = "required";
    else if ((option->word_initial & bit) != 0)
        text = option->word;
    else if (text == NULL)
        text = option->fallback;
    if (text == NULL)
        buf[0] = '\0';
    else
        (void)snprintf(buf, size, " [%s]", text);
}

/* A piece of text behind `column` characters, on a line of its own when it does
 * not fit; returns the new column. */
static size_t print_piece(FILE *file, const char *piece, size_t n,
                          size_t column)
{
    if (column + n > HELP_WIDTH) {
        (void)fprintf(file, "\n%*s", HELP_COLUMN, "");
        column = HELP_COLUMN;
        piece++; /* its blank */
        n--;
    }
    (void)fprintf(file, "%.*s", (int)n, piece);
    return column + n;
}

static void print_option(FILE *file, const cf_option *option, unsigned bit)
{
    char help[256], initial[64];
    size_t column = HELP_COLUMN;
    int width = fprintf(file, "  --%s%s%s", option->name,
                        option->metavar != NULL ? " " : "",
                        option->metavar != NULL ? option->metavar : "");

    (void)fprintf(file, "%*s", width < HELP_COLUMN ? HELP_COLUMN - width : 1,
                  "");
    format_help(option, bit, help, sizeof(help));
    format_default(option, bit, initial, sizeof(initial));
    for (const char *word = help; *word != '\0';) {
        size_t n = 1 + strcspn(word + 1, " "); /* with the blank before it */

        column = print_piece(file, word, n, column);
        word += n;
    }
    (void)print_piece(file, initial, strlen(initial), column);
    (void)fputc('\n', file);
}

void cf_help_print_command(FILE *file, cf_command command)
{
    const unsigned bit = 1U << command;

    (void)fprintf(file, "usage: chunkflow %s", cf_command_name(command));
    for (size_t i = 0; i < cf_option_count; i++) {
        if ((cf_option_table[i].required & bit) != 0)
            (void)fprintf(file, " --%s %s", cf_option_table[i].name,
                          cf_option_table[i].metavar);
    }
    (void)fprintf(file, " [options]\n%s\n\n", command_help(command));
    for (size_t i = 0; i < cf_option_count; i++) {
        if ((cf_option_table[i].commands & bit) != 0)
            print_option(file, &cf_option_table[i], bit);
    }
}
