/* check_batches.c - which sequences make up each step. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/batches.h"
#include "tests/lib/scratch.h"

enum {
    N_MAX = 4096,
    PARTS_MAX = 4
};

/* Parts of so many sequences; sequence i of all has i * 7 % 23 tokens. */
static cf_dataset *dataset_of(const size_t *n, size_t n_parts)
{
    char *paths[PARTS_MAX] = {NULL};
    char *text = malloc(N_MAX * 128);
    cf_dataset *dataset;
    size_t sequence = 0;

    for (size_t p = 0; p < n_parts; p++) {
        char name[32];
        size_t at = 0;

        for (size_t i = 0; i < n[p]; i++, sequence++) {
            at += (size_t)sprintf(text + at, "{\"input_ids\":[");
            for (size_t t = 0; t < sequence * 7 % 23; t++)
                at += (size_t)sprintf(text + at, "%s1", t > 0 ? "," : "");
            at += (size_t)sprintf(text + at, "]}\n");
        }
        (void)snprintf(name, sizeof(name), "%zu.jsonl", p);
        paths[p] = strdup(scratch_write(name, text, at));
    }
    ck_assert_int_eq(cf_dataset_open(paths, n_parts, 100, &dataset), CF_OK);
    for (size_t p = 0; p < n_parts; p++)
        free(paths[p]);
    free(text);
    return dataset;
}

static cf_options options_of(uint32_t global_batch, uint64_t tokens_per_batch,
                             uint32_t epochs)
{
    return (cf_options){.global_batch = global_batch,
                        .tokens_per_batch = tokens_per_batch,
                        .epochs = epochs,
                        .seed = 11,
                        .shuffle = true};
}

static cf_batches batches_of(const cf_dataset *dataset,
                             const cf_options *options)
{
    cf_batches batches;

    ck_assert_int_eq(cf_batches_open(dataset, options, &batches), CF_OK);
    return batches;
}

/* All steps of a run, one behind the other; gives the number of sequences. */
static size_t run_of(cf_batches *batches, uint32_t *sequences, size_t *sizes)
{
    size_t n = 0;

    for (uint64_t step = 1; step <= batches->n_steps; step++) {
        size_t n_step = cf_batches_at(batches, step, sequences + n);

        ck_assert_uint_ge(n_step, 1);
        ck_assert_uint_le(n_step, batches->global_batch);
        if (sizes != NULL)
            sizes[step - 1] = n_step;
        n += n_step;
        ck_assert_uint_le(n, N_MAX);
    }
    return n;
}

static void check_each_once(const uint32_t *sequences, size_t n)
{
    char seen[N_MAX] = {0};

    for (size_t i = 0; i < n; i++) {
        ck_assert_uint_lt(sequences[i], n);
        ck_assert(!seen[sequences[i]]);
        seen[sequences[i]] = 1;
    }
}

/* ---- by sequences, by tokens, by both ---- */

static const struct {
    uint32_t global_batch;
    uint64_t tokens_per_batch;
} sizes_of[] = {
    {1, 0},  {7, 0},       {100, 0}, {500, 0},  {0, 1},  {0, 50},
    {0, 51}, {0, 1000000}, {3, 50},  {100, 50}, {1, 50}, {32, 1000000},
};
enum {
    N_SIZES = sizeof(sizes_of) / sizeof(sizes_of[0])
};

START_TEST(without_weights_every_epoch_is_every_sequence_once)
{
    static uint32_t sequences[N_MAX];
    cf_dataset *dataset = dataset_of((size_t[]){60, 1, 139}, 3);
    cf_options options =
        options_of(sizes_of[_i].global_batch, sizes_of[_i].tokens_per_batch, 3);

    for (int shuffle = 0; shuffle < 2; shuffle++) {
        cf_batches batches;
        size_t n;

        options.shuffle = shuffle;
        batches = batches_of(dataset, &options);
        n = run_of(&batches, sequences, NULL);
        ck_assert_uint_eq(n, 600);
        for (size_t epoch = 0; epoch < 3; epoch++) {
            check_each_once(sequences + 200 * epoch, 200);
            for (uint32_t i = 0; !shuffle && i < 200; i++)
                ck_assert_uint_eq(sequences[200 * epoch + i], i);
        }
        cf_batches_close(&batches);
    }
    cf_dataset_close(dataset);
}
END_TEST

