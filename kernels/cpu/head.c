/* head.c - fused linear + cross-entropy, a tile of rows at a time.
 *
 * The logits of a tile are formed in scratch, turned into losses, and, in the
 * backward, overwritten by their gradient, from which two more GEMMs make dx and
 * dw.  Both directions run the same code over the same tiles up to the loss.
 * Logits are acc whatever act is.  So is their gradient for OpenBLAS; for oneDNN
 * (gemm.h) a row of it becomes act in its place, at the start of its row.
 *
 * A NaN or +Inf among a row's logits makes its loss NaN: it gets into the sum of
 * the exponentials, whatever the maximum was.
 */
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/widen.h"

/* Rows of a tile.  dw is read and written once a tile, which makes small tiles
 * slow; 512 rows of 49152 logits are 96 MiB in fp32. */
enum {
    TILE_ROWS = 512
};

/* Exponentials summed in the element type before they enter the double. */
enum {
    SUM_BLOCK = 1024
};

enum {
    MAX_CHAINS = 4
};

typedef enum row_pass {
    ROW_LOSS,
    ROW_LOSS_AND_GRADIENT,
    ROW_LOSS_AND_ACT_GRADIENT
} row_pass;

static acc row_max(size_t n, const acc *x)
{
    vec max[MAX_CHAINS];
    size_t i = 0;

    for (size_t j = 0; j < MAX_CHAINS; j++)
        max[j] = vec_splat(x[0]);
    for (; i + MAX_CHAINS * VL <= n; i += MAX_CHAINS * VL)
        for (size_t j = 0; j < MAX_CHAINS; j++)
            max[j] = vec_max(max[j], vec_load(x + i + j * VL));
    for (; i < n; i += VL)
        max[0] = vec_max(max[0], pad(load_acc(x + i, n - i), n - i, x[0]));

    acc lane[VL];

    max[0] = vec_max(vec_max(max[0], max[1]), vec_max(max[2], max[3]));
    vec_store(lane, max[0]);
    for (size_t j = 1; j < VL; j++)
        lane[0] = lane[0] > lane[j] ? lane[0] : lane[j];
    return lane[0];
}

/* x = exp(x - max); returns their sum. */
static double row_exp(size_t n, acc max, acc *x)
{
    double total = 0;

    for (size_t begin = 0; begin < n; begin += SUM_BLOCK) {
        size_t end = begin + smaller(n - begin, SUM_BLOCK);
        vec sum = {0};

        for (size_t i = begin; i < end; i += VL) {
            size_t left = end - i;
            vec e = vec_exp(load_acc(x + i, left) - vec_splat(max));

            store_acc(x + i, left, e);
            sum += pad(e, left, 0);
        }
        total += vec_sum(sum);
    }
    return total;
}

/* x [n] as act, in its place. */
static void narrow_row(size_t n, acc *x)
{
#if CF_ACT_BF16
    act *y = (act *)x;

    /* Ascending: what is written was read. */
    for (size_t i = 0; i < n; i += VL)
        store_act(y + i, n - i, load_acc(x + i, n - i));
#else
    (void)n, (void)x;
#endif
}

/* One row: loss from its logits; the logits become exponentials, and those the
 * gradient when asked for. */
static void loss_row(size_t n, uint32_t target, double scale, row_pass pass,
                     acc *x, double *loss_p)
{
    acc max = row_max(n, x);
    double at_target = (double)x[target] - (double)max;
    double sum = row_exp(n, max, x);

    *loss_p = log(sum) - at_target;
    if (pass == ROW_LOSS)
        return;

    vec factor = vec_splat((acc)(scale / sum));

    for (size_t i = 0; i < n; i += VL)
        store_acc(x + i, n - i, load_acc(x + i, n - i) * factor);
    x[target] -= (acc)scale;
    if (pass == ROW_LOSS_AND_ACT_GRADIENT)
        narrow_row(n, x);
}

