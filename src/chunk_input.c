/* chunk_input.c - see chunk_input.h. */
#include "src/chunk_input.h"

#include <assert.h>

void cf_chunk_input_carve(cf_chunk_input *in, uint32_t chunk_tok,
                          uint32_t n_pieces, cf_arena *arena)
{
    uint32_t **const arrays[] = {&in->ids, &in->positions, &in->rows,
                                 &in->targets};

    *in = (cf_chunk_input){0};
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++)
        *arrays[i] = cf_arena_take(arena, CF_LIFETIME_OP, "tokens of one chunk",
                                   chunk_tok, sizeof(uint32_t));
    in->first = cf_arena_take(arena, CF_LIFETIME_OP, "tokens of one chunk",
                              (size_t)n_pieces + 1, sizeof(uint32_t));
}

void cf_chunk_input_read(cf_chunk_input *in, const cf_dataset *dataset,
                         const uint32_t *sequences, const cf_chunk_plan *plan,
                         uint32_t chunk)
{
    const cf_chunk *c = &plan->chunks[chunk];
    uint32_t row = 0;

    in->n_targets = 0;
    for (uint32_t i = 0; i < c->n_pieces; i++) {
        const cf_piece *piece = &plan->pieces[c->first_piece + i];

        /* Targets are read behind those found so far: they are at most as many
         * as the rows before, so compacting them in place is safe. */
        cf_dataset_read(dataset, sequences[piece->seq], piece->first_tok,
                        piece->n_tok, in->ids + row, in->targets + row);
        in->first[i] = in->n_targets;
        for (uint32_t t = 0; t < piece->n_tok; t++, row++) {
            uint32_t target = in->targets[row];

            in->positions[row] = piece->first_tok + t;
            if (target == CF_NO_TARGET)
                continue;
            in->targets[in->n_targets] = target;
            in->rows[in->n_targets] = row;
            in->n_targets++;
        }
    }
    in->first[c->n_pieces] = in->n_targets;
}

void cf_chunk_input_take(cf_chunk_input *in, const uint32_t *tokens,
                         const cf_chunk_plan *plan, uint32_t chunk)
{
    const cf_chunk *c = &plan->chunks[chunk];

    assert(c->n_pieces == 1);
    for (uint32_t t = 0; t < c->n_tok; t++) {
        in->ids[t] = tokens[c->prefix_tok + t];
        in->positions[t] = c->prefix_tok + t;
    }
    in->rows[0] = c->n_tok - 1;
    in->targets[0] = 0;
    in->n_targets = 1;
    in->first[0] = 0;
    in->first[1] = 1;
}
