/* batch.c - see batch.h. */
#include "kernels/cuda/batch.h"

#include <string.h>

/* Where the parts of a packed batch start, in bytes. */
typedef struct parts {
    size_t pages[4]; /* of k, v, dk, dv */
    size_t pieces;
    size_t rows;
    size_t end;
} parts;

static size_t n_pages_of(const cf_attn_piece *piece)
{
    return ((size_t)piece->prefix_tok + piece->n_tok + CF_PAGE_TOK - 1) /
           CF_PAGE_TOK;
}

/* All pieces of a call have gradients, or none has. */
static size_t n_tables(const cf_attn_batch *batch)
{
    return batch->n_pieces > 0 && batch->pieces[0].dk != NULL ? 4 : 2;
}

static parts parts_of(const cf_attn_batch *batch)
{
    size_t n_pages = 0;
    parts at = {{0}, 0, 0, 0};

    for (size_t i = 0; i < batch->n_pieces; i++)
        n_pages += n_pages_of(&batch->pieces[i]);
    for (size_t table = 0; table < n_tables(batch); table++) {
        at.pages[table] = at.end;
        at.end += n_pages * sizeof(void *);
    }
    at.pieces = at.end;
    at.rows = at.pieces + batch->n_pieces * sizeof(cf_cuda_piece);
    at.end = at.rows + batch->n_tok * sizeof(uint32_t);
    return at;
}

size_t cf_cuda_batch_bytes(const cf_attn_batch *batch)
{
    return parts_of(batch).end;
}

static void *const *table_at(const char *base, size_t offset)
{
    return (void *const *)(const void *)(base + offset);
}

cf_cuda_batch cf_cuda_batch_pack(const cf_attn_batch *batch, void *to,
                                 const void *at)
{
    const parts part = parts_of(batch);
    const char *device = at;
    char *host = to;
    cf_cuda_piece *pieces = (cf_cuda_piece *)(void *)(host + part.pieces);
    uint32_t *piece_of_row = (uint32_t *)(void *)(host + part.rows);
    uint32_t page = 0;
    cf_cuda_batch packed = {
        .pieces = (const cf_cuda_piece *)(const void *)(device + part.pieces),
        .piece_of_row = (const uint32_t *)(const void *)(device + part.rows),
        .k = table_at(device, part.pages[0]),
        .v = table_at(device, part.pages[1]),
        .n_pieces = batch->n_pieces,
        .n_tok = batch->n_tok,
    };

    if (n_tables(batch) == 4) {
        packed.dk = table_at(device, part.pages[2]);
        packed.dv = table_at(device, part.pages[3]);
    }
    for (size_t i = 0; i < batch->n_pieces; i++) {
        const cf_attn_piece *piece = &batch->pieces[i];
        void *const *tables[4] = {piece->k, piece->v, piece->dk, piece->dv};
        size_t n_pages = n_pages_of(piece);
        size_t n_key = (size_t)piece->prefix_tok + piece->n_tok;

        pieces[i] = (cf_cuda_piece){.row = piece->row,
                                    .n_tok = piece->n_tok,
                                    .prefix_tok = piece->prefix_tok,
                                    .first_page = page,
                                    .head_stride = piece->head_stride};
        for (size_t table = 0; table < n_tables(batch); table++)
            memcpy(host + part.pages[table] + page * sizeof(void *),
                   tables[table], n_pages * sizeof(void *));
        for (uint32_t row = 0; row < piece->n_tok; row++)
            piece_of_row[piece->row + row] = (uint32_t)i;
        if (piece->n_tok > packed.n_tok_max)
            packed.n_tok_max = piece->n_tok;
        if (n_key > packed.n_key_max)
            packed.n_key_max = n_key;
        page += (uint32_t)n_pages;
    }
    return packed;
}
