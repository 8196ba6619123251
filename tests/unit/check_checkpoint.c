/* check_checkpoint.c - training states: there and back, damage, what stays.
 *
 * Linked with malloc, calloc and realloc wrapped: a save allocates nothing. */
#include <check.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/checkpoint.h"
#include "src/checkpoint_folder.h"
#include "src/files.h"
#include "src/hash.h"
#include "src/metrics.h"
#include "tests/lib/allocations.h"
#include "tests/lib/alone.h"
#include "tests/lib/scratch.h"

#define FIXTURE CF_TEST_SRCDIR "/tests/parity/fixtures/qwen2-tied"

/* ---- a model with any numbers in it ---- */

typedef struct subject {
    cf_kernels kernels;
    cf_model model;
    cf_arena arena;
} subject;

static void fill(void *array, size_t bytes, uint64_t *random)
{
    for (size_t i = 0; i < bytes / sizeof(float); i++)
        ((float *)array)[i] = (float)scratch_random_below(random, 1000);
}

static size_t array_bytes(const subject *s)
{
    return s->model.n_elements * s->kernels.acc_bytes;
}

/* Seed 0 leaves zeros. */
static void subject_open(subject *s, cf_compute compute, uint64_t seed)
{
    const char *why;
    cf_arena sizes;

    memset(s, 0, sizeof(*s));
    ck_assert_int_eq(cf_cpu_kernels(compute, &s->kernels, &why), CF_OK);
    ck_assert_int_eq(cf_model_open(FIXTURE, &s->kernels, &s->model), CF_OK);
    cf_arena_open_dry(&sizes);
    cf_model_carve(&s->model, CF_MODEL_TRAIN, &sizes);
    ck_assert_int_eq(cf_arena_open(sizes.used, &s->arena), CF_OK);
    cf_model_carve(&s->model, CF_MODEL_TRAIN, &s->arena);
    if (seed == 0)
        return;
    fill(s->model.masters, array_bytes(s), &seed);
    fill(s->model.moment1, array_bytes(s), &seed);
    fill(s->model.moment2, array_bytes(s), &seed);
}

static void subject_close(subject *s)
{
    cf_arena_close(&s->arena);
    cf_model_close(&s->model);
}

static const cf_ledger ledger_of_seven = {
    .read = {7, 70},
    .trained = {4, 40},
    .trained_target_tokens = 33,
    .masked = {2, 20},
    .skipped_max_length = {1, 10},
};

static cf_checkpoint_state state_of_run(void)
{
    return (cf_checkpoint_state){
        .n_steps = 100,
        .model_hash = 0x123456789abcdef0,
        .data_hash = 0xfedcba9876543210,
        .options = {{"seed", "1"}, {"freeze", "a \"b\" \\c\n\x01"}},
        .n_options = 2,
    };
}

static cf_checkpoint *writer_open(subject *s, uint32_t keep, uint64_t resumed)
{
    cf_checkpoint_state state = state_of_run();
    cf_checkpoint_params params = {.output = scratch_path("."),
                                   .lane = alone(),
                                   .model = &s->model,
                                   .keep = keep,
                                   .state = &state};
    cf_checkpoint *checkpoint;

    state.step = resumed;
    ck_assert_int_eq(cf_checkpoint_open(&params, &checkpoint), CF_OK);
    return checkpoint;
}

static void save(cf_checkpoint *checkpoint, uint64_t step)
{
    cf_checkpoint_begin(checkpoint, step, step - 1, &ledger_of_seven);
    cf_checkpoint_wait(checkpoint);
}

/* The newest complete step, 0: none. */
static uint64_t newest(cf_checkpoint_state *state_p)
{
    char *path;

    ck_assert_int_eq(cf_checkpoint_find(scratch_path("."), CF_CHECKPOINT_NEWEST,
                                        &path, state_p),
                     CF_OK);
    if (path == NULL)
        return 0;
    free(path);
    return state_p->step;
}

