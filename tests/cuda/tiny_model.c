/* tiny_model.c - see tiny_model.h. */
#include "tests/cuda/tiny_model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/layer.h"

enum {
    HIDDEN = 32,
    N_HEADS = 4,
    N_KV_HEADS = 2,
    HEAD_DIM = 8,
    N_QKV = (N_HEADS + 2 * N_KV_HEADS) * HEAD_DIM,
    FFN = 48,
    VOCAB = 61,
    N_LAYERS = 2,
    N_CHUNKS = 2,
    CHUNK_TOK = 50,
    N_TOK = N_CHUNKS * CHUNK_TOK,
    N_PAGES = (N_TOK + CF_PAGE_TOK - 1) / CF_PAGE_TOK,
    PAGE_ELEMENTS = N_KV_HEADS * CF_PAGE_TOK * HEAD_DIM,
    ALIGN = 16 /* elements: 64 bytes */
};

/* Elements of the parameters, each at a multiple of ALIGN. */
enum {
    EMBEDDING = 0,
    LAYERS = EMBEDDING + (VOCAB * HIDDEN + ALIGN - 1) / ALIGN * ALIGN,
    /* of a layer */
    NORM1 = 0,
    QKV = NORM1 + HIDDEN,
    QKV_BIAS = QKV + N_QKV * HIDDEN,
    Q_NORM = QKV_BIAS + N_QKV,
    K_NORM = Q_NORM + ALIGN,
    OUT = K_NORM + ALIGN,
    NORM2 = OUT + HIDDEN * N_HEADS * HEAD_DIM,
    GATE_UP = NORM2 + HIDDEN,
    DOWN = GATE_UP + 2 * FFN * HIDDEN,
    LAYER_END = DOWN + HIDDEN * FFN,
    /* behind the layers */
    FINAL_NORM = LAYERS + N_LAYERS * LAYER_END,
    N = FINAL_NORM + HIDDEN
};

typedef struct tiny_chunk {
    cf_layer_acts acts[N_LAYERS];
    void *x_out;
    void *cos, *sin;
} tiny_chunk;

struct tiny_model {
    const cf_kernels *k;
    const tiny_memory *memory;
    float *masters, *gradients, *moment1, *moment2;
    cf_model_config config;
    cf_layer layers[N_LAYERS];
    cf_weight head;
    tiny_chunk chunks[N_CHUNKS];
    void *k_pages[N_LAYERS][N_PAGES], *v_pages[N_LAYERS][N_PAGES];
    void *dk_pages[N_LAYERS][N_PAGES], *dv_pages[N_LAYERS][N_PAGES];
    cf_attn_piece piece;
    cf_layer_grads grads;
    void *n, *dn, *rstd; /* of the final norm */
    void *scratch;
    uint32_t ids[N_TOK + 1];
    uint64_t step;
};

/* ---- the host's memory ---- */

static void *host_take(const cf_kernels *k, size_t bytes)
{
    void *x = NULL;

    (void)k;
    if (posix_memalign(&x, 64, bytes) != 0)
        abort();
    return x;
}

static void host_put(const cf_kernels *k, const void *from, size_t bytes,
                     void *to)
{
    (void)k;
    memcpy(to, from, bytes);
}

const tiny_memory tiny_host = {host_take, host_put, host_put};

/* ---- parameters ---- */

/* Weights of 1 for norms, small random ones for the rest: the same everywhere. */
static void masters_fill(float *x)
{
    uint32_t state = 12345;

    for (size_t i = 0; i < N; i++) {
        state = state * 1664525 + 1013904223;
        x[i] = ((float)(state >> 8) / (float)(1 << 23) - 1) * 0.2f;
    }
    for (size_t l = 0; l < N_LAYERS; l++) {
        float *layer = x + LAYERS + l * LAYER_END;

        for (size_t i = 0; i < HIDDEN; i++)
            layer[NORM1 + i] = layer[NORM2 + i] = 1;
        for (size_t i = 0; i < HEAD_DIM; i++)
            layer[Q_NORM + i] = layer[K_NORM + i] = 1;
    }
    for (size_t i = 0; i < HIDDEN; i++)
        x[FINAL_NORM + i] = 1;
}

static cf_linear linear_of(const tiny_model *m, size_t at, size_t bias,
                           size_t n_out, size_t n_in)
{
    size_t packed_bytes = m->k->weight_packed_bytes(m->k, n_out, n_in);

    return (cf_linear){
        .weight = {.master = m->masters + at,
                   .bias = bias > 0 ? m->masters + bias : NULL,
                   .packed = packed_bytes > 0
                                 ? m->memory->take(m->k, packed_bytes)
                                 : NULL,
                   .n_out = n_out,
                   .n_in = n_in},
        .d_weight = m->gradients + at,
        .d_bias = bias > 0 ? m->gradients + bias : NULL,
    };
}

