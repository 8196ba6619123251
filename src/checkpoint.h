/* checkpoint.h - training state on disk: OUTPUT/checkpoints/step-N/.
 *
 *     weights.safetensors    the masters; of an adapter those alone
 *     moments.safetensors    Adam's, as exp_avg.NAME and exp_avg_sq.NAME
 *     state.json             the rest, and the checksums of these two
 *
 * (1) A folder has its name only when everything in it is on the disk.  The
 *     newest complete one is found by its content; no file points to it.
 * (2) Tensors are F32, in fp64 compute F64, whole and under their Hugging Face
 *     names: who computed what is not in it.
 * (3) Writing is done by a thread of its own, straight from the arrays, while
 *     the next step runs forward and backward; only the optimizer waits.  All
 *     it needs is allocated at open.
 * (4) An older state is removed only after a newer one is complete.
 * (5) All ranks write one state together, each what it owns, through a file
 *     system that they share; any other number of ranks reads it.  What is saved
 *     is the same on all of them.
 */
#ifndef CF_CHECKPOINT_H
#define CF_CHECKPOINT_H

#include <chunkflow/base.h>

#include "src/checkpoint_state.h"
#include "src/comm.h"
#include "src/model.h"

/* ---- writing: all ranks call these in the same order ---- */

typedef struct cf_checkpoint cf_checkpoint;

typedef struct cf_checkpoint_params {
    const char *output;
    cf_comm *lane;         /* borrowed until close; nobody else uses it */
    const cf_model *model; /* likewise */
    uint32_t keep;         /* complete states, at least 1 */
    /* What every state of the run says; its step is the one resumed from, 0
     * when there is none. */
    const cf_checkpoint_state *state;
} cf_checkpoint_params;

/* Removes what an interrupted save left behind.  Errors, logged:
 * CF_NO_MEMORY, CF_COMM. */
CF_MUST_USE cf_status cf_checkpoint_open(const cf_checkpoint_params *params,
                                         cf_checkpoint **checkpoint_p);

/* Waits for a save that is on its way. */
void cf_checkpoint_close(cf_checkpoint *checkpoint);

/* Start to save the state after a step.  From here on weights and moments may
 * be read only, until cf_checkpoint_release returns.  No save may be on its
 * way. */
void cf_checkpoint_begin(cf_checkpoint *checkpoint, uint64_t step,
                         uint64_t n_updates, const cf_ledger *ledger);

/* Wait until weights and moments have been read. */
void cf_checkpoint_release(cf_checkpoint *checkpoint);

/* Wait until the save is complete or has failed.  A failure is a warning, told
 * once for every cause; the states before it stay as they are. */
void cf_checkpoint_wait(cf_checkpoint *checkpoint);

/* The newest step whose state is complete, 0 when there is none. */
uint64_t cf_checkpoint_saved_step(const cf_checkpoint *checkpoint);

/* Seconds that the last save took, and that the caller waited for it. */
void cf_checkpoint_times(const cf_checkpoint *checkpoint, double *save_s_p,
                         double *waited_s_p);

/* ---- reading ---- */

enum {
    CF_CHECKPOINT_NEWEST = 0
};

/* The complete state of a step, or the newest, of a run folder; for one rank to
 * look.  Newer ones that are damaged are skipped with a warning; *path_p is its
 * folder, free() it, or NULL when there is none.  Errors, logged: CF_NO_MEMORY,
 * CF_IO; of a given step also CF_MALFORMED: damaged. */
CF_MUST_USE cf_status cf_checkpoint_find(const char *output, uint64_t step,
                                         char **path_p,
                                         cf_checkpoint_state *state_p);

/* Read what the model holds of the masters and, where it has them, of the
 * moments of a state that was found, and pack the weights.  Errors, logged:
 * CF_MALFORMED. */
CF_MUST_USE cf_status cf_checkpoint_load(const char *path, cf_model *model);

#endif
