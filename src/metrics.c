/* metrics.c - metrics.jsonl, its twin for TensorBoard, and the line of progress.
 *
 * The files have every step; the line is for people (progress.h).
 *
 * (1) Nothing is allocated after open, since appending happens inside a step;
 *     only the line of an evaluation, which stands between steps, may.
 */
#include "src/metrics.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "src/append_file.h"
#include "src/log.h"
#include "src/tfevents.h"

struct cf_metrics {
    cf_append_file *lines; /* metrics.jsonl; NULL: none */
    cf_tfevents *events;   /* NULL: none */
    cf_progress progress;
    uint32_t n_stages, n_replicas;
};

cf_status cf_metrics_open(const cf_metrics_params *params,
                          cf_metrics **metrics_p)
{
    cf_metrics *metrics = calloc(1, sizeof(*metrics));
    cf_status status = CF_OK;

    if (metrics == NULL)
        return cf_log_no_memory("the metrics");
    metrics->n_stages = params->n_stages;
    metrics->n_replicas = params->n_replicas;
    cf_progress_open(params->n_steps, params->log_every, params->n_stages > 1,
                     params->quiet, &metrics->progress);
    if (params->path != NULL)
        status = cf_append_file_open(params->path, &metrics->lines);
    if (status == CF_OK && params->events != NULL)
        status = cf_tfevents_open(params->events, &metrics->events);
    if (status == CF_OK)
        *metrics_p = metrics;
    else
        cf_metrics_close(metrics);
    return status;
}

void cf_metrics_close(cf_metrics *metrics)
{
    if (metrics == NULL)
        return;
    cf_metrics_end_line(metrics);
    cf_tfevents_close(metrics->events);
    cf_append_file_close(metrics->lines);
    free(metrics);
}

/* ---- for people ---- */

static double tokens_per_s(const cf_step_report *report)
{
    return report->step_s > 0 ? (double)report->tokens / report->step_s : 0;
}

void cf_metrics_end_line(cf_metrics *metrics)
{
    cf_progress_end_line(&metrics->progress);
}

bool cf_metrics_progress_is_due(const cf_metrics *metrics)
{
    return cf_progress_is_due(&metrics->progress);
}

void cf_metrics_progress(cf_metrics *metrics, const cf_progress_at *at)
{
    cf_progress_within_step(&metrics->progress, at);
}

static void show(cf_metrics *metrics, const cf_step_report *report)
{
    const cf_progress_report shown = {
        .step = report->step,
        .has_loss = report->has_loss,
        .loss = report->loss,
        .learning_rate = report->learning_rate,
        .tokens_per_s = tokens_per_s(report),
        .bubble_ratio = report->bubble_ratio,
        .peak_bytes = report->peak_bytes,
        .eta_s = report->eta_s,
    };

    cf_progress_step_done(&metrics->progress, &shown);
}

/* ---- for programs ---- */

/* JSON has no NaN and no infinity. */
static void write_real(FILE *file, const char *key, bool is_known, double value)
{
    if (is_known && isfinite(value))
        (void)fprintf(file, ", \"%s\": %.17g", key, value);
    else
        (void)fprintf(file, ", \"%s\": null", key);
}

static void write_whole(FILE *file, const char *key, uint64_t value)
{
    (void)fprintf(file, ", \"%s\": %" PRIu64, key, value);
}

static cf_status write_report(cf_metrics *metrics, const cf_step_report *report)
{
    FILE *file = metrics->lines->records;

    (void)fprintf(file, "{\"step\": %" PRIu64, report->step);
    write_real(file, "loss", report->has_loss, report->loss);
    write_real(file, "grad_norm", report->has_loss, report->grad_norm);
    write_real(file, "learning_rate", true, report->learning_rate);
    write_whole(file, "sequences", report->sequences);
    write_whole(file, "tokens", report->tokens);
    write_whole(file, "target_tokens", report->target_tokens);
    write_whole(file, "chunks", report->chunks);
    write_whole(file, "recomputed_chunks", report->recomputed_chunks);
    write_real(file, "step_s", true, report->step_s);
    write_real(file, "tokens_per_s", true, tokens_per_s(report));
    write_whole(file, "peak_bytes", report->peak_bytes);
    if (metrics->n_stages > 1)
        write_real(file, "bubble_ratio", true, report->bubble_ratio);
    if (metrics->n_replicas > 1)
        write_real(file, "load_max_over_mean", true,
                   report->load_max_over_mean);
    if (metrics->n_stages > 1 || metrics->n_replicas > 1) {
        write_whole(file, "sent_bytes", report->sent_bytes);
        write_real(file, "waited_s", true, report->waited_s);
    }
    (void)fputs("}\n", file);
    return cf_append_file_flush(metrics->lines);
}

