/* peaks.h - what this machine reaches at best: multiplying and adding in
 * registers, and reading memory.
 */
#ifndef PEAKS_H
#define PEAKS_H

#include <stdbool.h>
#include <stddef.h>

typedef enum peak_isa {
    PEAK_AVX2,
    PEAK_AVX512,
    PEAK_ISAS
} peak_isa;

const char *peak_isa_str(peak_isa isa);
bool peak_isa_is_there(peak_isa isa);

/* GFLOP/s of n_threads that multiply and add in registers, a loop of about
 * `seconds`, the best of some. */
double peak_gflops(peak_isa isa, bool is_double, int n_threads, double seconds);

/* GB/s of n_threads that read `bytes` from `memory` in turns: the best of
 * some. */
double peak_read_gbs(const void *memory, size_t bytes, int n_threads);

/* Of a clock that only goes forward. */
double peak_clock_s(void);

#endif
