/* check_stage_need_property.c - the bounds of what a stage holds, against every
 * small batch and random larger ones.  CF_TEST_SEED repeats a random run.
 * An assert that holds costs Check a system call: hot loops abort by hand.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <chunkflow/simulate.h>

#include "src/kv_state.h"
#include "src/stage_need.h"
#include "tests/lib/plan_builder.h"

enum {
    SEQUENCES_MAX = 40,
    STAGES_MAX = 9,
    N_LENGTHS = 5 /* that the small batches choose from */
};

static const uint32_t chunk_sizes[] = {100, 256, 300, 1000};

typedef struct batch {
    uint32_t len_tok[SEQUENCES_MAX];
    size_t n;
    uint32_t chunk_size_tok;
    cf_chunk_plan plan;
} batch;

static void plan_build(batch *b, cf_schedule_kind kind)
{
    const int whole =
        kind == CF_SCHEDULE_1F1B || kind == CF_SCHEDULE_1F1B_RECOMPUTE;
    cf_chunk_bound bound;
    cf_status status = whole ? cf_chunk_plan_bound_whole(b->n, &bound)
                             : cf_chunk_plan_bound(b->len_tok, b->n,
                                                   b->chunk_size_tok, &bound);

    ck_assert_int_eq(status, CF_OK);
    b->plan = (cf_chunk_plan){.capacity = bound};
    b->plan.chunks = calloc(bound.n_chunks, sizeof(cf_chunk));
    b->plan.pieces = calloc(bound.n_pieces, sizeof(cf_piece));
    b->plan.scratch = malloc(bound.scratch_bytes + 1);
    status = whole ? cf_chunk_plan_build_whole(b->len_tok, b->n, &b->plan)
                   : cf_chunk_plan_build(b->len_tok, b->n, b->chunk_size_tok,
                                         &b->plan);
    ck_assert_int_eq(status, CF_OK);
}

static int descending(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return (x < y) - (x > y);
}

/* How often a figure was reached, of how many. */
typedef struct tally {
    size_t n;
    size_t slots, inputs, pages;
} tally;

static cf_stage_need expect_within(const batch *b, const cf_schedule *schedule,
                                   uint32_t stage, tally *t)
{
    uint32_t sorted[SEQUENCES_MAX];
    cf_stage_load load = {.params = schedule->params,
                          .stage = stage,
                          .chunk_size_tok = b->chunk_size_tok,
                          .len_tok = sorted,
                          .n = b->n};
    cf_stage_need bound, need;
    char text[2048];

    memcpy(sorted, b->len_tok, sizeof(sorted));
    qsort(sorted, b->n, sizeof(*sorted), descending);
    bound = cf_stage_need_bound(&load);
    need = cf_stage_need_of(&b->plan, schedule, stage);
    if (cf_stage_need_fits(&need, &bound)) {
        t->n++;
        t->slots += need.n_slots == bound.n_slots;
        t->inputs += need.n_dropped == bound.n_dropped;
        t->pages += need.n_pages == bound.n_pages;
        return bound;
    }
    cf_schedule_format(schedule, text, sizeof(text));
    ck_abort_msg("%s, K = %u, stage %u: needs %u %u %u %u %u, bound %u %u %u "
                 "%u %u\n%s",
                 cf_schedule_kind_str(schedule->params.kind),
                 schedule->params.retained_chunks_max, stage, need.n_slots,
                 need.n_dropped, need.n_pages, need.n_groups, need.n_standalone,
                 bound.n_slots, bound.n_dropped, bound.n_pages, bound.n_groups,
                 bound.n_standalone, text);
}

static const char *text(const cf_schedule *schedule)
{
    static char buf[4096];

    cf_schedule_format(schedule, buf, sizeof(buf));
    return buf;
}

static uint32_t largest_chunk_tok(const cf_chunk_plan *plan)
{
    uint32_t largest = 0;

    for (size_t i = 0; i < plan->n_chunks; i++)
        if (plan->chunks[i].n_tok > largest)
            largest = plan->chunks[i].n_tok;
    return largest;
}

