/* foreign_engine.c - a pipeline engine of its own that takes its order from
 * chunkflow, and nothing else.
 *
 *     cc foreign_engine.c $(pkg-config --cflags --libs chunkflow) -lm -pthread
 *
 * Three stages, each a thread, joined by pipes as processes would be.  The
 * library says which chunk is which part of which sequences, and what a stage
 * does when; model, memory, loop and transport are here.  At the end the
 * gradients are compared with those of the same model run over whole sequences,
 * one after another.
 *
 * (1) Every stage builds plan and schedule by itself: equal lengths give equal
 *     lists, so nothing about them has to be sent.
 * (2) Messages carry no tag and no size: both ends of a pipe name the same chunk
 *     at the same place in their lists, and the plan knows its tokens.
 * (3) A pipe buffers a message, which is all that a schedule asks for.
 * (4) A stage has room for the activations of K + (p - 1 - stage) chunks, and
 *     never needs more.
 *
 * The model: each stage is a layer h(t) = tanh(A x(t) + C h(t-1)), so that a
 * chunk needs the state that the earlier chunks of its sequence left, as it
 * would need their keys and values, and its gradient needs the later ones'.
 */
#define _POSIX_C_SOURCE 200809L

#include <chunkflow/chunk.h>
#include <chunkflow/schedule.h>

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    WIDTH = 4,
    N_STAGES = 3,
    CHUNK_SIZE = 8,
    RETAINED = 2, /* K */
    N_SEQUENCES = 9,
    LONGEST = 43
};

static const uint32_t lengths[N_SEQUENCES] = {5, LONGEST, 3, 8, 2, 20, 4, 1, 7};

typedef struct vector {
    double at[WIDTH];
} vector;

/* A layer's weights, or their gradient. */
typedef struct weights {
    double a[WIDTH][WIDTH];
    double c[WIDTH][WIDTH];
} weights;

static void fail(const char *what)
{
    (void)fprintf(stderr, "foreign_engine: %s\n", what);
    exit(EXIT_FAILURE);
}

static void *allocate(size_t n, size_t size)
{
    void *memory = calloc(n > 0 ? n : 1, size);

    if (memory == NULL)
        fail("no memory");
    return memory;
}

/* ---- the model ---- */

static weights weights_of(uint32_t stage)
{
    weights w;

    for (int i = 0; i < WIDTH; i++) {
        for (int j = 0; j < WIDTH; j++) {
            w.a[i][j] = 0.6 * sin(1.0 + 7 * stage + 3 * i + j);
            w.c[i][j] = 0.6 * cos(2.0 + 5 * stage + 3 * j + i);
        }
    }
    return w;
}

/* The first stage's input and what the last one should say. */
static vector token_of(uint32_t seq, uint32_t tok)
{
    vector x;

    for (int i = 0; i < WIDTH; i++)
        x.at[i] = sin(1.7 * seq + 0.9 * tok + i);
    return x;
}

static vector target_of(uint32_t seq, uint32_t tok)
{
    vector x;

    for (int i = 0; i < WIDTH; i++)
        x.at[i] = 0.5 * cos(0.3 * seq + 1.1 * tok + 2 * i);
    return x;
}

/* h over n tokens behind a state. */
static void layer_forward(const weights *w, const vector *x, uint32_t n_tok,
                          const vector *state, vector *h)
{
    for (uint32_t t = 0; t < n_tok; t++) {
        const vector *before = t > 0 ? &h[t - 1] : state;

        for (int i = 0; i < WIDTH; i++) {
            double sum = 0;

            for (int j = 0; j < WIDTH; j++)
                sum += w->a[i][j] * x[t].at[j] + w->c[i][j] * before->at[j];
            h[t].at[i] = tanh(sum);
        }
    }
}

/* From dh to dx; *d_state is the gradient of the state behind the tokens, then
 * of the one before them. */
static void layer_backward(const weights *w, const vector *x, const vector *h,
                           const vector *state, const vector *dh,
                           uint32_t n_tok, vector *d_state, vector *dx,
                           weights *dw)
{
    for (uint32_t t = n_tok; t-- > 0;) {
        const vector *before = t > 0 ? &h[t - 1] : state;
        vector d_before = {{0}};

        dx[t] = (vector){{0}};
        for (int i = 0; i < WIDTH; i++) {
            double d_sum =
                (dh[t].at[i] + d_state->at[i]) * (1 - h[t].at[i] * h[t].at[i]);

            for (int j = 0; j < WIDTH; j++) {
                dw->a[i][j] += d_sum * x[t].at[j];
                dw->c[i][j] += d_sum * before->at[j];
                dx[t].at[j] += w->a[i][j] * d_sum;
                d_before.at[j] += w->c[i][j] * d_sum;
            }
        }
        *d_state = d_before;
    }
}

