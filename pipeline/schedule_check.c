/* schedule_check.c - proof that a schedule is legal, whoever wrote it.
 *
 * Each stage alone, one walk over its list:
 *
 * (1) Complete: each chunk has one forward, F or K, after an F one recompute,
 *     and one backward behind the forward that kept.  Nothing happens twice.
 * (2) Forwards of a group ascend.
 * (3) Backwards run in the canonical order: groups in the order of the kind,
 *     which is plan order but for long-first, chunks of a group descending.  Gradients are then summed in the same order, and have
 *     the same bits, for every K and every number of stages.
 * (4) A forward, recompute or backward finds the KV state of all earlier chunks
 *     of its group: forward done, backward not yet, when pages may be freed.
 * (5) Stage s of p never holds more chunks than the kind of schedule allows: K
 *     + (p - 1 - s), but see cf_retained_max.
 * (6) What comes from a neighbour is received before it is used, what goes to
 *     one is sent after it was made, each once.  A recompute sends and receives
 *     nothing, unless it travels: then it does both again.
 *
 * All stages together, one dry run:
 *
 * (7) Both ends of a link name the same chunk at the same place in their order.
 * (8) With one buffered message a link and direction every stage ends.
 *
 * The time is linear in the number of ops.
 */
#include <string.h>

#include "pipeline.h"

/* What a stage has done with a chunk so far. */
enum {
    FORWARDED = 1 << 0,
    DROPPED = 1 << 1,  /* its forward dropped, and it was not recomputed yet */
    RETAINED = 1 << 2, /* its activations are here */
    BACKWARDED = 1 << 3,
    HAS_ACT = 1 << 4, /* received */
    SENT_ACT = 1 << 5,
    HAS_GRAD = 1 << 6, /* received */
    SENT_GRAD = 1 << 7
};

/* One stage's list on its way through the rules. */
struct walk {
    const cf_chunk_plan *plan;
    const cf_schedule_params *params;
    uint8_t *done; /* [n_chunks] of the flags above */
    bool has_previous;
    bool has_next;
    bool recompute_travels;
    uint64_t retained_max;
    uint64_t n_retained;
    size_t n_recomputes;
    size_t n_backwards;
    size_t n_messages;
    uint32_t next_backward; /* the canonical one, while there is one */
    cf_group group;         /* of next_backward */
};

/* A stage in the dry run: where it stands, and the message that waits for it at
 * the end of either link. */
struct position {
    size_t next; /* index into schedule->ops */
    uint32_t act;
    uint32_t grad;
};

#define NO_MESSAGE UINT32_MAX /* no chunk: a plan has at most UINT32_MAX */

cf_status cf_schedule_check_scratch(size_t n_chunks, uint32_t n_stages,
                                    size_t *scratch_bytes_p)
{
    if (n_stages > (SIZE_MAX - n_chunks) / sizeof(struct position))
        return CF_OVERFLOW;
    *scratch_bytes_p = n_stages * sizeof(struct position) + n_chunks;
    return CF_OK;
}

/* Rules of one op.  Each function returns what is broken, or NULL. */

/* (4), for all earlier chunks: the previous one was held to it as well. */
static bool has_prefix(const struct walk *walk, uint32_t chunk)
{
    if (walk->plan->chunks[chunk].in_group == 0)
        return true;
    return (walk->done[chunk - 1] & (FORWARDED | BACKWARDED)) == FORWARDED;
}

static const char *retain(struct walk *walk, uint32_t chunk)
{
    if (walk->n_retained == walk->retained_max)
        return "more chunks are retained than K and the stages behind allow";
    walk->n_retained++;
    walk->done[chunk] |= RETAINED;
    return NULL;
}

