/* order.c - a keyed permutation, evaluated point by point (order.h).
 *
 * A Feistel network permutes the numbers of an even count of bits; cycle walking
 * makes it a permutation of 0 .. n - 1: apply it until the result is below n.
 * That ends, because a permutation's cycle comes back to where it began.
 *
 * (1) Equal arguments give equal answers, on every machine and in every version:
 *     a resumed run depends on it.
 * (2) The network has fewer than 4 n values, so that a walk takes at most four
 *     steps on average, but at least 64, so that small n are mixed as well.
 */
#include "src/order.h"

#include <assert.h>

enum {
    N_ROUNDS = 8,
    HALF_BITS_MIN = 3 /* of 64 values: fewer mix badly */
};

/* The finaliser of splitmix64 (Steele, Lea and Flood 2014). */
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

static uint64_t permute(uint64_t key, unsigned half_bits, uint64_t x)
{
    const uint64_t half_mask = (1ULL << half_bits) - 1;
    uint64_t left = x >> half_bits;
    uint64_t right = x & half_mask;

    for (uint64_t round = 0; round < N_ROUNDS; round++) {
        uint64_t next = left ^ (mix(mix(key + round) ^ right) & half_mask);

        left = right;
        right = next;
    }
    return left << half_bits | right;
}

uint64_t cf_order_shuffled(uint64_t seed, uint64_t epoch, uint64_t n,
                           uint64_t index)
{
    const uint64_t key = mix(mix(seed) ^ epoch);
    unsigned half_bits = HALF_BITS_MIN;

    assert(index < n);
    while (half_bits < 32 && (n - 1) >> (2 * half_bits) != 0)
        half_bits++;
    do {
        index = permute(key, half_bits, index);
    } while (index >= n);
    return index;
}
