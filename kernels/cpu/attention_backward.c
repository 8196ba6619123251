/* attention_backward.c - gradients of q, k and v.
 *
 * A task is a part of the keys of a (piece, kv head): key tiles outside, tiles
 * of rows inside.  With P = exp(scores - lse) and dS = P (dP - delta), where
 * dP = dO V' and delta is dO . O of a row,
 *
 *     dV += P' dO,   dK += dS' Q,   dQ += dS K.
 *
 * (6) dK and dV of a key have one writer, and sum over the rows in ascending
 *     order.  Every part has its own dQ; parts are added in order at the end.
 *     Parts depend on the piece and the range alone, so no gradient depends on
 *     the number of threads.  This needs pieces that share no dK and dV pages.
 * (7) Rows enter twice: as panels [dim][rows] where they are the lanes, and as
 *     rows [rows][dim padded to vectors] where dim is.
 * (8) A part that is all of its piece is gathered and finished in one task, while
 *     its rows are in the cache.  None of them is needed afterwards, so that they
 *     go where the thread's last such piece had its own, if that was as large:
 *     packed short pieces pass through the same memory.
 */
#include <omp.h>

#include "kernels/cpu/attention.h"

/* Arrays over all rows of the call, [n_kv_heads, padded rows] and within. */
typedef struct backward_rows {
    acc *q_panels; /* [dim][rows of the panel], scaled */
    acc *d_o_panels;
    acc *q; /* [dim padded], scaled */
    acc *d_o;
    acc *lse;
    acc *delta;
    acc *dq[KEY_PARTS]; /* panels, of q as scaled */
} backward_rows;

typedef struct backward_room {
    acc *k; /* [keys][dim], widened */
    acc *v;
    acc *p;  /* [keys][TILE_ROWS] */
    acc *ds; /* dP first */
    acc *dk; /* [keys][dim padded] */
    acc *dv;
} backward_room;

static size_t rows_bytes(size_t n_rows, size_t dim)
{
    return (2 + KEY_PARTS) * line_up(n_rows * dim * sizeof(acc)) +
           2 * line_up(n_rows * padded(dim) * sizeof(acc)) +
           2 * line_up(n_rows * sizeof(acc));
}

static backward_rows rows_of(char **scratch_p, size_t n_rows, size_t dim)
{
    backward_rows rows = {
        .q_panels = take(scratch_p, n_rows * dim),
        .d_o_panels = take(scratch_p, n_rows * dim),
        .q = take(scratch_p, n_rows * padded(dim)),
        .d_o = take(scratch_p, n_rows * padded(dim)),
        .lse = take(scratch_p, n_rows),
        .delta = take(scratch_p, n_rows),
    };

    for (size_t part = 0; part < KEY_PARTS; part++)
        rows.dq[part] = take(scratch_p, n_rows * dim);
    return rows;
}

static size_t room_bytes(size_t dim)
{
    return 2 * line_up(KEY_TILE * TILE_ROWS * sizeof(acc)) +
           2 * line_up(KEY_TILE * padded(dim) * sizeof(acc)) +
           2 * line_up(key_room(dim) * sizeof(acc));
}

static backward_room room_of(char *scratch, size_t dim)
{
    return (backward_room){
        .p = take(&scratch, KEY_TILE * TILE_ROWS),
        .ds = take(&scratch, KEY_TILE * TILE_ROWS),
        .dk = take(&scratch, KEY_TILE * padded(dim)),
        .dv = take(&scratch, KEY_TILE * padded(dim)),
        .k = take(&scratch, key_room(dim)),
        .v = take(&scratch, key_room(dim)),
    };
}

size_t CF_CPU(attention_backward_bytes)(const cf_attn_shape *shape,
                                        size_t n_tok, size_t n_pieces)
{
    size_t n_rows = shape->n_kv_heads * rows_bound(shape, n_tok, n_pieces);

    return starts_bytes(n_pieces) + rows_bytes(n_rows, shape->head_dim) +
           (size_t)omp_get_max_threads() * room_bytes(shape->head_dim);
}

/* ---- rows in ---- */

