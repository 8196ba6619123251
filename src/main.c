/* main.c - choose the command.  The only place that ends the program. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "src/commands.h"
#include "src/log.h"
#include "src/run.h"

/* A result that did not arrive is no result: a full disk shows only here. */
static int results_check(int code)
{
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout))
        return code;
    if (code != 0)
        return code;
    cf_log_error("cannot write to standard output: %s; make room, or write it "
                 "elsewhere",
                 strerror(errno != 0 ? errno : EIO));
    return cf_exit_code(CF_IO);
}

int main(int argc, char **argv)
{
    static int (*const commands[])(const cf_options *) = {
        [CF_COMMAND_TRAIN] = cf_command_train,
        [CF_COMMAND_EVAL] = cf_command_eval,
        [CF_COMMAND_VERIFY] = cf_command_verify,
        [CF_COMMAND_EXPORT] = cf_command_export,
        [CF_COMMAND_SIMULATE] = cf_command_simulate,
    };
    cf_options options;
    cf_options_outcome outcome;
    cf_status status = cf_options_open(argc, argv, &options, &outcome);
    int code = cf_exit_code(status);

    if (status != CF_OK || outcome == CF_OPTIONS_SHOWN)
        return results_check(code);
    code = commands[options.command](&options);
    cf_options_close(&options);
    return results_check(code);
}
