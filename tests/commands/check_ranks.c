/* check_ranks.c - training over real MPI ranks against training on one.
 *
 * Stages of a pipeline give the bits of one rank, whatever their number, K and
 * the schedule of the same plan; replicas give its numbers to rounding, and the
 * same bits every time.
 *
 * The model is a parity fixture made deeper: its layers once more, under the
 * names of layers 2, 3 and 4.
 */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/commands/sandbox.h"

enum {
    N_LAYERS = 5,
    N_STEPS = 3
};

/* ---- the model and its data ---- */

/* Layer `to` becomes a copy of layer `from`, whose tensors it appends. */
static void layer_copy(weights *w, unsigned from, unsigned to)
{
    char *prefix = text_format("model.layers.%u.", from);
    json_t *names = json_object();
    const char *name;
    json_t *entry;

    json_object_foreach (w->header, name, entry)
        if (strncmp(name, prefix, strlen(prefix)) == 0)
            json_object_set(names, name, entry);
    json_object_foreach (names, name, entry) {
        size_t begin = weights_begin(w, name);
        size_t n = weights_end(w, name) - begin;
        char *copy =
            text_format("model.layers.%u.%s", to, name + strlen(prefix));

        w->data = realloc(w->data, w->n_data + n);
        ck_assert_ptr_nonnull(w->data);
        memcpy(w->data + w->n_data, w->data + begin, n);
        json_object_set_new(w->header, copy, json_deep_copy(entry));
        weights_move(w, copy, w->n_data, w->n_data + n);
        w->n_data += n;
        free(copy);
    }
    json_decref(names);
    free(prefix);
}

/* The head becomes the embedding, as a tied model has it. */
static void head_tie(weights *w)
{
    size_t from = weights_begin(w, "model.embed_tokens.weight");
    size_t n = weights_end(w, "model.embed_tokens.weight") - from;
    size_t to = weights_begin(w, "lm_head.weight");

    memcpy(w->data + to, w->data + from, n);
}

/* Lengths around the ChunkSize: packed ones, cut ones, one of seven chunks. */
static char *data_text(void)
{
    static const unsigned lengths[] = {3, 9, 50, 2, 7, 16, 1,  8,  24,
                                       5, 0, 31, 6, 8, 8,  12, 40, 4};
    char *text = strdup("");
    uint64_t state = 7;

    for (size_t i = 0; i < LENGTH(lengths); i++) {
        char *line = text_format("%s{\"input_ids\": [", text);

        free(text);
        for (unsigned t = 0; t < lengths[i]; t++) {
            text = text_format("%s%s%u", line, t > 0 ? ", " : "",
                               (unsigned)random_below(&state, 53));
            free(line);
            line = text;
        }
        text = text_format("%s]}\n", line);
        free(line);
    }
    return text;
}

static sandbox deep_sandbox_open(bool is_tied)
{
    sandbox box = sandbox_open();
    char *path = path_in(box.model, "model.safetensors");
    char *text = data_text();
    weights w = weights_open(path);

    for (unsigned layer = 2; layer < N_LAYERS; layer++)
        layer_copy(&w, layer % 2, layer);
    if (is_tied)
        head_tie(&w);
    weights_close(&w);
    config_patch(&box, is_tied ? "{\"num_hidden_layers\": 5, "
                                 "\"tie_word_embeddings\": true}"
                               : "{\"num_hidden_layers\": 5}");
    data_set(&box, text);
    free(text);
    free(path);
    return box;
}

/* ---- runs ---- */

/* mpirun in PATH, for the caller to free; NULL: there is none. */
static char *mpirun_find(void)
{
    const char *at = getenv("PATH");

    while (at != NULL && *at != '\0') {
        size_t n = strcspn(at, ":");
        char *path = text_format("%.*s/mpirun", (int)n, at);

        if (access(path, X_OK) == 0)
            return path;
        free(path);
        at += n + (at[n] == ':');
    }
    return NULL;
}

/* Put mpirun -n RANKS in front. */
static void command_launch(parity_command *command, unsigned n_ranks)
{
    const size_t n_words = 3;

    memmove(command->argv + n_words, command->argv,
            command->n_args * sizeof(command->argv[0]));
    command->argv[0] = mpirun_find();
    command->argv[1] = strdup("-n");
    command->argv[2] = text_format("%u", n_ranks);
    command->n_args += n_words;
}