static const char *walk_forward(struct walk *walk, cf_op op)
{
    uint8_t *done = &walk->done[op.chunk];

    if (*done & FORWARDED)
        return "the chunk had its forward already";
    if (!has_prefix(walk, op.chunk))
        return "a forward needs the KV state of the group's earlier chunks";
    if (walk->has_previous && !(*done & HAS_ACT))
        return "a forward needs the activations of the previous stage";
    *done |= FORWARDED;
    if (op.kind == CF_OP_FORWARD_KEEP)
        return retain(walk, op.chunk);
    *done |= DROPPED;
    if (walk->recompute_travels)
        *done &= (uint8_t)~HAS_ACT; /* used up: it comes again */
    return NULL;
}

/* The messages of a recompute that travels: received once more, and what its
 * forward made is on its way. */
static const char *walk_travel(const struct walk *walk, uint8_t *done)
{
    if (walk->has_previous && !(*done & HAS_ACT))
        return "this recompute needs the activations of the previous stage";
    if (walk->has_next && !(*done & SENT_ACT))
        return "this recompute comes behind the send of its forward";
    *done &= (uint8_t)~SENT_ACT;
    return NULL;
}

static const char *walk_recompute(struct walk *walk, cf_op op)
{
    uint8_t *done = &walk->done[op.chunk];

    if (!(*done & DROPPED))
        return "only a dropped chunk is recomputed, and only once";
    if (!has_prefix(walk, op.chunk))
        return "a recompute needs the KV state of the group's earlier chunks";
    if (walk->recompute_travels) {
        const char *rule = walk_travel(walk, done);

        if (rule != NULL)
            return rule;
    }
    walk->n_recomputes++;
    *done &= (uint8_t)~DROPPED;
    return retain(walk, op.chunk);
}

/* Make the last chunk of the group, if there is one, the next backward. */
static void expect_group(struct walk *walk, cf_group group)
{
    if (group.n_chunks == 0)
        return;
    walk->group = group;
    walk->next_backward = cf_group_end(&group) - 1;
}

static const char *walk_backward(struct walk *walk, cf_op op)
{
    uint8_t *done = &walk->done[op.chunk];

    if (*done & BACKWARDED)
        return "the chunk had its backward already";
    if (op.chunk != walk->next_backward)
        return "backwards run groups in order, chunks descending";
    if (!(*done & RETAINED))
        return "a backward needs the activations of its chunk";
    if (!has_prefix(walk, op.chunk))
        return "a backward needs the KV state of the group's earlier chunks";
    if (walk->has_next && !(*done & HAS_GRAD))
        return "a backward needs the gradient of the next stage";

    *done |= BACKWARDED;
    *done &= (uint8_t)~RETAINED;
    walk->n_retained--;
    walk->n_backwards++;
    if (walk->plan->chunks[op.chunk].in_group > 0)
        walk->next_backward--;
    else
        expect_group(walk,
                     cf_group_next(walk->plan, walk->params, &walk->group));
    return NULL;
}

/* A message over a link that is there, once, behind what it needs. */
static const char *walk_message(struct walk *walk, cf_op op, bool is_link,
                                unsigned needs, unsigned sets)
{
    uint8_t *done = &walk->done[op.chunk];

    if (!is_link)
        return "there is no stage at the other end of this message";
    if (*done & sets)
        return "the message was sent or received already";
    if ((*done & needs) != needs)
        return "a send comes behind the operation that makes its message";
    *done |= (uint8_t)sets;
    walk->n_messages++;
    return NULL;
}

static const char *walk_op(struct walk *walk, cf_op op)
{
    if (op.chunk >= walk->plan->n_chunks)
        return "the plan has no such chunk";
    switch (op.kind) {
    case CF_OP_FORWARD:
    case CF_OP_FORWARD_KEEP:
        return walk_forward(walk, op);
    case CF_OP_RECOMPUTE:
        return walk_recompute(walk, op);
    case CF_OP_BACKWARD:
        return walk_backward(walk, op);
    case CF_OP_SEND_ACT:
        return walk_message(walk, op, walk->has_next, FORWARDED, SENT_ACT);
    case CF_OP_RECV_ACT:
        return walk_message(walk, op, walk->has_previous, 0, HAS_ACT);
    case CF_OP_SEND_GRAD:
        return walk_message(walk, op, walk->has_previous, BACKWARDED,
                            SENT_GRAD);
    case CF_OP_RECV_GRAD:
        return walk_message(walk, op, walk->has_next, 0, HAS_GRAD);
    case CF_OP_KIND_COUNT:
        break;
    }
    return "there is no such operation";
}

