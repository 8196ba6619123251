/* training_choice.c - see training.h: auto, and measured costs. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/log.h"
#include "src/machine.h"
#include "src/planning.h"

/* ---- the choice ---- */

/* Of all ranks the least that one has. */
static cf_status budget_agree(cf_training *t, uint64_t *budget_p)
{
    const uint32_t n_ranks = cf_comm_size(t->comm);
    uint64_t mine = t->options->memory_bytes;
    uint64_t *all = calloc(n_ranks, sizeof(*all));
    cf_status status;

    if (mine == 0)
        mine = cf_machine_memory_bytes() / cf_comm_node_size(t->comm);
    status = cf_comm_agree(
        t->comm, all != NULL ? CF_OK : cf_log_no_memory("all ranks' memory"));
    if (status == CF_OK)
        status = cf_comm_gather(t->comm, &mine, sizeof(mine), all);
    for (uint32_t i = 0; i < n_ranks && status == CF_OK; i++)
        if (all[i] < mine)
            mine = all[i];
    free(all);
    if (status == CF_OK)
        *budget_p = mine;
    return status;
}

/* "--chunk-size 2048 and --retain-chunks 1": of what is auto. */
static void chosen_format(const cf_training *t, const cf_options *given,
                          char *buf, size_t size)
{
    const bool size_is_auto = given->chunk_size_tok == 0;
    const bool k_is_auto = given->retained_chunks_max == 0;
    size_t n = 0;

    buf[0] = '\0';
    if (size_is_auto)
        n = (size_t)snprintf(buf, size, "--chunk-size %" PRIu32 "%s",
                             t->options->chunk_size_tok,
                             k_is_auto ? " and " : "");
    if (k_is_auto)
        (void)snprintf(buf + n, size - n, "--retain-chunks %" PRIu32,
                       t->options->retained_chunks_max);
}

static void choice_describe(cf_training *t, const cf_options *given,
                            const cf_planning *p, uint64_t budget)
{
    const cf_planner_point *best = &p->points[p->best];
    char before[96], what[96], need[32], have[32];
    size_t n_fit = 0;

    for (size_t i = 0; i < p->n_points; i++)
        n_fit += p->points[i].fits;
    (void)snprintf(before, sizeof(before), "%.90s%s", t->choice,
                   t->choice[0] != '\0' ? "; " : "");
    chosen_format(t, given, what, sizeof(what));
    (void)snprintf(
        t->choice, sizeof(t->choice),
        "%s%s: the fastest by %s costs of %zu settings that fit in %s, out of "
        "%zu; needs %s",
        before, what, t->costs.is_measured ? "measured" : "built-in", n_fit,
        cf_bytes_format((size_t)budget, have, sizeof(have)), p->n_points,
        cf_bytes_format(best->bytes, need, sizeof(need)));
}

static void point_take(cf_training *t, const cf_planner_point *point)
{
    t->resolved.chunk_size_tok = point->chunk_size_tok;
    t->resolved.retained_chunks_max = point->retained_chunks_max;
    t->resolved.recompute = point->recompute;
    t->resolved.keep_attention = point->keep_attention;
    t->resolved.pipeline_stages = point->n_stages;
}

static cf_status plan(cf_training *t, const cf_options *given, uint64_t budget)
{
    const cf_planner_range range = {
        .chunk_size_tok = given->chunk_size_tok,
        .retained_chunks_max = given->retained_chunks_max,
        .recompute = given->recompute,
        .keep_attention = given->keep_attention,
        .n_ranks = cf_comm_size(t->comm),
        .n_stages = t->run.grid.n_stages,
    };
    cf_planning p;
    cf_status status = cf_planning_open(t, cf_comm_size(t->comm), &p);

    if (status == CF_OK)
        status = cf_planning_search(&p, range, budget);
    if (status == CF_OK && p.best == p.n_points)
        status = cf_planning_refuse(&p, budget);
    if (status == CF_OK) {
        point_take(t, &p.points[p.best]);
        choice_describe(t, given, &p, budget);
    }
    cf_planning_close(&p);
    return status;
}