/* Pages are found as the list asks for them, and no more than counted. */
static void expect_pages(const batch *b, const cf_schedule *schedule,
                         uint32_t stage, const cf_stage_need *bound)
{
    static const cf_attn_shape nothing; /* the pages themselves have no bytes */
    static const cf_kernels kernels;
    const cf_kv_need need = {.n_pages = bound->n_pages,
                             .n_groups = bound->n_groups,
                             .n_standalone = bound->n_standalone,
                             .n_pieces = SEQUENCES_MAX,
                             .chunk_tok = largest_chunk_tok(&b->plan),
                             .sequence_tok = b->plan.chunk_size_tok};
    static _Alignas(CF_ARENA_ALIGN) char bytes[1 << 16];
    cf_arena dry, arena = {.base = bytes, .capacity = sizeof(bytes)};
    cf_status status = CF_OK;
    cf_kv_state kv;

    cf_arena_open_dry(&dry);
    cf_kv_state_carve(&kv, &kernels, &nothing, 1, 1, &need, &dry);
    if (dry.used > sizeof(bytes))
        ck_abort_msg("bookkeeping of %zu bytes", dry.used);
    memset(bytes, 0, dry.used);
    cf_kv_state_carve(&kv, &kernels, &nothing, 1, 1, &need, &arena);
    cf_kv_state_begin_step(&kv, &b->plan,
                           schedule->params.kind == CF_SCHEDULE_LONG_FIRST);
    for (size_t i = schedule->first_op[stage];
         i < schedule->first_op[stage + 1]; i++) {
        const cf_op op = schedule->ops[i];

        if (op.kind > CF_OP_BACKWARD)
            continue;
        if (op.kind == CF_OP_FORWARD || op.kind == CF_OP_FORWARD_KEEP)
            status = cf_kv_state_append(&kv, &b->plan, op.chunk);
        if (status != CF_OK || !cf_kv_state_has(&kv, &b->plan, op.chunk))
            ck_abort_msg("%s, stage %u: no pages for chunk %u\n%s",
                         cf_schedule_kind_str(schedule->params.kind), stage,
                         op.chunk, text(schedule));
        if (op.kind == CF_OP_BACKWARD && b->plan.chunks[op.chunk].in_group == 0)
            cf_kv_state_release(&kv, &b->plan, op.chunk);
    }
    if (kv.pages.n_taken != 0 ||
        kv.pages.n_taken_max !=
            cf_stage_need_of(&b->plan, schedule, stage).n_pages)
        ck_abort_msg("pages are counted in two ways\n%s", text(schedule));
}

/* The simulator counts on its own. */
static void expect_as_simulated(const batch *b, const cf_schedule *schedule)
{
    static const cf_cost_table costs;
    const cf_cost_model model = {.compute = cf_cost_compute, .context = &costs};
    cf_stage_peak peaks[STAGES_MAX];
    cf_simulation simulation = {.peaks = peaks};
    cf_op_ref where;

    ck_assert_int_eq(cf_simulate_bound(schedule, &simulation.scratch_bytes),
                     CF_OK);
    simulation.scratch = malloc(simulation.scratch_bytes);
    ck_assert_int_eq(
        cf_simulate(&b->plan, schedule, &model, &simulation, &where), CF_OK);
    for (uint32_t s = 0; s < schedule->params.n_stages; s++) {
        const cf_stage_need need = cf_stage_need_of(&b->plan, schedule, s);

        if (need.n_slots != peaks[s].kept_chunks ||
            (s > 0 && (need.n_dropped > 0) != (peaks[s].input_tok > 0)))
            ck_abort_msg("the simulator holds something else\n%s",
                         text(schedule));
    }
    free(simulation.scratch);
}

