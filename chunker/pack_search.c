/* pack_search.c - is there a packing into this many bins?
 *
 * A depth-first search over the items, longest first, each tried in the bin
 * with the least room, then in roomier ones: the first descent is
 * best-fit-decreasing, the rest repairs it.  It knows the number of bins, so it
 * knows how many tokens of room may be lost in all.
 *
 * (1) Bins with equal room are interchangeable: only one of them is tried.
 * (2) Room below the shortest item is lost.  More lost than n_bins bins can
 *     spare over the sum of the items: back.
 * (3) An item that fills a bin exactly needs no second try: what would go there
 *     instead can take the item's place.
 * (4) The work, counted in bins looked at, has a limit.  n items have at most
 *     B(1) + ... + B(n) partial packings (Bell numbers) and each costs at most
 *     two looks over n bins, so up to 9 items the search is complete and its
 *     answer final: 2 * 9 * 26442 < WORK_COMPLETE.  For more items, twice the
 *     work saves a chunk in some ten thousand.
 *
 * No recursion: bin[0 .. i) is the stack.
 */
#include "chunker.h"

#define COMPLETE_ITEMS 9
#define WORK_COMPLETE  (UINT64_C(1) << 19)
#define WORK_MAX       (UINT64_C(1) << 18) /* half a millisecond */

/* The first of the bins with the least room >= least_tok; n_bins if none. */
static uint32_t tightest(const uint32_t *room_tok, uint32_t n_bins,
                         uint64_t least_tok)
{
    uint32_t found = n_bins;
    uint64_t found_tok = UINT64_MAX;

    for (uint32_t b = 0; b < n_bins; b++) {
        if (room_tok[b] >= least_tok && room_tok[b] < found_tok) {
            found = b;
            found_tok = room_tok[b];
        }
    }
    return found;
}

/* Contract in chunker.h. */
int cf_pack_search(const cf_pack_items *items, uint32_t n_bins,
                   uint32_t *room_tok, uint32_t *bin)
{
    const uint32_t *len = items->len_tok;
    const uint64_t work_max =
        items->n <= COMPLETE_ITEMS ? WORK_COMPLETE : WORK_MAX;
    uint32_t shortest = len[items->n - 1];
    uint64_t spare = (uint64_t)n_bins * items->chunk_size_tok - items->sum_tok;
    uint64_t lost = 0;
    uint64_t least = len[0]; /* room that item i asks for */
    size_t i = 0;

    for (uint32_t b = 0; b < n_bins; b++)
        room_tok[b] = items->chunk_size_tok;

    for (uint64_t work = 0; work < work_max; work += n_bins) {
        uint32_t b = tightest(room_tok, n_bins, least);

        if (b < n_bins) {
            room_tok[b] -= len[i];
            lost += room_tok[b] < shortest ? room_tok[b] : 0;
            bin[i++] = b;
            if (lost <= spare) {
                if (i == items->n)
                    return 1;
                least = len[i];
                continue;
            }
        }
        do { /* take back, ask for more room; (3) take back further */
            if (i == 0)
                return 0;
            b = bin[--i];
            lost -= room_tok[b] < shortest ? room_tok[b] : 0;
            room_tok[b] += len[i];
            least = (uint64_t)room_tok[b] + 1; /* (1) */
        } while (room_tok[b] == len[i]);
    }
    return 0;
}
