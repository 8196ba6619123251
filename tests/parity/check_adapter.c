/* check_adapter.c - LoRA against PEFT, and against itself.
 *
 * (1) Loss, every gradient of an adapter by name, a five-step training curve and
 *     the adapter after it equal what PEFT says in float64, for any ChunkSize
 *     and K.
 * (2) K, the recompute policy and where a run was stopped change no bit.
 * (3) A merged model has the loss of the model with its adapter.
 * (4) What is not this model's adapter, or not there, is refused by name.
 *
 * CHUNKFLOW names the program (./src/chunkflow).
 */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "parity.h"
#include "src/safetensors.h"

static const char *const names[] = {"all-targets", "holes", "one-of-each"};

/* A folder of tests/parity/adapters, with the fixture that it is for. */
typedef struct adapter_fixture {
    parity_fixture base;
    char *adapter; /* as PEFT wrote it */
    char *gradients;
    char *after_curve;
    json_t *expected;
} adapter_fixture;

static adapter_fixture adapter_open(const char *name)
{
    char *top = fixtures_folder();
    char *folder = text_format("%s/../adapters/%s", top, name);
    char *path = text_format("%s/expected.json", folder);
    adapter_fixture f = {
        .adapter = text_format("%s/adapter", folder),
        .gradients = text_format("%s/gradients.safetensors", folder),
        .after_curve = text_format("%s/after_curve.safetensors", folder),
        .expected = json_read(path),
    };

    f.base =
        fixture_open(json_string_value(json_object_get(f.expected, "base")));
    free(path);
    free(folder);
    free(top);
    return f;
}

static void adapter_close(adapter_fixture *f)
{
    fixture_close(&f->base);
    json_decref(f->expected);
    free(f->after_curve);
    free(f->gradients);
    free(f->adapter);
}

static parity_command adapter_command(const char *name,
                                      const adapter_fixture *f)
{
    return command_open(name, f->base.model, f->base.data);
}

/* verify of the first batch, with this adapter. */
static parity_command verify_open(const adapter_fixture *f, const char *compute)
{
    parity_command command = adapter_command("verify", f);

    command_add(&command, "--no-shuffle", "--compute", compute,
                "--init-adapter", f->adapter, "--global-batch", NULL);
    command_addf(&command, "%.0f",
                 json_number_at(f->expected, "global_batch", NULL));
    return command;
}

/* train from this adapter, with the options of the curve, into folder/run. */
static parity_command curve_open(const adapter_fixture *f, const char *folder,
                                 const char *compute, unsigned chunk_size,
                                 unsigned k)
{
    parity_command command = adapter_command("train", f);

    command_add_array(&command, json_object_get(f->expected, "train_options"));
    command_add(&command, "--init-adapter", f->adapter, "--compute", compute,
                NULL);
    command_addf(&command, "--output=%s/run", folder);
    command_add_chunking(&command, chunk_size, k);
    return command;
}

/* The loss over all data; with adapter NULL of the model alone. */
static double loss_of(const adapter_fixture *f, const char *folder,
                      const char *model, const char *adapter)
{
    parity_command eval = command_open("eval", model, f->base.data);
    json_t *result;
    double loss;

    command_add(&eval, "--json", "--compute", "fp64", "--chunk-size", "16",
                NULL);
    if (adapter != NULL)
        command_add(&eval, "--adapter", adapter, NULL);
    command_expect(&eval, folder, 0);
    result = json_loads(eval.out, 0, NULL);
    loss = json_number_at(result, "loss", NULL);
    json_decref(result);
    command_close(&eval);
    return loss;
}

static void expect_close(double got, double wanted, double rel)
{
    ck_assert_msg(is_close(got, wanted, rel), "%.17g, must be %.17g (%g)", got,
                  wanted, fabs(got - wanted) / fabs(wanted));
}

/* ---- PEFT ---- */

