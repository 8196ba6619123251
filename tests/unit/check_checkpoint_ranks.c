/* check_checkpoint_ranks.c - what several ranks write together has the bytes
 * that one writes, and any number of them reads it.  The ranks are threads. */
#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "src/checkpoint.h"
#include "src/model_export.h"
#include "tests/lib/fake_ranks.h"
#include "tests/lib/model_part.h"
#include "tests/lib/temp_folder.h"

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

static const model_grid grids[] = {{1, 1}, {2, 1}, {1, 2},
                                   {2, 2}, {4, 1}, {2, 3}};
enum {
    N_GRIDS = LENGTH(grids)
};

static const struct {
    cf_compute compute;
    bool is_tied;
    const char *freeze;
} models[] = {
    {CF_COMPUTE_FP32, true, NULL},
    {CF_COMPUTE_FP32, false, NULL},
    {CF_COMPUTE_FP64, true, NULL},
    {CF_COMPUTE_FP32, true, "embeddings,layers:1"},
    {CF_COMPUTE_FP32, false, "layers:0-2,head"},
};
enum {
    N_MODELS = LENGTH(models)
};

/* Everything that a rank needs to know. */
typedef struct scene {
    char *folder;
    cf_compute compute;
    const char *freeze;
    model_grid grid;
    char output[128];        /* of all ranks */
    char output_of_one[128]; /* of rank odd_rank, when that is not 0 */
    uint32_t odd_rank;
    uint64_t saved_step[16];
    cf_status status[16];
} scene;

static scene scene_open(int model)
{
    scene s = {.folder = temp_folder_open(),
               .compute = models[model].compute,
               .freeze = models[model].freeze};

    model_part_write_config(s.folder, models[model].is_tied);
    return s;
}

static void scene_close(scene *s)
{
    temp_folder_close(s->folder);
}

static void scene_run(scene *s, model_grid grid, const char *output,
                      void (*body)(cf_comm *comm, void *scene))
{
    s->grid = grid;
    (void)snprintf(s->output, sizeof(s->output), "%s/%s", s->folder, output);
    fake_ranks_run(grid.n_stages * grid.n_replicas, body, s);
}

static const char *output_of(const scene *s, const cf_comm *comm)
{
    return s->odd_rank > 0 && cf_comm_rank(comm) == s->odd_rank
               ? s->output_of_one
               : s->output;
}

static void part_open(model_part *part, const scene *s, const cf_comm *comm)
{
    model_part_open(part, s->folder, s->compute, s->freeze, s->grid,
                    cf_comm_rank(comm));
}

/* ---- states ---- */

static void state_save(cf_comm *comm, void *context)
{
    scene *s = context;
    const cf_checkpoint_state state = {.n_steps = 9, .model_hash = 5};
    const cf_ledger ledger = {.read = {1, 2}, .trained = {1, 2}};
    cf_checkpoint_params params = {
        .output = output_of(s, comm), .keep = 2, .state = &state};
    cf_checkpoint *checkpoint;
    model_part part;

    part_open(&part, s, comm);
    model_part_fill(&part);
    params.model = &part.model;
    ck_assert_int_eq(cf_comm_lane_open(comm, &params.lane), CF_OK);
    ck_assert_int_eq(cf_checkpoint_open(&params, &checkpoint), CF_OK);
    for (uint64_t step = 3; step <= 4; step++) {
        cf_checkpoint_begin(checkpoint, step, step, &ledger);
        cf_checkpoint_release(checkpoint);
        cf_checkpoint_wait(checkpoint);
    }
    s->saved_step[cf_comm_rank(comm)] = cf_checkpoint_saved_step(checkpoint);
    cf_checkpoint_close(checkpoint);
    cf_comm_lane_close(params.lane);
    model_part_close(&part);
}

