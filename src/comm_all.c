/* comm_all.c - what all ranks do together; see comm.h.
 *
 * (1) What is in one place goes out from there in parts that MPI can count.
 */
#include "src/comm.h"

#include <stdlib.h>
#include <string.h>

#include "src/comm_state.h"
#include "src/log.h"

cf_status cf_comm_broadcast(cf_comm *comm, uint32_t root, void *data,
                            size_t bytes)
{
    cf_status status = CF_OK;

    comm->agreed = CF_OK;
    if (comm->size == 1)
        return CF_OK;
    for (size_t at = 0; at < bytes && status == CF_OK;) {
        const size_t part =
            bytes - at < CF_LINK_PART_BYTES ? bytes - at : CF_LINK_PART_BYTES;
        void *request;

        cf_comm_enter(comm, root);
        status = cf_link_broadcast(comm->link, root, (char *)data + at, part,
                                   &request);
        if (status == CF_OK)
            status = cf_comm_wait_for(comm, request, root);
        at += part;
    }
    return status;
}

cf_status cf_comm_gather(cf_comm *comm, const void *mine, size_t bytes,
                         void *all)
{
    char *place_of_mine = (char *)all + comm->rank * bytes;
    cf_status status = CF_OK;
    void *request;

    comm->agreed = CF_OK;
    if (bytes == 0)
        return CF_OK;
    if (comm->size > 1 && bytes <= CF_LINK_PART_BYTES / comm->size) {
        cf_comm_enter(comm, CF_LINK_ANY);
        status = cf_link_gather(comm->link, mine, bytes, all, &request);
        return status == CF_OK ? cf_comm_wait_for(comm, request, CF_LINK_ANY)
                               : status;
    }
    memmove(place_of_mine, mine, bytes);
    for (uint32_t root = 0; root < comm->size && status == CF_OK; root++)
        status =
            cf_comm_broadcast(comm, root, (char *)all + root * bytes, bytes);
    return status;
}

cf_status cf_comm_sum_sparse(cf_comm *comm, size_t n, double *x)
{
    const size_t part_max = CF_LINK_PART_BYTES / sizeof(*x);
    cf_status status = CF_OK;

    comm->agreed = CF_OK;
    if (comm->size == 1)
        return CF_OK;
    for (size_t at = 0; at < n && status == CF_OK;) {
        const size_t part = n - at < part_max ? n - at : part_max;
        void *request;

        cf_comm_enter(comm, CF_LINK_ANY);
        status = cf_link_sum(comm->link, x + at, part, &request);
        if (status == CF_OK)
            status = cf_comm_wait_for(comm, request, CF_LINK_ANY);
        at += part;
    }
    return status;
}

cf_status cf_comm_agree(cf_comm *comm, cf_status status)
{
    const uint32_t mine = (uint32_t)status;
    uint32_t *all, rank;
    cf_status agreed;

    if (comm->size == 1)
        return status;
    all = malloc(comm->size * sizeof(*all));
    if (all == NULL)
        return cf_log_no_memory("the status of all ranks");
    agreed = cf_comm_gather(comm, &mine, sizeof(mine), all);
    if (agreed == CF_OK) {
        for (rank = 0; rank + 1 < comm->size && all[rank] == CF_OK;)
            rank++;
        agreed = (cf_status)all[rank];
        comm->agreed = agreed;
        /* What did not fail has nothing to tell, or an error that it got over. */
        if (rank == comm->rank && rank == 0 && comm->step == 0)
            cf_log_tell(""); /* as if there were no other */
        else if (agreed == CF_OK || rank == comm->rank)
            cf_comm_tell(comm);
        cf_log_drop();
    }
    free(all);
    return agreed;
}

/* Length of the line at `at`. */
static int line_length(const char *at)
{
    return (int)strcspn(at, "\n");
}

/* Log the first line that differs. */
static void text_differs(const char *what, const char *mine, const char *first)
{
    for (;;) {
        const int n_mine = line_length(mine), n_first = line_length(first);

        if (n_mine != n_first || memcmp(mine, first, (size_t)n_mine) != 0 ||
            mine[n_mine] == '\0' || first[n_first] == '\0') {
            cf_log_error(
                "%s: this rank has '%.*s', rank 0 has '%.*s': start all "
                "ranks alike",
                what, n_mine, mine, n_first, first);
            return;
        }
        mine += n_mine + 1;
        first += n_first + 1;
    }
}

cf_status cf_comm_agree_text(cf_comm *comm, const char *what, const char *text)
{
    uint64_t bytes = strlen(text) + 1;
    cf_status status;
    char *first;

    if (comm->size == 1)
        return CF_OK;
    status = cf_comm_broadcast(comm, 0, &bytes, sizeof(bytes));
    if (status != CF_OK)
        return status;
    first = malloc(bytes);
    status = cf_comm_agree(
        comm, first == NULL ? cf_log_no_memory("the text of rank 0") : CF_OK);
    if (status != CF_OK)
        goto free_first;
    if (comm->rank == 0)
        memcpy(first, text, bytes);
    status = cf_comm_broadcast(comm, 0, first, bytes);
    if (status != CF_OK)
        goto free_first;
    if (strcmp(text, first) != 0) {
        text_differs(what, text, first);
        status = CF_INVALID;
    }
    status = cf_comm_agree(comm, status);
free_first:
    free(first);
    return status;
}
