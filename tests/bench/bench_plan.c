/* bench_plan.c - how long planning a step takes on every rank: chunks, schedule
 * and the checks of both.
 *
 *     bench_plan [N_SEQUENCES [N_STAGES [CHUNK_SIZE [K [N_BATCHES]]]]]
 *
 * Lengths are drawn as LMSYS-Chat-1M has them by the shares that Yuan et al.
 * 2025 print, evenly over the logarithm inside a share.  Prints the median and
 * the largest time of 100 batches, or of as many as fit into some seconds: time
 * of the processor, so that others on the machine do not count.
 * tests/scripts/check-instructions counts what they execute.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <chunkflow/schedule.h>

enum {
    N_BATCHES_MAX = 100,
    SECONDS_MAX = 10
};

typedef struct times_ms {
    double chunks;
    double chunks_check;
    double schedule;
    double schedule_check;
    double all;
} times_ms;

static const struct {
    double share; /* cumulative */
    double from;
    double to;
} shares[] = {
    {0.90499, 64, 1024},    {0.99539, 1024, 4096},    {0.99908, 4096, 8192},
    {0.99987, 8192, 32768}, {0.99996, 32768, 131072}, {1, 131072, 262144},
};

static double now_ms(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

/* xorshift64*, in [0, 1). */
static double draw(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return (double)((*state * UINT64_C(0x2545f4914f6cdd1d)) >> 11) * 0x1p-53;
}

static uint32_t draw_length(uint64_t *state)
{
    const double u = draw(state);
    const double v = draw(state);
    size_t i = 0;

    while (u >= shares[i].share)
        i++;
    return (uint32_t)(shares[i].from * pow(shares[i].to / shares[i].from, v));
}

static void require(cf_status status)
{
    if (status != CF_OK) {
        (void)fprintf(stderr, "bench_plan: %s\n", cf_status_str(status));
        exit(EXIT_FAILURE);
    }
}

static void *allocate(size_t n, size_t size)
{
    void *memory = calloc(n > 0 ? n : 1, size);

    require(memory != NULL ? CF_OK : CF_NO_MEMORY);
    return memory;
}

/* Plan one batch.  Memory is not what is measured: an engine has it already. */
static times_ms plan_batch(const uint32_t *len_tok, size_t n_seqs,
                           uint32_t chunk_size_tok,
                           const cf_schedule_params *params)
{
    cf_chunk_plan plan = {0};
    cf_schedule schedule = {0};
    cf_schedule_need need;
    cf_op_ref where;
    times_ms t;
    double start;

    require(
        cf_chunk_plan_bound(len_tok, n_seqs, chunk_size_tok, &plan.capacity));
    plan.chunks = allocate(plan.capacity.n_chunks, sizeof(cf_chunk));
    plan.pieces = allocate(plan.capacity.n_pieces, sizeof(cf_piece));
    plan.scratch = allocate(plan.capacity.scratch_bytes, 1);
    start = now_ms();
    require(cf_chunk_plan_build(len_tok, n_seqs, chunk_size_tok, &plan));
    t.chunks = now_ms() - start;
    start = now_ms();
    require(cf_chunk_plan_check(&plan, len_tok, n_seqs));
    t.chunks_check = now_ms() - start;

    require(cf_schedule_bound(&plan, params, &need));
    schedule.ops = allocate(need.n_ops, sizeof(cf_op));
    schedule.first_op = allocate(params->n_stages + (size_t)1, sizeof(size_t));
    schedule.scratch = allocate(need.scratch_bytes, 1);
    schedule.ops_capacity = need.n_ops;
    schedule.scratch_bytes = need.scratch_bytes;
    start = now_ms();
    require(cf_schedule_build(&plan, params, &schedule));
    t.schedule = now_ms() - start;
    start = now_ms();
    require(cf_schedule_check(&plan, &schedule, &where));
    t.schedule_check = now_ms() - start;
    t.all = t.chunks + t.chunks_check + t.schedule + t.schedule_check;

    free(plan.chunks);
    free(plan.pieces);
    free(plan.scratch);
    free(schedule.ops);
    free(schedule.first_op);
    free(schedule.scratch);
    return t;
}

static int compare_all(const void *a, const void *b)
{
    const times_ms *x = a;
    const times_ms *y = b;

    return (x->all > y->all) - (x->all < y->all);
}

static uint32_t argument(int argc, char **argv, int i, uint32_t otherwise)
{
    return i < argc ? (uint32_t)strtoul(argv[i], NULL, 10) : otherwise;
}

int main(int argc, char **argv)
{
    const size_t n_seqs = argument(argc, argv, 1, 256);
    const uint32_t chunk_size_tok = argument(argc, argv, 3, 2048);
    const cf_schedule_params params = {
        .n_stages = argument(argc, argv, 2, 4),
        .retained_chunks_max = argument(argc, argv, 4, 2),
        .kind = CF_SCHEDULE_STATE_AWARE,
    };
    uint32_t *len_tok = allocate(n_seqs, sizeof(*len_tok));
    times_ms times[N_BATCHES_MAX];
    const uint32_t n_batches = argument(argc, argv, 5, N_BATCHES_MAX);
    const double start = now_ms();
    uint64_t state = 20250303;
    size_t n = 0;

    require(n_batches > 0 && n_batches <= N_BATCHES_MAX ? CF_OK : CF_INVALID);
    while (n < n_batches && now_ms() - start < SECONDS_MAX * 1e3) {
        for (size_t i = 0; i < n_seqs; i++)
            len_tok[i] = draw_length(&state);
        times[n++] = plan_batch(len_tok, n_seqs, chunk_size_tok, &params);
    }
    qsort(times, n, sizeof(*times), compare_all);
    printf(
        "%zu sequences, %u stages, ChunkSize %u, K %u: %.3f ms (chunks %.3f, "
        "check %.3f, schedule %.3f, check %.3f), at most %.3f ms in %zu "
        "batches\n",
        n_seqs, (unsigned)params.n_stages, (unsigned)chunk_size_tok,
        (unsigned)params.retained_chunks_max, times[n / 2].all,
        times[n / 2].chunks, times[n / 2].chunks_check, times[n / 2].schedule,
        times[n / 2].schedule_check, times[n - 1].all, n);
    free(len_tok);
    return EXIT_SUCCESS;
}
