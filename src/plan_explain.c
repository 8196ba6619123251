/* plan_explain.c - see plan_explain.h. */
#include "src/plan_explain.h"

#include <inttypes.h>
#include <string.h>

#include "src/kv_state.h"

enum {
    FORMULA_BYTES = 160
};

/* What a line says. */
typedef struct term {
    size_t bytes;
    char formula[FORMULA_BYTES]; /* its value is bytes; "" there is none */
    const char *words;           /* what the factors are */
} term;

/* What formulas are made of. */
typedef struct facts {
    const cf_training *t;
    const cf_model *model;
    const cf_model_config *config;
    const cf_kernels *k;
    size_t n_layers, n_backward;
    size_t chunk_tok, n_slots;
    size_t n_q, n_qkv;
    cf_recompute policy;
} facts;

typedef void (*term_of)(const facts *f, term *out);

#define FORMULA(out, ...) \
    (void)snprintf((out)->formula, FORMULA_BYTES, __VA_ARGS__)

/* ---- the model ---- */

static void masters(const facts *f, term *out)
{
    out->bytes = f->model->n_elements * f->k->acc_bytes;
    FORMULA(out, "%zu * %zu", f->model->n_elements, f->k->acc_bytes);
    out->words = "parameters of the stage, bytes";
}

/* Those of a tied embedding have two accumulators. */
static void gradients(const facts *f, term *out)
{
    const cf_model *m = f->model;
    const size_t tied = f->config->tied && m->params[0].trained &&
                                (m->stage.is_first || m->stage.is_last)
                            ? m->params[0].n
                            : 0;

    out->bytes = (m->n_trained_elements + tied) * f->k->acc_bytes;
    FORMULA(out, "(%zu + %zu) * %zu", m->n_trained_elements, tied,
            f->k->acc_bytes);
    out->words = "trained parameters, those of a tied head again, bytes";
}

static void moments(const facts *f, term *out)
{
    const size_t n = f->model->shard_end - f->model->shard_begin;

    out->bytes = 2 * n * f->k->acc_bytes;
    FORMULA(out, "2 * %zu * %zu", n, f->k->acc_bytes);
    out->words = "moments, trained parameters of this replica's share, bytes";
}

/* ---- the KV state ---- */

static void kv(const facts *f, size_t n_layers, size_t elem_bytes, term *out)
{
    const size_t n_pages = f->t->need.engine.kv.n_pages;
    const size_t n_heads = f->config->n_kv_heads;
    const size_t head_dim = f->config->head_dim;

    out->bytes =
        n_pages * CF_PAGE_TOK * n_layers * 2 * n_heads * head_dim * elem_bytes;
    FORMULA(out, "%zu * %d * %zu * 2 * %zu * %zu * %zu", n_pages,
            (int)CF_PAGE_TOK, n_layers, n_heads, head_dim, elem_bytes);
    out->words =
        "pages, tokens of one, layers, K and V, KV heads, head size, bytes";
}

static void kv_state(const facts *f, term *out)
{
    kv(f, f->n_layers, f->k->act_bytes, out);
}

static void kv_gradients(const facts *f, term *out)
{
    kv(f, f->n_backward, f->k->acc_bytes, out);
}

/* ---- chunks ---- */

static void retained(const facts *f, term *out)
{
    const size_t layer = cf_activations_kept_bytes(f->model, f->policy);
    const size_t last =
        f->model->stage.is_last ? f->config->hidden * f->k->acc_bytes : 0;

    out->bytes = f->n_slots * f->chunk_tok * (f->n_backward * layer + last);
    FORMULA(out, "%zu * %zu * (%zu * %zu + %zu)", f->n_slots, f->chunk_tok,
            f->n_backward, layer, last);
    out->words = "chunks, tokens, layers, bytes that --recompute keeps of one, "
                 "what the head reads";
}

