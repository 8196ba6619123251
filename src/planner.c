/* planner.c - see planner.h. */
#include "src/planner.h"

static const cf_recompute policies[] = {
    CF_RECOMPUTE_NONE, CF_RECOMPUTE_SELECTIVE, CF_RECOMPUTE_LAYER};

enum {
    N_POLICIES = sizeof(policies) / sizeof(policies[0])
};

/* ---- the points ---- */

typedef struct listing {
    const cf_planner_range *range;
    cf_planner_point *points; /* NULL: only count */
    size_t n;
} listing;

static void add_point(listing *l, cf_planner_point point)
{
    if (l->points != NULL)
        l->points[l->n] = point;
    l->n++;
}

static void add(listing *l, uint32_t n_stages, uint32_t size, uint32_t k)
{
    const cf_planner_range *range = l->range;
    const bool drops = (uint64_t)size * k < range->longest_tok;

    for (size_t i = 0; i < N_POLICIES; i++) {
        cf_planner_point point = {.n_stages = n_stages,
                                  .chunk_size_tok = size,
                                  .retained_chunks_max = k,
                                  .recompute = policies[i],
                                  .keep_attention = range->keep_attention};

        if (!range->recompute_is_free && policies[i] != range->recompute)
            continue;
        add_point(l, point);
        if (!range->attention_is_free || !drops)
            continue;
        point.keep_attention = !point.keep_attention;
        add_point(l, point);
    }
}

static void add_size(listing *l, uint32_t n_stages, uint32_t size,
                     uint32_t longest_tok)
{
    const uint32_t most = (longest_tok - 1) / size + 1;

    if (l->range->retained_chunks_max > 0) {
        add(l, n_stages, size, l->range->retained_chunks_max);
        return;
    }
    for (uint64_t k = 1; k < most; k *= 2)
        add(l, n_stages, size, (uint32_t)k);
    add(l, n_stages, size, most);
}

static void add_stages(listing *l, uint32_t n_stages)
{
    const cf_planner_range *range = l->range;
    const uint32_t longest = range->longest_tok > 0 ? range->longest_tok : 1;

    if (range->chunk_size_tok > 0) {
        add_size(l, n_stages, range->chunk_size_tok, longest);
        return;
    }
    for (uint64_t size = CF_PLANNER_SIZE_MIN; size < longest; size *= 2)
        add_size(l, n_stages, (uint32_t)size, longest);
    add_size(l, n_stages, longest, longest);
}

size_t cf_planner_list(const cf_planner_range *range, cf_planner_point *points)
{
    listing l = {.range = range, .points = points};

    if (range->n_stages > 0) {
        add_stages(&l, range->n_stages);
        return l.n;
    }
    for (uint32_t p = 1; p <= range->n_ranks && p <= range->n_layers; p++)
        if (range->n_ranks % p == 0)
            add_stages(&l, p);
    return l.n;
}

/* ---- the choice ---- */

bool cf_planner_is_better(const cf_planner_point *a, const cf_planner_point *b)
{
    if (a->time < b->time || a->time > b->time)
        return a->time < b->time;
    return a->bytes < b->bytes;
}

cf_status cf_planner_search(cf_planner_point *points, size_t n, uint64_t budget,
                            const cf_planner_oracle *oracle, size_t *best_p)
{
    size_t best = n;

    for (size_t i = 0; i < n; i++) {
        cf_status status = oracle->size(oracle->context, &points[i]);

        if (status != CF_OK)
            return status;
        points[i].fits = points[i].bytes <= budget;
    }
    for (size_t i = 0; i < n; i++) {
        cf_status status;

        if (!points[i].fits)
            continue;
        status = oracle->time(oracle->context, &points[i]);
        if (status != CF_OK)
            return status;
        if (best == n || cf_planner_is_better(&points[i], &points[best]))
            best = i;
    }
    *best_p = best;
    return CF_OK;
}

size_t cf_planner_smallest(const cf_planner_point *points, size_t n)
{
    size_t smallest = 0;

    for (size_t i = 1; i < n; i++) {
        if (points[i].bytes < points[smallest].bytes)
            smallest = i;
    }
    return smallest;
}
