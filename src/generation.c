/* generation.c - see generation.h. */
#include "src/generation.h"

#include <assert.h>

#include "src/log.h"

/* ---- the plan ---- */

static uint32_t n_prompt_chunks(const cf_generation *g)
{
    return (g->n_prompt - 1) / g->chunk_size_tok + 1;
}

/* All but the last token are run. */
static size_t n_chunks(const cf_generation *g)
{
    return n_prompt_chunks(g) + (size_t)(g->capacity_tok - g->n_prompt - 1);
}

static void chunk_append(cf_chunk_plan *plan, uint32_t first_tok,
                         uint32_t n_tok)
{
    const uint32_t i = (uint32_t)plan->n_chunks++;

    plan->pieces[plan->n_pieces++] =
        (cf_piece){.first_tok = first_tok, .n_tok = n_tok};
    plan->chunks[i] = (cf_chunk){.kind = CF_CHUNK_DEPENDENT,
                                 .first_piece = i,
                                 .n_pieces = 1,
                                 .n_tok = n_tok,
                                 .prefix_tok = first_tok,
                                 .in_group = i};
}

static void plan_build(cf_generation *g)
{
    const uint32_t size = g->chunk_size_tok;
    uint32_t at = 0;

    g->plan.n_groups = 1;
    g->plan.chunk_size_tok = size;
    for (; at < g->n_prompt; at += g->plan.pieces[g->plan.n_pieces - 1].n_tok)
        chunk_append(&g->plan, at,
                     g->n_prompt - at < size ? g->n_prompt - at : size);
    for (; at + 1 < g->capacity_tok; at++)
        chunk_append(&g->plan, at, 1);
    assert(g->plan.n_chunks == n_chunks(g));
}

/* ---- memory ---- */

void cf_generation_carve(cf_generation *g, cf_model *model, cf_arena *arena)
{
    static const char what[] = "logits";
    const cf_kernels *k = model->kernels;
    const cf_model_config *c = &model->config;
    const size_t n = n_chunks(g);
    const cf_engine_need need = {
        .kv = {.n_pages = cf_kv_pages(g->capacity_tok),
               .n_groups = 1,
               .n_standalone = 1, /* there are none, but places are counted */
               .n_pieces = 1,
               .chunk_tok = g->n_prompt < g->chunk_size_tok ? g->n_prompt
                                                            : g->chunk_size_tok,
               .sequence_tok = g->capacity_tok},
        .n_plan_pieces = n,
    };

    g->tokens = cf_arena_take(arena, CF_LIFETIME_RUN, "bookkeeping",
                              g->capacity_tok, sizeof(*g->tokens));
    g->plan = (cf_chunk_plan){
        .chunks = cf_arena_take(arena, CF_LIFETIME_RUN, "plan and schedule", n,
                                sizeof(cf_chunk)),
        .pieces = cf_arena_take(arena, CF_LIFETIME_RUN, "plan and schedule", n,
                                sizeof(cf_piece)),
        .capacity = {.n_chunks = n, .n_pieces = n},
    };
    cf_engine_carve(&g->engine, model, &need, CF_RECOMPUTE_SELECTIVE,
                    CF_GRADIENTS_NO, arena);
    g->logits =
        cf_arena_take(arena, CF_LIFETIME_OP, what, c->vocab, k->acc_bytes);
    g->scratch =
        cf_arena_take(arena, CF_LIFETIME_OP, what,
                      k->linear_scratch_bytes(k, 1, c->vocab, c->hidden), 1);
    g->candidates = cf_arena_take(arena, CF_LIFETIME_OP, what, c->vocab,
                                  sizeof(*g->candidates));
    g->n_tok = g->n_prompt;
    g->n_chunks_run = 0;
}

/* ---- tokens ---- */

static cf_status begin(cf_generation *g)
{
    const cf_engine_batch batch = {.tokens = g->tokens};

    plan_build(g);
    return cf_engine_begin_pass(&g->engine, &batch, &g->plan, 0,
                                (uint32_t)g->plan.n_chunks);
}

/* Run the chunks that were not: those of the prompt, or the newest token. */
static cf_status chunks_run(cf_generation *g)
{
    const uint32_t last = n_prompt_chunks(g) + (g->n_tok - g->n_prompt) - 1;
    cf_status status = g->n_chunks_run == 0 ? begin(g) : CF_OK;

    while (status == CF_OK && g->n_chunks_run < last)
        status = cf_engine_callbacks.forward(&g->engine, &g->plan,
                                             g->n_chunks_run++, CF_KEEP_NO);
    if (status == CF_OK)
        status = cf_engine_last_row(&g->engine, &g->plan, g->n_chunks_run++);
    return status;
}

static cf_status logits_compute(cf_generation *g)
{
    const cf_model *model = g->engine.model;
    const cf_kernels *k = model->kernels;
    const uint32_t vocab = model->config.vocab;

    k->zero(k, g->logits, vocab * k->acc_bytes);
    k->linear_forward_residual(k, &model->head.weight, 1, g->engine.head.n,
                               g->logits, g->scratch);
    if (k->first_bad_row(k, 1, vocab, g->logits) == 1)
        return k->status(k);
    cf_log_error("the logits behind token %u are not finite: the model is "
                 "damaged, take an earlier one",
                 (unsigned)g->n_tok);
    return CF_NOT_FINITE;
}

static void candidates_fill(cf_generation *g)
{
    const cf_model *model = g->engine.model;
    const bool wide = model->kernels->acc_bytes == sizeof(double);

    for (uint32_t i = 0; i < model->config.vocab; i++)
        g->candidates[i] = (cf_candidate){
            .logit = wide ? ((const double *)g->logits)[i]
                          : (double)((const float *)g->logits)[i],
            .token = i,
        };
}

cf_status cf_generation_next(cf_generation *g, uint32_t *token_p)
{
    cf_status status;

    assert(g->n_tok < g->capacity_tok);
    status = chunks_run(g);
    if (status == CF_OK)
        status = logits_compute(g);
    if (status != CF_OK)
        return status;
    candidates_fill(g);
    *token_p = cf_sampling_choose(&g->sampling, g->engine.model->config.vocab,
                                  g->candidates, g->n_tok);
    g->tokens[g->n_tok++] = *token_p;
    return CF_OK;
}
