/* schedule_oracle.c - a second opinion on schedules, for tests. */
#include "schedule_oracle.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>

#define NOWHERE SIZE_MAX

/* The messages of a recompute that travels, told from those of its forward by
 * being the second. */
enum {
    RECV_AGAIN = CF_OP_KIND_COUNT,
    SEND_AGAIN,
    PLACES
};

struct oracle {
    const cf_chunk_plan *plan;
    const cf_schedule *schedule;
    size_t n_chunks;
    uint32_t n_stages;
    bool travels;   /* recomputes do */
    size_t *places; /* [n_stages, PLACES, n_chunks] */
};

static size_t *place(const struct oracle *o, uint32_t stage, int kind,
                     size_t chunk)
{
    return &o->places[(stage * (size_t)PLACES + (size_t)kind) * o->n_chunks +
                      chunk];
}

/* Where to note an op of this kind, NULL when there was one already. */
static size_t *free_place(const struct oracle *o, uint32_t stage,
                          cf_op_kind kind, size_t chunk)
{
    size_t *first = place(o, stage, (int)kind, chunk);
    size_t *again = NULL;

    if (*first == NOWHERE)
        return first;
    if (o->travels && kind == CF_OP_RECV_ACT)
        again = place(o, stage, RECV_AGAIN, chunk);
    if (o->travels && kind == CF_OP_SEND_ACT)
        again = place(o, stage, SEND_AGAIN, chunk);
    return again != NULL && *again == NOWHERE ? again : NULL;
}

static size_t n_stage_ops(const struct oracle *o, uint32_t stage)
{
    return o->schedule->first_op[stage + 1] - o->schedule->first_op[stage];
}

static const char *note_places(const struct oracle *o)
{
    for (size_t i = 0; i < o->n_stages * PLACES * o->n_chunks; i++)
        o->places[i] = NOWHERE;
    for (uint32_t s = 0; s < o->n_stages; s++) {
        for (size_t i = 0; i < n_stage_ops(o, s); i++) {
            cf_op op = o->schedule->ops[o->schedule->first_op[s] + i];
            size_t *where;

            if ((unsigned)op.kind >= CF_OP_KIND_COUNT ||
                op.chunk >= o->n_chunks)
                return "names";
            where = free_place(o, s, op.kind, op.chunk);
            if (where == NULL)
                return "twice";
            *where = i;
        }
    }
    return NULL;
}

/* Is the operation there exactly when it should be? */
static bool there(const struct oracle *o, uint32_t s, int kind, size_t c,
                  bool wanted)
{
    return (*place(o, s, kind, c) != NOWHERE) == wanted;
}

static size_t forward_place(const struct oracle *o, uint32_t s, size_t c)
{
    size_t drop = *place(o, s, CF_OP_FORWARD, c);

    return drop != NOWHERE ? drop : *place(o, s, CF_OP_FORWARD_KEEP, c);
}

/* The second pair of messages surrounds the recompute, behind the first. */
static const char *judge_travel(const struct oracle *o, uint32_t s, size_t c)
{
    size_t recompute = *place(o, s, CF_OP_RECOMPUTE, c);

    if (s > 0 && (*place(o, s, RECV_AGAIN, c) < forward_place(o, s, c) ||
                  *place(o, s, RECV_AGAIN, c) > recompute))
        return "received again for the recompute";
    if (s + 1 < o->n_stages && (*place(o, s, CF_OP_SEND_ACT, c) > recompute ||
                                *place(o, s, SEND_AGAIN, c) < recompute))
        return "sent again behind the recompute";
    return NULL;
}

