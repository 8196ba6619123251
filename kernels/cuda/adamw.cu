/* adamw.cu - one step of torch.optim.AdamW over one tensor, in one pass: fp32
 * masters in, fp32 masters and, if wanted, their bf16 copy out.
 *
 * The order of operations and the type of every constant are PyTorch's: scalars
 * are formed in double and rounded once.
 */
#include "kernels/cuda/common.cuh"

struct constants {
    float g_scale;
    float decay;
    float m_weight; /* of the gradient: 1 - beta1 */
    float beta2, v_weight;
    float root_correction2;
    float eps;
    float step;
};

static constants constants_of(const cf_adamw_params *p)
{
    constants c;

    c.g_scale = (float)p->g_scale;
    c.decay = (float)(1 - p->learning_rate * p->weight_decay);
    c.m_weight = (float)(1 - p->beta1);
    c.beta2 = (float)p->beta2;
    c.v_weight = (float)(1 - p->beta2);
    c.root_correction2 = (float)sqrt(p->correction2);
    c.eps = (float)p->eps;
    c.step = (float)(p->learning_rate / p->correction1);
    return c;
}

static __global__ void update(size_t n, constants c, const float *g, float *w,
                              float *m, float *v, bf16 *copy)
{
    const size_t i = flat_strip(), left = n - i;

    if (i >= n)
        return;

    const strip gi = load(g + i, left);
    strip wi = load(w + i, left), mi = load(m + i, left);
    strip vi = load(v + i, left);

    for (int e = 0; e < STRIP; e++) {
        const float grad = gi.x[e] * c.g_scale;

        wi.x[e] *= c.decay;
        mi.x[e] += c.m_weight * (grad - mi.x[e]);
        vi.x[e] = vi.x[e] * c.beta2 + c.v_weight * grad * grad;
        wi.x[e] -=
            c.step * mi.x[e] / (sqrtf(vi.x[e]) / c.root_correction2 + c.eps);
    }
    store(w + i, left, wi);
    store(m + i, left, mi);
    store(v + i, left, vi);
    if (copy != NULL)
        store(copy + i, left, wi);
}

void cf_cuda_adamw(cf_cuda_stream stream, size_t n, const cf_adamw_params *p,
                   const void *g, void *w, void *m, void *v, void *copy)
{
    if (n > 0)
        CF_LAUNCH(update, flat_blocks(n), THREADS, 0, stream, n,
                  constants_of(p), (const float *)g, (float *)w, (float *)m,
                  (float *)v, (bf16 *)copy);
}