/* The gradient of the loss |h - target|^2 / 2 of a run of tokens. */
static void loss_backward(const vector *h, uint32_t seq, uint32_t first_tok,
                          uint32_t n_tok, vector *dh)
{
    for (uint32_t t = 0; t < n_tok; t++) {
        vector target = target_of(seq, first_tok + t);

        for (int i = 0; i < WIDTH; i++)
            dh[t].at[i] = h[t].at[i] - target.at[i];
    }
}

/* ---- a stage of the engine ---- */

/* The activations of one chunk that wait for its backward. */
typedef struct kept {
    int is_used;
    uint32_t chunk;
    vector h[CHUNK_SIZE];
} kept;

typedef struct link_ends {
    int from_previous; /* file descriptors */
    int to_previous;
    int from_next;
    int to_next;
} link_ends;

typedef struct engine {
    uint32_t stage;
    link_ends links;
    weights w;
    weights dw;
    const cf_chunk_plan *plan;
    vector (*input)[CHUNK_SIZE]; /* [n_chunks], from forward to backward */
    vector *state;               /* [n_chunks], what a chunk leaves behind */
    vector *d_state;             /* [n_chunks], and its gradient */
    kept *kept;                  /* [n_kept] */
    uint32_t n_kept;
    vector result[CHUNK_SIZE];   /* of the last forward, to be sent */
    vector gradient[CHUNK_SIZE]; /* received, and after a backward to be sent */
} engine;

static kept *kept_find(engine *e, int is_used, uint32_t chunk)
{
    for (uint32_t i = 0; i < e->n_kept; i++) {
        if (e->kept[i].is_used == is_used &&
            (!is_used || e->kept[i].chunk == chunk))
            return &e->kept[i];
    }
    fail("more chunks are kept than K allows");
    return NULL;
}

/* The state in front of a chunk: that of the chunk before it in its group. */
static vector state_before(const engine *e, uint32_t chunk)
{
    if (e->plan->chunks[chunk].in_group == 0)
        return (vector){{0}};
    return e->state[chunk - 1];
}

/* A piece starts at the chunk's state when it goes on, at zero when it is a
 * whole sequence: a chunk has one piece in the first case. */
static void forward(engine *e, uint32_t chunk, int keeps)
{
    const cf_chunk *c = &e->plan->chunks[chunk];
    const vector state = state_before(e, chunk);
    uint32_t at = 0;

    for (uint32_t i = 0; i < c->n_pieces; i++) {
        const cf_piece *piece = &e->plan->pieces[c->first_piece + i];

        if (e->stage == 0) {
            for (uint32_t t = 0; t < piece->n_tok; t++)
                e->input[chunk][at + t] =
                    token_of(piece->seq, piece->first_tok + t);
        }
        layer_forward(&e->w, &e->input[chunk][at], piece->n_tok, &state,
                      &e->result[at]);
        at += piece->n_tok;
    }
    e->state[chunk] = e->result[at - 1];
    if (keeps) {
        kept *slot = kept_find(e, 0, 0);

        slot->is_used = 1;
        slot->chunk = chunk;
        memcpy(slot->h, e->result, sizeof(slot->h));
    }
}

static void backward(engine *e, uint32_t chunk)
{
    const cf_chunk *c = &e->plan->chunks[chunk];
    const vector state = state_before(e, chunk);
    kept *slot = kept_find(e, 1, chunk);
    vector d_input[CHUNK_SIZE];
    uint32_t at = 0;

    for (uint32_t i = 0; i < c->n_pieces; i++) {
        const cf_piece *piece = &e->plan->pieces[c->first_piece + i];
        vector d_state = e->d_state[chunk];

        if (e->stage + 1 == N_STAGES)
            loss_backward(&slot->h[at], piece->seq, piece->first_tok,
                          piece->n_tok, &e->gradient[at]);
        layer_backward(&e->w, &e->input[chunk][at], &slot->h[at], &state,
                       &e->gradient[at], piece->n_tok, &d_state, &d_input[at],
                       &e->dw);
        if (c->in_group > 0)
            e->d_state[chunk - 1] = d_state;
        at += piece->n_tok;
    }
    slot->is_used = 0;
    memcpy(e->gradient, d_input, at * sizeof(vector));
}