static void loss_rows(size_t n_rows, size_t n_vocab, const uint32_t *targets,
                      double scale, row_pass pass, acc *logits, double *loss)
{
#pragma omp parallel for schedule(static) if (n_rows * n_vocab > \
                                              CF_PARALLEL_MIN)
    for (size_t row = 0; row < n_rows; row++)
        loss_row(n_vocab, targets[row], scale, pass, logits + row * n_vocab,
                 loss + row);
}

/* ---- tiles ---- */

typedef struct head_room {
    acc *logits; /* [rows, n_vocab] */
    acc *x;      /* [rows, n_in], widened, or act with rows of zeros behind */
    acc *dx;
} head_room;

static size_t room_rows(const cf_kernels *k, size_t n_rows)
{
    return onednn_of(k) != NULL
               ? cf_onednn_rest_rows(smaller(n_rows, TILE_ROWS))
               : smaller(n_rows, TILE_ROWS);
}

/* Elements of room for x, and for dx. */
static size_t room_of_x(const cf_kernels *k, size_t n_rows, size_t n_in)
{
    size_t n = room_rows(k, n_rows) * n_in;

    return onednn_of(k) != NULL ? n : room_for(n);
}

size_t CF_CPU(head_scratch_bytes)(const cf_kernels *k, size_t n_rows,
                                  size_t n_vocab, size_t n_in)
{
    return (room_rows(k, n_rows) * n_vocab + 2 * room_of_x(k, n_rows, n_in)) *
           sizeof(acc);
}

static head_room room_of(const cf_kernels *k, const cf_weight *w, size_t n_rows,
                         void *scratch)
{
    head_room room = {.logits = scratch};

    room.x = room.logits + room_rows(k, n_rows) * w->n_out;
    room.dx = room.x + room_of_x(k, n_rows, w->n_in);
    return room;
}

/* Up to TILE_ROWS rows, by OpenBLAS on their widened x, or by oneDNN. */
typedef struct head_tile {
    const cf_weight *w;
    size_t n_rows;
    const acc *x;
    cf_onednn *library; /* NULL: OpenBLAS */
    size_t n_padded;    /* for oneDNN, with rows of zeros */
    const act *x_padded;
    cf_product logits, dx, dw;
} head_tile;

/* Whether oneDNN has all products of a tile: if not, none is taken, so that both
 * directions have the same loss. */
static bool products_find(head_tile *tile)
{
    const size_t n = tile->n_padded, n_vocab = tile->w->n_out;
    const size_t n_in = tile->w->n_in;
    const size_t row = n_vocab * (sizeof(acc) / sizeof(act));

    tile->logits = forward_product(tile->w, n, CF_GEMM_FP32);
    tile->dx = input_product(tile->w, n);
    tile->dx.a_row = row;
    tile->dw = (cf_product){.m = n_vocab,
                            .n = n_in,
                            .k = n,
                            .a_row = 1,
                            .a_col = row,
                            .b_row = n_in,
                            .b_col = 1,
                            .c_row = n_in,
                            .in = CF_GEMM_ACT,
                            .out = CF_GEMM_FP32,
                            .add = true};
    return cf_onednn_has(tile->library, &tile->logits) &&
           cf_onednn_has(tile->library, &tile->dx) &&
           cf_onednn_has(tile->library, &tile->dw);
}

static head_tile tile_of(const cf_kernels *k, const cf_weight *w, size_t n_rows,
                         const act *x, const head_room *room)
{
    const size_t n_x = n_rows * w->n_in;
    head_tile tile = {.w = w, .n_rows = n_rows, .x_padded = x};

    if (w->packed != NULL)
        tile.library = onednn_of(k);
    if (tile.library != NULL) {
        tile.n_padded = cf_onednn_rest_rows(n_rows);
        if (!products_find(&tile))
            tile.library = NULL;
    }
    if (tile.library == NULL) {
        tile.x = widened(n_x, x, room->x);
    } else if (tile.n_padded > n_rows) {
        act *padded = (act *)room->x;

        memcpy(padded, x, n_x * sizeof(*x));
        memset(padded + n_x, 0, (tile.n_padded * w->n_in - n_x) * sizeof(*x));
        tile.x_padded = padded;
    }
    return tile;
}

