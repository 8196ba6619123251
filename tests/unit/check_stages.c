/* check_stages.c - the engine on the stages of a pipeline, against one stage.
 *
 * Every rank is a thread with a model, an engine and a data set of its own.  The
 * models have as many layers as there is need for, and weights from a formula,
 * so that every stage has the same without a file.
 */
#include <check.h>
#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "src/evaluation.h"
#include "src/run.h"
#include "src/threads.h"
#include "tests/lib/bench.h"
#include "tests/lib/temp_folder.h"
#include "tests/lib/thread_comm.h"

enum {
    N_LAYERS = 5,
    RANKS_MAX = 4,
    SEQUENCES_MAX = 32
};

/* ---- a model and data ---- */

static char *folder;

static const char *const families[] = {"qwen2-tied", "qwen3-untied"};
enum {
    N_FAMILIES = sizeof(families) / sizeof(families[0])
};

/* A fixture's config with more layers. */
static void config_write(const char *family)
{
    char *fixture = bench_path(BENCH_FIXTURES, family);
    char *from = bench_path(fixture, "/config.json");
    char *to = bench_path(folder, "/config.json");
    json_t *config = json_load_file(from, 0, NULL);

    ck_assert_ptr_nonnull(config);
    json_object_set_new(config, "num_hidden_layers", json_integer(N_LAYERS));
    json_object_set_new(config, "max_window_layers", json_integer(N_LAYERS));
    ck_assert_int_eq(json_dump_file(config, to, 0), 0);
    json_decref(config);
    free(to);
    free(from);
    free(fixture);
}

/* Lengths in tokens; groups of many pages, of one, and standalone chunks. */
typedef struct data_set {
    uint32_t chunk_size_tok;
    uint32_t len_tok[SEQUENCES_MAX]; /* 0: no more */
} data_set;

static const data_set data_sets[] = {
    {16, {5, 40, 16, 3, 70, 17, 12, 8, 130, 2, 33, 9, 15, 48, 6, 1}},
    {300, {20, 700, 40, 520, 310, 280, 1000, 1, 290, 150}},
    {64, {10, 300}}, /* fewer chunks than stages have room for */
    {64, {30, 60, 64, 7, 50, 61, 13, 64}}, /* no group of several chunks */
};
enum {
    N_DATA_SETS = sizeof(data_sets) / sizeof(data_sets[0])
};

static size_t data_write(const data_set *data)
{
    char *path = bench_path(folder, "/data.jsonl");
    FILE *file = fopen(path, "w");
    size_t n = 0;

    ck_assert_ptr_nonnull(file);
    for (; n < SEQUENCES_MAX && data->len_tok[n] > 0; n++) {
        fprintf(file, "{\"input_ids\": [");
        for (uint32_t t = 0; t < data->len_tok[n]; t++)
            fprintf(file, "%s%u", t > 0 ? "," : "",
                    (unsigned)((t * t + 7 * n + 3 * t) % 41));
        fprintf(file, "]}\n");
    }
    fclose(file);
    free(path);
    return n;
}

/* From the name and the place in the tensor alone: all stages agree. */
static void weights_fill(cf_model *model)
{
    for (size_t i = 0; i < model->n_params; i++) {
        const cf_param *p = &model->params[i];
        const bool is_norm = p->n_dims == 1;
        uint64_t random = 1 + i;
        float *w;

        if (!p->held)
            continue;
        w = cf_model_at(model, model->masters, p);
        for (size_t k = 0; k < p->n; k++) {
            random = random * 6364136223846793005U + 1442695040888963407U;
            w[k] = (float)((double)(random >> 40) / (1 << 24) - 0.5) / 4;
            w[k] += is_norm && strstr(p->name, "norm") != NULL ? 1 : 0;
        }
    }
    cf_model_pack(model);
}

/* ---- ranks ---- */

typedef struct setting {
    const char *family;
    const data_set *data;
    cf_schedule_params schedule;
    cf_recompute policy;
    bool keep_attention;
    const char *freeze;  /* NULL: nothing */
    uint32_t n_replicas; /* of evaluation */
} setting;

typedef struct rank {
    char *data_path;
    cf_options options;
    cf_run run;
    cf_step_plan_need need;
    cf_step_plan plan;
    cf_engine engine;
    cf_evaluation evaluation;
    cf_arena sizes;
    thread_world *world;
    cf_comm *comm;
    double loss;
    cf_status status;
} rank;

