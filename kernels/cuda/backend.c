/* backend.c - see backend.h. */
#include "kernels/cuda/backend.h"

#include <string.h>

#include "kernels/cuda/context.h"

size_t cf_cuda_backend_bytes(void)
{
    return sizeof(cf_cuda_context);
}

/* ---- open and close ---- */

static void memory_close(cf_cuda_context *c)
{
    (void)cudaFreeHost(c->results_host);
    (void)cudaFree(c->results);
    (void)cudaFree(c->workspace);
    cf_cuda_staging_close(&c->staging);
}

/* All of it or none. */
static cudaError_t memory_open(cf_cuda_context *c, const cf_cuda_config *config)
{
    const size_t results_bytes = CF_CUDA_RESULTS_MAX * sizeof(double);
    void *results = NULL, *results_host = NULL;
    cudaError_t error;

    error = cf_cuda_staging_open(config->staging_bytes, c->stream, &c->staging);
    if (error == cudaSuccess)
        error = cudaMalloc(&c->workspace, config->workspace_bytes);
    if (error == cudaSuccess)
        error = cudaMalloc(&results, results_bytes);
    c->results = results;
    if (error == cudaSuccess)
        error =
            cudaHostAlloc(&results_host, results_bytes, cudaHostAllocDefault);
    c->results_host = results_host;
    if (error != cudaSuccess)
        memory_close(c);
    return error;
}

cf_status cf_cuda_open(void *room, const cf_cuda_config *config,
                       cf_kernels *kernels_p, const char **why_p)
{
    cf_cuda_context *c = room;
    cf_status status = CF_DEVICE;
    cudaError_t error;
    int n_devices = 0;

    memset(c, 0, sizeof(*c));
    error = cudaGetDeviceCount(&n_devices);
    if (error != cudaSuccess || n_devices == 0) {
        *why_p = error != cudaSuccess ? cudaGetErrorName(error)
                                      : "there is no CUDA device";
        return CF_DEVICE;
    }
    error = cudaSetDevice(config->device);
    if (error == cudaSuccess)
        error = cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking);
    if (error != cudaSuccess) {
        *why_p = cudaGetErrorName(error);
        return CF_DEVICE;
    }
    error = memory_open(c, config);
    if (error != cudaSuccess) {
        *why_p = cudaGetErrorName(error);
        status = error == cudaErrorMemoryAllocation ? CF_NO_MEMORY : CF_DEVICE;
        goto destroy_stream;
    }
    if (cf_cuda_lt_open(c->workspace, config->workspace_bytes, &c->lt) != 0) {
        *why_p = "cuBLASLt does not start";
        goto close_memory;
    }
    cf_cuda_table_fill(kernels_p);
    kernels_p->backend = c;
    return CF_OK;

close_memory:
    memory_close(c);
destroy_stream:
    (void)cudaStreamDestroy(c->stream);
    return status;
}

void cf_cuda_close(cf_kernels *kernels)
{
    cf_cuda_context *c = cf_cuda_context_of(kernels);

    (void)cudaStreamSynchronize(c->stream);
    cf_cuda_lt_close(&c->lt);
    memory_close(c);
    (void)cudaStreamDestroy(c->stream);
    kernels->backend = NULL;
}

/* ---- memory ---- */

cf_status cf_cuda_alloc(const cf_kernels *k, size_t bytes, void **at_p)
{
    (void)k;
    return cudaMalloc(at_p, bytes) == cudaSuccess ? CF_OK : CF_NO_MEMORY;
}

void cf_cuda_free(const cf_kernels *k, void *at)
{
    cf_cuda_note(cf_cuda_context_of(k), cudaFree(at));
}

void cf_cuda_upload(const cf_kernels *k, const void *from, size_t bytes,
                    void *to)
{
    cf_cuda_context *c = cf_cuda_context_of(k);

    cf_cuda_note(
        c, cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, c->stream));
    cf_cuda_note(c, cudaStreamSynchronize(c->stream));
}

void cf_cuda_download(const cf_kernels *k, const void *from, size_t bytes,
                      void *to)
{
    cf_cuda_context *c = cf_cuda_context_of(k);

    cf_cuda_note(
        c, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, c->stream));
    cf_cuda_note(c, cudaStreamSynchronize(c->stream));
}

size_t cf_cuda_n_refused(const cf_kernels *k)
{
    return cf_cuda_context_of(k)->n_refused;
}

/* ---- what ops share ---- */

void cf_cuda_note(cf_cuda_context *c, cudaError_t error)
{
    if (c->error == cudaSuccess)
        c->error = error;
}

void cf_cuda_launched(cf_cuda_context *c)
{
    cf_cuda_note(c, cudaGetLastError());
}

const void *cf_cuda_staged(cf_cuda_context *c, const void *from, size_t bytes)
{
    cf_cuda_place place;
    cudaError_t error = cf_cuda_staging_take(&c->staging, bytes, &place);

    if (error == cudaSuccess && bytes > 0) {
        memcpy(place.host, from, bytes);
        error = cf_cuda_staging_send(&c->staging, &place);
    }
    cf_cuda_note(c, error);
    return error == cudaSuccess ? place.device : NULL;
}

void cf_cuda_results_get(cf_cuda_context *c, size_t n, double *to)
{
    cf_cuda_note(c, cudaMemcpyAsync(c->results_host, c->results,
                                    n * sizeof(double), cudaMemcpyDeviceToHost,
                                    c->stream));
    cf_cuda_note(c, cudaStreamSynchronize(c->stream));
    memcpy(to, c->results_host, n * sizeof(double));
}

void cf_cuda_product_do(cf_cuda_context *c, const cf_cuda_product *p)
{
    if (cf_cuda_lt_run(&c->lt, c->stream, p) != 0) {
        c->n_refused++;
        cf_cuda_product_run(c->stream, p);
    }
    cf_cuda_launched(c);
}