/* Two ranks, each at work in a folder of its own. */
static void command_launch_apart(parity_command *command, const char *first,
                                 const char *second)
{
    const char *const folders[] = {first, second};
    parity_command words = *command;

    *command = (parity_command){.exit_code = -1};
    for (size_t i = 0; i < LENGTH(folders); i++) {
        char *program = realpath(words.argv[0], NULL);

        ck_assert_ptr_nonnull(program);
        command_add(command, i == 0 ? "mpirun" : ":", "-n", "1", "-wdir",
                    folders[i], program, NULL);
        for (size_t k = 1; k < words.n_args; k++)
            command_add(command, words.argv[k], NULL);
        free(program);
    }
    free(command->argv[0]);
    command->argv[0] = mpirun_find();
    command_close(&words);
}

typedef struct layout {
    unsigned n_ranks, n_stages, k;
    const char *schedule;
    unsigned batch; /* sequences of a step */
} layout;

/* A run of three steps in box/NAME. */
static void run(const sandbox *box, const char *name, const char *compute,
                layout shape, ...) __attribute__((sentinel));

static void run(const sandbox *box, const char *name, const char *compute,
                layout shape, ...)
{
    parity_command train = command_open("train", box->model, box->data);
    va_list words;

    command_addf(&train, "--output=%s/%s", box->folder, name);
    command_addf(&train, "--steps=%d", N_STEPS);
    command_addf(&train, "--global-batch=%u", shape.batch);
    command_addf(&train, "--compute=%s", compute);
    command_addf(&train, "--pipeline-stages=%u", shape.n_stages);
    command_addf(&train, "--schedule=%s", shape.schedule);
    command_add(&train, "--learning-rate", "1e-2", NULL);
    command_add_chunking(&train, 8, shape.k);
    va_start(words, shape);
    for (const char *word = va_arg(words, const char *); word != NULL;
         word = va_arg(words, const char *))
        command_add(&train, word, NULL);
    va_end(words);
    if (shape.n_ranks > 1)
        command_launch(&train, shape.n_ranks);
    command_expect(&train, box->folder, 0);
    command_close(&train);
}

static json_t *metrics_of(const sandbox *box, const char *name)
{
    char *path = text_format("%s/%s/metrics.jsonl", box->folder, name);
    json_t *lines = json_read_lines(path);

    free(path);
    return lines;
}

/* Equal loss and norm of every step: to the bit when rel is 0. */
static void expect_equal_metrics(const sandbox *box, const char *a,
                                 const char *b, double rel)
{
    static const char *const reals[] = {"loss", "grad_norm", "learning_rate"};
    static const char *const wholes[] = {"step", "sequences", "tokens",
                                         "target_tokens"};
    json_t *x = metrics_of(box, a), *y = metrics_of(box, b);

    ck_assert_uint_eq(json_array_size(x), json_array_size(y));
    for (size_t i = 0; i < json_array_size(x); i++) {
        json_t *u = json_array_get(x, i), *v = json_array_get(y, i);

        for (size_t r = 0; r < LENGTH(reals); r++) {
            double p = json_number_value(json_object_get(u, reals[r]));
            double q = json_number_value(json_object_get(v, reals[r]));

            ck_assert_msg(fabs(p - q) <= rel * fabs(p),
                          "%s of step %zu: %.17g in %s, %.17g in %s", reals[r],
                          i + 1, p, a, q, b);
        }
        for (size_t r = 0; r < LENGTH(wholes); r++)
            ck_assert_msg(json_equal(json_object_get(u, wholes[r]),
                                     json_object_get(v, wholes[r])),
                          "%s of step %zu differs", wholes[r], i + 1);
    }
    json_decref(y);
    json_decref(x);
}

static bool equal_files(const sandbox *box, const char *a, const char *b,
                        const char *file)
{
    char *x = text_format("%s/%s/%s", box->folder, a, file);
    char *y = text_format("%s/%s/%s", box->folder, b, file);
    bool equal = files_equal(x, y);

    free(y);
    free(x);
    return equal;
}

