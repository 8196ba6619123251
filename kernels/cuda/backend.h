/* backend.h - the CUDA backend: one device, one stream, one op table.
 *
 * act is bf16, acc is float.  In kernels.h every void pointer is the backend's
 * memory, here the device's: from cf_cuda_alloc, or inside of it.  Pointers with a
 * type are the host's: ids, rows, positions, pieces and their tables of pages;
 * losses and partial sums come back to the host.
 *
 * (1) An op queues its work and returns.  Those that give something to the host
 *     (head_*, sum_squares, first_bad_row) wait for it.
 * (2) GEMMs read a weight's packed copy: W in bf16, and behind it the bias.
 * (3) After cf_cuda_open nothing is allocated any more, on the host or the device.
 * (4) Not for two threads at a time.
 */
#ifndef CF_CUDA_BACKEND_H
#define CF_CUDA_BACKEND_H

#include "kernels/kernels.h"

typedef struct cf_cuda_config {
    int device;
    /* For arrays from the host: one op may bring half of it. */
    size_t staging_bytes;
    /* Of cuBLASLt: 32 MiB suit GPUs from compute capability 9.0 on. */
    size_t workspace_bytes;
} cf_cuda_config;

/* What cf_cuda_open needs of host memory, aligned as malloc does it. */
size_t cf_cuda_backend_bytes(void);

/* Room is borrowed until cf_cuda_close.  Not CF_OK: *why_p says why (static
 * text). */
CF_MUST_USE cf_status cf_cuda_open(void *room, const cf_cuda_config *config,
                                   cf_kernels *kernels_p, const char **why_p);
void cf_cuda_close(cf_kernels *kernels);

/* Device memory, its content undefined.  CF_NO_MEMORY. */
CF_MUST_USE cf_status cf_cuda_alloc(const cf_kernels *k, size_t bytes,
                                    void **at_p);
void cf_cuda_free(const cf_kernels *k, void *at);

/* Between host and device, behind all ops so far; they wait until it is done. */
void cf_cuda_upload(const cf_kernels *k, const void *from, size_t bytes,
                    void *to);
void cf_cuda_download(const cf_kernels *k, const void *from, size_t bytes,
                      void *to);

/* Products that cuBLASLt refused, and the plain kernel did, so far. */
size_t cf_cuda_n_refused(const cf_kernels *k);

#endif