/* Against the rule itself, written as a reader would apply it. */
START_TEST(a_batch_ends_when_its_tokens_or_its_sequences_are_reached)
{
    static uint32_t sequences[N_MAX];
    static size_t sizes[N_MAX];
    cf_dataset *dataset = dataset_of((size_t[]){200}, 1);
    const cf_options options =
        options_of(sizes_of[_i].global_batch, sizes_of[_i].tokens_per_batch, 3);
    cf_batches batches = batches_of(dataset, &options);
    const uint32_t *len_tok = cf_dataset_lengths(dataset);
    size_t at = 0, epoch_at = 0;

    (void)run_of(&batches, sequences, sizes);
    for (uint64_t step = 0; step < batches.n_steps; step++) {
        uint64_t n_tok = 0;
        size_t n = 0;

        do {
            n_tok += len_tok[sequences[at++]];
            n++;
            epoch_at++;
        } while (epoch_at < 200 &&
                 (options.global_batch == 0 || n < options.global_batch) &&
                 (options.tokens_per_batch == 0 ||
                  n_tok < options.tokens_per_batch));
        ck_assert_uint_eq(sizes[step], n);
        epoch_at %= 200;
    }
    ck_assert_uint_eq(at, 600);
    ck_assert_uint_eq(epoch_at, 0);
    cf_batches_close(&batches);
    cf_dataset_close(dataset);
}
END_TEST

START_TEST(any_step_can_be_asked_for_in_any_order)
{
    static uint32_t sequences[N_MAX], again[N_MAX];
    static size_t sizes[N_MAX];
    cf_dataset *dataset = dataset_of((size_t[]){120, 80}, 2);
    cf_options options =
        options_of(sizes_of[_i].global_batch, sizes_of[_i].tokens_per_batch, 3);
    cf_batches batches, other;
    uint64_t random = scratch_seed();
    size_t first[N_MAX];

    options.data_weights = "1,3";
    batches = batches_of(dataset, &options);
    (void)run_of(&batches, sequences, sizes);
    first[0] = 0;
    for (size_t i = 1; i < batches.n_steps; i++)
        first[i] = first[i - 1] + sizes[i - 1];
    /* As many steps by --steps, and a fresh start at each. */
    options.steps = batches.n_steps;
    options.epochs = 1;
    other = batches_of(dataset, &options);
    for (int i = 0; i < 100; i++) {
        const uint64_t step = scratch_random_below(&random, batches.n_steps);

        ck_assert_uint_eq(cf_batches_at(&other, step + 1, again), sizes[step]);
        ck_assert_mem_eq(again, sequences + first[step],
                         sizes[step] * sizeof(*again));
    }
    cf_batches_close(&other);
    cf_batches_close(&batches);
    cf_dataset_close(dataset);
}
END_TEST

START_TEST(another_seed_or_epoch_is_another_order)
{
    static uint32_t sequences[N_MAX], other[N_MAX];
    cf_dataset *dataset = dataset_of((size_t[]){200}, 1);
    cf_options options = options_of(0, 50, 2);
    cf_batches batches = batches_of(dataset, &options);

    (void)run_of(&batches, sequences, NULL);
    cf_batches_close(&batches);
    ck_assert_mem_ne(sequences, sequences + 200, 200 * sizeof(*sequences));
    options.seed++;
    batches = batches_of(dataset, &options);
    (void)run_of(&batches, other, NULL);
    ck_assert_mem_ne(sequences, other, 200 * sizeof(*sequences));
    cf_batches_close(&batches);
    cf_dataset_close(dataset);
}
END_TEST

/* ---- weights ---- */

static const struct {
    char weights[32];
    size_t n[PARTS_MAX];
    size_t n_parts;
    double shares[PARTS_MAX];
} mixes[] = {
    {"1,1", {150, 50}, 2, {0.5, 0.5}},
    {"1, 1", {1, 199}, 2, {0.5, 0.5}},
    {"3,1", {100, 100}, 2, {0.75, 0.25}},
    {"0.1,0.2,0.3", {70, 60, 37}, 3, {1 / 6., 1 / 3., 0.5}},
    {"1e3,1,1,20",
     {10, 2000, 300, 1000},
     4,
     {0.9785, 0.000978, 0.000978, 0.0195}},
    {"7", {33}, 1, {1}},
};
enum {
    N_MIXES = sizeof(mixes) / sizeof(mixes[0])
};

