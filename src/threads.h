/* threads.h - which cores of its node a rank computes on. */
#ifndef CF_THREADS_H
#define CF_THREADS_H

#include "src/comm.h"
#include "src/options.h"

/* Threads of OpenMP, and so of OpenBLAS, for this rank: those asked for, or
 * else its share of the node's cores, on which it stays.  Says so, or warns,
 * once.  All ranks call it, before the first parallel region; comm may be NULL
 * for a command of one rank.  Errors, logged: CF_COMM, CF_NO_MEMORY. */
CF_MUST_USE cf_status cf_threads_open(const cf_options *options, cf_comm *comm);

#endif
