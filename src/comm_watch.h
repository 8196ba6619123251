/* comm_watch.h - whether the other ranks of a run are still there.  Private to
 * src/comm*.c.
 *
 * (1) A rank that waits, or polls, lets all others know every quarter of the
 *     stall timeout, at most every second, that it is alive.  So the one that
 *     everybody waits for in the end is the only one that is silent.
 * (2) A rank that fails tells the others, who then say nothing.
 * (3) Of the ranks of its own node a rank sees the processes: one that is gone
 *     is noticed at once, whatever the timeout.
 * (4) Silence counts while it is waited for, and while this process runs: one
 *     that was stopped itself blames nobody for what it finds.
 * (5) Threads with comms of their own share one watch.
 */
#ifndef CF_COMM_WATCH_H
#define CF_COMM_WATCH_H

#include "src/comm_link.h"

typedef struct cf_watch cf_watch;

/* What is known of the run. */
typedef enum cf_watch_verdict {
    CF_WATCH_WELL,
    CF_WATCH_TOLD,  /* a rank told that it failed, or that it misses another */
    CF_WATCH_GONE,  /* noticed here, and logged */
    CF_WATCH_SILENT /* likewise */
} cf_watch_verdict;

/* All ranks call it; node names this one's (cf_link_node).  Errors, logged:
 * CF_COMM, CF_NO_MEMORY. */
CF_MUST_USE cf_status cf_watch_open(cf_link *world, uint32_t node,
                                    cf_watch **watch_p);

/* When no rank watches any more. */
void cf_watch_close(cf_watch *watch);

void cf_watch_set_timeout(cf_watch *watch, uint64_t seconds);

/* A point in time, from which silence counts. */
uint64_t cf_watch_now(const cf_watch *watch);

/* A message came from this rank. */
void cf_watch_hear(cf_watch *watch, uint32_t peer);

/* What is known so far. */
cf_watch_verdict cf_watch_verdict_now(const cf_watch *watch);

/* Show that this rank is alive and look whether the others are; with a peer (or
 * CF_LINK_ANY), which has been waited for since `since_ns`, whether it still is
 * worth waiting for.  What is noticed here is logged, once. */
cf_watch_verdict cf_watch_look(cf_watch *watch, uint32_t peer,
                               uint64_t since_ns);

/* The same, waiting for nobody. */
cf_watch_verdict cf_watch_poll(cf_watch *watch);

/* For the guard, each time it runs: whether a rank of this node has been gone
 * for so long that whoever waits should have noticed. */
bool cf_watch_misses(cf_watch *watch);

/* Without MPI, which has not returned for this long to a thread that waits for
 * the peer (or CF_LINK_ANY): whether that is because something is wrong with
 * the run.  What is noticed here is logged, once. */
cf_watch_verdict cf_watch_explain(cf_watch *watch, uint32_t peer,
                                  uint64_t stuck_ns);

/* Tell all others that this rank leaves, as far as they listen within a
 * moment. */
void cf_watch_tell(cf_watch *watch);

#endif
