/* resume.h - what a run and the state that it goes on from must share.
 *
 * Model and data are told by content, not by path or time; options by what a
 * user would write.  ChunkSize, K, the recompute policy and threads are free.
 */
#ifndef CF_RESUME_H
#define CF_RESUME_H

#include "src/checkpoint_state.h"
#include "src/options.h"

/* A state of step 0 with the options of this run; model and data are not in it
 * yet, but the adapter that it begins with is.  Errors, logged: CF_INVALID (an
 * option is too long to be kept), CF_MALFORMED. */
CF_MUST_USE cf_status cf_resume_describe(const cf_options *options,
                                         uint64_t n_steps,
                                         cf_checkpoint_state *run_p);

/* The hash of a model folder's content: its config but for what changes no
 * number, and all of its tensors, whatever the shards.  Errors, logged:
 * CF_MALFORMED. */
CF_MUST_USE cf_status cf_resume_hash_model(const char *folder,
                                           uint64_t *hash_p);

/* The hash of the tensors of an adapter.  Errors, logged: CF_MALFORMED. */
CF_MUST_USE cf_status cf_resume_hash_adapter(const char *folder,
                                             uint64_t *hash_p);

/* Whether the options (then: model and data) agree with those of the state in
 * the folder `path`.  Error, logged, with everything that differs:
 * CF_INVALID. */
CF_MUST_USE cf_status cf_resume_check_options(const cf_checkpoint_state *run,
                                              const cf_checkpoint_state *found,
                                              const char *path);
CF_MUST_USE cf_status cf_resume_check_content(const cf_checkpoint_state *run,
                                              const cf_checkpoint_state *found,
                                              const char *path);

#endif