START_TEST(gradients_are_those_of_peft)
{
    static const char *const computes[] = {"fp64", "fp32"};
    static const double tolerances[] = {1e-12, 1e-4};
    adapter_fixture f = adapter_open(names[_i]);
    char *folder = folder_open();

    for (size_t i = 0; i < 2; i++)
        for (size_t c = 0; c < LENGTH(chunk_sizes); c++)
            for (size_t k = 0; k < LENGTH(retained_chunks); k++) {
                parity_command verify = verify_open(&f, computes[i]);

                command_add(&verify, "--against", f.gradients, NULL);
                command_addf(&verify, "--tolerance=%g", tolerances[i]);
                command_add_chunking(&verify, chunk_sizes[c],
                                     retained_chunks[k]);
                command_expect(&verify, folder, 0);
                expect_verdict(&verify, "==", f.gradients, computes[i],
                               tolerances[i]);
                if (strstr(verify.out, "\nmodel.layers") != NULL)
                    command_blame(&verify, "a frozen weight has a gradient");
                command_close(&verify);
            }
    folder_close(folder);
    adapter_close(&f);
}
END_TEST

START_TEST(chunked_is_unsplit)
{
    adapter_fixture f = adapter_open(names[_i]);
    char *folder = folder_open();

    for (size_t c = 0; c < LENGTH(chunk_sizes); c++) {
        parity_command verify = verify_open(&f, "fp64");

        command_add(&verify, "--tolerance", "1e-12", NULL);
        command_add_chunking(&verify, chunk_sizes[c], 2);
        command_expect(&verify, folder, 0);
        expect_verdict(&verify, "==", "unsplit", "fp64", 1e-12);
        command_close(&verify);
    }
    folder_close(folder);
    adapter_close(&f);
}
END_TEST

/* Loss and norm of every step; null where PEFT has null. */
static void expect_curve(const parity_command *train, const json_t *curve,
                         const json_t *expected)
{
    static const char *const keys[] = {"loss", "grad_norm"};

    ck_assert_uint_eq(json_array_size(curve), json_array_size(expected));
    for (size_t s = 0; s < json_array_size(curve); s++)
        for (size_t i = 0; i < LENGTH(keys); i++) {
            const json_t *got =
                json_object_get(json_array_get(curve, s), keys[i]);
            const json_t *wanted =
                json_object_get(json_array_get(expected, s), keys[i]);

            if (!json_equal((json_t *)got, (json_t *)wanted) &&
                !(json_is_number(got) && json_is_number(wanted) &&
                  is_close(json_number_value(got), json_number_value(wanted),
                           1e-10)))
                command_blame(train, "step %zu: %s is %.17g, PEFT has %.17g",
                              s + 1, keys[i], json_number_value(got),
                              json_number_value(wanted));
        }
}

/* What train leaves, in float32, against PEFT's float64. */
static void expect_same_adapter(const char *got_path, const char *wanted_path)
{
    cf_tensors *got, *wanted;

    ck_assert_int_eq(cf_tensors_open_file(got_path, &got), CF_OK);
    ck_assert_int_eq(cf_tensors_open_file(wanted_path, &wanted), CF_OK);
    ck_assert_uint_eq(cf_tensors_count(got), cf_tensors_count(wanted));
    for (size_t i = 0; i < cf_tensors_count(got); i++) {
        const cf_tensor *a = cf_tensors_at(got, i);
        const cf_tensor *b = cf_tensors_at(wanted, i);
        double x[4096], y[4096];

        ck_assert_str_eq(a->name, b->name);
        ck_assert_int_eq(a->dtype, CF_DTYPE_F32);
        ck_assert_uint_eq(a->n_dims, 2);
        ck_assert_uint_eq(a->dims[0], b->dims[0]);
        ck_assert_uint_eq(a->dims[1], b->dims[1]);
        ck_assert_uint_le(a->n, LENGTH(x));
        cf_tensor_read(a, 0, a->n, CF_COMPUTE_FP64, x);
        cf_tensor_read(b, 0, b->n, CF_COMPUTE_FP64, y);
        for (size_t j = 0; j < a->n; j++)
            ck_assert_msg(fabs(x[j] - y[j]) <= 1e-7, "%s[%zu]: %.9g, %.9g",
                          a->name, j, x[j], y[j]);
    }
    cf_tensors_close(wanted);
    cf_tensors_close(got);
}

