/* check_parity.c - chunkflow against PyTorch and transformers.
 *
 * (1) Loss, every gradient by name and a five-step training curve equal what
 *     PyTorch says in float64, for any ChunkSize and K.
 * (2) The exported folder has the loss of PyTorch's weights.
 * (3) verify can fail: it finds one changed gradient.
 *
 * CHUNKFLOW names the program (./src/chunkflow).
 */
#include <check.h>
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parity.h"

/* What a compute type owes to the float64 reference, relative. */
typedef struct parity_precision {
    const char *compute;
    double loss_rel;
    double grad_norm_rel;
} parity_precision;

static const parity_precision fp64 = {"fp64", 1e-9, 1e-8};
/* PyTorch's own float32 is off by up to 1e-6 and 5e-6 on these fixtures. */
static const parity_precision fp32 = {"fp32", 2e-5, 2e-4};
/* Activations have 8 bits: a step of 16 targets was off by up to 2.4e-3, the
 * loss of all data by 4e-4. */
static const parity_precision bf16 = {"bf16", 5e-3, 2e-2};

/* --- verify -------------------------------------------------------------- */

/* verify of the fixture's first batch against a file of gradients. */
static parity_command verify_open(const parity_fixture *fixture,
                                  const char *gradients, const char *compute)
{
    parity_command command =
        command_open("verify", fixture->model, fixture->data);

    command_add(&command, "--no-shuffle", "--compute", compute, "--against",
                gradients, "--global-batch", NULL);
    command_addf(&command, "%.0f",
                 json_number_at(fixture->expected, "global_batch", NULL));
    return command;
}

START_TEST(gradients_are_those_of_pytorch_in_fp64)
{
    parity_fixture fixture = fixture_open(fixture_names[_i]);
    char *folder = folder_open();

    for (size_t c = 0; c < LENGTH(chunk_sizes); c++) {
        for (size_t k = 0; k < LENGTH(retained_chunks); k++) {
            parity_command verify =
                verify_open(&fixture, fixture.gradients, "fp64");

            command_add(&verify, "--tolerance", "1e-8", NULL);
            command_add_chunking(&verify, chunk_sizes[c], retained_chunks[k]);
            command_expect(&verify, folder, 0);
            expect_verdict(&verify, "==", fixture.gradients, "fp64", 1e-8);
            command_close(&verify);
        }
    }
    folder_close(folder);
    fixture_close(&fixture);
}
END_TEST

/* The file has every gradient; the frozen ones are not asked for. */
START_TEST(trained_gradients_are_those_of_pytorch_beside_frozen_parts)
{
    static const struct {
        const char *list;
        const char *frozen, *trained; /* names on standard output */
    } cases[] = {
        {"embeddings,layers:0", "model.layers.0.", "model.layers.1."},
        {"attention,norms", "self_attn", "mlp.up_proj"},
        {"embeddings,layers:0-1", "embed_tokens", "model.norm.weight"},
    };
    parity_fixture fixture = fixture_open(fixture_names[_i]);
    char *folder = folder_open();

    for (size_t c = 0; c < LENGTH(cases); c++) {
        parity_command verify =
            verify_open(&fixture, fixture.gradients, "fp64");

        command_add(&verify, "--freeze", cases[c].list, NULL);
        command_add_chunking(&verify, 16, 2);
        command_expect(&verify, folder, 0);
        expect_verdict(&verify, "==", fixture.gradients, "fp64", 1e-8);
        if (strstr(verify.out, cases[c].frozen) != NULL ||
            strstr(verify.out, cases[c].trained) == NULL)
            command_blame(&verify, "compared what is frozen");
        command_close(&verify);
    }
    folder_close(folder);
    fixture_close(&fixture);
}
END_TEST

START_TEST(gradients_are_those_of_pytorch_in_fp32)
{
    parity_fixture fixture = fixture_open(fixture_names[_i]);
    char *folder = folder_open();

    for (size_t c = 0; c < LENGTH(chunk_sizes); c++) {
        parity_command verify =
            verify_open(&fixture, fixture.gradients, "fp32");

        command_add_chunking(&verify, chunk_sizes[c], 2);
        command_expect(&verify, folder, 0);
        expect_verdict(&verify, "==", fixture.gradients, "fp32", 1e-4);
        command_close(&verify);
    }
    folder_close(folder);
    fixture_close(&fixture);
}
END_TEST

