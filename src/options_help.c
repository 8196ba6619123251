/* options_help.c - --help, from the table: one screen a command. */
#include "src/options_table.h"

#include <string.h>

enum {
    HELP_COLUMN = 27
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
    case CF_COMMAND_EXPORT:
        return "write a Hugging Face folder from a training state";
    }
    return "";
}

void cf_help_print(FILE *file)
{
    (void)fputs("usage: chunkflow COMMAND [options]\n\n"
                "Chunk-centric long-context fine-tuning.\n\n",
                file);
    for (unsigned command = CF_COMMAND_TRAIN; command <= CF_COMMAND_EXPORT;
         command++)
        (void)fprintf(file, "  %-8s %s\n", cf_command_name(command),
                      command_help(command));
    (void)fputs("\nchunkflow COMMAND --help lists the options of a command, "
                "chunkflow --version\nprints the version.\n",
                file);
}

static void print_option(FILE *file, const cf_option *option, unsigned bit)
{
    int width = fprintf(file, "  --%s%s%s", option->name,
                        option->metavar != NULL ? " " : "",
                        option->metavar != NULL ? option->metavar : "");

    (void)fprintf(file, "%*s%s", width < HELP_COLUMN ? HELP_COLUMN - width : 1,
                  "", option->help);
    if (option->choices != NULL) {
        const char *separator = ": ";

        for (const cf_choice *c = option->choices; c->name != NULL; c++) {
            if (c->later)
                continue;
            (void)fprintf(file, "%s%s", separator, c->name);
            separator = ", ";
        }
    }
    if ((option->required & bit) != 0)
        (void)fputs(" [required]", file);
    else if (option->initial != NULL)
        (void)fprintf(file, " [%s]", option->initial);
    else if (option->fallback != NULL)
        (void)fprintf(file, " [%s]", option->fallback);
    (void)fputs("\n", file);
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
