/* attention.cuh - what the two passes of attention share.
 *
 * Plain kernels: the reference for what a library does, and what runs where none
 * does it.  The rows of a (piece, kv head) are its (token, head of the group)
 * pairs, token by token, as in kernels/cpu/attention.h; so the heads of a group
 * share every key that is read.
 *
 * (1) A block has TILE rows or TILE keys, and meets tiles of the other in
 *     ascending order.  A warp makes scores of SHARE rows; its lanes are the keys.
 *     A warp makes outputs of SHARE rows (or keys); its lanes are the elements,
 *     in pairs.
 * (2) Key tiles are anchored at position 0 of the sequence, and a page is whole
 *     tiles.  A key that a row does not see adds an exact zero.  So o and lse of a
 *     row do not depend on how its sequence was cut or packed.
 * (3) Nothing is added by two blocks: dQ has a block for its rows, dK and dV have
 *     one for their keys.
 */
#ifndef CF_CUDA_ATTENTION_CUH
#define CF_CUDA_ATTENTION_CUH

#include "kernels/cuda/common.cuh"

enum {
    TILE = 32,
    SHARE = TILE / WARPS
};

static_assert(CF_PAGE_TOK % TILE == 0, "a key tile lies in one page");
static_assert((int)TILE == (int)WARP, "a lane is a key");

struct attention {
    cf_cuda_batch batch;
    unsigned n_kv_heads, group, dim;
    size_t key_begin, key_end;
    float scale;
    unsigned n_tiles; /* of rows, or of keys, of the longest piece */
};

static inline attention attention_of(const cf_attn_shape *shape,
                                     const cf_cuda_batch *batch,
                                     uint32_t key_begin, uint32_t key_end)
{
    attention a;

    a.batch = *batch;
    a.n_kv_heads = shape->n_kv_heads;
    a.group = shape->n_heads / shape->n_kv_heads;
    a.dim = shape->head_dim;
    a.key_begin = key_begin;
    a.key_end = key_end;
    a.scale = (float)shape->softmax_scale;
    a.n_tiles = 0;
    return a;
}

/* A block's part of the work. */
struct task {
    cf_cuda_piece piece;
    unsigned kv_head;
    size_t tile;
};

static inline __device__ task task_of(const attention &a)
{
    const unsigned head_tile = blockIdx.x % (a.n_tiles * a.n_kv_heads);
    task t;

    t.piece = a.batch.pieces[blockIdx.x / (a.n_tiles * a.n_kv_heads)];
    t.kv_head = head_tile % a.n_kv_heads;
    t.tile = head_tile / a.n_kv_heads;
    return t;
}

static inline size_t n_tasks(const attention &a)
{
    return a.batch.n_pieces * a.n_tiles * a.n_kv_heads;
}

static inline __device__ size_t n_rows_of(const attention &a, const task &t)
{
    return (size_t)t.piece.n_tok * a.group;
}

/* Of the row of a piece: the position of its token, and where it lies in an array
 * [n_tok, n_heads]. */
static inline __device__ size_t position_of(const attention &a, const task &t,
                                            size_t row)
{
    return t.piece.prefix_tok + row / a.group;
}

static inline __device__ size_t place_of(const attention &a, const task &t,
                                         size_t row)
{
    return (t.piece.row + row / a.group) * a.n_kv_heads * a.group +
           t.kv_head * a.group + row % a.group;
}

static inline __device__ bool sees(const attention &a, const task &t,
                                   size_t row, size_t key)
{
    return row < n_rows_of(a, t) && key >= a.key_begin && key < a.key_end &&
           key <= position_of(a, t, row);
}

/* End of the keys that the call asks for and the piece's last row sees. */
static inline __device__ size_t end_key_of(const attention &a, const task &t)
{
    const size_t end = (size_t)t.piece.prefix_tok + t.piece.n_tok;

    return end < a.key_end ? end : a.key_end;
}

/* ---- tiles in shared memory ---- */

/* Elements lie in pairs, a word each; rows are one word apart from a multiple of
 * the banks, so that lanes that read one column of rows do not collide. */
static inline __device__ unsigned n_words(const attention &a)
{
    return a.dim / 2;
}

static inline __device__ unsigned word_stride(const attention &a)
{
    return n_words(a) + 1 - n_words(a) % 2;
}

/* The widest tile, as word_stride gives it. */
static inline size_t tile_bytes(const cf_attn_shape *shape)
{
    return TILE * (shape->head_dim / 2 + 1) * sizeof(uint32_t);
}

