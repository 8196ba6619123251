/* saver.c - see saver.h. */
#include "src/saver.h"

#include <inttypes.h>
#include <stdlib.h>
#include <time.h>

#include "src/log.h"
#include "src/resume.h"

static double seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- going on ---- */

cf_status cf_saver_find(const cf_options *options, uint64_t n_steps,
                        cf_saver *saver)
{
    cf_checkpoint_state found;
    cf_status status;

    *saver = (cf_saver){.options = options};
    status = cf_resume_describe(options, n_steps, &saver->start);
    if (status != CF_OK || !options->resume)
        return status;
    status = cf_checkpoint_find(options->output, CF_CHECKPOINT_NEWEST,
                                &saver->path, &found);
    if (status != CF_OK)
        return status;
    if (saver->path == NULL) {
        cf_log_info("--resume: there is no training state in '%s': from the "
                    "start",
                    options->output);
        return CF_OK;
    }
    status = cf_resume_check_options(&saver->start, &found, saver->path);
    saver->start.step = found.step;
    saver->start.n_updates = found.n_updates;
    saver->start.ledger = found.ledger;
    saver->start.model_hash = found.model_hash;
    saver->start.data_hash = found.data_hash;
    return status;
}

cf_status cf_saver_identify(cf_saver *saver, const cf_dataset *dataset)
{
    cf_checkpoint_state found = saver->start;
    cf_status status =
        cf_resume_hash_model(saver->options->model, &saver->start.model_hash);

    if (status != CF_OK)
        return status;
    saver->start.data_hash = cf_dataset_hash(dataset);
    if (saver->path == NULL)
        return CF_OK;
    return cf_resume_check_content(&saver->start, &found, saver->path);
}

cf_status cf_saver_open(cf_saver *saver, cf_model *model)
{
    const cf_checkpoint_params params = {
        .output = saver->options->output,
        .model = model,
        .keep = saver->options->keep,
        .state = &saver->start,
    };
    cf_status status = CF_OK;

    if (saver->path != NULL)
        status = cf_checkpoint_load(saver->path, model);
    if (status == CF_OK)
        status = cf_checkpoint_open(&params, &saver->checkpoint);
    if (status == CF_OK && saver->path != NULL &&
        saver->start.step < saver->start.n_steps)
        cf_log_info("going on from the state of step %" PRIu64 " in '%s'",
                    saver->start.step, saver->path);
    saver->begun_step = saver->start.step;
    saver->begun_s = seconds();
    return status;
}

void cf_saver_close(cf_saver *saver)
{
    cf_checkpoint_close(saver->checkpoint);
    free(saver->path);
    *saver = (cf_saver){0};
}

/* ---- saving ---- */

void cf_saver_release(void *context)
{
    cf_saver *saver = context;

    if (saver->is_saving)
        cf_checkpoint_release(saver->checkpoint);
}

void cf_saver_settle(cf_saver *saver)
{
    double save_s, waited_s;

    if (!saver->is_saving)
        return;
    cf_checkpoint_wait(saver->checkpoint);
    saver->is_saving = false;
    if (!saver->options->verbose ||
        cf_checkpoint_saved_step(saver->checkpoint) != saver->begun_step)
        return;
    cf_checkpoint_times(saver->checkpoint, &save_s, &waited_s);
    cf_log_info("the state of step %" PRIu64 " was saved in %.2f s, training "
                "waited %.2f s for it",
                saver->begun_step, save_s, waited_s);
}

static void save_begin(cf_saver *saver, uint64_t step, uint64_t n_updates,
                       const cf_ledger *ledger)
{
    cf_saver_settle(saver);
    saver->begun_step = step;
    saver->begun_s = seconds();
    saver->is_saving = true;
    cf_checkpoint_begin(saver->checkpoint, step, n_updates, ledger);
}

void cf_saver_step_done(cf_saver *saver, uint64_t step, uint64_t n_updates,
                        const cf_ledger *ledger)
{
    const cf_options *options = saver->options;
    bool by_steps = options->save_every > 0 && step % options->save_every == 0;
    bool by_time = options->save_s > 0 &&
                   seconds() - saver->begun_s >= (double)options->save_s;

    if (by_steps || by_time)
        save_begin(saver, step, n_updates, ledger);
}

cf_status cf_saver_finish(cf_saver *saver, uint64_t step, uint64_t n_updates,
                          const cf_ledger *ledger)
{
    uint64_t saved;

    if (saver->begun_step != step)
        save_begin(saver, step, n_updates, ledger);
    cf_saver_settle(saver);
    saved = cf_checkpoint_saved_step(saver->checkpoint);
    if (saved == step)
        return CF_OK;
    if (saved > 0)
        cf_log_error("'%s': the state of the last step, %" PRIu64
                     ", could not be saved; --resume would go on from step "
                     "%" PRIu64,
                     saver->options->output, step, saved);
    else
        cf_log_error("'%s': no training state could be saved; --resume would "
                     "begin again",
                     saver->options->output);
    return CF_IO;
}
