/* verify.c - the verify command: prove chunked == unsplit, or == a file of
 * gradients from elsewhere, on the user's own model and data.
 *
 * The step is the first one of `train` with the same options.  Both sides run
 * one after the other in the same memory; only gradients and losses of the
 * chunked side are kept.
 */
#include "src/commands.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/log.h"
#include "src/machine.h"
#include "src/run.h"
#include "src/step.h"

enum {
    EXIT_DIFFERENT = 6
};

/* One way of cutting the batch, and the memory it needs. */
typedef struct side {
    cf_step_plan_need need;
    cf_step_plan plan;
    cf_engine engine;
    double loss;
} side;

typedef struct verification {
    const cf_options *options;
    cf_run run;
    cf_batches batches;
    uint32_t *batch; /* owned: the sequences of the step */
    size_t n_batch;
    side chunked;
    side whole;
    void *chunked_gradients; /* acc, flat */
    void *workspace;         /* of the side that runs */
    size_t workspace_bytes;
    double worst;
    bool coarse; /* some of --against is no F64 */
    bool different;
} verification;

static bool runs_whole(const verification *v)
{
    return v->options->against == NULL;
}

/* ---- memory ---- */

static void side_carve(verification *v, side *s, cf_arena *arena)
{
    cf_step_plan_carve(&s->plan, &s->need, arena);
    cf_engine_carve(&s->engine, &v->run.model, &s->need.engine,
                    v->options->recompute, CF_GRADIENTS_YES, arena);
}

static size_t side_bytes(verification *v, side *s)
{
    cf_arena dry;

    cf_arena_open_dry(&dry);
    side_carve(v, s, &dry);
    return dry.overflow ? SIZE_MAX : dry.used;
}

static void carve(void *context, cf_arena *arena)
{
    verification *v = context;
    size_t whole = runs_whole(v) ? side_bytes(v, &v->whole) : 0;

    v->workspace_bytes = side_bytes(v, &v->chunked);
    if (v->workspace_bytes < whole)
        v->workspace_bytes = whole;
    cf_model_carve(&v->run.model, CF_MODEL_GRADIENTS, arena);
    v->chunked_gradients = cf_arena_take(
        arena, CF_LIFETIME_RUN, "gradients to compare",
        v->run.model.n_trained_elements, v->run.kernels.acc_bytes);
    v->workspace =
        cf_arena_take(arena, CF_LIFETIME_RUN, "step, chunked or unsplit",
                      v->workspace_bytes, 1);
}

static size_t budget_of(const verification *v)
{
    return v->options->memory_bytes > 0 ? (size_t)v->options->memory_bytes
                                        : cf_machine_memory_bytes();
}

static bool fits(verification *v)
{
    cf_arena dry;

    cf_arena_open_dry(&dry);
    carve(v, &dry);
    return !dry.overflow && dry.used <= budget_of(v);
}

/* The longest sequence whose unsplit side would fit; 0 when none does. */
static uint32_t longest_that_fits(verification *v)
{
    const side was = v->whole;
    uint32_t low = 0, high = was.need.longest_tok;

    while (low + 1 < high) {
        uint32_t middle = low + (high - low) / 2;
        cf_kv_need *kv = &v->whole.need.engine.kv;

        kv->chunk_tok = kv->sequence_tok = middle;
        kv->n_pages = cf_kv_pages(middle);
        if (fits(v))
            low = middle;
        else
            high = middle;
    }
    v->whole = was;
    return low;
}

static cf_status size_up(verification *v, cf_arena *sizes)
{
    char have[32];
    uint32_t longest_tok = 0;

    if (runs_whole(v) && !fits(v))
        longest_tok = longest_that_fits(v);
    /* It fits, or not even the shortest would: then it is not the length. */
    if (longest_tok == 0)
        return cf_run_size(&v->run, carve, v, &v->chunked.need, sizes);
    cf_log_error("the unsplit side, one sequence of %u tokens, does not fit "
                 "%s of memory: the longest sequence that would has %u tokens, "
                 "try --max-length %u",
                 (unsigned)v->whole.need.longest_tok,
                 cf_bytes_format(budget_of(v), have, sizeof(have)),
                 (unsigned)longest_tok, (unsigned)longest_tok);
    return CF_NO_MEMORY;
}

/* ---- the two sides ---- */