START_TEST(training_curve_and_adapter_are_those_of_peft)
{
    adapter_fixture f = adapter_open(names[_i]);
    char *folder = folder_open();
    char *saved = text_format("%s/run/adapter", folder);
    char *file = text_format("%s/adapter_model.safetensors", saved);
    char *model = text_format("%s/run/model", folder);

    for (size_t c = 0; c < LENGTH(chunk_sizes); c++) {
        parity_command train =
            curve_open(&f, folder, "fp64", chunk_sizes[c], 1 + (unsigned)c);
        json_t *curve;

        command_add(&train, "--overwrite", NULL);
        command_expect(&train, folder, 0);
        curve = curve_read(folder);
        expect_curve(&train, curve, json_object_get(f.expected, "curve"));
        expect_same_adapter(file, f.after_curve);
        ck_assert_msg(access(model, F_OK) != 0, "model/ without --merge");
        json_decref(curve);
        command_close(&train);
    }
    expect_close(loss_of(&f, folder, f.base.model, saved),
                 json_number_at(f.expected, "loss_of_data_after_curve", NULL),
                 1e-7);
    free(model);
    free(file);
    free(saved);
    folder_close(folder);
    adapter_close(&f);
}
END_TEST

START_TEST(eval_loss_is_that_of_peft)
{
    adapter_fixture f = adapter_open(names[_i]);
    char *folder = folder_open();

    expect_close(loss_of(&f, folder, f.base.model, f.adapter),
                 json_number_at(f.expected, "loss_of_data", NULL), 1e-12);
    folder_close(folder);
    adapter_close(&f);
}
END_TEST

/* ---- itself ---- */

START_TEST(retention_changes_no_bit)
{
    static const char *const policies[] = {"none", "selective", "layer"};
    adapter_fixture f = adapter_open(names[_i]);
    char *folder = folder_open();
    char *file =
        text_format("%s/run/checkpoints/step-5/moments.safetensors", folder);
    char *first = text_format("%s/first", folder);
    char *saved =
        text_format("%s/run/adapter/adapter_model.safetensors", folder);
    char *first_saved = text_format("%s/first-adapter", folder);
    bool is_first = true;

    for (size_t k = 0; k < LENGTH(retained_chunks); k++)
        for (size_t p = 0; p < LENGTH(policies); p++) {
            parity_command train =
                curve_open(&f, folder, "fp32", 16, retained_chunks[k]);

            command_add(&train, "--overwrite", "--recompute", policies[p],
                        NULL);
            command_expect(&train, folder, 0);
            if (is_first) {
                ck_assert_int_eq(rename(file, first), 0);
                ck_assert_int_eq(rename(saved, first_saved), 0);
            } else if (!files_equal(saved, first_saved) ||
                       !files_equal(file, first)) {
                command_blame(&train, "other bits than with K = 1");
            }
            is_first = false;
            command_close(&train);
        }
    free(first_saved);
    free(saved);
    free(first);
    free(file);
    folder_close(folder);
    adapter_close(&f);
}
END_TEST

/* The base is float16 or float32; a merged weight is rounded to it, unless fp32
 * is asked for. */
START_TEST(a_merged_model_has_the_loss_of_model_and_adapter)
{
    adapter_fixture f = adapter_open(names[_i]);
    char *folder = folder_open();
    char *merged = text_format("%s/merged", folder);
    char *exported = text_format("%s/run/model", folder);
    char *saved = text_format("%s/run/adapter", folder);
    parity_command merge = adapter_command("merge", &f);
    parity_command train = curve_open(&f, folder, "fp64", 16, 1);
    parity_command again = {.n_args = 0};

    /* merge has no --data and no --threads. */
    command_close(&merge);
    merge = (parity_command){.exit_code = -1};
    command_add(&merge, train.argv[0], "merge", "--model", f.base.model,
                "--adapter", f.adapter, "--output", merged, "--export-dtype",
                "fp32", "--quiet", NULL);
    command_expect(&merge, folder, 0);
    expect_close(loss_of(&f, folder, merged, NULL),
                 json_number_at(f.expected, "loss_of_data", NULL), 1e-6);

    command_add(&train, "--merge", "--export-dtype", "fp32", NULL);
    command_expect(&train, folder, 0);
    expect_close(loss_of(&f, folder, exported, NULL),
                 loss_of(&f, folder, f.base.model, saved), 1e-6);

    /* The state of the run gives both again. */
    command_add(&again, train.argv[0], "export", "--merge", "--export-dtype",
                "fp32", "--quiet", "--output", NULL);
    command_addf(&again, "%s/run", folder);
    folder_close(strdup(exported));
    folder_close(strdup(saved));
    command_expect(&again, folder, 0);
    expect_close(loss_of(&f, folder, exported, NULL),
                 loss_of(&f, folder, f.base.model, saved), 1e-6);
    command_close(&again);
    command_close(&train);
    command_close(&merge);
    free(saved);
    free(exported);
    free(merged);
    folder_close(folder);
    adapter_close(&f);
}
END_TEST

