/* attention.h - what the two passes of attention share.
 *
 * Everything is computed transposed.  The rows of a (piece, kv head) are its
 * (query token, head of the group) pairs, token by token, and rows lie in the
 * vector lanes: scores are [key][row].  The heads of a group share K and V, so
 * a key is read once for all of them, by broadcast, straight from its page; in
 * bf16 from a copy of the tile, widened once for all rows that meet it.
 *
 * (1) Maximum, sum, rescaling and masking are vertical.  No arithmetic crosses
 *     lanes, so a row's bits depend neither on the vector width nor on the rows
 *     beside it.
 * (2) Keys come in tiles of KEY_TILE, anchored at position 0 of the sequence
 *     and visited in ascending order; a page is whole tiles.  So a row's bits do
 *     not depend on how its sequence was cut or packed.
 * (3) Rows are worked on in panels of up to PANEL_VECS vectors, TILE_PANELS of
 *     them in a tile.  A panel stops at the last key that its last row sees, so
 *     short pieces waste little whatever the tile.
 * (4) q is scaled when it is gathered.  A score less the maximum is then <= 0
 *     exactly, and exp cannot overflow.
 * (5) A row beyond the last one of a piece repeats that one; nothing of it is
 *     stored or summed.
 *
 * A NaN or Inf in a key or value spoils the rows that see it, and may spoil
 * earlier rows of the same piece in the same tile, but never another piece.
 */
#ifndef CF_CPU_ATTENTION_H
#define CF_CPU_ATTENTION_H

#include "kernels/cpu/loops.h"

enum {
    KEY_TILE = 64,
    PANEL_VECS = 3,
    PANEL_ROWS = PANEL_VECS * VL,
    TILE_PANELS = CF_VB == 64 ? 2 : 4,
    TILE_ROWS = TILE_PANELS * PANEL_ROWS,
    KEY_PARTS = 4, /* of a long piece, in the backward */
    /* Accumulators of the matrix product: what the registers hold beside its
     * operands. */
    PRODUCT_VECS = CF_VB == 64 ? 24 : 12
};

_Static_assert(CF_PAGE_TOK % KEY_TILE == 0, "a key tile lies in one page");

typedef struct attn_call {
    const cf_attn_piece *pieces;
    size_t n_pieces;
    /* Where the work of a piece starts, in units of one kv head; the entry
     * behind the last piece is the end.  [n_pieces + 1], in scratch. */
    size_t *row;  /* in arrays over all rows, padded to vectors */
    size_t *tile; /* of rows */
    size_t *part; /* of keys */
    size_t n_kv_heads;
    size_t group; /* heads that share a kv head */
    size_t dim;
    size_t key_begin, key_end;
    acc scale;
} attn_call;

/* Up to TILE_ROWS rows of one piece and kv head. */
typedef struct attn_tile {
    const cf_attn_piece *piece;
    size_t kv_head;
    size_t row;    /* the first one, in the piece */
    size_t n_rows; /* in the tile */
    size_t place;  /* of the first one in arrays [n_kv_heads, padded rows] */
} attn_tile;

typedef struct attn_panel {
    size_t row;    /* the first one, in the tile */
    size_t n_rows; /* in the panel */
    size_t n_vecs;
    size_t first; /* position of the first row's token */
    size_t last;  /* position of the last row's token */
} attn_panel;

/* Keys at positions begin .. end - 1, all of one tile. */
typedef struct key_span {
    size_t begin, end;
} key_span;

/* Keys and values of one tile, as acc [keys, dim]. */
typedef struct key_tile {
    const acc *k, *v;
} key_tile;

