/* head.c - fused linear + cross-entropy, a tile of rows at a time.
 *
 * The logits of a tile are formed in scratch, in fp32, turned into losses, and, in
 * the backward, overwritten by their gradient in bf16, from which two more
 * products make dx and dw.  Both directions do the same up to the loss.
 */
#include "kernels/cuda/context.h"

/* Rows of a tile.  dw is read and written once a tile, which makes small tiles
 * slow; 512 rows of 152064 logits are 297 MiB. */
enum {
    TILE_ROWS = 512
};

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

size_t cf_cuda_head_scratch_bytes(const cf_kernels *k, size_t n_rows,
                                  size_t n_vocab, size_t n_in)
{
    (void)k, (void)n_in;
    return smaller(n_rows, TILE_ROWS) * n_vocab * sizeof(float);
}

static void logits_form(cf_cuda_context *c, const cf_weight *w, size_t n_rows,
                        const uint16_t *x, void *logits)
{
    cf_cuda_product_do(
        c, &(cf_cuda_product){
               .m = n_rows,
               .n = w->n_out,
               .k = w->n_in,
               .a = {.x = x, .stride = w->n_in},
               .b = {.x = w->packed, .stride = w->n_in, .transposed = 1},
               .c = logits,
               .c_type = CF_CUDA_ACC});
}

/* dx and dw from d, act, whose rows are 2 n_vocab elements apart. */
static void gradients_form(cf_cuda_context *c, const cf_weight *w,
                           size_t n_rows, const void *d, const uint16_t *x,
                           uint16_t *dx, void *dw)
{
    cf_cuda_product_do(
        c, &(cf_cuda_product){.m = n_rows,
                              .n = w->n_in,
                              .k = w->n_out,
                              .a = {.x = d, .stride = 2 * w->n_out},
                              .b = {.x = w->packed, .stride = w->n_in},
                              .c = dx,
                              .c_type = CF_CUDA_ACT});
    if (dw != NULL)
        cf_cuda_product_do(
            c, &(cf_cuda_product){
                   .m = w->n_out,
                   .n = w->n_in,
                   .k = n_rows,
                   .a = {.x = d, .stride = 2 * w->n_out, .transposed = 1},
                   .b = {.x = x, .stride = w->n_in},
                   .c = dw,
                   .c_type = CF_CUDA_ACC,
                   .add = 1});
}

/* What one call is about; without dx there is no backward. */
typedef struct head {
    const cf_weight *w;
    const uint16_t *x;
    const uint32_t *targets; /* device */
    double scale;
    uint16_t *dx;
    void *dw;
    void *logits;
} head;

static void tile_run(cf_cuda_context *c, const head *h, size_t row, size_t n,
                     double *loss)
{
    const size_t n_in = h->w->n_in, n_vocab = h->w->n_out;
    const uint16_t *x = h->x + row * n_in;

    logits_form(c, h->w, n, x, h->logits);
    if (h->dx == NULL) {
        cf_cuda_cross_entropy(c->stream, n, n_vocab, h->targets + row,
                              h->logits, loss);
        return;
    }
    cf_cuda_cross_entropy_backward(c->stream, n, n_vocab, h->targets + row,
                                   h->scale, h->logits, loss);
    gradients_form(c, h->w, n, h->logits, x, h->dx + row * n_in, h->dw);
}

static void head_run(cf_cuda_context *c, head *h, size_t n_rows,
                     const uint32_t *targets, double *loss)
{
    h->targets = cf_cuda_staged(c, targets, n_rows * sizeof(*targets));
    if (h->targets == NULL)
        return;
    for (size_t first = 0; first < n_rows; first += CF_CUDA_RESULTS_MAX) {
        size_t n = smaller(n_rows - first, CF_CUDA_RESULTS_MAX);

        for (size_t row = 0; row < n; row += TILE_ROWS)
            tile_run(c, h, first + row, smaller(n - row, TILE_ROWS),
                     c->results + row);
        cf_cuda_launched(c);
        cf_cuda_results_get(c, n, loss + first);
    }
}

void cf_cuda_head_forward(const cf_kernels *k, const cf_weight *w,
                          size_t n_rows, const void *x, const uint32_t *targets,
                          double *loss, void *scratch)
{
    head h = {.w = w, .x = x, .logits = scratch};

    head_run(cf_cuda_context_of(k), &h, n_rows, targets, loss);
}

void cf_cuda_head_backward(const cf_kernels *k, const cf_weight *w,
                           size_t n_rows, const void *x,
                           const uint32_t *targets, double scale, double *loss,
                           void *dx, void *dw, void *scratch)
{
    head h = {
        .w = w, .x = x, .scale = scale, .dx = dx, .dw = dw, .logits = scratch};

    head_run(cf_cuda_context_of(k), &h, n_rows, targets, loss);
}
