/* close.c - arrays of results against arrays of a reference. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "tests/lib/close.h"

static double largest_finite(size_t n, const double *x)
{
    double largest = 0;

    for (size_t i = 0; i < n; i++)
        if (isfinite(x[i]) && fabs(x[i]) > largest)
            largest = fabs(x[i]);
    return largest;
}

static double error_of(double got, double want)
{
    if (isnan(got) || isnan(want))
        return isnan(got) && isnan(want) ? 0 : INFINITY;
    if (isinf(got) || isinf(want))
        return got == want ? 0 : INFINITY;
    return fabs(got - want);
}

bool close_arrays(const char *name, size_t n, const double *got,
                  const double *want, double bound, uint64_t seed)
{
    double limit = bound * largest_finite(n, want);
    double worst = -1;
    size_t at = 0;

    for (size_t i = 0; i < n; i++) {
        double error = error_of(got[i], want[i]);

        if (error > worst) {
            worst = error;
            at = i;
        }
    }
    if (worst <= limit)
        return true;
    fprintf(stderr,
            "%s[%zu of %zu]: got %.17g, want %.17g, error %.3g, bound %.3g, "
            "seed %" PRIu64 "\n",
            name, at, n, got[at], want[at], worst, limit, seed);
    return false;
}

void finite_difference(double (*loss)(const void *context), const void *context,
                       size_t n, double *x, double *d)
{
    const double h = 1e-3;

    for (size_t i = 0; i < n; i++) {
        double at = x[i];
        double value[5];

        for (int step = -2; step <= 2; step++) {
            x[i] = at + step * h;
            value[step + 2] = step != 0 ? loss(context) : 0;
        }
        x[i] = at;
        d[i] = (8 * (value[3] - value[1]) - (value[4] - value[0])) / (12 * h);
    }
}
