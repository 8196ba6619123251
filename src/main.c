/* main.c - choose the command.  The only place that ends the program. */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "src/adapter_options.h"
#include "src/comm.h"
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

static int command_run(const cf_options *options, cf_comm *comm)
{
    switch (options->command) {
    case CF_COMMAND_TRAIN:
        return cf_command_train(options, comm);
    case CF_COMMAND_EVAL:
        return cf_command_eval(options);
    case CF_COMMAND_VERIFY:
        return cf_command_verify(options);
    case CF_COMMAND_GENERATE:
        return cf_command_generate(options);
    case CF_COMMAND_EXPORT:
        return cf_command_export(options, comm);
    case CF_COMMAND_MERGE:
        return cf_command_merge(options, comm);
    case CF_COMMAND_SIMULATE:
        return cf_command_simulate(options);
    case CF_COMMAND_PLAN:
        return cf_command_plan(options, comm);
    case CF_COMMAND_REPORT:
        return cf_command_report(options);
    }
    return cf_exit_code(CF_INVALID);
}

/* What the ranks are about to do must be one thing. */
static cf_status ranks_check(const cf_options *options,
                             cf_options_outcome outcome, cf_comm *comm)
{
    const bool runs = outcome == CF_OPTIONS_RUN;
    cf_status status = cf_comm_agree_text(
        comm, "command", runs ? cf_command_name(options->command) : "help");

    if (status != CF_OK || !runs || cf_comm_size(comm) == 1 ||
        options->command == CF_COMMAND_TRAIN)
        return status;
    cf_log_error("%s runs on one rank, and mpirun started %u: start it without "
                 "mpirun",
                 cf_command_name(options->command), cf_comm_size(comm));
    return cf_comm_agree(comm, CF_INVALID);
}

static int run(int argc, char **argv, cf_comm *comm)
{
    cf_options options;
    cf_options_outcome outcome = CF_OPTIONS_SHOWN;
    cf_status status = cf_options_open(argc, argv, &options, &outcome);
    const bool is_open = status == CF_OK && outcome == CF_OPTIONS_RUN;
    int code;

    status = cf_comm_agree(comm, status);
    if (status == CF_OK)
        status = ranks_check(&options, outcome, comm);
    if (status == CF_OK && is_open)
        status = cf_comm_agree(comm, cf_adapter_options_resolve(&options));
    code = cf_exit_code(status);
    if (status == CF_OK && is_open)
        code = command_run(&options, comm);
    if (is_open)
        cf_options_close(&options);
    return results_check(code);
}

int main(int argc, char **argv)
{
    cf_comm *comm = NULL;
    cf_status status = cf_comm_open(&comm);
    int code;

    if (status != CF_OK)
        return cf_exit_code(status);
    /* Rank 0 alone prints. */
    if (cf_comm_rank(comm) > 0 && freopen("/dev/null", "w", stdout) == NULL)
        cf_log_warn("cannot open /dev/null: every rank prints its results");
    code = run(argc, argv, comm);
    cf_comm_close(comm, code);
    return code;
}