static inline __device__ void row_load(const attention &a, unsigned i,
                                       const bf16 *from, uint32_t *tile)
{
    for (unsigned w = threadIdx.x % WARP; w < n_words(a); w += WARP) {
        uint32_t pair = 0;

        if (from != NULL)
            pair = (uint32_t)from[2 * w + 1].bits << 16 | from[2 * w].bits;
        tile[i * word_stride(a) + w] = pair;
    }
}

/* Rows first .. of x act [n_tok, n_heads, dim]; zeros behind the piece's last. */
static inline __device__ void rows_load(const attention &a, const task &t,
                                        size_t first, const bf16 *x,
                                        uint32_t *tile)
{
    for (unsigned i = threadIdx.x / WARP; i < TILE; i += WARPS) {
        const size_t row = first + i;

        row_load(a, i,
                 row < n_rows_of(a, t) ? x + place_of(a, t, row) * a.dim : NULL,
                 tile);
    }
}

/* First element of a key of the block's head. */
template <typename T>
static inline __device__ T *key_at(const attention &a, const task &t,
                                   void *const *pages, size_t key)
{
    T *page = (T *)pages[t.piece.first_page + key / CF_PAGE_TOK];

    return page + t.kv_head * t.piece.head_stride + key % CF_PAGE_TOK * a.dim;
}

/* Keys first .. ; zeros behind the last one that the piece sees, since what lies
 * there was perhaps never written. */
static inline __device__ void keys_load(const attention &a, const task &t,
                                        size_t first, void *const *pages,
                                        uint32_t *tile)
{
    for (unsigned i = threadIdx.x / WARP; i < TILE; i += WARPS) {
        const size_t key = first + i;

        row_load(a, i,
                 key < end_key_of(a, t) ? key_at<const bf16>(a, t, pages, key)
                                        : NULL,
                 tile);
    }
}

/* ---- products ---- */

/* s[r] = row r of the warp's share times the lane's key. */
static inline __device__ void scores(const attention &a, const uint32_t *rows,
                                     const uint32_t *keys, float s[SHARE])
{
    const uint32_t *key = keys + threadIdx.x % WARP * word_stride(a);
    const uint32_t *row = rows + threadIdx.x / WARP * SHARE * word_stride(a);

    for (int r = 0; r < SHARE; r++)
        s[r] = 0;
    for (unsigned w = 0; w < n_words(a); w++) {
        const float2 k = widen_pair(key[w]);

        for (int r = 0; r < SHARE; r++) {
            const float2 q = widen_pair(row[r * word_stride(a) + w]);

            s[r] += q.x * k.x;
            s[r] += q.y * k.y;
        }
    }
}

/* The output of a warp's share: a lane has the pairs lane, lane + 32, ... of each
 * row or key.  SPAN is enough of them for the head_dim. */
template <int SPAN> struct outputs {
    float2 x[SHARE][SPAN];
};

template <int SPAN>
static inline __device__ void outputs_clear(outputs<SPAN> *out)
{
    for (int r = 0; r < SHARE; r++)
        for (int j = 0; j < SPAN; j++)
            out->x[r][j].x = out->x[r][j].y = 0;
}

/* out += weights x, over TILE rows of the tile x; the weight of x's row i for the
 * share's r is weights[r * r_step + i * i_step]. */
template <int SPAN>
static inline __device__ void outputs_add(const attention &a,
                                          const float *weights, int r_step,
                                          int i_step, const uint32_t *x,
                                          outputs<SPAN> *out)
{
    for (int i = 0; i < TILE; i++)
        for (int j = 0; j < SPAN; j++) {
            const unsigned w = threadIdx.x % WARP + j * WARP;

            if (w >= n_words(a))
                break;

            const float2 y = widen_pair(x[i * word_stride(a) + w]);

            for (int r = 0; r < SHARE; r++) {
                const float weight = weights[r * r_step + i * i_step];

                out->x[r][j].x += weight * y.x;
                out->x[r][j].y += weight * y.y;
            }
        }
}

/* Weights of a tile, [rows][keys]. */
typedef float weight_tile[TILE][TILE + 1];

/* How many pairs a lane has at most: 1, 2 or 4. */
static inline int span_of(const cf_attn_shape *shape)
{
    const int span = (int)cf_cuda_n_blocks(shape->head_dim / 2, WARP);

    return span <= 2 ? span : 4;
}

#endif
