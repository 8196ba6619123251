/* evaluation.h - a pass over a data set, forward only, on the chunk path.
 *
 * The whole data set is planned as one batch, so the loss has the bits of a
 * training step's on the same sequences, and the memory is that of one chunk and
 * of the longest sequence's KV state.
 *
 * Over several ranks the plan is the same.  Each replica runs some of its groups,
 * a stage of it its layers; the loss of a piece comes from one rank alone, so that
 * losses and tables have the bits of one rank everywhere.
 */
#ifndef CF_EVALUATION_H
#define CF_EVALUATION_H

#include <jansson.h>
#include <stdbool.h>

#include "src/dataset.h"
#include "src/engine.h"
#include "src/grid.h"
#include "src/step_plan.h"

/* A sum of losses over some of the sequences. */
typedef struct cf_tally {
    double loss; /* sum, not mean */
    uint64_t sequences;
    uint64_t target_tokens;
} cf_tally;

enum {
    CF_LENGTH_BUCKETS = 5
};

typedef struct cf_evaluation {
    const cf_dataset *dataset; /* borrowed */
    cf_comm *comm;             /* borrowed; NULL: there is one rank */
    cf_grid grid;
    uint32_t *sequences; /* owned: data set indices, not too long */
    size_t n_sequences;
    size_t n_too_long;
    cf_longest longest;
    cf_step_plan_need need;
    cf_step_plan plan;
    cf_engine engine;
    cf_tally by_bucket[CF_LENGTH_BUCKETS];
    cf_tally *by_source; /* arena */
    double loss;         /* mean over all target tokens */
    int (*stop)(void);   /* asked between chunks, when it is not NULL and there
                          * is one rank: several could not stop at one chunk */
    bool is_complete;    /* false: it stopped the pass, and there is no loss */
} cf_evaluation;

/* What of a data set to run, and how. */
typedef struct cf_evaluation_params {
    const cf_dataset *dataset;
    const char *option; /* that named it, for messages */
    uint32_t max_length_tok;
    uint32_t chunk_size_tok; /* 0: to be bound before it is carved */
    cf_comm *comm; /* NULL: there is one rank, and grid is not looked at */
    cf_grid grid;
} cf_evaluation_params;

/* Collect the sequences and bound their plan.  Errors, logged: CF_MALFORMED
 * (no target), CF_NO_MEMORY, CF_OVERFLOW. */
CF_MUST_USE cf_status cf_evaluation_open(const cf_evaluation_params *params,
                                         cf_evaluation *evaluation);
void cf_evaluation_close(cf_evaluation *evaluation);

/* Bound the plan for another ChunkSize; before carving.  Errors, logged:
 * CF_NO_MEMORY, CF_OVERFLOW. */
CF_MUST_USE cf_status cf_evaluation_bound(cf_evaluation *evaluation,
                                          uint32_t chunk_size_tok);

/* Place plan, engine and tallies: what a pass needs beside the model. */
void cf_evaluation_carve(cf_evaluation *evaluation, cf_model *model,
                         cf_arena *arena);

/* One pass over freshly carved, cleared memory; allocates nothing.  Sets loss
 * and tallies.  step is for messages.  Errors, logged: CF_NOT_FINITE, CF_COMM. */
CF_MUST_USE cf_status cf_evaluation_run(cf_evaluation *evaluation,
                                        uint64_t step);

/* The result as a table for people, on standard output. */
void cf_evaluation_print(const cf_evaluation *evaluation);

/* The result as the object that eval --json prints; a perplexity too large for
 * a double is null.  NULL when out of memory. */
json_t *cf_evaluation_json(const cf_evaluation *evaluation);

#endif
