/* trace.c - see trace.h. */
#include "src/trace.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/clock.h"
#include "src/exchange.h"
#include "src/files.h"
#include "src/log.h"

/* ---- open and close ---- */

static void name_lanes(const cf_trace *trace)
{
    (void)fputs("[\n", trace->file);
    for (uint32_t replica = 0; replica < trace->grid.n_replicas; replica++) {
        (void)fprintf(
            trace->file,
            "{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": %u, "
            "\"args\": {\"name\": \"replica %u\"}},\n",
            (unsigned)replica, (unsigned)replica);
        for (uint32_t stage = 0; stage < trace->grid.n_stages; stage++)
            (void)fprintf(trace->file,
                          "{\"name\": \"thread_name\", \"ph\": \"M\", \"pid\": "
                          "%u, \"tid\": %u, \"args\": {\"name\": \"stage "
                          "%u\"}},\n",
                          (unsigned)replica, (unsigned)stage, (unsigned)stage);
    }
}

static cf_status file_open(cf_trace *trace)
{
    trace->file = fopen(trace->path, "we");
    if (trace->file == NULL)
        return cf_io_error(trace->path, "create it", 0);
    name_lanes(trace);
    return CF_OK;
}

cf_status cf_trace_open(const char *path, cf_comm *comm, const cf_grid *grid,
                        size_t capacity, cf_trace *trace)
{
    const bool is_root = cf_comm_rank(comm) == 0;

    *trace = (cf_trace){.grid = *grid, .capacity = capacity};
    if (path == NULL)
        return CF_OK;
    trace->comm = comm;
    trace->begin_s = cf_clock_s();
    trace->path = strdup(path);
    trace->ops = calloc(capacity + 1, sizeof(*trace->ops));
    trace->counts = calloc(cf_comm_size(comm), sizeof(*trace->counts));
    if (is_root)
        trace->received = calloc(capacity + 1, sizeof(*trace->received));
    if (trace->path == NULL || trace->ops == NULL || trace->counts == NULL ||
        (is_root && trace->received == NULL))
        return cf_log_no_memory("the trace");
    return is_root ? file_open(trace) : CF_OK;
}

cf_status cf_trace_close(cf_trace *trace)
{
    cf_status status = CF_OK;

    if (trace->file != NULL) {
        /* A last event without a comma behind it. */
        (void)fputs("{\"name\": \"end\", \"ph\": \"M\", \"pid\": 0}\n]\n",
                    trace->file);
        errno = 0;
        if (ferror(trace->file) | (fclose(trace->file) != 0))
            status = cf_io_error(trace->path, "write it", 0);
    }
    free(trace->received);
    free(trace->counts);
    free(trace->ops);
    free(trace->path);
    *trace = (cf_trace){0};
    return status;
}

/* ---- a step ---- */

void cf_trace_op_done(cf_trace *trace, double start_s, double end_s)
{
    if (trace->comm == NULL || trace->n_ops == trace->capacity)
        return;
    trace->ops[trace->n_ops++] =
        (cf_trace_op){.start_s = start_s, .end_s = end_s};
}

/* What ran when is known by now; what it was, the list says. */
static void ops_describe(cf_trace *trace, const cf_step_plan *plan)
{
    const cf_schedule *s = &plan->schedule;
    const cf_op *list = s->ops + s->first_op[trace->grid.stage];

    for (size_t i = 0; i < trace->n_ops; i++) {
        const cf_chunk *chunk = &plan->chunks.chunks[list[i].chunk];
        cf_trace_op *op = &trace->ops[i];

        op->op = list[i];
        op->n_tok = chunk->n_tok;
        op->prefix_tok = chunk->prefix_tok;
        op->group = chunk->group;
    }
}

static const char *category(cf_op_kind kind)
{
    static const char *const names[CF_OP_KIND_COUNT] = {
        [CF_OP_FORWARD] = "forward",
        [CF_OP_FORWARD_KEEP] = "forward, kept",
        [CF_OP_RECOMPUTE] = "recompute",
        [CF_OP_BACKWARD] = "backward",
        [CF_OP_SEND_ACT] = "send activations",
        [CF_OP_RECV_ACT] = "receive activations",
        [CF_OP_SEND_GRAD] = "send gradients",
        [CF_OP_RECV_GRAD] = "receive gradients",
    };

    return names[kind];
}

static void events_write(const cf_trace *trace, uint32_t rank, uint64_t step,
                         const cf_trace_op *ops, size_t n_ops)
{
    const unsigned replica = rank / trace->grid.n_stages;
    const unsigned stage = rank % trace->grid.n_stages;
    const double us = 1e6;

    for (size_t i = 0; i < n_ops; i++) {
        char name[32];

        cf_op_format(&ops[i].op, stage, name, sizeof(name));
        (void)fprintf(
            trace->file,
            "{\"name\": \"%s\", \"cat\": \"%s\", \"ph\": \"X\", \"pid\": %u, "
            "\"tid\": %u, \"ts\": %.17g, \"dur\": %.17g, \"args\": {\"step\": "
            "%" PRIu64 ", \"chunk\": %u, \"tokens\": %u, \"prefix\": %u, "
            "\"group\": %u}},\n",
            name, category(ops[i].op.kind), replica, stage,
            (trace->step_s + ops[i].start_s) * us,
            (ops[i].end_s - ops[i].start_s) * us, step,
            (unsigned)ops[i].op.chunk, (unsigned)ops[i].n_tok,
            (unsigned)ops[i].prefix_tok, (unsigned)ops[i].group);
    }
}

/* Rank 0: the ops of all ranks, in their order. */
static cf_status step_collect(cf_trace *trace, uint64_t step)
{
    events_write(trace, 0, step, trace->ops, trace->n_ops);
    for (uint32_t rank = 1; rank < cf_comm_size(trace->comm); rank++) {
        const size_t n = (size_t)trace->counts[rank];
        cf_request request = {0};
        cf_status status = cf_comm_recv(trace->comm, rank, trace->received,
                                        n * sizeof(*trace->received), &request);

        if (status == CF_OK)
            status = cf_comm_wait(trace->comm, &request);
        if (status != CF_OK)
            return status;
        events_write(trace, rank, step, trace->received, n);
    }
    errno = 0;
    if (fflush(trace->file) != 0)
        return cf_io_error(trace->path, "write it", 0);
    return CF_OK;
}

cf_status cf_trace_step(cf_trace *trace, uint64_t step,
                        const cf_step_plan *plan, double begin_s)
{
    const uint64_t mine = trace->n_ops;
    cf_request request = {0};
    cf_status status;

    if (trace->comm == NULL)
        return CF_OK;
    trace->step_s = begin_s - trace->begin_s;
    ops_describe(trace, plan);
    cf_comm_note(trace->comm, step, UINT32_MAX, "collect the trace");
    status = cf_comm_gather(trace->comm, &mine, sizeof(mine), trace->counts);
    if (status == CF_OK && cf_comm_rank(trace->comm) == 0)
        status = step_collect(trace, step);
    else if (status == CF_OK)
        status = cf_comm_send(trace->comm, 0, trace->ops,
                              trace->n_ops * sizeof(*trace->ops), &request);
    if (status == CF_OK)
        status = cf_comm_wait(trace->comm, &request);
    trace->n_ops = 0;
    return status;
}