/* "9 8 " */
static const char *steps_there(char *text, size_t size)
{
    uint64_t steps[16];
    size_t n = cf_checkpoint_steps(scratch_path("checkpoints"), steps, 16);

    *text = '\0';
    for (size_t i = 0; i < n; i++)
        (void)snprintf(text + strlen(text), size - strlen(text), "%" PRIu64 " ",
                       steps[i]);
    return text;
}

static void expect_steps(const char *wanted)
{
    char text[128];

    ck_assert_str_eq(steps_there(text, sizeof(text)), wanted);
}

/* ---- there and back ---- */

static const cf_compute computes[] = {CF_COMPUTE_FP32, CF_COMPUTE_FP64};

START_TEST(a_state_comes_back_to_the_bit)
{
    subject a, b;
    cf_checkpoint *checkpoint;
    cf_checkpoint_state state;

    subject_open(&a, computes[_i], 7);
    subject_open(&b, computes[_i], 0);
    checkpoint = writer_open(&a, 2, 0);
    save(checkpoint, 12);
    ck_assert_uint_eq(cf_checkpoint_saved_step(checkpoint), 12);
    cf_checkpoint_close(checkpoint);

    ck_assert_uint_eq(newest(&state), 12);
    ck_assert_uint_eq(state.n_updates, 11);
    ck_assert_uint_eq(state.n_steps, 100);
    ck_assert_uint_eq(state.model_hash, state_of_run().model_hash);
    ck_assert_uint_eq(state.data_hash, state_of_run().data_hash);
    ck_assert_uint_eq(state.n_options, 2);
    ck_assert_str_eq(state.options[1].value, "a \"b\" \\c\n\x01");
    ck_assert_mem_eq(&state.ledger, &ledger_of_seven, sizeof(state.ledger));

    ck_assert_int_eq(
        cf_checkpoint_load(scratch_path("checkpoints/step-12"), &b.model),
        CF_OK);
    for (size_t i = 0; i < a.model.n_params; i++) {
        const cf_param *p = &a.model.params[i];
        size_t at = p->offset * a.kernels.acc_bytes;
        size_t n = p->n * a.kernels.acc_bytes;

        ck_assert_mem_eq(cf_at(a.model.masters, at), cf_at(b.model.masters, at),
                         n);
        ck_assert_mem_eq(cf_at(a.model.moment1, at), cf_at(b.model.moment1, at),
                         n);
        ck_assert_mem_eq(cf_at(a.model.moment2, at), cf_at(b.model.moment2, at),
                         n);
    }
    subject_close(&b);
    subject_close(&a);
}
END_TEST

START_TEST(tensors_are_whole_and_under_their_names)
{
    subject s;
    cf_checkpoint *checkpoint;
    cf_tensors *weights, *moments;

    subject_open(&s, CF_COMPUTE_FP32, 7);
    checkpoint = writer_open(&s, 2, 0);
    save(checkpoint, 1);
    cf_checkpoint_close(checkpoint);
    ck_assert_int_eq(
        cf_tensors_open_file(
            scratch_path("checkpoints/step-1/weights.safetensors"), &weights),
        CF_OK);
    ck_assert_int_eq(
        cf_tensors_open_file(
            scratch_path("checkpoints/step-1/moments.safetensors"), &moments),
        CF_OK);
    ck_assert_uint_eq(cf_tensors_count(weights), s.model.n_params);
    ck_assert_uint_eq(cf_tensors_count(moments), 2 * s.model.n_params);
    for (size_t i = 0; i < s.model.n_params; i++) {
        const cf_param *p = &s.model.params[i];
        const cf_tensor *tensor = cf_tensors_find(weights, p->name);
        char name[128];

        ck_assert_ptr_nonnull(tensor);
        ck_assert_int_eq(tensor->dtype, CF_DTYPE_F32);
        ck_assert_uint_eq(tensor->n_dims, p->n_dims);
        ck_assert_uint_eq(tensor->dims[0], p->dims[0]);
        (void)snprintf(name, sizeof(name), "exp_avg.%s", p->name);
        ck_assert_ptr_nonnull(cf_tensors_find(moments, name));
        (void)snprintf(name, sizeof(name), "exp_avg_sq.%s", p->name);
        ck_assert_ptr_nonnull(cf_tensors_find(moments, name));
    }
    cf_tensors_close(moments);
    cf_tensors_close(weights);
    subject_close(&s);
}
END_TEST

