/* pack_first_fit.c - first-fit-decreasing in O(n log bins).
 *
 * A tournament tree over the bins: a leaf holds the room left in its bin, an
 * inner node the larger of its children.  The first bin with enough room is
 * found from the root, going left whenever the left half has room.  A bin that
 * is not open yet is simply one with all its room, so opening is no case.
 *
 * (1) An item goes into the first bin that has room for it; items come longest
 *     first.  Equal items go together, which changes nothing and costs one
 *     descent a bin instead of one an item.
 * (2) Open bins are a prefix: a bin is opened only when no bin before it has
 *     room.
 * (3) Under CF_PACK_FILL_EQUAL a length that divides the chunk size fills as
 *     many bins alone as it can; only the remainder is placed by (1).
 * (4) Any two bins together hold more than the chunk size, as the first item
 *     of the later one did not fit into the earlier one.  Hence the number of
 *     bins is at most 2 * floor((sum - 1) / ChunkSize) + 1.
 */
#include "chunker.h"

/* Contract in chunker.h.  Invariant (4). */
size_t cf_pack_bins_max(const cf_chunk_input *input)
{
    if (input->n_short == 0)
        return 0;

    uint64_t pairs = (input->short_tok - 1) / input->chunk_size_tok;

    return pairs < input->n_short / 2 ? (size_t)(2 * pairs + 1)
                                      : input->n_short;
}

/* Contract in chunker.h. */
size_t cf_pack_tree_leaves(size_t bins_max)
{
    size_t n_leaves = 1;

    while (n_leaves < bins_max)
        n_leaves *= 2;
    return n_leaves;
}

static size_t first_with_room(const uint32_t *tree, size_t n_leaves,
                              uint32_t len_tok)
{
    size_t node = 1;

    while (node < n_leaves)
        node = 2 * node + (tree[2 * node] < len_tok);
    return node;
}

static void set_room(uint32_t *tree, size_t node, uint32_t room_tok)
{
    tree[node] = room_tok;
    for (node /= 2; node > 0; node /= 2) {
        uint32_t left = tree[2 * node];
        uint32_t right = tree[2 * node + 1];
        uint32_t most = left > right ? left : right;

        if (tree[node] == most)
            break;
        tree[node] = most;
    }
}

/* Items first .. end of one length go where there is room. */
static uint32_t place_run(uint32_t len_tok, size_t first, size_t end,
                          size_t n_leaves, uint32_t *tree, uint32_t *bin)
{
    uint32_t last_bin = 0;

    while (first < end) {
        size_t leaf = first_with_room(tree, n_leaves, len_tok);
        uint32_t room = tree[leaf];

        last_bin = (uint32_t)(leaf - n_leaves);
        for (; first < end && room >= len_tok; room -= len_tok)
            bin[first++] = last_bin;
        set_room(tree, leaf, room);
    }
    return last_bin;
}

/* Contract in chunker.h. */
uint32_t cf_pack_first_fit(const cf_pack_items *items, cf_pack_rule rule,
                           size_t n_leaves, uint32_t *tree, uint32_t *bin)
{
    uint32_t n_bins = 0;

    for (size_t node = 1; node < 2 * n_leaves; node++)
        tree[node] = items->chunk_size_tok;

    for (size_t first = 0, end; first < items->n; first = end) {
        uint32_t len = items->len_tok[first];

        for (end = first; end < items->n && items->len_tok[end] == len;)
            end++;
        if (rule == CF_PACK_FILL_EQUAL && items->chunk_size_tok % len == 0) {
            size_t a_bin = items->chunk_size_tok / len;

            for (; end - first >= a_bin; n_bins++) { /* (3) */
                for (size_t i = 0; i < a_bin; i++)
                    bin[first++] = n_bins;
                set_room(tree, n_leaves + n_bins, 0);
            }
        }
        if (first < end) {
            uint32_t last = place_run(len, first, end, n_leaves, tree, bin);

            n_bins = last < n_bins ? n_bins : last + 1; /* (2) */
        }
    }
    return n_bins;
}
