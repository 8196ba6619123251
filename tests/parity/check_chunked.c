/* check_chunked.c - chunkflow against itself: what must not change the numbers.
 *
 * (1) Chunked equals unsplit for random lengths, masks, ChunkSize and K.
 * (2) K and the recompute policy change no bit of the curve or the weights.
 * (3) eval has the bits of train on the same batch.
 * (4) Where KV state lies changes no bit.
 *
 * CHUNKFLOW names the program (./src/chunkflow), CF_TEST_SEED the seed of (1),
 * CF_TEST_LONG=1 asks for more of it.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parity.h"

static const char *const policies[] = {"none", "selective", "layer"};

/* Fails unless both arrays hold the same bits under key. */
static void expect_same_bits(const parity_command *command, const json_t *a,
                             const json_t *b, const char *key)
{
    for (size_t s = 0; s < json_array_size(a); s++) {
        const json_t *x = json_object_get(json_array_get(a, s), key);
        const json_t *y = json_object_get(json_array_get(b, s), key);

        if (json_equal(x, y) == 0)
            command_blame(command, "step %zu: %s was %.17g, is %.17g", s + 1,
                          key, json_number_value(x), json_number_value(y));
    }
}

/* Train with K = 1 and every activation kept, then with every other K and
 * policy: the same curve and the same exported weights to the bit. */
static void expect_bits_free_of_retention(const parity_fixture *fixture,
                                          const char *compute,
                                          unsigned chunk_size)
{
    char *folder = folder_open();
    char *weights = text_format("%s/run/model/model.safetensors", folder);
    char *first_weights = text_format("%s/first.safetensors", folder);
    json_t *first = NULL;

    for (size_t i = 0; i < LENGTH(retained_chunks) * LENGTH(policies); i++) {
        parity_command train =
            train_open(fixture, folder, compute, chunk_size,
                       retained_chunks[i / LENGTH(policies)]);
        json_t *curve;

        command_add(&train, "--recompute", policies[i % LENGTH(policies)],
                    "--export-dtype", "fp32", NULL);
        command_expect(&train, folder, 0);
        curve = curve_read(folder);
        if (first == NULL) {
            first = json_incref(curve);
            ck_assert_int_eq(rename(weights, first_weights), 0);
        } else {
            expect_same_bits(&train, first, curve, "loss");
            expect_same_bits(&train, first, curve, "grad_norm");
            if (!files_equal(weights, first_weights))
                command_blame(&train, "other weights than with K = 1");
        }
        json_decref(curve);
        command_close(&train);
    }
    json_decref(first);
    free(weights);
    free(first_weights);
    folder_close(folder);
}

START_TEST(retention_changes_no_bit_in_fp64)
{
    parity_fixture fixture = fixture_open(fixture_names[_i]);

    for (size_t c = 0; c < LENGTH(chunk_sizes); c++)
        expect_bits_free_of_retention(&fixture, "fp64", chunk_sizes[c]);
    fixture_close(&fixture);
}
END_TEST

START_TEST(retention_changes_no_bit_in_fp32)
{
    parity_fixture fixture = fixture_open(fixture_names[_i]);

    for (size_t c = 0; c < LENGTH(chunk_sizes); c++)
        expect_bits_free_of_retention(&fixture, "fp32", chunk_sizes[c]);
    fixture_close(&fixture);
}
END_TEST

START_TEST(retention_changes_no_bit_in_bf16)
{
    parity_fixture fixture = fixture_open(fixture_names[_i]);

    expect_bits_free_of_retention(&fixture, "bf16", chunk_sizes[0]);
    fixture_close(&fixture);
}
END_TEST

START_TEST(eval_has_the_bits_of_train_on_the_same_batch)
{
    static const char *const computes[] = {"fp64", "fp32", "bf16"};
    parity_fixture fixture = fixture_open(fixture_names[_i]);
    double n_sequences =
        json_number_at(fixture.expected, "data", "sequences", NULL);
    char *folder = folder_open();

    for (size_t i = 0; i < LENGTH(chunk_sizes) * LENGTH(computes); i++) {
        const char *compute = computes[i % LENGTH(computes)];
        unsigned chunk_size = chunk_sizes[i / LENGTH(computes)];
        json_t *result =
            eval_run(&fixture, folder, fixture.model, compute, chunk_size);
        parity_command train =
            command_open("train", fixture.model, fixture.data);
        json_t *curve;

        command_add(&train, "--no-shuffle", "--steps", "1", "--compute",
                    compute, "--overwrite", "--output", NULL);
        command_addf(&train, "%s/run", folder);
        command_add(&train, "--global-batch", NULL);
        command_addf(&train, "%.0f", n_sequences);
        command_add_chunking(&train, chunk_size, 1);
        command_expect(&train, folder, 0);
        curve = curve_read(folder);
        expect_loss(&fixture, result,
                    json_number_at(json_array_get(curve, 0), "loss", NULL), 0);
        json_decref(curve);
        command_close(&train);
        json_decref(result);
    }
    folder_close(folder);
    fixture_close(&fixture);
}
END_TEST

