"""Batches of lengths as the sequences of fine-tuning data have them."""

import math
import random

# (cumulative share, from, to): lengths are spread evenly over the logarithm.
# The shares of LMSYS-Chat-1M are those that Yuan et al. 2025 print.
LMSYS = ((0.90499, 64, 1024), (0.99539, 1024, 4096), (0.99908, 4096, 8192),
         (0.99987, 8192, 32768), (0.99996, 32768, 131072),
         (1.0, 131072, 310272))
HEAVY = ((0.90, 64, 1024), (0.97, 1024, 4096), (0.985, 4096, 8192),
         (0.995, 8192, 32768), (0.999, 32768, 131072), (1.0, 131072, 262144))


def draw(shares, rng, longest):
    u = rng.random()
    for share, low, high in shares:
        if u <= share:
            length = math.exp(rng.uniform(math.log(low), math.log(high)))
            return min(longest, int(length))
    return 64


def batch(shares, seed, longest=262144, long_ones=(), n=256):
    """n lengths; with long_ones the others are 8K at most."""
    rng = random.Random(seed)
    lengths = [draw(shares, rng, longest) for _ in range(n)]
    if not long_ones:
        return lengths
    short = [min(length, 8192) for length in lengths[:n - len(long_ones)]]
    return short + list(long_ones)
