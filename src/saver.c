/* saver.c - see saver.h. */
#include "src/saver.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/clock.h"
#include "src/log.h"
#include "src/resume.h"

/* ---- going on ---- */

static bool is_root(const cf_saver *saver)
{
    return cf_comm_rank(saver->comm) == 0;
}

/* Look for a state, and whether this is its run. */
static cf_status state_find(cf_saver *saver)
{
    const cf_options *options = saver->options;
    cf_checkpoint_state found;
    cf_status status = cf_checkpoint_find(options->output, CF_CHECKPOINT_NEWEST,
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
    saver->start.chunk_size_tok = found.chunk_size_tok;
    return status;
}

/* What rank 0 found, to all: the state, and its path when there is one. */
static cf_status state_share(cf_saver *saver)
{
    uint64_t n = saver->path != NULL ? strlen(saver->path) + 1 : 0;
    cf_status status =
        cf_comm_broadcast(saver->comm, 0, &saver->start, sizeof(saver->start));

    if (status == CF_OK)
        status = cf_comm_broadcast(saver->comm, 0, &n, sizeof(n));
    if (status != CF_OK || n == 0)
        return status;
    if (!is_root(saver)) {
        saver->path = calloc(n, 1);
        if (saver->path == NULL)
            status = cf_log_no_memory("a path");
    }
    status = cf_comm_agree(saver->comm, status);
    if (status == CF_OK)
        status = cf_comm_broadcast(saver->comm, 0, saver->path, n);
    return status;
}

cf_status cf_saver_find(const cf_options *options, uint64_t n_steps,
                        cf_comm *comm, cf_saver *saver)
{
    cf_status status;

    *saver = (cf_saver){.options = options, .comm = comm};
    status = cf_resume_describe(options, n_steps, &saver->start);
    if (status == CF_OK && options->resume && is_root(saver))
        status = state_find(saver);
    status = cf_comm_agree(comm, status);
    return status == CF_OK ? state_share(saver) : status;
}

/* Reads all of the model: rank 0 does it for all. */
static cf_status content_hash(cf_saver *saver, const cf_dataset *dataset)
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

cf_status cf_saver_identify(cf_saver *saver, const cf_dataset *dataset)
{
    cf_status status = CF_OK;

    if (is_root(saver))
        status = content_hash(saver, dataset);
    status = cf_comm_agree(saver->comm, status);
    if (status == CF_OK)
        status = cf_comm_broadcast(saver->comm, 0, &saver->start,
                                   sizeof(saver->start));
    return status;
}

cf_status cf_saver_open(cf_saver *saver, cf_model *model)
{
    cf_checkpoint_params params = {
        .output = saver->options->output,
        .model = model,
        .keep = saver->options->keep,
        .state = &saver->start,
    };
    cf_status status = CF_OK;

    if (saver->path != NULL)
        status = cf_checkpoint_load(saver->path, model);
    status = cf_comm_agree(saver->comm, status);
    if (status == CF_OK)
        status = cf_comm_lane_open(saver->comm, &saver->lane);
    params.lane = saver->lane;
    if (status == CF_OK)
        status = cf_checkpoint_open(&params, &saver->checkpoint);
    status = cf_comm_agree(saver->comm, status);
    if (status == CF_OK && saver->path != NULL &&
        saver->start.step < saver->start.n_steps)
        cf_log_info("going on from the state of step %" PRIu64 " in '%s'",
                    saver->start.step, saver->path);
    saver->begun_step = saver->start.step;
    saver->begun_s = cf_clock_s();
    return status;
}

void cf_saver_close(cf_saver *saver)
{
    cf_checkpoint_close(saver->checkpoint);
    if (saver->lane != NULL)
        cf_comm_lane_close(saver->lane);
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

void cf_saver_begin(cf_saver *saver, uint64_t step, uint64_t n_updates,
                    const cf_ledger *ledger)
{
    cf_saver_settle(saver);
    saver->begun_step = step;
    saver->begun_s = cf_clock_s();
    saver->is_saving = true;
    cf_checkpoint_begin(saver->checkpoint, step, n_updates, ledger);
}

bool cf_saver_is_due(const cf_saver *saver, uint64_t step)
{
    const cf_options *options = saver->options;
    bool by_steps = options->save_every > 0 && step % options->save_every == 0;
    bool by_time = options->save_s > 0 &&
                   cf_clock_s() - saver->begun_s >= (double)options->save_s;

    return by_steps || by_time;
}

void cf_saver_finish(cf_saver *saver, uint64_t step, uint64_t n_updates,
                     const cf_ledger *ledger)
{
    if (saver->begun_step != step)
        cf_saver_begin(saver, step, n_updates, ledger);
    cf_saver_settle(saver);
}

cf_status cf_saver_check(const cf_saver *saver, uint64_t step)
{
    const uint64_t saved = cf_checkpoint_saved_step(saver->checkpoint);

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
