/* rope.c - the table of rotations.
 *
 * At position 4M the angle of the fastest pair is 4e6 radians; rounded to a
 * double it is off by up to 5e-10.  The rounding error of the product is known
 * exactly from one FMA, and only its first order matters, so the table is right
 * to the last bits of a double.
 */
#include "kernels/cpu/loops.h"

static void rotation(double position, double inv_freq, double factor,
                     acc *cos_p, acc *sin_p)
{
    double angle = position * inv_freq;
    double error = fma(position, inv_freq, -angle);
    double c = cos(angle);
    double s = sin(angle);

    *cos_p = (acc)(factor * (c - error * s));
    *sin_p = (acc)(factor * (s + error * c));
}

void CF_CPU(rope_table)(const cf_kernels *k, size_t n_tok,
                        const uint32_t *positions, size_t n_freq,
                        const double *inv_freq, double factor, void *cos,
                        void *sin)
{
    acc *c = cos;
    acc *s = sin;

    (void)k;
#pragma omp parallel for schedule(static) if (n_tok * n_freq > CF_PARALLEL_MIN)
    for (size_t row = 0; row < n_tok; row++)
        for (size_t i = 0; i < n_freq; i++)
            rotation(positions[row], inv_freq[i], factor, c + row * n_freq + i,
                     s + row * n_freq + i);
}
