/* check_bf16.c - training in bf16 beside training in fp32, from outside.
 *
 * Losses that only have to be near each other at every step would be near in a
 * run that learns nothing, too: the data have a rule that a model finds, and the
 * loss must fall.
 *
 * CHUNKFLOW names the program (./src/chunkflow).
 */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parity.h"

#define CURVE_REL    5e-3
#define HELD_OUT_REL 3e-3

enum {
    N_STEPS = 200,
    SMOOTHED = 10, /* steps in one mean of losses */
    N_SEQUENCES = 80,
    N_HELD_OUT = 12
};

/* A fixture's model, trained as a whole or, beside a rank, an adapter of it. */
static const struct {
    const char *name, *learning_rate, *lora_rank;
} cases[] = {
    {"llama-mha", "2e-3", NULL},
    {"qwen2-tied", "2e-3", NULL},
    {"qwen3-untied", "2e-3", NULL},
    {"qwen3-untied", "5e-3", "8"},
};

/* Sequences in which a token mostly tells the next one. */
static void data_write(const char *path, uint32_t n_vocab, uint64_t seed,
                       size_t n_sequences)
{
    FILE *file = fopen(path, "wb");

    ck_assert_ptr_nonnull(file);
    for (size_t i = 0; i < n_sequences; i++) {
        uint32_t n_tok = 10 + random_below(&seed, 50);
        uint32_t token = random_below(&seed, n_vocab);

        fprintf(file, "{\"input_ids\":[%u", (unsigned)token);
        for (uint32_t j = 1; j < n_tok; j++) {
            token = random_below(&seed, 5) == 0 ? random_below(&seed, n_vocab)
                                                : (3 * token + 1) % n_vocab;
            fprintf(file, ",%u", (unsigned)token);
        }
        fprintf(file, "]}\n");
    }
    ck_assert_int_eq(fclose(file), 0);
}

/* metrics.jsonl of a run, and what it said. */
typedef struct told_run {
    json_t *lines;
    char *err;
} told_run;

static told_run run_open(int index, const parity_fixture *fixture,
                         const char *folder, const char *compute)
{
    char *data = text_format("%s/data.jsonl", folder);
    char *held_out = text_format("%s/held-out.jsonl", folder);
    char *metrics = text_format("%s/%s/metrics.jsonl", folder, compute);
    parity_command train = command_open("train", fixture->model, data);
    told_run run;

    command_be_loud(&train);
    command_add(&train, "--compute", compute, "--eval-data", held_out,
                "--learning-rate", cases[index].learning_rate, "--global-batch",
                "4", "--output", NULL);
    command_addf(&train, "%s/%s", folder, compute);
    if (cases[index].lora_rank != NULL)
        command_add(&train, "--lora-rank", cases[index].lora_rank, NULL);
    command_add(&train, "--steps", NULL);
    command_addf(&train, "%d", N_STEPS);
    command_add_chunking(&train, 32, 1);
    command_expect(&train, folder, 0);
    run = (told_run){json_read_lines(metrics), strdup(train.err)};
    command_close(&train);
    free(metrics);
    free(held_out);
    free(data);
    return run;
}

static void run_close(told_run *run)
{
    json_decref(run->lines);
    free(run->err);
}

static bool is_evaluation(const json_t *line)
{
    return json_is_true(json_object_get(line, "eval"));
}

/* The losses of the steps, and of the last evaluation. */
static double losses_of(const told_run *run, double steps[N_STEPS])
{
    double held_out = NAN;
    size_t n = 0;

    for (size_t i = 0; i < json_array_size(run->lines); i++) {
        const json_t *line = json_array_get(run->lines, i);
        double loss = json_number_at(line, "loss", NULL);

        if (is_evaluation(line)) {
            held_out = loss;
            continue;
        }
        ck_assert_uint_lt(n, N_STEPS);
        steps[n++] = loss;
    }
    ck_assert_uint_eq(n, N_STEPS);
    return held_out;
}

static double mean(size_t n, const double *x)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += x[i];
    return sum / (double)n;
}

static size_t count(const char *text, const char *words)
{
    size_t n = 0;

    for (const char *at = strstr(text, words); at != NULL;
         at = strstr(at + 1, words))
        n++;
    return n;
}

START_TEST(two_hundred_steps_in_bf16_have_the_losses_of_fp32)
{
    parity_fixture fixture = fixture_open(cases[_i].name);
    uint32_t n_vocab = fixture_vocab_size(&fixture);
    char *folder = folder_open();
    char *data = text_format("%s/data.jsonl", folder);
    char *held_out = text_format("%s/held-out.jsonl", folder);
    double want[N_STEPS], got[N_STEPS], want_held_out, got_held_out;
    double largest = 0;
    told_run fp32, bf16;

    data_write(data, n_vocab, 1, N_SEQUENCES);
    data_write(held_out, n_vocab, 2, N_HELD_OUT);
    fp32 = run_open(_i, &fixture, folder, "fp32");
    bf16 = run_open(_i, &fixture, folder, "bf16");
    want_held_out = losses_of(&fp32, want);
    got_held_out = losses_of(&bf16, got);

    for (size_t i = 0; i + SMOOTHED <= N_STEPS; i++) {
        double a = mean(SMOOTHED, want + i), b = mean(SMOOTHED, got + i);

        largest = fmax(largest, fabs(b - a) / a);
    }
    printf("%s: %.3g to %.3g, off by %.1e; held out %.3g, off by %.1e\n",
           cases[_i].name, want[0], want[N_STEPS - 1], largest, want_held_out,
           fabs(got_held_out - want_held_out) / want_held_out);
    ck_assert_double_lt(mean(SMOOTHED, want + N_STEPS - SMOOTHED),
                        0.8 * mean(SMOOTHED, want));
    ck_assert_double_lt(largest, CURVE_REL);
    ck_assert(is_close(got_held_out, want_held_out, HELD_OUT_REL));

    /* It is bf16, and says once what is faster, where it is. */
    ck_assert(memcmp(want, got, sizeof(want)) != 0);
    ck_assert_uint_eq(count(bf16.err, "--compute fp32 is faster"),
                      count(bf16.err, "cpu bf16 amx") == 0);
    ck_assert_uint_eq(count(fp32.err, "--compute fp32 is faster"), 0);

    run_close(&fp32);
    run_close(&bf16);
    free(data);
    free(held_out);
    folder_close(folder);
    fixture_close(&fixture);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("bf16");
    TCase *runs = tcase_create("runs");
    SRunner *runner;
    int n_failed;

    tcase_set_timeout(runs, 300);
    tcase_add_loop_test(runs, two_hundred_steps_in_bf16_have_the_losses_of_fp32,
                        0, (int)LENGTH(cases));
    suite_add_tcase(suite, runs);

    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    n_failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return n_failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