/* With every backward done, (1) has held for every chunk, and every receive
 * that is needed was there: only sends can still be missing. */
static const char *walk_end(const struct walk *walk)
{
    size_t n_links =
        (walk->has_previous ? 1u : 0u) + (walk->has_next ? 1u : 0u);
    size_t n_messages = 2 * walk->plan->n_chunks;

    if (walk->recompute_travels)
        n_messages += walk->n_recomputes;
    if (walk->n_backwards < walk->plan->n_chunks)
        return "the list ends before every chunk had its backward";
    if (walk->n_messages < n_links * n_messages)
        return "the list ends before every message was sent";
    return NULL;
}

/* Rules (1) to (6) for the stage where_p->stage. */
static cf_status check_stage(const cf_chunk_plan *plan,
                             const cf_schedule *schedule, uint8_t *done,
                             cf_op_ref *where_p)
{
    const size_t first = schedule->first_op[where_p->stage];
    const size_t n_ops = schedule->first_op[where_p->stage + 1] - first;
    struct walk walk = {
        .plan = plan,
        .params = &schedule->params,
        .done = done,
        .has_previous = where_p->stage > 0,
        .has_next = where_p->stage + 1 < schedule->params.n_stages,
        .recompute_travels = cf_recompute_travels(&schedule->params),
        .retained_max = cf_retained_max(&schedule->params, where_p->stage),
    };

    expect_group(&walk, cf_group_first(plan, &schedule->params));
    memset(done, 0, plan->n_chunks);
    for (size_t i = 0; i < n_ops; i++) {
        where_p->op = i;
        where_p->rule = walk_op(&walk, schedule->ops[first + i]);
        if (where_p->rule != NULL)
            return CF_MALFORMED;
    }
    where_p->op = n_ops;
    where_p->rule = walk_end(&walk);
    return where_p->rule == NULL ? CF_OK : CF_MALFORMED;
}

enum outcome {
    RAN,
    BLOCKED,
    MISMATCHED
};

static enum outcome put_message(uint32_t *slot, uint32_t chunk)
{
    if (*slot != NO_MESSAGE)
        return BLOCKED;
    *slot = chunk;
    return RAN;
}

static enum outcome take_message(uint32_t *slot, uint32_t chunk)
{
    if (*slot == NO_MESSAGE)
        return BLOCKED;
    if (*slot != chunk)
        return MISMATCHED;
    *slot = NO_MESSAGE;
    return RAN;
}

/* One op of the dry run.  Compute never blocks. */
static enum outcome run_op(struct position *stage, cf_op op)
{
    switch (op.kind) {
    case CF_OP_SEND_ACT:
        return put_message(&stage[1].act, op.chunk);
    case CF_OP_RECV_ACT:
        return take_message(&stage->act, op.chunk);
    case CF_OP_SEND_GRAD:
        return put_message(&stage[-1].grad, op.chunk);
    case CF_OP_RECV_GRAD:
        return take_message(&stage->grad, op.chunk);
    default:
        return RAN;
    }
}

/* Run a stage until it blocks or ends.  *met_previous_p says whether a message
 * passed on the link to the previous stage. */
