/* run.h - what train, eval and verify begin with: kernels, model, data, memory. */
#ifndef CF_RUN_H
#define CF_RUN_H

#include "src/arena.h"
#include "src/dataset.h"
#include "src/engine.h"
#include "src/model.h"
#include "src/options.h"
#include "src/step_plan.h"

typedef struct cf_run {
    const cf_options *options; /* borrowed */
    cf_kernels kernels;
    cf_model model;
    cf_dataset *dataset;
    cf_arena arena; /* open once cf_run_place has placed */
} cf_run;

/* Threads, backend, model table, data set; no weights.  Errors, logged. */
CF_MUST_USE cf_status cf_run_open(const cf_options *options, cf_run *run);
void cf_run_close(cf_run *run);

/* Carves everything of a command out of an arena: once dry, once for real. */
typedef void (*cf_run_carver)(void *command, cf_arena *arena);

/* Size a command's memory with a dry carve and hold it against the budget.
 * Errors, logged: CF_NO_MEMORY, with what would help. */
CF_MUST_USE cf_status cf_run_size(const cf_run *run, cf_run_carver carve,
                                  void *command, const cf_step_plan_need *need,
                                  cf_arena *sizes);

/* Open an arena of the size found and carve it.  Errors, logged. */
CF_MUST_USE cf_status cf_run_place(cf_run *run, const cf_arena *sizes,
                                   cf_run_carver carve, void *command);

/* The exit code of INTERFACE section 5 for a status. */
int cf_exit_code(cf_status status);

#endif
