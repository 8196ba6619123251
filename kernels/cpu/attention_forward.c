/* attention_forward.c - causal attention with online softmax.
 *
 * A task is a tile of rows.  Its keys go by in tiles; of every row we keep the
 * largest score so far, the sum of exp(score - largest) and the unnormalised
 * output, all in the thread's scratch.
 */
#include <omp.h>

#include "kernels/cpu/attention.h"

typedef struct forward_room {
    acc *q;   /* [panels][dim][rows of the panel] */
    acc *o;   /* likewise */
    acc *s;   /* scores, then weights, of one panel: [keys][rows] */
    acc *max; /* [TILE_ROWS] */
    acc *sum; /* [TILE_ROWS] */
    acc *k;   /* [keys][dim], widened */
    acc *v;
} forward_room;

static size_t room_bytes(size_t dim)
{
    return 2 * line_up(TILE_ROWS * dim * sizeof(acc)) +
           line_up(KEY_TILE * PANEL_ROWS * sizeof(acc)) +
           2 * line_up(TILE_ROWS * sizeof(acc)) +
           2 * line_up(key_room(dim) * sizeof(acc));
}

static forward_room room_of(char *scratch, size_t dim)
{
    return (forward_room){
        .q = take(&scratch, TILE_ROWS * dim),
        .o = take(&scratch, TILE_ROWS * dim),
        .s = take(&scratch, KEY_TILE * PANEL_ROWS),
        .max = take(&scratch, TILE_ROWS),
        .sum = take(&scratch, TILE_ROWS),
        .k = take(&scratch, key_room(dim)),
        .v = take(&scratch, key_room(dim)),
    };
}

CF_INLINE int any_lane(ivec x)
{
    acc_bits any = 0;

    for (int i = 0; i < VL; i++)
        any |= x[i];
    return any != 0;
}

/* Scores beyond a row's sight become -inf. */
CF_INLINE void hide_scores(const int w, size_t n_keys,
                           const acc_bits sight[PANEL_ROWS], acc *s)
{
    for (size_t j = 0; j < n_keys; j++)
        for (int v = 0; v < w; v++) {
            ivec seen = *(const ivec *)(sight + v * VL);
            acc *at = s + (j * (size_t)w + (size_t)v) * VL;

            vec_store(at, vec_select(seen > (ivec){0} + (acc_bits)j,
                                     vec_load(at), vec_splat(-INFINITY)));
        }
}

/* Scores [n_keys, w vectors] become weights against the new maximum.  factor_p
 * is what older weights are to be multiplied by; returns whether any of it is
 * not 1. */
CF_INLINE int softmax_step(const int w, size_t n_keys, acc *s, acc *max,
                           acc *sum, vec factor_p[PANEL_VECS])
{
    vec m[PANEL_VECS], base[PANEL_VECS], l[PANEL_VECS];
    ivec grew_any = {0};

    for (int v = 0; v < w; v++)
        m[v] = vec_load(max + v * VL);
    for (size_t j = 0; j < n_keys; j++)
        for (int v = 0; v < w; v++)
            m[v] =
                vec_max(vec_load(s + (j * (size_t)w + (size_t)v) * VL), m[v]);

    for (int v = 0; v < w; v++) {
        /* A row that has seen no key yet has no maximum to subtract. */
        base[v] = vec_select(m[v] > vec_splat(-INFINITY), m[v], (vec){0});
        l[v] = (vec){0};
    }
    for (size_t j = 0; j < n_keys; j++)
        for (int v = 0; v < w; v++) {
            acc *at = s + (j * (size_t)w + (size_t)v) * VL;
            vec e = vec_exp(vec_load(at) - base[v]);

            vec_store(at, e);
            l[v] += e;
        }

    for (int v = 0; v < w; v++) {
        vec old = vec_load(max + v * VL);
        ivec grew = m[v] > old;

        /* Set to 1, not computed: a row must not depend on whether a row
         * beside it made us multiply. */
        factor_p[v] = vec_select(grew, vec_exp(old - base[v]), vec_splat(1));
        vec_store(max + v * VL, m[v]);
        vec_store(sum + v * VL, l[v] + vec_load(sum + v * VL) * factor_p[v]);
        grew_any |= grew;
    }
    return any_lane(grew_any);
}

/* One panel meets the keys of one span.  With first set, o is not yet there. */
CF_INLINE void forward_step(const int w, const attn_call *call,
                            const attn_tile *tile, const attn_panel *panel,
                            key_span span, key_tile keys, int first,
                            const forward_room *room)
{
    const size_t width = (size_t)w * VL, dim = call->dim;
    const size_t n_keys = span.end - span.begin;
    acc *o = room->o + panel->row * dim;
    vec factor[PANEL_VECS];

    product(w, (attn_product){.m = n_keys,
                              .k = dim,
                              .a = keys.k,
                              .a_row = dim,
                              .a_k = 1,
                              .b = room->q + panel->row * dim,
                              .b_k = width,
                              .c = room->s,
                              .c_row = width});
    if (panel->first + 1 < span.end) {
        acc_bits sight[PANEL_ROWS];

        sight_of(call, tile, panel, span, sight);
        hide_scores(w, n_keys, sight, room->s);
    }
    if (softmax_step(w, n_keys, room->s, room->max + panel->row,
                     room->sum + panel->row, factor) &&
        !first)
        for (size_t e = 0; e < dim; e++)
            for (int i = 0; i < w; i++) {
                acc *at = o + e * width + i * VL;

                vec_store(at, vec_load(at) * factor[i]);
            }
    product(w, (attn_product){.m = dim,
                              .k = n_keys,
                              .a = keys.v,
                              .a_row = 1,
                              .a_k = dim,
                              .b = room->s,
                              .b_k = width,
                              .c = o,
                              .c_row = width,
                              .add = !first});
}