static void check_batch(batch *b, cf_schedule_params params, tally *t)
{
    cf_schedule schedule;

    plan_build(b, params.kind);
    schedule = schedule_open_built(&b->plan, params);
    for (uint32_t s = 0; s < params.n_stages; s++) {
        const cf_stage_need bound = expect_within(b, &schedule, s, t);

        expect_pages(b, &schedule, s, &bound);
    }
    expect_as_simulated(b, &schedule);
    schedule_close(&schedule);
    free(b->plan.scratch);
    plan_close(&b->plan);
}

START_TEST(no_small_batch_needs_more_than_its_bound)
{
    const uint32_t size = chunk_sizes[_i];
    const uint32_t lengths[N_LENGTHS] = {1, size, size + 1, 3 * size,
                                         5 * size - 1};
    static const uint32_t ks[] = {1, 2, 3, 99};

    for (int kind = 0; kind < CF_SCHEDULE_KIND_COUNT; kind++) {
        tally t = {0};

        for (uint32_t p = 1; p <= 5; p++)
            for (size_t k = 0; k < 4; k++)
                for (uint32_t code = N_LENGTHS; code < 5 * 5 * 5 * 5; code++) {
                    cf_schedule_params params = {p, ks[k],
                                                 (cf_schedule_kind)kind};
                    batch b = {.chunk_size_tok = size};

                    for (uint32_t c = code; c > 0; c /= N_LENGTHS)
                        b.len_tok[b.n++] = lengths[c % N_LENGTHS];
                    check_batch(&b, params, &t);
                }
        printf("%s: %zu stages, as bound: slots %zu, inputs %zu, pages %zu\n",
               cf_schedule_kind_str((cf_schedule_kind)kind), t.n, t.slots,
               t.inputs, t.pages);
    }
}
END_TEST

/* With one stage the figures of a step with the longest sequence are exact. */
START_TEST(one_stage_needs_exactly_its_bound)
{
    static const uint32_t lengths[] = {1, 99, 100, 101, 300, 2000};

    for (uint32_t k = 1; k < 30; k += 4)
        for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
            cf_schedule_params params = {1, k, CF_SCHEDULE_STATE_AWARE};
            batch b = {.len_tok = {3, lengths[i], 2, 70, 1000},
                       .n = 5,
                       .chunk_size_tok = 100};
            tally t = {0};

            check_batch(&b, params, &t);
            ck_assert_uint_eq(t.slots, 1);
            ck_assert_uint_eq(t.inputs, 1);
            ck_assert_uint_eq(t.pages, 1);
        }
}
END_TEST

START_TEST(no_random_batch_needs_more_than_its_bound)
{
    uint64_t random = test_seed("check_stage_need_property");
    tally t = {0};

    for (int i = 0; i < 3000; i++) {
        const uint32_t size = 1 + test_random(&random, 700);
        cf_schedule_params params = {
            1 + test_random(&random, STAGES_MAX), 1 + test_random(&random, 12),
            (cf_schedule_kind)test_random(&random, CF_SCHEDULE_KIND_COUNT)};
        batch b = {.chunk_size_tok = size,
                   .n = 1 + test_random(&random, SEQUENCES_MAX)};

        for (size_t s = 0; s < b.n; s++)
            b.len_tok[s] = 1 + test_random(&random, size * (1 + (i & 15)));
        check_batch(&b, params, &t);
    }
    printf("%zu stages, as bound: slots %zu, inputs %zu, pages %zu\n", t.n,
           t.slots, t.inputs, t.pages);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("stage_need_property");
    TCase *bounds = tcase_create("bounds");
    SRunner *runner;
    int failed;

    tcase_set_timeout(bounds, 300);
    tcase_add_loop_test(bounds, no_small_batch_needs_more_than_its_bound, 0,
                        sizeof(chunk_sizes) / sizeof(chunk_sizes[0]));
    tcase_add_test(bounds, one_stage_needs_exactly_its_bound);
    tcase_add_test(bounds, no_random_batch_needs_more_than_its_bound);
    suite_add_tcase(suite, bounds);

    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