START_TEST(verify_finds_one_changed_gradient)
{
    parity_fixture fixture = fixture_open(fixture_names[_i]);
    char *folder = folder_open();
    char *changed = text_format("%s/changed.safetensors", folder);
    size_t size;
    char *bytes = file_read(fixture.gradients, &size);
    parity_command verify = verify_open(&fixture, changed, "fp64");
    double last;

    memcpy(&last, bytes + size - sizeof(last), sizeof(last));
    last += 1e-5;
    memcpy(bytes + size - sizeof(last), &last, sizeof(last));
    file_write(changed, bytes, size);

    command_add_chunking(&verify, 16, 1);
    command_expect(&verify, folder, 6);
    expect_verdict(&verify, "!=", changed, "fp64", 1e-8);

    command_close(&verify);
    free(bytes);
    free(changed);
    folder_close(folder);
    fixture_close(&fixture);
}
END_TEST

START_TEST(verify_refuses_a_file_without_one_of_the_tensors)
{
    parity_fixture fixture = fixture_open(fixture_names[_i]);
    char *folder = folder_open();
    char *renamed = text_format("%s/renamed.safetensors", folder);
    size_t size;
    char *bytes = file_read(fixture.gradients, &size);
    parity_command verify = verify_open(&fixture, renamed, "fp64");
    char *name = memmem(bytes, size, "model.norm.weight", 17);

    ck_assert_ptr_nonnull(name);
    memcpy(name, "model.norm.wright", 17);
    file_write(renamed, bytes, size);

    command_expect(&verify, folder, 3);
    if (strncmp(verify.err, "chunkflow: error: ", 18) != 0 ||
        strstr(verify.err, "model.norm.w") == NULL)
        command_blame(&verify, "the error must name the tensor");

    command_close(&verify);
    free(bytes);
    free(renamed);
    folder_close(folder);
    fixture_close(&fixture);
}
END_TEST

/* --- the training curve -------------------------------------------------- */

/* One number of one step; a reference of null wants null. */
static void expect_number(const parity_command *command, const json_t *line,
                          const json_t *expected, const char *key, double rel)
{
    const json_t *wanted = json_object_get(expected, key);
    const json_t *got = json_object_get(line, key);
    double a = json_number_value(got);
    double b = json_number_value(wanted);

    if (json_is_null(wanted) ? json_is_null(got)
                             : json_is_number(got) && is_close(a, b, rel))
        return;
    command_blame(command, "step %.0f: %s is %.17g, PyTorch has %.17g (%g)",
                  json_number_at(expected, "step", NULL), key, a, b,
                  fabs(a - b) / fabs(b));
}

static void expect_curve(const parity_command *command, const json_t *curve,
                         const json_t *expected,
                         const parity_precision *precision)
{
    static const char *const counts[] = {"step", "sequences", "tokens",
                                         "target_tokens"};

    if (json_array_size(curve) != json_array_size(expected))
        command_blame(command, "%zu lines of metrics, %zu steps",
                      json_array_size(curve), json_array_size(expected));
    for (size_t s = 0; s < json_array_size(expected); s++) {
        const json_t *line = json_array_get(curve, s);
        const json_t *step = json_array_get(expected, s);

        for (size_t i = 0; i < LENGTH(counts); i++)
            expect_number(command, line, step, counts[i], 0);
        expect_number(command, line, step, "loss", precision->loss_rel);
        expect_number(command, line, step, "grad_norm",
                      precision->grad_norm_rel);
        /* The last bits belong to the C library's cos(). */
        expect_number(command, line, step, "learning_rate", 1e-14);
    }
}

static void expect_curves_of_pytorch(const char *name,
                                     const parity_precision *precision)
{
    parity_fixture fixture = fixture_open(name);
    char *folder = folder_open();

    for (size_t c = 0; c < LENGTH(chunk_sizes); c++) {
        for (size_t k = 0; k < LENGTH(retained_chunks); k++) {
            parity_command train =
                train_open(&fixture, folder, precision->compute, chunk_sizes[c],
                           retained_chunks[k]);
            json_t *curve;

            command_expect(&train, folder, 0);
            curve = curve_read(folder);
            expect_curve(&train, curve,
                         json_object_get(fixture.expected, "curve"), precision);
            json_decref(curve);
            command_close(&train);
        }
    }
    folder_close(folder);
    fixture_close(&fixture);
}