/* Two runs of which the second goes on from the adapter of the first differ from
 * a run of both only in what the optimizer remembers. */
START_TEST(a_new_adapter_changes_nothing_until_it_is_trained)
{
    adapter_fixture f = adapter_open(names[_i]);
    char *folder = folder_open();
    char *saved = text_format("%s/run/adapter", folder);
    parity_command train = adapter_command("train", &f);

    command_addf(&train, "--output=%s/run", folder);
    command_add(&train, "--lora-rank", "5", "--lora-targets",
                "q_proj,v_proj,down_proj", "--steps", "1", "--learning-rate",
                "0", NULL);
    command_expect(&train, folder, 0);
    expect_close(loss_of(&f, folder, f.base.model, saved),
                 loss_of(&f, folder, f.base.model, NULL), 1e-14);
    command_close(&train);
    free(saved);
    folder_close(folder);
    adapter_close(&f);
}
END_TEST

/* ---- what is refused ---- */

static void expect_refused(parity_command *command, const char *folder,
                           int exit_code, const char *part)
{
    command_expect(command, folder, exit_code);
    if (strncmp(command->err, "chunkflow: error: ", 18) != 0 ||
        strstr(command->err, part) == NULL ||
        strchr(command->err, '\n') != command->err + strlen(command->err) - 1)
        command_blame(command, "not one error with \"%s\"", part);
    command_close(command);
}

START_TEST(options_that_do_not_fit_are_refused)
{
    static const struct {
        const char *words[5];
        const char *part;
    } cases[] = {
        {{"--lora-alpha", "3"}, "--lora-alpha needs --lora-rank"},
        {{"--lora-targets", "q_proj"}, "--lora-targets needs --lora-rank"},
        {{"--merge"}, "--merge needs --lora-rank"},
        {{"--lora-rank", "2", "--lora-targets", "q_proj,lm_head"},
         "'lm_head' is not one of q_proj"},
        {{"--lora-rank", "2", "--lora-targets", "q_proj,q_proj"},
         "'q_proj' is given twice"},
        {{"--lora-rank", "2", "--freeze", "norms"}, "--freeze and an adapter"},
        {{"--lora-rank", "2", "--lora-dropout", "0.1"},
         "--lora-dropout: 0.1 is not there yet in this version, only 0 is"},
        {{"--lora-rank", "x"}, "--lora-rank: \"x\" is not a whole number"},
    };
    adapter_fixture f = adapter_open("all-targets");
    char *folder = folder_open();
    char *run = text_format("%s/run", folder);

    for (size_t i = 0; i < LENGTH(cases); i++) {
        parity_command train = adapter_command("train", &f);

        command_add(&train, "--output", run, NULL);
        for (size_t w = 0; w < 5 && cases[i].words[w] != NULL; w++)
            command_add(&train, cases[i].words[w], NULL);
        expect_refused(&train, folder, 2, cases[i].part);
        ck_assert_msg(access(run, F_OK) != 0, "a run folder was made");
    }
    free(run);
    folder_close(folder);
    adapter_close(&f);
}
END_TEST

START_TEST(options_that_are_not_those_of_the_adapter_are_refused)
{
    static const char *const cases[][3] = {
        {"--lora-rank", "5", "--lora-rank: the adapter "},
        {"--lora-alpha", "5", " has alpha 6; leave it out"},
        {"--lora-targets", "q_proj",
         " has q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj"},
    };
    adapter_fixture f = adapter_open("all-targets");
    char *folder = folder_open();

    for (size_t i = 0; i < LENGTH(cases); i++) {
        parity_command verify = verify_open(&f, "fp64");

        command_add(&verify, cases[i][0], cases[i][1], NULL);
        expect_refused(&verify, folder, 2, cases[i][2]);
    }
    folder_close(folder);
    adapter_close(&f);
}
END_TEST

