/* placement.c - see placement.h.
 *
 * (1) One heap orders both sides: entries with the smallest key on top, equal
 *     keys by index.  A sequence's key is its cost below zero, a replica's its
 *     load.
 * (2) Loads are summed in the order in which sequences are placed, so they have
 *     the same bits on every rank.
 * (3) Time O(n log n).
 */
#include "src/placement.h"

#include <math.h>
#include <stdbool.h>

typedef struct entry {
    double key;
    uint32_t index; /* of the sequence or the replica */
} entry;

static bool is_before(entry a, entry b)
{
    return a.key < b.key || (a.key == b.key && a.index < b.index);
}

/* Let the entry at place i sink to where the heap of n is in order. */
static void sift(entry *heap, size_t n, size_t i)
{
    const entry sinking = heap[i];

    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && is_before(heap[child + 1], heap[child]))
            child++;
        if (!is_before(heap[child], sinking))
            break;
        heap[i] = heap[child];
    }
    heap[i] = sinking;
}

cf_status cf_placement_bound(size_t n_sequences, uint32_t n_replicas,
                             size_t *scratch_bytes_p)
{
    const uint64_t n_entries = (uint64_t)n_sequences + n_replicas;

    if (n_sequences > UINT32_MAX || n_entries > SIZE_MAX / sizeof(entry))
        return CF_OVERFLOW;
    *scratch_bytes_p = (size_t)n_entries * sizeof(entry);
    return CF_OK;
}

cf_status cf_placement_build(const double *cost, size_t n_sequences,
                             uint32_t n_replicas, void *scratch,
                             size_t scratch_bytes, uint32_t *replica_of,
                             double *load)
{
    entry *replicas = scratch;
    entry *sequences;
    size_t needed;
    cf_status status = cf_placement_bound(n_sequences, n_replicas, &needed);

    if (status != CF_OK)
        return status;
    if (n_replicas == 0)
        return CF_INVALID;
    for (size_t i = 0; i < n_sequences; i++) {
        if (!isfinite(cost[i]) || cost[i] < 0)
            return CF_INVALID;
    }
    if (scratch_bytes < needed)
        return CF_NO_SPACE;

    sequences = replicas + n_replicas;
    for (uint32_t r = 0; r < n_replicas; r++)
        replicas[r] = (entry){0, r};
    for (size_t i = 0; i < n_sequences; i++)
        sequences[i] = (entry){-cost[i], (uint32_t)i};
    for (size_t i = n_sequences / 2; i-- > 0;)
        sift(sequences, n_sequences, i);

    for (size_t n = n_sequences; n > 0; n--) {
        const uint32_t longest = sequences[0].index;

        sequences[0] = sequences[n - 1];
        sift(sequences, n - 1, 0);
        replica_of[longest] = replicas[0].index;
        replicas[0].key += cost[longest];
        sift(replicas, n_replicas, 0);
    }
    for (uint32_t r = 0; r < n_replicas; r++)
        load[replicas[r].index] = replicas[r].key;
    return CF_OK;
}
