/* convert.c - between the types of files and the types of computation.
 *
 * (1) Element functions are branch-free where they can be: the compiler turns
 *     the loops over them into vectors.
 * (2) double to a 16-bit type goes through a float that is rounded to odd: a
 *     float rounded to nearest would be rounded twice, and ties go wrong.
 * (3) No float is subnormal on the way unless the value is, so that a thread
 *     that flushes subnormals to zero still converts F16 exactly.
 */
#include "src/convert.h"

#include <string.h>

enum {
    PARALLEL_MIN = 1 << 16
};

static const struct dtype_info {
    const char *name;
    size_t bytes;
} DTYPES[] = {
    [CF_DTYPE_F64] = {"F64", 8},
    [CF_DTYPE_F32] = {"F32", 4},
    [CF_DTYPE_F16] = {"F16", 2},
    [CF_DTYPE_BF16] = {"BF16", 2},
};

size_t cf_dtype_bytes(cf_dtype dtype)
{
    return DTYPES[dtype].bytes;
}

const char *cf_dtype_name(cf_dtype dtype)
{
    return DTYPES[dtype].name;
}

size_t cf_acc_bytes(cf_compute compute)
{
    return compute == CF_COMPUTE_FP64 ? sizeof(double) : sizeof(float);
}

static inline uint32_t bits_of(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static inline float float_of(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

static inline float same(float x)
{
    return x;
}

static inline double same64(double x)
{
    return x;
}

static inline float from_bf16(uint16_t h)
{
    return float_of((uint32_t)h << 16);
}

static inline float from_f16(uint16_t h)
{
    const uint32_t rebias = 112u << 23; /* 127 - 15 */
    uint32_t magnitude = h & 0x7fffu;
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t normal = (magnitude << 13) + rebias;
    uint32_t subnormal = bits_of((float)(int32_t)magnitude * 0x1p-24f);

    normal += magnitude >= 0x7c00 ? rebias : 0; /* Inf and NaN */
    return float_of(sign | (magnitude < 0x0400 ? subnormal : normal));
}

static inline uint16_t to_bf16(float x)
{
    uint32_t bits = bits_of(x);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    uint32_t nan = (bits >> 16) | 0x40;

    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? nan : rounded);
}

static inline uint16_t to_f16(float x)
{
    uint32_t bits = bits_of(x);
    uint32_t sign = (bits >> 16) & 0x8000;
    uint32_t magnitude = bits & 0x7fffffff;
    uint32_t nan = 0x7e00 | ((magnitude >> 13) & 0x3ff);
    /* One unit of 0.5f is the smallest F16: the addition rounds. */
    uint32_t subnormal = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);
    uint32_t normal =
        (magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    uint32_t out = magnitude < 0x38800000 ? subnormal : normal;

    out = magnitude >= 0x477ff000 ? 0x7c00 : out; /* 65520 and up: Inf */
    out = magnitude > 0x7f800000 ? nan : out;
    return (uint16_t)(sign | out);
}

/* Toward zero, with the last bit set when something was lost. */
static inline float round_to_odd(double x)
{
    float nearest = (float)x;
    double back = (double)nearest;
    uint32_t bits = bits_of(nearest);
    uint32_t away = x < 0 ? back < x : back > x;
    uint32_t inexact = (back < x) | (back > x); /* false for NaN */

    return float_of((bits - away) | inexact);
}

static inline uint16_t bf16_from_double(double x)
{
    return to_bf16(round_to_odd(x));
}

static inline uint16_t f16_from_double(double x)
{
    return to_f16(round_to_odd(x));
}

/* clang-format off */

#define PARALLEL_LOOP \
    _Pragma("omp parallel for simd schedule(static) if (n > PARALLEL_MIN)")

/* One loop for each pair of types.  memcpy() because a file's elements are not
 * aligned. */
#define CONVERT_LOOP(name, source, target, convert)        \
    static void name(size_t n, const void *src, void *dst) \
    {                                                      \
        const char *from = src;                            \
        char *to = dst;                                    \
                                                           \
        PARALLEL_LOOP                                      \
        for (size_t i = 0; i < n; i++) {                   \
            source x;                                      \
            target y;                                      \
                                                           \
            memcpy(&x, from + i * sizeof(x), sizeof(x));   \
            y = (target)convert(x);                        \
            memcpy(to + i * sizeof(y), &y, sizeof(y));     \
        }                                                  \
    }

CONVERT_LOOP(f64_to_double,  double,   double, same64)
CONVERT_LOOP(f32_to_double,  float,    double, same)
CONVERT_LOOP(f16_to_double,  uint16_t, double, from_f16)
CONVERT_LOOP(bf16_to_double, uint16_t, double, from_bf16)
CONVERT_LOOP(f64_to_float,   double,   float,  same64)
CONVERT_LOOP(f32_to_float,   float,    float,  same)
CONVERT_LOOP(f16_to_float,   uint16_t, float,  from_f16)
CONVERT_LOOP(bf16_to_float,  uint16_t, float,  from_bf16)

CONVERT_LOOP(double_to_f16,  double, uint16_t, f16_from_double)
CONVERT_LOOP(double_to_bf16, double, uint16_t, bf16_from_double)
CONVERT_LOOP(float_to_f16,   float,  uint16_t, to_f16)
CONVERT_LOOP(float_to_bf16,  float,  uint16_t, to_bf16)

/* Inf and NaN have all bits of the exponent set. */
#define FINITE_LOOP(name, bits, exponent)                           \
    static bool name(size_t n, const void *src)                     \
    {                                                               \
        const char *from = src;                                     \
        unsigned n_bad = 0;                                         \
                                                                    \
        FINITE_PARALLEL_LOOP                                        \
        for (size_t i = 0; i < n; i++) {                            \
            bits x;                                                 \
                                                                    \
            memcpy(&x, from + i * sizeof(x), sizeof(x));            \
            n_bad |= (x & (exponent)) == (exponent);                \
        }                                                           \
        return n_bad == 0;                                          \
    }

#define FINITE_PARALLEL_LOOP \
    _Pragma("omp parallel for simd schedule(static) reduction(|:n_bad) \
if (n > PARALLEL_MIN)")

FINITE_LOOP(f64_is_finite,  uint64_t, 0x7ff0000000000000u)
FINITE_LOOP(f32_is_finite,  uint32_t, 0x7f800000u)
FINITE_LOOP(f16_is_finite,  uint16_t, 0x7c00u)
FINITE_LOOP(bf16_is_finite, uint16_t, 0x7f80u)
/* clang-format on */

typedef void convert_loop(size_t n, const void *src, void *dst);

void cf_convert_read(cf_dtype dtype, size_t n, const void *src,
                     cf_compute compute, void *dst)
{
    static convert_loop *const TO_DOUBLE[] = {
        [CF_DTYPE_F64] = f64_to_double,
        [CF_DTYPE_F32] = f32_to_double,
        [CF_DTYPE_F16] = f16_to_double,
        [CF_DTYPE_BF16] = bf16_to_double,
    };
    static convert_loop *const TO_FLOAT[] = {
        [CF_DTYPE_F64] = f64_to_float,
        [CF_DTYPE_F32] = f32_to_float,
        [CF_DTYPE_F16] = f16_to_float,
        [CF_DTYPE_BF16] = bf16_to_float,
    };

    if (compute == CF_COMPUTE_FP64)
        TO_DOUBLE[dtype](n, src, dst);
    else
        TO_FLOAT[dtype](n, src, dst);
}

void cf_convert_write(cf_compute compute, size_t n, const void *src,
                      cf_dtype dtype, void *dst)
{
    static convert_loop *const FROM_DOUBLE[] = {
        [CF_DTYPE_F64] = f64_to_double,
        [CF_DTYPE_F32] = f64_to_float,
        [CF_DTYPE_F16] = double_to_f16,
        [CF_DTYPE_BF16] = double_to_bf16,
    };
    static convert_loop *const FROM_FLOAT[] = {
        [CF_DTYPE_F64] = f32_to_double,
        [CF_DTYPE_F32] = f32_to_float,
        [CF_DTYPE_F16] = float_to_f16,
        [CF_DTYPE_BF16] = float_to_bf16,
    };

    if (compute == CF_COMPUTE_FP64)
        FROM_DOUBLE[dtype](n, src, dst);
    else
        FROM_FLOAT[dtype](n, src, dst);
}

bool cf_convert_is_finite(cf_dtype dtype, size_t n, const void *src)
{
    static bool (*const IS_FINITE[])(size_t n, const void *src) = {
        [CF_DTYPE_F64] = f64_is_finite,
        [CF_DTYPE_F32] = f32_is_finite,
        [CF_DTYPE_F16] = f16_is_finite,
        [CF_DTYPE_BF16] = bf16_is_finite,
    };

    return IS_FINITE[dtype](n, src);
}