/* Scratch is dealt out in pieces that start at cache lines. */
CF_INLINE size_t line_up(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

CF_INLINE acc *take(char **scratch_p, size_t n)
{
    acc *taken = (acc *)(void *)*scratch_p;

    *scratch_p += line_up(n * sizeof(acc));
    return taken;
}

CF_INLINE acc acc_log(acc x)
{
#if CF_DOUBLE
    return log(x);
#else
    return logf(x);
#endif
}

CF_INLINE size_t padded(size_t n)
{
    return n_blocks(n, VL) * VL;
}

/* Padded rows of one kv head that n_tok tokens in n_pieces pieces may need. */
CF_INLINE size_t rows_bound(const cf_attn_shape *shape, size_t n_tok,
                            size_t n_pieces)
{
    return n_tok * (shape->n_heads / shape->n_kv_heads) + n_pieces * (VL - 1);
}

CF_INLINE size_t starts_bytes(size_t n_pieces)
{
    return line_up(3 * (n_pieces + 1) * sizeof(size_t));
}

/* First and end tile of the keys of the range that a piece sees. */
CF_INLINE size_t first_key_tile(const attn_call *call)
{
    return call->key_begin / KEY_TILE;
}

CF_INLINE size_t end_key_tile(const attn_call *call, const cf_attn_piece *piece)
{
    size_t end =
        smaller(call->key_end, (size_t)piece->prefix_tok + piece->n_tok);

    return end > call->key_begin ? n_blocks(end, KEY_TILE)
                                 : first_key_tile(call);
}

/* Lays the work out; the tables take starts_bytes of scratch. */
static inline attn_call attn_open(const cf_attn_shape *shape,
                                  const cf_attn_batch *batch,
                                  uint32_t key_begin, uint32_t key_end,
                                  char **scratch_p)
{
    const size_t n = batch->n_pieces;
    size_t *starts = (size_t *)(void *)*scratch_p;
    attn_call call = {
        .pieces = batch->pieces,
        .n_pieces = n,
        .row = starts,
        .tile = starts + n + 1,
        .part = starts + 2 * (n + 1),
        .n_kv_heads = shape->n_kv_heads,
        .group = shape->n_heads / shape->n_kv_heads,
        .dim = shape->head_dim,
        .key_begin = key_begin,
        .key_end = key_end,
        .scale = (acc)shape->softmax_scale,
    };

    *scratch_p += starts_bytes(n);
    call.row[0] = call.tile[0] = call.part[0] = 0;
    for (size_t p = 0; p < n; p++) {
        const cf_attn_piece *piece = &batch->pieces[p];
        size_t n_rows = piece->n_tok * call.group;
        size_t n_keys = end_key_tile(&call, piece) - first_key_tile(&call);

        call.row[p + 1] = call.row[p] + padded(n_rows);
        call.tile[p + 1] = call.tile[p] + n_blocks(n_rows, TILE_ROWS);
        call.part[p + 1] = call.part[p] + (n_keys > KEY_PARTS ? KEY_PARTS : 1);
    }
    return call;
}

/* The piece that a unit of one of the tables belongs to. */
static inline size_t piece_at(const size_t *starts, size_t n_pieces,
                              size_t unit)
{
    size_t low = 0, high = n_pieces;

    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;

        if (starts[middle] <= unit)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Scratch of the backward (attention_backward.c). */
size_t CF_CPU(attention_backward_bytes)(const cf_attn_shape *shape,
                                        size_t n_tok, size_t n_pieces);

/* Tile t of piece p. */
CF_INLINE attn_tile tile_of(const attn_call *call, size_t p, size_t kv_head,
                            size_t t)
{
    const cf_attn_piece *piece = &call->pieces[p];
    size_t row = t * TILE_ROWS;

    return (attn_tile){
        .piece = piece,
        .kv_head = kv_head,
        .row = row,
        .n_rows = smaller(TILE_ROWS, piece->n_tok * call->group - row),
        .place = kv_head * call->row[call->n_pieces] + call->row[p] + row,
    };
}

/* Tasks over tiles are numbered kv head by kv head within a tile. */
CF_INLINE size_t n_tile_tasks(const attn_call *call)
{
    return call->tile[call->n_pieces] * call->n_kv_heads;
}

CF_INLINE attn_tile tile_task(const attn_call *call, size_t task)
{
    size_t tile = task / call->n_kv_heads;
    size_t p = piece_at(call->tile, call->n_pieces, tile);

    return tile_of(call, p, task % call->n_kv_heads, tile - call->tile[p]);
}

CF_INLINE size_t position(const attn_call *call, const attn_tile *tile,
                          size_t row)
{
    return tile->piece->prefix_tok + (tile->row + row) / call->group;
}

CF_INLINE attn_panel panel_of(const attn_call *call, const attn_tile *tile,
                              size_t row)
{
    size_t n_rows = smaller(PANEL_ROWS, tile->n_rows - row);

    return (attn_panel){
        .row = row,
        .n_rows = n_rows,
        .n_vecs = n_blocks(n_rows, VL),
        .first = position(call, tile, row),
        .last = position(call, tile, row + n_rows - 1),
    };
}

/* The keys of tile kt that the call asks for, up to `last`. */
CF_INLINE key_span span_of(const attn_call *call, size_t kt, size_t last)
{
    key_span span = {kt * KEY_TILE, (kt + 1) * KEY_TILE};

    if (span.begin < call->key_begin)
        span.begin = call->key_begin;
    span.end = smaller(span.end, smaller(call->key_end, last + 1));
    return span;
}

/* Row of the key at a position, in K or V or their gradients. */
CF_INLINE size_t key_element(const attn_call *call, const attn_tile *tile,
                             size_t key)
{
    return tile->kv_head * tile->piece->head_stride +
           key % CF_PAGE_TOK * call->dim;
}

/* The keys of a span, or their values, as acc [keys, dim]. */
CF_INLINE const acc *key_rows(const attn_call *call, const attn_tile *tile,
                              void *const *pages, key_span span, acc *room)
{
    const act *from = (const act *)pages[span.begin / CF_PAGE_TOK] +
                      key_element(call, tile, span.begin);

#if CF_ACT_BF16
    size_t n = (span.end - span.begin) * call->dim;

    for (size_t i = 0; i < n; i += VL)
        store_acc(room + i, n - i, load_act(from + i, n - i));
    return room;
#else
    (void)room;
    return from;
#endif
}

/* Elements of room that it needs. */
CF_INLINE size_t key_room(size_t dim)
{
    return CF_ACT_BF16 ? KEY_TILE * dim : 0;
}

/* How many of the keys from `key` on each row sees.  Rows of a panel. */
CF_INLINE void sight_of(const attn_call *call, const attn_tile *tile,
                        const attn_panel *panel, key_span span,
                        acc_bits sight[PANEL_ROWS])
{
    size_t n_keys = span.end - span.begin;

    for (size_t r = 0; r < panel->n_vecs * VL; r++) {
        size_t row = smaller(r, panel->n_rows - 1);
        size_t end = position(call, tile, panel->row + row) + 1;
        size_t seen = end > span.begin ? end - span.begin : 0;

        sight[r] = (acc_bits)smaller(seen, n_keys);
    }
}

/* First element of VL rows from `row` on in [n_tok, n_heads, dim]. */
CF_INLINE void row_elements(const attn_call *call, const attn_tile *tile,
                            size_t row, size_t at[VL])
{
    size_t n_heads = call->n_kv_heads * call->group;

    for (size_t i = 0; i < VL; i++) {
        size_t r = tile->row + smaller(row + i, tile->n_rows - 1);
        size_t token = tile->piece->row + r / call->group;
        size_t head = tile->kv_head * call->group + r % call->group;

        at[i] = (token * n_heads + head) * call->dim;
    }
}

/* Shuffles are fast when the compiler sees constants: f(lane, s) of each lane. */
#define LANES_4(f, s) f(0, s), f(1, s), f(2, s), f(3, s)
#define LANES_8(f, s) LANES_4(f, s), f(4, s), f(5, s), f(6, s), f(7, s)
#define LANES_16(f, s)                                                       \
    LANES_8(f, s), f(8, s), f(9, s), f(10, s), f(11, s), f(12, s), f(13, s), \
        f(14, s), f(15, s)
#if CF_VB == 64 && !CF_DOUBLE
#define LANES LANES_16
#elif CF_VB == 64 || !CF_DOUBLE
#define LANES LANES_8
#else
#define LANES LANES_4
#endif
#define LOW_LANE(l, s)  ((l) & (s) ? VL + (l) - (s) : (l))
#define HIGH_LANE(l, s) ((l) & (s) ? VL + (l) : (l) + (s))

/* The squares of s lanes off the diagonal of each square of 2 s lanes change
 * places. */
CF_INLINE void exchange(vec x[VL], const int s)
{
#pragma GCC unroll 16
    for (int i = 0; i < VL; i++)
        if ((i & s) == 0) {
            vec a = x[i], b = x[i + s];

            x[i] = __builtin_shuffle(a, b, (ivec){LANES(LOW_LANE, s)});
            x[i + s] = __builtin_shuffle(a, b, (ivec){LANES(HIGH_LANE, s)});
        }
}

/* x[i][j] <-> x[j][i]. */
CF_INLINE void transpose(vec x[VL])
{
    exchange(x, 1);
    exchange(x, 2);
    if (VL > 4)
        exchange(x, 4 % VL);
    if (VL > 8)
        exchange(x, 8 % VL);
}

/* Elements e .. e + VL - 1 of VL rows, transposed: y[i] is element e + i. */
CF_INLINE void load_columns(const act *x, const size_t at[VL], size_t e,
                            size_t left, vec y[VL])
{
#pragma GCC unroll 16
    for (int i = 0; i < VL; i++)
        y[i] = load_act(x + at[i] + e, left);
    transpose(y);
}

/* to[e][row] = factor * x[row][e] for a panel's rows. */
static inline void panel_gather(const attn_call *call, const attn_tile *tile,
                                const attn_panel *panel, acc factor,
                                const act *x, acc *to)
{
    size_t width = panel->n_vecs * VL, at[VL];

    for (size_t r = 0; r < width; r += VL) {
        row_elements(call, tile, panel->row + r, at);
        for (size_t e = 0; e < call->dim; e += VL) {
            size_t left = call->dim - e;
            vec y[VL];

            load_columns(x, at, e, left, y);
#pragma GCC unroll 16
            for (size_t i = 0; i < VL; i++)
                if (i < left)
                    vec_store(to + (e + i) * width + r,
                              y[i] * vec_splat(factor));
        }
    }
}

/* c [m, w vectors] = a [m, k] b [k, w vectors], or += with add.  Element (i, l)
 * of a is at i a_row + l a_k, so that a may be transposed.  Every element of c
 * is one chain over ascending l. */
typedef struct attn_product {
    size_t m, k;
    const acc *a;
    size_t a_row, a_k;
    const acc *b;
    size_t b_k;
    acc *c;
    size_t c_row;
    int add;
} attn_product;

/* Rows i .. i + m - 1 of c, in registers: m w <= PRODUCT_VECS. */
CF_INLINE void product_rows(const int w, const int m, const attn_product *p,
                            size_t i)
{
    const acc *a = p->a + i * p->a_row, *b = p->b;
    acc *c = p->c + i * p->c_row;
    vec x[PRODUCT_VECS];

#pragma GCC unroll 24
    for (int r = 0; r < m; r++)
#pragma GCC unroll 3
        for (int v = 0; v < w; v++)
            x[r * w + v] =
                p->add ? vec_load(c + r * p->c_row + v * VL) : (vec){0};

    for (size_t l = 0; l < p->k; l++, a += p->a_k, b += p->b_k) {
        vec y[PANEL_VECS];

#pragma GCC unroll 3
        for (int v = 0; v < w; v++)
            y[v] = vec_load(b + v * VL);
#pragma GCC unroll 24
        for (int r = 0; r < m; r++)
#pragma GCC unroll 3
            for (int v = 0; v < w; v++)
                x[r * w + v] += vec_splat(a[r * p->a_row]) * y[v];
    }

#pragma GCC unroll 24
    for (int r = 0; r < m; r++)
#pragma GCC unroll 3
        for (int v = 0; v < w; v++)
            vec_store(c + r * p->c_row + v * VL, x[r * w + v]);
}

CF_INLINE void product(const int w, attn_product p)
{
    const int m = PRODUCT_VECS / w;
    size_t i = 0;

    for (; p.m - i >= (size_t)m; i += m)
        product_rows(w, m, &p, i);
    for (; p.m - i >= 4; i += 4)
        product_rows(w, 4, &p, i);
    for (; i < p.m; i++)
        product_rows(w, 1, &p, i);
}

#endif
