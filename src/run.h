/* run.h - what train, eval, verify and generate begin with: kernels, model, data,
 * memory. */
#ifndef CF_RUN_H
#define CF_RUN_H

#include "src/arena.h"
#include "src/comm.h"
#include "src/dataset.h"
#include "src/engine.h"
#include "src/grid.h"
#include "src/model.h"
#include "src/options.h"
#include "src/step_plan.h"

typedef struct cf_run {
    const cf_options *options; /* borrowed */
    cf_comm *comm;             /* borrowed; NULL: a command of one rank */
    cf_grid grid;
    cf_grid own_grid; /* grid, but for a look at other stages */
    cf_stage own_stage;
    cf_kernels kernels;
    cf_model model;
    cf_dataset *dataset;
    cf_arena arena; /* open once cf_run_place has placed */
} cf_run;

/* Threads, backend, data set (NULL for a command without --data), and the model
 * table of this rank's stage; no weights.  Errors, logged. */
CF_MUST_USE cf_status cf_run_open(const cf_options *options, cf_comm *comm,
                                  cf_run *run);
void cf_run_close(cf_run *run); /* after a failed open too */

/* After a look at other stages: the grid and the part of the model that this rank
 * has. */
void cf_run_retake_part(cf_run *run);

/* The layers of all stages, as in "0-7, 8-15".  Returns buf. */
const char *cf_run_stages_format(const cf_run *run, char *buf, size_t size);

/* Model and data in a few lines of text, equal only when those are.  Returns
 * buf. */
const char *cf_run_describe(const cf_run *run, char *buf, size_t size);

/* Carves everything of a command out of an arena: once dry, once for real. */
typedef void (*cf_run_carver)(void *command, cf_arena *arena);

/* The bytes that this rank may take. */
size_t cf_run_budget(const cf_run *run);

/* Whose they are, for a message: "--memory allows". */
const char *cf_run_budget_str(const cf_run *run);

/* Size a command's memory with a dry carve and hold it against the budget.
 * Errors, logged: CF_NO_MEMORY, with what would help. */
CF_MUST_USE cf_status cf_run_size(const cf_run *run, cf_run_carver carve,
                                  void *command, const cf_step_plan_need *need,
                                  cf_arena *sizes);

/* Open an arena of the size found and carve it.  Errors, logged. */
CF_MUST_USE cf_status cf_run_place(cf_run *run, const cf_arena *sizes,
                                   cf_run_carver carve, void *command);

/* The weights: of the model folder, and of the adapter, read or new.  Errors,
 * logged: CF_MALFORMED, CF_NO_MEMORY. */
CF_MUST_USE cf_status cf_run_load(cf_run *run);

/* The exit code of INTERFACE section 5 for a status. */
int cf_exit_code(cf_status status);

#endif
