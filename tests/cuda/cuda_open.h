/* cuda_open.h - the CUDA backend on the simulated GPU, for tests. */
#ifndef CUDA_OPEN_H
#define CUDA_OPEN_H

#include "kernels/kernels.h"

/* By its module's table; the test fails when it does not open.  Its room is never
 * given back: tests run in processes of their own. */
cf_kernels cuda_open(size_t staging_bytes);

#endif