static void state_load(cf_comm *comm, void *context)
{
    const scene *s = context;
    char path[192];
    model_part part;

    part_open(&part, s, comm);
    (void)snprintf(path, sizeof(path), "%s/checkpoints/step-4", s->output);
    ck_assert_int_eq(cf_checkpoint_load(path, &part.model), CF_OK);
    ck_assert(model_part_is_filled(&part, ARRAY_MASTERS));
    ck_assert(model_part_is_filled(&part, ARRAY_MOMENT1));
    ck_assert(model_part_is_filled(&part, ARRAY_MOMENT2));
    model_part_close(&part);
}

static void states_write(scene *s, model_grid grid, const char *output)
{
    char folder[192];

    (void)snprintf(folder, sizeof(folder), "%s/%s", s->folder, output);
    ck_assert_int_eq(mkdir(folder, 0777), 0);
    scene_run(s, grid, output, state_save);
}

static void expect_equal_files(const scene *s, const char *a, const char *b)
{
    size_t n, m;
    char *x = temp_file_read(s->folder, a, &n);
    char *y = temp_file_read(s->folder, b, &m);

    ck_assert_uint_eq(n, m);
    ck_assert_msg(memcmp(x, y, n) == 0, "%s differs from %s", a, b);
    free(y);
    free(x);
}

/* A state is found, which means that its hashes hold. */
static void expect_found(const scene *s, uint64_t step)
{
    cf_checkpoint_state state = {0};
    char *path;

    ck_assert_int_eq(
        cf_checkpoint_find(s->output, CF_CHECKPOINT_NEWEST, &path, &state),
        CF_OK);
    ck_assert_uint_eq(path != NULL ? state.step : 0, step);
    free(path);
}

START_TEST(a_state_has_the_bytes_of_one_rank_and_any_number_reads_it)
{
    static const char *const names[] = {"state.json", "weights.safetensors",
                                        "moments.safetensors"};
    scene s = scene_open(_i);

    for (size_t writer = 0; writer < N_GRIDS; writer++) {
        char output[16];

        (void)snprintf(output, sizeof(output), "run-%zu", writer);
        states_write(&s, grids[writer], output);
        expect_found(&s, 4);
        for (size_t i = 0; i < LENGTH(names); i++) {
            char a[64], b[64];

            (void)snprintf(a, sizeof(a), "run-0/checkpoints/step-4/%s",
                           names[i]);
            (void)snprintf(b, sizeof(b), "%s/checkpoints/step-4/%s", output,
                           names[i]);
            expect_equal_files(&s, a, b);
        }
        for (size_t reader = 0; reader < N_GRIDS; reader++)
            scene_run(&s, grids[reader], output, state_load);
    }
    scene_close(&s);
}
END_TEST

/* A rank that cannot write: nobody has a state, and rank 0 says it once. */
START_TEST(a_save_that_one_rank_cannot_make_is_made_by_none)
{
    const uint32_t n_ranks = grids[_i].n_stages * grids[_i].n_replicas;
    scene s = scene_open(0);
    captured_log log;

    s.odd_rank = n_ranks - 1;
    (void)snprintf(s.output_of_one, sizeof(s.output_of_one), "%s/elsewhere",
                   s.folder);
    captured_log_begin(&log);
    states_write(&s, grids[_i], "run");
    captured_log_end(&log);
    ck_assert_msg(strstr(log.text, "warning: the state of step 3 is not saved, "
                                   "there is no older one: ") != NULL,
                  "%s", log.text);
    ck_assert_ptr_nonnull(strstr(log.text, "cannot open a file: No such file"));
    ck_assert_ptr_eq(strchr(log.text, '\n'), strrchr(log.text, '\n'));
    for (uint32_t rank = 0; rank < n_ranks; rank++)
        ck_assert_uint_eq(s.saved_step[rank], 0);
    expect_found(&s, 0);
    ck_assert(!temp_file_exists(s.folder, "run/checkpoints/step-4.tmp"));
    scene_close(&s);
}
END_TEST

/* ---- models ---- */