START_TEST(training_curve_is_that_of_pytorch_in_fp64)
{
    expect_curves_of_pytorch(fixture_names[_i], &fp64);
}
END_TEST

START_TEST(training_curve_is_that_of_pytorch_in_fp32)
{
    expect_curves_of_pytorch(fixture_names[_i], &fp32);
}
END_TEST

/* One ChunkSize and K: that neither changes bits is seen elsewhere. */
START_TEST(training_curve_is_that_of_pytorch_in_bf16)
{
    parity_fixture fixture = fixture_open(fixture_names[_i]);
    char *folder = folder_open();
    parity_command train = train_open(&fixture, folder, "bf16", 16, 2);
    json_t *curve;

    command_expect(&train, folder, 0);
    curve = curve_read(folder);
    expect_curve(&train, curve, json_object_get(fixture.expected, "curve"),
                 &bf16);
    json_decref(curve);
    command_close(&train);
    folder_close(folder);
    fixture_close(&fixture);
}
END_TEST

START_TEST(ledger_balances)
{
    static const char *const kinds[] = {"read", "trained", "masked", "skipped"};
    static const char *const units[] = {"sequences", "tokens"};
    parity_fixture fixture = fixture_open(fixture_names[_i]);
    const json_t *expected = json_object_get(fixture.expected, "ledger");
    char *folder = folder_open();
    char *path = text_format("%s/run/ledger.json", folder);
    parity_command train = train_open(&fixture, folder, "fp64", 16, 1);
    json_t *ledger;

    command_expect(&train, folder, 0);
    ledger = json_read(path);
    for (size_t i = 0; i < LENGTH(kinds) * LENGTH(units); i++) {
        const char *kind = kinds[i / LENGTH(units)];
        const char *unit = units[i % LENGTH(units)];
        double got = json_number_at(ledger, kind, unit, NULL);
        double wanted = json_number_at(expected, kind, unit, NULL);

        ck_assert_msg(got == wanted, "%s: %s %s: %g, must be %g", fixture.name,
                      kind, unit, got, wanted);
    }
    ck_assert_double_eq(
        json_number_at(ledger, "trained", "target_tokens", NULL),
        json_number_at(expected, "trained", "target_tokens", NULL));

    json_decref(ledger);
    command_close(&train);
    free(path);
    folder_close(folder);
    fixture_close(&fixture);
}
END_TEST

/* --- eval ---------------------------------------------------------------- */

START_TEST(eval_loss_is_that_of_pytorch)
{
    static const char *const counts[] = {"sequences", "tokens",
                                         "target_tokens"};
    static const parity_precision *const precisions[] = {&fp64, &fp32, &bf16};
    parity_fixture fixture = fixture_open(fixture_names[_i]);
    const json_t *expected = json_object_get(fixture.expected, "data");
    char *folder = folder_open();

    for (size_t i = 0; i < LENGTH(chunk_sizes) * LENGTH(precisions); i++) {
        const parity_precision *precision = precisions[i % LENGTH(precisions)];
        json_t *result =
            eval_run(&fixture, folder, fixture.model, precision->compute,
                     chunk_sizes[i / LENGTH(precisions)]);

        expect_loss(&fixture, result, json_number_at(expected, "loss", NULL),
                    precision->loss_rel);
        for (size_t c = 0; c < LENGTH(counts); c++)
            ck_assert_double_eq(json_number_at(result, counts[c], NULL),
                                json_number_at(expected, counts[c], NULL));
        json_decref(result);
    }
    folder_close(folder);
    fixture_close(&fixture);
}
END_TEST

/* The reference rounds PyTorch's weights as the export does.  A weight that
 * lies on the edge of two roundings may fall to the other side: hence 1e-7. */
