/* gemm.cu - any product of the backend, by a plain kernel.
 *
 * cuBLASLt does this on GPUs.  This one is what its results are held against, and
 * what runs where there is no such library.
 *
 * A block makes TILE x TILE elements of c; a thread makes ROWS of one column.
 * Every element is one chain over ascending k, so its bits depend neither on m nor
 * on n.
 */
#include "kernels/cuda/common.cuh"

enum {
    TILE = 32,
    ROWS = TILE * TILE / THREADS
};

/* Element (row, column) of an operand. */
struct view {
    const bf16 *x;
    size_t row_step, column_step;
};

static view view_of(const cf_cuda_operand *operand)
{
    view v;

    v.x = (const bf16 *)operand->x;
    v.row_step = operand->transposed ? 1 : operand->stride;
    v.column_step = operand->transposed ? operand->stride : 1;
    return v;
}

/* to[i][j] = element (row + i, column + j), 0 beyond n_rows and n_columns.
 * Neighbouring threads read neighbouring elements, transposed or not. */
static __device__ void tile_load(const view &v, size_t row, size_t n_rows,
                                 size_t column, size_t n_columns,
                                 float (*to)[TILE + 1])
{
    for (unsigned at = threadIdx.x; at < TILE * TILE; at += THREADS) {
        const unsigned fast = at % TILE, slow = at / TILE;
        const unsigned i = v.row_step == 1 ? fast : slow;
        const unsigned j = v.row_step == 1 ? slow : fast;
        const bool there = row + i < n_rows && column + j < n_columns;

        to[i][j] = there ? widen(v.x[(row + i) * v.row_step +
                                     (column + j) * v.column_step])
                         : 0;
    }
}

static __device__ float value(const float *x)
{
    return *x;
}

static __device__ void put(float *x, float value)
{
    *x = value;
}

static __device__ float value(const bf16 *x)
{
    return widen(*x);
}

static __device__ void put(bf16 *x, float value)
{
    *x = narrow(value);
}

template <typename T>
static __global__ void product(size_t m, size_t n, size_t k, view a, view b,
                               const bf16 *bias, int add, T *c)
{
    CF_SHARED(float, a_tile, [TILE][TILE + 1]);
    CF_SHARED(float, b_tile, [TILE][TILE + 1]);
    const size_t n_columns = (n + TILE - 1) / TILE;
    const size_t row = blockIdx.x / n_columns * TILE;
    const size_t column = blockIdx.x % n_columns * TILE;
    const unsigned j = threadIdx.x % TILE, i = threadIdx.x / TILE * ROWS;
    float sum[ROWS] = {0};

    for (size_t at = 0; at < k; at += TILE) {
        tile_load(a, row, m, at, k, a_tile);
        tile_load(b, at, k, column, n, b_tile);
        __syncthreads();
        for (int l = 0; l < TILE; l++)
            for (int r = 0; r < ROWS; r++)
                sum[r] += a_tile[i + r][l] * b_tile[l][j];
        __syncthreads();
    }
    for (int r = 0; r < ROWS; r++) {
        if (row + i + r >= m || column + j >= n)
            continue;

        T *to = c + (row + i + r) * n + column + j;

        if (bias != NULL)
            sum[r] += widen(bias[column + j]);
        put(to, add ? value(to) + sum[r] : sum[r]);
    }
}

void cf_cuda_product_run(cf_cuda_stream stream, const cf_cuda_product *p)
{
    const size_t n_blocks =
        cf_cuda_n_blocks(p->m, TILE) * cf_cuda_n_blocks(p->n, TILE);
    const view a = view_of(&p->a), b = view_of(&p->b);

    if (n_blocks == 0)
        return;
    if (p->c_type == CF_CUDA_ACC)
        CF_LAUNCH(product<float>, n_blocks, THREADS, 0, stream, p->m, p->n,
                  p->k, a, b, (const bf16 *)p->bias, p->add, (float *)p->c);
    else
        CF_LAUNCH(product<bf16>, n_blocks, THREADS, 0, stream, p->m, p->n, p->k,
                  a, b, (const bf16 *)p->bias, p->add, (bf16 *)p->c);
}
