/* kv_state.h - keys and values kept for the later chunks of a group, and the
 * gradients that those chunks send back.
 *
 * (1) A group of dependent chunks holds its sequence in pages of CF_PAGE_TOK
 *     tokens, anchored at token 0 whatever the chunk size: K (after rotation)
 *     and V as act, dK and dV as acc, each [n_kv_heads, CF_PAGE_TOK, head_dim]
 *     per layer and page.
 * (2) A standalone chunk holds all its sequences side by side in one run of
 *     adjacent pages, used as [n_kv_heads, run tokens, head_dim].  So both kinds
 *     share the pages, and kernels see no difference but a stride.
 * (3) A forward takes the pages that its tokens need beyond the group's earlier
 *     ones; the backward of the group's first chunk, the last to need them, gives
 *     all back.
 * (4) Layers below the first one that has a backward have no dK and dV.
 * (5) dK and dV are cleared layer by layer in the backward of the group's last
 *     chunk, which is the first to add to them.
 *
 * (6) Groups have their forwards in one order, and their backwards in the same:
 *     first taken is first given back, on every stage.  So the pages of dependent
 *     chunks are a ring that never has a hole.  Standalone chunks take places of
 *     one size in turn, from page 0 on.  Where one kind follows the other, no page
 *     is lost: the last standalone chunk of a plan has the highest place, and the
 *     ring begins behind it; or the ring ends where the places begin.
 *
 * It grows with the sequence: 2 n_kv_heads head_dim (act + acc) bytes a token
 * and layer.  The chunk size does not change that.
 *
 * (7) The top layers may have theirs in a file (kv_file.h).  Layers are visited
 *     one after the other, up and down, so that with some of them always in memory
 *     and the others passing through no order would move fewer bytes: of what was
 *     just used, what is needed last is the rest.
 */
#ifndef CF_KV_STATE_H
#define CF_KV_STATE_H

#include <chunkflow/base.h>
#include <chunkflow/chunk.h>

#include <stdbool.h>

#include "kernels/kernels.h"
#include "src/arena.h"
#include "src/pool.h"

/* Where the pages of one group are. */
typedef struct cf_kv_run {
    uint32_t group;
    uint32_t first_page; /* of a group of dependent chunks: behind the last page
                            comes page 0 */
    uint32_t n_pages;    /* 0: this entry is free */
    uint32_t n_tok;      /* of its chunks that had their forward */
} cf_kv_run;

typedef struct cf_kv_state {
    cf_attn_shape shape;
    uint32_t n_layers;
    uint32_t n_backward_layers; /* of them, from the top; 0 in evaluation */
    const cf_kernels *kernels;  /* borrowed */
    cf_pool pages;
    uint32_t place_pages;     /* of one standalone chunk */
    uint32_t n_places;        /* of such */
    uint32_t first_place;     /* of the plan's first standalone chunk */
    bool long_first;          /* groups of dependent chunks run first */
    uint32_t ring_end;        /* where the next page is taken */
    uint32_t n_memory_layers; /* from the bottom; the others are in the file */
    /* Of those in memory, and dK and dV of those that have a backward. */
    void *k, *v;   /* act [layers, n_pages, page] */
    void *dk, *dv; /* acc [layers, n_pages, page] */
    void *file;    /* borrowed: [layers] of K, V, dK and dV of a layer */
    size_t file_layer_bytes;
    uint32_t visited; /* the layer of the last batch */
    cf_kv_run *runs;
    uint32_t n_runs;
    cf_attn_piece *pieces; /* of the last batch */
    void **table;          /* page pointers of its pieces */
    size_t table_capacity; /* of each of k, v, dk, dv */
} cf_kv_state;

/* What is the most that a run needs at a time. */
typedef struct cf_kv_need {
    uint32_t n_pages;       /* of the groups that are alive together */
    uint32_t n_groups;      /* alive together */
    uint32_t n_standalone;  /* of them, standalone chunks */
    uint32_t n_pieces;      /* of one chunk */
    uint32_t chunk_tok;     /* of one chunk */
    uint32_t sequence_tok;  /* of one sequence */
    uint32_t n_file_layers; /* from the top: those that are in the file */
    void *file;             /* borrowed; NULL before it is there */
} cf_kv_need;

typedef enum cf_gradients {
    CF_GRADIENTS_NO,
    CF_GRADIENTS_YES
} cf_gradients;

/* Pages that a run of n_tok tokens takes. */
uint32_t cf_kv_pages(uint32_t n_tok);

/* Tokens of the whole group that a chunk belongs to. */
uint32_t cf_group_tok(const cf_chunk_plan *plan, uint32_t chunk);

/* Whether a chunk is the last one of its group. */
int cf_group_ends(const cf_chunk_plan *plan, uint32_t chunk);

/* The top n_backward_layers of n_layers get room for dK and dV. */
void cf_kv_state_carve(cf_kv_state *kv, const cf_kernels *kernels,
                       const cf_attn_shape *shape, uint32_t n_layers,
                       uint32_t n_backward_layers, const cf_kv_need *need,
                       cf_arena *arena);

/* Bytes of n pages, all layers that are in memory. */
size_t cf_kv_state_bytes(const cf_kv_state *kv, uint32_t n_pages);

/* Bytes of n pages of one layer in the file, with room for dK and dV. */
size_t cf_kv_file_layer_bytes(const cf_kernels *kernels,
                              const cf_attn_shape *shape, uint32_t n_pages);

/* Start a step, or a pass, with no group alive.  Groups will run in plan order,
 * or those of dependent chunks first. */
void cf_kv_state_begin_step(cf_kv_state *kv, const cf_chunk_plan *plan,
                            bool long_first);

/* Whether the keys of a chunk are there: its forward will be a recompute. */
bool cf_kv_state_has(const cf_kv_state *kv, const cf_chunk_plan *plan,
                     uint32_t chunk);

/* Have pages for the chunk's group up to this chunk; nothing to do when it has
 * them.  CF_NO_SPACE: more groups or pages are alive than the need said. */
CF_MUST_USE cf_status cf_kv_state_append(cf_kv_state *kv,
                                         const cf_chunk_plan *plan,
                                         uint32_t chunk);

/* The pieces of a chunk in one layer, counted from the lowest held, for a kernel
 * call; with gradients only in a layer that has a backward.  Valid until the next
 * call. */
cf_attn_batch cf_kv_state_batch(cf_kv_state *kv, const cf_chunk_plan *plan,
                                uint32_t chunk, uint32_t layer,
                                cf_gradients gradients);

/* Clear dK and dV of the chunk's group in one layer. */
void cf_kv_state_zero_gradients(cf_kv_state *kv, const cf_chunk_plan *plan,
                                uint32_t chunk, uint32_t layer);

/* Give the pages of the chunk's group back. */
void cf_kv_state_release(cf_kv_state *kv, const cf_chunk_plan *plan,
                         uint32_t chunk);

#endif
