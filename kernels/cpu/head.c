/* head.c - fused linear + cross-entropy, a tile of rows at a time.
 *
 * The logits of a tile are formed in scratch, turned into losses, and, in the
 * backward, overwritten by their gradient, from which two more GEMMs make dx and
 * dw.  Both directions run the same code over the same tiles up to the loss.
 * Logits and their gradient are acc whatever act is.
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
    ROW_LOSS_AND_GRADIENT
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

typedef struct head_room {
    acc *logits; /* [rows, n_vocab] */
    acc *x;      /* [rows, n_in], widened */
    acc *dx;
} head_room;

size_t CF_CPU(head_scratch_bytes)(const cf_kernels *k, size_t n_rows,
                                  size_t n_vocab, size_t n_in)
{
    (void)k;
    return smaller(n_rows, TILE_ROWS) * (n_vocab + room_for(2 * n_in)) *
           sizeof(acc);
}

static head_room room_of(const cf_weight *w, size_t n_rows, void *scratch)
{
    size_t n = smaller(n_rows, TILE_ROWS);
    head_room room = {.logits = scratch};

    room.x = room.logits + n * w->n_out;
    room.dx = room.x + room_for(n * w->n_in);
    return room;
}

void CF_CPU(head_forward)(const cf_kernels *k, const cf_weight *w,
                          size_t n_rows, const void *x, const uint32_t *targets,
                          double *loss, void *scratch)
{
    const head_room room = room_of(w, n_rows, scratch);
    const act *in = x;

    (void)k;
    assert(w->bias == NULL);
    for (size_t row = 0; row < n_rows; row += TILE_ROWS) {
        size_t n = smaller(n_rows - row, TILE_ROWS);
        const acc *tile = widened(n * w->n_in, in + row * w->n_in, room.x);

        gemm_forward(n, w->n_out, w->n_in, tile, w->master, 0, room.logits);
        loss_rows(n, w->n_out, targets + row, 0, ROW_LOSS, room.logits,
                  loss + row);
    }
}

void CF_CPU(head_backward)(const cf_kernels *k, const cf_weight *w,
                           size_t n_rows, const void *x,
                           const uint32_t *targets, double scale, double *loss,
                           void *dx, void *dw, void *scratch)
{
    const head_room room = room_of(w, n_rows, scratch);
    const act *in = x;
    act *din = dx;

    (void)k;
    assert(w->bias == NULL);
    for (size_t row = 0; row < n_rows; row += TILE_ROWS) {
        size_t n = smaller(n_rows - row, TILE_ROWS), first = row * w->n_in;
        const acc *tile = widened(n * w->n_in, in + first, room.x);

        gemm_forward(n, w->n_out, w->n_in, tile, w->master, 0, room.logits);
        loss_rows(n, w->n_out, targets + row, scale, ROW_LOSS_AND_GRADIENT,
                  room.logits, loss + row);
        gemm_backward_input(n, w->n_out, w->n_in, room.logits, w->master,
                            wide(din + first, room.dx));
        narrow(n * w->n_in, room.dx, din + first);
        if (dw != NULL)
            gemm_backward_weight(n, w->n_out, w->n_in, room.logits, tile, dw);
    }
}