/* Layers as even as they go, the last stages have more. */
static cf_stage stage_of(uint32_t index, uint32_t n)
{
    return (cf_stage){.first_layer = N_LAYERS * index / n,
                      .end_layer = N_LAYERS * (index + 1) / n,
                      .is_first = index == 0,
                      .is_last = index + 1 == n};
}

static void rank_open(rank *r, const setting *s, thread_world *world,
                      uint32_t index)
{
    const uint32_t n_stages = s->schedule.n_stages;
    const cf_stage stage = stage_of(index % n_stages, n_stages);

    memset(r, 0, sizeof(*r));
    r->data_path = bench_path(folder, "/data.jsonl");
    r->options = (cf_options){.model = folder,
                              .data = &r->data_path,
                              .n_data = 1,
                              .compute = CF_COMPUTE_FP32,
                              .recompute = s->policy,
                              .pipeline_stages = 1,
                              .threads = 1};
    r->world = world;
    r->comm = thread_world_comm(world, index);
    ck_assert_int_eq(cf_run_open(&r->options, NULL, &r->run), CF_OK);
    cf_model_take_stage(&r->run.model, &stage);
    if (s->freeze != NULL)
        ck_assert_int_eq(cf_model_freeze(&r->run.model, s->freeze), CF_OK);
}

static void rank_close(rank *r)
{
    cf_run_close(&r->run);
    free(r->data_path);
}

static void train_carve(void *context, cf_arena *arena)
{
    rank *r = context;

    cf_model_carve(&r->run.model, CF_MODEL_GRADIENTS, arena);
    cf_step_plan_carve(&r->plan, &r->need, arena);
    cf_engine_carve(&r->engine, &r->run.model, &r->need.engine,
                    r->options.recompute, CF_GRADIENTS_YES, arena);
}

static void place(rank *r, cf_run_carver carve)
{
    cf_arena_open_dry(&r->sizes);
    carve(r, &r->sizes);
    ck_assert_int_eq(cf_run_place(&r->run, &r->sizes, carve, r), CF_OK);
    weights_fill(&r->run.model);
}

/* A step of all sequences. */
static void train_open(rank *r, const setting *s, thread_world *world,
                       uint32_t index)
{
    const size_t n = data_write(s->data);
    uint32_t all[SEQUENCES_MAX];
    const cf_step_plan_params params = {.n_batch = n,
                                        .chunk_size_tok =
                                            s->data->chunk_size_tok,
                                        .schedule = s->schedule,
                                        .stage = index,
                                        .keep_attention = s->keep_attention};

    for (uint32_t i = 0; i < n; i++)
        all[i] = i;
    rank_open(r, s, world, index);
    ck_assert_int_eq(
        cf_step_plan_bound(r->run.dataset, all, n, &params, &r->need), CF_OK);
    place(r, train_carve);
    r->plan.n_batch = n;
    memcpy(r->plan.batch, all, n * sizeof(*all));
    ck_assert_int_eq(cf_dataset_prepare(r->run.dataset, all, n), CF_OK);
    ck_assert_int_eq(cf_step_plan_build(&r->plan, r->run.dataset, &r->need),
                     CF_OK);
}

static cf_status train(rank *r)
{
    const cf_engine_batch batch = {
        .dataset = r->run.dataset,
        .sequences = r->plan.sequences,
        .step = 1,
        .loss_scale = 1 / (double)r->plan.target_tokens,
        .comm = r->comm,
        .stage = r->need.stage,
    };
    cf_op_ref where;
    cf_status status;

    cf_model_zero_gradients(&r->run.model);
    status = cf_engine_begin_step(&r->engine, &batch, &r->plan.chunks,
                                  &r->plan.schedule);
    if (status == CF_OK)
        status = cf_execute(&r->plan.chunks, &r->plan.schedule, r->need.stage,
                            &cf_engine_callbacks, &r->engine, &where);
    if (status == CF_OK)
        status = cf_engine_end_step(&r->engine);
    r->loss = cf_engine_loss(&r->engine, &r->plan.chunks);
    return status;
}

/* OpenMP's number of threads is one of each thread that has it. */
static void *train_thread(void *context)
{
    rank *r = context;

    r->status = cf_threads_open(&r->options, NULL);
    if (r->status == CF_OK)
        r->status = train(r);
    if (r->status != CF_OK)
        thread_world_fail(r->world);
    return NULL;
}

