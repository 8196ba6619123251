/* chunk_input.h - the tokens of one chunk: ids, positions, targets. */
#ifndef CF_CHUNK_INPUT_H
#define CF_CHUNK_INPUT_H

#include <chunkflow/chunk.h>

#include "src/arena.h"
#include "src/dataset.h"

typedef struct cf_chunk_input {
    uint32_t *ids;       /* [n_tok] */
    uint32_t *positions; /* [n_tok], from 0 in each sequence */
    uint32_t *rows;      /* [n_targets], ascending: rows that have a target */
    uint32_t *targets;   /* [n_targets] */
    uint32_t *first;     /* [n_pieces + 1]: targets of piece i of the chunk are
                            first[i] .. first[i + 1] - 1 */
    uint32_t n_targets;
} cf_chunk_input;

void cf_chunk_input_carve(cf_chunk_input *in, uint32_t chunk_tok,
                          uint32_t n_pieces, cf_arena *arena);

/* sequences maps the plan's sequence indices to those of the data set. */
void cf_chunk_input_read(cf_chunk_input *in, const cf_dataset *dataset,
                         const uint32_t *sequences, const cf_chunk_plan *plan,
                         uint32_t chunk);

/* The chunk of one sequence that is being made: the last row alone has a target,
 * which is not known yet and stands as 0. */
void cf_chunk_input_take(cf_chunk_input *in, const uint32_t *tokens,
                         const cf_chunk_plan *plan, uint32_t chunk);

#endif