START_TEST(a_save_allocates_nothing)
{
    subject s;
    cf_checkpoint *checkpoint;

    subject_open(&s, CF_COMPUTE_FP32, 7);
    checkpoint = writer_open(&s, 2, 0);
    for (uint64_t step = 1; step <= 4; step++) {
        size_t before = allocations();

        cf_checkpoint_begin(checkpoint, step, step, &ledger_of_seven);
        cf_checkpoint_release(checkpoint);
        cf_checkpoint_wait(checkpoint);
        ck_assert_uint_eq(allocations(), before);
    }
    cf_checkpoint_close(checkpoint);
    subject_close(&s);
}
END_TEST

START_TEST(weights_may_change_once_they_are_released)
{
    subject s;
    cf_checkpoint *checkpoint;
    cf_checkpoint_state state;

    subject_open(&s, CF_COMPUTE_FP32, 7);
    checkpoint = writer_open(&s, 2, 0);
    for (uint64_t step = 1; step <= 20; step++) {
        cf_checkpoint_begin(checkpoint, step, step, &ledger_of_seven);
        cf_checkpoint_release(checkpoint);
        memset(s.model.masters, (int)step, array_bytes(&s));
        memset(s.model.moment2, (int)step, array_bytes(&s));
        cf_checkpoint_wait(checkpoint);
        /* The checksum is of what was read, and it is what was written. */
        ck_assert_uint_eq(newest(&state), step);
    }
    cf_checkpoint_close(checkpoint);
    ck_assert_int_eq(
        cf_checkpoint_load(scratch_path("checkpoints/step-20"), &s.model),
        CF_OK);
    for (size_t i = 0; i < s.model.params[0].n * sizeof(float); i++)
        ck_assert_int_eq(((const char *)s.model.masters)[i], 19);
    subject_close(&s);
}
END_TEST

/* ---- damage ---- */

/* Two states; the text of the file of the second is what the test damages. */
static char *two_states(const char *name, size_t *n_p)
{
    char path[96];
    subject s;
    cf_checkpoint *checkpoint;

    subject_open(&s, CF_COMPUTE_FP32, 7);
    checkpoint = writer_open(&s, 2, 0);
    save(checkpoint, 1);
    save(checkpoint, 2);
    cf_checkpoint_close(checkpoint);
    subject_close(&s);
    (void)snprintf(path, sizeof(path), "checkpoints/step-2/%s", name);
    return scratch_read(path, n_p);
}

static void expect_older(const char *name, const char *bytes, size_t n)
{
    char path[96];
    cf_checkpoint_state state;
    const char *log;
    uint64_t step;

    (void)snprintf(path, sizeof(path), "checkpoints/step-2/%s", name);
    (void)scratch_write(path, bytes, n);
    errors_begin();
    step = newest(&state);
    log = errors_end();
    ck_assert_msg(step == 1, "%s with %zu bytes: step %" PRIu64, name, n, step);
    ck_assert_ptr_nonnull(strstr(log, "step-2: skipped, not a complete"));
}

