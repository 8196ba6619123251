/* lt.c - see lt.h. */
#include "kernels/cuda/lt.h"

#include <string.h>

/* Alignments that the library tells apart. */
static uint32_t alignment_of(const void *x)
{
    uint32_t bytes = 16;

    while ((uintptr_t)x % bytes != 0)
        bytes /= 2;
    return bytes;
}

static void key_of(const cf_cuda_product *p, uint64_t key[CF_CUDA_LT_KEY])
{
    const uint64_t parts[CF_CUDA_LT_KEY] = {
        p->m,
        p->n,
        p->k,
        p->a.stride,
        p->b.stride,
        p->a.transposed != 0,
        p->b.transposed != 0,
        p->c_type,
        (uint64_t)(p->add != 0) * 2 + (p->bias != NULL),
        alignment_of(p->a.x),
        alignment_of(p->b.x),
        alignment_of(p->c),
    };

    memcpy(key, parts, sizeof(parts));
}

int cf_cuda_lt_open(void *workspace, size_t workspace_bytes, cf_cuda_lt *lt)
{
    memset(lt, 0, sizeof(*lt));
    lt->workspace = workspace;
    lt->workspace_bytes = workspace_bytes;
    return cublasLtCreate(&lt->handle) != CUBLAS_STATUS_SUCCESS;
}

static void plan_close(cf_cuda_lt_plan *plan)
{
    if (plan->c != NULL)
        (void)cublasLtMatrixLayoutDestroy(plan->c);
    if (plan->b != NULL)
        (void)cublasLtMatrixLayoutDestroy(plan->b);
    if (plan->a != NULL)
        (void)cublasLtMatrixLayoutDestroy(plan->a);
    if (plan->desc != NULL)
        (void)cublasLtMatmulDescDestroy(plan->desc);
    memset(plan, 0, sizeof(*plan));
}

void cf_cuda_lt_close(cf_cuda_lt *lt)
{
    if (lt->handle == NULL)
        return;
    for (size_t i = 0; i < lt->n_plans; i++)
        plan_close(&lt->plans[i]);
    (void)cublasLtDestroy(lt->handle);
    memset(lt, 0, sizeof(*lt));
}

/* ---- plans ---- */

static int describe(const cf_cuda_product *p, cf_cuda_lt_plan *plan)
{
    /* Stored rows are the library's columns, so a matrix that is transposed here
     * is not there, and the other way round; c' = b' a' swaps the two. */
    const cublasOperation_t op_b = p->b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t op_a = p->a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    const cudaDataType_t bias_type = CUDA_R_16BF;

    if (cublasLtMatmulDescCreate(&plan->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) ||
        cublasLtMatmulDescSetAttribute(plan->desc, CUBLASLT_MATMUL_DESC_TRANSA,
                                       &op_b, sizeof(op_b)) ||
        cublasLtMatmulDescSetAttribute(plan->desc, CUBLASLT_MATMUL_DESC_TRANSB,
                                       &op_a, sizeof(op_a)))
        return 1;
    if (p->bias == NULL)
        return 0;
    return cublasLtMatmulDescSetAttribute(plan->desc,
                                          CUBLASLT_MATMUL_DESC_EPILOGUE,
                                          &epilogue, sizeof(epilogue)) ||
           cublasLtMatmulDescSetAttribute(plan->desc,
                                          CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
                                          &bias_type, sizeof(bias_type)) ||
           cublasLtMatmulDescSetAttribute(plan->desc,
                                          CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                          &p->bias, sizeof(p->bias));
}

/* An operand of n_rows and n_columns, before it is stored as its transpose. */
static int lay_out(const cf_cuda_operand *x, size_t n_rows, size_t n_columns,
                   cublasLtMatrixLayout_t *layout_p)
{
    return cublasLtMatrixLayoutCreate(
        layout_p, CUDA_R_16BF, x->transposed ? n_rows : n_columns,
        x->transposed ? n_columns : n_rows, (int64_t)x->stride);
}