/* to [rows][dim padded] = factor * x. */
static void rows_gather(const attn_call *call, const size_t at[VL], acc factor,
                        const act *x, acc *to)
{
    for (size_t i = 0; i < VL; i++)
        for (size_t e = 0; e < call->dim; e += VL)
            vec_store(to + i * padded(call->dim) + e,
                      load_act(x + at[i] + e, call->dim - e) *
                          vec_splat(factor));
}

/* What comes with the call. */
typedef struct attn_inputs {
    const act *q;
    const act *o;
    const acc *lse;
    const act *d_o;
} attn_inputs;

/* VL rows from `row` of the tile on; d_o [dim][width] holds their d_o. */
static void rows_in(const attn_call *call, const attn_tile *tile, size_t row,
                    const attn_inputs *in, const acc *d_o, size_t width,
                    const backward_rows *rows)
{
    const size_t dim = call->dim, place = tile->place + row;
    size_t at[VL];
    vec delta = {0};

    row_elements(call, tile, row, at);
    rows_gather(call, at, call->scale, in->q, rows->q + place * padded(dim));
    rows_gather(call, at, 1, in->d_o, rows->d_o + place * padded(dim));
    for (size_t e = 0; e < dim; e += VL) {
        vec x[VL];

        load_columns(in->o, at, e, dim - e, x);
#pragma GCC unroll 16
        for (size_t i = 0; i < VL; i++)
            if (i < dim - e)
                delta += x[i] * vec_load(d_o + (e + i) * width);
    }
    vec_store(rows->delta + place, delta);
    for (size_t i = 0; i < VL; i++)
        rows->lse[place + i] = in->lse[at[i] / dim];
}

static void tile_gather(const attn_call *call, const attn_tile *tile,
                        const attn_inputs *in, const backward_rows *rows)
{
    for (size_t r = 0; r < tile->n_rows; r += PANEL_ROWS) {
        attn_panel panel = panel_of(call, tile, r);
        const size_t width = panel.n_vecs * VL;
        acc *q = rows->q_panels + (tile->place + r) * call->dim;
        acc *d_o = rows->d_o_panels + (tile->place + r) * call->dim;

        panel_gather(call, tile, &panel, call->scale, in->q, q);
        panel_gather(call, tile, &panel, 1, in->d_o, d_o);
        for (size_t v = 0; v < width; v += VL)
            rows_in(call, tile, r + v, in, d_o + v, width, rows);
    }
}

/* ---- keys ---- */

/* p from scores to weights and ds from dP to dS, both [n_keys][w vectors].
 * With sight, a row's keys beyond it get exact zeros. */
CF_INLINE void weights(const int w, size_t n_keys, const acc *lse,
                       const acc *delta, const acc_bits *sight, acc *p, acc *ds)
{
    for (size_t j = 0; j < n_keys; j++)
        for (int v = 0; v < w; v++) {
            acc *p_at = p + j * TILE_ROWS + v * VL;
            acc *ds_at = ds + j * TILE_ROWS + v * VL;
            vec e = vec_exp(vec_load(p_at) - vec_load(lse + v * VL));
            vec d = e * (vec_load(ds_at) - vec_load(delta + v * VL));

            if (sight != NULL) {
                ivec seen =
                    *(const ivec *)(sight + v * VL) > (ivec){0} + (acc_bits)j;

                e = (vec)((ivec)e & seen);
                d = (vec)((ivec)d & seen);
            }
            vec_store(p_at, e);
            vec_store(ds_at, d);
        }
}

/* P and dS of a panel, and its dQ.  span is what the panel sees of tile_span;
 * beyond it P and dS are zero.  With first set, dQ is not yet there. */