/* A copy of the adapter in folder/copy with a patch of its configuration. */
static char *adapter_copy(const adapter_fixture *f, const char *folder,
                          const char *patch)
{
    static const char *const files[] = {"adapter_config.json",
                                        "adapter_model.safetensors"};
    char *copy = text_format("%s/copy", folder);
    char *make = text_format("mkdir -p '%s'", copy);

    ck_assert_int_eq(system(make), 0);
    for (size_t i = 0; i < 2; i++) {
        char *from = text_format("%s/%s", f->adapter, files[i]);
        char *to = text_format("%s/%s", copy, files[i]);
        size_t size;
        char *bytes = file_read(from, &size);

        file_write(to, bytes, size);
        if (i == 0) {
            json_t *config = json_read(to);

            ck_assert_int_eq(
                json_object_update_new(config, json_loads(patch, 0, NULL)), 0);
            ck_assert_int_eq(json_dump_file(config, to, 0), 0);
            json_decref(config);
        }
        free(bytes);
        free(to);
        free(from);
    }
    free(make);
    return copy;
}

START_TEST(adapters_that_are_not_understood_are_refused)
{
    static const char *const cases[][2] = {
        {"{\"r\": 5}", "has shape [4, "},
        {"{\"r\": 0}", "field \"r\""},
        {"{\"target_modules\": [\"q_proj\", \"lm_head\"]}",
         "names 'lm_head': chunkflow has q_proj"},
        {"{\"target_modules\": [\"q_proj\"]}",
         "does not belong to an adapter of this model"},
        {"{\"target_modules\": \".*_proj\"}", "must be a list of names"},
        {"{\"lora_dropout\": 0.05}", "must be 0: chunkflow trains without"},
        {"{\"use_rslora\": true}", "field \"use_rslora\""},
        {"{\"use_dora\": true}", "field \"use_dora\""},
        {"{\"bias\": \"all\"}", "field \"bias\""},
        {"{\"rank_pattern\": {\"q_proj\": 8}}", "field \"rank_pattern\""},
        {"{\"layers_to_transform\": [0]}", "field \"layers_to_transform\""},
        {"{\"modules_to_save\": [\"lm_head\"]}", "field \"modules_to_save\""},
        {"{\"init_lora_weights\": \"pissa\"}", "field \"init_lora_weights\""},
        {"{\"peft_type\": \"IA3\"}", "must be \"LORA\""},
    };
    adapter_fixture f = adapter_open("all-targets");
    char *folder = folder_open();

    for (size_t i = 0; i < LENGTH(cases); i++) {
        char *copy = adapter_copy(&f, folder, cases[i][0]);
        parity_command verify = adapter_command("verify", &f);

        command_add(&verify, "--init-adapter", copy, NULL);
        expect_refused(&verify, folder, 3, cases[i][1]);
        free(copy);
    }
    folder_close(folder);
    adapter_close(&f);
}
END_TEST

/* Dropout is of training alone. */
START_TEST(an_adapter_trained_with_dropout_is_evaluated)
{
    adapter_fixture f = adapter_open("all-targets");
    char *folder = folder_open();
    char *copy = adapter_copy(&f, folder, "{\"lora_dropout\": 0.05}");

    expect_close(loss_of(&f, folder, f.base.model, copy),
                 json_number_at(f.expected, "loss_of_data", NULL), 1e-12);
    free(copy);
    folder_close(folder);
    adapter_close(&f);
}
END_TEST

START_TEST(the_adapter_of_another_model_is_refused)
{
    adapter_fixture f = adapter_open("all-targets");
    adapter_fixture other = adapter_open("holes");
    char *folder = folder_open();
    parity_command eval = adapter_command("eval", &f);

    command_add(&eval, "--adapter", other.adapter, NULL);
    expect_refused(&eval, folder, 3,
                   "name the model that the adapter was made for");
    eval = adapter_command("eval", &f);
    command_add(&eval, "--adapter", folder, NULL);
    expect_refused(&eval, folder, 3, "adapter_config.json");
    folder_close(folder);
    adapter_close(&other);
    adapter_close(&f);
}
END_TEST