/* Metrics, weights, moments and ledger to the bit. */
static void expect_equal_runs(const sandbox *box, const char *a, const char *b)
{
    static const char *const files[] = {
        "model/model.safetensors",
        "checkpoints/step-3/weights.safetensors",
        "checkpoints/step-3/moments.safetensors",
        "ledger.json",
    };

    expect_equal_metrics(box, a, b, 0);
    for (size_t i = 0; i < LENGTH(files); i++)
        ck_assert_msg(equal_files(box, a, b, files[i]), "%s differs in %s, %s",
                      files[i], a, b);
}

/* ---- the tests ---- */

static const layout one_rank = {1, 1, 1, "state-aware", 6};

static const unsigned stage_counts[] = {2, 3, 4, 5};
static const unsigned ks[] = {1, 2, 3, 99};

START_TEST(stages_and_k_change_no_bits)
{
    const unsigned n_stages = stage_counts[_i / (int)LENGTH(ks)];
    const unsigned k = ks[_i % (int)LENGTH(ks)];
    const layout piped = {n_stages, n_stages, k, "state-aware", 6};
    sandbox box = deep_sandbox_open(false);

    run(&box, "one", "fp32", one_rank, NULL);
    run(&box, "piped", "fp32", piped, NULL);
    expect_equal_runs(&box, "one", "piped");
    sandbox_close(&box);
}
END_TEST

START_TEST(stages_and_k_change_no_bits_in_bf16)
{
    const layout piped = {stage_counts[_i], stage_counts[_i], ks[_i],
                          "state-aware", 6};
    sandbox box = deep_sandbox_open(_i % 2 == 1);

    run(&box, "one", "bf16", one_rank, NULL);
    run(&box, "piped", "bf16", piped, NULL);
    expect_equal_runs(&box, "one", "piped");
    sandbox_close(&box);
}
END_TEST

START_TEST(a_tied_embedding_on_two_stages_changes_no_bits)
{
    const layout piped = {stage_counts[_i], stage_counts[_i], 2, "state-aware",
                          6};
    sandbox box = deep_sandbox_open(true);

    run(&box, "one", "fp64", one_rank, NULL);
    run(&box, "piped", "fp64", piped, NULL);
    expect_equal_runs(&box, "one", "piped");
    sandbox_close(&box);
}
END_TEST

static const char *const schedules[] = {"paper", "1f1b", "1f1b-recompute"};

START_TEST(every_schedule_gives_the_bits_of_its_own_plan)
{
    const layout one = {1, 1, 2, schedules[_i], 6};
    const layout piped = {3, 3, 2, schedules[_i], 6};
    sandbox box = deep_sandbox_open(false);

    run(&box, "one", "fp32", one, NULL);
    run(&box, "piped", "fp32", piped, NULL);
    expect_equal_runs(&box, "one", "piped");
    sandbox_close(&box);
}
END_TEST

static const char *const recomputes[] = {"none", "selective", "layer"};

START_TEST(every_recompute_policy_gives_the_same_bits)
{
    const layout piped = {2, 2, 1, "state-aware", 6};
    sandbox box = deep_sandbox_open(false);

    run(&box, "one", "fp32", one_rank, NULL);
    run(&box, "piped", "fp32", piped, "--recompute", recomputes[_i], NULL);
    expect_equal_runs(&box, "one", "piped");
    sandbox_close(&box);
}
END_TEST

START_TEST(frozen_parts_change_no_bits)
{
    static const char *const lists[] = {"embeddings,layers:0-1", "layers:4",
                                        "head,norms", "embeddings,layers:0-3"};
    const layout piped = {4, 4, 2, "state-aware", 6};
    sandbox box = deep_sandbox_open(false);

    run(&box, "one", "fp32", one_rank, "--freeze", lists[_i], NULL);
    run(&box, "piped", "fp32", piped, "--freeze", lists[_i], NULL);
    expect_equal_runs(&box, "one", "piped");
    sandbox_close(&box);
}
END_TEST

START_TEST(stages_beside_an_adapter_change_no_bits)
{
    const layout piped = {stage_counts[_i], stage_counts[_i], 2, "state-aware",
                          6};
    sandbox box = deep_sandbox_open(_i % 2 == 1);

    run(&box, "one", "fp32", one_rank, "--lora-rank", "3", "--merge", NULL);
    run(&box, "piped", "fp32", piped, "--lora-rank", "3", "--merge", NULL);
    expect_equal_runs(&box, "one", "piped");
    ck_assert(
        equal_files(&box, "one", "piped", "adapter/adapter_model.safetensors"));
    sandbox_close(&box);
}
END_TEST