static const char *judge_chunk(const struct oracle *o, uint32_t s, size_t c)
{
    bool first = s == 0;
    bool last = s + 1 == o->n_stages;
    bool drops = *place(o, s, CF_OP_FORWARD, c) != NOWHERE;
    size_t forward = forward_place(o, s, c);
    size_t recompute = *place(o, s, CF_OP_RECOMPUTE, c);
    size_t backward = *place(o, s, CF_OP_BACKWARD, c);
    const char *broken;

    if (!there(o, s, CF_OP_FORWARD_KEEP, c, !drops) ||
        !there(o, s, CF_OP_RECOMPUTE, c, drops) ||
        !there(o, s, CF_OP_BACKWARD, c, true) ||
        !there(o, s, CF_OP_RECV_ACT, c, !first) ||
        !there(o, s, CF_OP_SEND_ACT, c, !last) ||
        !there(o, s, CF_OP_RECV_GRAD, c, !last) ||
        !there(o, s, CF_OP_SEND_GRAD, c, !first) ||
        !there(o, s, RECV_AGAIN, c, o->travels && drops && !first) ||
        !there(o, s, SEND_AGAIN, c, o->travels && drops && !last))
        return "complete";
    if (backward < forward)
        return "backward behind forward";
    if (drops && (recompute < forward || backward < recompute))
        return "recompute between forward and backward";
    if (!first && (*place(o, s, CF_OP_RECV_ACT, c) > forward ||
                   *place(o, s, CF_OP_SEND_GRAD, c) < backward))
        return "messages of the previous stage";
    if (!last && (*place(o, s, CF_OP_SEND_ACT, c) < forward ||
                  *place(o, s, CF_OP_RECV_GRAD, c) > backward))
        return "messages of the next stage";

    if (o->travels && drops) {
        broken = judge_travel(o, s, c);
        if (broken != NULL)
            return broken;
    }

    /* KV state of every earlier chunk: there, and not given back. */
    for (size_t e = c - o->plan->chunks[c].in_group; e < c; e++) {
        if (forward_place(o, s, e) > forward)
            return "forwards ascend";
        if (*place(o, s, CF_OP_BACKWARD, e) < backward)
            return "backwards descend";
        if (drops && *place(o, s, CF_OP_BACKWARD, e) < recompute)
            return "KV state in a recompute";
    }
    return NULL;
}

static const char *judge_groups(const struct oracle *o, uint32_t s)
{
    const cf_chunk *chunks = o->plan->chunks;
    const bool long_first = o->schedule->params.kind == CF_SCHEDULE_LONG_FIRST;
    size_t before = NOWHERE; /* the first chunk of the group before: it runs
                                last of its group */

    for (int pass = long_first ? 0 : 1; pass < 2; pass++) {
        size_t end;

        for (size_t c = 0; c < o->n_chunks; c = end) {
            for (end = c + 1;
                 end < o->n_chunks && chunks[end].group == chunks[c].group;)
                end++;
            if (long_first && (end > c + 1) != (pass == 0))
                continue;
            if (before != NOWHERE && *place(o, s, CF_OP_BACKWARD, end - 1) <
                                         *place(o, s, CF_OP_BACKWARD, before))
                return "groups in order";
            before = c;
        }
    }
    return NULL;
}

static const char *judge_retention(const struct oracle *o, uint32_t s)
{
    uint64_t max = o->n_stages - 1 - s;
    uint64_t kept = 0;

    if (o->schedule->params.kind == CF_SCHEDULE_1F1B)
        max += 1;
    else if (o->schedule->params.kind == CF_SCHEDULE_1F1B_RECOMPUTE)
        max = 1;
    else
        max += o->schedule->params.retained_chunks_max;

    for (size_t i = 0; i < n_stage_ops(o, s); i++) {
        cf_op_kind kind = o->schedule->ops[o->schedule->first_op[s] + i].kind;

        if (kind == CF_OP_FORWARD_KEEP || kind == CF_OP_RECOMPUTE)
            kept++;
        if (kind == CF_OP_BACKWARD)
            kept--;
        if (kept > max)
            return "retention";
    }
    return NULL;
}

static size_t count_ops(const struct oracle *o, uint32_t s, cf_op_kind kind)
{
    size_t n = 0;

    for (size_t i = o->schedule->first_op[s]; i < o->schedule->first_op[s + 1];
         i++)
        n += o->schedule->ops[i].kind == kind;
    return n;
}

/* The index into ops of the n-th op of this kind on a stage. */
static size_t find_nth(const struct oracle *o, uint32_t s, cf_op_kind kind,
                       size_t *from)
{
    size_t i = *from;

    while (o->schedule->ops[i].kind != kind)
        i++;
    assert(i < o->schedule->first_op[s + 1]);
    *from = i + 1;
    return i;
}

/* Edges of the graph: pairs[2 * i] must come before pairs[2 * i + 1]. */
struct edges {
    size_t *pairs;
    size_t n;
};

static void add_edge(struct edges *edges, size_t before, size_t after)
{
    edges->pairs[2 * edges->n] = before;
    edges->pairs[2 * edges->n + 1] = after;
    edges->n++;
}

