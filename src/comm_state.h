/* comm_state.h - what comm.c and comm_all.c share.  Private to them. */
#ifndef CF_COMM_STATE_H
#define CF_COMM_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "src/comm_guard.h"
#include "src/comm_link.h"
#include "src/comm_watch.h"

/* What the guard knows of one comm. */
typedef struct guarded {
    _Atomic uint32_t peer;  /* that is waited for */
    _Atomic unsigned turns; /* calls of MPI's so far */
    unsigned seen;          /* of them */
    unsigned ticks;         /* since there was another */
} guarded;

struct cf_comm {
    cf_link *link;   /* owned; NULL: one rank */
    cf_comm *main;   /* itself, or of which this is a lane */
    cf_watch *watch; /* owned by main; NULL: one rank */
    uint32_t rank;
    uint32_t size;
    uint32_t node;
    uint32_t node_size;
    uint32_t node_rank;
    cf_status agreed; /* the last thing the ranks did was to agree on this */

    _Atomic uint64_t step; /* what this rank is at; 0: not in a step */
    _Atomic uint32_t chunk;
    const char *_Atomic what; /* NULL: nothing to say */

    guarded guarded;
    cf_comm *next_lane;    /* the list begins at main; under the lock */
    pthread_mutex_t lanes; /* of main */
    cf_guard *guard;       /* of main; NULL: one rank */
};

/* A call of MPI's that moves messages is about to be made, for this peer or
 * CF_LINK_ANY. */
void cf_comm_enter(cf_comm *comm, uint32_t peer);

/* Test until the request is done, look after the others, rest.  Errors, logged
 * when it is for this rank to say: CF_COMM. */
CF_MUST_USE cf_status cf_comm_wait_for(cf_comm *comm, void *request,
                                       uint32_t peer);

/* Show the error that is held, with rank and place in front of it. */
void cf_comm_tell(const cf_comm *comm);

#endif