START_TEST(replicas_beside_an_adapter_are_equal_to_rounding)
{
    static const layout many = {4, 2, 2, "state-aware", 6};
    sandbox box = deep_sandbox_open(true);

    run(&box, "one", "fp64", one_rank, "--lora-rank", "3", "--merge", NULL);
    run(&box, "many", "fp64", many, "--lora-rank", "3", "--merge", NULL);
    run(&box, "again", "fp64", many, "--lora-rank", "3", "--merge", NULL);
    expect_equal_metrics(&box, "one", "many", 1e-9);
    expect_equal_runs(&box, "many", "again");
    sandbox_close(&box);
}
END_TEST

START_TEST(uneven_stages_change_no_bits)
{
    const layout piped = {3, 3, 1, "state-aware", 6};
    sandbox box = deep_sandbox_open(true);

    run(&box, "one", "fp32", one_rank, NULL);
    run(&box, "piped", "fp32", piped, "--layers-per-stage", "1,3,1", NULL);
    expect_equal_runs(&box, "one", "piped");
    sandbox_close(&box);
}
END_TEST

static const layout replicated[] = {
    {2, 1, 2, "state-aware", 6},
    {3, 1, 1, "state-aware", 6},
    {4, 2, 2, "state-aware", 6},
    {6, 2, 1, "state-aware", 6},
};

START_TEST(replicas_are_equal_to_rounding_and_always_the_same)
{
    sandbox box = deep_sandbox_open(_i % 2 == 1);

    run(&box, "one", "fp64", one_rank, NULL);
    run(&box, "many", "fp64", replicated[_i], NULL);
    run(&box, "again", "fp64", replicated[_i], NULL);
    expect_equal_metrics(&box, "one", "many", 1e-9);
    expect_equal_runs(&box, "many", "again");
    sandbox_close(&box);
}
END_TEST

/* Six replicas of batches of two sequences: four have nothing to do. */
START_TEST(a_replica_without_a_sequence_takes_part)
{
    const layout narrow = {1, 1, 1, "state-aware", 2};
    const layout wide = {6, 1, 1, "state-aware", 2};
    sandbox box = deep_sandbox_open(false);

    run(&box, "one", "fp64", narrow, NULL);
    run(&box, "many", "fp64", wide, NULL);
    expect_equal_metrics(&box, "one", "many", 1e-9);
    sandbox_close(&box);
}
END_TEST

START_TEST(evaluations_between_steps_are_equal)
{
    const layout piped = {2, 2, 2, "state-aware", 6};
    sandbox box = deep_sandbox_open(true);
    json_t *x, *y;
    unsigned n_evaluations = 0;

    run(&box, "one", "fp32", one_rank, "--eval-data", box.data, "--eval-every",
        "1", "--keep-best", NULL);
    run(&box, "piped", "fp32", piped, "--eval-data", box.data, "--eval-every",
        "1", "--keep-best", NULL);
    expect_equal_runs(&box, "one", "piped");
    x = metrics_of(&box, "one");
    y = metrics_of(&box, "piped");
    for (size_t i = 0; i < json_array_size(x); i++) {
        json_t *u = json_array_get(x, i), *v = json_array_get(y, i);

        if (json_object_get(u, "eval") == NULL)
            continue;
        n_evaluations++;
        ck_assert(json_equal(json_object_get(u, "buckets"),
                             json_object_get(v, "buckets")));
    }
    ck_assert_uint_eq(n_evaluations, N_STEPS);
    json_decref(y);
    json_decref(x);
    sandbox_close(&box);
}
END_TEST

/* A state of some ranks is gone on from by others. */
static void expect_resumed_elsewhere(layout first, layout then,
                                     const char *rank)
{
    sandbox box = deep_sandbox_open(true);
    char *run_folder = path_in(box.folder, "piped");
    char *last = path_in(run_folder, "checkpoints/step-3");
    const char *merge = strcmp(rank, "0") != 0 ? "--merge" : "--merge=false";
    char *command;

    run(&box, "one", "fp32", one_rank, "--save-every", "1", "--lora-rank", rank,
        merge, NULL);
    run(&box, "piped", "fp32", first, "--save-every", "1", "--lora-rank", rank,
        merge, NULL);
    expect_equal_runs(&box, "one", "piped");
    command = text_format("rm -r '%s'", last);
    ck_assert_int_eq(system(command), 0);
    run(&box, "piped", "fp32", then, "--resume", "--save-every", "1",
        "--lora-rank", rank, merge, NULL);
    expect_equal_runs(&box, "one", "piped");
    free(command);
    free(last);
    free(run_folder);
    sandbox_close(&box);
}