/* A resumed run goes on with the ChunkSize that it had: another one would be
 * another sum.  K changes no bits and is chosen anew. */
static void state_take(cf_training *t, cf_options *given)
{
    const cf_checkpoint_state *start = &t->saver.start;

    if (given->chunk_size_tok > 0 || t->saver.path == NULL ||
        start->chunk_size_tok == 0)
        return;
    given->chunk_size_tok = t->resolved.chunk_size_tok = start->chunk_size_tok;
    (void)snprintf(t->choice, sizeof(t->choice),
                   "--chunk-size %" PRIu32 ": the state of step %" PRIu64
                   " has it",
                   start->chunk_size_tok, start->step);
}

static bool is_whole(const cf_options *options)
{
    return options->schedule == CF_SCHEDULE_1F1B ||
           options->schedule == CF_SCHEDULE_1F1B_RECOMPUTE;
}

static cf_status whole_check(const cf_options *options)
{
    if (!is_whole(options))
        return CF_OK;
    cf_log_error(
        "--schedule %s takes sequences whole, so there is nothing that "
        "--chunk-size auto or --retain-chunks auto could choose: give "
        "numbers",
        cf_schedule_kind_str(options->schedule));
    return CF_INVALID;
}

/* All ranks plan with equal inputs; that they found the same is checked. */
static cf_status choose(cf_training *t, const cf_options *given)
{
    uint64_t budget;
    char text[96];
    cf_status status = budget_agree(t, &budget);

    if (status == CF_OK)
        status = cf_comm_agree(t->comm, plan(t, given, budget));
    if (status != CF_OK)
        return status;
    (void)snprintf(text, sizeof(text),
                   "chunk_size: %" PRIu32 "\nretain_chunks: %" PRIu32 "\n",
                   t->options->chunk_size_tok, t->options->retained_chunks_max);
    return cf_comm_agree_text(t->comm, "choice of the planner", text);
}

cf_status cf_training_choose(cf_training *t)
{
    cf_options given = *t->options;
    cf_status status = CF_OK;

    if (given.chunk_size_tok == 0 || given.retained_chunks_max == 0)
        status = cf_comm_agree(t->comm, whole_check(&given));
    if (status == CF_OK)
        state_take(t, &given);
    if (status == CF_OK &&
        (given.chunk_size_tok == 0 || given.retained_chunks_max == 0))
        status = choose(t, &given);
    t->saver.start.chunk_size_tok = t->options->chunk_size_tok;
    return status;
}

/* ---- what does not fit ---- */

/* What the planner would take in this memory; else the least that there is, if
 * that is less than what did not fit. */
static void help_format(const cf_planning *p, size_t own_bytes, char *buf,
                        size_t size)
{
    const bool fits = p->best < p->n_points;
    const size_t at =
        fits ? p->best : cf_planner_smallest(p->points, p->n_points);
    const cf_planner_point *point = &p->points[at];
    char bytes[32];

    (void)snprintf(buf, size, "try a smaller --chunk-size or --max-length");
    if (!fits && point->bytes >= own_bytes)
        return;
    (void)snprintf(buf, size,
                   "--chunk-size %" PRIu32 " --retain-chunks %" PRIu32
                   " --recompute %s%s %s %s%s",
                   point->chunk_size_tok, point->retained_chunks_max,
                   cf_recompute_str(point->recompute),
                   point->keep_attention ? " --keep-attention" : "",
                   fits ? "would fit, with" : "needs least, and that is",
                   cf_bytes_format(point->bytes, bytes, sizeof(bytes)),
                   fits ? "" : "; or give a smaller --max-length");
}

