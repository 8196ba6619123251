/* grid.c - see grid.h. */
#include "src/grid.h"

#include "src/log.h"

cf_status cf_grid_open(const cf_comm *comm, uint32_t n_stages, cf_grid *grid_p)
{
    const uint32_t n_ranks = cf_comm_size(comm);

    if (n_stages == 0 || n_ranks % n_stages != 0) {
        cf_log_error(
            "%u ranks are not divisible by --pipeline-stages %u: start "
            "mpirun -n with a multiple of the stages",
            (unsigned)n_ranks, (unsigned)n_stages);
        return CF_INVALID;
    }
    *grid_p = (cf_grid){
        .n_stages = n_stages,
        .n_replicas = n_ranks / n_stages,
        .stage = cf_comm_rank(comm) % n_stages,
        .replica = cf_comm_rank(comm) / n_stages,
    };
    return CF_OK;
}