/* Normalises a panel's output and writes it and lse to their rows. */
static void panel_finish(const attn_call *call, const attn_tile *tile,
                         const attn_panel *panel, const forward_room *room,
                         act *o, acc *lse)
{
    const size_t width = panel->n_vecs * VL;
    const acc *from = room->o + panel->row * call->dim;
    const acc *max = room->max + panel->row, *sum = room->sum + panel->row;
    size_t at[VL];

    for (size_t r = 0; r < width; r += VL) {
        size_t n_rows = smaller(VL, panel->n_rows - r);
        acc_bits blind[VL]; /* saw no key: o is 0, whatever lies in the room */
        vec inverse = vec_splat(1) / vec_load(sum + r);

        row_elements(call, tile, panel->row + r, at);
        for (size_t i = 0; i < VL; i++) {
            size_t row = smaller(panel->row + r + i, tile->n_rows - 1);

            blind[i] = -(position(call, tile, row) < call->key_begin ||
                         call->key_begin >= call->key_end);
        }
        for (size_t i = 0; i < n_rows; i++)
            lse[at[i] / call->dim] =
                blind[i] ? -(acc)INFINITY : max[r + i] + acc_log(sum[r + i]);

        for (size_t e = 0; e < call->dim; e += VL) {
            size_t left = call->dim - e;
            vec y[VL] = {{0}};

#pragma GCC unroll 16
            for (size_t i = 0; i < VL; i++)
                if (i < left)
                    y[i] = vec_select(*(const ivec *)blind, (vec){0},
                                      vec_load(from + (e + i) * width + r) *
                                          inverse);
            transpose(y);
#pragma GCC unroll 16
            for (size_t i = 0; i < VL; i++)
                if (i < n_rows)
                    store_act(o + at[i] + e, left, y[i]);
        }
    }
}

static void forward_tile(const attn_call *call, const attn_tile *tile,
                         const forward_room *room, const act *q, act *o,
                         acc *lse)
{
    const size_t kt_first = first_key_tile(call);
    attn_panel panels[TILE_PANELS];
    size_t n_panels = 0;

    for (size_t r = 0; r < tile->n_rows; r += PANEL_ROWS) {
        attn_panel *panel = &panels[n_panels++];

        *panel = panel_of(call, tile, r);
        panel_gather(call, tile, panel, call->scale, q,
                     room->q + r * call->dim);
    }
    for (size_t r = 0; r < TILE_ROWS; r++) {
        room->max[r] = -(acc)INFINITY;
        room->sum[r] = 0;
    }

    const size_t last = panels[n_panels - 1].last;

    for (size_t kt = kt_first; kt * KEY_TILE < smaller(call->key_end, last + 1);
         kt++) {
        const key_span seen = span_of(call, kt, last);

        if (seen.begin >= seen.end)
            continue;

        const key_tile keys = {
            key_rows(call, tile, tile->piece->k, seen, room->k),
            key_rows(call, tile, tile->piece->v, seen, room->v),
        };
        const int first = kt == kt_first;

        for (size_t i = 0; i < n_panels; i++) {
            key_span span = span_of(call, kt, panels[i].last);

            if (span.begin >= span.end)
                continue;
            switch (panels[i].n_vecs) {
            case 3:
                forward_step(3, call, tile, &panels[i], span, keys, first,
                             room);
                break;
            case 2:
                forward_step(2, call, tile, &panels[i], span, keys, first,
                             room);
                break;
            default:
                forward_step(1, call, tile, &panels[i], span, keys, first,
                             room);
            }
        }
    }
    for (size_t i = 0; i < n_panels; i++)
        panel_finish(call, tile, &panels[i], room, o, lse);
}

void CF_CPU(attention_forward)(const cf_kernels *k, const cf_attn_shape *shape,
                               const cf_attn_batch *batch, uint32_t key_begin,
                               uint32_t key_end, const void *q, void *o,
                               void *lse, void *scratch)
{
    char *free_scratch = scratch;
    attn_call call = attn_open(shape, batch, key_begin, key_end, &free_scratch);
    const size_t n_tasks = n_tile_tasks(&call);

    (void)k;
#pragma omp parallel
    {
        forward_room room = room_of(
            free_scratch + (size_t)omp_get_thread_num() * room_bytes(call.dim),
            call.dim);

        /* The last tiles of a piece see the most keys: they go first. */
#pragma omp for schedule(dynamic)
        for (size_t i = 0; i < n_tasks; i++) {
            attn_tile tile = tile_task(&call, n_tasks - 1 - i);

            forward_tile(&call, &tile, &room, q, o, lse);
        }
    }
}

size_t CF_CPU(attention_scratch_bytes)(const cf_kernels *k,
                                       const cf_attn_shape *shape, size_t n_tok,
                                       size_t n_pieces)
{
    size_t forward = starts_bytes(n_pieces) + (size_t)omp_get_max_threads() *
                                                  room_bytes(shape->head_dim);
    size_t backward = CF_CPU(attention_backward_bytes)(shape, n_tok, n_pieces);

    (void)k;
    return forward > backward ? forward : backward;
}
