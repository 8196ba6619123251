/* threads.c - see threads.h.
 *
 * (1) mpirun by itself ties each of two ranks to one core, however many there
 *     are.  What the user did not ask for is taken back; a binding that was
 *     asked for, or made by another launcher, stays.
 * (2) Ranks that have the same cores divide them in order of package and core,
 *     so that no two share a core and threads of a rank are neighbours.
 * (3) A rank is not tied to its share when it has more threads than that.
 */
#include "src/threads.h"

#include <omp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/log.h"

/* What one rank tells the others. */
typedef struct cores_told {
    uint32_t node;
    cpu_set_t allowed;
} cores_told;

/* What a rank can count on. */
typedef struct share {
    cpu_set_t allowed;  /* it and n_alike - 1 other ranks of the node */
    uint32_t n_alike;   /* at least 1 */
    uint32_t index;     /* of this one among them */
    uint32_t n_of_node; /* cores of all ranks of the node */
} share;

/* A processor and where it is. */
typedef struct processor {
    int package;
    int core;
    int number;
} processor;

static bool is_given(const char *name)
{
    const char *value = getenv(name);

    return value != NULL && value[0] != '\0';
}

/* Whether the cores of this process are a choice of Open MPI's own. */
static bool is_bound_unasked(void)
{
    const char *mapping = getenv("OMPI_MCA_rmaps_base_mapping_policy");

    return is_given("OMPI_MCA_orte_bound_at_launch") &&
           !is_given("OMPI_MCA_hwloc_base_binding_policy") &&
           !is_given("OMPI_MCA_hwloc_base_cpu_set") &&
           !is_given("OMPI_MCA_hwloc_base_cpu_list") &&
           !is_given("OMPI_MCA_rmaps_rank_file_path") &&
           (mapping == NULL || strstr(mapping, "PE=") == NULL);
}

/* Whether the user lets OpenMP choose its places. */
static bool is_bound_by_openmp(void)
{
    return is_given("OMP_PROC_BIND") || is_given("OMP_PLACES") ||
           is_given("GOMP_CPU_AFFINITY");
}

/* The processors this process may run on; none: they cannot be told. */
static void find_allowed(cpu_set_t *allowed)
{
    /* What started this process is itself not tied. */
    if (is_bound_unasked() && !is_bound_by_openmp() &&
        sched_getaffinity(getppid(), sizeof(*allowed), allowed) == 0)
        return;
    if (sched_getaffinity(0, sizeof(*allowed), allowed) != 0)
        CPU_ZERO(allowed);
}

static cf_status find_share(cf_comm *comm, share *mine)
{
    cores_told told, *all;
    cpu_set_t of_node;
    cf_status status;

    memset(mine, 0, sizeof(*mine));
    find_allowed(&mine->allowed);
    mine->n_alike = 1;
    mine->n_of_node = (uint32_t)CPU_COUNT(&mine->allowed);
    if (comm == NULL)
        return CF_OK;

    all = malloc(cf_comm_size(comm) * sizeof(*all));
    if (all == NULL)
        return cf_log_no_memory("the cores of all ranks");
    memset(&told, 0, sizeof(told));
    told.node = cf_comm_node(comm);
    told.allowed = mine->allowed;
    status = cf_comm_gather(comm, &told, sizeof(told), all);
    if (status != CF_OK)
        goto free_all;
    mine->n_alike = 0;
    CPU_ZERO(&of_node);
    for (uint32_t i = 0; i < cf_comm_size(comm); i++) {
        if (all[i].node != told.node)
            continue;
        CPU_OR(&of_node, &of_node, &all[i].allowed);
        if (!CPU_EQUAL(&all[i].allowed, &mine->allowed))
            continue;
        mine->index += i < cf_comm_rank(comm);
        mine->n_alike++;
    }
    mine->n_of_node = (uint32_t)CPU_COUNT(&of_node);
free_all:
    free(all);
    return status;
}