static void ranks_run(rank *ranks, uint32_t n, void *(*body)(void *))
{
    pthread_t threads[RANKS_MAX];

    for (uint32_t i = 0; i < n; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, body, &ranks[i]), 0);
    for (uint32_t i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
}

/* A step over as many stages as the setting has. */
static thread_world *step_run(rank *ranks, const setting *s)
{
    const uint32_t n = s->schedule.n_stages;
    thread_world *world = thread_world_open(n);

    config_write(s->family);
    for (uint32_t i = 0; i < n; i++)
        train_open(&ranks[i], s, world, i);
    ranks_run(ranks, n, train_thread);
    return world;
}

static void step_close(rank *ranks, uint32_t n, thread_world *world)
{
    for (uint32_t i = 0; i < n; i++)
        rank_close(&ranks[i]);
    thread_world_close(world);
}

static const char *describe(const setting *s)
{
    static char text[256];

    snprintf(text, sizeof(text),
             "%s, data %zu, %s, p = %u, K = %u, policy %d%s, freeze %s",
             s->family, (size_t)(s->data - data_sets),
             cf_schedule_kind_str(s->schedule.kind),
             (unsigned)s->schedule.n_stages,
             (unsigned)s->schedule.retained_chunks_max, (int)s->policy,
             s->keep_attention ? ", attention kept" : "",
             s->freeze != NULL ? s->freeze : "nothing");
    return text;
}

/* ---- what must hold ---- */

/* Every gradient is on the stage that owns it, a tied head's on the last. */
static void expect_same_gradients(const rank *r, const rank *whole,
                                  const setting *s)
{
    const cf_model *a = &r->run.model, *b = &whole->run.model;

    for (size_t i = 0; i < a->n_params; i++) {
        const cf_param *p = &a->params[i], *q = &b->params[i];

        if (p->owned && p->trained)
            ck_assert_msg(memcmp(cf_model_at(a, a->gradients, p),
                                 cf_model_at(b, b->gradients, q),
                                 p->n * a->kernels->acc_bytes) == 0,
                          "%s: %s differs", describe(s), p->name);
    }
    if (a->d_head != NULL && a->stage.is_last)
        ck_assert_msg(memcmp(a->d_head, b->d_head,
                             a->params[0].n * a->kernels->acc_bytes) == 0,
                      "%s: the head differs", describe(s));
}

static void expect_memory(const rank *r, const setting *s)
{
    const cf_stage_need *peak = &r->plan.peak;
    const cf_engine *e = &r->engine;
    const bool leaves =
        cf_engine_has_backward(e) && (r->need.stage > 0 || s->keep_attention);

    ck_assert_msg(
        e->acts.pool.n_taken_max == peak->n_slots &&
            e->kv.pages.n_taken_max == peak->n_pages &&
            e->dropped.pool.n_taken_max == (leaves ? peak->n_dropped : 0),
        "%s: stage %u held %u chunks, %u pages, %u dropped", describe(s),
        (unsigned)r->need.stage, e->acts.pool.n_taken_max,
        e->kv.pages.n_taken_max, e->dropped.pool.n_taken_max);
    ck_assert_uint_le(cf_engine_peak_bytes(e), r->sizes.used);
    ck_assert_uint_eq(e->acts.pool.n_taken, 0);
    ck_assert_uint_eq(e->kv.pages.n_taken, 0);
    ck_assert_uint_eq(e->dropped.pool.n_taken, 0);
}

/* As the op list says, but for gradients that nobody below would use. */
static void expect_sent(const rank *r, const setting *s)
{
    const cf_model *model = &r->run.model;
    const cf_schedule *schedule = &r->plan.schedule;
    const size_t *first = &schedule->first_op[r->need.stage];
    const bool sends_grad =
        model->first_backward_layer < model->stage.first_layer;
    uint64_t n_tok = 0;

    for (size_t i = first[0]; i < first[1]; i++) {
        const cf_op op = schedule->ops[i];

        if (op.kind == CF_OP_SEND_ACT ||
            (op.kind == CF_OP_SEND_GRAD && sends_grad))
            n_tok += r->plan.chunks.chunks[op.chunk].n_tok;
    }
    ck_assert_msg(r->engine.exchange.sent_bytes ==
                      n_tok * model->config.hidden * sizeof(float),
                  "%s: stage %u sent something else", describe(s),
                  (unsigned)r->need.stage);
}

