/* checkpoint_folder.h - OUTPUT/checkpoints as a list of steps.
 *
 * Private to checkpoint*.c.  Nothing here logs: what cannot be listed or
 * removed costs room, never a state.
 */
#ifndef CF_CHECKPOINT_FOLDER_H
#define CF_CHECKPOINT_FOLDER_H

#include <stddef.h>
#include <stdint.h>

#define CF_CHECKPOINT_TEMPORARY ".tmp"

/* The steps that have a folder, complete or not: at most capacity of them, the
 * largest, in descending order.  Returns how many.  No allocation. */
size_t cf_checkpoint_steps(const char *checkpoints, uint64_t *steps,
                           size_t capacity);

/* Remove one folder of files.  Nothing there is fine.  0, or -1 and errno. */
int cf_checkpoint_remove(const char *folder);

/* Remove the folders of saves that were interrupted. */
void cf_checkpoint_remove_temporaries(const char *checkpoints);

#endif