static cf_scale scale_of(const tiny_model *m, size_t at)
{
    return (cf_scale){m->masters + at, m->gradients + at};
}

static cf_layer layer_of(const tiny_model *m, size_t layer)
{
    const size_t at = LAYERS + layer * LAYER_END;

    return (cf_layer){
        .attention_norm = scale_of(m, at + NORM1),
        .qkv = linear_of(m, at + QKV, at + QKV_BIAS, N_QKV, HIDDEN),
        .q_norm = scale_of(m, at + Q_NORM),
        .k_norm = scale_of(m, at + K_NORM),
        .o = linear_of(m, at + OUT, 0, HIDDEN, N_HEADS * HEAD_DIM),
        .mlp_norm = scale_of(m, at + NORM2),
        .gate_up = linear_of(m, at + GATE_UP, 0, 2 * FFN, HIDDEN),
        .down = linear_of(m, at + DOWN, 0, HIDDEN, FFN),
    };
}

static void pack(tiny_model *m)
{
    m->k->weight_pack(m->k, &m->head);
    for (size_t l = 0; l < N_LAYERS; l++) {
        m->k->weight_pack(m->k, &m->layers[l].qkv.weight);
        m->k->weight_pack(m->k, &m->layers[l].o.weight);
        m->k->weight_pack(m->k, &m->layers[l].gate_up.weight);
        m->k->weight_pack(m->k, &m->layers[l].down.weight);
    }
}

/* ---- open ---- */

static void *acc_take(const tiny_model *m, size_t n)
{
    return m->memory->take(m->k, n * m->k->acc_bytes);
}

static void *act_take(const tiny_model *m, size_t n)
{
    return m->memory->take(m->k, n * m->k->act_bytes);
}

static cf_layer_acts acts_open(const tiny_model *m)
{
    return (cf_layer_acts){
        .x = acc_take(m, CHUNK_TOK * HIDDEN),
        .rstd1 = acc_take(m, CHUNK_TOK),
        .n1 = act_take(m, CHUNK_TOK * HIDDEN),
        .qkv = act_take(m, CHUNK_TOK * N_QKV),
        .q = act_take(m, CHUNK_TOK * N_HEADS * HEAD_DIM),
        .o = act_take(m, CHUNK_TOK * N_HEADS * HEAD_DIM),
        .lse = acc_take(m, CHUNK_TOK * N_HEADS),
        .x2 = acc_take(m, CHUNK_TOK * HIDDEN),
        .rstd2 = acc_take(m, CHUNK_TOK),
        .n2 = act_take(m, CHUNK_TOK * HIDDEN),
        .gate_up = act_take(m, CHUNK_TOK * 2 * FFN),
        .a = act_take(m, CHUNK_TOK * FFN),
    };
}

static void chunks_open(tiny_model *m)
{
    for (size_t c = 0; c < N_CHUNKS; c++) {
        tiny_chunk *chunk = &m->chunks[c];
        uint32_t positions[CHUNK_TOK];
        double inv_freq[HEAD_DIM / 2];

        for (size_t l = 0; l < N_LAYERS; l++)
            chunk->acts[l] = acts_open(m);
        chunk->x_out = acc_take(m, CHUNK_TOK * HIDDEN);
        chunk->cos = acc_take(m, CHUNK_TOK * HEAD_DIM / 2);
        chunk->sin = acc_take(m, CHUNK_TOK * HEAD_DIM / 2);
        for (size_t i = 0; i < CHUNK_TOK; i++)
            positions[i] = (uint32_t)(c * CHUNK_TOK + i);
        for (size_t i = 0; i < HEAD_DIM / 2; i++)
            inv_freq[i] = pow(1e4, -2.0 * (double)i / HEAD_DIM);
        m->k->rope_table(m->k, CHUNK_TOK, positions, HEAD_DIM / 2, inv_freq, 1,
                         chunk->cos, chunk->sin);
    }
}

static void pages_open(tiny_model *m)
{
    for (size_t l = 0; l < N_LAYERS; l++)
        for (size_t p = 0; p < N_PAGES; p++) {
            m->k_pages[l][p] = act_take(m, PAGE_ELEMENTS);
            m->v_pages[l][p] = act_take(m, PAGE_ELEMENTS);
            m->dk_pages[l][p] = acc_take(m, PAGE_ELEMENTS);
            m->dv_pages[l][p] = acc_take(m, PAGE_ELEMENTS);
        }
}