/* --- chunked = unsplit --------------------------------------------------- */

/* A length with a liking for the places where chunks begin and end. */
static uint32_t random_length(uint64_t *state, uint32_t chunk_size)
{
    switch (random_below(state, 4)) {
    case 0:
        return random_below(state, 6);
    case 1:
        return chunk_size * (1 + random_below(state, 4)) +
               random_below(state, 3) - 1;
    default:
        return random_below(state, 200);
    }
}

/* One JSONL line.  density / 4 of the tokens are targets; 4 leaves the labels
 * out. */
static void write_sequence(FILE *file, uint64_t *state, uint32_t length,
                           uint32_t vocab_size, uint32_t density)
{
    uint64_t ids = *state;
    uint64_t again = *state;

    fputs("{\"input_ids\":[", file);
    for (uint32_t i = 0; i < length; i++)
        fprintf(file, "%s%u", i > 0 ? "," : "", random_below(&ids, vocab_size));
    *state = ids;
    if (density < 4) {
        fputs("],\"labels\":[", file);
        for (uint32_t i = 0; i < length; i++) {
            int label = (int)random_below(&again, vocab_size);

            if (random_below(state, 4) >= density)
                label = -100;
            fprintf(file, "%s%d", i > 0 ? "," : "", label);
        }
    }
    fputs("]}\n", file);
}

/* Up to eight sequences.  The first has targets up to its end and more than a
 * few tokens: with a shorter one alone some gradients are zero but for
 * rounding, and no relative difference means anything. */
static uint32_t write_random_data(const char *path, uint64_t *state,
                                  uint32_t vocab_size, uint32_t chunk_size)
{
    uint32_t n_sequences = 1 + random_below(state, 8);
    FILE *file = fopen(path, "w");

    ck_assert_ptr_nonnull(file);
    write_sequence(file, state, 8 + random_length(state, chunk_size),
                   vocab_size, 4);
    for (uint32_t s = 1; s < n_sequences; s++)
        write_sequence(file, state, random_length(state, chunk_size),
                       vocab_size, random_below(state, 5));
    ck_assert_int_eq(fclose(file), 0);
    return n_sequences;
}

static void expect_chunked_is_unsplit(const parity_fixture *fixture,
                                      const char *folder, uint64_t *state,
                                      uint32_t vocab_size)
{
    static const uint32_t sizes[] = {1, 2, 3, 5, 8, 13, 16, 31, 64, 100, 300};
    uint32_t chunk_size = sizes[random_below(state, LENGTH(sizes))];
    char *data = text_format("%s/data.jsonl", folder);
    uint32_t n_sequences =
        write_random_data(data, state, vocab_size, chunk_size);
    parity_command verify = command_open("verify", fixture->model, data);

    command_add(&verify, "--no-shuffle", "--compute", "fp64", "--tolerance",
                "1e-10", "--recompute",
                policies[random_below(state, LENGTH(policies))],
                "--global-batch", NULL);
    command_addf(&verify, "%u", 1 + random_below(state, n_sequences));
    command_add_chunking(&verify, chunk_size, 1 + random_below(state, 5));
    command_expect(&verify, folder, 0);
    expect_verdict(&verify, "==", "unsplit", "fp64", 1e-10);
    command_close(&verify);
    free(data);
}

/* --- KV state in a file --------------------------------------------------- */

/* Sequences of several pages, the longest of six. */
static void long_data_write(const char *path, uint32_t vocab_size)
{
    static const uint32_t lengths[] = {700, 20, 1400, 40, 300, 513};
    uint64_t state = 3;
    FILE *file = fopen(path, "w");

    ck_assert_ptr_nonnull(file);
    for (size_t i = 0; i < LENGTH(lengths); i++)
        write_sequence(file, &state, lengths[i], vocab_size, 4);
    ck_assert_int_eq(fclose(file), 0);
}

/* Nothing of it in memory, some layers of it, all of it; beside other things
 * that move what a layer has, and where. */
