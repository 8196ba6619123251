/* execute.c - cf_execute() over callbacks of one's own, on a single stage.
 *
 *     cc execute.c $(pkg-config --cflags --libs chunkflow) -lm
 *
 * The model is one number, a, and a state that runs through a sequence:
 *
 *     s(t) = a s(t-1) + x(t)        loss = sum of (s(t) - y(t))^2 / 2
 *
 * Its gradient over chunks needs what a transformer's needs: the state that the
 * earlier chunks left, and the gradient of it from the later ones.  It has to be
 * the same for every K, to the bit, while the activations held follow K.
 */
#include <chunkflow/execute.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    CHUNK_SIZE = 4,
    N_SEQUENCES = 5,
    CHUNKS_MAX = 32
};

static const uint32_t lengths[N_SEQUENCES] = {3, 22, 1, 4, 9};
static const double a = 0.9;

/* The context that cf_execute passes through. */
typedef struct engine {
    double state_out[CHUNKS_MAX]; /* behind the last token of a chunk */
    double d_state[CHUNKS_MAX];   /* the gradient of that */
    double *kept[CHUNKS_MAX];     /* s of every token, while it is kept */
    size_t n_kept;
    size_t n_kept_most;
    size_t n_forwards;
    double da;
} engine;

static double x_of(uint32_t seq, uint32_t tok)
{
    return sin(1.3 * seq + 0.7 * tok);
}

static double y_of(uint32_t seq, uint32_t tok)
{
    return cos(0.4 * seq + 0.2 * tok);
}

static double state_before(const engine *e, const cf_chunk_plan *plan,
                           uint32_t chunk)
{
    return plan->chunks[chunk].in_group > 0 ? e->state_out[chunk - 1] : 0;
}

/* Called for a recompute too, which is a forward that keeps. */
static cf_status forward(void *context, const cf_chunk_plan *plan,
                         uint32_t chunk, cf_keep keep)
{
    engine *e = context;
    const cf_chunk *c = &plan->chunks[chunk];
    double *s = malloc(c->n_tok * sizeof(*s));
    uint32_t n = 0;

    if (s == NULL)
        return CF_NO_MEMORY;
    for (uint32_t i = 0; i < c->n_pieces; i++) {
        const cf_piece *piece = &plan->pieces[c->first_piece + i];
        double state = state_before(e, plan, chunk);

        for (uint32_t t = 0; t < piece->n_tok; t++) {
            state = a * state + x_of(piece->seq, piece->first_tok + t);
            s[n++] = state;
        }
    }
    e->state_out[chunk] = s[n - 1];
    e->n_forwards++;
    if (keep == CF_KEEP_NO) {
        free(s);
        return CF_OK;
    }
    e->kept[chunk] = s;
    if (++e->n_kept > e->n_kept_most)
        e->n_kept_most = e->n_kept;
    return CF_OK;
}

static cf_status backward(void *context, const cf_chunk_plan *plan,
                          uint32_t chunk)
{
    engine *e = context;
    const cf_chunk *c = &plan->chunks[chunk];
    uint32_t end = c->n_tok;

    for (uint32_t i = c->n_pieces; i-- > 0;) {
        const cf_piece *piece = &plan->pieces[c->first_piece + i];
        const double *s = e->kept[chunk] + (end - piece->n_tok);
        double ds = c->n_pieces == 1 ? e->d_state[chunk] : 0;

        for (uint32_t t = piece->n_tok; t-- > 0;) {
            double before = t > 0 ? s[t - 1] : state_before(e, plan, chunk);

            ds += s[t] - y_of(piece->seq, piece->first_tok + t);
            e->da += ds * before;
            ds *= a;
        }
        if (c->in_group > 0)
            e->d_state[chunk - 1] = ds;
        end -= piece->n_tok;
    }
    free(e->kept[chunk]);
    e->n_kept--;
    return CF_OK;
}

/* ---- the library's arrays are ours ---- */