/* The same for TensorBoard. */
static cf_status append_event(cf_metrics *metrics, const cf_step_report *report)
{
    const bool has_loss = report->has_loss;
    const bool has_stages = metrics->n_stages > 1;
    const bool has_ranks = has_stages || metrics->n_replicas > 1;
    const cf_tfevents_scalar scalars[] = {
        {"train/loss", has_loss ? report->loss : NAN},
        {"train/grad_norm", has_loss ? report->grad_norm : NAN},
        {"train/learning_rate", report->learning_rate},
        {"train/sequences", (double)report->sequences},
        {"train/tokens", (double)report->tokens},
        {"train/target_tokens", (double)report->target_tokens},
        {"train/chunks", (double)report->chunks},
        {"train/recomputed_chunks", (double)report->recomputed_chunks},
        {"train/step_s", report->step_s},
        {"train/tokens_per_s", tokens_per_s(report)},
        {"train/peak_bytes", (double)report->peak_bytes},
        {"train/bubble_ratio", has_stages ? report->bubble_ratio : NAN},
        {"train/load_max_over_mean",
         metrics->n_replicas > 1 ? report->load_max_over_mean : NAN},
        {"train/sent_bytes", has_ranks ? (double)report->sent_bytes : NAN},
        {"train/waited_s", has_ranks ? report->waited_s : NAN},
    };

    return cf_tfevents_append(metrics->events, report->step, scalars,
                              sizeof(scalars) / sizeof(scalars[0]));
}

cf_status cf_metrics_append(cf_metrics *metrics, const cf_step_report *report)
{
    cf_status status = CF_OK;

    show(metrics, report);
    if (metrics->lines != NULL)
        status = write_report(metrics, report);
    if (status == CF_OK && metrics->events != NULL)
        status = append_event(metrics, report);
    return status;
}

/* ---- evaluations ---- */

static cf_status write_evaluation(cf_metrics *metrics,
                                  const cf_eval_report *report)
{
    json_t *line =
        json_pack("{s:I, s:b}", "step", (json_int_t)report->step, "eval", 1);
    int failed = json_object_update(line, (json_t *)report->result);

    failed |= json_object_set_new(line, "step_s", json_real(report->step_s));
    failed |= json_object_set_new(line, "peak_bytes",
                                  json_integer((json_int_t)report->peak_bytes));
    if (failed != 0) {
        json_decref(line);
        return cf_log_no_memory("the line of an evaluation");
    }
    (void)json_dumpf(line, metrics->lines->records, JSON_REAL_PRECISION(17));
    (void)fputc('\n', metrics->lines->records);
    json_decref(line);
    return cf_append_file_flush(metrics->lines);
}

static cf_status append_evaluation_event(cf_metrics *metrics,
                                         const cf_eval_report *report)
{
    const cf_tfevents_scalar scalars[] = {
        {"eval/loss", report->loss},
        {"eval/perplexity", exp(report->loss)},
    };

    return cf_tfevents_append(metrics->events, report->step, scalars,
                              sizeof(scalars) / sizeof(scalars[0]));
}

cf_status cf_metrics_append_evaluation(cf_metrics *metrics,
                                       const cf_eval_report *report)
{
    cf_status status = CF_OK;

    cf_progress_evaluated(&metrics->progress, report->step, report->loss,
                          report->step_s, report->is_best);
    if (metrics->lines != NULL)
        status = write_evaluation(metrics, report);
    if (status == CF_OK && metrics->events != NULL)
        status = append_evaluation_event(metrics, report);
    return status;
}

cf_status cf_metrics_settle(cf_metrics *metrics)
{
    cf_status status = CF_OK;

    if (metrics->lines != NULL)
        status = cf_append_file_settle(metrics->lines);
    if (status == CF_OK && metrics->events != NULL)
        status = cf_tfevents_settle(metrics->events);
    return status;
}