CF_INLINE void backward_step(const int w, const attn_call *call,
                             const attn_tile *tile, const attn_panel *panel,
                             key_span span, key_tile keys,
                             const backward_rows *rows,
                             const backward_room *room, acc *dq, int first)
{
    const size_t width = (size_t)w * VL, dim = call->dim;
    const size_t n_keys = span.end - span.begin;
    const size_t place = tile->place + panel->row;
    acc *p = room->p + panel->row, *ds = room->ds + panel->row;
    attn_product scores = {.m = n_keys,
                           .k = dim,
                           .a = keys.k,
                           .a_row = dim,
                           .a_k = 1,
                           .b = rows->q_panels + place * dim,
                           .b_k = width,
                           .c = p,
                           .c_row = TILE_ROWS};

    product(w, scores);
    scores.a = keys.v;
    scores.b = rows->d_o_panels + place * dim;
    scores.c = ds;
    product(w, scores);

    if (panel->first + 1 < span.end) {
        acc_bits sight[PANEL_ROWS];

        sight_of(call, tile, panel, span, sight);
        weights(w, n_keys, rows->lse + place, rows->delta + place, sight, p,
                ds);
    } else {
        weights(w, n_keys, rows->lse + place, rows->delta + place, NULL, p, ds);
    }
    product(w, (attn_product){.m = dim,
                              .k = n_keys,
                              .a = keys.k,
                              .a_row = 1,
                              .a_k = dim,
                              .b = ds,
                              .b_k = TILE_ROWS,
                              .c = dq + place * dim,
                              .c_row = width,
                              .add = !first});
}

/* x [keys from begin on][rows of the panel] = 0. */
static void panel_clear(const attn_panel *panel, size_t begin, size_t end,
                        acc *x)
{
    for (size_t j = begin; j < end; j++)
        memset(x + j * TILE_ROWS + panel->row, 0,
               panel->n_vecs * VL * sizeof(*x));
}

/* y [n_keys][dim padded] += p' x, over the n_rows rows of x from `row` on. */
static void keys_add(size_t n_keys, size_t row, size_t n_rows, size_t dim,
                     const acc *p, const acc *x, acc *y)
{
    attn_product sum = {.m = n_keys,
                        .k = n_rows - row,
                        .a = p + row,
                        .a_row = TILE_ROWS,
                        .a_k = 1,
                        .b = x + row * padded(dim),
                        .b_k = padded(dim),
                        .c = y,
                        .c_row = padded(dim),
                        .add = 1};
    size_t left = n_blocks(dim, VL);

    while (left > 0) {
        size_t w = left == 4 ? 2 : smaller(left, PANEL_VECS);

        if (w == 3)
            product(3, sum);
        else if (w == 2)
            product(2, sum);
        else
            product(1, sum);
        sum.b += w * VL;
        sum.c += w * VL;
        left -= w;
    }
}

/* What one tile of rows and one span of keys give each other. */
static void tile_backward(const attn_call *call, const attn_tile *tile,
                          size_t kt, key_tile keys, const backward_rows *rows,
                          const backward_room *room, acc *dq, int first)
{
    enum {
        STEP = 16
    };
    const size_t dim = call->dim;
    const key_span span =
        span_of(call, kt, position(call, tile, tile->n_rows - 1));

    for (size_t r = 0; r < tile->n_rows; r += PANEL_ROWS) {
        attn_panel panel = panel_of(call, tile, r);
        key_span seen = span_of(call, kt, panel.last);

        if (seen.end < seen.begin)
            seen.end = seen.begin;
        panel_clear(&panel, seen.end - span.begin, span.end - span.begin,
                    room->p);
        panel_clear(&panel, seen.end - span.begin, span.end - span.begin,
                    room->ds);
        if (seen.end == seen.begin)
            continue;
        switch (panel.n_vecs) {
        case 3:
            backward_step(3, call, tile, &panel, seen, keys, rows, room, dq,
                          first);
            break;
        case 2:
            backward_step(2, call, tile, &panel, seen, keys, rows, room, dq,
                          first);
            break;
        default:
            backward_step(1, call, tile, &panel, seen, keys, rows, room, dq,
                          first);
        }
    }

    for (size_t j = 0; j < span.end - span.begin; j += STEP) {
        size_t n_keys = smaller(STEP, span.end - span.begin - j);
        size_t key = span.begin + j;
        size_t token0 = tile->piece->prefix_tok;
        /* The first row of the tile that sees the key. */
        size_t row = key > token0 ? (key - token0) * call->group : 0;

        row = row > tile->row ? row - tile->row : 0;
        keys_add(n_keys, row, tile->n_rows, dim, room->p + j * TILE_ROWS,
                 rows->d_o + tile->place * padded(dim),
                 room->dv + j * padded(dim));
        keys_add(n_keys, row, tile->n_rows, dim, room->ds + j * TILE_ROWS,
                 rows->q + tile->place * padded(dim),
                 room->dk + j * padded(dim));
    }
}

