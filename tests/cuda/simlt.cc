/* simlt.cc - as much of cuBLASLt as the backend uses: products of bf16 matrices,
 * summed in fp32, by plain loops.  Strict where the library is: types, leading
 * dimensions, aliases of C and D, and the alignment that was promised. */
#include <stdlib.h>
#include <string.h>

#include "cublasLt.h"
#include "gpusim.h"

struct cublasLtContext {
    int unused;
};

struct sim_matmul {
    cublasOperation_t op_a, op_b;
    cublasLtEpilogue_t epilogue;
    const void *bias;
    cudaDataType_t bias_type;
};

struct sim_layout {
    cudaDataType_t type;
    uint64_t n_rows, n_columns;
    int64_t stride;
};

struct sim_preference {
    size_t workspace_bytes;
    uint32_t reductions;
    uint32_t align[4];
};

namespace
{

float widen(uint16_t x)
{
    return __uint_as_float((uint32_t)x << 16);
}

uint16_t narrow(float x)
{
    const uint32_t bits = __float_as_uint(x);

    return x != x ? (uint16_t)0x7fff
                  : (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

/* Element (row, column) of op(x), column-major. */
float element(const void *x, const sim_layout &layout, cublasOperation_t op,
              uint64_t row, uint64_t column)
{
    if (op == CUBLAS_OP_T)
        std::swap(row, column);
    return widen(((const uint16_t *)x)[column * (uint64_t)layout.stride + row]);
}

uint64_t inner(const sim_layout &a, cublasOperation_t op)
{
    return op == CUBLAS_OP_N ? a.n_columns : a.n_rows;
}

struct Product {
    sim_matmul desc;
    sim_layout a_layout, b_layout, d_layout;
    const void *a, *b;
    void *d;
    float beta;
};

void run(const Product &p)
{
    for (uint64_t column = 0; column < p.d_layout.n_columns; column++)
        for (uint64_t row = 0; row < p.d_layout.n_rows; row++) {
            const uint64_t at = column * (uint64_t)p.d_layout.stride + row;
            float *acc = (float *)p.d + at;
            uint16_t *act = (uint16_t *)p.d + at;
            const bool is_acc = p.d_layout.type == CUDA_R_32F;
            float sum = 0;

            for (uint64_t l = 0; l < inner(p.a_layout, p.desc.op_a); l++)
                sum += element(p.a, p.a_layout, p.desc.op_a, row, l) *
                       element(p.b, p.b_layout, p.desc.op_b, l, column);
            if (p.beta != 0)
                sum += p.beta * (is_acc ? *acc : widen(*act));
            if (p.desc.epilogue == CUBLASLT_EPILOGUE_BIAS)
                sum += widen(((const uint16_t *)p.desc.bias)[row]);
            if (is_acc)
                *acc = sum;
            else
                *act = narrow(sum);
        }
}

bool fits(const sim_matmul &desc, const sim_layout &a, const sim_layout &b,
          const sim_layout &d)
{
    const bool n_a = desc.op_a == CUBLAS_OP_N, n_b = desc.op_b == CUBLAS_OP_N;

    return a.type == CUDA_R_16BF && b.type == CUDA_R_16BF &&
           (n_a ? a.n_rows : a.n_columns) == d.n_rows &&
           (n_b ? b.n_columns : b.n_rows) == d.n_columns &&
           inner(a, desc.op_a) == (n_b ? b.n_rows : b.n_columns) &&
           (desc.epilogue != CUBLASLT_EPILOGUE_BIAS ||
            desc.bias_type == CUDA_R_16BF);
}

template <typename T> cublasStatus_t create(T **made_p, T value)
{
    *made_p = new T(value);
    return CUBLAS_STATUS_SUCCESS;
}

template <typename T> cublasStatus_t destroy(T *made)
{
    delete made;
    return CUBLAS_STATUS_SUCCESS;
}

template <typename T> cublasStatus_t set(T *to, const void *value, size_t bytes)
{
    if (bytes != sizeof(*to))
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

} // namespace

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle_p)
{
    return create(handle_p, cublasLtContext{0});
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    return destroy(handle);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc_p,
                                        cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    return create(desc_p,
                  sim_matmul{CUBLAS_OP_N, CUBLAS_OP_N,
                             CUBLASLT_EPILOGUE_DEFAULT, nullptr, CUDA_R_32F});
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
    return destroy(desc);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(
    cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
    const void *value, size_t bytes)
{
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return set(&desc->op_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return set(&desc->op_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return set(&desc->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return set(&desc->bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
        return set(&desc->bias_type, value, bytes);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout_p,
                                          cudaDataType_t type, uint64_t n_rows,
                                          uint64_t n_columns, int64_t stride)
{
    if (n_rows == 0 || n_columns == 0 || stride < (int64_t)n_rows)
        return CUBLAS_STATUS_INVALID_VALUE;
    return create(layout_p, sim_layout{type, n_rows, n_columns, stride});
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    return destroy(layout);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(
    cublasLtMatmulPreference_t *preference_p)
{
    return create(preference_p, sim_preference{0, 7, {256, 256, 256, 256}});
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(
    cublasLtMatmulPreference_t preference)
{
    return destroy(preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(
    cublasLtMatmulPreference_t preference,
    cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
    size_t bytes)
{
    switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        return set(&preference->workspace_bytes, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
        return set(&preference->reductions, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        return set(
            &preference->align[attribute -
                               CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES],
            value, bytes);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

/* An algorithm knows the alignment that it was chosen for.  As in the library,
 * rows of 4 bytes at least are needed. */
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
    cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
    cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference,
    int n_wanted, cublasLtMatmulHeuristicResult_t *results, int *n_p)
{
    *n_p = 0;
    if (n_wanted < 1 || preference->reductions != 2 || c->type != d->type ||
        !fits(*desc, *a, *b, *d))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (a->stride % 2 != 0 || b->stride % 2 != 0)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    *n_p = 1;
    results[0] = {};
    results[0].state = CUBLAS_STATUS_SUCCESS;
    results[0].workspaceSize = preference->workspace_bytes;
    for (int i = 0; i < 4; i++)
        results[0].algo.data[i] = preference->align[i];
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
                              const void *alpha, const void *a,
                              cublasLtMatrixLayout_t a_layout, const void *b,
                              cublasLtMatrixLayout_t b_layout, const void *beta,
                              const void *c, cublasLtMatrixLayout_t c_layout,
                              void *d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream)
{
    const void *at[4] = {a, b, c, d};
    const Product p = {*desc, *a_layout, *b_layout, *d_layout,
                       a,     b,         d,         *(const float *)beta};

    for (int i = 0; i < 4; i++)
        if (algo->data[i] == 0 || (uintptr_t)at[i] % algo->data[i] != 0)
            return CUBLAS_STATUS_INVALID_VALUE;
    if (*(const float *)alpha != 1 || c != d ||
        c_layout->type != d_layout->type ||
        !fits(*desc, *a_layout, *b_layout, *d_layout))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (workspace_bytes > 0 && workspace == nullptr)
        return CUBLAS_STATUS_INVALID_VALUE;
    gpusim::enqueue(stream, [=] { run(p); });
    return CUBLAS_STATUS_SUCCESS;
}