START_TEST(any_number_of_stages_resumes_with_the_same_bits)
{
    static const layout first[] = {{1, 1, 1, "state-aware", 6},
                                   {4, 4, 2, "state-aware", 6},
                                   {2, 2, 1, "state-aware", 6}};
    static const layout then[] = {{3, 3, 2, "state-aware", 6},
                                  {1, 1, 1, "state-aware", 6},
                                  {5, 5, 99, "state-aware", 6}};

    expect_resumed_elsewhere(first[_i], then[_i], "0");
    expect_resumed_elsewhere(first[_i], then[_i], "2");
}
END_TEST

/* Run it.  Fails unless one rank alone said an error, which begins so, and none
 * left the others in a message. */
static void expect_one_error(parity_command *command, const sandbox *box,
                             int exit_code, const char *begin)
{
    static const char mark[] = "chunkflow: error: ";
    const char *first;

    command_expect(command, box->folder, exit_code);
    first = strstr(command->err, mark);
    if (first == NULL || strncmp(first + strlen(mark), begin, strlen(begin)))
        command_blame(command, "the error does not begin with \"%s\"", begin);
    if (strstr(first + 1, mark) != NULL || strstr(command->err, "MPI_") != NULL)
        command_blame(command, "not exactly one error");
    command_close(command);
}

/* The first of two stages holds more than the last: what the last could run is
 * refused by both. */
START_TEST(memory_that_one_stage_lacks_is_refused_by_all)
{
    const layout piped = {2, 2, 1, "state-aware", 6};
    sandbox box = deep_sandbox_open(false);
    parity_command train = box_command("train", &box);
    json_t *lines;
    json_int_t most;

    run(&box, "fits", "fp32", piped, NULL);
    lines = metrics_of(&box, "fits");
    most = json_integer_value(
        json_object_get(json_array_get(lines, 0), "peak_bytes"));
    json_decref(lines);
    command_addf(&train, "--memory=%lld", (long long)most - 1);
    command_add(&train, "--pipeline-stages", "2", "--global-batch", "6", NULL);
    command_add_chunking(&train, 8, 1);
    command_launch(&train, 2);
    expect_one_error(&train, &box, 4, "needs ");
    ck_assert(!exists(box.folder, "run"));
    sandbox_close(&box);
}
END_TEST

/* The place of an error is where a rank is, not where it was. */
START_TEST(a_last_state_that_cannot_be_saved_is_told_once)
{
    sandbox box = deep_sandbox_open(false);
    parity_command train = box_command("train", &box);
    char *checkpoints = path_in(box.run, "checkpoints");
    FILE *file;

    ck_assert_int_eq(mkdir(box.run, 0777), 0);
    file = fopen(checkpoints, "w"); /* in the way of the folder */
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fclose(file), 0);
    command_add(&train, "--resume", "--pipeline-stages", "2", "--eval-data",
                box.data, NULL);
    command_add_chunking(&train, 8, 1);
    command_launch(&train, 2);
    expect_one_error(&train, &box, 1, "'");
    ck_assert(exists(box.run, "model"));
    free(checkpoints);
    sandbox_close(&box);
}
END_TEST

/* Data of equal lengths and another content, under one name on two hosts. */
START_TEST(other_data_on_one_rank_is_found_before_the_first_step)
{
    sandbox box = deep_sandbox_open(false), other = deep_sandbox_open(false);
    parity_command train = command_open("train", box.model, "data.jsonl");

    data_set(&box, "{\"input_ids\": [1, 2, 3]}\n");
    data_set(&other, "{\"input_ids\": [1, 3, 2]}\n");
    command_add(&train, "--output", box.run, "--pipeline-stages", "2", NULL);
    command_launch_apart(&train, box.folder, other.folder);
    expect_one_error(&train, &box, 2, "rank 1: model and data: ");
    ck_assert(!exists(box.folder, "run"));
    sandbox_close(&other);
    sandbox_close(&box);
}
END_TEST

