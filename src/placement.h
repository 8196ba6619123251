/* placement.h - which replica trains which sequence of a global batch.
 *
 * Longest first, each onto the replica that is the least loaded so far (Graham
 * 1969): the most loaded one then has at most 4/3 - 1/(3 n_replicas) of what the
 * best placement would give it.
 *
 * Allocates nothing, talks to nobody; equal inputs give equal placements on
 * every rank, so ranks agree on one by comparing a hash of it.
 */
#ifndef CF_PLACEMENT_H
#define CF_PLACEMENT_H

#include <chunkflow/base.h>

/* Scratch of cf_placement_build, in bytes.  Errors: CF_OVERFLOW. */
CF_MUST_USE cf_status cf_placement_bound(size_t n_sequences,
                                         uint32_t n_replicas,
                                         size_t *scratch_bytes_p);

/* replica_of[i], [n_sequences], becomes the replica of sequence i, and load[r],
 * [n_replicas], the sum of the costs placed on replica r.  cost is in any unit.
 * Equal costs go in the order of their sequences, and of equally loaded replicas
 * the lowest is taken; so with more replicas than sequences the last ones get
 * none.  scratch is aligned to 8 bytes and free again when the call returns.
 * Errors, nothing written then: CF_INVALID (no replica, a cost that is negative
 * or not finite), CF_OVERFLOW, CF_NO_SPACE (scratch). */
CF_MUST_USE cf_status cf_placement_build(const double *cost, size_t n_sequences,
                                         uint32_t n_replicas, void *scratch,
                                         size_t scratch_bytes,
                                         uint32_t *replica_of, double *load);

#endif
