/* saver.h - the training states of a run: gone on from, saved, told of.
 *
 * train calls it at the places where a state matters, on all ranks alike;
 * checkpoint.h does the files and resume.h the comparing.
 */
#ifndef CF_SAVER_H
#define CF_SAVER_H

#include "src/checkpoint.h"
#include "src/dataset.h"
#include "src/options.h"

typedef struct cf_saver {
    const cf_options *options; /* borrowed */
    cf_comm *comm;             /* borrowed */
    /* What to go on from: step, n_updates and ledger are 0 from the start. */
    cf_checkpoint_state start;
    char *path;                /* owned: of that state; NULL from the start */
    cf_comm *lane;             /* owned: of the thread that saves */
    cf_checkpoint *checkpoint; /* owned */
    uint64_t begun_step;       /* the last that was handed to it */
    double begun_s;            /* when, or when the run began */
    bool is_saving;
} cf_saver;

/* With --resume, find the newest complete state and hold this run's options
 * against it.  Errors, logged: CF_INVALID, CF_NO_MEMORY, CF_IO, CF_COMM. */
CF_MUST_USE cf_status cf_saver_find(const cf_options *options, uint64_t n_steps,
                                    cf_comm *comm, cf_saver *saver);

/* Hash model and data, and hold them against that state.  Errors, logged:
 * CF_INVALID, CF_MALFORMED, CF_COMM. */
CF_MUST_USE cf_status cf_saver_identify(cf_saver *saver,
                                        const cf_dataset *dataset);

/* Read that state into the model, whose weights are those of its folder, and
 * get ready to save.  Errors, logged. */
CF_MUST_USE cf_status cf_saver_open(cf_saver *saver, cf_model *model);
void cf_saver_close(cf_saver *saver);

/* Before weights and moments change: wait until they have been read. */
void cf_saver_release(void *saver);

/* Before a step counts: wait until the state before it is complete, so that no
 * more than one step can be lost.  A failure is told, and the run goes on. */
void cf_saver_settle(cf_saver *saver);

/* Whether the state after this step is to be saved.  Clocks differ: rank 0 says
 * it for all. */
bool cf_saver_is_due(const cf_saver *saver, uint64_t step);

/* Start to save the state after a step. */
void cf_saver_begin(cf_saver *saver, uint64_t step, uint64_t n_updates,
                    const cf_ledger *ledger);

/* After the last step: save it unless that was done, and wait. */
void cf_saver_finish(cf_saver *saver, uint64_t step, uint64_t n_updates,
                     const cf_ledger *ledger);

/* Whether the state of the last step was saved.  Errors, logged: CF_IO. */
CF_MUST_USE cf_status cf_saver_check(const cf_saver *saver, uint64_t step);

#endif