/* Page rows [n_keys, dim] += sums [n_keys, dim padded]. */
static void page_add(size_t n_keys, size_t dim, const acc *sums, acc *page)
{
    for (size_t j = 0; j < n_keys; j++)
        for (size_t e = 0; e < dim; e++)
            page[j * dim + e] += sums[j * padded(dim) + e];
}

/* First key tile of a part; of the part behind the last one, the end. */
static size_t part_begin(const attn_call *call, size_t p, size_t part)
{
    size_t n_parts = call->part[p + 1] - call->part[p];
    size_t first = first_key_tile(call);
    size_t n_tiles = end_key_tile(call, &call->pieces[p]) - first;

    return first + n_tiles * part / n_parts;
}

/* A part of one kv head of a piece, whose rows are in the arrays from `place`
 * on. */
typedef struct attn_unit {
    size_t p;
    size_t part;
    size_t kv_head;
    size_t place;
} attn_unit;

static attn_tile unit_tile(const attn_call *call, const attn_unit *unit,
                           size_t t)
{
    attn_tile tile = tile_of(call, unit->p, unit->kv_head, t);

    tile.place = unit->place + tile.row;
    return tile;
}

static void part_backward(const attn_call *call, const attn_unit *unit,
                          const backward_rows *rows, const backward_room *room)
{
    const size_t p = unit->p, part = unit->part;
    const size_t kt_begin = part_begin(call, p, part);
    const size_t kt_end = part_begin(call, p, part + 1);
    const cf_attn_piece *piece = &call->pieces[p];
    const size_t prefix = piece->prefix_tok;
    const size_t n_tiles = call->tile[p + 1] - call->tile[p];
    const attn_tile head = unit_tile(call, unit, 0);

    for (size_t kt = kt_begin; kt < kt_end; kt++) {
        key_span span = span_of(call, kt, prefix + piece->n_tok - 1);
        size_t n_keys = span.end - span.begin;
        size_t behind = span.begin > prefix ? span.begin - prefix : 0;
        size_t at = key_element(call, &head, span.begin);
        size_t page = span.begin / CF_PAGE_TOK;
        const key_tile keys = {
            key_rows(call, &head, piece->k, span, room->k),
            key_rows(call, &head, piece->v, span, room->v),
        };

        memset(room->dk, 0, n_keys * padded(call->dim) * sizeof(acc));
        memset(room->dv, 0, n_keys * padded(call->dim) * sizeof(acc));
        for (size_t t = behind * call->group / TILE_ROWS; t < n_tiles; t++) {
            attn_tile tile = unit_tile(call, unit, t);

            tile_backward(call, &tile, kt, keys, rows, room, rows->dq[part],
                          kt == kt_begin);
        }
        page_add(n_keys, call->dim, room->dk, (acc *)piece->dk[page] + at);
        page_add(n_keys, call->dim, room->dv, (acc *)piece->dv[page] + at);
    }
}

/* ---- dQ out ---- */

static void panel_finish(const attn_call *call, const attn_tile *tile,
                         const attn_panel *panel, const backward_rows *rows,
                         acc *dq)
{
    const size_t p = (size_t)(tile->piece - call->pieces);
    const size_t width = panel->n_vecs * VL, dim = call->dim;
    const size_t place = (tile->place + panel->row) * dim;
    size_t n_parts = 0, at[VL];

    /* Parts whose first key lies behind the panel never met it. */
    while (n_parts < call->part[p + 1] - call->part[p]) {
        key_span span =
            span_of(call, part_begin(call, p, n_parts), panel->last);

        if (span.begin >= span.end)
            break;
        n_parts++;
    }
    for (size_t r = 0; r < width; r += VL) {
        row_elements(call, tile, panel->row + r, at);
        for (size_t e = 0; e < dim; e += VL) {
            size_t left = dim - e;
            vec y[VL] = {{0}};

#pragma GCC unroll 16
            for (size_t i = 0; i < VL; i++) {
                if (i >= left)
                    continue;
                for (size_t part = 0; part < n_parts; part++)
                    y[i] +=
                        vec_load(rows->dq[part] + place + (e + i) * width + r);
                y[i] *= vec_splat(call->scale);
            }
            transpose(y);
#pragma GCC unroll 16
            for (size_t i = 0; i < VL; i++)
                if (i < panel->n_rows - r)
                    store_acc(dq + at[i] + e, left, y[i]);
        }
    }
}

