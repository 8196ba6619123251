/* case_room.c - the arrays of kernel_cases.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/kernel_cases.h"

static void *take(size_t n, size_t size)
{
    void *memory = NULL;

    if (posix_memalign(&memory, 64, n > 0 ? n * size : 64) != 0) {
        (void)fprintf(stderr, "bench_kernels: no memory for %zu MiB\n",
                      n * size >> 20);
        exit(4);
    }
    return memory;
}

/* In [0, 1), without a pattern that a cache or a sum would notice. */
static double value_at(size_t i)
{
    return (double)((i * UINT64_C(0x9e3779b97f4a7c15)) >> 40) * 0x1p-24;
}

/* n elements of act or acc in [low, low + width), touched by all threads. */
static void *filled(size_t n, size_t element_bytes, double low, double width)
{
    void *memory = take(n, element_bytes);

#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i++) {
        const double x = low + width * value_at(i);
        const float narrow = (float)x;
        uint32_t bits;

        memcpy(&bits, &narrow, sizeof(bits));
        if (element_bytes == sizeof(double))
            ((double *)memory)[i] = x;
        else if (element_bytes == sizeof(float))
            ((float *)memory)[i] = narrow;
        else
            ((uint16_t *)memory)[i] = (uint16_t)(bits >> 16);
    }
    return memory;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t q_width(const case_model *m)
{
    return (size_t)m->attention.n_heads * m->attention.head_dim;
}

static size_t qkv_width(const case_model *m)
{
    return q_width(m) +
           2 * (size_t)m->attention.n_kv_heads * m->attention.head_dim;
}

/* ---- what all cases need at most ---- */

typedef struct room_need {
    size_t n_tok, n_pieces, n_pages;
} room_need;

static void need_add(room_need *need, case_layout layout)
{
    const size_t keys = (size_t)layout.prefix_tok + layout.n_tok;
    const size_t n_pages =
        layout.n_pieces * ((keys + CF_PAGE_TOK - 1) / CF_PAGE_TOK);

    need->n_tok = larger(need->n_tok, (size_t)layout.n_pieces * layout.n_tok);
    need->n_pieces = larger(need->n_pieces, layout.n_pieces);
    need->n_pages = larger(need->n_pages, n_pages);
}

static room_need need_of(const case_sizes *sizes)
{
    room_need need = {.n_tok = 0};

    for (size_t i = 0; i < sizes->n_tokens; i++)
        need_add(&need, (case_layout){1, (uint32_t)sizes->tokens[i], 0});
    for (size_t i = 0; i < sizes->n_attention; i++)
        need_add(&need, sizes->attention[i]);
    return need;
}

static size_t scratch_bytes(const case_room *room, const room_need *need)
{
    const cf_kernels *k = room->k;
    const case_model *m = room->model;
    const size_t n_tok = need->n_tok;
    const struct {
        size_t n_out, n_in;
    } linear[] = {{qkv_width(m), m->hidden},
                  {m->hidden, q_width(m)},
                  {2 * m->ffn, m->hidden},
                  {m->hidden, m->ffn}};
    size_t bytes =
        k->attention_scratch_bytes(k, &m->attention, n_tok, need->n_pieces);

    for (size_t i = 0; i < sizeof(linear) / sizeof(linear[0]); i++)
        bytes = larger(bytes, k->linear_scratch_bytes(k, n_tok, linear[i].n_out,
                                                      linear[i].n_in));
    bytes =
        larger(bytes, k->qkv_backward_scratch_bytes(k, &m->attention, n_tok));
    bytes =
        larger(bytes, k->rmsnorm_backward_scratch_bytes(k, n_tok, m->hidden));
    return larger(bytes, k->head_scratch_bytes(k, n_tok, m->vocab, m->hidden));
}