static void tile_logits(const head_tile *tile, const head_room *room)
{
    const cf_weight *w = tile->w;

    if (tile->library != NULL)
        cf_onednn_multiply(tile->library, &tile->logits, tile->x_padded,
                           w->packed, NULL, room->logits);
    else
        gemm_forward(tile->n_rows, w->n_out, w->n_in, tile->x, w->master, 0,
                     room->logits);
}

static void tile_backward(const head_tile *tile, const head_room *room, act *dx,
                          acc *dw)
{
    const cf_weight *w = tile->w;
    const size_t n = tile->n_rows, n_x = n * w->n_in;

    gemm_backward_input(n, w->n_out, w->n_in, room->logits, w->master,
                        wide(dx, room->dx));
    narrow(n_x, room->dx, dx);
    if (dw != NULL)
        gemm_backward_weight(n, w->n_out, w->n_in, room->logits, tile->x, dw);
}

static void tile_backward_packed(const head_tile *tile, const head_room *room,
                                 act *dx, acc *dw)
{
    const cf_weight *w = tile->w;
    const size_t n_x = tile->n_rows * w->n_in;
    void *to = tile->n_padded > tile->n_rows ? (void *)room->dx : dx;

    /* The rows that were added have no loss. */
    for (size_t row = tile->n_rows; row < tile->n_padded; row++)
        memset(room->logits + row * w->n_out, 0, w->n_out * sizeof(act));
    cf_onednn_multiply(tile->library, &tile->dx, room->logits,
                       packed_backward(tile->library, w), NULL, to);
    if (to != dx)
        memcpy(dx, to, n_x * sizeof(*dx));
    if (dw != NULL)
        cf_onednn_multiply(tile->library, &tile->dw, room->logits,
                           tile->x_padded, NULL, dw);
}

void CF_CPU(head_forward)(const cf_kernels *k, const cf_weight *w,
                          size_t n_rows, const void *x, const uint32_t *targets,
                          double *loss, void *scratch)
{
    const head_room room = room_of(k, w, n_rows, scratch);
    const act *in = x;

    assert(w->bias == NULL);
    for (size_t row = 0; row < n_rows; row += TILE_ROWS) {
        size_t n = smaller(n_rows - row, TILE_ROWS);
        head_tile tile = tile_of(k, w, n, in + row * w->n_in, &room);

        tile_logits(&tile, &room);
        loss_rows(n, w->n_out, targets + row, 0, ROW_LOSS, room.logits,
                  loss + row);
    }
}

void CF_CPU(head_backward)(const cf_kernels *k, const cf_weight *w,
                           size_t n_rows, const void *x,
                           const uint32_t *targets, double scale, double *loss,
                           void *dx, void *dw, void *scratch)
{
    const head_room room = room_of(k, w, n_rows, scratch);
    const act *in = x;
    act *din = dx;

    assert(w->bias == NULL);
    for (size_t row = 0; row < n_rows; row += TILE_ROWS) {
        size_t n = smaller(n_rows - row, TILE_ROWS), first = row * w->n_in;
        head_tile tile = tile_of(k, w, n, in + first, &room);
        const row_pass pass = tile.library != NULL ? ROW_LOSS_AND_ACT_GRADIENT
                                                   : ROW_LOSS_AND_GRADIENT;

        tile_logits(&tile, &room);
        loss_rows(n, w->n_out, targets + row, scale, pass, room.logits,
                  loss + row);
        if (tile.library != NULL)
            tile_backward_packed(&tile, &room, din + first, dw);
        else
            tile_backward(&tile, &room, din + first, dw);
    }
}
