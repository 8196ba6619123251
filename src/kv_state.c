/* kv_state.c - see kv_state.h. */
#include "src/kv_state.h"

#include <assert.h>

#include "src/kv_file.h"

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
static size_t page_elements_of(const cf_attn_shape *shape)
{
    return (size_t)shape->n_kv_heads * CF_PAGE_TOK * shape->head_dim;
}

static size_t page_elements(const cf_kv_state *kv)
{
    return page_elements_of(&kv->shape);
}

size_t cf_kv_file_layer_bytes(const cf_kernels *kernels,
                              const cf_attn_shape *shape, uint32_t n_pages)
{
    const size_t bytes = 2 * n_pages * page_elements_of(shape) *
                         (kernels->act_bytes + kernels->acc_bytes);

    return (bytes + CF_KV_FILE_ALIGN - 1) / CF_KV_FILE_ALIGN * CF_KV_FILE_ALIGN;
}

static uint32_t n_frozen(const cf_kv_state *kv)
{
    return kv->n_layers - kv->n_backward_layers;
}

/* Layers in memory that have dK and dV there. */
static uint32_t n_memory_gradients(const cf_kv_state *kv)
{
    return kv->n_memory_layers > n_frozen(kv)
               ? kv->n_memory_layers - n_frozen(kv)
               : 0;
}

