/* thread_comm.h - ranks that are threads of one test.
 *
 * Defines all of src/comm.h, so a program that links it has no other transport.
 * It is harsher than MPI: a send ends only when its receive has taken the data,
 * and a receive of another size than what was sent fails.
 */
#ifndef CF_TEST_THREAD_COMM_H
#define CF_TEST_THREAD_COMM_H

#include "src/comm.h"

typedef struct thread_world thread_world;

/* A world of n ranks, and the comm of one of them. */
thread_world *thread_world_open(uint32_t n);
cf_comm *thread_world_comm(thread_world *world, uint32_t rank);
void thread_world_close(thread_world *world);

/* All waits, from now on, end with CF_COMM. */
void thread_world_fail(thread_world *world);

/* How often a rank said that it is alive. */
uint64_t thread_world_polls(const thread_world *world, uint32_t rank);

#endif