static void inputs(const facts *f, term *out)
{
    const size_t tok = f->config->hidden * f->k->acc_bytes;
    const size_t n = f->t->need.engine.n_dropped;

    out->bytes = n * f->chunk_tok * tok;
    FORMULA(out, "%zu * %zu * %zu", n, f->chunk_tok, tok);
    out->words = "dropped chunks, tokens, bytes of one";
}

static void attention(const facts *f, term *out)
{
    const size_t n = f->t->need.engine.n_dropped;
    const size_t tok =
        f->n_q * f->k->act_bytes + f->config->n_heads * f->k->acc_bytes;

    out->bytes = n * f->chunk_tok * f->n_layers * tok;
    FORMULA(out, "%zu * %zu * %zu * (%zu * %zu + %zu * %zu)", n, f->chunk_tok,
            f->n_layers, f->n_q, f->k->act_bytes, (size_t)f->config->n_heads,
            f->k->acc_bytes);
    out->words =
        "dropped chunks, tokens, layers, output and log-sum-exp, bytes";
}

static void messages(const facts *f, term *out)
{
    const size_t tok = f->config->hidden * f->k->acc_bytes;
    size_t n = 0;

    for (int hop = 0; hop < CF_HOP_COUNT; hop++)
        n += f->t->engine.exchange.hops[hop].is_open;
    out->bytes = n * f->chunk_tok * tok;
    FORMULA(out, "%zu * %zu * %zu", n, f->chunk_tok, tok);
    out->words = "directions of links, tokens, bytes of one";
}

/* ---- ops ---- */

static void one_layer(const facts *f, term *out)
{
    const size_t layer = cf_activations_layer_bytes(f->model);
    const size_t stream = f->config->hidden * f->k->acc_bytes;

    out->bytes = f->chunk_tok * (layer + stream);
    FORMULA(out, "%zu * (%zu + %zu)", f->chunk_tok, layer, stream);
    out->words = "tokens, bytes of a layer, of the stream behind it";
}

static void layer_gradients(const facts *f, term *out)
{
    const size_t hidden = f->config->hidden, act = f->k->act_bytes;
    const size_t acc = f->k->acc_bytes;
    const size_t n_copies = act == acc ? 1 : 2;
    const size_t tok = hidden * (acc + n_copies * act) + f->config->ffn * act +
                       f->n_q * (act + acc) + f->n_qkv * act;

    out->bytes = f->chunk_tok * tok;
    FORMULA(out,
            "%zu * (%zu * (%zu + %zu * %zu) + %zu * %zu + %zu * (%zu + "
            "%zu) + %zu * %zu)",
            f->chunk_tok, hidden, acc, n_copies, act, (size_t)f->config->ffn,
            act, f->n_q, act, acc, f->n_qkv, act);
    out->words = "tokens, then hidden size, MLP, queries and qkv with their "
                 "bytes";
}

static void head_rows(const facts *f, term *out)
{
    const size_t hidden = f->config->hidden;
    const size_t act = f->k->act_bytes, acc = f->k->acc_bytes;

    out->bytes = f->chunk_tok * (2 * hidden * (act + acc) + acc + 8);
    FORMULA(out, "%zu * (2 * %zu * (%zu + %zu) + %zu + 8)", f->chunk_tok,
            hidden, act, acc, acc);
    out->words = "tokens, rows and their gradients, bytes, a norm, a loss";
}

static void angles(const facts *f, term *out)
{
    const size_t n = f->config->head_dim / 2;

    out->bytes = 2 * f->chunk_tok * n * f->k->acc_bytes;
    FORMULA(out, "2 * %zu * %zu * %zu", f->chunk_tok, n, f->k->acc_bytes);
    out->words = "cos and sin, tokens, half a head, bytes";
}

static void chunk_tokens(const facts *f, term *out)
{
    const size_t n_pieces = f->t->need.engine.kv.n_pieces;

    out->bytes = (4 * f->chunk_tok + n_pieces + 1) * 4;
    FORMULA(out, "(4 * %zu + %zu + 1) * 4", f->chunk_tok, n_pieces);
    out->words = "ids, positions, rows and targets of tokens, pieces, bytes";
}

