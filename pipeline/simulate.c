/* simulate.c - a schedule run on paper, under a cost model.
 *
 * (1) The lists are the executor's, and nothing is reordered: when an op runs
 *     follows from its place and from the message that it waits for, so the
 *     order in which the stages are looked at changes nothing.
 * (2) Messages pair up by position: the n-th receive of a link and direction
 *     takes the n-th send.  That is what the checker has proved.
 * (3) Work on one stage never overlaps, so what a stage holds at most is seen
 *     on the walk over its list, without a clock.
 * (4) A recompute is work, not idle time, and of no use.
 */
#include <chunkflow/simulate.h>

#include "pipeline.h"

#define COST_MAX 1e300 /* far above any time, far below infinity */

struct message {
    double sent;
    double arrives; /* once received: when the receive had it */
};

/* The messages of one link in one direction, in the order sent. */
struct link {
    struct message *messages;
    size_t n_sent;
    size_t n_received;
};

/* Where a stage stands, and what it holds. */
struct stage {
    size_t next; /* index into schedule->ops */
    double now;
    double busy;
    struct link act;  /* to this stage, from the previous one */
    struct link grad; /* to this stage, from the next one */
    cf_stage_peak held;
};

struct run {
    const cf_chunk_plan *plan;
    const cf_schedule *schedule;
    const cf_cost_model *cost;
    cf_simulation *simulation;
    struct stage *stages;
    cf_status status; /* of what is broken */
    const char *rule;
};

enum outcome {
    RAN,
    WAITS,
    BROKEN
};

/* ---- scratch ---- */

static bool is_send(cf_op_kind kind)
{
    return kind == CF_OP_SEND_ACT || kind == CF_OP_SEND_GRAD;
}

/* How many ops of a kind a stage has. */
static size_t count_ops(const cf_schedule *schedule, uint32_t stage,
                        cf_op_kind kind)
{
    size_t n = 0;

    for (size_t i = schedule->first_op[stage];
         i < schedule->first_op[stage + 1]; i++)
        n += schedule->ops[i].kind == kind;
    return n;
}

cf_status cf_simulate_bound(const cf_schedule *schedule,
                            size_t *scratch_bytes_p)
{
    const uint32_t n_stages = schedule->params.n_stages;
    const size_t n_ops = schedule->first_op[n_stages];
    size_t n_messages = 0;
    size_t bytes;

    for (size_t i = 0; i < n_ops; i++)
        n_messages += is_send(schedule->ops[i].kind);
    if (n_messages > SIZE_MAX / 2 / sizeof(struct message))
        return CF_OVERFLOW;
    bytes = n_messages * sizeof(struct message);
    if (n_stages > (SIZE_MAX - bytes) / sizeof(struct stage))
        return CF_OVERFLOW;
    *scratch_bytes_p = bytes + n_stages * sizeof(struct stage);
    return CF_OK;
}

static void open_stages(struct run *r)
{
    const cf_schedule *schedule = r->schedule;
    const uint32_t n_stages = schedule->params.n_stages;
    struct message *next = (struct message *)(void *)(r->stages + n_stages);

    for (uint32_t s = 0; s < n_stages; s++) {
        r->stages[s] = (struct stage){.next = schedule->first_op[s]};
        r->simulation->peaks[s] = (cf_stage_peak){0};
    }
    for (uint32_t s = 0; s < n_stages; s++) {
        if (s + 1 < n_stages) {
            r->stages[s + 1].act.messages = next;
            next += count_ops(schedule, s, CF_OP_SEND_ACT);
        }
        if (s > 0) {
            r->stages[s - 1].grad.messages = next;
            next += count_ops(schedule, s, CF_OP_SEND_GRAD);
        }
    }
}

/* ---- what a stage holds ---- */

static void raise_to(uint64_t *peak, uint64_t value)
{
    if (*peak < value)
        *peak = value;
}

static void keep(cf_stage_peak *held, cf_stage_peak *peak, uint64_t n_tok)
{
    held->kept_tok += n_tok;
    held->kept_chunks++;
    raise_to(&peak->kept_tok, held->kept_tok);
    raise_to(&peak->kept_chunks, held->kept_chunks);
}

/* Whether the chunk shares its group, and so its KV state outlives it. */
static bool has_company(const cf_chunk_plan *plan, uint32_t chunk)
{
    return plan->chunks[chunk].in_group > 0 ||
           (chunk + (size_t)1 < plan->n_chunks &&
            plan->chunks[chunk + 1].group == plan->chunks[chunk].group);
}