START_TEST(other_evaluation_data_on_one_rank_is_found_too)
{
    sandbox box = deep_sandbox_open(false), other = deep_sandbox_open(false);
    sandbox shared = deep_sandbox_open(false);
    parity_command train = box_command("train", &shared);

    data_set(&box, "{\"input_ids\": [1, 2, 3]}\n");
    data_set(&other, "{\"input_ids\": [1, 3, 2]}\n");
    command_add(&train, "--pipeline-stages", "2", "--eval-data", "data.jsonl",
                NULL);
    command_launch_apart(&train, box.folder, other.folder);
    expect_one_error(&train, &shared, 2, "rank 1: --eval-data: ");
    ck_assert(!exists(shared.folder, "run"));
    sandbox_close(&shared);
    sandbox_close(&other);
    sandbox_close(&box);
}
END_TEST

/* A folder of one name that is another one on each of two hosts. */
START_TEST(an_output_that_is_not_shared_is_found_before_the_first_step)
{
    sandbox box = deep_sandbox_open(false), other = deep_sandbox_open(false);
    parity_command train = command_open("train", box.model, box.data);

    ck_assert_int_eq(mkdir(other.run, 0777), 0);
    command_add(&train, "--output", "run", "--pipeline-stages", "2", NULL);
    command_launch_apart(&train, box.folder, other.folder);
    expect_one_error(&train, &box, 2, "rank 1: --output 'run' is not ");
    sandbox_close(&other);
    sandbox_close(&box);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ranks");
    TCase *tcase = tcase_create("ranks");
    TCase *errors = tcase_create("errors of ranks");
    SRunner *runner = srunner_create(suite);
    char *mpirun = mpirun_find();
    int n_failed;

    if (mpirun == NULL) {
        fprintf(stderr, "check_ranks: skipped, there is no mpirun in PATH\n");
        return 77;
    }
    free(mpirun);
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 1);
    setenv("OMPI_MCA_hwloc_base_binding_policy", "none", 1);
    /* What Open MPI leaks at its end cannot be suppressed by name. */
    setenv("ASAN_OPTIONS", "detect_leaks=0", 1);
    tcase_set_timeout(tcase, 120);
    tcase_add_loop_test(tcase, stages_and_k_change_no_bits, 0,
                        LENGTH(stage_counts) * LENGTH(ks));
    tcase_add_loop_test(tcase, stages_and_k_change_no_bits_in_bf16, 0,
                        LENGTH(ks));
    tcase_add_loop_test(tcase, a_tied_embedding_on_two_stages_changes_no_bits,
                        0, LENGTH(stage_counts));
    tcase_add_loop_test(tcase, every_schedule_gives_the_bits_of_its_own_plan, 0,
                        LENGTH(schedules));
    tcase_add_loop_test(tcase, every_recompute_policy_gives_the_same_bits, 0,
                        LENGTH(recomputes));
    tcase_add_loop_test(tcase, frozen_parts_change_no_bits, 0, 4);
    tcase_add_loop_test(tcase, stages_beside_an_adapter_change_no_bits, 0,
                        (int)LENGTH(stage_counts));
    tcase_add_test(tcase, replicas_beside_an_adapter_are_equal_to_rounding);
    tcase_add_test(tcase, uneven_stages_change_no_bits);
    tcase_add_loop_test(tcase,
                        replicas_are_equal_to_rounding_and_always_the_same, 0,
                        LENGTH(replicated));
    tcase_add_test(tcase, a_replica_without_a_sequence_takes_part);
    tcase_add_test(tcase, evaluations_between_steps_are_equal);
    tcase_add_loop_test(tcase, any_number_of_stages_resumes_with_the_same_bits,
                        0, 3);
    tcase_set_timeout(errors, 120);
    tcase_add_test(errors, memory_that_one_stage_lacks_is_refused_by_all);
    tcase_add_test(errors, a_last_state_that_cannot_be_saved_is_told_once);
    tcase_add_test(errors,
                   other_data_on_one_rank_is_found_before_the_first_step);
    tcase_add_test(errors, other_evaluation_data_on_one_rank_is_found_too);
    tcase_add_test(errors,
                   an_output_that_is_not_shared_is_found_before_the_first_step);
    suite_add_tcase(suite, tcase);
    suite_add_tcase(suite, errors);
    srunner_run_all(runner, CK_NORMAL);
    n_failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return n_failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