static const char *add_link(const struct oracle *o, struct edges *edges,
                            uint32_t sender, uint32_t receiver, bool grad)
{
    cf_op_kind send = grad ? CF_OP_SEND_GRAD : CF_OP_SEND_ACT;
    cf_op_kind receive = grad ? CF_OP_RECV_GRAD : CF_OP_RECV_ACT;
    size_t from_sender = o->schedule->first_op[sender];
    size_t from_receiver = o->schedule->first_op[receiver];
    size_t last_received = NOWHERE;
    size_t n_messages = count_ops(o, sender, send);

    if (count_ops(o, receiver, receive) != n_messages)
        return "as many received as sent";
    for (size_t n = 0; n < n_messages; n++) {
        size_t sent = find_nth(o, sender, send, &from_sender);
        size_t received = find_nth(o, receiver, receive, &from_receiver);

        if (o->schedule->ops[sent].chunk != o->schedule->ops[received].chunk)
            return "messages match";
        add_edge(edges, sent, received);
        if (last_received != NOWHERE) /* one buffered message */
            add_edge(edges, last_received, sent);
        last_received = received;
    }
    return NULL;
}

/* Take away nodes that wait for nothing until none is left (Kahn 1962). */
static bool has_circle(const struct edges *edges, size_t n_nodes)
{
    size_t *n_waits = calloc(n_nodes + 1, sizeof(*n_waits));
    size_t *first = calloc(n_nodes + 2, sizeof(*first));
    size_t *after = calloc(edges->n + 1, sizeof(*after));
    size_t *ready = calloc(n_nodes + 1, sizeof(*ready));
    size_t n_ready = 0;
    size_t n_gone = 0;

    for (size_t e = 0; e < edges->n; e++) {
        first[edges->pairs[2 * e] + 2]++;
        n_waits[edges->pairs[2 * e + 1]]++;
    }
    for (size_t i = 2; i < n_nodes + 2; i++)
        first[i] += first[i - 1];
    for (size_t e = 0; e < edges->n; e++)
        after[first[edges->pairs[2 * e] + 1]++] = edges->pairs[2 * e + 1];
    for (size_t i = 0; i < n_nodes; i++) {
        if (n_waits[i] == 0)
            ready[n_ready++] = i;
    }
    for (; n_gone < n_ready; n_gone++) {
        size_t node = ready[n_gone];

        for (size_t e = first[node]; e < first[node + 1]; e++) {
            if (--n_waits[after[e]] == 0)
                ready[n_ready++] = after[e];
        }
    }
    free(n_waits);
    free(first);
    free(after);
    free(ready);
    return n_gone < n_nodes;
}

static const char *judge_links(const struct oracle *o)
{
    size_t n_ops = o->schedule->first_op[o->n_stages];
    struct edges edges = {0};
    const char *broken = NULL;

    edges.pairs = calloc(2 * (n_ops + 6 * o->n_chunks * o->n_stages) + 1,
                         sizeof(*edges.pairs));
    assert(edges.pairs != NULL);
    for (uint32_t s = 0; s < o->n_stages; s++) {
        size_t end = o->schedule->first_op[s + 1];

        for (size_t i = o->schedule->first_op[s]; i + 1 < end; i++)
            add_edge(&edges, i, i + 1);
    }
    for (uint32_t s = 0; s + 1 < o->n_stages && broken == NULL; s++) {
        broken = add_link(o, &edges, s, s + 1, false);
        if (broken == NULL)
            broken = add_link(o, &edges, s + 1, s, true);
    }
    if (broken == NULL && has_circle(&edges, n_ops))
        broken = "deadlock";
    free(edges.pairs);
    return broken;
}

const char *oracle_judge(const cf_chunk_plan *plan, const cf_schedule *schedule)
{
    struct oracle o = {plan,
                       schedule,
                       plan->n_chunks,
                       schedule->params.n_stages,
                       schedule->params.kind == CF_SCHEDULE_PAPER,
                       NULL};
    const char *broken;

    o.places = calloc(o.n_stages * PLACES * o.n_chunks + 1, sizeof(*o.places));
    assert(o.places != NULL);
    broken = note_places(&o);
    for (uint32_t s = 0; s < o.n_stages && broken == NULL; s++) {
        for (size_t c = 0; c < o.n_chunks && broken == NULL; c++)
            broken = judge_chunk(&o, s, c);
        if (broken == NULL)
            broken = judge_groups(&o, s);
        if (broken == NULL)
            broken = judge_retention(&o, s);
    }
    if (broken == NULL)
        broken = judge_links(&o);
    free(o.places);
    return broken;
}
