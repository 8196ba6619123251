/* cost.c - what a chunk costs, as a sum of three terms. */
#include <chunkflow/simulate.h>

#include "pipeline.h"

cf_cost_table cf_cost_linear(void)
{
    return (cf_cost_table){.forward = {.per_tok = 1},
                           .backward = {.per_tok = 2}};
}

/* A piece sees all of the prefix and, causally, itself. */
static double n_pairs(const cf_chunk_plan *plan, const cf_chunk *chunk)
{
    double sum = 0;

    for (uint32_t i = 0; i < chunk->n_pieces; i++) {
        double n_tok = plan->pieces[chunk->first_piece + i].n_tok;

        sum += n_tok * chunk->prefix_tok + n_tok * n_tok / 2;
    }
    return sum;
}

double cf_cost_compute(const void *table, const cf_chunk_plan *plan,
                       uint32_t stage, cf_op op)
{
    const cf_cost_table *costs = table;
    const cf_cost_terms *terms =
        op.kind == CF_OP_BACKWARD ? &costs->backward : &costs->forward;
    const cf_chunk *chunk = &plan->chunks[op.chunk];
    uint32_t n_tok = chunk->n_tok;
    double pairs = terms->per_pair != 0 ? n_pairs(plan, chunk) : 0;

    (void)stage;
    if (n_tok < costs->least_tok)
        n_tok = costs->least_tok;
    return terms->per_op + terms->per_tok * n_tok + terms->per_pair * pairs;
}