/* The steps of a setting over all numbers of stages; s has that of one.  What is
 * compared with is one stage that keeps no attention. */
static void expect_depth_changes_nothing(setting s)
{
    const bool keep_attention = s.keep_attention;
    rank whole, ranks[RANKS_MAX];
    thread_world *alone, *world;

    s.schedule.n_stages = 1;
    s.keep_attention = false;
    alone = step_run(&whole, &s);
    ck_assert_int_eq(whole.status, CF_OK);
    expect_memory(&whole, &s);
    s.keep_attention = keep_attention;
    for (uint32_t n = keep_attention ? 1 : 2; n <= RANKS_MAX; n++) {
        s.schedule.n_stages = n;
        world = step_run(ranks, &s);
        for (uint32_t i = 0; i < n; i++) {
            ck_assert_msg(ranks[i].status == CF_OK, "%s: stage %u: %s",
                          describe(&s), (unsigned)i,
                          cf_status_str(ranks[i].status));
            expect_same_gradients(&ranks[i], &whole, &s);
            expect_memory(&ranks[i], &s);
            expect_sent(&ranks[i], &s);
            ck_assert_uint_gt(thread_world_polls(world, i), 0);
            ck_assert_double_ge(ranks[i].engine.span_s, ranks[i].engine.busy_s);
        }
        ck_assert_msg(
            memcmp(&ranks[n - 1].loss, &whole.loss, sizeof(whole.loss)) == 0,
            "%s: the loss differs", describe(&s));
        step_close(ranks, n, world);
    }
    step_close(&whole, 1, alone);
}

/* ---- tests ---- */

static void folder_open(void)
{
    folder = temp_folder_open();
}

static void folder_close(void)
{
    temp_folder_close(folder);
}

static bool is_1f1b(int kind)
{
    return kind == CF_SCHEDULE_1F1B || kind == CF_SCHEDULE_1F1B_RECOMPUTE;
}

START_TEST(every_schedule_has_the_bits_of_one_stage)
{
    static const uint32_t ks[] = {1, 2, 99};
    const int kind = _i % CF_SCHEDULE_KIND_COUNT;
    const size_t n_ks = is_1f1b(kind) ? 1 : sizeof(ks) / sizeof(ks[0]);
    setting s = {.family = families[_i / CF_SCHEDULE_KIND_COUNT],
                 .policy = CF_RECOMPUTE_SELECTIVE};

    s.schedule.kind = (cf_schedule_kind)kind;
    for (size_t d = 0; d < N_DATA_SETS; d++)
        for (size_t k = 0; k < n_ks; k++) {
            s.data = &data_sets[d];
            s.schedule.retained_chunks_max = ks[k];
            expect_depth_changes_nothing(s);
        }
}
END_TEST

START_TEST(every_policy_has_the_bits_of_one_stage)
{
    setting s = {.family = families[_i],
                 .data = &data_sets[0],
                 .schedule = {.retained_chunks_max = 2}};

    for (int policy = CF_RECOMPUTE_NONE; policy <= CF_RECOMPUTE_LAYER;
         policy++) {
        s.policy = (cf_recompute)policy;
        expect_depth_changes_nothing(s);
    }
}
END_TEST

START_TEST(attention_that_is_kept_changes_no_bits)
{
    static const cf_schedule_kind kinds[] = {CF_SCHEDULE_STATE_AWARE,
                                             CF_SCHEDULE_1F1B_RECOMPUTE,
                                             CF_SCHEDULE_LONG_FIRST};
    static const char *const freezes[] = {NULL, "embeddings,layers:0-1"};
    setting s = {.family = families[_i], .keep_attention = true};

    for (size_t i = 0; i < 3 * 2 * N_DATA_SETS; i++) {
        s.data = &data_sets[i % N_DATA_SETS];
        s.schedule.kind = kinds[i / N_DATA_SETS % 3];
        s.schedule.retained_chunks_max = 1 + i % 2;
        s.policy = (cf_recompute)(i % 3);
        s.freeze = freezes[i / N_DATA_SETS / 3];
        expect_depth_changes_nothing(s);
    }
}
END_TEST

/* With two, three and four stages there are stages without anything to train,
 * with it in some of their layers, and in all of them. */