static void write_all(int file, const void *bytes, size_t n)
{
    const char *at = bytes;

    while (n > 0) {
        ssize_t n_written = write(file, at, n);

        if (n_written <= 0)
            fail("cannot send");
        at += n_written;
        n -= (size_t)n_written;
    }
}

static void read_all(int file, void *bytes, size_t n)
{
    char *at = bytes;

    while (n > 0) {
        ssize_t n_read = read(file, at, n);

        if (n_read <= 0)
            fail("cannot receive: a neighbour is gone");
        at += n_read;
        n -= (size_t)n_read;
    }
}

static void run_op(engine *e, cf_op op)
{
    const size_t bytes = e->plan->chunks[op.chunk].n_tok * sizeof(vector);

    switch (op.kind) {
    case CF_OP_FORWARD:
        forward(e, op.chunk, 0);
        break;
    case CF_OP_FORWARD_KEEP:
    case CF_OP_RECOMPUTE:
        forward(e, op.chunk, 1);
        break;
    case CF_OP_BACKWARD:
        backward(e, op.chunk);
        break;
    case CF_OP_SEND_ACT:
        write_all(e->links.to_next, e->result, bytes);
        break;
    case CF_OP_RECV_ACT:
        read_all(e->links.from_previous, e->input[op.chunk], bytes);
        break;
    case CF_OP_SEND_GRAD:
        write_all(e->links.to_previous, e->gradient, bytes);
        break;
    case CF_OP_RECV_GRAD:
        read_all(e->links.from_next, e->gradient, bytes);
        break;
    case CF_OP_KIND_COUNT:
        break;
    }
}

/* ---- what is taken from the library ---- */

static void plan_build(cf_chunk_plan *plan)
{
    if (cf_chunk_plan_bound(lengths, N_SEQUENCES, CHUNK_SIZE,
                            &plan->capacity) != CF_OK)
        fail("no such plan");
    plan->chunks = allocate(plan->capacity.n_chunks, sizeof(cf_chunk));
    plan->pieces = allocate(plan->capacity.n_pieces, sizeof(cf_piece));
    plan->scratch = allocate(plan->capacity.scratch_bytes, 1);
    if (cf_chunk_plan_build(lengths, N_SEQUENCES, CHUNK_SIZE, plan) != CF_OK)
        fail("no plan");
}

static void schedule_build(const cf_chunk_plan *plan, cf_schedule *schedule)
{
    const cf_schedule_params params = {.n_stages = N_STAGES,
                                       .retained_chunks_max = RETAINED,
                                       .kind = CF_SCHEDULE_STATE_AWARE};
    cf_schedule_need need;
    cf_op_ref where;

    if (cf_schedule_bound(plan, &params, &need) != CF_OK)
        fail("no such schedule");
    schedule->ops = allocate(need.n_ops, sizeof(cf_op));
    schedule->first_op = allocate(N_STAGES + 1, sizeof(size_t));
    schedule->scratch = allocate(need.scratch_bytes, 1);
    schedule->ops_capacity = need.n_ops;
    schedule->scratch_bytes = need.scratch_bytes;
    if (cf_schedule_build(plan, &params, schedule) != CF_OK ||
        cf_schedule_check(plan, schedule, &where) != CF_OK)
        fail("no schedule");
}

/* Everything of the library's is in arrays of ours. */
static void plan_free(cf_chunk_plan *plan, cf_schedule *schedule)
{
    free(plan->chunks);
    free(plan->pieces);
    free(plan->scratch);
    free(schedule->ops);
    free(schedule->first_op);
    free(schedule->scratch);
}

typedef struct stage_job {
    uint32_t stage;
    link_ends links;
    weights *dw; /* where the gradient goes */
} stage_job;

/* The whole engine: one stage's list, from the first op to the last. */
static void *stage_run(void *argument)
{
    const stage_job *job = argument;
    const uint32_t stage = job->stage;
    cf_chunk_plan plan = {0};
    cf_schedule schedule = {0};
    engine e = {.stage = stage, .links = job->links, .w = weights_of(stage)};

    plan_build(&plan);
    schedule_build(&plan, &schedule);
    e.plan = &plan;
    e.n_kept = RETAINED + (N_STAGES - 1 - stage);
    e.kept = allocate(e.n_kept, sizeof(kept));
    e.input = allocate(plan.n_chunks, sizeof(*e.input));
    e.state = allocate(plan.n_chunks, sizeof(vector));
    e.d_state = allocate(plan.n_chunks, sizeof(vector));

    for (size_t i = schedule.first_op[stage]; i < schedule.first_op[stage + 1];
         i++)
        run_op(&e, schedule.ops[i]);

    free(e.kept);
    free(e.input);
    free(e.state);
    free(e.d_state);
    plan_free(&plan, &schedule);
    *job->dw = e.dw;
    return NULL;
}

