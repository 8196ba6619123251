/* kv_state.c - see kv_state.h. */
#include "src/kv_state.h"

#include <assert.h>

uint32_t cf_kv_pages(uint32_t n_tok)
{
    return n_tok / CF_PAGE_TOK + (n_tok % CF_PAGE_TOK != 0);
}

uint32_t cf_group_tok(const cf_chunk_plan *plan, uint32_t chunk)
{
    while (!cf_group_ends(plan, chunk))
        chunk++;
    return plan->chunks[chunk].prefix_tok + plan->chunks[chunk].n_tok;
}

int cf_group_ends(const cf_chunk_plan *plan, uint32_t chunk)
{
    return chunk + 1 == plan->n_chunks ||
           plan->chunks[chunk + 1].group != plan->chunks[chunk].group;
}

/* Elements of one page of one of K, V, dK, dV in one layer. */
static size_t page_elements(const cf_kv_state *kv)
{
    return (size_t)kv->shape.n_kv_heads * CF_PAGE_TOK * kv->shape.head_dim;
}

void cf_kv_state_carve(cf_kv_state *kv, const cf_kernels *kernels,
                       const cf_attn_shape *shape, uint32_t n_layers,
                       uint32_t n_backward_layers, const cf_kv_need *need,
                       cf_arena *arena)
{
    size_t layer, standalone_pages;

    *kv = (cf_kv_state){.shape = *shape,
                        .n_layers = n_layers,
                        .n_backward_layers = n_backward_layers,
                        .kernels = kernels,
                        .n_runs = need->n_groups};
    layer = page_elements(kv) * need->n_pages;
    cf_pool_carve(arena, need->n_pages, &kv->pages);
    kv->k = cf_arena_take(arena, CF_LIFETIME_GROUP, "KV state",
                          layer * n_layers, kernels->act_bytes);
    kv->v = cf_arena_take(arena, CF_LIFETIME_GROUP, "KV state",
                          layer * n_layers, kernels->act_bytes);
    if (n_backward_layers > 0) {
        kv->dk =
            cf_arena_take(arena, CF_LIFETIME_GROUP, "gradients of the KV state",
                          layer * n_backward_layers, kernels->acc_bytes);
        kv->dv =
            cf_arena_take(arena, CF_LIFETIME_GROUP, "gradients of the KV state",
                          layer * n_backward_layers, kernels->acc_bytes);
    }

    standalone_pages = (size_t)need->n_pieces + cf_kv_pages(need->chunk_tok);
    kv->table_capacity = cf_kv_pages(need->sequence_tok);
    if (kv->table_capacity < standalone_pages)
        kv->table_capacity = standalone_pages;
    kv->runs = cf_arena_take(arena, CF_LIFETIME_RUN, "bookkeeping",
                             need->n_groups, sizeof(*kv->runs));
    kv->pieces = cf_arena_take(arena, CF_LIFETIME_RUN, "bookkeeping",
                               need->n_pieces, sizeof(*kv->pieces));
    kv->table = cf_arena_take(arena, CF_LIFETIME_RUN, "bookkeeping",
                              4 * kv->table_capacity, sizeof(*kv->table));
}

size_t cf_kv_state_bytes(const cf_kv_state *kv, uint32_t n_pages)
{
    const size_t layers_bytes = kv->n_layers * kv->kernels->act_bytes +
                                kv->n_backward_layers * kv->kernels->acc_bytes;

    return page_elements(kv) * 2 * n_pages * layers_bytes;
}

static cf_kv_run *run_find(cf_kv_state *kv, uint32_t group)
{
    for (uint32_t i = 0; i < kv->n_runs; i++)
        if (kv->runs[i].n_pages > 0 && kv->runs[i].group == group)
            return &kv->runs[i];
    return NULL;
}

cf_status cf_kv_state_append(cf_kv_state *kv, const cf_chunk_plan *plan,
                             uint32_t chunk)
{
    const uint32_t group = plan->chunks[chunk].group;
    const uint32_t n_pages = cf_kv_pages(cf_group_tok(plan, chunk));
    cf_kv_run *run = kv->runs;
    cf_status status;

    if (run_find(kv, group) != NULL)
        return CF_OK;
    while (run < kv->runs + kv->n_runs && run->n_pages > 0)
        run++;
    if (run == kv->runs + kv->n_runs)
        return CF_NO_SPACE;
    status = cf_pool_take(&kv->pages, n_pages, &run->first_page);
    if (status != CF_OK)
        return status;
    run->group = group;
    run->n_pages = n_pages;
    return CF_OK;
}

