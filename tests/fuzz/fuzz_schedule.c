/* fuzz_schedule.c - any lengths to a plan and a schedule that pass their checks.
 *
 * (1) What has a bound can be built, and passes.
 * (2) Equal inputs give equal bytes, whatever was in the arrays.
 * (3) Executed, each stage runs each chunk backward once; simulated, it ends.
 * (4) The text is as long as it says.
 */
#include <chunkflow/execute.h>

#include "tests/fuzz/plan_input.h"

#include <stdlib.h>
#include <string.h>

enum {
    SEQS_MAX = 12 /* many fast runs; large batches are check_*_property's */
};

/* ---- (3) ---- */

typedef struct counting_engine {
    uint8_t *n_backwards; /* [n_chunks] */
} counting_engine;

static cf_status count_forward(void *engine, const cf_chunk_plan *plan,
                               uint32_t chunk, cf_keep keep)
{
    const counting_engine *counting = engine;

    (void)keep;
    fuzz_require(chunk < plan->n_chunks, "there is such a chunk");
    fuzz_require(counting->n_backwards[chunk] == 0, "forwards come first");
    return CF_OK;
}

static cf_status count_backward(void *engine, const cf_chunk_plan *plan,
                                uint32_t chunk)
{
    const counting_engine *counting = engine;

    fuzz_require(chunk < plan->n_chunks, "there is such a chunk");
    counting->n_backwards[chunk]++;
    return CF_OK;
}

static cf_status pass_message(void *engine, const cf_chunk_plan *plan,
                              uint32_t chunk)
{
    (void)engine;
    fuzz_require(chunk < plan->n_chunks, "there is such a chunk");
    return CF_OK;
}

static void check_execution(const cf_chunk_plan *plan,
                            const cf_schedule *schedule)
{
    static const cf_engine_ops ops = {
        .forward = count_forward,
        .backward = count_backward,
        .send_act = pass_message,
        .recv_act = pass_message,
        .send_grad = pass_message,
        .recv_grad = pass_message,
    };

    for (uint32_t s = 0; s < schedule->params.n_stages; s++) {
        counting_engine engine = {fuzz_allocate(plan->n_chunks, 1, 0)};
        cf_op_ref where;

        fuzz_require(cf_execute(plan, schedule, s, &ops, &engine, &where) ==
                         CF_OK,
                     "a schedule can be executed");
        for (size_t c = 0; c < plan->n_chunks; c++)
            fuzz_require(engine.n_backwards[c] == 1, "one backward a chunk");
        free(engine.n_backwards);
    }
}

/* ---- (4) ---- */

static void check_text(const cf_schedule *schedule)
{
    const size_t n = cf_schedule_format(schedule, NULL, 0);
    char *text = fuzz_allocate(n + 1, 1, 'x');

    fuzz_require(cf_schedule_format(schedule, text, n + 1) == n &&
                     strlen(text) == n,
                 "the text is as long as it says");
    (void)cf_schedule_format(schedule, text, n / 2);
    fuzz_require(n < 2 || text[n / 2 - 1] == '\0', "text that is cut ends");
    free(text);
}

/* ---- (1) and (2) ---- */

static bool same(const void *a, const void *b, size_t bytes)
{
    return bytes == 0 || memcmp(a, b, bytes) == 0;
}

static void check_same_plans(const cf_chunk_plan *a, const cf_chunk_plan *b)
{
    fuzz_require(
        a->n_chunks == b->n_chunks && a->n_pieces == b->n_pieces &&
            a->n_groups == b->n_groups &&
            same(a->chunks, b->chunks, a->n_chunks * sizeof(*a->chunks)) &&
            same(a->pieces, b->pieces, a->n_pieces * sizeof(*a->pieces)),
        "equal lengths give equal plans");
}

static void check_same_schedules(const cf_schedule *a, const cf_schedule *b)
{
    const size_t n_stages = a->params.n_stages;

    fuzz_require(a->first_op[n_stages] == a->ops_capacity,
                 "the bound is exact for ops");
    fuzz_require(
        same(a->first_op, b->first_op, (n_stages + 1) * sizeof(*a->first_op)) &&
            same(a->ops, b->ops, a->ops_capacity * sizeof(*a->ops)),
        "equal plans give equal schedules");
}

static void check_schedules(const cf_chunk_plan *plan,
                            cf_schedule_params params)
{
    cf_schedule schedule = fuzz_schedule_open(plan, params, 0);
    cf_schedule again = fuzz_schedule_open(plan, params, 0xff);
    cf_op_ref where;

    fuzz_require(cf_schedule_check(plan, &schedule, &where) == CF_OK &&
                     where.rule == NULL,
                 "a schedule that was built passes");
    check_same_schedules(&schedule, &again);
    check_execution(plan, &schedule);
    fuzz_require(fuzz_simulate(plan, &schedule), "a schedule can be simulated");
    check_text(&schedule);
    fuzz_schedule_close(&schedule);
    fuzz_schedule_close(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    fuzz_input input = {bytes, n};
    plan_input lengths = plan_input_open(&input, SEQS_MAX);
    cf_chunk_plan plan, again;

    if (fuzz_plan_open(&lengths, 0, &plan) == CF_OK) {
        fuzz_require(cf_chunk_plan_check(&plan, lengths.len_tok,
                                         lengths.n_seqs) == CF_OK,
                     "a plan that was built passes");
        fuzz_require(fuzz_plan_open(&lengths, 0xff, &again) == CF_OK,
                     "what was built can be built again");
        check_same_plans(&plan, &again);
        check_schedules(&plan, lengths.params);
        fuzz_plan_close(&plan);
        fuzz_plan_close(&again);
    }
    plan_input_close(&lengths);
    return 0;
}