static cf_status help_find(cf_training *t, size_t budget, char *buf,
                           size_t size)
{
    const size_t own_bytes = t->sizes.used;
    const cf_planner_range range = {.recompute_is_free = true,
                                    .attention_is_free = t->options->schedule !=
                                                         CF_SCHEDULE_PAPER,
                                    .n_ranks = cf_comm_size(t->comm),
                                    .n_stages = t->run.grid.n_stages};
    cf_planning p;
    cf_status status = cf_planning_open(t, cf_comm_size(t->comm), &p);

    if (status == CF_OK)
        status = cf_planning_search(&p, range, budget);
    if (status == CF_OK)
        help_format(&p, own_bytes, buf, size);
    cf_planning_close(&p);
    return status;
}

cf_status cf_training_refuse(cf_training *t, size_t budget)
{
    const cf_arena sizes = t->sizes;
    const uint32_t eval_tok = t->validation.evaluation.need.longest_tok;
    const uint32_t longest_tok =
        eval_tok > t->need.longest_tok ? eval_tok : t->need.longest_tok;
    char have[32], want[32], kv[32];
    char help[256] = "--schedule state-aware cuts it into chunks";
    cf_status status = CF_OK;

    if (!is_whole(t->options))
        status = help_find(t, budget, help, sizeof(help));
    if (status != CF_OK)
        return status;
    cf_log_error(
        "needs %s of memory, %s %s: the longest sequence has %" PRIu32
        " tokens, and KV state takes %s%s; %s",
        sizes.overflow ? "more than can be counted"
                       : cf_bytes_format(sizes.used, want, sizeof(want)),
        cf_run_budget_str(&t->run), cf_bytes_format(budget, have, sizeof(have)),
        longest_tok,
        cf_bytes_format(cf_planning_kv_bytes(&sizes), kv, sizeof(kv)),
        t->options->kv_dir == NULL ? ", which --kv-dir puts into a file" : "",
        help);
    return CF_NO_MEMORY;
}

/* ---- the forecast ---- */

/* Flops of the planned batches, by the forecast. */
static double batches_flop(const cf_training *t, const cf_planning *p,
                           uint32_t *scratch)
{
    double sum = 0;

    for (size_t i = 0; i < p->n_batches; i++) {
        const size_t n = cf_batches_at(&t->batches, p->step[i], scratch);
        const double step_s =
            cf_forecast_step_s(&t->forecast, t->run.dataset, scratch, n);

        sum += (step_s - t->forecast.update_s) * t->forecast.flop_per_s;
    }
    return sum;
}

/* The speed with which the forecast's flops take what the plan says. */
static void speed_set(cf_training *t, const cf_planning *p,
                      const cf_planner_point *point, uint32_t *scratch)
{
    const double flop = batches_flop(t, p, scratch);
    const double end_s = point->time - point->compute_s;

    if (flop <= 0 || point->compute_s <= 0)
        return;
    t->forecast.flop_per_s = flop / point->compute_s;
    t->forecast.update_s = end_s / (double)p->n_batches;
    (void)snprintf(t->basis, sizeof(t->basis),
                   "from costs measured on this machine, within %.2g %%",
                   100 * t->costs.error);
}

cf_status cf_training_use_costs(cf_training *t)
{
    cf_planner_point point = {.n_stages = t->run.grid.n_stages,
                              .chunk_size_tok = t->options->chunk_size_tok,
                              .retained_chunks_max =
                                  t->options->retained_chunks_max,
                              .recompute = t->options->recompute,
                              .keep_attention = t->options->keep_attention};
    uint32_t *scratch;
    cf_planning p;
    cf_status status;

    (void)snprintf(t->basis, sizeof(t->basis), "from the speed of one GEMM");
    if (!t->costs.is_measured)
        return CF_OK;
    scratch = calloc(t->batches.global_batch, sizeof(*scratch));
    if (scratch == NULL)
        return cf_log_no_memory("a batch");
    status = cf_planning_open(t, cf_comm_size(t->comm), &p);
    if (status == CF_OK)
        status = cf_planning_time(&p, &point);
    if (status == CF_OK)
        speed_set(t, &p, &point, scratch);
    cf_planning_close(&p);
    free(scratch);
    return status;
}