START_TEST(a_file_that_is_cut_or_changed_or_missing_is_found_out)
{
    static const char *const names[] = {"state.json", "weights.safetensors",
                                        "moments.safetensors"};
    uint64_t random = scratch_seed();
    size_t n;
    char *bytes = two_states(names[_i], &n);
    cf_checkpoint_state state;
    char path[96];

    for (size_t i = 0; i < 12; i++) {
        size_t at = scratch_random_below(&random, n);

        expect_older(names[_i], bytes, at); /* cut */
        bytes[at] ^= (char)(1 << scratch_random_below(&random, 8));
        expect_older(names[_i], bytes, n);
        (void)snprintf(path, sizeof(path), "checkpoints/step-2/%s", names[_i]);
        unlink(scratch_path(path));
        errors_begin();
        ck_assert_uint_eq(newest(&state), 1);
        (void)errors_end();
        free(bytes);
        bytes = two_states(names[_i], &n);
        ck_assert_uint_eq(newest(&state), 2);
    }
    free(bytes);
}
END_TEST

START_TEST(every_changed_byte_of_state_json_is_found_out)
{
    size_t n;
    char *text = two_states("state.json", &n);

    for (size_t i = 0; i < n; i++) {
        cf_checkpoint_state state;
        const char *why = NULL;

        text[i] ^= 4;
        ck_assert_int_eq(cf_checkpoint_state_parse(text, n, &state, &why),
                         CF_MALFORMED);
        ck_assert_ptr_nonnull(why);
        text[i] ^= 4;
        ck_assert_int_eq(cf_checkpoint_state_parse(text, i, &state, &why),
                         CF_MALFORMED);
    }
    free(text);
}
END_TEST

/* The checksum of a text that was changed on purpose. */
static size_t sign(char *text)
{
    char *tail = strstr(text, "\"checksum\"");

    ck_assert_ptr_nonnull(tail);
    (void)sprintf(tail, "\"checksum\": \"%016" PRIx64 "\"\n}\n",
                  cf_hash_of(text, (size_t)(tail - text), 0));
    return strlen(text);
}

static const struct {
    const char *was, *is;
    const char *why; /* NULL: fine */
} edits[] = {
    {"", "", NULL},
    {"\"format\": 2", "\"format\": 1", "another version"},
    {"\"format\": 2,", "", "missing"},
    {"\"step\": 2", "\"step\": -2", "negative"},
    {"\"step\": 2", "\"step\": 2.0", "missing or negative"},
    {"\"step\": 2", "\"step\": \"2\"", "missing or negative"},
    {"\"step\": 2", "\"step\": 0", "do not add up"},
    {"\"step\": 2", "\"step\": 101", "do not add up"},
    {"\"step\": 2", "\"step\": 99999999999999999999", "not valid JSON"},
    {"\"step\": 2", "\"step\": 2, \"step\": 2", "not valid JSON"},
    {"\"n_updates\": 1", "\"n_updates\": 3", "do not add up"},
    {"\"model\": \"1", "\"model\": \"g", "hash"},
    {"\"data\": \"f", "\"data\": \"", "hash"},
    {"\"options\": {", "\"options\": [{", "not valid JSON"},
    {"\"seed\": \"1\"", "\"seed\": 1", "options is malformed"},
    {"\"ledger\"", "\"ledge\"", "missing"},
    {"\"tokens\": 70", "\"tokens\": 71", "ledger does not add up"},
    {"\"bytes\": ", "\"bytes\": -", "negative"},
    {"\"weights.safetensors\"", "\"w\"", "missing"},
};

START_TEST(a_state_json_with_a_bad_field_is_told_why)
{
    size_t n;
    char *text = two_states("state.json", &n);
    char *edited = malloc(n + 256);
    char *at = strstr(text, edits[_i].was);
    cf_checkpoint_state state;
    const char *why = "";
    cf_status status;

    ck_assert_ptr_nonnull(at);
    (void)sprintf(edited, "%.*s%s%s", (int)(at - text), text, edits[_i].is,
                  at + strlen(edits[_i].was));
    status = cf_checkpoint_state_parse(edited, sign(edited), &state, &why);
    if (edits[_i].why == NULL) {
        ck_assert_int_eq(status, CF_OK);
    } else {
        ck_assert_int_eq(status, CF_MALFORMED);
        ck_assert_msg(strstr(why, edits[_i].why) != NULL, "%s", why);
    }
    free(edited);
    free(text);
}
END_TEST

