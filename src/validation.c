/* validation.c - see validation.h. */
#include "src/validation.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/clock.h"
#include "src/files.h"
#include "src/log.h"
#include "src/model_export.h"
#include "src/signals.h"

/* ---- before the first step ---- */

/* An option that would do nothing is an error. */
static cf_status options_check(const cf_options *options)
{
    const char *alone = options->eval_every > 0 ? "--eval-every"
                        : options->patience > 0 ? "--patience"
                        : options->keep_best    ? "--keep-best"
                                                : NULL;

    if (options->n_eval_data > 0 || alone == NULL)
        return CF_OK;
    cf_log_error("%s needs --eval-data FILE: there is nothing to evaluate",
                 alone);
    return CF_INVALID;
}

cf_status cf_validation_open(const cf_options *options, cf_run *run,
                             cf_validation *validation)
{
    cf_evaluation_params params = {
        .option = "--eval-data",
        .max_length_tok = options->max_length_tok,
        .comm = run->comm,
        .grid = run->grid,
    };
    cf_status status = options_check(options);

    *validation = (cf_validation){.options = options, .run = run};
    if (status != CF_OK || options->n_eval_data == 0)
        return status;
    status = cf_dataset_open(options->eval_data, options->n_eval_data,
                             run->model.config.vocab, &validation->dataset);
    if (status != CF_OK)
        return status;
    params.dataset = validation->dataset;
    return cf_evaluation_open(&params, &validation->evaluation);
}

cf_status cf_validation_bound(cf_validation *validation)
{
    if (validation->dataset == NULL)
        return CF_OK;
    return cf_evaluation_bound(&validation->evaluation,
                               validation->options->chunk_size_tok);
}

void cf_validation_close(cf_validation *validation)
{
    if (validation->dataset == NULL)
        return;
    cf_evaluation_close(&validation->evaluation);
    cf_dataset_close(validation->dataset);
    validation->dataset = NULL;
}

const char *cf_validation_describe(const cf_validation *validation, char *buf,
                                   size_t size)
{
    const cf_dataset *dataset = validation->dataset;

    buf[0] = '\0';
    if (dataset != NULL)
        (void)snprintf(buf, size, "sequences: %zu\nhash: %016" PRIx64 "\n",
                       cf_dataset_count(dataset), cf_dataset_hash(dataset));
    return buf;
}

static void carve(void *context, cf_arena *arena)
{
    cf_validation *v = context;

    cf_evaluation_carve(&v->evaluation, &v->run->model, arena);
}

void cf_validation_carve(cf_validation *validation, size_t from,
                         cf_arena *arena)
{
    validation->arena_from = from;
    if (validation->dataset != NULL)
        cf_arena_overlay(arena, from, "evaluation, beyond training", carve,
                         validation);
}

void cf_validation_introduce(const cf_validation *v)
{
    const cf_evaluation *e = &v->evaluation;
    char when[64] = "at the end";
    char skipped[64] = "";

    if (v->dataset == NULL)
        return;
    if (v->options->eval_every > 0)
        snprintf(when, sizeof(when), "every %" PRIu64 " steps and at the end",
                 v->options->eval_every);
    if (e->n_too_long > 0)
        snprintf(skipped, sizeof(skipped), ", %zu skipped by --max-length",
                 e->n_too_long);
    cf_log_info("evaluation %s: %zu sequences%s; longest sequence %u tokens",
                when, e->n_sequences, skipped, (unsigned)e->need.longest_tok);
}

/* ---- when ---- */

bool cf_validation_is_due(const cf_validation *v, uint64_t step,
                          uint64_t n_steps)
{
    const uint64_t every = v->options->eval_every;

    if (v->dataset == NULL || step == 0 || v->best.last_step >= step)
        return false;
    return step == n_steps || (every > 0 && step % every == 0);
}

uint64_t cf_validation_count(const cf_validation *v, uint64_t first_step,
                             uint64_t n_steps)
{
    const uint64_t every = v->options->eval_every;
    uint64_t n = 0;

    if (v->dataset == NULL || first_step > n_steps)
        return 0;
    if (every > 0)
        n = n_steps / every - (first_step - 1) / every;
    return n + (every == 0 || n_steps % every != 0);
}

