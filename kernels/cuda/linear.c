/* linear.c - linear layers: three products, and what a bias adds to them. */
#include "kernels/cuda/context.h"

enum {
    ALIGN = 256
};

static size_t matrix_bytes(size_t n_out, size_t n_in)
{
    return (n_out * n_in * sizeof(uint16_t) + ALIGN - 1) / ALIGN * ALIGN;
}

size_t cf_cuda_weight_packed_bytes(const cf_kernels *k, size_t n_out,
                                   size_t n_in)
{
    (void)k;
    return matrix_bytes(n_out, n_in) + n_out * sizeof(uint16_t);
}

static void *packed_bias(const cf_weight *w)
{
    return (char *)w->packed + matrix_bytes(w->n_out, w->n_in);
}

void cf_cuda_weight_pack(const cf_kernels *k, cf_weight *w)
{
    cf_cuda_context *c = cf_cuda_context_of(k);

    cf_cuda_narrow(c->stream, w->n_out * w->n_in, w->master, w->packed);
    if (w->bias != NULL)
        cf_cuda_narrow(c->stream, w->n_out, w->bias, packed_bias(w));
    cf_cuda_launched(c);
}

/* Room for the partial sums of db. */
size_t cf_cuda_linear_scratch_bytes(const cf_kernels *k, size_t n_tok,
                                    size_t n_out, size_t n_in)
{
    (void)k, (void)n_in;
    return cf_cuda_n_blocks(n_tok, CF_CUDA_SUM_ROWS) * n_out * sizeof(float);
}

/* x [n_tok, n_in] W^T, into an act or an acc. */
static cf_cuda_product forward_product(const cf_weight *w, size_t n_tok,
                                       const void *x, void *y)
{
    return (cf_cuda_product){
        .m = n_tok,
        .n = w->n_out,
        .k = w->n_in,
        .a = {.x = x, .stride = w->n_in},
        .b = {.x = w->packed, .stride = w->n_in, .transposed = 1},
        .c = y,
    };
}

static void forward(const cf_kernels *k, const cf_weight *w, size_t n_tok,
                    const void *x, int add, void *y)
{
    cf_cuda_product p = forward_product(w, n_tok, x, y);

    p.c_type = CF_CUDA_ACT;
    p.add = add;
    p.bias = w->bias != NULL ? packed_bias(w) : NULL;
    cf_cuda_product_do(cf_cuda_context_of(k), &p);
}

void cf_cuda_linear_forward(const cf_kernels *k, const cf_weight *w,
                            size_t n_tok, const void *x, void *y, void *scratch)
{
    (void)scratch;
    forward(k, w, n_tok, x, 0, y);
}

void cf_cuda_linear_forward_add(const cf_kernels *k, const cf_weight *w,
                                size_t n_tok, const void *x, void *y,
                                void *scratch)
{
    (void)scratch;
    forward(k, w, n_tok, x, 1, y);
}

void cf_cuda_linear_forward_residual(const cf_kernels *k, const cf_weight *w,
                                     size_t n_tok, const void *x, void *y,
                                     void *scratch)
{
    cf_cuda_context *c = cf_cuda_context_of(k);
    cf_cuda_product p = forward_product(w, n_tok, x, y);

    (void)scratch;
    p.c_type = CF_CUDA_ACC;
    p.add = 1;
    if (w->bias != NULL)
        cf_cuda_bias_add(c->stream, n_tok, w->n_out, w->bias, y);
    cf_cuda_product_do(c, &p);
}

void cf_cuda_linear_backward(const cf_kernels *k, const cf_weight *w,
                             size_t n_tok, const void *dy, const void *x,
                             void *dx, void *dw, void *db, void *scratch)
{
    cf_cuda_context *c = cf_cuda_context_of(k);

    cf_cuda_product_do(
        c, &(cf_cuda_product){.m = n_tok,
                              .n = w->n_in,
                              .k = w->n_out,
                              .a = {.x = dy, .stride = w->n_out},
                              .b = {.x = w->packed, .stride = w->n_in},
                              .c = dx,
                              .c_type = CF_CUDA_ACT});
    if (dw != NULL)
        cf_cuda_product_do(
            c, &(cf_cuda_product){
                   .m = w->n_out,
                   .n = w->n_in,
                   .k = n_tok,
                   .a = {.x = dy, .stride = w->n_out, .transposed = 1},
                   .b = {.x = x, .stride = w->n_in},
                   .c = dw,
                   .c_type = CF_CUDA_ACC,
                   .add = 1});
    if (db != NULL)
        cf_cuda_bias_backward(c->stream, n_tok, w->n_out, dy, scratch, db);
    cf_cuda_launched(c);
}