/* ---- what stays ---- */

START_TEST(older_states_go_only_after_a_newer_one_is_complete)
{
    subject s;
    cf_checkpoint *checkpoint;
    const char *log;

    subject_open(&s, CF_COMPUTE_FP32, 7);
    checkpoint = writer_open(&s, 3, 0);
    save(checkpoint, 2);
    save(checkpoint, 4);
    save(checkpoint, 6);
    expect_steps("6 4 2 ");
    /* Something in the way of the next: all three stay. */
    ck_assert_int_eq(mkdir(scratch_path("checkpoints/step-8"), 0777), 0);
    ck_assert_int_eq(mkdir(scratch_path("checkpoints/step-8/x"), 0777), 0);
    errors_begin();
    save(checkpoint, 8);
    log = errors_end();
    ck_assert_ptr_nonnull(
        strstr(log, "warning: the state of step 8 is not saved, that of step 6 "
                    "is still good"));
    ck_assert_uint_eq(cf_checkpoint_saved_step(checkpoint), 6);
    ck_assert_int_ne(access(scratch_path("checkpoints/step-8.tmp"), F_OK), 0);
    expect_steps("8 6 4 2 ");
    ck_assert_int_eq(rmdir(scratch_path("checkpoints/step-8/x")), 0);
    save(checkpoint, 10);
    expect_steps("10 6 4 "); /* what was no state is gone too */
    cf_checkpoint_close(checkpoint);
    subject_close(&s);
}
END_TEST

START_TEST(a_later_writer_keeps_what_it_goes_on_from)
{
    subject s;
    cf_checkpoint *checkpoint;
    cf_checkpoint_state state;

    subject_open(&s, CF_COMPUTE_FP32, 7);
    checkpoint = writer_open(&s, 9, 0);
    for (uint64_t step = 1; step <= 5; step++)
        save(checkpoint, step);
    cf_checkpoint_close(checkpoint);
    (void)scratch_write("checkpoints/step-5/state.json", "{}", 2);
    ck_assert_int_eq(mkdir(scratch_path("checkpoints/step-9.tmp"), 0777), 0);
    errors_begin();
    ck_assert_uint_eq(newest(&state), 4);
    (void)errors_end();

    checkpoint = writer_open(&s, 2, 4); /* and keep fewer */
    ck_assert_int_ne(access(scratch_path("checkpoints/step-9.tmp"), F_OK), 0);
    expect_steps("5 4 3 2 1 ");
    save(checkpoint, 5);
    ck_assert_uint_eq(newest(&state), 5);
    expect_steps("5 4 ");
    cf_checkpoint_close(checkpoint);
    subject_close(&s);
}
END_TEST

START_TEST(only_names_of_steps_are_steps)
{
    static const char *const names[] = {
        "step-1",  "step-01", "step-0",    "step-",
        "step--1", "step-1x", "Step-2",    "step-99999999999999999999",
        "x",       "step-20", "step-3.tmp"};
    char path[96];

    ck_assert_int_eq(mkdir(scratch_path("checkpoints"), 0777), 0);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        (void)snprintf(path, sizeof(path), "checkpoints/%s", names[i]);
        ck_assert_int_eq(mkdir(scratch_path(path), 0777), 0);
    }
    expect_steps("20 1 ");
}
END_TEST

/* ---- metrics.jsonl and hashes ---- */