void cf_validation_forecast(cf_validation *v, uint64_t first_step,
                            uint64_t n_steps, cf_forecast *forecast)
{
    const cf_evaluation *e = &v->evaluation;

    if (v->dataset == NULL)
        return;
    v->forecast_s = cf_forecast_evaluation_s(forecast, e->dataset, e->sequences,
                                             e->n_sequences);
    cf_forecast_add(forecast, v->forecast_s * (double)cf_validation_count(
                                                  v, first_step, n_steps));
}

bool cf_validation_is_over(const cf_validation *v)
{
    return v->dataset != NULL &&
           cf_best_is_over(&v->best, v->options->patience);
}

/* ---- the pass ---- */

static void observe(void *context)
{
    cf_validation *v = context;

    const size_t n_chunks = v->evaluation.plan.chunks.n_chunks;

    v->chunks_done++;
    if (cf_metrics_progress_is_due(v->metrics)) {
        const cf_progress_at at = {
            .step = v->step,
            .chunks_done = v->chunks_done,
            .n_chunks = n_chunks,
            .done = (double)v->chunks_done / (double)n_chunks,
        };

        cf_metrics_progress(v->metrics, &at);
    }
}

/* The folder of the best model; the caller frees. */
static char *best_path(const cf_validation *v)
{
    return cf_path_join(v->options->output, "/", "best");
}

static cf_status best_write(const cf_validation *v)
{
    char *path = best_path(v);
    cf_status status =
        cf_comm_agree(v->run->comm, path != NULL ? CF_OK : CF_NO_MEMORY);

    if (status == CF_OK)
        status =
            cf_trained_write(v->run->comm, &v->run->model, v->options->model,
                             path, v->options->export_dtype);
    free(path);
    return status;
}

static cf_status report(cf_validation *v, bool is_best, double step_s)
{
    json_t *result = cf_evaluation_json(&v->evaluation);
    const cf_eval_report line = {
        .step = v->step,
        .loss = v->evaluation.loss,
        .is_best = is_best,
        .step_s = step_s,
        .peak_bytes = v->peak_bytes,
        .result = result,
    };
    cf_status status = CF_NO_MEMORY;

    if (result != NULL)
        status = cf_metrics_append_evaluation(v->metrics, &line);
    else
        cf_log_error("step %" PRIu64 ": no memory for the result of the "
                     "evaluation",
                     v->step);
    json_decref(result);
    return status;
}

cf_status cf_validation_run(cf_validation *v, uint64_t step,
                            cf_metrics *metrics)
{
    const double start = cf_clock_s();
    bool is_best;
    double step_s;
    cf_status status;

    cf_arena_take_turn(&v->run->arena, v->arena_from, carve, v);
    v->metrics = metrics;
    v->step = step;
    v->chunks_done = 0;
    v->evaluation.engine.observe = observe;
    v->evaluation.engine.observer = v;
    v->evaluation.stop = cf_signals_noted;
    status = cf_evaluation_run(&v->evaluation, step);
    if (status != CF_OK || !v->evaluation.is_complete)
        return status;
    cf_comm_note(v->run->comm, 0, UINT32_MAX, NULL);
    step_s = cf_clock_s() - start;
    v->peak_bytes = cf_engine_peak_bytes(&v->evaluation.engine);
    is_best = cf_best_add(&v->best, step, v->evaluation.loss);
    if (is_best && v->options->keep_best)
        status = best_write(v);
    if (status == CF_OK)
        status = report(v, is_best, step_s);
    if (status == CF_OK && cf_validation_is_over(v) && !v->options->quiet)
        cf_log_info("stopped after step %" PRIu64 ": %" PRIu64
                    " evaluations in a row were not better than that of step "
                    "%" PRIu64,
                    step, v->best.n_since, v->best.step);
    return status;
}

/* ---- after the last step ---- */

cf_status cf_validation_restore_best(const cf_validation *v)
{
    char *path;
    cf_status status = CF_NO_MEMORY;

    if (v->dataset == NULL || !v->options->keep_best ||
        v->best.n_evaluations == 0 || v->best.n_since == 0)
        return CF_OK;
    path = best_path(v);
    if (path != NULL)
        status = cf_trained_load(&v->run->model, path);
    status = cf_comm_agree(v->run->comm, status);
    if (status == CF_OK && !v->options->quiet)
        cf_log_info("the model is that of the best evaluation: step %" PRIu64
                    ", loss %.4f",
                    v->best.step, v->best.loss);
    free(path);
    return status;
}