/* The sequences of the first step of train. */
static cf_status batch_choose(verification *v)
{
    const uint32_t *targets = cf_dataset_target_counts(v->run.dataset);

    v->batch = malloc(v->batches.global_batch * sizeof(*v->batch));
    if (v->batch == NULL)
        return cf_log_no_memory("the first batch");
    v->n_batch = cf_batches_at(&v->batches, 1, v->batch);
    for (size_t i = 0; i < v->n_batch; i++)
        if (targets[v->batch[i]] > 0)
            return CF_OK;
    cf_log_error("the first batch, %zu sequences, has no target: use a larger "
                 "--global-batch",
                 v->n_batch);
    return CF_MALFORMED;
}

static cf_status bounds_set(verification *v)
{
    const cf_options *o = v->options;
    cf_step_plan_params params = {
        .n_batch = v->n_batch,
        .chunk_size_tok = o->chunk_size_tok,
        .schedule = {.n_stages = 1,
                     .retained_chunks_max = o->retained_chunks_max}};
    cf_status status = cf_step_plan_bound(v->run.dataset, v->batch, v->n_batch,
                                          &params, &v->chunked.need);

    if (status != CF_OK || !runs_whole(v))
        return status;
    params.schedule.kind = CF_SCHEDULE_1F1B; /* every sequence is one chunk */
    return cf_step_plan_bound(v->run.dataset, v->batch, v->n_batch, &params,
                              &v->whole.need);
}

/* Loss and gradients of one side, in the model's gradients. */
static cf_status side_run(verification *v, side *s)
{
    const cf_step step = {.dataset = v->run.dataset,
                          .need = &s->need,
                          .model = &v->run.model,
                          .engine = &s->engine,
                          .plan = &s->plan};
    cf_arena workspace = {.base = v->workspace, .capacity = v->workspace_bytes};
    cf_status status;

    memset(v->workspace, 0, v->workspace_bytes);
    side_carve(v, s, &workspace);
    s->plan.n_batch = v->n_batch;
    memcpy(s->plan.batch, v->batch, v->n_batch * sizeof(*v->batch));
    status = cf_dataset_prepare(v->run.dataset, v->batch, v->n_batch);
    if (status != CF_OK)
        return status;
    status = cf_step_plan_build(&s->plan, v->run.dataset, &s->need);
    if (status != CF_OK)
        return status;
    status = cf_step_gradients(&step, 1, &s->loss);
    if (status == CF_OK)
        cf_model_finish_gradients(&v->run.model);
    return status;
}

/* ---- comparing ---- */

static double element(const void *x, size_t i, cf_compute compute)
{
    return compute == CF_COMPUTE_FP64 ? ((const double *)x)[i]
                                      : (double)((const float *)x)[i];
}

/* The larger one; once one is not a number, that. */
static double larger(double a, double b)
{
    return isnan(a) || b <= a ? a : b;
}

/* max |a - b| / max |b|, counted into the verdict; a maximum of 0 asks for
 * equality, and what is not a number is different. */
static void compare(verification *v, const char *name, size_t n,
                    cf_compute compute, const void *a, const void *b)
{
    double difference = 0, scale = 0, relative;

    for (size_t i = 0; i < n; i++) {
        double x = element(a, i, compute), y = element(b, i, compute);

        difference = larger(difference, fabs(x - y));
        scale = larger(scale, fabs(y));
    }
    relative = difference == 0 ? 0 : difference / scale;
    printf("%-56s %.3e\n", name, relative);
    v->worst = larger(v->worst, relative);
}

/* The gradient of a trained parameter: of the chunked side, kept aside, and in
 * the model's own gradients. */
static void gradient_compare(verification *v, const cf_param *p)
{
    const cf_model *model = &v->run.model;

    compare(v, p->name, p->n, v->run.kernels.compute,
            cf_model_at(model, v->chunked_gradients, p),
            cf_model_at(model, model->gradients, p));
}

static void whole_compare(verification *v)
{
    const cf_model *model = &v->run.model;

    compare(v, "loss", 1, CF_COMPUTE_FP64, &v->chunked.loss, &v->whole.loss);
    for (size_t i = 0; i < model->n_params; i++)
        if (model->params[i].trained)
            gradient_compare(v, &model->params[i]);
}

/* The file's gradient of a parameter, into the model's own gradients, which the
 * chunked side has already left. */
