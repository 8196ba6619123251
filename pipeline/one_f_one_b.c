/* one_f_one_b.c - many groups on one of p stages: aligned state-aware 1F1B
 * (Yuan et al. 2025, the extension of 1F1B, made precise).
 *
 * Groups run in plan order, or the long ones first (cf_group_next).  Forwards of
 * a group ascend and its backwards descend, on every stage and for every K:
 * gradients are then summed in one order.  What is left to choose is how many forwards a stage has run
 * before its j-th backward.  With n_0 = 0 and need(j) = the place, in the
 * stream of forwards, behind the last one that backward j waits for,
 *
 *     n_j = max(n_{j-1} + admit(j), need(j))
 *     stage s has run n_j + (p - 1 - s) forwards, or all
 *
 * need(j) is the end of the group of backward j.  A recompute that travels
 * through the pipeline belongs to the stream: the recomputes of a group follow
 * its forwards, descending, and need(j) is behind the one of backward j.
 *
 * A backward admits one forward, as in 1F1B; one whose chunk was recomputed on
 * the spot admits none, because the recompute took the slot that it frees.
 * Where nothing is kept there are no slots, and it admits one as well.
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

/* The stream of forwards: group after group, of each the forwards ascending,
 * then, where recomputes travel, those descending. */
typedef struct forward_stream {
    const cf_chunk_plan *plan;
    const cf_schedule_params *params;
    bool has_recomputes;
    cf_group group;    /* the one whose forwards run now */
    uint32_t in_group; /* how many of them ran */
    uint64_t n_run;    /* in all */
} forward_stream;

/* What a group adds to the stream. */
static uint32_t n_in_stream(const forward_stream *stream, const cf_group *group)
{
    return group->n_chunks + (stream->has_recomputes ? group->n_dropped : 0);
}

/* Write the next of the stream to *op_p; false when all ran. */
static bool next_forward(forward_stream *stream, cf_op *op_p)
{
    cf_group *group = &stream->group;

    if (stream->in_group == n_in_stream(stream, group)) {
        *group = cf_group_next(stream->plan, stream->params, group);
        stream->in_group = 0;
        if (group->n_chunks == 0)
            return false;
    }
    if (stream->in_group < group->n_chunks) {
        *op_p = cf_group_forward(group, group->first_chunk + stream->in_group);
    } else {
        uint32_t n_again = stream->in_group - group->n_chunks;

        *op_p = (cf_op){CF_OP_RECOMPUTE,
                        group->first_chunk + group->n_dropped - 1 - n_again};
    }
    stream->in_group++;
    stream->n_run++;
    return true;
}

/* How many of its group's share of the stream the backward of a chunk needs. */
static uint32_t n_needed(const forward_stream *stream, const cf_group *group,
                         uint32_t chunk)
{
    if (!stream->has_recomputes || !cf_group_drops(group, chunk))
        return group->n_chunks;
    return group->n_chunks + group->n_dropped - (chunk - group->first_chunk);
}

void cf_one_f_one_b(const cf_chunk_plan *plan, const cf_schedule_params *params,
                    uint32_t stage, cf_op *ops)
{
    const uint32_t n_ahead = params->n_stages - 1 - stage;
    const uint32_t n_admitted = params->n_stages > 1 ? 1 : 0;
    const bool takes_slot =
        !cf_recompute_travels(params) && !cf_recompute_waits(params);
    cf_group group = cf_group_first(plan, params);
    forward_stream stream = {.plan = plan,
                             .params = params,
                             .has_recomputes = cf_recompute_travels(params),
                             .group = group};
    uint64_t n_before = 0; /* of the stream, in earlier groups */
    uint64_t n_due = 0;    /* n_j */

    while (group.n_chunks > 0) {
        for (uint32_t chunk = cf_group_end(&group);
             chunk-- > group.first_chunk;) {
            const bool dropped = cf_group_drops(&group, chunk);
            const uint64_t need = n_before + n_needed(&stream, &group, chunk);

            if (!dropped || !takes_slot)
                n_due += n_admitted;
            if (n_due < need)
                n_due = need;
            while (stream.n_run < n_due + n_ahead && next_forward(&stream, ops))
                ops++;
            if (dropped && !stream.has_recomputes)
                *ops++ = (cf_op){CF_OP_RECOMPUTE, chunk};
            *ops++ = (cf_op){CF_OP_BACKWARD, chunk};
        }
        n_before += n_in_stream(&stream, &group);
        group = cf_group_next(plan, params, &group);
    }
}