static const cf_attn_shape attention = {
    .n_heads = N_HEADS,
    .n_kv_heads = N_KV_HEADS,
    .head_dim = HEAD_DIM,
    .softmax_scale = 0.35355339059327379 /* 1 / sqrt(HEAD_DIM) */
};

static void *scratch_open(const tiny_model *m)
{
    const cf_kernels *k = m->k;
    const size_t wanted[] = {
        k->attention_scratch_bytes(k, &attention, CHUNK_TOK, 1),
        k->qkv_backward_scratch_bytes(k, &attention, CHUNK_TOK),
        k->rmsnorm_backward_scratch_bytes(k, CHUNK_TOK, HIDDEN),
        k->linear_scratch_bytes(k, CHUNK_TOK, 2 * FFN, 2 * FFN),
        k->head_scratch_bytes(k, CHUNK_TOK, VOCAB, HIDDEN),
    };
    size_t bytes = 0;

    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++)
        bytes = wanted[i] > bytes ? wanted[i] : bytes;
    return m->memory->take(k, bytes);
}

/* A language that can be learned: a token is the one before it, times a number,
 * and now and then anything. */
static void ids_fill(uint32_t *ids)
{
    uint32_t state = 99;

    ids[0] = 7;
    for (size_t i = 1; i <= N_TOK; i++) {
        state = state * 1664525 + 1013904223;
        ids[i] =
            state >> 30 == 0 ? (state >> 8) % VOCAB : ids[i - 1] * 5 % VOCAB;
    }
}

tiny_model *tiny_model_open(const cf_kernels *k, const tiny_memory *memory)
{
    tiny_model *m = calloc(1, sizeof(*m));
    float *masters = malloc(N * sizeof(float));

    if (m == NULL || masters == NULL)
        abort();
    m->k = k;
    m->memory = memory;
    m->masters = acc_take(m, N);
    m->gradients = acc_take(m, N);
    m->moment1 = acc_take(m, N);
    m->moment2 = acc_take(m, N);
    masters_fill(masters);
    memory->put(k, masters, N * sizeof(float), m->masters);
    free(masters);
    k->zero(k, m->moment1, N * sizeof(float));
    k->zero(k, m->moment2, N * sizeof(float));

    m->config = (cf_model_config){
        .hidden = HIDDEN, .ffn = FFN, .rms_norm_eps = 1e-6, .qk_norm = true};
    for (size_t l = 0; l < N_LAYERS; l++)
        m->layers[l] = layer_of(m, l);
    m->head = linear_of(m, EMBEDDING, 0, VOCAB, HIDDEN).weight;
    chunks_open(m);
    pages_open(m);
    m->grads = (cf_layer_grads){
        .dx = acc_take(m, CHUNK_TOK * HIDDEN),
        .dy = act_take(m, CHUNK_TOK * HIDDEN),
        .da = act_take(m, CHUNK_TOK * FFN),
        .dn = act_take(m, CHUNK_TOK * HIDDEN),
        .d_o = act_take(m, CHUNK_TOK * N_HEADS * HEAD_DIM),
        .dq = acc_take(m, CHUNK_TOK * N_HEADS * HEAD_DIM),
        .dqkv = act_take(m, CHUNK_TOK * N_QKV),
    };
    m->n = act_take(m, CHUNK_TOK * HIDDEN);
    m->dn = act_take(m, CHUNK_TOK * HIDDEN);
    m->rstd = acc_take(m, CHUNK_TOK);
    m->scratch = scratch_open(m);
    ids_fill(m->ids);
    pack(m);
    return m;
}

/* ---- a step ---- */

static cf_layer_call call_of(tiny_model *m, size_t chunk, size_t layer)
{
    const cf_layer *l = &m->layers[layer];

    m->piece = (cf_attn_piece){.n_tok = CHUNK_TOK,
                               .prefix_tok = (uint32_t)chunk * CHUNK_TOK,
                               .head_stride = CF_PAGE_TOK * HEAD_DIM,
                               .k = m->k_pages[layer],
                               .v = m->v_pages[layer],
                               .dk = m->dk_pages[layer],
                               .dv = m->dv_pages[layer]};
    return (cf_layer_call){
        .kernels = m->k,
        .config = &m->config,
        .layer = l,
        .qkv = {.shape = attention,
                .q_norm = l->q_norm.weight,
                .k_norm = l->k_norm.weight,
                .norm_eps = m->config.rms_norm_eps,
                .cos = m->chunks[chunk].cos,
                .sin = m->chunks[chunk].sin},
        .batch = {.pieces = &m->piece, .n_pieces = 1, .n_tok = CHUNK_TOK},
        .scratch = m->scratch,
    };
}