START_TEST(kv_state_in_a_file_changes_no_bit)
{
    static const char *const memory[] = {NULL, "1", "500KiB", "1GiB"};
    static const char *const beside[][2] = {
        {"--recompute", "selective"},
        {"--freeze", "embeddings,layers:0"},
        {"--recompute", "layer"},
    };
    parity_fixture fixture = fixture_open("qwen2-tied");
    char *folder = folder_open();
    char *data = text_format("%s/data.jsonl", folder);
    char *weights = text_format("%s/run/model/model.safetensors", folder);
    char *first_weights = text_format("%s/first.safetensors", folder);
    json_t *first = NULL;
    double peak = 0;

    long_data_write(data, fixture_vocab_size(&fixture));
    for (size_t i = 0; i < LENGTH(memory); i++) {
        parity_command train = command_open("train", fixture.model, data);
        json_t *curve;
        double bytes;

        command_add(&train, "--global-batch", "2", "--epochs", "2",
                    "--overwrite", beside[_i][0], beside[_i][1], "--output",
                    NULL);
        command_addf(&train, "%s/run", folder);
        command_add_chunking(&train, 300, 1);
        if (i > 0)
            command_add(&train, "--kv-dir", folder, "--kv-memory", memory[i],
                        NULL);
        command_expect(&train, folder, 0);
        curve = curve_read(folder);
        bytes = json_number_at(json_array_get(curve, 0), "peak_bytes", NULL);
        if (first == NULL) {
            first = json_incref(curve);
            peak = bytes;
            ck_assert_int_eq(rename(weights, first_weights), 0);
        }
        expect_same_bits(&train, first, curve, "loss");
        expect_same_bits(&train, first, curve, "grad_norm");
        if (i > 0 && !files_equal(weights, first_weights))
            command_blame(&train, "other weights than with all in memory");
        if (i == 0 || i + 1 == LENGTH(memory))
            ck_assert_double_eq(bytes, peak);
        else
            ck_assert_double_lt(bytes, peak);
        json_decref(curve);
        command_close(&train);
    }
    json_decref(first);
    free(first_weights);
    free(weights);
    free(data);
    folder_close(folder);
    fixture_close(&fixture);
}
END_TEST

START_TEST(a_folder_without_room_for_kv_state_is_refused)
{
    static const char *const folders[][2] = {
        {"/nowhere/at/all", "No such file"},
        {"/dev/null", "Not a directory"},
    };
    parity_fixture fixture = fixture_open("qwen2-tied");
    char *folder = folder_open();

    for (size_t i = 0; i < LENGTH(folders); i++) {
        parity_command train = train_open(&fixture, folder, "fp32", 16, 1);

        command_add(&train, "--kv-dir", folders[i][0], NULL);
        command_expect(&train, folder, 1);
        ck_assert_msg(strstr(train.err, "--kv-dir '") != NULL &&
                          strstr(train.err, folders[i][1]) != NULL,
                      "%s", train.err);
        command_close(&train);
    }
    folder_close(folder);
    fixture_close(&fixture);
}
END_TEST

START_TEST(chunked_is_unsplit_for_random_lengths)
{
    const char *is_long = getenv("CF_TEST_LONG");
    int n_cases = is_long != NULL && strcmp(is_long, "1") == 0 ? 1000 : 30;
    parity_fixture fixture = fixture_open(fixture_names[_i]);
    uint32_t vocab_size = fixture_vocab_size(&fixture);
    char *folder = folder_open();
    uint64_t state = random_seed(fixture.name);

    for (int i = 0; i < n_cases; i++)
        expect_chunked_is_unsplit(&fixture, folder, &state, vocab_size);
    folder_close(folder);
    fixture_close(&fixture);
}
END_TEST

static Suite *suite_open(void)
{
    Suite *suite = suite_create("chunked");
    TCase *random = tcase_create("random");
    TCase *bits = tcase_create("bits");

    tcase_set_timeout(random, 3600);
    tcase_add_loop_test(random, chunked_is_unsplit_for_random_lengths, 0,
                        n_fixtures);
    suite_add_tcase(suite, random);

    tcase_set_timeout(bits, 600);
    tcase_add_loop_test(bits, retention_changes_no_bit_in_fp64, 0, n_fixtures);
    tcase_add_loop_test(bits, retention_changes_no_bit_in_fp32, 0, n_fixtures);
    tcase_add_loop_test(bits, retention_changes_no_bit_in_bf16, 0, n_fixtures);
    tcase_add_loop_test(bits, eval_has_the_bits_of_train_on_the_same_batch, 0,
                        n_fixtures);
    tcase_add_loop_test(bits, kv_state_in_a_file_changes_no_bit, 0, 3);
    tcase_add_test(bits, a_folder_without_room_for_kv_state_is_refused);
    suite_add_tcase(suite, bits);
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
