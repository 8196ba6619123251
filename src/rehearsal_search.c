/* rehearsal_search.c - see rehearsal_search.h. */
#include "src/rehearsal_search.h"

#include <stdlib.h>

#include "src/log.h"

enum {
    SIZE_MIN = 1024,
    SIZE_LIMIT = 32768,
    KS_MAX = 80 /* of one ChunkSize: 2 a power of two, and 4 */
};

/* ---- the values of K ---- */

/* K above which nothing changes: no sequence has more chunks. */
static uint64_t most_chunks(const cf_rehearsal_input *input, uint32_t size)
{
    uint32_t longest = 1;

    for (size_t i = 0; i < input->n_sequences; i++) {
        if (longest < input->len_tok[i])
            longest = input->len_tok[i];
    }
    return ((uint64_t)longest - 1) / size + 1;
}

/* The largest K of sense: with full chunks the first stage keeps K + p - 1 of
 * them.  At least 1: chunks need not be full. */
static uint64_t largest_k(const cf_rehearsal_input *input, uint32_t size,
                          uint64_t kept_tok_max)
{
    const uint64_t n_ahead = input->params.n_stages - 1;
    const uint64_t n_fit = kept_tok_max / size;
    const uint64_t most = most_chunks(input, size);

    if (n_fit <= n_ahead + 1)
        return 1;
    return n_fit - n_ahead < most ? n_fit - n_ahead : most;
}

/* Put k in its place among those before it, once. */
static size_t add_k(uint64_t k, uint32_t *ks, size_t n)
{
    size_t at = n;

    while (at > 0 && ks[at - 1] >= k)
        at--;
    if (k == 0 || (at < n && ks[at] == k))
        return n;
    for (size_t i = n; i > at; i--)
        ks[i] = ks[i - 1];
    ks[at] = (uint32_t)k;
    return n + 1;
}

static size_t list_ks(uint64_t largest, uint32_t *ks)
{
    size_t n = 0;

    for (uint64_t k = 1; k <= largest; k *= 2) {
        n = add_k(k, ks, n);
        if (k % 2 == 0 && k + k / 2 <= largest)
            n = add_k(k + k / 2, ks, n);
    }
    n = add_k(largest / 2, ks, n);
    n = add_k(largest - 1, ks, n);
    return add_k(largest, ks, n);
}

/* ---- the candidates ---- */

static cf_status judge(const cf_rehearsal_input *input, uint64_t kept_tok_max,
                       cf_candidate *candidate)
{
    cf_rehearsal rehearsal;
    cf_status status = cf_rehearsal_open(input, &rehearsal);

    if (status != CF_OK)
        return status;
    *candidate = (cf_candidate){
        .chunk_size_tok = input->chunk_size_tok,
        .retained_chunks_max = input->params.retained_chunks_max,
        .makespan = rehearsal.makespan,
        .bubble_ratio = rehearsal.bubble_ratio,
        .useful = rehearsal.useful,
    };
    for (uint32_t s = 0; s < input->params.n_stages; s++) {
        if (candidate->kept_tok < rehearsal.peaks[s].kept_tok)
            candidate->kept_tok = rehearsal.peaks[s].kept_tok;
    }
    candidate->fits = candidate->kept_tok <= kept_tok_max;
    cf_rehearsal_close(&rehearsal);
    return CF_OK;
}

static cf_status search_size(const cf_rehearsal_input *input,
                             uint64_t kept_tok_max, cf_search *search)
{
    cf_rehearsal_input tried = *input;
    uint32_t ks[KS_MAX];
    const size_t n_ks =
        list_ks(largest_k(input, input->chunk_size_tok, kept_tok_max), ks);
    cf_candidate *longer = realloc(
        search->candidates, (search->n_candidates + n_ks) * sizeof(*longer));

    if (longer == NULL) {
        cf_log_error("no memory for a search");
        return CF_NO_MEMORY;
    }
    search->candidates = longer;
    for (size_t i = 0; i < n_ks; i++) {
        cf_status status;

        tried.params.retained_chunks_max = ks[i];
        status = judge(&tried, kept_tok_max, &longer[search->n_candidates]);
        if (status != CF_OK)
            return status;
        search->n_candidates++;
    }
    return CF_OK;
}

static size_t find_best(const cf_search *search)
{
    size_t best = search->n_candidates;

    for (size_t i = 0; i < search->n_candidates; i++) {
        const cf_candidate *c = &search->candidates[i];

        if (c->fits && (best == search->n_candidates ||
                        c->makespan < search->candidates[best].makespan))
            best = i;
    }
    return best;
}

cf_status cf_search_open(const cf_rehearsal_input *input, uint64_t kept_tok_max,
                         cf_search *search)
{
    cf_rehearsal_input tried = *input;
    cf_status status = CF_OK;

    *search = (cf_search){0};
    for (tried.chunk_size_tok = SIZE_MIN;
         status == CF_OK && tried.chunk_size_tok <= SIZE_LIMIT;
         tried.chunk_size_tok *= 2)
        status = search_size(&tried, kept_tok_max, search);
    if (status != CF_OK) {
        cf_search_close(search);
        return status;
    }
    search->best = find_best(search);
    return CF_OK;
}

void cf_search_close(cf_search *search)
{
    free(search->candidates);
    *search = (cf_search){0};
}
