/* comm.h - how the ranks of a run talk to each other.
 *
 * (1) One thread of a rank uses a comm; another thread takes a lane of its own
 *     (cf_comm_lane_open).
 * (2) Messages between two ranks arrive in the order in which they were sent;
 *     there are no tags, because the order is proved (schedule_check.c).
 * (3) What is gathered is in rank order, so that sums over it have one order.
 * (4) Every wait ends: with the message, or with CF_COMM once a peer failed, is
 *     gone, or has been silent for the stall timeout.  A rank that waits lets
 *     the others know that it is alive, so that only the culprit is silent.
 * (5) MPI is initialised only when a launcher started the program; else there
 *     is one rank, and no call does anything but copy.
 */
#ifndef CF_COMM_H
#define CF_COMM_H

#include <chunkflow/base.h>

typedef struct cf_comm cf_comm;

/* A message on its way.  Zeroed: none. */
typedef struct cf_request {
    void *handle;
    uint32_t peer;
} cf_request;

/* Errors, logged: CF_COMM, CF_NO_MEMORY. */
CF_MUST_USE cf_status cf_comm_open(cf_comm **comm_p);

/* Leave with this exit code.  A failure that the ranks have not agreed on ends
 * the others too: they learn of it, and the launcher reports this code.  Does
 * not return then. */
void cf_comm_close(cf_comm *comm, int code);

/* The same for such a failure only: returns when there is none.  Call it before
 * giving back memory that messages on their way may refer to. */
void cf_comm_leave_alone(cf_comm *comm, int code);

uint32_t cf_comm_rank(const cf_comm *comm);
uint32_t cf_comm_size(const cf_comm *comm);
/* The lowest rank on this node, which names it, the number of ranks on it, and
 * this one's place among them. */
uint32_t cf_comm_node(const cf_comm *comm);
uint32_t cf_comm_node_size(const cf_comm *comm);
uint32_t cf_comm_node_rank(const cf_comm *comm);

/* How long a peer may be silent while it is waited for. */
void cf_comm_set_stall_timeout(cf_comm *comm, uint64_t seconds);

/* What this rank is at, for the message when something fails: "step 7, chunk
 * 12: receive activations".  what is static text; chunk UINT32_MAX: none. */
void cf_comm_note(cf_comm *comm, uint64_t step, uint32_t chunk,
                  const char *what);

/* Keep messages moving and show that this rank is alive: call it between the
 * parts of a long computation.  Once another rank has failed, or is gone, it
 * does not return. */
void cf_comm_poll(cf_comm *comm);

/* ---- between two ranks; data stays untouched until the wait returns ---- */

CF_MUST_USE cf_status cf_comm_send(cf_comm *comm, uint32_t to, const void *data,
                                   size_t bytes, cf_request *request);
CF_MUST_USE cf_status cf_comm_recv(cf_comm *comm, uint32_t from, void *data,
                                   size_t bytes, cf_request *request);
/* Returns at once when there is no message on its way.  Errors, logged:
 * CF_COMM. */
CF_MUST_USE cf_status cf_comm_wait(cf_comm *comm, cf_request *request);

/* ---- among all ranks, which call them in the same order ---- */

/* all [n_ranks * bytes], in rank order.  Errors, logged: CF_COMM. */
CF_MUST_USE cf_status cf_comm_gather(cf_comm *comm, const void *mine,
                                     size_t bytes, void *all);
CF_MUST_USE cf_status cf_comm_broadcast(cf_comm *comm, uint32_t root,
                                        void *data, size_t bytes);

/* x [n] becomes the sum over ranks.  Only for numbers whose sum has the same
 * bits in any order, such as those where one rank alone is not 0. */
CF_MUST_USE cf_status cf_comm_sum_sparse(cf_comm *comm, size_t n, double *x);

/* Hold a status against those of the others: the first rank's that is not CF_OK
 * becomes everybody's, and that rank alone tells why. */
CF_MUST_USE cf_status cf_comm_agree(cf_comm *comm, cf_status status);

/* Hold text that must be equal everywhere, such as "learning_rate: 1e-4" lines,
 * against rank 0's; `what` names it.  Errors, logged, with the first line that
 * differs and the rank: CF_INVALID on all ranks. */
CF_MUST_USE cf_status cf_comm_agree_text(cf_comm *comm, const char *what,
                                         const char *text);

/* ---- a second thread ---- */

/* The same ranks, for another thread.  All ranks call it in the same order.
 * Errors, logged: CF_COMM. */
CF_MUST_USE cf_status cf_comm_lane_open(cf_comm *comm, cf_comm **lane_p);
void cf_comm_lane_close(cf_comm *lane);

#endif