/* Rank, alpha, targets and the adapter that a run began with belong to it. */
START_TEST(resume_refuses_another_adapter)
{
    static const struct {
        const char *words[3];
        const char *part;
    } cases[] = {
        {{"--lora-rank", "3"}, "--lora-rank was 2, is 3"},
        {{"--lora-rank", "0"}, "--lora-rank was 2, is 0"},
        {{"--lora-rank=2", "--lora-alpha", "5"},
         "--lora-alpha was not given, is 5"},
        {{"--lora-rank=2", "--lora-targets", "q_proj"},
         "--lora-targets was not given, is q_proj"},
    };
    adapter_fixture f = adapter_open("all-targets");
    char *folder = folder_open();
    parity_command train = adapter_command("train", &f);

    command_addf(&train, "--output=%s/run", folder);
    command_add(&train, "--steps", "2", "--lora-rank", "2", NULL);
    command_expect(&train, folder, 0);
    command_close(&train);
    for (size_t i = 0; i < LENGTH(cases); i++) {
        train = adapter_command("train", &f);
        command_addf(&train, "--output=%s/run", folder);
        command_add(&train, "--steps", "2", "--resume", NULL);
        for (size_t w = 0; w < 3 && cases[i].words[w] != NULL; w++)
            command_add(&train, cases[i].words[w], NULL);
        expect_refused(&train, folder, 2, cases[i].part);
    }
    train = adapter_command("train", &f);
    command_addf(&train, "--output=%s/run", folder);
    command_add(&train, "--steps", "2", "--resume", "--init-adapter", f.adapter,
                NULL);
    expect_refused(&train, folder, 2,
                   "--init-adapter was not given, is one of content");
    folder_close(folder);
    adapter_close(&f);
}
END_TEST

START_TEST(an_adapter_in_the_run_folder_is_not_overwritten)
{
    adapter_fixture f = adapter_open("all-targets");
    char *folder = folder_open();
    parity_command train = curve_open(&f, folder, "fp32", 16, 1);

    command_expect(&train, folder, 0);
    command_close(&train);
    train = adapter_command("train", &f);
    command_addf(&train, "--output=%s/run", folder);
    command_addf(&train, "--init-adapter=%s/run/adapter", folder);
    command_add(&train, "--overwrite", NULL);
    expect_refused(&train, folder, 2, "is part of the run that --overwrite");
    folder_close(folder);
    adapter_close(&f);
}
END_TEST

static Suite *suite_open(void)
{
    const int n = LENGTH(names);
    Suite *suite = suite_create("adapter");
    TCase *peft = tcase_create("peft");
    TCase *itself = tcase_create("itself");
    TCase *refused = tcase_create("refused");

    tcase_add_loop_test(peft, gradients_are_those_of_peft, 0, n);
    tcase_add_loop_test(peft, chunked_is_unsplit, 0, n);
    tcase_add_loop_test(peft, training_curve_and_adapter_are_those_of_peft, 0,
                        n);
    tcase_add_loop_test(peft, eval_loss_is_that_of_peft, 0, n);
    tcase_set_timeout(peft, 120);
    suite_add_tcase(suite, peft);
    tcase_add_loop_test(itself, retention_changes_no_bit, 0, n);
    tcase_add_loop_test(itself,
                        a_merged_model_has_the_loss_of_model_and_adapter, 0, n);
    tcase_add_loop_test(
        itself, a_new_adapter_changes_nothing_until_it_is_trained, 0, n);
    tcase_set_timeout(itself, 120);
    suite_add_tcase(suite, itself);
    tcase_add_test(refused, options_that_do_not_fit_are_refused);
    tcase_add_test(refused,
                   options_that_are_not_those_of_the_adapter_are_refused);
    tcase_add_test(refused, adapters_that_are_not_understood_are_refused);
    tcase_add_test(refused, an_adapter_trained_with_dropout_is_evaluated);
    tcase_add_test(refused, the_adapter_of_another_model_is_refused);
    tcase_add_test(refused, resume_refuses_another_adapter);
    tcase_add_test(refused, an_adapter_in_the_run_folder_is_not_overwritten);
    tcase_set_timeout(refused, 120);
    suite_add_tcase(suite, refused);
    return suite;
}

int main(void)
{
    SRunner *runner = srunner_create(suite_open());
    int n_failed;

    srunner_run_all(runner, CK_NORMAL);
    n_failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return n_failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