static size_t part_of(const cf_dataset *dataset, uint32_t sequence)
{
    size_t part = 0;

    while (sequence >= cf_dataset_part_first(dataset, part + 1))
        part++;
    return part;
}

START_TEST(an_epoch_draws_from_each_part_what_its_weight_says)
{
    static uint32_t sequences[N_MAX];
    cf_dataset *dataset = dataset_of(mixes[_i].n, mixes[_i].n_parts);
    cf_options options = options_of(16, 0, 1);

    options.data_weights = (char *)(uintptr_t)mixes[_i].weights;
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        double counts[PARTS_MAX] = {0};
        cf_batches batches;
        size_t n, part = 0;

        options.shuffle = shuffle;
        batches = batches_of(dataset, &options);
        n = run_of(&batches, sequences, NULL);
        ck_assert_uint_eq(n, cf_dataset_count(dataset));
        for (size_t i = 0; i < n; i++) {
            /* Without shuffling, the parts come in order. */
            ck_assert(shuffle || part_of(dataset, sequences[i]) >= part);
            part = part_of(dataset, sequences[i]);
            counts[part]++;
        }
        for (size_t p = 0; p < mixes[_i].n_parts; p++) {
            double share = mixes[_i].shares[p] * (double)n;

            ck_assert_double_le(counts[p], share + 1.1);
            ck_assert_double_ge(counts[p], share - 1.1);
        }
        cf_batches_close(&batches);
    }
    cf_dataset_close(dataset);
}
END_TEST

/* In any run of epochs, two sequences of a part differ by one in how often they
 * came up, by two inside an epoch that is shuffled. */
START_TEST(a_part_is_walked_round_by_round)
{
    static uint32_t sequences[N_MAX];
    cf_dataset *dataset = dataset_of((size_t[]){5, 95}, 2);
    cf_options options = options_of(10, 0, 12);
    cf_batches batches;
    unsigned counts[100] = {0};

    options.data_weights = "37,63";
    batches = batches_of(dataset, &options);
    ck_assert_uint_eq(run_of(&batches, sequences, NULL), 1200);
    for (size_t epoch = 0; epoch < 12; epoch++) {
        for (size_t i = 0; i < 100; i++)
            counts[sequences[100 * epoch + i]]++;
        for (size_t p = 0; p < 2; p++) {
            unsigned low = UINT32_MAX, high = 0;

            for (size_t i = p == 0 ? 0 : 5; i < (p == 0 ? 5 : 100); i++) {
                low = counts[i] < low ? counts[i] : low;
                high = counts[i] > high ? counts[i] : high;
            }
            ck_assert_uint_le(high - low, 1);
        }
    }
    cf_batches_close(&batches);
    cf_dataset_close(dataset);
}
END_TEST

/* What memory is planned for: no step holds a sequence more often than that. */
START_TEST(a_step_holds_only_what_is_drawable)
{
    static uint32_t sequences[N_MAX];
    cf_dataset *dataset = dataset_of((size_t[]){5, 95}, 2);
    cf_options options = options_of(0, 200, 40);
    cf_batches batches;

    options.data_weights = "80,20";
    batches = batches_of(dataset, &options);
    for (uint64_t step = 1; step <= batches.n_steps; step++) {
        size_t n = cf_batches_at(&batches, step, sequences);
        int spare[100] = {0};

        ck_assert_uint_le(n, batches.global_batch);
        for (size_t i = 0; i < batches.n_drawable; i++)
            spare[batches.drawable[i]]++;
        for (size_t i = 0; i < n; i++)
            ck_assert_int_ge(--spare[sequences[i]], 0);
    }
    cf_batches_close(&batches);
    cf_dataset_close(dataset);
}
END_TEST

static const struct {
    char weights[32];
    uint32_t max_length_tok;
    cf_status status;
    const char *message;
} bad_weights[] = {
    {"1", 0, CF_INVALID, "--data-weights: \"1\" is not a list of 2"},
    {"1,1,1", 0, CF_INVALID, "is not a list of 2"},
    {"1,", 0, CF_INVALID, "is not a list of 2"},
    {",1", 0, CF_INVALID, "is not a list of 2"},
    {"1,0", 0, CF_INVALID, "is not a list of 2"},
    {"1,-1", 0, CF_INVALID, "is not a list of 2"},
    {"1,nan", 0, CF_INVALID, "is not a list of 2"},
    {"1,1e999", 0, CF_INVALID, "is not a list of 2"},
    {"1,0x2", 0, CF_INVALID, "is not a list of 2"},
    {"1;2", 0, CF_INVALID, "is not a list of 2"},
    {"1e9,1", 0, CF_INVALID, "--data number 2 gives it none of the 10"},
    {"1,1", 3, CF_MALFORMED, "--data number 2 has no sequence within"},
};
enum {
    N_BAD_WEIGHTS = sizeof(bad_weights) / sizeof(bad_weights[0])
};

