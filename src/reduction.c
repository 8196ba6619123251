/* reduction.c - see reduction.h. */
#include "src/reduction.h"

#include <string.h>

enum {
    PIECE_ELEMENTS = 1 << 18 /* summed while in the cache */
};

/* ---- memory ---- */

void cf_reduction_carve(cf_reduction *r, cf_comm *comm, const cf_grid *grid,
                        cf_model *model, cf_arena *arena)
{
    const uint32_t n = grid->n_replicas;

    *r = (cf_reduction){.comm = comm, .grid = grid, .model = model};
    if (n == 1)
        return;
    r->pieces =
        cf_arena_take(arena, CF_LIFETIME_OP, "gradients of replicas",
                      (size_t)n * PIECE_ELEMENTS, model->kernels->acc_bytes);
    r->sends = cf_arena_take(arena, CF_LIFETIME_RUN, "bookkeeping", n,
                             sizeof(*r->sends));
    r->recvs = cf_arena_take(arena, CF_LIFETIME_RUN, "bookkeeping", n,
                             sizeof(*r->recvs));
}

void cf_reduction_begin_step(cf_reduction *r, uint64_t step)
{
    r->step = step;
    r->sent_bytes = 0;
}

/* ---- messages ---- */

static cf_status send_now(cf_reduction *r, uint32_t to, const void *data,
                          size_t bytes)
{
    cf_request request = {0};
    cf_status status = cf_comm_send(r->comm, to, data, bytes, &request);

    r->sent_bytes += bytes;
    return status == CF_OK ? cf_comm_wait(r->comm, &request) : status;
}

static cf_status recv_now(cf_reduction *r, uint32_t from, void *data,
                          size_t bytes)
{
    cf_request request = {0};
    cf_status status = cf_comm_recv(r->comm, from, data, bytes, &request);

    return status == CF_OK ? cf_comm_wait(r->comm, &request) : status;
}

/* The same stage of another replica. */
static uint32_t peer(const cf_reduction *r, uint32_t replica)
{
    return cf_grid_rank(r->grid, replica, r->grid->stage);
}

static cf_status wait_all(cf_reduction *r, cf_request *requests)
{
    for (uint32_t i = 0; i < r->grid->n_replicas; i++) {
        cf_status status = cf_comm_wait(r->comm, &requests[i]);

        if (status != CF_OK)
            return status;
    }
    return CF_OK;
}

/* ---- a tied weight ---- */

/* Whether first and last stage have one weight to keep equal. */
static bool ties_stages(const cf_reduction *r)
{
    const cf_model *model = r->model;

    return r->grid->n_stages > 1 && model->config.tied &&
           model->params[0].trained &&
           (model->stage.is_first || model->stage.is_last);
}

static size_t tied_bytes(const cf_model *model)
{
    return (size_t)model->config.vocab * model->config.hidden *
           model->kernels->acc_bytes;
}

static uint32_t first_rank(const cf_reduction *r)
{
    return cf_grid_rank(r->grid, r->grid->replica, 0);
}

static uint32_t last_rank(const cf_reduction *r)
{
    return cf_grid_rank(r->grid, r->grid->replica, r->grid->n_stages - 1);
}

/* The head's accumulator, from the last stage to the first. */
static cf_status tied_gradient_move(cf_reduction *r)
{
    cf_model *model = r->model;

    if (!ties_stages(r))
        return CF_OK;
    cf_comm_note(r->comm, r->step, UINT32_MAX,
                 "gradient of the tied embedding");
    if (model->stage.is_last)
        return send_now(r, first_rank(r), model->d_head, tied_bytes(model));
    return recv_now(r, last_rank(r), model->d_head, tied_bytes(model));
}

/* The updated weight, from the first stage to the last. */
static cf_status tied_weight_move(cf_reduction *r)
{
    cf_model *model = r->model;
    void *weight = cf_model_at(model, model->masters, &model->params[0]);

    if (!ties_stages(r))
        return CF_OK;
    cf_comm_note(r->comm, r->step, UINT32_MAX, "weights of the tied embedding");
    if (model->stage.is_first)
        return send_now(r, last_rank(r), weight, tied_bytes(model));
    return recv_now(r, first_rank(r), weight, tied_bytes(model));
}

/* ---- gradients over replicas ---- */

typedef struct range {
    size_t begin, end; /* elements of the gradients */
} range;

/* Piece number `index` of a replica's shard; empty behind its end. */
static range piece_of(const cf_reduction *r, uint32_t replica, size_t index)
{
    const uint32_t n = r->grid->n_replicas;
    const size_t end = cf_model_shard_at(r->model, replica + 1, n);
    const size_t begin =
        cf_model_shard_at(r->model, replica, n) + index * PIECE_ELEMENTS;

    if (begin >= end)
        return (range){end, end};
    return (range){begin,
                   end - begin < PIECE_ELEMENTS ? end : begin + PIECE_ELEMENTS};
}

static void *gradient_at(const cf_reduction *r, size_t element)
{
    return cf_at(r->model->gradients, element * r->model->kernels->acc_bytes);
}

static void *piece_at(const cf_reduction *r, uint32_t replica)
{
    return cf_at(r->pieces, (size_t)replica * PIECE_ELEMENTS *
                                r->model->kernels->acc_bytes);
}

/* One piece of every shard to the replica that owns it, and this one's piece
 * from all others. */
