/* grid.h - which stage of which replica a rank is. */
#ifndef CF_GRID_H
#define CF_GRID_H

#include "src/comm.h"

/* rank = replica * n_stages + stage. */
typedef struct cf_grid {
    uint32_t n_stages;
    uint32_t n_replicas;
    uint32_t stage;
    uint32_t replica;
} cf_grid;

/* Errors, logged: CF_INVALID (the stages do not divide the ranks). */
CF_MUST_USE cf_status cf_grid_open(const cf_comm *comm, uint32_t n_stages,
                                   cf_grid *grid_p);

static inline uint32_t cf_grid_rank(const cf_grid *grid, uint32_t replica,
                                    uint32_t stage)
{
    return replica * grid->n_stages + stage;
}

static inline int cf_grid_is_last(const cf_grid *grid)
{
    return grid->stage + 1 == grid->n_stages;
}

#endif