static void tile_finish(const attn_call *call, const attn_tile *tile,
                        const backward_rows *rows, acc *dq)
{
    for (size_t r = 0; r < tile->n_rows; r += PANEL_ROWS) {
        attn_panel panel = panel_of(call, tile, r);

        panel_finish(call, tile, &panel, rows, dq);
    }
}

static int is_one_part(const attn_call *call, size_t p)
{
    return call->part[p + 1] - call->part[p] == 1;
}

static int tile_is_one_part(const attn_call *call, const attn_tile *tile)
{
    return is_one_part(call, (size_t)(tile->piece - call->pieces));
}

/* Rows of the arrays that a thread uses for one piece after the other (8). */
typedef struct row_slot {
    size_t place, n_rows;
} row_slot;

/* With all that (8) says. */
static void unit_backward(const attn_call *call, attn_unit unit,
                          const attn_inputs *in, const backward_rows *rows,
                          const backward_room *room, row_slot *slot, acc *dq)
{
    const size_t p = unit.p, n_rows = call->row[p + 1] - call->row[p];
    const size_t n_tiles =
        is_one_part(call, p) ? call->tile[p + 1] - call->tile[p] : 0;

    if (n_tiles > 0) {
        if (slot->n_rows < n_rows)
            *slot = (row_slot){unit.place, n_rows};
        unit.place = slot->place;
    }
    for (size_t t = 0; t < n_tiles; t++) {
        attn_tile tile = unit_tile(call, &unit, t);

        tile_gather(call, &tile, in, rows);
    }
    part_backward(call, &unit, rows, room);
    for (size_t t = 0; t < n_tiles; t++) {
        attn_tile tile = unit_tile(call, &unit, t);

        tile_finish(call, &tile, rows, dq);
    }
}

/* Unit i; units are numbered kv head by kv head within a part. */
static attn_unit unit_at(const attn_call *call, size_t i)
{
    const size_t part = i / call->n_kv_heads, kv_head = i % call->n_kv_heads;
    const size_t p = piece_at(call->part, call->n_pieces, part);

    return (attn_unit){
        .p = p,
        .part = part - call->part[p],
        .kv_head = kv_head,
        .place = tile_of(call, p, kv_head, 0).place,
    };
}

void CF_CPU(attention_backward)(const cf_kernels *k, const cf_attn_shape *shape,
                                const cf_attn_batch *batch, uint32_t key_begin,
                                uint32_t key_end, const void *q, const void *o,
                                const void *lse, const void *d_o, void *dq,
                                void *scratch)
{
    char *free_scratch = scratch;
    const attn_call call =
        attn_open(shape, batch, key_begin, key_end, &free_scratch);
    const backward_rows rows = rows_of(
        &free_scratch, call.n_kv_heads * call.row[call.n_pieces], call.dim);
    const size_t n_tasks = n_tile_tasks(&call);
    const size_t n_part_tasks = call.part[call.n_pieces] * call.n_kv_heads;
    const attn_inputs in = {q, o, lse, d_o};

    (void)k;
#pragma omp parallel
    {
        backward_room room = room_of(
            free_scratch + (size_t)omp_get_thread_num() * room_bytes(call.dim),
            call.dim);
        row_slot slot = {0, 0};

#pragma omp for schedule(static)
        for (size_t i = 0; i < n_tasks; i++) {
            attn_tile tile = tile_task(&call, i);

            if (!tile_is_one_part(&call, &tile))
                tile_gather(&call, &tile, &in, &rows);
        }
        /* The first keys of a piece are seen by the most rows: they go first. */
#pragma omp for schedule(dynamic)
        for (size_t i = 0; i < n_part_tasks; i++)
            unit_backward(&call, unit_at(&call, i), &in, &rows, &room, &slot,
                          dq);

#pragma omp for schedule(static)
        for (size_t i = 0; i < n_tasks; i++) {
            attn_tile tile = tile_task(&call, i);

            if (!tile_is_one_part(&call, &tile))
                tile_finish(&call, &tile, &rows, dq);
        }
    }
}
