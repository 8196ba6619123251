/* cpu.h - one source, several element types and instruction sets.
 *
 * Every file in this folder but dispatch.c is compiled once per variant, with
 *   -DCF_VARIANT=f32_avx2   the suffix of every symbol of that object
 *   -DCF_DOUBLE=0 or 1      accumulation type
 *   -DCF_ACT_BF16=0 or 1    storage in bf16, accumulation in float [0]
 *   -DCF_VB=32 or 64        bytes of a vector
 * and the matching -m flags.  An op is defined as `void CF_CPU(name)(...)`;
 * cpu_ops.h declares them all, table.c collects them, dispatch.c chooses.
 *
 * act is the storage type, acc the accumulation type (kernels.h).  Loops convert
 * in load_act() and store_act() (loops.h), and what reads whole arrays of acc has
 * them widened (widen.h), so that bf16 needs no second copy of any loop.
 *
 * Vectors are GCC's: they compile for any instruction set.  No -ffast-math
 * anywhere; -ffp-contract=fast gives FMA.
 */
#ifndef CF_CPU_H
#define CF_CPU_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels/kernels.h"

#define CF_CAT2(a, b) a##_##b
#define CF_CAT(a, b)  CF_CAT2(a, b)
#define CF_CPU(name)  CF_CAT(cf_cpu_##name, CF_VARIANT)

#ifndef CF_ACT_BF16
#define CF_ACT_BF16 0
#endif

#if CF_DOUBLE
typedef double act;
typedef double acc;
typedef int64_t acc_bits;
typedef uint64_t acc_ubits;
#else
typedef float acc;
typedef int32_t acc_bits;
typedef uint32_t acc_ubits;
#if CF_ACT_BF16
/* A struct, so that nothing converts it unseen. */
typedef struct act {
    uint16_t bits; /* the upper half of a float's */
} act;
#else
typedef float act;
#endif
#endif

enum {
    VL = CF_VB / (int)sizeof(acc)
}; /* lanes of acc in a vector */

typedef acc vec
    __attribute__((vector_size(CF_VB), aligned(sizeof(acc)), may_alias));
typedef acc_bits ivec
    __attribute__((vector_size(CF_VB), aligned(sizeof(acc)), may_alias));
typedef acc_ubits uvec /* wraps, where the sum of an ivec must not */
    __attribute__((vector_size(CF_VB), aligned(sizeof(acc)), may_alias));

#define CF_INLINE static inline __attribute__((always_inline))

CF_INLINE vec vec_load(const acc *p)
{
    return *(const vec *)p;
}

CF_INLINE void vec_store(acc *p, vec x)
{
    *(vec *)p = x;
}

#if CF_ACT_BF16
typedef uint16_t hvec __attribute__((vector_size(CF_VB / 2),
                                     aligned(sizeof(uint16_t)), may_alias));

CF_INLINE vec vec_widen(hvec x)
{
    return (vec)(__builtin_convertvector(x, uvec) << 16);
}

/* To nearest, ties to even; a NaN stays one, also where its payload lies in the
 * half that goes. */
CF_INLINE hvec vec_narrow(vec x)
{
    uvec bits = (uvec)x;
    uvec nearest = bits + 0x7fff + ((bits >> 16) & 1);
    uvec nan = (uvec)(x != x);

    nearest = (nearest & ~nan) | ((bits | 0x400000) & nan);
    return __builtin_convertvector(nearest >> 16, hvec);
}
#endif

CF_INLINE vec act_load(const act *p)
{
#if CF_ACT_BF16
    return vec_widen(*(const hvec *)p);
#else
    return vec_load(p);
#endif
}

CF_INLINE void act_store(act *p, vec x)
{
#if CF_ACT_BF16
    *(hvec *)p = vec_narrow(x);
#else
    vec_store(p, x);
#endif
}

/* x - 0 is a pure broadcast; x + 0 would cost an add, because of -0.0. */
CF_INLINE vec vec_splat(acc x)
{
    return x - (vec){0};
}

/* mask ? a : b, lane by lane; mask lanes are all ones or all zeros. */
CF_INLINE vec vec_select(ivec mask, vec a, vec b)
{
    return (vec)(((ivec)a & mask) | ((ivec)b & ~mask));
}

CF_INLINE vec vec_max(vec a, vec b)
{
    return vec_select(a > b, a, b);
}

/* Lanes are added in a fixed tree, lane i with lane i + half. */
CF_INLINE acc vec_sum(vec x)
{
    acc lane[VL];

    memcpy(lane, &x, sizeof(lane));
    for (int half = VL / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] += lane[i + half];
    return lane[0];
}

/* e^x for x below the overflow bound: 1.1 ulp in float, 1 ulp in double;
 * exactly 0 below the smallest normal and for -inf, NaN for NaN. */
CF_INLINE vec vec_exp(vec x)
{
#if CF_DOUBLE
    const double low = -708.0;
    const vec magic = vec_splat(6755399441055744.0);
    vec n = x * vec_splat(1.4426950408889634) + magic;
    uvec e = (uvec)n << 52;
    static const double c[] = {
        1.0 / 6227020800.0, 1.0 / 479001600.0, 1.0 / 39916800.0,
        1.0 / 3628800.0,    1.0 / 362880.0,    1.0 / 40320.0,
        1.0 / 5040.0,       1.0 / 720.0,       1.0 / 120.0,
        1.0 / 24.0,         1.0 / 6.0,         0.5,
    };

    n -= magic;
    vec r = x - n * vec_splat(6.93147180369123816490e-01);
    r = r - n * vec_splat(1.90821492927058770002e-10);
#else
    const float low = -87.3f;
    const vec magic = vec_splat(12582912.0f);
    vec n = x * vec_splat(1.44269504f) + magic;
    uvec e = (uvec)n << 23;
    static const float c[] = {
        1.38145627e-3f, 8.36874638e-3f, 4.1668389e-2f,
        1.66665211e-1f, 0.49999994f,
    };

    n -= magic;
    vec r = x - n * vec_splat(0.693145751953125f);
    r = r - n * vec_splat(1.42860682030941723212e-6f);
#endif
    vec p = vec_splat(c[0]);

    for (size_t i = 1; i < sizeof(c) / sizeof(c[0]); i++)
        p = p * r + vec_splat(c[i]);
    p = p * (r * r) + r;
    p = p + vec_splat(1);
    p = (vec)(((uvec)p + e) & ~(uvec)(x < vec_splat(low)));
    return vec_select((ivec)(x == x), p, x);
}

#endif