START_TEST(metrics_are_cut_behind_a_step)
{
    static const struct {
        const char *was, *is;
        uint64_t step;
    } cases[] = {
        {"{\"step\": 1}\n{\"step\": 2}\n{\"step\": 3}\n",
         "{\"step\": 1}\n{\"step\": 2}\n", 2},
        {"{\"step\": 1}\n{\"step\": 2, \"eval\": true}\n{\"step\": 2",
         "{\"step\": 1}\n{\"step\": 2, \"eval\": true}\n", 2},
        {"{\"step\": 1}\n{\"st\n{\"step\": 2}\n", "{\"step\": 1}\n", 1},
        {"{\"step\": 1}\n", "", 0},
        {"", "", 0},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *path = scratch_write_text("m.jsonl", cases[i].was);
        char *text;

        ck_assert_int_eq(cf_metrics_cut(path, cases[i].step), CF_OK);
        text = scratch_read("m.jsonl", NULL);
        ck_assert_str_eq(text, cases[i].is);
        free(text);
    }
    ck_assert_int_eq(cf_metrics_cut(scratch_path("none.jsonl"), 3), CF_OK);
}
END_TEST

START_TEST(the_hash_is_xxh64_however_it_is_fed)
{
    static const struct {
        const char *text;
        uint64_t hash;
    } known[] = {
        {"", 0xef46db3751d8e999},
        {"a", 0xd24ec4f1a98c6e5b},
        {"abc", 0x44bc2cf5ad770999},
        {"Nobody inspects the spammish repetition", 0xfbcea83c8a378bf1},
    };

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        for (size_t piece = 1; piece < 40; piece++) {
            size_t n = strlen(known[i].text);
            cf_hash hash;

            cf_hash_begin(&hash);
            for (size_t at = 0; at < n; at += piece)
                cf_hash_append(&hash, known[i].text + at,
                               n - at < piece ? n - at : piece);
            ck_assert_uint_eq(cf_hash_end(&hash), known[i].hash);
        }
}
END_TEST

START_TEST(the_hash_with_a_seed_is_xxh64_too)
{
    static const struct {
        const char *text;
        uint64_t seed, hash;
    } known[] = {
        {"", 2654435761, 0xac75fda2929b17ef},
        {"", 1, 0xd5afba1336a3be4b},
        {"abc", 12345, 0x01700e64f6f23509},
        {"Nobody inspects the spammish repetition", 9223372036854775815u,
         0x25912581cbb01ff2},
    };

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        ck_assert_uint_eq(
            cf_hash_of(known[i].text, strlen(known[i].text), known[i].seed),
            known[i].hash);
}
END_TEST

/* scratch_close removes files only. */
static void scratch_close_deep(void)
{
    ck_assert_int_eq(cf_path_remove(scratch_path("checkpoints")), CF_OK);
    scratch_close();
}

int main(void)
{
    Suite *suite = suite_create("checkpoint");
    TCase *tcase = tcase_create("cf_checkpoint");
    SRunner *runner;
    int failed;

    tcase_add_checked_fixture(tcase, scratch_open, scratch_close_deep);
    tcase_set_timeout(tcase, 600);
    tcase_add_loop_test(tcase, a_state_comes_back_to_the_bit, 0, 2);
    tcase_add_test(tcase, tensors_are_whole_and_under_their_names);
    tcase_add_test(tcase, a_save_allocates_nothing);
    tcase_add_test(tcase, weights_may_change_once_they_are_released);
    tcase_add_loop_test(
        tcase, a_file_that_is_cut_or_changed_or_missing_is_found_out, 0, 3);
    tcase_add_test(tcase, every_changed_byte_of_state_json_is_found_out);
    tcase_add_loop_test(tcase, a_state_json_with_a_bad_field_is_told_why, 0,
                        sizeof(edits) / sizeof(edits[0]));
    tcase_add_test(tcase, older_states_go_only_after_a_newer_one_is_complete);
    tcase_add_test(tcase, a_later_writer_keeps_what_it_goes_on_from);
    tcase_add_test(tcase, only_names_of_steps_are_steps);
    tcase_add_test(tcase, metrics_are_cut_behind_a_step);
    tcase_add_test(tcase, the_hash_is_xxh64_however_it_is_fed);
    tcase_add_test(tcase, the_hash_with_a_seed_is_xxh64_too);
    suite_add_tcase(suite, tcase);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