static const struct {
    const char *what; /* as the arena has it */
    term_of of;
} terms[] = {
    {"master weights", masters},
    {"gradients", gradients},
    {"Adam moments", moments},
    {"KV state", kv_state},
    {"gradients of the KV state", kv_gradients},
    {"activations of retained chunks", retained},
    {"inputs of dropped chunks", inputs},
    {"attention of dropped chunks", attention},
    {"messages between stages", messages},
    {"activations of one layer", one_layer},
    {"gradients of one layer's activations", layer_gradients},
    {"rows of the head", head_rows},
    {"rotary angles", angles},
    {"tokens of one chunk", chunk_tokens},
};

/* ---- the lines ---- */

static facts facts_of(const cf_training *t, cf_recompute policy)
{
    const cf_model *m = &t->run.model;
    const cf_model_config *c = &m->config;
    const size_t n_q = (size_t)c->n_heads * c->head_dim;

    return (facts){
        .t = t,
        .model = m,
        .config = c,
        .k = m->kernels,
        .n_layers = m->stage.end_layer - m->stage.first_layer,
        .n_backward = cf_n_backward_layers(m),
        .chunk_tok = t->need.engine.kv.chunk_tok,
        .n_slots = t->need.engine.n_slots,
        .n_q = n_q,
        .n_qkv = n_q + 2 * (size_t)c->n_kv_heads * c->head_dim,
        .policy = policy,
    };
}

/* What has no formula here is what the kernels and the plan ask for. */
static term term_of_line(const facts *f, const cf_arena_line *line)
{
    term found = {.bytes = line->bytes, .words = "counted"};

    for (size_t i = 0; i < sizeof(terms) / sizeof(terms[0]); i++)
        if (strcmp(terms[i].what, line->what) == 0)
            terms[i].of(f, &found);
    return found;
}

static void line_print(FILE *file, const char *what, const term *out)
{
    (void)fprintf(file, "  %-36s %15zu", what, out->bytes);
    if (out->formula[0] != '\0')
        (void)fprintf(file, " = %s", out->formula);
    (void)fprintf(file, "  (%s)\n", out->words);
}

static uint32_t stage_of_most(const cf_layout *layout)
{
    uint32_t most = 0;

    for (uint32_t s = 1; s < layout->n_stages; s++)
        if (layout->bytes[s] > layout->bytes[most])
            most = s;
    return most;
}

cf_status cf_plan_explain(cf_planning *planning, const cf_planner_point *point,
                          FILE *file)
{
    const uint32_t stage = stage_of_most(&planning->layout);
    size_t sum = 0;
    cf_arena sizes;
    facts f;
    term rounding = {.words = "every buffer begins at a multiple of 64 bytes"};
    cf_status status = cf_planning_size_stage(planning, stage, &sizes);

    if (status != CF_OK)
        return status;
    f = facts_of(planning->t, point->recompute);
    (void)fprintf(
        file,
        "\nmemory of stage %" PRIu32 ", ChunkSize %" PRIu32 ", K %" PRIu32
        ", recompute %s, longest sequence %" PRIu32 " tokens, in bytes\n",
        stage, point->chunk_size_tok, point->retained_chunks_max,
        cf_recompute_str(point->recompute), planning->t->need.longest_tok);
    for (size_t i = 0; i < sizes.n_lines; i++) {
        const term line = term_of_line(&f, &sizes.lines[i]);

        if (sizes.lines[i].bytes == 0)
            continue;
        line_print(file, sizes.lines[i].what, &line);
        sum += line.bytes;
    }
    rounding.bytes = sizes.used - sum;
    line_print(file, "rounding", &rounding);
    (void)fprintf(file, "  %-36s %15zu\n", "total", sizes.used);
    return CF_OK;
}