static cf_status pieces_exchange(cf_reduction *r, size_t index)
{
    const size_t acc_bytes = r->model->kernels->acc_bytes;
    const range mine = piece_of(r, r->grid->replica, index);
    cf_status status = CF_OK;

    for (uint32_t i = 0; i < r->grid->n_replicas && status == CF_OK; i++) {
        const range theirs = piece_of(r, i, index);
        const size_t bytes = (theirs.end - theirs.begin) * acc_bytes;

        if (i == r->grid->replica)
            continue;
        if (mine.end > mine.begin)
            status =
                cf_comm_recv(r->comm, peer(r, i), piece_at(r, i),
                             (mine.end - mine.begin) * acc_bytes, &r->recvs[i]);
        if (status != CF_OK || bytes == 0)
            continue;
        status = cf_comm_send(r->comm, peer(r, i), gradient_at(r, theirs.begin),
                              bytes, &r->sends[i]);
        r->sent_bytes += bytes;
    }
    if (status == CF_OK)
        status = wait_all(r, r->recvs);
    return status == CF_OK ? wait_all(r, r->sends) : status;
}

/* Sum what replicas have of a piece, from replica 0 on, in its place. */
static void piece_sum(cf_reduction *r, range piece)
{
    const cf_kernels *k = r->model->kernels;
    const size_t n = piece.end - piece.begin;
    void *own = gradient_at(r, piece.begin);
    void *sum = r->grid->replica == 0 ? own : piece_at(r, 0);

    for (uint32_t i = 1; i < r->grid->n_replicas; i++)
        k->add(k, n, i == r->grid->replica ? own : piece_at(r, i), sum);
    if (sum != own)
        memcpy(own, sum, n * k->acc_bytes);
}

/* Pieces of the longest shard. */
static size_t n_pieces(const cf_reduction *r)
{
    const uint32_t n = r->grid->n_replicas;
    size_t most = 0;

    for (uint32_t i = 0; i < n; i++) {
        size_t elements = cf_model_shard_at(r->model, i + 1, n) -
                          cf_model_shard_at(r->model, i, n);

        if (elements > most)
            most = elements;
    }
    return (most + PIECE_ELEMENTS - 1) / PIECE_ELEMENTS;
}

static cf_status gradients_scatter(cf_reduction *r)
{
    const size_t n = r->grid->n_replicas > 1 ? n_pieces(r) : 0;

    cf_comm_note(r->comm, r->step, UINT32_MAX,
                 "sum of the gradients over replicas");
    for (size_t i = 0; i < n; i++) {
        cf_status status = pieces_exchange(r, i);

        if (status != CF_OK)
            return status;
        piece_sum(r, piece_of(r, r->grid->replica, i));
    }
    return CF_OK;
}

cf_status cf_reduction_gradients(cf_reduction *r)
{
    cf_status status = tied_gradient_move(r);

    if (status != CF_OK)
        return status;
    cf_model_finish_gradients(r->model);
    return gradients_scatter(r);
}

cf_status cf_reduction_norm(cf_reduction *r, double *norm_p)
{
    cf_model *model = r->model;
    cf_status status;

    cf_model_norm_partials(model);
    cf_comm_note(r->comm, r->step, UINT32_MAX, "gradient norm");
    status = cf_comm_sum_sparse(r->comm, model->n_norm_partials,
                                model->norm_partials);
    if (status == CF_OK)
        *norm_p = cf_model_norm(model);
    return status;
}

/* ---- weights over replicas ---- */

/* What of a tensor lies in a range of the flat gradients: its own elements. */
static range overlap(const cf_param *p, range flat)
{
    const size_t begin = p->trained_offset, end = begin + p->n;

    if (flat.begin < begin)
        flat.begin = begin;
    if (flat.end > end)
        flat.end = end;
    if (flat.begin >= flat.end)
        return (range){0, 0};
    return (range){flat.begin - begin, flat.end - begin};
}

/* Elements [part.begin, part.end) of a tensor, from the replica that updated
 * them to the others. */
static cf_status part_spread(cf_reduction *r, const cf_param *p, range part,
                             uint32_t from)
{
    const size_t acc_bytes = r->model->kernels->acc_bytes;
    const size_t bytes = (part.end - part.begin) * acc_bytes;
    void *data = cf_at(cf_model_at(r->model, r->model->masters, p),
                       part.begin * acc_bytes);
    cf_status status = CF_OK;

    if (from != r->grid->replica)
        return recv_now(r, peer(r, from), data, bytes);
    for (uint32_t i = 0; i < r->grid->n_replicas && status == CF_OK; i++) {
        if (i == from)
            continue;
        status = cf_comm_send(r->comm, peer(r, i), data, bytes, &r->sends[i]);
        r->sent_bytes += bytes;
    }
    return status == CF_OK ? wait_all(r, r->sends) : status;
}

static cf_status weights_gather(cf_reduction *r)
{
    const cf_model *model = r->model;
    const uint32_t n = r->grid->n_replicas;
    cf_status status = CF_OK;

    cf_comm_note(r->comm, r->step, UINT32_MAX, "weights of other replicas");
    for (size_t i = 0; n > 1 && i < model->n_params; i++) {
        const cf_param *p = &model->params[i];

        if (!p->trained || !p->owned)
            continue;
        for (uint32_t from = 0; from < n && status == CF_OK; from++) {
            const range shard = {cf_model_shard_at(model, from, n),
                                 cf_model_shard_at(model, from + 1, n)};
            const range part = overlap(p, shard);

            if (part.end > part.begin)
                status = part_spread(r, p, part, from);
        }
    }
    return status;
}

cf_status cf_reduction_weights(cf_reduction *r)
{
    cf_status status = weights_gather(r);

    if (status == CF_OK)
        status = tied_weight_move(r);
    if (status == CF_OK)
        cf_model_pack(r->model);
    return status;
}
