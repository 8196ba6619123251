/* stage_split.c - see stage_split.h. */
#include "src/stage_split.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "src/log.h"

/* The most layers of one of n stages that share these evenly. */
static uint32_t share_max(uint32_t n_layers, uint32_t n)
{
    return n_layers / n + (n_layers % n != 0);
}

/* Layers of the last stage: as many as make the slowest stage fastest, and of
 * those what brings the last one nearest to its fair share. */
static uint32_t last_stage_layers(uint32_t n_layers, uint32_t n_stages,
                                  cf_stage_costs costs)
{
    const double fair = (n_layers * costs.layer + costs.head) / n_stages;
    uint32_t best = 1;
    double best_cost = 0, best_off = 0;

    for (uint32_t n = 1; n + n_stages - 1 <= n_layers; n++) {
        const double last = costs.head + n * costs.layer;
        const double off = fabs(last - fair);
        double slowest = share_max(n_layers - n, n_stages - 1) * costs.layer;

        if (slowest < last)
            slowest = last;
        if (n == 1 || slowest < best_cost ||
            (slowest <= best_cost && off < best_off)) {
            best = n;
            best_cost = slowest;
            best_off = off;
        }
    }
    return best;
}

/* The others share evenly; the earlier ones, which retain more chunks, have the
 * fewer layers. */
static void split_by_cost(uint32_t n_layers, uint32_t n_stages,
                          cf_stage_costs costs, uint32_t index, cf_stage *stage)
{
    const uint32_t n_last =
        n_stages == 1 ? n_layers : last_stage_layers(n_layers, n_stages, costs);
    const uint32_t rest = n_layers - n_last;
    const uint32_t n_others = n_stages > 1 ? n_stages - 1 : 1;
    const uint32_t even = rest / n_others;
    const uint32_t n_even = n_others - rest % n_others; /* without one more */

    stage->first_layer = index * even + (index > n_even ? index - n_even : 0);
    stage->end_layer = stage->first_layer + even + (index >= n_even);
    if (index + 1 == n_stages) {
        stage->first_layer = rest;
        stage->end_layer = n_layers;
    }
}

static cf_status list_error(const char *list, uint32_t n_layers,
                            uint32_t n_stages)
{
    cf_log_error(
        "--layers-per-stage %s: give %u numbers of at least 1, one for "
        "each stage, that add up to the %u layers of the model",
        list, (unsigned)n_stages, (unsigned)n_layers);
    return CF_INVALID;
}

static cf_status split_by_list(uint32_t n_layers, uint32_t n_stages,
                               const char *list, uint32_t index,
                               cf_stage *stage)
{
    const char *at = list;
    uint32_t first = 0;

    for (uint32_t i = 0; i < n_stages; i++) {
        char *end;
        unsigned long n;

        errno = 0;
        n = strtoul(at, &end, 10);
        if (end == at || *at < '0' || *at > '9' || errno != 0 || n < 1 ||
            n > n_layers - first)
            return list_error(list, n_layers, n_stages);
        if (i == index) {
            stage->first_layer = first;
            stage->end_layer = first + (uint32_t)n;
        }
        first += (uint32_t)n;
        if (*end != (i + 1 < n_stages ? ',' : '\0'))
            return list_error(list, n_layers, n_stages);
        at = end + 1;
    }
    return first == n_layers ? CF_OK : list_error(list, n_layers, n_stages);
}

cf_status cf_stage_split(uint32_t n_layers, uint32_t n_stages, const char *list,
                         cf_stage_costs costs, uint32_t index,
                         cf_stage *stage_p)
{
    if (n_stages > n_layers) {
        cf_log_error("--pipeline-stages %u is more than the %u layers of the "
                     "model: use at most %u",
                     (unsigned)n_stages, (unsigned)n_layers,
                     (unsigned)n_layers);
        return CF_INVALID;
    }
    *stage_p =
        (cf_stage){.is_first = index == 0, .is_last = index + 1 == n_stages};
    if (list != NULL)
        return split_by_list(n_layers, n_stages, list, index, stage_p);
    split_by_cost(n_layers, n_stages, costs, index, stage_p);
    return CF_OK;
}
