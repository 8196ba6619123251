/* adamw.c - one step of torch.optim.AdamW over one tensor, in one pass.
 *
 * The order of operations and the type of every constant are PyTorch's: scalars
 * are formed in double and rounded once to the element type.
 */
#include <immintrin.h>

#include "kernels/cpu/loops.h"

/* GCC has no square root of a vector, and vectorises sqrtf() only where it need
 * not set errno. */
CF_INLINE vec vec_sqrt(vec x)
{
#if CF_VB == 64 && CF_DOUBLE
    return (vec)_mm512_sqrt_pd((__m512d)x);
#elif CF_VB == 64
    return (vec)_mm512_sqrt_ps((__m512)x);
#elif CF_DOUBLE
    return (vec)_mm256_sqrt_pd((__m256d)x);
#else
    return (vec)_mm256_sqrt_ps((__m256)x);
#endif
}

typedef struct constants {
    vec g_scale;
    vec decay;
    vec m_weight; /* of the gradient: 1 - beta1 */
    vec beta2, v_weight;
    vec root_correction2;
    vec eps;
    vec step;
} constants;

static constants constants_of(const cf_adamw_params *p)
{
    return (constants){
        .g_scale = vec_splat((acc)p->g_scale),
        .decay = vec_splat((acc)(1 - p->learning_rate * p->weight_decay)),
        .m_weight = vec_splat((acc)(1 - p->beta1)),
        .beta2 = vec_splat((acc)p->beta2),
        .v_weight = vec_splat((acc)(1 - p->beta2)),
        .root_correction2 = vec_splat((acc)sqrt(p->correction2)),
        .eps = vec_splat((acc)p->eps),
        .step = vec_splat((acc)(p->learning_rate / p->correction1)),
    };
}

static void update(const constants *c, size_t n, const acc *g, acc *w, acc *m,
                   acc *v)
{
    for (size_t i = 0; i < n; i += VL) {
        size_t left = n - i;
        vec gi = load_acc(g + i, left) * c->g_scale;
        vec wi = load_acc(w + i, left) * c->decay;
        vec mi = load_acc(m + i, left);
        vec vi = load_acc(v + i, left) * c->beta2;

        mi += c->m_weight * (gi - mi);
        vi += c->v_weight * gi * gi;
        wi -= c->step * mi / (vec_sqrt(vi) / c->root_correction2 + c->eps);
        store_acc(w + i, left, wi);
        store_acc(m + i, left, mi);
        store_acc(v + i, left, vi);
    }
}

void CF_CPU(adamw)(const cf_kernels *k, size_t n, const cf_adamw_params *p,
                   const void *g, void *w, void *m, void *v)
{
    const acc *grad = g;
    acc *weight = w;
    acc *mean = m;
    acc *square = v;
    const constants c = constants_of(p);

    (void)k;
#pragma omp parallel for schedule(static) if (n > CF_PARALLEL_MIN)
    for (size_t i = 0; i < n; i += CF_FLAT_BLOCK)
        update(&c, smaller(n - i, CF_FLAT_BLOCK), grad + i, weight + i,
               mean + i, square + i);
}