START_TEST(bad_weights_are_refused)
{
    /* Lengths 0 7 14 21 5 12 19 3 10, and 17. */
    cf_dataset *dataset = dataset_of((size_t[]){9, 1}, 2);
    cf_options options = options_of(4, 0, 1);
    cf_batches batches;
    cf_status status;
    const char *log;

    options.data_weights = (char *)(uintptr_t)bad_weights[_i].weights;
    options.max_length_tok = bad_weights[_i].max_length_tok;
    errors_begin();
    status = cf_batches_open(dataset, &options, &batches);
    log = errors_end();
    ck_assert_int_eq(status, bad_weights[_i].status);
    ck_assert_msg(strstr(log, bad_weights[_i].message) != NULL,
                  "'%s' is not in: %s", bad_weights[_i].message, log);
    cf_dataset_close(dataset);
}
END_TEST

/* ---- the ledger ---- */

START_TEST(the_ledger_counts_what_was_read)
{
    static uint32_t sequences[N_MAX];
    cf_dataset *dataset = dataset_of((size_t[]){40, 20}, 2);
    const uint32_t *len_tok = cf_dataset_lengths(dataset);
    cf_options options = options_of(8, 40, 1);

    options.max_length_tok = 18;
    for (int weighted = 0; weighted < 2; weighted++) {
        cf_ledger ledger = {0}, predicted = {0};
        uint64_t n_read = 0, n_tok = 0;
        cf_batches batches;

        options.data_weights = weighted ? "1,5" : NULL;
        batches = batches_of(dataset, &options);
        for (uint64_t step = 1; step <= batches.n_steps; step++) {
            size_t n = cf_batches_at(&batches, step, sequences);

            for (size_t i = 0; i < n; i++, n_read++)
                n_tok += len_tok[sequences[i]];
            cf_batches_count(&batches, step, sequences, n, &ledger);
        }
        for (size_t i = 0; i < 60; i++) {
            n_read += len_tok[i] > 18;
            n_tok += len_tok[i] > 18 ? len_tok[i] : 0;
        }
        cf_batches_count_epoch(&batches, &predicted);
        ck_assert_mem_eq(&ledger, &predicted, sizeof(ledger));
        ck_assert_uint_eq(ledger.read.sequences, n_read);
        ck_assert_uint_eq(ledger.read.sequences, 60);
        ck_assert_uint_eq(ledger.read.tokens, n_tok);
        ck_assert_uint_eq(ledger.read.tokens,
                          ledger.trained.tokens + ledger.masked.tokens +
                              ledger.skipped_max_length.tokens);
        cf_batches_close(&batches);
    }
    cf_dataset_close(dataset);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("batches");
    TCase *tcase = tcase_create("batches");
    SRunner *runner;
    int failed;

    tcase_add_checked_fixture(tcase, scratch_open, scratch_close);
    tcase_set_timeout(tcase, 60);
    suite_add_tcase(suite, tcase);
    tcase_add_loop_test(
        tcase, without_weights_every_epoch_is_every_sequence_once, 0, N_SIZES);
    tcase_add_loop_test(
        tcase, a_batch_ends_when_its_tokens_or_its_sequences_are_reached, 0,
        N_SIZES);
    tcase_add_loop_test(tcase, any_step_can_be_asked_for_in_any_order, 0,
                        N_SIZES);
    tcase_add_test(tcase, another_seed_or_epoch_is_another_order);
    tcase_add_loop_test(
        tcase, an_epoch_draws_from_each_part_what_its_weight_says, 0, N_MIXES);
    tcase_add_test(tcase, a_part_is_walked_round_by_round);
    tcase_add_test(tcase, a_step_holds_only_what_is_drawable);
    tcase_add_loop_test(tcase, bad_weights_are_refused, 0, N_BAD_WEIGHTS);
    tcase_add_test(tcase, the_ledger_counts_what_was_read);

    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
