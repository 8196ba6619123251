/* kernel_cases.c - see kernel_cases.h. */
#include "tests/bench/kernel_cases.h"

#include <assert.h>
#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static size_t rows(const kernel_case *c)
{
    return (size_t)c->layout.n_pieces * c->layout.n_tok;
}

static size_t n_params(const case_room *r)
{
    return r->model->vocab * r->model->hidden;
}

/* ---- the operations ---- */

static void run_zero(const case_room *r, const kernel_case *c)
{
    r->k->zero(r->k, r->acc[0], rows(c) * r->model->hidden * r->k->acc_bytes);
}

static void run_copy(const case_room *r, const kernel_case *c)
{
    r->k->copy(r->k, r->acc[0], r->acc[1],
               rows(c) * r->model->hidden * r->k->acc_bytes);
}

static void run_as_act(const case_room *r, const kernel_case *c)
{
    (void)r->k->as_act(r->k, rows(c) * r->model->hidden, r->acc[0], r->act[0]);
}

static void run_rows_gather(const case_room *r, const kernel_case *c)
{
    r->k->rows_gather(r->k, rows(c), r->model->hidden, r->positions, r->acc[0],
                      r->acc[1]);
}

static void run_rows_scatter(const case_room *r, const kernel_case *c)
{
    r->k->rows_scatter(r->k, rows(c), rows(c), r->model->hidden, r->positions,
                       r->acc[0], r->acc[1]);
}

static void run_first_bad_row(const case_room *r, const kernel_case *c)
{
    (void)r->k->first_bad_row(r->k, rows(c), r->model->hidden, r->acc[0]);
}

static void run_weight_pack(const case_room *r, const kernel_case *c)
{
    cf_weight weight = c->weight;

    r->k->weight_pack(r->k, &weight);
}

static void run_linear_forward(const case_room *r, const kernel_case *c)
{
    r->k->linear_forward(r->k, &c->weight, rows(c), r->act[0], r->act[1],
                         r->scratch);
}

static void run_linear_forward_residual(const case_room *r,
                                        const kernel_case *c)
{
    r->k->linear_forward_residual(r->k, &c->weight, rows(c), r->act[0],
                                  r->acc[0], r->scratch);
}

static void run_linear_forward_add(const case_room *r, const kernel_case *c)
{
    r->k->linear_forward_add(r->k, &c->weight, rows(c), r->act[0], r->act[1],
                             r->scratch);
}

static void run_linear_backward(const case_room *r, const kernel_case *c)
{
    r->k->linear_backward(r->k, &c->weight, rows(c), r->act[0], r->act[1],
                          r->act[2], r->weights[1], NULL, r->scratch);
}

static void run_rmsnorm_forward(const case_room *r, const kernel_case *c)
{
    r->k->rmsnorm_forward(r->k, rows(c), r->model->hidden, 1e-5, r->acc[0],
                          r->weights[0], r->act[0], r->acc[1]);
}

static void run_rmsnorm_backward(const case_room *r, const kernel_case *c)
{
    r->k->rmsnorm_backward(r->k, rows(c), r->model->hidden, r->acc[0],
                           r->weights[0], r->acc[1], r->act[0], r->acc[2],
                           r->weights[1], r->scratch);
}

static void run_rope_table(const case_room *r, const kernel_case *c)
{
    r->k->rope_table(r->k, rows(c), r->positions,
                     r->model->attention.head_dim / 2, r->inv_freq, 1,
                     r->acc[2], r->acc[3]);
}

static void run_qkv_forward(const case_room *r, const kernel_case *c)
{
    (void)c;
    r->k->qkv_forward(r->k, &r->qkv, &r->batch, r->act[0], r->act[1]);
}

static void run_qkv_backward(const case_room *r, const kernel_case *c)
{
    const bool norms = r->model->qk_norm;

    (void)c;
    r->k->qkv_backward(r->k, &r->qkv, &r->batch, r->act[0], r->acc[0],
                       r->act[2], norms ? r->weights[0] : NULL,
                       norms ? r->weights[1] : NULL, r->scratch);
}

static void run_attention_forward(const case_room *r, const kernel_case *c)
{
    (void)c;
    r->k->attention_forward(r->k, &r->model->attention, &r->batch, 0,
                            UINT32_MAX, r->act[0], r->act[1], r->acc[1],
                            r->scratch);
}