void cf_kv_state_carve(cf_kv_state *kv, const cf_kernels *kernels,
                       const cf_attn_shape *shape, uint32_t n_layers,
                       uint32_t n_backward_layers, const cf_kv_need *need,
                       cf_arena *arena)
{
    size_t layer, standalone_pages;
    uint32_t n_gradients;

    *kv = (cf_kv_state){.shape = *shape,
                        .n_layers = n_layers,
                        .n_backward_layers = n_backward_layers,
                        .kernels = kernels,
                        .n_memory_layers = n_layers - need->n_file_layers,
                        .file = need->file,
                        .file_layer_bytes = cf_kv_file_layer_bytes(
                            kernels, shape, need->n_pages),
                        .place_pages = cf_kv_pages(need->chunk_tok),
                        .n_places = need->n_standalone,
                        .n_runs = need->n_groups};
    layer = page_elements(kv) * need->n_pages;
    cf_pool_carve(arena, need->n_pages, &kv->pages);
    kv->k = cf_arena_take(arena, CF_LIFETIME_GROUP, "KV state",
                          layer * kv->n_memory_layers, kernels->act_bytes);
    kv->v = cf_arena_take(arena, CF_LIFETIME_GROUP, "KV state",
                          layer * kv->n_memory_layers, kernels->act_bytes);
    n_gradients = n_memory_gradients(kv);
    if (n_gradients > 0) {
        kv->dk =
            cf_arena_take(arena, CF_LIFETIME_GROUP, "gradients of the KV state",
                          layer * n_gradients, kernels->acc_bytes);
        kv->dv =
            cf_arena_take(arena, CF_LIFETIME_GROUP, "gradients of the KV state",
                          layer * n_gradients, kernels->acc_bytes);
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
    const size_t layers_bytes = kv->n_memory_layers * kv->kernels->act_bytes +
                                n_memory_gradients(kv) * kv->kernels->acc_bytes;

    return page_elements(kv) * 2 * n_pages * layers_bytes;
}

static cf_kv_run *run_find(const cf_kv_state *kv, uint32_t group)
{
    for (uint32_t i = 0; i < kv->n_runs; i++)
        if (kv->runs[i].n_pages > 0 && kv->runs[i].group == group)
            return &kv->runs[i];
    return NULL;
}

/* Chunks that are standalone, and pages of the others. */
static void plan_count(const cf_chunk_plan *plan, uint32_t *n_standalone_p,
                       uint64_t *ring_pages_p)
{
    *n_standalone_p = 0;
    *ring_pages_p = 0;
    for (uint32_t i = 0; i < plan->n_chunks; i++) {
        const cf_chunk *c = &plan->chunks[i];

        if (c->kind == CF_CHUNK_STANDALONE)
            ++*n_standalone_p;
        else if (cf_group_ends(plan, i))
            *ring_pages_p += cf_kv_pages(c->prefix_tok + c->n_tok);
    }
}

void cf_kv_state_begin_step(cf_kv_state *kv, const cf_chunk_plan *plan,
                            bool long_first)
{
    const uint32_t n_pages = kv->pages.n_blocks;
    uint32_t n_standalone;
    uint64_t ring_pages;

    plan_count(plan, &n_standalone, &ring_pages);
    kv->long_first = long_first;
    if (long_first) {
        kv->first_place = 0;
        kv->ring_end = (n_pages - (uint32_t)(ring_pages % n_pages)) % n_pages;
    } else {
        kv->first_place =
            (kv->n_places - n_standalone % kv->n_places) % kv->n_places;
        kv->ring_end = 0;
    }
    kv->visited = UINT32_MAX;
    cf_pool_begin_step(&kv->pages);
}

bool cf_kv_state_has(const cf_kv_state *kv, const cf_chunk_plan *plan,
                     uint32_t chunk)
{
    const cf_chunk *c = &plan->chunks[chunk];
    const cf_kv_run *run = run_find(kv, c->group);

    return run != NULL && run->n_tok >= c->prefix_tok + c->n_tok;
}

static cf_kv_run *run_free(cf_kv_state *kv)
{
    for (uint32_t i = 0; i < kv->n_runs; i++)
        if (kv->runs[i].n_pages == 0)
            return &kv->runs[i];
    return NULL;
}

static cf_status standalone_append(cf_kv_state *kv, const cf_chunk_plan *plan,
                                   uint32_t chunk, cf_kv_run *run)
{
    const uint32_t place = (kv->first_place + chunk) % kv->n_places;

    run->first_page = place * kv->place_pages;
    run->n_pages = cf_kv_pages(plan->chunks[chunk].n_tok);
    kv->ring_end = (place + 1) * kv->place_pages % kv->pages.n_blocks;
    return cf_pool_take_at(&kv->pages, run->first_page, run->n_pages);
}

static cf_status ring_append(cf_kv_state *kv, const cf_chunk *chunk,
                             cf_kv_run *run)
{
    const uint32_t n_pages = cf_kv_pages(chunk->prefix_tok + chunk->n_tok);

    while (run->n_pages < n_pages) {
        cf_status status;

        if (kv->pages.n_taken == 0 && !kv->long_first)
            kv->ring_end = 0;
        if (run->n_pages == 0)
            run->first_page = kv->ring_end;
        status = cf_pool_take_at(&kv->pages, kv->ring_end, 1);
        if (status != CF_OK)
            return status;
        run->n_pages++;
        kv->ring_end = (kv->ring_end + 1) % kv->pages.n_blocks;
    }
    return CF_OK;
}

cf_status cf_kv_state_append(cf_kv_state *kv, const cf_chunk_plan *plan,
                             uint32_t chunk)
{
    const cf_chunk *c = &plan->chunks[chunk];
    cf_kv_run *run;

    if (cf_kv_state_has(kv, plan, chunk))
        return CF_OK;
    run = run_find(kv, c->group);
    if (run == NULL)
        run = run_free(kv);
    if (run == NULL)
        return CF_NO_SPACE;
    run->group = c->group;
    run->n_tok = c->prefix_tok + c->n_tok;
    return c->kind == CF_CHUNK_STANDALONE
               ? standalone_append(kv, plan, chunk, run)
               : ring_append(kv, c, run);
}

/* ---- where a layer is ---- */

typedef struct layer_pages {
    void *k, *v, *dk, *dv; /* page 0 of each; dk and dv: if it has a backward */
} layer_pages;

static layer_pages in_memory(const cf_kv_state *kv, uint32_t layer)
{
    const size_t elements = page_elements(kv) * kv->pages.n_blocks;
    const size_t act = layer * elements * kv->kernels->act_bytes;
    const bool has_gradients = layer >= n_frozen(kv);
    const size_t acc = has_gradients ? (layer - n_frozen(kv)) * elements *
                                           kv->kernels->acc_bytes
                                     : 0;

    return (layer_pages){cf_at(kv->k, act), cf_at(kv->v, act),
                         cf_at(has_gradients ? kv->dk : NULL, acc),
                         cf_at(has_gradients ? kv->dv : NULL, acc)};
}

static void *file_layer(const cf_kv_state *kv, uint32_t layer)
{
    return cf_at(kv->file,
                 (layer - kv->n_memory_layers) * kv->file_layer_bytes);
}

static layer_pages in_file(const cf_kv_state *kv, uint32_t layer)
{
    const size_t elements = page_elements(kv) * kv->pages.n_blocks;
    const size_t act = elements * kv->kernels->act_bytes;
    const size_t acc = elements * kv->kernels->acc_bytes;
    void *k = file_layer(kv, layer);

    return (layer_pages){k, cf_at(k, act), cf_at(k, 2 * act),
                         cf_at(k, 2 * act + acc)};
}

static layer_pages layer_of(const cf_kv_state *kv, uint32_t layer)
{
    return layer < kv->n_memory_layers ? in_memory(kv, layer)
                                       : in_file(kv, layer);
}

static bool is_in_file(const cf_kv_state *kv, uint32_t layer)
{
    return layer >= kv->n_memory_layers && layer < kv->n_layers;
}

/* The layer before this one leaves; the one behind it, upwards in a forward and
 * downwards in a backward, comes. */
static void visit(cf_kv_state *kv, uint32_t layer, cf_gradients gradients)
{
    const uint32_t last = kv->visited; /* 0 - 1 is no layer */
    const uint32_t next = gradients == CF_GRADIENTS_YES ? layer - 1 : layer + 1;

    kv->visited = layer;
    if (layer == last || kv->n_memory_layers == kv->n_layers)
        return;
    if (last != next && is_in_file(kv, last))
        cf_kv_file_leave(file_layer(kv, last), kv->file_layer_bytes);
    if (is_in_file(kv, next))
        cf_kv_file_want(file_layer(kv, next), kv->file_layer_bytes);
}

/* ---- page tables ---- */

/* Where the pages of a piece are in one layer, in elements: the first of n, how
 * far the next ones are, and where, behind the last page, it goes on. */
typedef struct page_run {
    size_t n;
    size_t first; /* from page 0 of the layer, as the next */
    size_t step;
    size_t end; /* goes on at 0 */
} page_run;

/* Fill entries of one of the four page tables, from `at` on. */
static void *const *table_fill(cf_kv_state *kv, unsigned table, size_t at,
                               const page_run *run, void *layer,
                               size_t elem_bytes)
{
    void **entries = kv->table + table * kv->table_capacity + at;

    assert(at + run->n <= kv->table_capacity);
    for (size_t i = 0; i < run->n; i++)
        entries[i] =
            cf_at(layer, (run->first + i * run->step) % run->end * elem_bytes);
    return entries;
}

/* The same for all four of a piece. */
static void piece_fill(cf_kv_state *kv, size_t at, const page_run *run,
                       const layer_pages *layer, cf_gradients gradients,
                       cf_attn_piece *piece)
{
    const size_t act = kv->kernels->act_bytes, acc = kv->kernels->acc_bytes;

    piece->k = table_fill(kv, 0, at, run, layer->k, act);
    piece->v = table_fill(kv, 1, at, run, layer->v, act);
    if (gradients == CF_GRADIENTS_NO)
        return;
    piece->dk = table_fill(kv, 2, at, run, layer->dk, acc);
    piece->dv = table_fill(kv, 3, at, run, layer->dv, acc);
}

cf_attn_batch cf_kv_state_batch(cf_kv_state *kv, const cf_chunk_plan *plan,
                                uint32_t chunk, uint32_t layer,
                                cf_gradients gradients)
{
    const cf_chunk *c = &plan->chunks[chunk];
    const cf_kv_run *run = run_find(kv, c->group);
    const size_t head_dim = kv->shape.head_dim;
    const size_t page_stride = CF_PAGE_TOK * head_dim;
    const layer_pages bases = layer_of(kv, layer);
    page_run pages = {.end = page_elements(kv) * kv->pages.n_blocks};
    size_t at = 0;
    uint32_t row = 0;

    assert(run != NULL);
    visit(kv, layer, gradients);
    for (uint32_t i = 0; i < c->n_pieces; i++) {
        const cf_piece *p = &plan->pieces[c->first_piece + i];
        cf_attn_piece *piece = &kv->pieces[i];

        *piece = (cf_attn_piece){
            .row = row, .n_tok = p->n_tok, .prefix_tok = c->prefix_tok};
        pages.first = page_elements(kv) * run->first_page + row * head_dim;
        if (c->kind == CF_CHUNK_DEPENDENT) {
            piece->head_stride = page_stride;
            pages.n = run->n_pages;
            pages.step = page_elements(kv);
        } else {
            piece->head_stride = run->n_pages * page_stride;
            pages.n = cf_kv_pages(p->n_tok);
            pages.step = page_stride;
        }
        piece_fill(kv, at, &pages, &bases, gradients, piece);
        at += pages.n;
        row += p->n_tok;
    }
    return (cf_attn_batch){
        .pieces = kv->pieces, .n_pieces = c->n_pieces, .n_tok = c->n_tok};
}

/* Pages of a run that are adjacent to its first; the others begin at page 0. */
static uint32_t pages_before_wrap(const cf_kv_state *kv, const cf_kv_run *run)
{
    const uint32_t n = kv->pages.n_blocks - run->first_page;

    return run->n_pages < n ? run->n_pages : n;
}

static void pages_zero(cf_kv_state *kv, uint32_t layer, uint32_t first,
                       uint32_t n)
{
    const cf_kernels *k = kv->kernels;
    const layer_pages bases = layer_of(kv, layer);
    const size_t page_bytes = page_elements(kv) * k->acc_bytes;

    k->zero(k, cf_at(bases.dk, first * page_bytes), n * page_bytes);
    k->zero(k, cf_at(bases.dv, first * page_bytes), n * page_bytes);
}

void cf_kv_state_zero_gradients(cf_kv_state *kv, const cf_chunk_plan *plan,
                                uint32_t chunk, uint32_t layer)
{
    const cf_kv_run *run = run_find(kv, plan->chunks[chunk].group);
    uint32_t n_adjacent;

    assert(run != NULL);
    n_adjacent = pages_before_wrap(kv, run);
    pages_zero(kv, layer, run->first_page, n_adjacent);
    if (n_adjacent < run->n_pages)
        pages_zero(kv, layer, 0, run->n_pages - n_adjacent);
}

void cf_kv_state_release(cf_kv_state *kv, const cf_chunk_plan *plan,
                         uint32_t chunk)
{
    cf_kv_run *run = run_find(kv, plan->chunks[chunk].group);
    uint32_t n_adjacent;

    assert(run != NULL);
    n_adjacent = pages_before_wrap(kv, run);
    cf_pool_release(&kv->pages, run->first_page, n_adjacent);
    cf_pool_release(&kv->pages, 0, run->n_pages - n_adjacent);
    run->n_pages = 0;
}
