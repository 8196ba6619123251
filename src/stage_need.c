/* stage_need.c - see stage_need.h.
 *
 * The bounds follow from how far a stage's forwards run ahead of the group whose
 * backwards run (one_f_one_b.c).  Let K be the kept chunks of a group, at most as
 * many as the longest has, and a = p - 1 - s.
 *
 * (1) While backwards of standalone chunks run, p - s chunks are between forward
 *     and backward, the one in its backward included: n_j grows by one a round.
 * (2) In the backwards of a group, forwards of later groups: E = K - 1 + a.  A
 *     kept chunk's backward admits one, and only the last K of a group are kept;
 *     where the next group is longer, its own forwards use them up.
 * (3) The group itself is there whole, with all that it dropped until their
 *     recomputes begin; ahead of it may be nothing but dropped chunks.
 * (4) Where long groups run first, what is ahead may be standalone chunks, and the
 *     lead of the last long group stays: E of them besides the one in its backward.
 *
 * With one stage nothing runs ahead: a = E = 0.  tests/property holds all of it
 * against every small batch.
 */
#include "src/stage_need.h"

#include <stdbool.h>

#include "src/kv_state.h"

static uint32_t min_u64(uint64_t a, uint64_t b)
{
    return (uint32_t)(a < b ? a : b);
}

static uint32_t max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* ---- the bound ---- */

/* A load, and what follows from it. */
typedef struct bounding {
    cf_stage_load load;
    bool whole;       /* every sequence is one chunk */
    uint32_t kept;    /* K, of the longest group */
    uint32_t abreast; /* chunks between forward and backward, as in (1) */
    uint32_t ahead;   /* E of (2) */
    size_t n_long;    /* sequences that are cut */
} bounding;

static bool is_whole(const cf_schedule_params *params)
{
    return params->kind == CF_SCHEDULE_1F1B ||
           params->kind == CF_SCHEDULE_1F1B_RECOMPUTE;
}

static uint32_t parts_of(const bounding *b, size_t i)
{
    const uint32_t len = b->load.len_tok[i], size = b->load.chunk_size_tok;

    return b->whole ? 1 : len / size + (len % size != 0);
}

static bounding bounding_of(const cf_stage_load *load)
{
    const cf_schedule_params *params = &load->params;
    const uint32_t n_behind = params->n_stages - 1 - load->stage;
    bounding b = {.load = *load, .whole = is_whole(params), .abreast = 1};
    uint64_t n_chunks = 0;

    while (b.n_long < load->n && parts_of(&b, b.n_long) > 1)
        b.n_long++;
    for (size_t i = 0; i < load->n; i++)
        n_chunks += parts_of(&b, i);
    if (params->retained_chunks_max == 0)
        return b;
    b.kept = min_u64(params->retained_chunks_max, parts_of(&b, 0));
    b.abreast = min_u64((uint64_t)n_behind + 1, n_chunks);
    if (params->n_stages > 1)
        b.ahead = min_u64((uint64_t)b.kept - 1 + n_behind, n_chunks);
    return b;
}

static uint32_t slots_bound(const bounding *b)
{
    if (b->load.params.kind == CF_SCHEDULE_1F1B_RECOMPUTE)
        return min_u64(b->load.params.retained_chunks_max, 1);
    if (b->kept == 0)
        return 0;
    return b->kept - 1 + b->abreast;
}

static uint32_t dropped_bound(const bounding *b)
{
    uint64_t first = 0, others = 0;

    if (b->kept == 0 || b->load.params.kind == CF_SCHEDULE_PAPER ||
        b->load.params.kind == CF_SCHEDULE_1F1B)
        return 0;
    if (b->load.params.kind == CF_SCHEDULE_1F1B_RECOMPUTE)
        return b->abreast;
    for (size_t i = 0; i < b->n_long && parts_of(b, i) > b->kept; i++)
        *(i == 0 ? &first : &others) += parts_of(b, i) - b->kept;
    return (uint32_t)first + min_u64(b->ahead, others);
}

/* Whether there can be standalone chunks behind a long group. */
static bool has_tail(const bounding *b)
{
    return b->n_long > 0 && b->load.params.kind == CF_SCHEDULE_LONG_FIRST;
}

static uint32_t pages_bound(const bounding *b, uint32_t chunk_pages)
{
    const uint32_t abreast_pages = b->abreast * chunk_pages;
    uint64_t others = 0;

    if (b->n_long == 0)
        return abreast_pages;
    for (size_t i = 1; i < b->n_long; i++)
        others += cf_kv_pages(b->load.len_tok[i]);
    if (has_tail(b))
        others += (uint64_t)(b->load.n - 1) * chunk_pages;
    return max_u32(abreast_pages,
                   cf_kv_pages(b->load.len_tok[0]) +
                       min_u64((uint64_t)b->ahead * chunk_pages, others));
}

