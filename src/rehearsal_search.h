/* rehearsal_search.h - the best ChunkSize and K of a batch: every one of a grid
 * is rehearsed.
 *
 * ChunkSize: the powers of two from 1K to 32K.  K: 1, 2, 3, 4, 6, 8, 12, ..., and
 * about the most and half the most that the cap or the longest sequence leaves
 * sense in.  Of equally short steps the first wins, which has less memory.
 */
#ifndef CF_REHEARSAL_SEARCH_H
#define CF_REHEARSAL_SEARCH_H

#include "src/rehearsal.h"

typedef struct cf_candidate {
    uint32_t chunk_size_tok;
    uint32_t retained_chunks_max;
    double makespan;
    double bubble_ratio;
    double useful;
    uint64_t kept_tok; /* the most that a stage keeps */
    bool fits;         /* under the cap */
} cf_candidate;

typedef struct cf_search {
    cf_candidate *candidates; /* owned, ChunkSize and then K ascending */
    size_t n_candidates;
    size_t best; /* n_candidates: none fits */
} cf_search;

/* chunk_size_tok and K of the input are not read.  The cap is in tokens of kept
 * activations a stage.  Close what comes back.  Errors, logged: CF_NO_MEMORY, and
 * those of a rehearsal. */
CF_MUST_USE cf_status cf_search_open(const cf_rehearsal_input *input,
                                     uint64_t kept_tok_max, cf_search *search);
void cf_search_close(cf_search *search);

#endif
