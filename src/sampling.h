/* sampling.h - which token follows, from the logits of all. */
#ifndef CF_SAMPLING_H
#define CF_SAMPLING_H

#include <stddef.h>
#include <stdint.h>

typedef struct cf_sampling {
    double temperature; /* 0: the likeliest token, the first of equals */
    double top_p;       /* above 0; 1: all tokens can be drawn */
    uint64_t seed;
} cf_sampling;

typedef struct cf_candidate {
    double logit; /* finite; what becomes of it is cf_sampling_choose's */
    uint32_t token;
} cf_candidate;

/* One of n >= 1 candidates, by softmax(logit / temperature) over the fewest and
 * likeliest that have top_p of the whole together.  Equal arguments give equal
 * answers: the draw is a function of seed and position.  The candidates are
 * scratch afterwards. */
uint32_t cf_sampling_choose(const cf_sampling *sampling, size_t n,
                            cf_candidate *candidates, uint64_t position);

#endif
