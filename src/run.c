/* run.c - see run.h. */
#include "src/run.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "src/adapter.h"
#include "src/adapter_options.h"
#include "src/forecast.h"
#include "src/log.h"
#include "src/machine.h"
#include "src/stage_split.h"
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

/* ---- opening ---- */

static cf_status grid_open(cf_run *run)
{
    const cf_options *options = run->options;
    const uint32_t n_stages =
        options->pipeline_stages > 0 ? options->pipeline_stages : 1;

    run->grid = (cf_grid){.n_stages = 1, .n_replicas = 1};
    if (run->comm == NULL)
        return CF_OK;
    return cf_grid_open(run->comm, n_stages, &run->grid);
}

static cf_status stage_of(const cf_run *run, uint32_t index, cf_stage *stage_p)
{
    /* Without data nothing is split. */
    return cf_stage_split(
        run->model.config.n_layers, run->grid.n_stages,
        run->options->layers_per_stage,
        run->dataset == NULL
            ? cf_forecast_stage_costs_of(&run->model, NULL, 0)
            : cf_forecast_stage_costs(&run->model, run->dataset),
        index, stage_p);
}

/* The adapter beside the model, if there is to be one. */
static cf_status adapter_open(cf_run *run)
{
    cf_adapter_spec spec;
    cf_status status = cf_adapter_options_spec(run->options, &spec);

    if (status != CF_OK || spec.rank == 0)
        return status;
    return cf_model_adapt(&run->model, &spec);
}

/* Of the model's table, what this rank holds and updates. */
static cf_status part_take(cf_run *run)
{
    cf_stage stage;
    cf_status status = stage_of(run, run->grid.stage, &stage);

    if (status != CF_OK)
        return status;
    cf_model_take_stage(&run->model, &stage);
    if (run->options->freeze != NULL)
        status = cf_model_freeze(&run->model, run->options->freeze);
    if (status == CF_OK)
        cf_model_take_shard(&run->model, run->grid.replica,
                            run->grid.n_replicas);
    run->own_grid = run->grid;
    run->own_stage = stage;
    return status;
}

void cf_run_retake_part(cf_run *run)
{
    run->grid = run->own_grid;
    cf_model_take_stage(&run->model, &run->own_stage);
    cf_model_take_shard(&run->model, run->grid.replica, run->grid.n_replicas);
}

cf_status cf_run_open(const cf_options *options, cf_comm *comm, cf_run *run)
{
    cf_status status;

    memset(run, 0, sizeof(*run));
    run->options = options;
    run->comm = comm;
    /* First, since all ranks call it, and know nothing yet of the others'
     * options. */
    status = cf_threads_open(options, comm);
    if (status == CF_OK)
        status = grid_open(run);
    if (status != CF_OK)
        return status;
    status = backend_open(options, &run->kernels);
    if (status == CF_OK)
        status = cf_model_open(options->model, &run->kernels, &run->model);
    if (status == CF_OK)
        status = adapter_open(run);
    if (status == CF_OK && options->n_data > 0)
        status = cf_dataset_open(options->data, options->n_data,
                                 run->model.config.vocab, &run->dataset);
    if (status == CF_OK)
        status = part_take(run);
    return status;
}

void cf_run_close(cf_run *run)
{
    cf_arena_close(&run->arena);
    cf_dataset_close(run->dataset);
    cf_model_close(&run->model);
}

const char *cf_run_stages_format(const cf_run *run, char *buf, size_t size)
{
    size_t n = 0;

    buf[0] = '\0';
    for (uint32_t i = 0; i < run->grid.n_stages && n < size; i++) {
        cf_stage stage;

        if (stage_of(run, i, &stage) == CF_OK)
            n += (size_t)snprintf(
                buf + n, size - n, "%s%u-%u", i > 0 ? ", " : "",
                (unsigned)stage.first_layer, (unsigned)stage.end_layer - 1);
    }
    return buf;
}

const char *cf_run_describe(const cf_run *run, char *buf, size_t size)
{
    const cf_model_config *c = &run->model.config;
    const cf_dataset *dataset = run->dataset;

    (void)snprintf(buf, size,
                   "layers of the model: %u\nhidden size of the model: %u\n"
                   "vocabulary of the model: %u\nsequences of the data: %zu\n"
                   "hash of the data: %016" PRIx64 "\n"
                   "rank of the adapter: %u\n",
                   (unsigned)c->n_layers, (unsigned)c->hidden,
                   (unsigned)c->vocab, cf_dataset_count(dataset),
                   cf_dataset_hash(dataset), (unsigned)run->model.adapter.rank);
    return buf;
}

/* ---- memory ---- */

static uint32_t ranks_here(const cf_run *run)
{
    return run->comm != NULL ? cf_comm_node_size(run->comm) : 1;
}

size_t cf_run_budget(const cf_run *run)
{
    if (run->options->memory_bytes > 0)
        return (size_t)run->options->memory_bytes;
    return cf_machine_memory_bytes() / ranks_here(run);
}

const char *cf_run_budget_str(const cf_run *run)
{
    if (run->options->memory_bytes > 0)
        return "--memory allows";
    return ranks_here(run) > 1 ? "this machine has for each of its ranks"
                               : "this machine has";
}

cf_status cf_run_size(const cf_run *run, cf_run_carver carve, void *command,
                      const cf_step_plan_need *need, cf_arena *sizes)
{
    const size_t budget = cf_run_budget(run);
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
        "tokens; try a smaller --chunk-size (now %u)%s, or %s",
        sizes->overflow ? "more than can be counted"
                        : cf_bytes_format(sizes->used, want, sizeof(want)),
        cf_run_budget_str(run), cf_bytes_format(budget, have, sizeof(have)),
        (unsigned)need->longest_tok, (unsigned)need->chunk_size_tok, retain,
        run->dataset != NULL ? "--max-length" : "--max-new-tokens");
    return CF_NO_MEMORY;
}

cf_status cf_run_place(cf_run *run, const cf_arena *sizes, cf_run_carver carve,
                       void *command)
{
    cf_status status = cf_arena_open(sizes->used, &run->arena);

    if (status == CF_OK)
        status = cf_machine_check_gemm();
    if (status == CF_OK)
        carve(command, &run->arena);
    return status;
}

cf_status cf_run_load(cf_run *run)
{
    cf_model *model = &run->model;
    cf_status status = cf_model_load(model, run->options->model);

    if (status != CF_OK || !cf_model_has_adapter(model))
        return status;
    if (run->options->adapter != NULL)
        return cf_adapter_load(model, run->options->adapter);
    cf_adapter_init(model, run->options->seed);
    return CF_OK;
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