static size_t packed_bytes(const case_room *room)
{
    const cf_kernels *k = room->k;
    const case_model *m = room->model;
    size_t bytes = k->weight_packed_bytes(k, m->vocab, m->hidden);

    bytes = larger(bytes, k->weight_packed_bytes(k, 2 * m->ffn, m->hidden));
    bytes = larger(bytes, k->weight_packed_bytes(k, m->hidden, m->ffn));
    bytes = larger(bytes, k->weight_packed_bytes(k, m->hidden, q_width(m)));
    return larger(bytes, k->weight_packed_bytes(k, qkv_width(m), m->hidden));
}

/* ---- open and close ---- */

static void rows_open(case_room *room)
{
    const cf_kernels *k = room->k;
    const case_model *m = room->model;
    const size_t act_width =
        larger(larger(2 * m->ffn, qkv_width(m)), m->hidden);
    const size_t acc_width = larger(q_width(m), m->hidden);

    for (int i = 0; i < 4; i++) {
        room->act[i] = filled(room->n_tok * act_width, k->act_bytes, -0.5, 1);
        room->acc[i] = filled(room->n_tok * acc_width, k->acc_bytes, -0.5, 1);
        /* Not below 0, as a second moment is not. */
        room->weights[i] = filled(m->vocab * m->hidden, k->acc_bytes, 0, 0.01);
    }
    for (int i = 0; i < 3; i++)
        room->library[i] =
            k->act_bytes == k->acc_bytes
                ? room->act[i]
                : filled(room->n_tok * act_width, k->acc_bytes, -0.5, 1);
    room->ids = take(room->n_tok, sizeof(*room->ids));
    room->positions = take(room->n_tok, sizeof(*room->positions));
    for (size_t i = 0; i < room->n_tok; i++) {
        room->ids[i] = (uint32_t)(value_at(i) * (double)m->vocab);
        room->positions[i] = (uint32_t)i;
    }
    room->inv_freq = take(m->attention.head_dim, sizeof(double));
    for (uint32_t i = 0; i < m->attention.head_dim; i++)
        room->inv_freq[i] = 1 / (1.0 + i);
    room->doubles =
        take(larger(room->n_tok, m->vocab * m->hidden / CF_NORM_BLOCK + 1),
             sizeof(double));
}

static void pages_open(case_room *room, const room_need *need)
{
    const cf_kernels *k = room->k;
    const cf_attn_shape *shape = &room->model->attention;
    const size_t page =
        (size_t)shape->n_kv_heads * CF_PAGE_TOK * shape->head_dim;

    for (int i = 0; i < 4; i++) {
        const size_t element_bytes = i < 2 ? k->act_bytes : k->acc_bytes;
        char *memory = filled(need->n_pages * page, element_bytes, -0.5, 1);

        room->pages[i] = memory;
        room->page_at[i] = take(need->n_pages, sizeof(void *));
        for (size_t j = 0; j < need->n_pages; j++)
            room->page_at[i][j] = memory + j * page * element_bytes;
    }
    room->pieces = take(need->n_pieces, sizeof(*room->pieces));
}

void case_room_open(case_room *room, const cf_kernels *k,
                    const case_model *model, const case_sizes *sizes)
{
    const room_need need = need_of(sizes);

    *room = (case_room){.k = k, .model = model, .n_tok = need.n_tok};
    rows_open(room);
    pages_open(room, &need);
    room->packed = take(packed_bytes(room), 1);
    room->scratch = take(scratch_bytes(room, &need), 1);
    room->qkv = (cf_qkv_params){
        .shape = model->attention,
        .q_norm = model->qk_norm ? room->weights[2] : NULL,
        .k_norm = model->qk_norm ? room->weights[3] : NULL,
        .norm_eps = 1e-5,
        .cos = room->acc[2],
        .sin = room->acc[3],
    };
}

void case_room_close(case_room *room)
{
    for (int i = 0; i < 3; i++)
        if (room->library[i] != room->act[i])
            free(room->library[i]);
    for (int i = 0; i < 4; i++) {
        free(room->act[i]);
        free(room->acc[i]);
        free(room->weights[i]);
        free(room->pages[i]);
        free(room->page_at[i]);
    }
    free(room->pieces);
    free(room->ids);
    free(room->positions);
    free(room->inv_freq);
    free(room->doubles);
    free(room->packed);
    free(room->scratch);
}