static void run_attention_backward(const case_room *r, const kernel_case *c)
{
    (void)c;
    r->k->attention_backward(r->k, &r->model->attention, &r->batch, 0,
                             UINT32_MAX, r->act[0], r->act[1], r->acc[1],
                             r->act[2], r->acc[0], r->scratch);
}

static void run_swiglu_forward(const case_room *r, const kernel_case *c)
{
    r->k->swiglu_forward(r->k, rows(c), r->model->ffn, r->act[0], r->act[1]);
}

static void run_swiglu_backward(const case_room *r, const kernel_case *c)
{
    r->k->swiglu_backward(r->k, rows(c), r->model->ffn, r->act[0], r->act[1],
                          r->act[2]);
}

static void run_embedding_forward(const case_room *r, const kernel_case *c)
{
    r->k->embedding_forward(r->k, rows(c), r->model->hidden, r->ids,
                            r->weights[0], r->acc[0]);
}

static void run_embedding_backward(const case_room *r, const kernel_case *c)
{
    r->k->embedding_backward(r->k, rows(c), r->model->hidden, r->ids, r->acc[0],
                             r->weights[1]);
}

static void run_head_forward(const case_room *r, const kernel_case *c)
{
    r->k->head_forward(r->k, &c->weight, rows(c), r->act[0], r->ids, r->doubles,
                       r->scratch);
}

static void run_head_backward(const case_room *r, const kernel_case *c)
{
    r->k->head_backward(r->k, &c->weight, rows(c), r->act[0], r->ids,
                        1 / (double)rows(c), r->doubles, r->act[1],
                        r->weights[1], r->scratch);
}

static void run_sum_squares(const case_room *r, const kernel_case *c)
{
    (void)c;
    r->k->sum_squares(r->k, n_params(r), r->weights[0], r->doubles);
}

static void run_add(const case_room *r, const kernel_case *c)
{
    (void)c;
    r->k->add(r->k, n_params(r), r->weights[0], r->weights[1]);
}

static void run_add_act(const case_room *r, const kernel_case *c)
{
    r->k->add_act(r->k, rows(c) * r->model->hidden, r->act[0], r->act[1]);
}

static void run_adamw(const case_room *r, const kernel_case *c)
{
    static const cf_adamw_params adamw = {
        .learning_rate = 1e-5,
        .beta1 = 0.9,
        .beta2 = 0.999,
        .eps = 1e-8,
        .weight_decay = 0.01,
        .correction1 = 0.1,
        .correction2 = 0.001,
        .g_scale = 1,
    };

    (void)c;
    r->k->adamw(r->k, n_params(r), &adamw, r->weights[0], r->weights[1],
                r->weights[2], r->weights[3]);
}

/* ---- the list of them ---- */

typedef enum op_family {
    FAMILY_ROWS,      /* once for each number of tokens */
    FAMILY_LINEAR,    /* and for each matrix of a layer */
    FAMILY_ATTENTION, /* and for each layout */
    FAMILY_HEAD,
    FAMILY_PARAMS /* over all parameters of an embedding */
} op_family;

typedef struct op_entry {
    const char *name;
    op_family family;
    void (*run)(const case_room *r, const kernel_case *c);
    /* Elements read and written: of act, by row, in widths of the stream, the
     * MLP and the projection; the same of acc; of parameters. */
    struct {
        double hidden, ffn, qkv;
    } act, acc;
    double acc_head_dim, params;
    double n_forwards; /* of a product: the flop of a forward, so many times */
} op_entry;

