/* dropped.h - what a dropped chunk leaves for its recompute.
 *
 * A dropped chunk is recomputed on the spot, from the same input: so its stage
 * keeps that input from the forward to the recompute.  The first stage has none,
 * it embeds again.
 *
 * Its attention's output and log-sum-exp may stay too (--keep-attention).  The
 * recompute then has no part that grows with the square of the sequence: for a
 * long one, most of a forward.
 */
#ifndef CF_DROPPED_H
#define CF_DROPPED_H

#include "kernels/kernels.h"
#include "src/arena.h"
#include "src/pool.h"

/* No place: for a chunk that leaves nothing. */
#define CF_DROPPED_NOWHERE UINT32_MAX

/* Bytes of one chunk, at most. */
typedef struct cf_dropped_size {
    size_t stream; /* its input; 0: none is kept */
    size_t o;      /* of one layer: attention's output; 0: none is kept */
    size_t lse;    /* of one layer: its log-sum-exp */
    uint32_t n_layers;
} cf_dropped_size;

typedef struct cf_dropped {
    cf_pool pool;
    cf_dropped_size size; /* each to where the next begins */
    void *streams;        /* acc [n_chunks] of [chunk_tok, hidden] */
    void *attention;      /* [n_chunks, n_layers] of o, act [chunk_tok, n_heads,
                           * head_dim], and lse, acc [chunk_tok, n_heads] */
    uint32_t *chunks;     /* [n_chunks]: whose they are */
} cf_dropped;

/* Room for n_chunks; none at all where a chunk leaves nothing. */
void cf_dropped_carve(cf_dropped *dropped, uint32_t n_chunks,
                      const cf_dropped_size *size, cf_arena *arena);

/* A place for a chunk; NOWHERE where it leaves nothing.  CF_NO_SPACE: there are
 * more than the schedule was checked for. */
CF_MUST_USE cf_status cf_dropped_keep(cf_dropped *dropped, uint32_t chunk,
                                      uint32_t *place_p);

/* The place of a chunk, NOWHERE when it has none; release gives it back. */
uint32_t cf_dropped_find(const cf_dropped *dropped, uint32_t chunk);
void cf_dropped_release(cf_dropped *dropped, uint32_t place);

/* What lies at a place.  NULL: it is not kept. */
void *cf_dropped_stream(const cf_dropped *dropped, uint32_t place);
void *cf_dropped_o(const cf_dropped *dropped, uint32_t place, uint32_t layer);
void *cf_dropped_lse(const cf_dropped *dropped, uint32_t place, uint32_t layer);

/* Bytes of n chunks. */
size_t cf_dropped_bytes(const cf_dropped *dropped, uint32_t n);

#endif
