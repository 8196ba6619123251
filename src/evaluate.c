/* evaluate.c - the eval command: loss and perplexity of a model folder. */
#include "src/commands.h"

#include "src/evaluation.h"
#include "src/log.h"
#include "src/run.h"

typedef struct eval_command {
    cf_run run;
    cf_evaluation evaluation;
} eval_command;

static void carve(void *context, cf_arena *arena)
{
    eval_command *e = context;

    cf_model_carve(&e->run.model, CF_MODEL_EVAL, arena);
    cf_evaluation_carve(&e->evaluation, &e->run.model, arena);
}

static cf_status json_print(const cf_evaluation *evaluation)
{
    json_t *result = cf_evaluation_json(evaluation);
    const int failed = json_dumpf(result, stdout, JSON_REAL_PRECISION(17));

    putchar('\n');
    json_decref(result);
    if (failed == 0)
        return CF_OK;
    cf_log_error("cannot write the result as JSON: out of memory, or standard "
                 "output is closed");
    return CF_IO;
}

static cf_status evaluate(eval_command *e, const cf_options *options)
{
    const cf_evaluation_params params = {
        .dataset = e->run.dataset,
        .option = "--data",
        .max_length_tok = options->max_length_tok,
        .chunk_size_tok = options->chunk_size_tok,
    };
    cf_arena sizes;
    cf_status status = cf_evaluation_open(&params, &e->evaluation);

    if (status == CF_OK)
        status = cf_run_size(&e->run, carve, e, &e->evaluation.need, &sizes);
    if (status == CF_OK)
        status = cf_run_place(&e->run, &sizes, carve, e);
    if (status == CF_OK)
        status = cf_run_load(&e->run);
    if (status == CF_OK)
        status = cf_evaluation_run(&e->evaluation, 1);
    if (status != CF_OK)
        return status;
    if (options->json)
        return json_print(&e->evaluation);
    cf_evaluation_print(&e->evaluation);
    return CF_OK;
}

int cf_command_eval(const cf_options *options)
{
    eval_command e = {0};
    cf_status status = cf_run_open(options, NULL, &e.run);

    if (status == CF_OK) {
        status = evaluate(&e, options);
        cf_evaluation_close(&e.evaluation);
    }
    cf_run_close(&e.run);
    return cf_exit_code(status);
}
