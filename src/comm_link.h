/* comm_link.h - what comm.c asks of MPI, and all that it asks.  Private to
 * src/comm*.c: everything else sees comm.h.
 *
 * (1) Nothing here waits: what takes time is begun, and tested until done.
 * (2) Nothing here logs but an MPI that reports an error.
 */
#ifndef CF_COMM_LINK_H
#define CF_COMM_LINK_H

#include <stdbool.h>

#include "src/comm.h"

#define CF_LINK_ANY UINT32_MAX /* to receive from whoever sends */

enum {
    CF_LINK_PART_BYTES = 1 << 30
};

/* Among the same ranks, in an order of its own. */
typedef struct cf_link cf_link;

/* Whether a launcher started this program as one of several that can find each
 * other. */
bool cf_link_is_launched(void);

/* Begin MPI.  Errors, logged: CF_INVALID (this launcher belongs to another
 * MPI), CF_COMM. */
CF_MUST_USE cf_status cf_link_open_world(cf_link **link_p);

/* Another link of the same ranks.  All call it in the same order.  Errors,
 * logged: CF_COMM, CF_NO_MEMORY. */
CF_MUST_USE cf_status cf_link_open(cf_link *world, cf_link **link_p);

void cf_link_close(cf_link *link);

/* End MPI, when no rank owes another a message. */
void cf_link_close_world(cf_link *world);

/* End the ranks, as far as the launcher can be reached, and this one with
 * `code`.  It may wait long for a launcher that cannot. */
_Noreturn void cf_link_abort(cf_link *world, int code);

/* End this one alone. */
_Noreturn void cf_link_leave(int code);

uint32_t cf_link_rank(const cf_link *link);
uint32_t cf_link_size(const cf_link *link);

/* Whether several threads may use links of their own at the same time. */
bool cf_link_has_threads(void);

/* The lowest rank on this node, the number of ranks on it, and this one's place
 * among them.  All ranks call it. */
CF_MUST_USE cf_status cf_link_node(cf_link *world, uint32_t *node_p,
                                   uint32_t *node_size_p,
                                   uint32_t *node_rank_p);

/* ---- data stays untouched until the request is done ---- */

CF_MUST_USE cf_status cf_link_send(cf_link *link, uint32_t to, const void *data,
                                   size_t bytes, void **request_p);
CF_MUST_USE cf_status cf_link_recv(cf_link *link, uint32_t from, void *data,
                                   size_t bytes, void **request_p);

/* bytes <= CF_LINK_PART_BYTES in these three. */
CF_MUST_USE cf_status cf_link_gather(cf_link *link, const void *mine,
                                     size_t bytes, void *all, void **request_p);
CF_MUST_USE cf_status cf_link_broadcast(cf_link *link, uint32_t root,
                                        void *data, size_t bytes,
                                        void **request_p);
CF_MUST_USE cf_status cf_link_sum(cf_link *link, double *x, size_t n,
                                  void **request_p);
/* Done once all ranks have begun it. */
CF_MUST_USE cf_status cf_link_barrier(cf_link *link, void **request_p);

/* Move messages, and say whether this request, which is then over, is done. */
CF_MUST_USE cf_status cf_link_test(cf_link *link, void *request, bool *done_p);

/* Give up a receive of one part. */
void cf_link_cancel(cf_link *link, void *request);

#endif
