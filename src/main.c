/* main.c - choose the command.  The only place that ends the program. */
#include <stdlib.h>

#include "src/commands.h"
#include "src/run.h"

int main(int argc, char **argv)
{
    static int (*const commands[])(const cf_options *) = {
        [CF_COMMAND_TRAIN] = cf_command_train,
        [CF_COMMAND_EVAL] = cf_command_eval,
        [CF_COMMAND_VERIFY] = cf_command_verify,
        [CF_COMMAND_EXPORT] = cf_command_export,
    };
    cf_options options;
    cf_options_outcome outcome;
    cf_status status = cf_options_open(argc, argv, &options, &outcome);
    int code = cf_exit_code(status);

    if (status != CF_OK || outcome == CF_OPTIONS_SHOWN)
        return code;
    code = commands[options.command](&options);
    cf_options_close(&options);
    return code;
}