static cf_status plan_open(cf_chunk_plan *plan)
{
    cf_status status =
        cf_chunk_plan_bound(lengths, N_SEQUENCES, CHUNK_SIZE, &plan->capacity);

    if (status != CF_OK)
        return status;
    if (plan->capacity.n_chunks > CHUNKS_MAX)
        return CF_NO_SPACE;
    plan->chunks = malloc(plan->capacity.n_chunks * sizeof(cf_chunk));
    plan->pieces = malloc(plan->capacity.n_pieces * sizeof(cf_piece));
    plan->scratch = malloc(plan->capacity.scratch_bytes);
    if (plan->chunks == NULL || plan->pieces == NULL || plan->scratch == NULL)
        return CF_NO_MEMORY;
    return cf_chunk_plan_build(lengths, N_SEQUENCES, CHUNK_SIZE, plan);
}

static cf_status schedule_open(const cf_chunk_plan *plan, uint32_t k,
                               cf_schedule *schedule)
{
    const cf_schedule_params params = {.n_stages = 1,
                                       .retained_chunks_max = k,
                                       .kind = CF_SCHEDULE_STATE_AWARE};
    cf_schedule_need need;
    cf_op_ref where;
    cf_status status = cf_schedule_bound(plan, &params, &need);

    if (status != CF_OK)
        return status;
    schedule->ops = malloc(need.n_ops * sizeof(cf_op));
    schedule->first_op = malloc((params.n_stages + 1) * sizeof(size_t));
    schedule->scratch = malloc(need.scratch_bytes);
    schedule->ops_capacity = need.n_ops;
    schedule->scratch_bytes = need.scratch_bytes;
    if (schedule->ops == NULL || schedule->first_op == NULL ||
        schedule->scratch == NULL)
        return CF_NO_MEMORY;
    status = cf_schedule_build(plan, &params, schedule);
    if (status != CF_OK)
        return status;
    return cf_schedule_check(plan, schedule, &where);
}

/* One step with K retained chunks. */
static cf_status step(const cf_chunk_plan *plan, uint32_t k, engine *e)
{
    /* A single stage has no neighbours: no messages. */
    const cf_engine_ops ops = {.forward = forward, .backward = backward};
    cf_schedule schedule = {0};
    cf_op_ref where = {0};
    cf_status status = schedule_open(plan, k, &schedule);

    if (status == CF_OK)
        status = cf_execute(plan, &schedule, 0, &ops, e, &where);
    if (status != CF_OK)
        (void)fprintf(stderr, "execute: op %zu: %s: %s\n", where.op,
                      where.rule != NULL ? where.rule : "planning",
                      cf_status_str(status));
    free(schedule.ops);
    free(schedule.first_op);
    free(schedule.scratch);
    return status;
}

/* ---- the same without chunks ---- */

static double gradient_of_whole_sequences(void)
{
    double da = 0;

    for (uint32_t seq = 0; seq < N_SEQUENCES; seq++) {
        double s = 0;
        double ds_da = 0; /* forward mode: no activations at all */

        for (uint32_t t = 0; t < lengths[seq]; t++) {
            ds_da = s + a * ds_da;
            s = a * s + x_of(seq, t);
            da += (s - y_of(seq, t)) * ds_da;
        }
    }
    return da;
}

int main(void)
{
    static const uint32_t ks[] = {1, 2, 99};
    const double whole = gradient_of_whole_sequences();
    cf_chunk_plan plan = {0};
    cf_status status = plan_open(&plan);
    double first = 0;
    int all_equal = 1;

    for (size_t i = 0; status == CF_OK && i < sizeof(ks) / sizeof(ks[0]); i++) {
        engine e = {.n_kept = 0};

        status = step(&plan, ks[i], &e);
        if (i == 0)
            first = e.da;
        all_equal &= memcmp(&e.da, &first, sizeof(first)) == 0 &&
                     fabs(e.da - whole) < 1e-12 * fabs(whole);
        printf("K %-2u  %zu chunks kept at most, %2zu forwards, gradient "
               "%.15g\n",
               (unsigned)ks[i], e.n_kept_most, e.n_forwards, e.da);
    }
    free(plan.chunks);
    free(plan.pieces);
    free(plan.scratch);
    if (status != CF_OK)
        return EXIT_FAILURE;
    printf("whole sequences                         gradient %.15g\n", whole);
    printf("chunked %s unchunked\n", all_equal ? "==" : "!=");
    return all_equal ? EXIT_SUCCESS : EXIT_FAILURE;
}
