/* check_model_folder.c - a folder out is whole, or is not there. */
#include "src/model_folder.h"

#include "tests/lib/alone.h"
#include "tests/lib/temp_folder.h"

#include <check.h>
#include <errno.h>
#include <jansson.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static const char CONFIG[] = "{\n  \"model_type\": \"llama\",\n"
                             "  \"rms_norm_eps\": 1e-05,\n"
                             "  \"torch_dtype\": \"float32\",\n"
                             "  \"unknown\": {\"dtype\": [1.10, null]}\n}\n";

enum {
    N_VALUES = 4096
};

/* A run folder with a model in `from`, and four tensors to export. */
typedef struct fixture {
    char *folder;
    char from[256], to[256];
    float values[N_VALUES];
    cf_tensor_source sources[4];
} fixture;

static void fixture_open(fixture *f)
{
    f->folder = temp_folder_open();
    snprintf(f->from, sizeof(f->from), "%s/from", f->folder);
    snprintf(f->to, sizeof(f->to), "%s/to", f->folder);
    ck_assert_int_eq(mkdir(f->from, 0777), 0);
    temp_file_write_text(f->from, "config.json", CONFIG);
    temp_file_write(f->from, "tokenizer.json", "{\"a\0b\": 1}", 10);
    temp_file_write_text(f->from, "LICENSE.txt", "Apache-2.0");
    temp_file_write_text(f->from, "generation_config.json", "{}");
    temp_file_write_text(f->from, "README.md", "not carried");
    temp_file_write_text(f->from, "model.safetensors", "not carried");
    for (int i = 0; i < N_VALUES; i++)
        f->values[i] = (float)(i % 256 - 128);
    f->sources[0] = (cf_tensor_source){
        "model.embed", CF_DTYPE_BF16, 2, {32, 64}, f->values};
    f->sources[1] =
        (cf_tensor_source){"model.norm", CF_DTYPE_F32, 1, {64}, f->values + 64};
    f->sources[2] = (cf_tensor_source){
        "model.q", CF_DTYPE_BF16, 2, {16, 64}, f->values + 128};
    f->sources[3] = (cf_tensor_source){
        "model.z", CF_DTYPE_BF16, 2, {8, 64}, f->values + 256};
}

static void assert_weights(const fixture *f, const char *folder)
{
    static float back[N_VALUES];
    cf_tensors *tensors;

    ck_assert_int_eq(cf_tensors_open_folder(folder, &tensors), CF_OK);
    ck_assert_uint_eq(cf_tensors_count(tensors), 4);
    for (size_t i = 0; i < 4; i++) {
        const cf_tensor *t = cf_tensors_find(tensors, f->sources[i].name);

        ck_assert_ptr_nonnull(t);
        ck_assert_int_eq(t->dtype, f->sources[i].dtype);
        cf_tensor_read(t, 0, t->n, CF_COMPUTE_FP32, back);
        ck_assert_mem_eq(back, f->sources[i].data, t->n * sizeof(float));
    }
    cf_tensors_close(tensors);
}

static void assert_same_file(const char *a, const char *b, const char *name)
{
    size_t n, m;
    char *x = temp_file_read(a, name, &n), *y = temp_file_read(b, name, &m);

    ck_assert_uint_eq(n, m);
    ck_assert_mem_eq(x, y, n);
    free(x);
    free(y);
}

static cf_status write_logged(const fixture *f, captured_log *log)
{
    cf_status status;

    captured_log_begin(log);
    status = cf_model_folder_write(alone(), f->from, f->to, CF_COMPUTE_FP32,
                                   f->sources, 4);
    captured_log_end(log);
    return status;
}