static const struct {
    const char *family, *freeze;
} frozen[] = {
    {"qwen3-untied", "embeddings"},
    {"qwen3-untied", "layers:0-1"},
    {"qwen3-untied", "embeddings,layers:0"},
    {"qwen3-untied", "embeddings,layers:0-1"},
    {"qwen3-untied", "embeddings,layers:0-2"},
    {"qwen3-untied", "embeddings,layers:0-3"},
    {"qwen3-untied", "embeddings,attention,mlp,norms"},
    {"qwen3-untied", "head,layers:3-4"},
    {"qwen2-tied", "attention,mlp,norms"},
    {"qwen2-tied", "head,layers:0-1"},
};
enum {
    N_FROZEN = sizeof(frozen) / sizeof(frozen[0])
};

START_TEST(frozen_parts_have_the_bits_of_one_stage)
{
    static const cf_schedule_kind kinds[] = {CF_SCHEDULE_STATE_AWARE,
                                             CF_SCHEDULE_PAPER};
    setting s = {.family = frozen[_i].family,
                 .data = &data_sets[0],
                 .schedule = {.retained_chunks_max = 1},
                 .policy = CF_RECOMPUTE_LAYER,
                 .freeze = frozen[_i].freeze};

    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        s.schedule.kind = kinds[k];
        expect_depth_changes_nothing(s);
    }
}
END_TEST

/* ---- evaluation ---- */

static void evaluation_carve(void *context, cf_arena *arena)
{
    rank *r = context;

    cf_model_carve(&r->run.model, CF_MODEL_EVAL, arena);
    cf_evaluation_carve(&r->evaluation, &r->run.model, arena);
}

static void *evaluation_thread(void *context)
{
    rank *r = context;

    r->status = cf_threads_open(&r->options, NULL);
    if (r->status == CF_OK)
        r->status = cf_evaluation_run(&r->evaluation, 1);
    if (r->status != CF_OK)
        thread_world_fail(r->world);
    return NULL;
}

static void evaluation_open(rank *r, const setting *s, thread_world *world,
                            uint32_t index)
{
    const uint32_t p = s->schedule.n_stages;
    cf_evaluation_params params = {
        .option = "--data",
        .chunk_size_tok = s->data->chunk_size_tok,
        .grid = {p, s->n_replicas, index % p, index / p}};

    rank_open(r, s, world, index);
    params.comm = r->comm;
    params.dataset = r->run.dataset;
    ck_assert_int_eq(cf_evaluation_open(&params, &r->evaluation), CF_OK);
    place(r, evaluation_carve);
}

static void expect_same_tallies(const cf_evaluation *a, const cf_evaluation *b)
{
    ck_assert_int_eq(a->is_complete, 1);
    ck_assert_mem_eq(&a->loss, &b->loss, sizeof(a->loss));
    ck_assert_mem_eq(a->by_bucket, b->by_bucket, sizeof(a->by_bucket));
    ck_assert_uint_eq(a->engine.kv.pages.n_taken, 0);
}

static thread_world *evaluation_run(rank *ranks, const setting *s)
{
    const uint32_t n = s->schedule.n_stages * s->n_replicas;
    thread_world *world = thread_world_open(n);

    for (uint32_t i = 0; i < n; i++)
        evaluation_open(&ranks[i], s, world, i);
    ranks_run(ranks, n, evaluation_thread);
    return world;
}

static void evaluation_close(rank *ranks, const setting *s, thread_world *world)
{
    for (uint32_t i = 0; i < s->schedule.n_stages * s->n_replicas; i++)
        cf_evaluation_close(&ranks[i].evaluation);
    step_close(ranks, s->schedule.n_stages * s->n_replicas, world);
}

START_TEST(evaluation_has_the_bits_of_one_rank)
{
    static const uint32_t grids[][2] = {{2, 1}, {3, 1}, {4, 1},
                                        {1, 2}, {1, 4}, {2, 2}};
    const setting one = {.family = families[_i / N_DATA_SETS],
                         .data = &data_sets[_i % N_DATA_SETS],
                         .schedule = {.n_stages = 1},
                         .n_replicas = 1};
    rank whole, ranks[RANKS_MAX];
    thread_world *alone;

    config_write(one.family);
    data_write(one.data);
    alone = evaluation_run(&whole, &one);
    ck_assert_int_eq(whole.status, CF_OK);
    for (size_t g = 0; g < sizeof(grids) / sizeof(grids[0]); g++) {
        setting s = one;
        thread_world *world;

        s.schedule.n_stages = grids[g][0];
        s.n_replicas = grids[g][1];
        world = evaluation_run(ranks, &s);
        for (uint32_t i = 0; i < grids[g][0] * grids[g][1]; i++) {
            ck_assert_int_eq(ranks[i].status, CF_OK);
            expect_same_tallies(&ranks[i].evaluation, &whole.evaluation);
        }
        evaluation_close(ranks, &s, world);
    }
    evaluation_close(&whole, &one, alone);
}
END_TEST