/* Count a compute op; what it frees is free behind it. */
static void hold(const struct run *r, uint32_t stage, cf_op op)
{
    cf_stage_peak *held = &r->stages[stage].held;
    cf_stage_peak *peak = &r->simulation->peaks[stage];
    const uint64_t n_tok = r->plan->chunks[op.chunk].n_tok;
    const uint64_t kv_tok = has_company(r->plan, op.chunk) ? n_tok : 0;
    const bool stores_input =
        stage > 0 && !cf_recompute_travels(&r->schedule->params);

    switch (op.kind) {
    case CF_OP_FORWARD:
        held->kv_tok += kv_tok;
        held->input_tok += stores_input ? n_tok : 0;
        break;
    case CF_OP_FORWARD_KEEP:
        held->kv_tok += kv_tok;
        keep(held, peak, n_tok);
        break;
    case CF_OP_RECOMPUTE:
        held->input_tok -= stores_input ? n_tok : 0;
        keep(held, peak, n_tok);
        break;
    default:
        held->kept_tok -= n_tok;
        held->kept_chunks--;
        held->kv_tok -= kv_tok;
        break;
    }
    raise_to(&peak->kv_tok, held->kv_tok);
    raise_to(&peak->input_tok, held->input_tok);
}

/* ---- time ---- */

static bool is_cost(double cost)
{
    return cost >= 0 && cost < COST_MAX; /* false for NaN */
}

static enum outcome broken(struct run *r, cf_status status, const char *rule)
{
    r->status = status;
    r->rule = rule;
    return BROKEN;
}

static enum outcome run_compute(struct run *r, uint32_t stage, cf_op op)
{
    struct stage *state = &r->stages[stage];
    double cost = r->cost->compute(r->cost->context, r->plan, stage, op);

    if (!is_cost(cost))
        return broken(r, CF_INVALID, "its cost is negative or not finite");
    state->now += cost;
    state->busy += cost;
    hold(r, stage, op);
    return RAN;
}

static enum outcome run_send(struct run *r, uint32_t stage, cf_op op,
                             struct link *link)
{
    const cf_cost_model *cost = r->cost;
    const double now = r->stages[stage].now;
    struct message *message = &link->messages[link->n_sent];
    double travel = 0;

    if (cost->message != NULL)
        travel = cost->message(cost->context, r->plan, stage, op);
    if (!is_cost(travel))
        return broken(r, CF_INVALID, "its cost is negative or not finite");
    message->sent = now;
    message->arrives = now + travel;
    link->n_sent++;
    return RAN;
}

/* One that would overtake another waits for it: so does the stage. */
static enum outcome run_receive(struct stage *state, struct link *link)
{
    struct message *message;

    if (link->n_received == link->n_sent)
        return WAITS;
    message = &link->messages[link->n_received++];
    if (state->now < message->arrives)
        state->now = message->arrives;
    message->arrives = state->now;
    return RAN;
}

static enum outcome run_op(struct run *r, uint32_t stage, cf_op op)
{
    const uint32_t n_stages = r->schedule->params.n_stages;

    if (op.chunk >= r->plan->n_chunks)
        return broken(r, CF_MALFORMED, "the plan has no such chunk");
    switch (op.kind) {
    case CF_OP_FORWARD:
    case CF_OP_FORWARD_KEEP:
    case CF_OP_RECOMPUTE:
    case CF_OP_BACKWARD:
        return run_compute(r, stage, op);
    case CF_OP_SEND_ACT:
        if (stage + 1 < n_stages)
            return run_send(r, stage, op, &r->stages[stage + 1].act);
        break;
    case CF_OP_RECV_ACT:
        if (stage > 0)
            return run_receive(&r->stages[stage], &r->stages[stage].act);
        break;
    case CF_OP_SEND_GRAD:
        if (stage > 0)
            return run_send(r, stage, op, &r->stages[stage - 1].grad);
        break;
    case CF_OP_RECV_GRAD:
        if (stage + 1 < n_stages)
            return run_receive(&r->stages[stage], &r->stages[stage].grad);
        break;
    case CF_OP_KIND_COUNT:
        break;
    }
    return broken(r, CF_MALFORMED, "there is no such operation on this stage");
}

/* Run a stage until it waits or ends.  *met_previous_p says whether a message
 * passed on the link to the previous stage. */