/* Tokens of the largest chunk. */
static uint32_t chunk_tok_of(const bounding *b)
{
    uint64_t batch_tok = 0;

    if (b->whole)
        return b->load.len_tok[0];
    for (size_t i = 0; i < b->load.n; i++)
        batch_tok += b->load.len_tok[i];
    return min_u64(b->load.chunk_size_tok, batch_tok);
}

static uint32_t standalone_bound(const bounding *b)
{
    const uint32_t in_tail = has_tail(b) ? 1 + b->ahead : 0;

    return min_u64(max_u32(b->abreast, in_tail), b->load.n);
}

/* A long group is at least two chunks. */
static uint32_t groups_bound(const bounding *b)
{
    const uint64_t ahead =
        has_tail(b) ? b->ahead : ((uint64_t)b->ahead + 1) / 2;
    const size_t n = has_tail(b) ? b->load.n : b->n_long;

    return max_u32(standalone_bound(b), min_u64(1 + ahead, n));
}

cf_stage_need cf_stage_need_bound(const cf_stage_load *load)
{
    const bounding b = bounding_of(load);

    return (cf_stage_need){
        .n_slots = slots_bound(&b),
        .n_dropped = dropped_bound(&b),
        .n_pages = pages_bound(&b, cf_kv_pages(chunk_tok_of(&b))),
        .n_groups = groups_bound(&b),
        .n_standalone = standalone_bound(&b),
    };
}

/* ---- one step ---- */

static void raise_to(cf_stage_need *most, const cf_stage_need *held)
{
    most->n_slots = max_u32(most->n_slots, held->n_slots);
    most->n_dropped = max_u32(most->n_dropped, held->n_dropped);
    most->n_pages = max_u32(most->n_pages, held->n_pages);
    most->n_groups = max_u32(most->n_groups, held->n_groups);
    most->n_standalone = max_u32(most->n_standalone, held->n_standalone);
}

/* Pages of a group up to the end of a chunk. */
static uint32_t pages_up_to(const cf_chunk *chunk)
{
    return cf_kv_pages(chunk->prefix_tok + chunk->n_tok);
}

/* A forward, which is the chunk's first: a recompute adds no pages. */
static void forward(cf_stage_need *held, const cf_chunk *chunk)
{
    held->n_pages += pages_up_to(chunk) - cf_kv_pages(chunk->prefix_tok);
    if (chunk->in_group > 0)
        return;
    held->n_groups++;
    held->n_standalone += chunk->kind == CF_CHUNK_STANDALONE;
}

static void backward(cf_stage_need *held, const cf_chunk_plan *plan,
                     uint32_t chunk)
{
    held->n_slots--;
    if (plan->chunks[chunk].in_group > 0)
        return;
    held->n_pages -= cf_kv_pages(cf_group_tok(plan, chunk));
    held->n_groups--;
    held->n_standalone -= plan->chunks[chunk].kind == CF_CHUNK_STANDALONE;
}

cf_stage_need cf_stage_need_of(const cf_chunk_plan *plan,
                               const cf_schedule *schedule, uint32_t stage)
{
    const bool drops = schedule->params.kind != CF_SCHEDULE_PAPER;
    cf_stage_need held = {0}, most = {0};

    for (size_t i = schedule->first_op[stage];
         i < schedule->first_op[stage + 1]; i++) {
        const cf_op op = schedule->ops[i];

        switch (op.kind) {
        case CF_OP_FORWARD:
            held.n_dropped += drops;
            forward(&held, &plan->chunks[op.chunk]);
            break;
        case CF_OP_FORWARD_KEEP:
            held.n_slots++;
            forward(&held, &plan->chunks[op.chunk]);
            break;
        case CF_OP_RECOMPUTE:
            held.n_slots++;
            held.n_dropped -= drops;
            break;
        case CF_OP_BACKWARD:
            backward(&held, plan, op.chunk);
            break;
        default:
            break;
        }
        raise_to(&most, &held);
    }
    return most;
}

int cf_stage_need_fits(const cf_stage_need *need, const cf_stage_need *bound)
{
    return need->n_slots <= bound->n_slots &&
           need->n_dropped <= bound->n_dropped &&
           need->n_pages <= bound->n_pages &&
           need->n_groups <= bound->n_groups &&
           need->n_standalone <= bound->n_standalone;
}