/* A number of /sys; 0 when it is not there. */
static int topology_read(int number, const char *name)
{
    char path[96];
    int value = 0;
    FILE *file;

    (void)snprintf(path, sizeof(path),
                   "/sys/devices/system/cpu/cpu%d/topology/%s", number, name);
    file = fopen(path, "re");
    if (file == NULL)
        return 0;
    if (fscanf(file, "%d", &value) != 1)
        value = 0;
    (void)fclose(file);
    return value;
}

static int by_place(const void *left, const void *right)
{
    const processor *a = left, *b = right;

    if (a->package != b->package)
        return a->package < b->package ? -1 : 1;
    if (a->core != b->core)
        return a->core < b->core ? -1 : 1;
    return a->number < b->number ? -1 : a->number > b->number;
}

/* Tie this thread, and those that it starts, to processors [begin, end) of the
 * share's in their order.  It is no harm when that does not work. */
static void stay_on(const share *mine, uint32_t begin, uint32_t end)
{
    processor *sorted = malloc(CPU_SETSIZE * sizeof(*sorted));
    cpu_set_t set;
    size_t n = 0;

    if (sorted == NULL)
        return;
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &mine->allowed))
            sorted[n++] = (processor){topology_read(i, "physical_package_id"),
                                      topology_read(i, "core_id"), i};
    qsort(sorted, n, sizeof(*sorted), by_place);
    CPU_ZERO(&set);
    for (uint32_t i = begin; i < end; i++)
        CPU_SET(sorted[i].number, &set);
    (void)sched_setaffinity(0, sizeof(set), &set);
    free(sorted);
}

static void bind(const share *mine, uint32_t n_threads)
{
    const uint32_t n = (uint32_t)CPU_COUNT(&mine->allowed);
    const uint32_t begin =
        (uint32_t)((uint64_t)n * mine->index / mine->n_alike);
    const uint32_t end =
        (uint32_t)((uint64_t)n * (mine->index + 1) / mine->n_alike);

    if (n == 0 || is_bound_by_openmp() ||
        (mine->n_alike == 1 && !is_bound_unasked()))
        return;
    if (n / mine->n_alike >= n_threads)
        stay_on(mine, begin, end);
    else
        stay_on(mine, 0, n);
}

static void warn_of_too_many(const share *mine, uint32_t n_threads,
                             uint32_t n_ranks)
{
    const unsigned n_cores = mine->n_of_node > 0 ? mine->n_of_node : 1;

    if ((uint64_t)n_threads * n_ranks <= n_cores)
        return;
    if (n_ranks == 1)
        cf_log_warn("%u threads are more than the %u processors there are: "
                    "expect it to be slow, or lower --threads",
                    (unsigned)n_threads, n_cores);
    else
        cf_log_warn("%u ranks of %u thread%s are more than the %u processors "
                    "of this node: expect it to be slow, or lower --threads or "
                    "mpirun -n",
                    (unsigned)n_ranks, (unsigned)n_threads,
                    n_threads == 1 ? "" : "s", n_cores);
}

cf_status cf_threads_open(const cf_options *options, cf_comm *comm)
{
    const uint32_t n_ranks = comm != NULL ? cf_comm_node_size(comm) : 1;
    uint32_t n_threads = options->threads;
    share mine;
    cf_status status = find_share(comm, &mine);

    if (status != CF_OK)
        return status;
    if (n_threads == 0 && is_given("OMP_NUM_THREADS"))
        n_threads = (uint32_t)omp_get_max_threads(); /* OpenMP has read it */
    if (n_threads == 0)
        n_threads = (uint32_t)CPU_COUNT(&mine.allowed) / mine.n_alike;
    if (n_threads == 0)
        n_threads = 1;
    bind(&mine, n_threads);
    omp_set_dynamic(0);
    omp_set_num_threads((int)n_threads);
    if (n_ranks > 1 && !options->quiet)
        cf_log_info("%u ranks on this node, %u thread%s each",
                    (unsigned)n_ranks, (unsigned)n_threads,
                    n_threads == 1 ? "" : "s");
    warn_of_too_many(&mine, n_threads, n_ranks);
    return CF_OK;
}