/* ---- what is wrong ---- */

/* A weight of a layer that is not a number, where it is held. */
static void *damaged_thread(void *context)
{
    rank *r = context;
    const cf_model *model = &r->run.model;

    for (size_t i = 0; i < model->n_params; i++) {
        const cf_param *p = &model->params[i];

        if (p->held &&
            strcmp(p->name, "model.layers.1.mlp.down_proj.weight") == 0)
            ((float *)cf_model_at(model, model->masters, p))[3] = NAN;
    }
    cf_model_pack(&r->run.model);
    return train_thread(r);
}

START_TEST(a_damaged_layer_of_another_stage_is_told_from_this_one)
{
    static const char *const places[] = {"first in layer 1,",
                                         "first in a layer below layer 2,"};
    const uint32_t p = (uint32_t)_i + 1;
    const setting s = {.family = "qwen3-untied",
                       .data = &data_sets[0],
                       .schedule = {.n_stages = p, .retained_chunks_max = 1}};
    thread_world *world = thread_world_open(p);
    rank ranks[RANKS_MAX];
    captured_log log;

    config_write(s.family);
    for (uint32_t i = 0; i < p; i++)
        train_open(&ranks[i], &s, world, i);
    captured_log_begin(&log);
    ranks_run(ranks, p, damaged_thread);
    captured_log_end(&log);
    ck_assert_int_eq(ranks[p - 1].status, CF_NOT_FINITE);
    ck_assert_msg(captured_log_is_error(&log, places[_i]), "%s", log.text);
    step_close(ranks, p, world);
}
END_TEST

START_TEST(a_step_that_needs_more_than_its_bound_does_not_begin)
{
    const setting s = {.family = "qwen3-untied",
                       .data = &data_sets[0],
                       .schedule = {.n_stages = 2, .retained_chunks_max = 2}};
    thread_world *world = thread_world_open(2);
    rank r;
    captured_log log;

    config_write(s.family);
    train_open(&r, &s, world, 1);
    r.need.most.n_dropped = r.plan.peak.n_dropped - 1;
    captured_log_begin(&log);
    ck_assert_int_eq(cf_step_plan_build(&r.plan, r.run.dataset, &r.need),
                     CF_NO_SPACE);
    captured_log_end(&log);
    ck_assert(captured_log_is_error(&log, "stage 1 has room for"));
    rank_close(&r);
    thread_world_close(world);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("stages");
    TCase *bits = tcase_create("bits");
    TCase *wrong = tcase_create("wrong");
    SRunner *runner;
    int failed;

    tcase_set_timeout(bits, 300);
    tcase_add_checked_fixture(bits, folder_open, folder_close);
    tcase_add_loop_test(bits, every_schedule_has_the_bits_of_one_stage, 0,
                        N_FAMILIES * CF_SCHEDULE_KIND_COUNT);
    tcase_add_loop_test(bits, every_policy_has_the_bits_of_one_stage, 0,
                        N_FAMILIES);
    tcase_add_loop_test(bits, attention_that_is_kept_changes_no_bits, 0,
                        N_FAMILIES);
    tcase_add_loop_test(bits, frozen_parts_have_the_bits_of_one_stage, 0,
                        N_FROZEN);
    tcase_add_loop_test(bits, evaluation_has_the_bits_of_one_rank, 0,
                        N_FAMILIES * N_DATA_SETS);
    suite_add_tcase(suite, bits);
    tcase_set_timeout(wrong, 60);
    tcase_add_checked_fixture(wrong, folder_open, folder_close);
    tcase_add_loop_test(
        wrong, a_damaged_layer_of_another_stage_is_told_from_this_one, 0, 2);
    tcase_add_test(wrong, a_step_that_needs_more_than_its_bound_does_not_begin);
    suite_add_tcase(suite, wrong);

    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