/* Offset in elements of a page of a layer. */
static size_t page_offset(const cf_kv_state *kv, uint32_t layer, uint32_t page)
{
    return ((size_t)layer * kv->pages.n_blocks + page) * page_elements(kv);
}

/* Elements of dK, or dV, that the layers without a backward would take: what
 * page_offset counts too much there. */
static size_t frozen_elements(const cf_kv_state *kv)
{
    return page_offset(kv, kv->n_layers - kv->n_backward_layers, 0);
}

/* Fill n entries of one of the four page tables, from `at` on: the first page
 * is at `first`, the others follow every step bytes. */
static void *const *table_fill(cf_kv_state *kv, unsigned table, size_t at,
                               size_t n, void *first, size_t step)
{
    void **entries = kv->table + table * kv->table_capacity + at;

    assert(at + n <= kv->table_capacity);
    for (size_t i = 0; i < n; i++)
        entries[i] = cf_at(first, i * step);
    return entries;
}

/* The same for all four of a piece; first and step in elements. */
static void piece_fill(cf_kv_state *kv, size_t at, size_t n, size_t first,
                       size_t step, cf_gradients gradients,
                       cf_attn_piece *piece)
{
    const size_t act = kv->kernels->act_bytes, acc = kv->kernels->acc_bytes;

    piece->k = table_fill(kv, 0, at, n, cf_at(kv->k, first * act), step * act);
    piece->v = table_fill(kv, 1, at, n, cf_at(kv->v, first * act), step * act);
    if (gradients == CF_GRADIENTS_NO)
        return;
    first -= frozen_elements(kv);
    piece->dk =
        table_fill(kv, 2, at, n, cf_at(kv->dk, first * acc), step * acc);
    piece->dv =
        table_fill(kv, 3, at, n, cf_at(kv->dv, first * acc), step * acc);
}

cf_attn_batch cf_kv_state_batch(cf_kv_state *kv, const cf_chunk_plan *plan,
                                uint32_t chunk, uint32_t layer,
                                cf_gradients gradients)
{
    const cf_chunk *c = &plan->chunks[chunk];
    const cf_kv_run *run = run_find(kv, c->group);
    const size_t head_dim = kv->shape.head_dim;
    const size_t page_stride = CF_PAGE_TOK * head_dim;
    size_t base, at = 0;
    uint32_t row = 0;

    assert(run != NULL);
    base = page_offset(kv, layer, run->first_page);
    for (uint32_t i = 0; i < c->n_pieces; i++) {
        const cf_piece *p = &plan->pieces[c->first_piece + i];
        cf_attn_piece *piece = &kv->pieces[i];

        *piece = (cf_attn_piece){
            .row = row, .n_tok = p->n_tok, .prefix_tok = c->prefix_tok};
        if (c->kind == CF_CHUNK_DEPENDENT) {
            piece->head_stride = page_stride;
            piece_fill(kv, 0, run->n_pages, base, page_elements(kv), gradients,
                       piece);
        } else {
            uint32_t n_pages = cf_kv_pages(p->n_tok);

            piece->head_stride = run->n_pages * page_stride;
            piece_fill(kv, at, n_pages, base + row * head_dim, page_stride,
                       gradients, piece);
            at += n_pages;
        }
        row += p->n_tok;
    }
    return (cf_attn_batch){
        .pieces = kv->pieces, .n_pieces = c->n_pieces, .n_tok = c->n_tok};
}

void cf_kv_state_zero_gradients(cf_kv_state *kv, const cf_chunk_plan *plan,
                                uint32_t chunk, uint32_t layer)
{
    const cf_kernels *k = kv->kernels;
    const cf_kv_run *run = run_find(kv, plan->chunks[chunk].group);
    size_t offset, bytes;

    assert(run != NULL);
    offset = (page_offset(kv, layer, run->first_page) - frozen_elements(kv)) *
             k->acc_bytes;
    bytes = page_elements(kv) * run->n_pages * k->acc_bytes;
    k->zero(k, cf_at(kv->dk, offset), bytes);
    k->zero(k, cf_at(kv->dv, offset), bytes);
}

void cf_kv_state_release(cf_kv_state *kv, const cf_chunk_plan *plan,
                         uint32_t chunk)
{
    cf_kv_run *run = run_find(kv, plan->chunks[chunk].group);

    assert(run != NULL);
    cf_pool_release(&kv->pages, run->first_page, run->n_pages);
    run->n_pages = 0;
}
