/* picture.h - loss, lengths and memory of a run as SVG pictures; schedule.svg is
 * timeline.h's.
 *
 * Each of them takes its own struct as content and returns CF_IO when a write
 * failed, without logging, as a cf_file_fill does.
 */
#ifndef CF_PICTURE_H
#define CF_PICTURE_H

#include <chunkflow/base.h>

#include <stdio.h>

#include "src/arena.h"
#include "src/history.h"

typedef struct cf_picture_loss {
    const cf_history *history;
    uint64_t n_steps; /* of the run; 0: not known */
} cf_picture_loss;

CF_MUST_USE cf_status cf_picture_write_loss(FILE *file, const void *content);

typedef struct cf_picture_lengths {
    const uint32_t *len_tok;
    const uint32_t *sequences; /* [n]: those that are trained on */
    size_t n;
    uint32_t chunk_size_tok;
} cf_picture_lengths;

CF_MUST_USE cf_status cf_picture_write_lengths(FILE *file, const void *content);

typedef struct cf_picture_memory {
    const cf_arena *sizes;    /* what rank 0 was predicted to need */
    uint64_t predicted_bytes; /* most over ranks */
    uint32_t n_ranks;
    const cf_history *history;
} cf_picture_memory;

CF_MUST_USE cf_status cf_picture_write_memory(FILE *file, const void *content);

#endif
