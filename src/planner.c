/* planner.c - see planner.h. */
#include "src/planner.h"

static const cf_recompute policies[] = {
    CF_RECOMPUTE_NONE, CF_RECOMPUTE_SELECTIVE, CF_RECOMPUTE_LAYER};

enum {
    N_POLICIES = sizeof(policies) / sizeof(policies[0])
};

static size_t add(uint32_t size, uint32_t k, cf_planner_point *points)
{
    for (size_t i = 0; i < N_POLICIES; i++)
        points[i] = (cf_planner_point){.chunk_size_tok = size,
                                       .retained_chunks_max = k,
                                       .recompute = policies[i]};
    return N_POLICIES;
}

static size_t add_size(uint32_t size, uint32_t longest_tok,
                       cf_planner_point *points)
{
    const uint32_t most = (longest_tok - 1) / size + 1;
    size_t n = 0;

    for (uint64_t k = 1; k < most; k *= 2)
        n += add(size, (uint32_t)k, points + n);
    return n + add(size, most, points + n);
}

size_t cf_planner_list(uint32_t longest_tok, cf_planner_point *points)
{
    const uint32_t longest = longest_tok > 0 ? longest_tok : 1;
    size_t n = 0;

    for (uint64_t size = CF_PLANNER_SIZE_MIN; size < longest; size *= 2)
        n += add_size((uint32_t)size, longest, points + n);
    return n + add_size(longest, longest, points + n);
}

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
