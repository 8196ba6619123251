/* arrays.c - arrays of a backend's element types, for tests of kernels. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/arrays.h"

enum {
    POOL_MAX = 4096
};

static void *pool[POOL_MAX];
static size_t n_pooled;

cf_kernels kernels_of(cf_compute compute)
{
    cf_kernels k;
    const char *why = "";

    ck_assert_msg(cf_cpu_kernels(compute, &k, &why) == CF_OK, "%s", why);
    k.backend = NULL;
    return k;
}

void arrays_close(void)
{
    while (n_pooled > 0)
        free(pool[--n_pooled]);
}

void *array_bytes(size_t bytes)
{
    void *x = NULL;

    ck_assert_uint_lt(n_pooled, POOL_MAX);
    ck_assert_int_eq(posix_memalign(&x, 64, bytes > 0 ? bytes : 1), 0);
    memset(x, 0xff, bytes);
    pool[n_pooled++] = x;
    return x;
}

double *array_double(size_t n)
{
    return array_bytes(n * sizeof(double));
}

uint32_t *array_u32(size_t n)
{
    return array_bytes(n * sizeof(uint32_t));
}

void *array_out(const cf_kernels *k, size_t n)
{
    return array_bytes(n * k->acc_bytes);
}

void *act_out(const cf_kernels *k, size_t n)
{
    return array_bytes(n * k->act_bytes);
}

double nearest_bf16(double x)
{
    const double least = 0x1p-126, end = 0x1p128;
    double unit, nearest;

    if (x == 0 || !isfinite(x))
        return x;
    unit = ldexp(1, ilogb(fmax(fabs(x), least)) - 7);
    nearest = rint(x / unit) * unit;
    return fabs(nearest) < end ? nearest : copysign(INFINITY, x);
}

double act_get(const cf_kernels *k, const void *x, size_t i)
{
    uint32_t bits;
    float value;

    if (k->act_bytes == sizeof(double))
        return ((const double *)x)[i];
    if (k->act_bytes == sizeof(float))
        return ((const float *)x)[i];
    bits = (uint32_t)((const uint16_t *)x)[i] << 16;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

void act_put(const cf_kernels *k, void *x, size_t i, double value)
{
    float single = (float)value;
    uint32_t bits;

    if (k->act_bytes == sizeof(double)) {
        ((double *)x)[i] = value;
    } else if (k->act_bytes == sizeof(float)) {
        ((float *)x)[i] = single;
    } else {
        single = (float)nearest_bf16(value);
        memcpy(&bits, &single, sizeof(bits));
        ((uint16_t *)x)[i] = (uint16_t)(bits >> 16);
    }
}

void *act_of(const cf_kernels *k, size_t n, const double *x)
{
    void *y = act_out(k, n);

    for (size_t i = 0; i < n; i++)
        act_put(k, y, i, x[i]);
    return y;
}

double *act_values_of(const cf_kernels *k, size_t n, const void *x)
{
    double *y = array_double(n);

    for (size_t i = 0; i < n; i++)
        y[i] = act_get(k, x, i);
    return y;
}

cf_weight weight_of(const cf_kernels *k, size_t n_out, size_t n_in,
                    const double *master, const double *bias)
{
    size_t packed_bytes = k->weight_packed_bytes(k, n_out, n_in);
    cf_weight w = {
        .master = array_of(k, n_out * n_in, master),
        .bias = bias != NULL ? array_of(k, n_out, bias) : NULL,
        .packed = packed_bytes > 0 ? array_bytes(packed_bytes) : NULL,
        .n_out = n_out,
        .n_in = n_in,
    };

    k->weight_pack(k, &w);
    return w;
}

void *array_of(const cf_kernels *k, size_t n, const double *x)
{
    void *y = array_out(k, n);

    for (size_t i = 0; i < n; i++)
        if (k->acc_bytes == sizeof(double))
            ((double *)y)[i] = x[i];
        else
            ((float *)y)[i] = (float)x[i];
    return y;
}

double *values_of(const cf_kernels *k, size_t n, const void *x)
{
    double *y = array_double(n);

    for (size_t i = 0; i < n; i++)
        y[i] = k->acc_bytes == sizeof(double) ? ((const double *)x)[i]
                                              : ((const float *)x)[i];
    return y;
}

double *copy_of(size_t n, const double *x)
{
    return memcpy(array_double(n), x, n * sizeof(double));
}

/* splitmix64 */
static uint64_t random_u64(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

double *random_values(uint64_t *state, size_t n, double limit)
{
    double *x = array_double(n);

    for (size_t i = 0; i < n; i++)
        x[i] =
            (float)(((double)(random_u64(state) >> 11) * 0x1p-52 - 1) * limit);
    return x;
}

double *random_acts(const cf_kernels *k, uint64_t *state, size_t n,
                    double limit)
{
    double *x = random_values(state, n, limit);

    for (size_t i = 0; k->compute == CF_COMPUTE_BF16 && i < n; i++)
        x[i] = nearest_bf16(x[i]);
    return x;
}

uint32_t random_below(uint64_t *state, uint32_t limit)
{
    return (uint32_t)(random_u64(state) % limit);
}

double bound_of(const cf_kernels *k, double f32, double f64)
{
    return k->compute == CF_COMPUTE_FP64 ? f64 : f32;
}

double act_bound_of(const cf_kernels *k, double f32, double f64)
{
    const double rounding = 0x1p-8; /* half a unit of bf16 */

    return k->compute == CF_COMPUTE_BF16 ? rounding + f32
                                         : bound_of(k, f32, f64);
}
