/* one_f_one_b.c - many groups on one of p stages: aligned state-aware 1F1B
 * (Yuan et al. 2025, the extension of 1F1B, made precise).
 *
 * Forwards run in plan order.  Backwards run groups in plan order and chunks of
 * a group descending, on every stage and for every K: gradients are then summed
 * in one order.  What is left to choose is how many forwards a stage has run
 * before its j-th backward.  With n_0 = 0 and end(j) = the number of chunks up
 * to the end of the group of backward j,
 *
 *     n_j = max(n_{j-1} + admit(j), end(j))
 *     stage s has run n_j + (p - 1 - s) forwards, or all
 *
 * A backward admits one forward, as in 1F1B; one whose chunk was recomputed
 * admits none, because the recompute took the slot that it frees.
 *
 * (1) Groups of one chunk give 1F1B; groups of N a warm-up of p - 2 - s + N.
 * (2) Stage s never holds more than K + (p - 1 - s) chunks: it runs p - 1 - s
 *     forwards ahead of the last stage, which holds at most K.
 * (3) Every stage counts the same n_j.  So a forward in the round of backward j
 *     on stage s is in that round or an earlier one on stage s - 1, and stages
 *     never wait for each other in a circle.  p - 1 - s warm-up forwards and
 *     then strict alternation, without n_j, would serialise the pipeline.
 *
 * A single stage has no bubble to fill: there a backward admits nothing, each
 * group runs alone (Algorithm 2), and only one group's KV state is alive.
 */
#include "pipeline.h"

void cf_one_f_one_b(const cf_chunk_plan *plan, const cf_schedule_params *params,
                    uint32_t stage, cf_op *ops)
{
    const uint32_t k = params->retained_chunks_max;
    const uint64_t n_chunks = plan->n_chunks;
    const uint32_t n_ahead = params->n_stages - 1 - stage;
    const uint32_t n_admitted = params->n_stages > 1 ? 1 : 0;
    cf_group group = cf_group_at(plan, 0, k);
    cf_group ahead = group; /* the group whose forwards run now */
    uint64_t n_due = 0;     /* n_j */
    uint32_t forward = 0;   /* next in the stream of forwards */

    while (group.n_chunks > 0) {
        uint32_t end = cf_group_end(&group);

        for (uint32_t chunk = end; chunk-- > group.first_chunk;) {
            if (!cf_group_drops(&group, chunk))
                n_due += n_admitted;
            if (n_due < end)
                n_due = end;

            while (forward < n_chunks && forward < n_due + n_ahead) {
                if (forward == cf_group_end(&ahead))
                    ahead = cf_group_at(plan, forward, k);
                *ops++ = cf_group_forward(&ahead, forward++);
            }
            ops = cf_group_backward(&group, chunk, ops);
        }
        group = cf_group_at(plan, end, k);
    }
}