static enum outcome run_stage(const cf_schedule *schedule,
                              struct position *stage, size_t end,
                              bool *met_previous_p)
{
    *met_previous_p = false;
    for (; stage->next < end; stage->next++) {
        const cf_op op = schedule->ops[stage->next];
        enum outcome outcome = run_op(stage, op);

        if (outcome != RAN)
            return outcome;
        if (op.kind == CF_OP_RECV_ACT || op.kind == CF_OP_SEND_GRAD)
            *met_previous_p = true;
    }
    return RAN;
}

/* Rules (7) and (8).  When the loop looks at a stage, all stages in front of it
 * are blocked or finished.  A stage can only be freed by its neighbours: so if
 * this one met its previous stage, that one is next, else the following.  Each
 * step back has used a message up, so the loop is linear. */
static cf_status dry_run(const cf_schedule *schedule,
                         struct position *positions, cf_op_ref *where_p)
{
    const uint32_t n_stages = schedule->params.n_stages;
    const size_t *first_op = schedule->first_op;
    uint32_t stage = 0;

    for (uint32_t s = 0; s < n_stages; s++)
        positions[s] = (struct position){first_op[s], NO_MESSAGE, NO_MESSAGE};

    while (stage < n_stages) {
        bool met_previous;
        enum outcome outcome = run_stage(schedule, &positions[stage],
                                         first_op[stage + 1], &met_previous);

        if (outcome == MISMATCHED) {
            where_p->stage = stage;
            where_p->op = positions[stage].next - first_op[stage];
            where_p->rule = "the message that arrives is of another chunk";
            return CF_MALFORMED;
        }
        stage = met_previous ? stage - 1 : stage + 1;
    }

    for (uint32_t s = 0; s < n_stages; s++) {
        if (positions[s].next < first_op[s + 1]) {
            where_p->stage = s;
            where_p->op = positions[s].next - first_op[s];
            where_p->rule = "the stages wait for each other from here on";
            return CF_DEADLOCK;
        }
    }
    /* Stages may drop different chunks.  Where a recompute travels, the next
     * stage then has a message that it does not want. */
    for (uint32_t s = 0; s < n_stages; s++) {
        if (positions[s].act != NO_MESSAGE || positions[s].grad != NO_MESSAGE) {
            where_p->stage = s;
            where_p->op = first_op[s + 1] - first_op[s];
            where_p->rule = "the list ends before every message was received";
            return CF_MALFORMED;
        }
    }
    return CF_OK;
}

/* The lists lie behind each other within capacity. */
static cf_status check_ranges(const cf_schedule *schedule, cf_op_ref *where_p)
{
    const size_t *first_op = schedule->first_op;

    if (first_op[0] != 0) {
        where_p->rule = "the first list does not start at 0";
        return CF_MALFORMED;
    }
    for (uint32_t s = 0; s < schedule->params.n_stages; s++) {
        where_p->stage = s;
        if (first_op[s + 1] < first_op[s] ||
            first_op[s + 1] > schedule->ops_capacity) {
            where_p->rule = "the list ends before it starts or past capacity";
            return CF_MALFORMED;
        }
    }
    return CF_OK;
}

cf_status cf_schedule_check(const cf_chunk_plan *plan,
                            const cf_schedule *schedule, cf_op_ref *where_p)
{
    struct position *positions = schedule->scratch;
    cf_schedule_need need;
    cf_status status;

    *where_p = (cf_op_ref){0};
    status = cf_schedule_bound(plan, &schedule->params, &need);
    if (status != CF_OK)
        return status;
    if (schedule->scratch_bytes < need.scratch_bytes)
        return CF_NO_SPACE;

    status = check_ranges(schedule, where_p);
    for (uint32_t s = 0; status == CF_OK && s < schedule->params.n_stages;
         s++) {
        uint8_t *done = (uint8_t *)(positions + schedule->params.n_stages);

        where_p->stage = s;
        status = check_stage(plan, schedule, done, where_p);
    }
    if (status == CF_OK)
        status = dry_run(schedule, positions, where_p);
    if (status == CF_OK)
        *where_p = (cf_op_ref){0};
    return status;
}
