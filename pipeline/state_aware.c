/* state_aware.c - the order of work inside one group of dependent chunks.
 *
 * A group is one long sequence cut into N chunks.  Keeping the activations of
 * all N would make memory follow the sequence; we keep K and recompute the rest
 * (Yuan et al. 2025, Algorithm 2).  For N = 4, K = 2 one stage runs
 *
 *     F0 F1 K2 K3 B3 B2 R1 B1 R0 B0
 *
 * with F = forward, drop; K = forward, keep; R = recompute, keep; B = backward.
 *
 * (1) Each chunk has exactly one keeping forward (K or R) and, later, one B.
 *     The loss of a chunk is counted in its backward, so once.
 * (2) B runs from the last chunk to the first: dK and dV of chunk i are
 *     complete only when every later chunk has added its share.  So does R.
 * (3) At most K keeping forwards are ahead of their B.  The last K chunks are
 *     the ones kept, because their backwards come first.
 * (4) A forward of chunk i, also in R, finds the KV state of chunks 0 .. i-1.
 *
 * The price is max(0, N - K) extra forwards.  A standalone chunk is N = 1.
 */
#include "pipeline.h"

cf_group cf_group_at(const cf_chunk_plan *plan, uint32_t first_chunk,
                     uint32_t retained_chunks_max)
{
    cf_group group = {.first_chunk = first_chunk};
    uint32_t end = first_chunk;

    while (end < plan->n_chunks &&
           plan->chunks[end].group == plan->chunks[first_chunk].group)
        end++;
    group.n_chunks = end - first_chunk;
    if (group.n_chunks > retained_chunks_max)
        group.n_dropped = group.n_chunks - retained_chunks_max;
    return group;
}

uint32_t cf_group_end(const cf_group *group)
{
    return group->first_chunk + group->n_chunks;
}

bool cf_group_drops(const cf_group *group, uint32_t chunk)
{
    return chunk - group->first_chunk < group->n_dropped;
}

cf_op cf_group_forward(const cf_group *group, uint32_t chunk)
{
    bool drops = cf_group_drops(group, chunk);

    return (cf_op){drops ? CF_OP_FORWARD : CF_OP_FORWARD_KEEP, chunk};
}