static int prefer(const cf_cuda_lt *lt, const cf_cuda_product *p,
                  cublasLtMatmulPreference_t preference)
{
    /* (2) */
    const uint32_t reductions =
        CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const uint32_t align_a = alignment_of(p->b.x);
    const uint32_t align_b = alignment_of(p->a.x);
    const uint32_t align_c = alignment_of(p->c);
    const struct {
        cublasLtMatmulPreferenceAttributes_t attribute;
        const void *value;
        size_t bytes;
    } wishes[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &lt->workspace_bytes,
         sizeof(lt->workspace_bytes)},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions,
         sizeof(reductions)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &align_a, sizeof(align_a)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &align_b, sizeof(align_b)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &align_c, sizeof(align_c)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &align_c, sizeof(align_c)},
    };

    for (size_t i = 0; i < sizeof(wishes) / sizeof(wishes[0]); i++)
        if (cublasLtMatmulPreferenceSetAttribute(
                preference, wishes[i].attribute, wishes[i].value,
                wishes[i].bytes) != CUBLAS_STATUS_SUCCESS)
            return 1;
    return 0;
}

static int choose(const cf_cuda_lt *lt, const cf_cuda_product *p,
                  cf_cuda_lt_plan *plan)
{
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t result;
    int n = 0, failed;

    if (cublasLtMatmulPreferenceCreate(&preference) != CUBLAS_STATUS_SUCCESS)
        return 1;
    memset(&result, 0, sizeof(result));
    failed = prefer(lt, p, preference) ||
             cublasLtMatmulAlgoGetHeuristic(lt->handle, plan->desc, plan->b,
                                            plan->a, plan->c, plan->c,
                                            preference, 1, &result, &n) ||
             n < 1 || result.state != CUBLAS_STATUS_SUCCESS;
    (void)cublasLtMatmulPreferenceDestroy(preference);
    plan->algo = result.algo;
    return failed;
}

/* A plan that cannot be made stays, as refused, so that it is tried once. */
static void plan_open(cf_cuda_lt *lt, const cf_cuda_product *p,
                      cf_cuda_lt_plan *plan)
{
    const cudaDataType_t c_type =
        p->c_type == CF_CUDA_ACC ? CUDA_R_32F : CUDA_R_16BF;

    memset(plan, 0, sizeof(*plan));
    key_of(p, plan->key);
    plan->is_refused = describe(p, plan) ||
                       lay_out(&p->a, p->m, p->k, &plan->a) ||
                       lay_out(&p->b, p->k, p->n, &plan->b) ||
                       cublasLtMatrixLayoutCreate(&plan->c, c_type, p->n, p->m,
                                                  (int64_t)p->n) ||
                       choose(lt, p, plan);
    lt->n_made++;
}

static cf_cuda_lt_plan *plan_of(cf_cuda_lt *lt, const cf_cuda_product *p)
{
    uint64_t key[CF_CUDA_LT_KEY];
    cf_cuda_lt_plan *plan;

    key_of(p, key);
    for (size_t i = 0; i < lt->n_plans; i++)
        if (memcmp(key, lt->plans[i].key, sizeof(key)) == 0)
            return &lt->plans[i];
    plan = &lt->plans[lt->next];
    if (lt->n_plans < CF_CUDA_LT_KEPT)
        lt->n_plans++;
    else
        plan_close(plan);
    lt->next = (lt->next + 1) % CF_CUDA_LT_KEPT;
    plan_open(lt, p, plan);
    return plan;
}

int cf_cuda_lt_run(cf_cuda_lt *lt, cudaStream_t stream,
                   const cf_cuda_product *p)
{
    const float alpha = 1, beta = p->add ? 1 : 0;
    const cf_cuda_lt_plan *plan;

    if (p->m == 0 || p->n == 0)
        return 0;
    plan = plan_of(lt, p);
    if (plan->is_refused)
        return 1;
    if (p->bias != NULL &&
        cublasLtMatmulDescSetAttribute(
            plan->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p->bias,
            sizeof(p->bias)) != CUBLAS_STATUS_SUCCESS)
        return 1;
    return cublasLtMatmul(lt->handle, plan->desc, &alpha, p->b.x, plan->b,
                          p->a.x, plan->a, &beta, p->c, plan->c, p->c, plan->c,
                          &plan->algo, lt->workspace, lt->workspace_bytes,
                          stream) != CUBLAS_STATUS_SUCCESS;
}
