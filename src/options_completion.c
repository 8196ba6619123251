/* options_completion.c - --completion, from the table: what a shell completes.
 *
 * Names of options and choices hold letters, digits and - alone, and the help
 * has no quote, so that nothing needs quoting; a test looks after it.
 */
#include "src/options_table.h"

#include <string.h>

static bool takes_path(const cf_option *option)
{
    return option->metavar != NULL && (strcmp(option->metavar, "FILE") == 0 ||
                                       strcmp(option->metavar, "DIR") == 0);
}

static bool has(const cf_option *option, cf_command command)
{
    return (option->commands & 1U << command) != 0;
}

static void print_choices(FILE *file, const cf_option *option)
{
    const char *separator = "";

    for (const cf_choice *c = option->choices; c->name != NULL; c++) {
        if (c->later)
            continue;
        (void)fprintf(file, "%s%s", separator, c->name);
        separator = " ";
    }
}

static void print_commands(FILE *file)
{
    for (unsigned c = CF_COMMAND_TRAIN; c <= CF_COMMAND_REPORT; c++)
        (void)fprintf(file, "%s ", cf_command_name(c));
    (void)fputs("--help --version --completion", file);
}

/* ---- bash ---- */

/* The values of one option, in a case of the word before. */
static void bash_values(FILE *file, const cf_option *option)
{
    if (option->metavar == NULL)
        return;
    (void)fprintf(file, "    --%s)", option->name);
    if (option->choices != NULL) {
        (void)fputs("\n        mapfile -t COMPREPLY < <(compgen -W '", file);
        print_choices(file, option);
        (void)fputs("' -- \"$word\")\n        return", file);
    } else if (takes_path(option)) {
        (void)fprintf(file,
                      "\n        mapfile -t COMPREPLY < <(compgen -%c -- "
                      "\"$word\")\n        return",
                      strcmp(option->metavar, "DIR") == 0 ? 'd' : 'f');
    } else {
        (void)fputs(" return", file); /* a number: nothing to offer */
    }
    (void)fputs(" ;;\n", file);
}

static void bash_command(FILE *file, cf_command command)
{
    (void)fprintf(file, "    %s)\n        names='", cf_command_name(command));
    for (size_t i = 0; i < cf_option_count; i++)
        if (has(&cf_option_table[i], command))
            (void)fprintf(file, "--%s ", cf_option_table[i].name);
    (void)fputs("' ;;\n", file);
}

static void print_bash(FILE *file)
{
    (void)fputs("# bash completion of chunkflow " CF_VERSION
                ", made by chunkflow --completion bash\n"
                "_chunkflow() {\n"
                "    local word=${COMP_WORDS[COMP_CWORD]} names=\n"
                "    COMPREPLY=()\n"
                "    if [ \"$COMP_CWORD\" = 1 ]; then\n"
                "        mapfile -t COMPREPLY < <(compgen -W '",
                file);
    print_commands(file);
    (void)fputs("' -- \"$word\")\n"
                "        return\n"
                "    fi\n"
                "    case ${COMP_WORDS[COMP_CWORD - 1]} in\n"
                "    --completion)\n"
                "        mapfile -t COMPREPLY < <(compgen -W 'bash zsh' -- "
                "\"$word\")\n"
                "        return ;;\n",
                file);
    for (size_t i = 0; i < cf_option_count; i++)
        bash_values(file, &cf_option_table[i]);
    (void)fputs("    esac\n    case ${COMP_WORDS[1]} in\n", file);
    for (unsigned c = CF_COMMAND_TRAIN; c <= CF_COMMAND_REPORT; c++)
        bash_command(file, c);
    (void)fputs("    esac\n"
                "    case ${COMP_WORDS[1]}$word in\n"
                "    report[!-]*) mapfile -t COMPREPLY < <(compgen -d -- "
                "\"$word\") ;;\n"
                "    *) mapfile -t COMPREPLY < <(compgen -W \"$names\" -- "
                "\"$word\") ;;\n"
                "    esac\n"
                "}\n"
                "complete -o filenames -F _chunkflow chunkflow\n",
                file);
}

/* ---- zsh ---- */

/* '--keep=[training states that stay]:N:' and the like; a list may be given
 * several times. */
static void zsh_option(FILE *file, const cf_option *option)
{
    (void)fprintf(file, "            '%s--%s%s[%s]",
                  option->kind == CF_OPTION_TEXTS ? "*" : "", option->name,
                  option->metavar != NULL ? "=" : "", option->help);
    if (option->metavar != NULL)
        (void)fprintf(file, ":%s:", option->metavar);
    if (option->choices != NULL) {
        (void)fputc('(', file);
        print_choices(file, option);
        (void)fputc(')', file);
    } else if (takes_path(option)) {
        (void)fputs(strcmp(option->metavar, "DIR") == 0 ? "_directories"
                                                        : "_files",
                    file);
    }
    (void)fputs("' \\\n", file);
}

static void print_zsh(FILE *file)
{
    (void)fputs("#compdef chunkflow\n"
                "# zsh completion of chunkflow " CF_VERSION
                ", made by chunkflow --completion zsh\n"
                "_chunkflow() {\n"
                "    if (( CURRENT == 2 )); then\n"
                "        compadd -- ",
                file);
    print_commands(file);
    (void)fputs("\n        return\n"
                "    fi\n"
                "    local command=$words[2]\n"
                "    shift words\n"
                "    (( CURRENT-- ))\n"
                "    case $command in\n"
                "    --completion) compadd bash zsh ;;\n",
                file);
    for (unsigned c = CF_COMMAND_TRAIN; c <= CF_COMMAND_REPORT; c++) {
        (void)fprintf(file, "    %s)\n        _arguments \\\n",
                      cf_command_name(c));
        for (size_t i = 0; i < cf_option_count; i++)
            if (has(&cf_option_table[i], c))
                zsh_option(file, &cf_option_table[i]);
        if (c == CF_COMMAND_REPORT)
            (void)fputs("            ':RUN:_directories' \\\n", file);
        (void)fputs("        ;;\n", file);
    }
    (void)fputs("    esac\n}\n_chunkflow \"$@\"\n", file);
}

bool cf_completion_print(FILE *file, const char *shell)
{
    if (strcmp(shell, "bash") == 0)
        print_bash(file);
    else if (strcmp(shell, "zsh") == 0)
        print_zsh(file);
    else
        return false;
    return true;
}