static const op_entry ops[] = {
    {"zero", FAMILY_ROWS, run_zero, .acc = {.hidden = 1}},
    {"copy", FAMILY_ROWS, run_copy, .acc = {.hidden = 2}},
    {"as_act", FAMILY_ROWS, run_as_act, .act = {.hidden = 1},
     .acc = {.hidden = 1}},
    {"rows_gather", FAMILY_ROWS, run_rows_gather, .acc = {.hidden = 2}},
    {"rows_scatter", FAMILY_ROWS, run_rows_scatter, .acc = {.hidden = 2}},
    {"first_bad_row", FAMILY_ROWS, run_first_bad_row, .acc = {.hidden = 1}},
    {"weight_pack", FAMILY_LINEAR, run_weight_pack, .n_forwards = 0},
    {"linear_forward", FAMILY_LINEAR, run_linear_forward, .n_forwards = 1},
    {"linear_forward_residual", FAMILY_LINEAR, run_linear_forward_residual,
     .n_forwards = 1},
    {"linear_forward_add", FAMILY_LINEAR, run_linear_forward_add,
     .n_forwards = 1},
    {"linear_backward", FAMILY_LINEAR, run_linear_backward, .n_forwards = 2},
    {"rmsnorm_forward", FAMILY_ROWS, run_rmsnorm_forward, .act = {.hidden = 1},
     .acc = {.hidden = 1}},
    {"rmsnorm_backward", FAMILY_ROWS, run_rmsnorm_backward,
     .act = {.hidden = 1}, .acc = {.hidden = 3}},
    {"rope_table", FAMILY_ROWS, run_rope_table, .acc_head_dim = 1},
    {"qkv_forward", FAMILY_ROWS, run_qkv_forward, .act = {.qkv = 2}},
    {"qkv_backward", FAMILY_ROWS, run_qkv_backward, .act = {.qkv = 1},
     .acc = {.qkv = 1}},
    {"attention_forward", FAMILY_ATTENTION, run_attention_forward,
     .n_forwards = 1},
    {"attention_backward", FAMILY_ATTENTION, run_attention_backward,
     .n_forwards = 2.5},
    {"swiglu_forward", FAMILY_ROWS, run_swiglu_forward, .act = {.ffn = 3}},
    {"swiglu_backward", FAMILY_ROWS, run_swiglu_backward, .act = {.ffn = 5}},
    {"embedding_forward", FAMILY_ROWS, run_embedding_forward,
     .acc = {.hidden = 2}},
    {"embedding_backward", FAMILY_ROWS, run_embedding_backward,
     .acc = {.hidden = 3}},
    {"head_forward", FAMILY_HEAD, run_head_forward, .n_forwards = 1},
    {"head_backward", FAMILY_HEAD, run_head_backward, .n_forwards = 3},
    {"sum_squares", FAMILY_PARAMS, run_sum_squares, .params = 1},
    {"add", FAMILY_PARAMS, run_add, .params = 3},
    {"add_act", FAMILY_ROWS, run_add_act, .act = {.hidden = 3}},
    {"adamw", FAMILY_PARAMS, run_adamw, .params = 7},
};

enum {
    N_OPS = sizeof(ops) / sizeof(ops[0])
};

static const op_entry *op_of(const char *name)
{
    for (size_t i = 0; i < N_OPS; i++)
        if (strcmp(ops[i].name, name) == 0)
            return &ops[i];
    return NULL;
}

bool kernel_op_is_known(const char *op)
{
    return op_of(op) != NULL;
}

/* ---- making cases ---- */

typedef struct case_list {
    kernel_case *cases;
    size_t n;
} case_list;

enum {
    CASES_MAX = 1024
};

static kernel_case *list_add(case_list *list, const op_entry *op,
                             case_layout layout)
{
    kernel_case *c = &list->cases[list->n++];

    assert(list->n <= CASES_MAX);
    *c = (kernel_case){.op = op->name, .layout = layout};
    return c;
}

static void linear_add(const case_room *r, case_list *list, const op_entry *op,
                       case_layout layout)
{
    const case_model *m = r->model;
    const size_t n_q = (size_t)m->attention.n_heads * m->attention.head_dim;
    const size_t n_kv = (size_t)m->attention.n_kv_heads * m->attention.head_dim;
    const bool is_residual = op->run == run_linear_forward_residual;
    const bool is_plain =
        op->run == run_linear_forward || op->run == run_linear_forward_add;
    const struct {
        const char *name;
        size_t n_out, n_in;
        bool is_residual;
    } matrices[] = {{"q+k+v", n_q + 2 * n_kv, m->hidden, false},
                    {"o", m->hidden, n_q, true},
                    {"gate+up", 2 * m->ffn, m->hidden, false},
                    {"down", m->hidden, m->ffn, true}};

    for (size_t i = 0; i < sizeof(matrices) / sizeof(matrices[0]); i++) {
        const size_t n_out = matrices[i].n_out, n_in = matrices[i].n_in;
        kernel_case *c;

        if (matrices[i].is_residual ? is_plain : is_residual)
            continue; /* as a layer calls it */
        c = list_add(list, op, layout);
        c->weight = (cf_weight){.master = r->weights[0],
                                .packed = r->packed,
                                .n_out = n_out,
                                .n_in = n_in};
        c->flop =
            op->n_forwards * 2 * (double)rows(c) * (double)n_out * (double)n_in;
        if (op->run == run_weight_pack)
            (void)snprintf(c->shape, sizeof(c->shape), "%s %zu x %zu",
                           matrices[i].name, n_out, n_in);
        else
            (void)snprintf(c->shape, sizeof(c->shape), "%zu, %s %zu x %zu",
                           rows(c), matrices[i].name, n_out, n_in);
    }
}