static cf_dtype dtype_of(size_t param)
{
    static const cf_dtype dtypes[] = {CF_DTYPE_BF16, CF_DTYPE_F32, CF_DTYPE_F16,
                                      CF_DTYPE_F64};

    return dtypes[param % LENGTH(dtypes)];
}

static void model_write(cf_comm *comm, void *context)
{
    scene *s = context;
    model_part part;

    part_open(&part, s, comm);
    model_part_fill(&part);
    for (size_t i = 0; i < part.model.n_params; i++)
        part.model.params[i].file_dtype = dtype_of(i);
    s->status[cf_comm_rank(comm)] = cf_model_export(
        comm, &part.model, s->folder, output_of(s, comm), CF_EXPORT_MODEL);
    model_part_close(&part);
}

static void model_read(cf_comm *comm, void *context)
{
    const scene *s = context;
    model_part part;

    part_open(&part, s, comm);
    ck_assert_int_eq(cf_model_load(&part.model, s->output), CF_OK);
    ck_assert(model_part_is_filled(&part, ARRAY_MASTERS));
    for (size_t i = 0; i < part.model.n_params; i++) /* held or not */
        ck_assert_int_eq(part.model.params[i].file_dtype, dtype_of(i));
    model_part_close(&part);
}

START_TEST(an_export_has_the_bytes_of_one_rank_and_any_number_reads_it)
{
    scene s = scene_open(_i);

    for (size_t writer = 0; writer < N_GRIDS; writer++) {
        char output[16], weights[64], config[64];

        (void)snprintf(output, sizeof(output), "model-%zu", writer);
        scene_run(&s, grids[writer], output, model_write);
        for (uint32_t i = 0;
             i < grids[writer].n_stages * grids[writer].n_replicas; i++)
            ck_assert_int_eq(s.status[i], CF_OK);
        (void)snprintf(weights, sizeof(weights), "%s/model.safetensors",
                       output);
        (void)snprintf(config, sizeof(config), "%s/config.json", output);
        expect_equal_files(&s, "model-0/model.safetensors", weights);
        expect_equal_files(&s, "model-0/config.json", config);
        for (size_t reader = 0; reader < N_GRIDS; reader++)
            scene_run(&s, grids[reader], output, model_read);
    }
    scene_close(&s);
}
END_TEST

START_TEST(an_export_that_one_rank_cannot_make_leaves_nothing)
{
    const uint32_t n_ranks = grids[_i].n_stages * grids[_i].n_replicas;
    scene s = scene_open(0);
    captured_log log;

    s.odd_rank = n_ranks - 1;
    (void)snprintf(s.output_of_one, sizeof(s.output_of_one), "%s/no/where",
                   s.folder);
    captured_log_begin(&log);
    scene_run(&s, grids[_i], "model", model_write);
    captured_log_end(&log);
    ck_assert(captured_log_is_error(&log, "/no/where.tmp/model.safetensors"));
    for (uint32_t rank = 0; rank < n_ranks; rank++)
        ck_assert_int_eq(s.status[rank], CF_IO);
    ck_assert_uint_eq(temp_folder_count(s.folder), 1); /* config.json */
    scene_close(&s);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("checkpoint_ranks");
    TCase *tcase = tcase_create("ranks");
    SRunner *runner;
    int failed;

    tcase_set_timeout(tcase, 600);
    tcase_add_loop_test(
        tcase, a_state_has_the_bytes_of_one_rank_and_any_number_reads_it, 0,
        N_MODELS);
    tcase_add_loop_test(tcase, a_save_that_one_rank_cannot_make_is_made_by_none,
                        1, N_GRIDS);
    tcase_add_loop_test(
        tcase, an_export_has_the_bytes_of_one_rank_and_any_number_reads_it, 0,
        N_MODELS);
    tcase_add_loop_test(
        tcase, an_export_that_one_rank_cannot_make_leaves_nothing, 1, N_GRIDS);
    suite_add_tcase(suite, tcase);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