static enum outcome run_stage(struct run *r, uint32_t stage,
                              bool *met_previous_p)
{
    struct stage *state = &r->stages[stage];
    cf_op_time *times = r->simulation->times;

    *met_previous_p = false;
    while (state->next < r->schedule->first_op[stage + 1]) {
        const cf_op op = r->schedule->ops[state->next];
        const double start = state->now;
        enum outcome outcome = run_op(r, stage, op);

        if (outcome != RAN)
            return outcome;
        if (times != NULL)
            times[state->next] = (cf_op_time){start, state->now};
        if (op.kind == CF_OP_RECV_ACT || op.kind == CF_OP_SEND_GRAD)
            *met_previous_p = true;
        state->next++;
    }
    return RAN;
}

static cf_status stopped(const struct run *r, uint32_t stage,
                         cf_op_ref *where_p)
{
    where_p->stage = stage;
    where_p->op = r->stages[stage].next - r->schedule->first_op[stage];
    where_p->rule = r->rule;
    return r->status;
}

/* Look at the stages as the dry run of the checker does: all in front of the
 * one looked at wait or are done, and a message on the link to the previous one
 * may have freed that. */
static cf_status run_all(struct run *r, cf_op_ref *where_p)
{
    const uint32_t n_stages = r->schedule->params.n_stages;
    uint32_t stage = 0;

    while (stage < n_stages) {
        bool met_previous;

        if (run_stage(r, stage, &met_previous) == BROKEN)
            return stopped(r, stage, where_p);
        stage = met_previous ? stage - 1 : stage + 1;
    }
    for (stage = 0; stage < n_stages; stage++) {
        if (r->stages[stage].next < r->schedule->first_op[stage + 1]) {
            (void)broken(r, CF_DEADLOCK,
                         "the stages wait for each other from here on");
            return stopped(r, stage, where_p);
        }
    }
    return CF_OK;
}

/* ---- results ---- */

/* The most that were on their way when one was received: the number falls only
 * there.  One that is sent in the moment of a receive comes behind it. */
static uint64_t most_on_their_way(const struct link *link)
{
    uint64_t most = 0;
    size_t n_sent = 0;

    for (size_t i = 0; i < link->n_received; i++) {
        if (n_sent < i + 1)
            n_sent = i + 1;
        while (n_sent < link->n_sent &&
               link->messages[n_sent].sent < link->messages[i].arrives)
            n_sent++;
        raise_to(&most, n_sent - i);
    }
    return most;
}

/* One forward and one backward of every chunk, on every stage. */
static double useful_time(const struct run *r)
{
    const cf_cost_model *cost = r->cost;
    double sum = 0;

    for (uint32_t s = 0; s < r->schedule->params.n_stages; s++) {
        for (uint32_t c = 0; c < r->plan->n_chunks; c++)
            sum += cost->compute(cost->context, r->plan, s,
                                 (cf_op){CF_OP_FORWARD_KEEP, c}) +
                   cost->compute(cost->context, r->plan, s,
                                 (cf_op){CF_OP_BACKWARD, c});
    }
    return sum;
}

static void sum_up(const struct run *r)
{
    const uint32_t n_stages = r->schedule->params.n_stages;
    cf_simulation *simulation = r->simulation;
    double busy = 0;
    double all;

    simulation->makespan = 0;
    for (uint32_t s = 0; s < n_stages; s++) {
        const struct stage *state = &r->stages[s];
        uint64_t *messages = &simulation->peaks[s].messages;

        busy += state->busy;
        if (simulation->makespan < state->now)
            simulation->makespan = state->now;
        raise_to(messages, most_on_their_way(&state->act));
        raise_to(messages, most_on_their_way(&state->grad));
    }
    all = n_stages * simulation->makespan;
    simulation->bubble_ratio = all > 0 ? (all - busy) / all : 0;
    simulation->useful = all > 0 ? useful_time(r) / all : 0;
}

cf_status cf_simulate(const cf_chunk_plan *plan, const cf_schedule *schedule,
                      const cf_cost_model *cost, cf_simulation *simulation,
                      cf_op_ref *where_p)
{
    struct run r = {.plan = plan,
                    .schedule = schedule,
                    .cost = cost,
                    .simulation = simulation,
                    .stages = simulation->scratch};
    size_t scratch_bytes;
    cf_status status;

    *where_p = (cf_op_ref){0};
    status = cf_simulate_bound(schedule, &scratch_bytes);
    if (status != CF_OK)
        return status;
    if (simulation->scratch_bytes < scratch_bytes)
        return CF_NO_SPACE;

    open_stages(&r);
    status = run_all(&r, where_p);
    if (status == CF_OK)
        sum_up(&r);
    return status;
}