START_TEST(weights_config_and_tokenizer_are_in_the_folder)
{
    fixture f;
    size_t n;
    char *config;

    fixture_open(&f);
    ck_assert_int_eq(cf_model_folder_write(alone(), f.from, f.to,
                                           CF_COMPUTE_FP32, f.sources, 4),
                     CF_OK);
    ck_assert_uint_eq(temp_folder_count(f.folder), 2);
    ck_assert_uint_eq(temp_folder_count(f.to), 5);
    assert_weights(&f, f.to);
    assert_same_file(f.from, f.to, "tokenizer.json");
    assert_same_file(f.from, f.to, "LICENSE.txt");
    assert_same_file(f.from, f.to, "generation_config.json");
    config = temp_file_read(f.to, "config.json", &n);
    /* Most tensors are BF16; all other bytes stay. */
    ck_assert_str_eq(config, "{\n  \"model_type\": \"llama\",\n"
                             "  \"rms_norm_eps\": 1e-05,\n"
                             "  \"torch_dtype\": \"bfloat16\",\n"
                             "  \"unknown\": {\"dtype\": [1.10, null]}\n}\n");
    free(config);
    temp_folder_close(f.folder);
}
END_TEST

START_TEST(shards_have_an_index_of_what_was_written)
{
    fixture f;
    json_t *index, *map;
    char path[512];

    fixture_open(&f);
    /* 4096, 256, 2048, 1024 bytes: the first alone, then all others. */
    ck_assert_int_eq(cf_model_folder_write_shards(alone(), f.from, f.to,
                                                  CF_COMPUTE_FP32, f.sources, 4,
                                                  4000),
                     CF_OK);
    assert_weights(&f, f.to);
    ck_assert(!temp_file_exists(f.to, "model.safetensors"));
    ck_assert(temp_file_exists(f.to, "model-00001-of-00002.safetensors"));
    ck_assert(temp_file_exists(f.to, "model-00002-of-00002.safetensors"));
    snprintf(path, sizeof(path), "%s/model.safetensors.index.json", f.to);
    index = json_load_file(path, 0, NULL);
    map = json_object_get(index, "weight_map");
    ck_assert_uint_eq(json_object_size(map), 4);
    for (size_t i = 0; i < 4; i++)
        ck_assert_str_eq(
            json_string_value(json_object_get(map, f.sources[i].name)),
            i == 0 ? "model-00001-of-00002.safetensors"
                   : "model-00002-of-00002.safetensors");
    ck_assert_int_eq(json_integer_value(json_object_get(
                         json_object_get(index, "metadata"), "total_size")),
                     4096 + 256 + 2048 + 1024);
    json_decref(index);
    temp_folder_close(f.folder);
}
END_TEST

START_TEST(an_older_folder_is_replaced_as_a_whole)
{
    fixture f;

    fixture_open(&f);
    ck_assert_int_eq(mkdir(f.to, 0777), 0);
    temp_file_write_text(f.to, "model-00001-of-00009.safetensors", "old");
    strcat(f.to, "/"); /* as people type it */
    ck_assert_int_eq(cf_model_folder_write(alone(), f.from, f.to,
                                           CF_COMPUTE_FP32, f.sources, 4),
                     CF_OK);
    ck_assert_uint_eq(temp_folder_count(f.to), 5);
    ck_assert_uint_eq(temp_folder_count(f.folder), 2);
    assert_weights(&f, f.to);
    temp_folder_close(f.folder);
}
END_TEST

START_TEST(a_folder_can_be_written_onto_its_own_source)
{
    fixture f;

    fixture_open(&f);
    ck_assert_int_eq(cf_model_folder_write(alone(), f.from, f.from,
                                           CF_COMPUTE_FP32, f.sources, 4),
                     CF_OK);
    assert_weights(&f, f.from);
    ck_assert(temp_file_exists(f.from, "tokenizer.json"));
    temp_folder_close(f.folder);
}
END_TEST

