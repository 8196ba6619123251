/* run.c - see run.h. */
#include "src/run.h"

#include <stdio.h>
#include <string.h>

#include "src/log.h"
#include "src/machine.h"
#include "src/threads.h"

static cf_status backend_open(const cf_options *options, cf_kernels *kernels)
{
    const char *why = "";
    cf_status status;

    if (options->backend == CF_BACKEND_CUDA) {
        cf_log_error("--backend cuda: this build has no CUDA backend, use "
                     "--backend cpu");
        return CF_INVALID;
    }
    status = cf_cpu_kernels(options->compute, kernels, &why);
    if (status != CF_OK)
        cf_log_error("the CPU backend cannot run: %s", why);
    return status;
}

cf_status cf_run_open(const cf_options *options, cf_run *run)
{
    cf_status status;

    memset(run, 0, sizeof(*run));
    run->options = options;
    status = cf_threads_open(options, NULL);
    if (status == CF_OK)
        status = backend_open(options, &run->kernels);
    if (status != CF_OK)
        return status;
    status = cf_model_open(options->model, &run->kernels, &run->model);
    if (status != CF_OK)
        return status;
    if (options->freeze != NULL)
        status = cf_model_freeze(&run->model, options->freeze);
    if (status == CF_OK)
        status = cf_dataset_open(options->data, options->n_data,
                                 run->model.config.vocab, &run->dataset);
    if (status != CF_OK)
        cf_model_close(&run->model);
    return status;
}

void cf_run_close(cf_run *run)
{
    cf_arena_close(&run->arena);
    cf_dataset_close(run->dataset);
    cf_model_close(&run->model);
}

cf_status cf_run_size(const cf_run *run, cf_run_carver carve, void *command,
                      const cf_step_plan_need *need, cf_arena *sizes)
{
    const cf_options *options = run->options;
    const size_t budget = options->memory_bytes > 0
                              ? (size_t)options->memory_bytes
                              : cf_machine_memory_bytes();
    char have[32], want[32], retain[64] = "";

    cf_arena_open_dry(sizes);
    carve(command, sizes);
    if (!sizes->overflow && sizes->used <= budget)
        return CF_OK;
    if (need->params.retained_chunks_max > 1)
        snprintf(retain, sizeof(retain), " or --retain-chunks (now %u)",
                 (unsigned)need->params.retained_chunks_max);
    cf_log_error(
        "needs %s of memory, %s %s: the longest sequence has %u "
        "tokens; try a smaller --chunk-size (now %u)%s, or --max-length",
        sizes->overflow ? "more than can be counted"
                        : cf_bytes_format(sizes->used, want, sizeof(want)),
        options->memory_bytes > 0 ? "--memory allows" : "this machine has",
        cf_bytes_format(budget, have, sizeof(have)),
        (unsigned)need->longest_tok, (unsigned)need->chunk_size_tok, retain);
    return CF_NO_MEMORY;
}

cf_status cf_run_place(cf_run *run, const cf_arena *sizes, cf_run_carver carve,
                       void *command)
{
    cf_status status = cf_arena_open(sizes->used, &run->arena);

    if (status == CF_OK)
        carve(command, &run->arena);
    return status;
}

int cf_exit_code(cf_status status)
{
    switch (status) {
    case CF_OK:
        return 0;
    case CF_INVALID:
        return 2;
    case CF_MALFORMED:
        return 3;
    case CF_NO_MEMORY:
        return 4;
    case CF_COMM:
        return 5;
    case CF_NOT_FINITE:
        return 7;
    case CF_NO_SPACE:
    case CF_OVERFLOW:
    case CF_DEADLOCK:
    case CF_IO:
    case CF_DEVICE:
    case CF_STATUS_COUNT:
        break;
    }
    return 1;
}
