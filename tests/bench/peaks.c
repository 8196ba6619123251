/* peaks.c - see peaks.h.  Compiled with -ffp-contract=fast. */
#include "tests/bench/peaks.h"

#include <omp.h>
#include <stdint.h>
#include <time.h>

enum {
    CHAINS = 12, /* of additions, to hide the latency of one */
    TRIES = 5,
    BLOCK_VECTORS = 8,
    BLOCK_WORDS = 4 * BLOCK_VECTORS
};

double peak_clock_s(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

const char *peak_isa_str(peak_isa isa)
{
    return isa == PEAK_AVX2 ? "avx2" : "avx512";
}

bool peak_isa_is_there(peak_isa isa)
{
    __builtin_cpu_init();
    if (isa == PEAK_AVX512)
        return __builtin_cpu_supports("avx512f") != 0;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

/* ---- multiplying and adding ---- */

/* n_rounds of CHAINS multiply-adds on vectors of `bytes`. */
#define DEFINE_ROUNDS(name, type, bytes, isa)                                \
    __attribute__((target(isa), noinline)) static double name(long n_rounds) \
    {                                                                        \
        typedef type vector __attribute__((vector_size(bytes)));             \
        const vector half = (vector){0} + (type)0.5;                         \
        vector chain[CHAINS], sum = {0};                                     \
                                                                             \
        for (int i = 0; i < CHAINS; i++)                                     \
            chain[i] = half * (type)i;                                       \
        for (long round = 0; round < n_rounds; round++) {                    \
            _Pragma("GCC unroll 12") for (int i = 0; i < CHAINS; i++)        \
                chain[i] = chain[i] * half + half;                           \
        }                                                                    \
        for (int i = 0; i < CHAINS; i++)                                     \
            sum += chain[i];                                                 \
        return (double)sum[0];                                               \
    }

DEFINE_ROUNDS(rounds_f32_avx2, float, 32, "avx2,fma")
DEFINE_ROUNDS(rounds_f64_avx2, double, 32, "avx2,fma")
DEFINE_ROUNDS(rounds_f32_avx512, float, 64,
              "avx512f,avx2,fma,prefer-vector-width=512")
DEFINE_ROUNDS(rounds_f64_avx512, double, 64,
              "avx512f,avx2,fma,prefer-vector-width=512")

typedef double (*rounds_run)(long n_rounds);

static rounds_run rounds_of(peak_isa isa, bool is_double)
{
    if (isa == PEAK_AVX2)
        return is_double ? rounds_f64_avx2 : rounds_f32_avx2;
    return is_double ? rounds_f64_avx512 : rounds_f32_avx512;
}

/* Seconds of all threads together. */
static double rounds_time(rounds_run run, long n_rounds, int n_threads)
{
    const double start = peak_clock_s();
    double sum = 0;

#pragma omp parallel num_threads(n_threads) reduction(+ : sum)
    sum += run(n_rounds);
    /* Its value is what keeps the loops. */
    return peak_clock_s() - start + (sum < 0 ? 1 : 0);
}

double peak_gflops(peak_isa isa, bool is_double, int n_threads, double seconds)
{
    const rounds_run run = rounds_of(isa, is_double);
    const double vector_bytes = isa == PEAK_AVX2 ? 32 : 64;
    const double flop_per_round =
        2.0 * CHAINS * vector_bytes / (is_double ? 8 : 4);
    long n_rounds = 1000;
    double best = 0;

    while (rounds_time(run, n_rounds, 1) < seconds / TRIES)
        n_rounds *= 2;
    for (int i = 0; i < TRIES; i++) {
        const double s = rounds_time(run, n_rounds, n_threads);
        const double gflops =
            flop_per_round * (double)n_rounds * n_threads / s * 1e-9;

        best = gflops > best ? gflops : best;
    }
    return best;
}

/* ---- reading ---- */

/* In blocks, whose sums wait for nothing but memory. */
__attribute__((target("avx2"), noinline)) static uint64_t words_sum(
    const uint64_t *words, size_t n)
{
    typedef uint64_t vector
        __attribute__((vector_size(32), aligned(8), may_alias));
    vector sum[BLOCK_VECTORS] = {{0}};

    for (size_t i = 0; i + BLOCK_WORDS <= n; i += BLOCK_WORDS) {
        const vector *block = (const vector *)(words + i);

        _Pragma("GCC unroll 8") for (size_t j = 0; j < BLOCK_VECTORS; j++)
            sum[j] += block[j];
    }
    for (size_t j = 1; j < BLOCK_VECTORS; j++)
        sum[0] += sum[j];
    return sum[0][0] + sum[0][1] + sum[0][2] + sum[0][3];
}

double peak_read_gbs(const void *memory, size_t bytes, int n_threads)
{
    const uint64_t *words = memory;
    const size_t n = bytes / sizeof(*words) / (size_t)n_threads;
    uint64_t sum = 0;
    double best = 0;

    for (int i = 0; i < TRIES; i++) {
        const double start = peak_clock_s();
        double gbs;

#pragma omp parallel num_threads(n_threads) reduction(+ : sum)
        sum += words_sum(words + n * (size_t)omp_get_thread_num(), n);
        gbs = (double)bytes / (peak_clock_s() - start) * 1e-9;
        best = gbs > best ? gbs : best;
    }
    return sum == 1 ? 0 : best; /* likewise */
}
