/* generation.h - the next token, and the next: one sequence that grows.
 *
 * (1) The sequence is one group of dependent chunks: the prompt in chunks of
 *     ChunkSize, then every token that came as a chunk of its own.  The prompt
 *     goes through the forwards of training, and its keys and values through
 *     the same KV state.
 * (2) Only the row of the newest token reaches the head, and its logits are
 *     those whose cross-entropy the head op is.
 * (3) The last token is never run: nothing follows it.
 */
#ifndef CF_GENERATION_H
#define CF_GENERATION_H

#include "src/engine.h"
#include "src/sampling.h"

typedef struct cf_generation {
    cf_sampling sampling;
    uint32_t chunk_size_tok;
    uint32_t n_prompt;
    uint32_t capacity_tok; /* prompt and new tokens */
    uint32_t n_tok;        /* so far */
    uint32_t n_chunks_run;
    uint32_t *tokens; /* arena: [capacity_tok] */
    cf_chunk_plan plan;
    cf_engine engine;
    void *logits; /* acc [vocab] of the newest token */
    void *scratch;
    cf_candidate *candidates; /* [vocab] */
} cf_generation;

/* What a generation is sized by: set chunk_size_tok, n_prompt >= 1, capacity_tok
 * above it, and sampling; then place it.  The prompt goes into tokens once they
 * have their place, before the first token is asked for. */
void cf_generation_carve(cf_generation *generation, cf_model *model,
                         cf_arena *arena);

/* Choose the token behind those that are there, and append it: at most capacity
 * - n_prompt times.  Errors, logged: CF_NOT_FINITE. */
CF_MUST_USE cf_status cf_generation_next(cf_generation *generation,
                                         uint32_t *token_p);

#endif