/* ---- threads ---- */

static void open_pipe(int *read_end_p, int *write_end_p)
{
    int ends[2];

    if (pipe(ends) != 0)
        fail("no pipe");
    *read_end_p = ends[0];
    *write_end_p = ends[1];
}

/* Run the stages, each in a thread, and collect their gradients.  The ends of
 * the first and the last that no stage is at are never used. */
static void pipeline_run(weights dw[N_STAGES])
{
    stage_job jobs[N_STAGES] = {0};
    pthread_t threads[N_STAGES];

    for (int s = 0; s + 1 < N_STAGES; s++) {
        open_pipe(&jobs[s + 1].links.from_previous, &jobs[s].links.to_next);
        open_pipe(&jobs[s].links.from_next, &jobs[s + 1].links.to_previous);
    }
    for (uint32_t s = 0; s < N_STAGES; s++) {
        jobs[s].stage = s;
        jobs[s].dw = &dw[s];
        if (pthread_create(&threads[s], NULL, stage_run, &jobs[s]) != 0)
            fail("no thread");
    }
    for (uint32_t s = 0; s < N_STAGES; s++)
        (void)pthread_join(threads[s], NULL);
    for (int s = 0; s + 1 < N_STAGES; s++) {
        (void)close(jobs[s + 1].links.from_previous);
        (void)close(jobs[s].links.to_next);
        (void)close(jobs[s].links.from_next);
        (void)close(jobs[s + 1].links.to_previous);
    }
}

/* ---- the same without chunks ---- */

static void whole_run(weights dw[N_STAGES])
{
    const vector zero = {{0}};

    for (uint32_t seq = 0; seq < N_SEQUENCES; seq++) {
        const uint32_t n = lengths[seq];
        vector x[N_STAGES + 1][LONGEST];
        vector dx[LONGEST];
        vector dh[LONGEST];

        for (uint32_t t = 0; t < n; t++)
            x[0][t] = token_of(seq, t);
        for (uint32_t s = 0; s < N_STAGES; s++) {
            const weights w = weights_of(s);

            layer_forward(&w, x[s], n, &zero, x[s + 1]);
        }
        loss_backward(x[N_STAGES], seq, 0, n, dh);
        for (uint32_t s = N_STAGES; s-- > 0;) {
            const weights w = weights_of(s);
            vector d_state = zero;

            layer_backward(&w, x[s], x[s + 1], &zero, dh, n, &d_state, dx,
                           &dw[s]);
            memcpy(dh, dx, n * sizeof(vector));
        }
    }
}

static double largest_difference(const weights *a, const weights *b)
{
    double largest = 0;

    for (int s = 0; s < N_STAGES; s++) {
        for (int i = 0; i < WIDTH; i++) {
            for (int j = 0; j < WIDTH; j++) {
                largest = fmax(largest, fabs(a[s].a[i][j] - b[s].a[i][j]));
                largest = fmax(largest, fabs(a[s].c[i][j] - b[s].c[i][j]));
            }
        }
    }
    return largest;
}

static void print_order(void)
{
    cf_chunk_plan plan = {0};
    cf_schedule schedule = {0};
    char text[4096];

    plan_build(&plan);
    schedule_build(&plan, &schedule);
    (void)cf_schedule_format(&schedule, text, sizeof(text));
    printf("%d sequences in %zu chunks of up to %d tokens, K %d\n%s",
           N_SEQUENCES, plan.n_chunks, CHUNK_SIZE, RETAINED, text);
    plan_free(&plan, &schedule);
}

int main(void)
{
    weights chunked[N_STAGES] = {0};
    weights whole[N_STAGES] = {0};
    double difference;

    print_order();
    pipeline_run(chunked);
    whole_run(whole);
    difference = largest_difference(chunked, whole);
    printf("chunked %s unchunked (largest difference of a gradient %.1e)\n",
           difference < 1e-12 ? "==" : "!=", difference);
    return difference < 1e-12 ? EXIT_SUCCESS : EXIT_FAILURE;
}