static void forward(tiny_model *m, size_t chunk)
{
    tiny_chunk *c = &m->chunks[chunk];

    m->k->embedding_forward(m->k, CHUNK_TOK, HIDDEN, m->ids + chunk * CHUNK_TOK,
                            m->masters + EMBEDDING, c->acts[0].x);
    for (size_t l = 0; l < N_LAYERS; l++) {
        cf_layer_call call = call_of(m, chunk, l);

        cf_layer_forward(&call, &c->acts[l],
                         l + 1 < N_LAYERS ? c->acts[l + 1].x : c->x_out);
    }
}

static double backward(tiny_model *m, size_t chunk)
{
    const cf_kernels *k = m->k;
    tiny_chunk *c = &m->chunks[chunk];
    double loss[CHUNK_TOK], sum = 0;

    k->rmsnorm_forward(k, CHUNK_TOK, HIDDEN, m->config.rms_norm_eps, c->x_out,
                       m->masters + FINAL_NORM, m->n, m->rstd);
    k->head_backward(k, &m->head, CHUNK_TOK, m->n,
                     m->ids + chunk * CHUNK_TOK + 1, 1.0 / N_TOK, loss, m->dn,
                     m->gradients + EMBEDDING, m->scratch);
    k->zero(k, m->grads.dx, CHUNK_TOK * HIDDEN * k->acc_bytes);
    k->rmsnorm_backward(k, CHUNK_TOK, HIDDEN, c->x_out, m->masters + FINAL_NORM,
                        m->rstd, m->dn, m->grads.dx, m->gradients + FINAL_NORM,
                        m->scratch);
    for (size_t l = N_LAYERS; l-- > 0;) {
        cf_layer_call call = call_of(m, chunk, l);

        cf_layer_backward(&call, &c->acts[l],
                          l == 0 ? CF_LAYER_MISSING_LINEAR
                                 : CF_LAYER_MISSING_POINTWISE,
                          &m->grads);
    }
    k->embedding_backward(k, CHUNK_TOK, HIDDEN, m->ids + chunk * CHUNK_TOK,
                          m->grads.dx, m->gradients + EMBEDDING);
    for (size_t i = 0; i < CHUNK_TOK; i++)
        sum += loss[i];
    return sum;
}

static void update(tiny_model *m)
{
    double partials[N / CF_NORM_BLOCK + 1], sum = 0, norm;
    cf_adamw_params p = {.learning_rate = 0.01,
                         .beta1 = 0.9,
                         .beta2 = 0.95,
                         .eps = 1e-8,
                         .weight_decay = 0.1};

    m->k->sum_squares(m->k, N, m->gradients, partials);
    for (size_t i = 0; i < (N + CF_NORM_BLOCK - 1) / CF_NORM_BLOCK; i++)
        sum += partials[i];
    norm = sqrt(sum);
    m->step++;
    p.correction1 = 1 - pow(p.beta1, (double)m->step);
    p.correction2 = 1 - pow(p.beta2, (double)m->step);
    p.g_scale = norm > 1 ? 1 / norm : 1;
    m->k->adamw(m->k, N, &p, m->gradients, m->masters, m->moment1, m->moment2);
    pack(m);
}

double tiny_model_step(tiny_model *m)
{
    const cf_kernels *k = m->k;
    double sum = 0;

    k->zero(k, m->gradients, N * sizeof(float));
    for (size_t l = 0; l < N_LAYERS; l++)
        for (size_t p = 0; p < N_PAGES; p++) {
            k->zero(k, m->dk_pages[l][p], PAGE_ELEMENTS * sizeof(float));
            k->zero(k, m->dv_pages[l][p], PAGE_ELEMENTS * sizeof(float));
        }
    for (size_t c = 0; c < N_CHUNKS; c++)
        forward(m, c);
    for (size_t c = N_CHUNKS; c-- > 0;)
        sum += backward(m, c);
    update(m);
    return sum / N_TOK;
}

size_t tiny_model_n(void)
{
    return N;
}

void tiny_model_get(const tiny_model *m, float *masters)
{
    m->memory->get(m->k, m->masters, N * sizeof(float), masters);
}