static void head_add(const case_room *r, case_list *list, const op_entry *op,
                     case_layout layout)
{
    kernel_case *c = list_add(list, op, layout);

    c->weight = (cf_weight){.master = r->weights[0],
                            .packed = r->packed,
                            .n_out = r->model->vocab,
                            .n_in = r->model->hidden};
    c->flop = op->n_forwards * 2 * (double)rows(c) * (double)n_params(r);
    (void)snprintf(c->shape, sizeof(c->shape), "%zu, %zu x %zu", rows(c),
                   c->weight.n_out, c->weight.n_in);
}

static void attention_add(const case_room *r, case_list *list,
                          const op_entry *op, case_layout layout)
{
    const cf_attn_shape *shape = &r->model->attention;
    const double n = layout.n_tok;
    const double pairs =
        layout.n_pieces * (n * layout.prefix_tok + n * (n + 1) / 2);
    kernel_case *c = list_add(list, op, layout);

    c->flop = op->n_forwards * 4 * pairs * shape->n_heads * shape->head_dim;
    if (layout.n_pieces > 1)
        (void)snprintf(c->shape, sizeof(c->shape), "packed %u x %u",
                       (unsigned)layout.n_pieces, (unsigned)layout.n_tok);
    else if (layout.prefix_tok > 0)
        (void)snprintf(c->shape, sizeof(c->shape), "%u after %u",
                       (unsigned)layout.n_tok, (unsigned)layout.prefix_tok);
    else
        (void)snprintf(c->shape, sizeof(c->shape), "%u",
                       (unsigned)layout.n_tok);
}

/* What streams through an elementwise operation; nothing where a conversion has
 * nothing to convert. */
static double bytes_of(const case_room *r, const op_entry *op, size_t n_rows)
{
    const case_model *m = r->model;
    const cf_kernels *k = r->k;
    const double n_qkv =
        (m->attention.n_heads + 2.0 * m->attention.n_kv_heads) *
        m->attention.head_dim;
    const bool reads_qkv = op->run == run_qkv_backward && m->qk_norm;
    const double act = op->act.hidden * (double)m->hidden +
                       op->act.ffn * (double)m->ffn +
                       (op->act.qkv + (reads_qkv ? 1 : 0)) * n_qkv;
    const double acc = op->acc.hidden * (double)m->hidden +
                       op->acc.ffn * (double)m->ffn + op->acc.qkv * n_qkv +
                       op->acc_head_dim * m->attention.head_dim;

    if (op->run == run_as_act && k->act_bytes == k->acc_bytes)
        return 0;
    return (double)n_rows *
               (act * (double)k->act_bytes + acc * (double)k->acc_bytes) +
           op->params * (double)n_params(r) * (double)k->acc_bytes;
}

static void rows_add(const case_room *r, case_list *list, const op_entry *op,
                     case_layout layout)
{
    kernel_case *c = list_add(list, op, layout);

    c->bytes = bytes_of(r, op, rows(c));
    if (op->family == FAMILY_PARAMS)
        (void)snprintf(c->shape, sizeof(c->shape), "%zu", n_params(r));
    else
        (void)snprintf(c->shape, sizeof(c->shape), "%zu", rows(c));
}

static void op_add(const case_room *r, case_list *list, const op_entry *op,
                   const case_sizes *sizes)
{
    /* No rows in what it does. */
    const bool once = op->family == FAMILY_PARAMS || op->run == run_weight_pack;

    for (size_t i = 0; i < sizes->n_tokens && (i == 0 || !once); i++) {
        const case_layout layout = {.n_pieces = 1,
                                    .n_tok = (uint32_t)sizes->tokens[i]};

        switch (op->family) {
        case FAMILY_LINEAR:
            linear_add(r, list, op, layout);
            break;
        case FAMILY_HEAD:
            head_add(r, list, op, layout);
            break;
        case FAMILY_ATTENTION:
            attention_add(r, list, op, layout);
            break;
        case FAMILY_ROWS:
        case FAMILY_PARAMS:
            rows_add(r, list, op, layout);
            break;
        }
    }
    for (size_t i = 0; i < sizes->n_attention; i++)
        if (op->family == FAMILY_ATTENTION)
            attention_add(r, list, op, sizes->attention[i]);
}