START_TEST(exported_folder_has_the_loss_of_pytorchs_weights)
{
    static const char *const dtypes[] = {"model", "fp32"};
    parity_fixture fixture = fixture_open(fixture_names[_i]);
    char *folder = folder_open();
    char *model = text_format("%s/run/model", folder);

    for (size_t d = 0; d < LENGTH(dtypes); d++) {
        parity_command train = train_open(&fixture, folder, "fp64", 16, 2);
        char *key = text_format("export_%s", dtypes[d]);
        json_t *result;

        command_add(&train, "--export-dtype", dtypes[d], NULL);
        command_expect(&train, folder, 0);
        result = eval_run(&fixture, folder, model, "fp64", 64);
        expect_loss(&fixture, result,
                    json_number_at(fixture.expected, "loss_of_data_after_curve",
                                   key, NULL),
                    1e-7);
        json_decref(result);
        free(key);
        command_close(&train);
    }
    free(model);
    folder_close(folder);
    fixture_close(&fixture);
}
END_TEST

/* --- the fixtures themselves --------------------------------------------- */

START_TEST(every_fixture_folder_is_tested)
{
    char *top = fixtures_folder();
    DIR *folder = opendir(top);
    int n_found = 0;

    ck_assert_msg(folder != NULL, "%s: no such folder", top);
    for (struct dirent *entry = readdir(folder); entry != NULL;
         entry = readdir(folder))
        n_found += entry->d_name[0] != '.';
    closedir(folder);
    ck_assert_int_eq(n_found, n_fixtures);
    free(top);
}
END_TEST

/* A curve that never clips, or always does, proves half of the rule. */
START_TEST(fixture_clips_in_some_steps_only)
{
    parity_fixture fixture = fixture_open(fixture_names[_i]);
    const json_t *options = json_object_get(fixture.expected, "train_options");
    const json_t *curve = json_object_get(fixture.expected, "curve");
    double clip = 0;
    size_t n_clipped = 0;

    for (size_t i = 0; i + 1 < json_array_size(options); i++) {
        if (strcmp(json_string_value(json_array_get(options, i)),
                   "--grad-clip") == 0)
            clip =
                strtod(json_string_value(json_array_get(options, i + 1)), NULL);
    }
    ck_assert_uint_eq(json_array_size(curve), 5);
    for (size_t s = 0; s < json_array_size(curve); s++)
        n_clipped += json_number_value(json_object_get(json_array_get(curve, s),
                                                       "grad_norm")) > clip;
    ck_assert_uint_gt(n_clipped, 0);
    ck_assert_uint_lt(n_clipped, json_array_size(curve));
    fixture_close(&fixture);
}
END_TEST

static Suite *suite_open(void)
{
    Suite *suite = suite_create("parity");
    TCase *fixtures = tcase_create("fixtures");
    TCase *pytorch = tcase_create("pytorch");
    TCase *verify = tcase_create("verify");

    tcase_add_test(fixtures, every_fixture_folder_is_tested);
    tcase_add_loop_test(fixtures, fixture_clips_in_some_steps_only, 0,
                        n_fixtures);
    suite_add_tcase(suite, fixtures);

    tcase_set_timeout(pytorch, 600);
    tcase_add_loop_test(pytorch, gradients_are_those_of_pytorch_in_fp64, 0,
                        n_fixtures);
    tcase_add_loop_test(
        pytorch, trained_gradients_are_those_of_pytorch_beside_frozen_parts, 0,
        n_fixtures);
    tcase_add_loop_test(pytorch, gradients_are_those_of_pytorch_in_fp32, 0,
                        n_fixtures);
    tcase_add_loop_test(pytorch, eval_loss_is_that_of_pytorch, 0, n_fixtures);
    tcase_add_loop_test(pytorch, training_curve_is_that_of_pytorch_in_fp64, 0,
                        n_fixtures);
    tcase_add_loop_test(pytorch, training_curve_is_that_of_pytorch_in_fp32, 0,
                        n_fixtures);
    tcase_add_loop_test(pytorch, training_curve_is_that_of_pytorch_in_bf16, 0,
                        n_fixtures);
    tcase_add_loop_test(pytorch, ledger_balances, 0, n_fixtures);
    tcase_add_loop_test(pytorch,
                        exported_folder_has_the_loss_of_pytorchs_weights, 0,
                        n_fixtures);
    suite_add_tcase(suite, pytorch);

    tcase_set_timeout(verify, 60);
    tcase_add_loop_test(verify, verify_finds_one_changed_gradient, 0,
                        n_fixtures);
    tcase_add_loop_test(verify,
                        verify_refuses_a_file_without_one_of_the_tensors, 0,
                        n_fixtures);
    suite_add_tcase(suite, verify);
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
