/* commands.h - what main chooses from.  Each returns the exit code of INTERFACE
 * section 5, with every error already logged. */
#ifndef CF_COMMANDS_H
#define CF_COMMANDS_H

#include "src/comm.h"
#include "src/options.h"

/* All ranks call this one; the others run on one rank. */
int cf_command_train(const cf_options *options, cf_comm *comm);
int cf_command_eval(const cf_options *options);
int cf_command_generate(const cf_options *options);
int cf_command_verify(const cf_options *options);
int cf_command_export(const cf_options *options, cf_comm *comm);
int cf_command_merge(const cf_options *options, cf_comm *comm);
int cf_command_simulate(const cf_options *options);
int cf_command_plan(const cf_options *options, cf_comm *comm);
int cf_command_report(const cf_options *options);

#endif