kernel_case *kernel_cases_list(const case_room *room, const case_sizes *sizes,
                               const char *op, size_t *n_p)
{
    case_list list = {.cases = calloc(CASES_MAX, sizeof(kernel_case))};

    if (list.cases == NULL) {
        (void)fprintf(stderr, "bench_kernels: no memory for the cases\n");
        exit(4);
    }
    for (size_t i = 0; i < N_OPS; i++)
        if (op == NULL || strcmp(op, ops[i].name) == 0)
            op_add(room, &list, &ops[i], sizes);
    *n_p = list.n;
    return list.cases;
}

/* ---- running them ---- */

/* The pieces lie one behind the other, each with pages of its own. */
static void layout_set(case_room *r, case_layout layout)
{
    const uint32_t keys = layout.prefix_tok + layout.n_tok;
    const size_t n_pages = (keys + CF_PAGE_TOK - 1) / CF_PAGE_TOK;
    const size_t page_tok = keys < CF_PAGE_TOK ? keys : CF_PAGE_TOK;

    for (uint32_t i = 0; i < layout.n_pieces; i++)
        r->pieces[i] = (cf_attn_piece){
            .row = i * layout.n_tok,
            .n_tok = layout.n_tok,
            .prefix_tok = layout.prefix_tok,
            .head_stride = page_tok * r->model->attention.head_dim,
            .k = r->page_at[0] + i * n_pages,
            .v = r->page_at[1] + i * n_pages,
            .dk = r->page_at[2] + i * n_pages,
            .dv = r->page_at[3] + i * n_pages,
        };
    r->batch = (cf_attn_batch){.pieces = r->pieces,
                               .n_pieces = layout.n_pieces,
                               .n_tok = (size_t)layout.n_pieces * layout.n_tok};
}

void kernel_case_prepare(case_room *room, const kernel_case *c)
{
    cf_weight weight = c->weight;

    layout_set(room, c->layout);
    if (weight.n_out > 0)
        room->k->weight_pack(room->k, &weight);
    if (op_of(c->op)->run == run_attention_backward)
        run_attention_forward(room, c); /* for its o and lse */
}

void kernel_case_run(const case_room *room, const kernel_case *c)
{
    op_of(c->op)->run(room, c);
}

bool kernel_case_is_gemm(const kernel_case *c)
{
    const op_entry *op = op_of(c->op);

    return op->family == FAMILY_LINEAR && op->n_forwards > 0;
}

/* c [m, n] = op(a) op(b) + beta c, for acc. */
static void library(const case_room *r, CBLAS_TRANSPOSE op_a,
                    CBLAS_TRANSPOSE op_b, size_t m, size_t n, size_t k,
                    const void *a, const void *b, double beta, void *c)
{
    const int lda = (int)(op_a == CblasNoTrans ? k : m);
    const int ldb = (int)(op_b == CblasNoTrans ? n : k);

    if (r->k->acc_bytes == sizeof(double))
        cblas_dgemm(CblasRowMajor, op_a, op_b, (int)m, (int)n, (int)k, 1, a,
                    lda, b, ldb, beta, c, (int)n);
    else
        cblas_sgemm(CblasRowMajor, op_a, op_b, (int)m, (int)n, (int)k, 1, a,
                    lda, b, ldb, (float)beta, c, (int)n);
}

void kernel_case_run_library(const case_room *r, const kernel_case *c)
{
    const size_t n_out = c->weight.n_out, n_in = c->weight.n_in;
    const op_entry *op = op_of(c->op);
    void *const *a = r->library;

    if (op->run != run_linear_backward) {
        const double beta = op->run == run_linear_forward ? 0 : 1;

        library(r, CblasNoTrans, CblasTrans, rows(c), n_out, n_in, a[0],
                c->weight.master, beta, a[1]);
        return;
    }
    library(r, CblasNoTrans, CblasNoTrans, rows(c), n_in, n_out, a[0],
            c->weight.master, 0, a[2]);
    library(r, CblasTrans, CblasNoTrans, n_out, n_in, rows(c), a[0], a[1], 1,
            r->weights[1]);
}
