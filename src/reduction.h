/* reduction.h - what the ranks exchange between the last backward of a step and
 * the first forward of the next: gradients, their norm, and weights.
 *
 * (1) Every sum has one order (DESIGN rule 11): the two accumulators of a tied
 *     weight first, inside a replica; then the replicas from 0 on.  So the number
 *     of stages changes no bits.
 * (2) Each replica ends up with the sum of its own shard of the gradients alone,
 *     which is all that its optimizer reads (ZeRO-1, Rajbhandari et al. 2020).
 * (3) With one rank nothing is exchanged and nothing is carved.
 */
#ifndef CF_REDUCTION_H
#define CF_REDUCTION_H

#include "src/arena.h"
#include "src/comm.h"
#include "src/grid.h"
#include "src/model.h"

typedef struct cf_reduction {
    cf_comm *comm; /* borrowed, as all of these */
    const cf_grid *grid;
    cf_model *model;
    void *pieces;        /* acc [n_replicas, a piece]; NULL with one replica */
    cf_request *sends;   /* [n_replicas] */
    cf_request *recvs;   /* [n_replicas] */
    uint64_t step;       /* for messages */
    uint64_t sent_bytes; /* of the step */
} cf_reduction;

void cf_reduction_carve(cf_reduction *reduction, cf_comm *comm,
                        const cf_grid *grid, cf_model *model, cf_arena *arena);

void cf_reduction_begin_step(cf_reduction *reduction, uint64_t step);

/* The gradients of the step, of this rank's shard.  Errors, logged: CF_COMM. */
CF_MUST_USE cf_status cf_reduction_gradients(cf_reduction *reduction);

/* Their L2 norm over all tensors.  Errors, logged: CF_COMM. */
CF_MUST_USE cf_status cf_reduction_norm(cf_reduction *reduction,
                                        double *norm_p);

/* The updated weights of all shards, packed.  Errors, logged: CF_COMM. */
CF_MUST_USE cf_status cf_reduction_weights(cf_reduction *reduction);

#endif