static cf_status file_gradient_read(verification *v, const cf_tensors *file,
                                    const cf_param *p)
{
    const cf_tensor *tensor = cf_tensors_find(file, p->name);
    const cf_kernels *k = &v->run.kernels;

    if (tensor == NULL) {
        cf_log_error("%s: there is no tensor '%s': --against wants the "
                     "gradient of every trained parameter, under its name",
                     v->options->against, p->name);
        return CF_MALFORMED;
    }
    if (tensor->n_dims != p->n_dims ||
        memcmp(tensor->dims, p->dims, p->n_dims * sizeof(p->dims[0])) != 0) {
        cf_log_error("%s: tensor '%s' has not the shape of the parameter of "
                     "that name",
                     v->options->against, p->name);
        return CF_MALFORMED;
    }
    v->coarse |= tensor->dtype != CF_DTYPE_F64;
    cf_tensor_read(tensor, 0, p->n, k->compute,
                   cf_model_at(&v->run.model, v->run.model.gradients, p));
    return CF_OK;
}

static cf_status names_check(const verification *v, const cf_tensors *file)
{
    const cf_model *model = &v->run.model;

    for (size_t i = 0; i < cf_tensors_count(file); i++) {
        const char *name = cf_tensors_at(file, i)->name;
        size_t p = 0;

        while (p < model->n_params && strcmp(model->params[p].name, name) != 0)
            p++;
        if (p < model->n_params)
            continue;
        cf_log_error("%s: tensor '%s' is no parameter of the model",
                     v->options->against, name);
        return CF_MALFORMED;
    }
    return CF_OK;
}

static cf_status file_compare(verification *v, const cf_tensors *file)
{
    const cf_model *model = &v->run.model;
    cf_status status = CF_OK;

    for (size_t i = 0; i < model->n_params && status == CF_OK; i++) {
        const cf_param *p = &model->params[i];

        if (!p->trained)
            continue;
        status = file_gradient_read(v, file, p);
        if (status == CF_OK)
            gradient_compare(v, p);
    }
    return status;
}

/* ---- the verdict ---- */

static double tolerance_of(const verification *v)
{
    if (v->options->tolerance >= 0)
        return v->options->tolerance;
    switch (v->options->compute) {
    case CF_COMPUTE_BF16:
        return 2e-2;
    case CF_COMPUTE_FP32:
        return 1e-4;
    case CF_COMPUTE_FP64:
        break;
    }
    return v->coarse ? 1e-4 : 1e-8;
}

static void verdict_print(verification *v)
{
    static const char *const computes[] = {
        [CF_COMPUTE_FP32] = "fp32",
        [CF_COMPUTE_FP64] = "fp64",
        [CF_COMPUTE_BF16] = "bf16",
    };

    v->different = !(v->worst <= tolerance_of(v));
    printf("verify: chunked %s %s (max rel %.1e, %s)\n",
           v->different ? "!=" : "==",
           runs_whole(v) ? "unsplit" : v->options->against, v->worst,
           computes[v->options->compute]);
}

/* ---- the command ---- */

static cf_status against_whole(verification *v)
{
    cf_status status = side_run(v, &v->whole);

    if (status != CF_OK)
        return status;
    whole_compare(v);
    verdict_print(v);
    return CF_OK;
}

static cf_status against_file(verification *v)
{
    cf_tensors *file;
    cf_status status = cf_tensors_open_file(v->options->against, &file);

    if (status != CF_OK)
        return status;
    status = names_check(v, file);
    if (status == CF_OK)
        status = file_compare(v, file);
    if (status == CF_OK)
        verdict_print(v);
    cf_tensors_close(file);
    return status;
}

static cf_status verify(verification *v)
{
    cf_arena sizes;
    cf_status status = cf_batches_open(v->run.dataset, v->options, &v->batches);

    if (status == CF_OK)
        status = batch_choose(v);
    if (status == CF_OK)
        status = bounds_set(v);
    if (status == CF_OK)
        status = size_up(v, &sizes);
    if (status == CF_OK)
        status = cf_run_place(&v->run, &sizes, carve, v);
    if (status == CF_OK)
        status = cf_run_load(&v->run);
    if (status == CF_OK)
        status = side_run(v, &v->chunked);
    if (status != CF_OK)
        return status;
    printf("loss %.17g\n", v->chunked.loss);
    v->run.kernels.copy(
        &v->run.kernels, v->run.model.gradients, v->chunked_gradients,
        v->run.model.n_trained_elements * v->run.kernels.acc_bytes);
    return runs_whole(v) ? against_whole(v) : against_file(v);
}

int cf_command_verify(const cf_options *options)
{
    verification v = {.options = options};
    cf_status status = cf_run_open(options, NULL, &v.run);

    if (status == CF_OK) {
        status = verify(&v);
        free(v.batch);
        cf_batches_close(&v.batches);
    }
    cf_run_close(&v.run);
    if (status == CF_OK && v.different)
        return EXIT_DIFFERENT;
    return cf_exit_code(status);
}
