/* onednn_rows.c - products of any number of rows, from few shapes.
 *
 * Packed chunks have every number of rows there is, and oneDNN wants a primitive
 * for each.  So rows go in two parts: whole blocks of CF_ROWS_BLOCK, where they
 * lie, and the rest, up to a multiple of CF_ROWS_STEP.  A rest that is none is
 * copied into room and followed by zeros; so a layer of ChunkSize C has at most
 * C / CF_ROWS_BLOCK + CF_ROWS_BLOCK / CF_ROWS_STEP shapes a product.
 *
 * Rows are bytes here, whatever their type.
 */
#include <string.h>

#include "kernels/cpu/onednn.h"

enum {
    MAX_PARTS = 2
};

typedef struct row_part {
    size_t first, n;
    size_t n_padded;
} row_part;

typedef struct row_parts {
    row_part part[MAX_PARTS];
    size_t n;
} row_parts;

static size_t step_up(size_t n)
{
    return (n + CF_ROWS_STEP - 1) / CF_ROWS_STEP * CF_ROWS_STEP;
}

size_t cf_onednn_rest_rows(size_t n_rows)
{
    return n_rows < CF_ROWS_BLOCK ? step_up(n_rows) : CF_ROWS_BLOCK;
}

static row_parts parts_of(size_t n_rows)
{
    const size_t rest = n_rows % CF_ROWS_BLOCK, whole = n_rows - rest;
    row_parts parts = {.n = 0};

    if (whole > 0)
        parts.part[parts.n++] = (row_part){0, whole, whole};
    if (rest > 0)
        parts.part[parts.n++] = (row_part){whole, rest, step_up(rest)};
    return parts;
}

static size_t element_bytes(cf_gemm_type type)
{
    return type == CF_GEMM_BF16 ? 2 : 4;
}

/* The rows of a part, with zeros behind them where they are too few. */
static const void *padded(const row_part *part, size_t row_bytes, const void *x,
                          void *room)
{
    const char *from = (const char *)x + part->first * row_bytes;
    char *to = room;

    if (part->n == part->n_padded)
        return from;
    memcpy(to, from, part->n * row_bytes);
    memset(to + part->n * row_bytes, 0, (part->n_padded - part->n) * row_bytes);
    return room;
}

static void part_multiply(cf_onednn *library, const cf_product *p,
                          const row_part *part, const void *a, const void *b,
                          const void *bias, void *c, void *room)
{
    const size_t a_bytes = p->k * element_bytes(p->in);
    const size_t c_bytes = p->n * element_bytes(p->out);
    char *c_room = (char *)room + part->n_padded * a_bytes;
    char *to = (char *)c + part->first * c_bytes;
    const void *rows = padded(part, a_bytes, a, room);

    if (part->n == part->n_padded) {
        cf_onednn_multiply(library, p, rows, b, bias, to);
        return;
    }
    if (p->add)
        (void)padded(part, c_bytes, c, c_room);
    cf_onednn_multiply(library, p, rows, b, bias, c_room);
    memcpy(to, c_room, part->n * c_bytes);
}

bool cf_onednn_rows_multiply(cf_onednn *library, const cf_product *product,
                             size_t n_rows, const void *a, const void *b,
                             const void *bias, void *c, void *room)
{
    const row_parts parts = parts_of(n_rows);
    cf_product p = *product;

    for (size_t i = 0; i < parts.n; i++) {
        p.m = parts.part[i].n_padded;
        if (!cf_onednn_has(library, &p))
            return false;
    }
    for (size_t i = 0; i < parts.n; i++) {
        p.m = parts.part[i].n_padded;
        part_multiply(library, &p, &parts.part[i], a, b, bias, c, room);
    }
    return true;
}

bool cf_onednn_rows_gradient(cf_onednn *library, cf_gemm_type type,
                             size_t n_rows, size_t m, size_t n, const void *a,
                             const void *b, void *c, void *room)
{
    const row_parts parts = parts_of(n_rows);
    const size_t a_bytes = m * element_bytes(type);
    const size_t b_bytes = n * element_bytes(type);
    cf_product p = {.m = m,
                    .n = n,
                    .a_row = 1,
                    .a_col = m,
                    .b_row = n,
                    .b_col = 1,
                    .c_row = n,
                    .in = type,
                    .out = CF_GEMM_FP32,
                    .add = true};

    for (size_t i = 0; i < parts.n; i++) {
        p.k = parts.part[i].n_padded;
        if (!cf_onednn_has(library, &p))
            return false;
    }
    for (size_t i = 0; i < parts.n; i++) {
        const row_part *part = &parts.part[i];
        char *b_room = (char *)room + part->n_padded * a_bytes;

        p.k = part->n_padded;
        cf_onednn_multiply(library, &p, padded(part, a_bytes, a, room),
                           padded(part, b_bytes, b, b_room), NULL, c);
    }
    return true;
}
