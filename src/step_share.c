/* step_share.c - see step_share.h. */
#include "src/step_share.h"

#include <inttypes.h>

#include "src/hash.h"
#include "src/log.h"

typedef struct hashes {
    uint64_t plan;
    uint64_t placement;
} hashes;

_Static_assert(sizeof(hashes) <= sizeof(cf_step_share),
               "both are gathered in one place");

void cf_step_shares_carve(cf_step_shares *shares, cf_comm *comm,
                          const cf_grid *grid, cf_arena *arena)
{
    *shares = (cf_step_shares){.comm = comm, .grid = grid};
    shares->all = cf_arena_take(arena, CF_LIFETIME_RUN, "bookkeeping",
                                (size_t)grid->n_replicas * grid->n_stages,
                                sizeof(cf_step_share));
}

/* ---- before the first op ---- */

static uint64_t plan_hash(const cf_step_plan *plan)
{
    const cf_chunk_plan *chunks = &plan->chunks;
    const cf_schedule *s = &plan->schedule;
    cf_hash hash;

    cf_hash_begin(&hash);
    cf_hash_append(&hash, plan->sequences,
                   plan->n_sequences * sizeof(*plan->sequences));
    cf_hash_append(&hash, chunks->chunks,
                   chunks->n_chunks * sizeof(*chunks->chunks));
    cf_hash_append(&hash, chunks->pieces,
                   chunks->n_pieces * sizeof(*chunks->pieces));
    cf_hash_append(&hash, s->ops,
                   s->first_op[s->params.n_stages] * sizeof(*s->ops));
    return cf_hash_end(&hash);
}

static uint64_t placement_hash(const cf_step_plan *plan)
{
    cf_hash hash;

    cf_hash_begin(&hash);
    cf_hash_append(&hash, plan->batch, plan->n_batch * sizeof(*plan->batch));
    if (plan->replica_of != NULL)
        cf_hash_append(&hash, plan->replica_of,
                       plan->n_batch * sizeof(*plan->replica_of));
    return cf_hash_end(&hash);
}

/* The first rank whose hashes are not those they should be; n_ranks: none. */
static uint32_t first_different(const cf_grid *grid, const hashes *all,
                                const char **what_p)
{
    const uint32_t n_ranks = grid->n_replicas * grid->n_stages;
    uint32_t rank;

    for (rank = 0; rank < n_ranks; rank++) {
        *what_p = "placement of sequences on replicas";
        if (all[rank].placement != all[0].placement)
            break;
        *what_p = "plan";
        if (all[rank].plan != all[rank - rank % grid->n_stages].plan)
            break;
    }
    return rank;
}

cf_status cf_step_shares_plan(const cf_step_shares *shares,
                              const cf_step_plan *plan, uint64_t step)
{
    const uint32_t n_ranks = cf_comm_size(shares->comm);
    const hashes mine = {plan_hash(plan), placement_hash(plan)};
    const char *what;
    uint32_t rank;
    cf_status status;

    cf_comm_note(shares->comm, step, UINT32_MAX, "compare plans");
    status = cf_comm_gather(shares->comm, &mine, sizeof(mine), shares->all);
    if (status != CF_OK)
        return status;
    rank = first_different(shares->grid, shares->all, &what);
    if (rank == n_ranks)
        return CF_OK;
    cf_log_error("step %" PRIu64 ": rank %u has another %s than the ranks "
                 "before it: start all ranks with one build of chunkflow, the "
                 "same options and the same data",
                 step, (unsigned)rank, what);
    return cf_comm_agree(shares->comm, CF_INVALID);
}

/* ---- after the last op ---- */

static void add_up(const cf_grid *grid, const cf_step_share *all,
                   cf_step_report *report)
{
    double busy_s = 0, stage_s = 0;

    report->loss = 0;
    for (uint32_t replica = 0; replica < grid->n_replicas; replica++) {
        double span_s = 0;

        for (uint32_t stage = 0; stage < grid->n_stages; stage++) {
            const cf_step_share *share =
                &all[cf_grid_rank(grid, replica, stage)];

            report->loss += share->loss;
            report->chunks += share->chunks;
            report->recomputed_chunks += share->recomputed;
            report->sent_bytes += share->sent_bytes;
            if (share->peak_bytes > report->peak_bytes)
                report->peak_bytes = share->peak_bytes;
            if (share->waited_s > report->waited_s)
                report->waited_s = share->waited_s;
            if (share->span_s > span_s)
                span_s = share->span_s;
            busy_s += share->busy_s;
        }
        stage_s += span_s * grid->n_stages;
    }
    if (stage_s > 0)
        report->bubble_ratio = 1 - busy_s / stage_s;
}

cf_status cf_step_shares_results(const cf_step_shares *shares,
                                 const cf_step_share *mine,
                                 cf_step_report *report)
{
    cf_status status;

    cf_comm_note(shares->comm, report->step, UINT32_MAX, "results of the step");
    status = cf_comm_gather(shares->comm, mine, sizeof(*mine), shares->all);
    if (status == CF_OK)
        add_up(shares->grid, shares->all, report);
    return status;
}
