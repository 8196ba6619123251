/* rope.cu - the table of rotations.
 *
 * At position 4M the angle of the fastest pair is 4e6 radians; rounded to a
 * double it is off by up to 5e-10.  The rounding error of the product is known
 * exactly from one FMA, and only its first order matters.
 */
#include "kernels/cuda/common.cuh"

static __global__ void rope_table(size_t n, size_t n_freq,
                                  const uint32_t *positions,
                                  const double *inv_freq, double factor,
                                  float *cosines, float *sines)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;

    if (i >= n)
        return;

    const double position = positions[i / n_freq];
    const double frequency = inv_freq[i % n_freq];
    const double angle = position * frequency;
    const double error = fma(position, frequency, -angle);
    const double c = cos(angle), s = sin(angle);

    cosines[i] = (float)(factor * (c - error * s));
    sines[i] = (float)(factor * (s + error * c));
}

void cf_cuda_rope_table(cf_cuda_stream stream, size_t n_tok,
                        const uint32_t *positions, size_t n_freq,
                        const double *inv_freq, double factor, void *cos,
                        void *sin)
{
    const size_t n = n_tok * n_freq;

    if (n > 0)
        CF_LAUNCH(rope_table, cf_cuda_n_blocks(n, THREADS), THREADS, 0, stream,
                  n, n_freq, positions, inv_freq, factor, (float *)cos,
                  (float *)sin);
}