START_TEST(what_a_killed_run_left_behind_does_not_matter)
{
    fixture f;

    fixture_open(&f);
    strcat(f.to, ".tmp");
    ck_assert_int_eq(mkdir(f.to, 0777), 0);
    temp_file_write_text(f.to, "model.safetensors", "half");
    f.to[strlen(f.to) - 4] = '\0';
    ck_assert_int_eq(cf_model_folder_write(alone(), f.from, f.to,
                                           CF_COMPUTE_FP32, f.sources, 4),
                     CF_OK);
    ck_assert_uint_eq(temp_folder_count(f.folder), 2);
    assert_weights(&f, f.to);
    temp_folder_close(f.folder);
}
END_TEST

START_TEST(a_failure_is_one_line_and_leaves_the_older_folder)
{
    fixture f;
    captured_log log;
    const struct rlimit limit = {2000, 2000};

    fixture_open(&f);
    ck_assert_int_eq(mkdir(f.to, 0777), 0);
    temp_file_write_text(f.to, "old", "kept");
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    ck_assert_int_eq(write_logged(&f, &log), CF_IO);
    ck_assert_msg(captured_log_is_error(&log, "/to.tmp/model.safetensors: "
                                              "cannot write it: File too"),
                  "%s", log.text);
    ck_assert_uint_eq(temp_folder_count(f.folder), 2);
    ck_assert(temp_file_exists(f.to, "old"));
    temp_folder_close(f.folder);
}
END_TEST

START_TEST(an_output_in_no_folder_is_one_line)
{
    fixture f;
    captured_log log;

    fixture_open(&f);
    strcpy(f.to, "/no/such/folder/to");
    ck_assert_int_eq(write_logged(&f, &log), CF_IO);
    ck_assert(captured_log_is_error(&log, "/no/such/folder/to: cannot create "
                                          "the folder: No such file"));
    temp_folder_close(f.folder);
}
END_TEST

/* Needs the right to mount; in a mount namespace of its own, so that nothing is
 * left of it. */
START_TEST(a_full_disk_is_one_line_with_the_bytes_that_are_missing)
{
    fixture f;
    captured_log log;
    char disk[512];

    fixture_open(&f);
    snprintf(disk, sizeof(disk), "%s/disk", f.folder);
    ck_assert_int_eq(mkdir(disk, 0777), 0);
    if (unshare(CLONE_NEWNS) != 0 ||
        mount("none", "/", "none", MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", disk, "tmpfs", 0, "size=20k") != 0) {
        printf("skipped: no right to mount a small disk (%s)\n",
               strerror(errno));
        temp_folder_close(f.folder);
        return;
    }
    snprintf(f.to, sizeof(f.to), "%.200s/to", disk);
    /* The small files take pages of their own; the weights do not fit. */
    f.sources[0].dtype = CF_DTYPE_F32;
    ck_assert_int_eq(write_logged(&f, &log), CF_IO);
    ck_assert_msg(captured_log_is_error(
                      &log, "/to.tmp/model.safetensors: cannot write it: No "
                            "space left on device: it needs 11"),
                  "%s", log.text);
    ck_assert_msg(strstr(log.text, " are free; make room or choose") != NULL,
                  "%s", log.text);
    ck_assert_uint_eq(temp_folder_count(disk), 0);
    ck_assert_int_eq(umount(disk), 0);
    temp_folder_close(f.folder);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("model_folder");
    TCase *cases = tcase_create("model_folder");
    SRunner *runner;
    int failed;

    tcase_add_test(cases, weights_config_and_tokenizer_are_in_the_folder);
    tcase_add_test(cases, shards_have_an_index_of_what_was_written);
    tcase_add_test(cases, an_older_folder_is_replaced_as_a_whole);
    tcase_add_test(cases, a_folder_can_be_written_onto_its_own_source);
    tcase_add_test(cases, what_a_killed_run_left_behind_does_not_matter);
    tcase_add_test(cases, a_failure_is_one_line_and_leaves_the_older_folder);
    tcase_add_test(cases, an_output_in_no_folder_is_one_line);
    tcase_add_test(cases,
                   a_full_disk_is_one_line_with_the_bytes_that_are_missing);
    suite_add_tcase(suite, cases);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
