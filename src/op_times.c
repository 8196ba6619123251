/* op_times.c - see op_times.h. */
#include "src/op_times.h"

#include <stdio.h>
#include <string.h>

#include "src/clock.h"

const char *cf_time_kind_str(cf_time_kind kind)
{
    static const char *const names[CF_TIME_KINDS] = {
        [CF_TIME_GEMM_FORWARD] = "GEMM forward",
        [CF_TIME_GEMM_BACKWARD] = "GEMM backward",
        [CF_TIME_ATTENTION_FORWARD] = "attention forward",
        [CF_TIME_ATTENTION_BACKWARD] = "attention backward",
        [CF_TIME_HEAD] = "head",
        [CF_TIME_NORMS] = "norms",
        [CF_TIME_ROPE_QKV] = "rope and qkv",
        [CF_TIME_SWIGLU] = "swiglu",
        [CF_TIME_EMBEDDING] = "embedding",
        [CF_TIME_OPTIMIZER] = "optimizer",
        [CF_TIME_REDUCTIONS] = "reductions",
        [CF_TIME_COPIES] = "copies and checks",
        [CF_TIME_MESSAGES] = "messages",
        [CF_TIME_SAVING] = "waited for saving",
        [CF_TIME_DATA] = "data",
        [CF_TIME_OTHER] = "other",
    };

    return kind < CF_TIME_KINDS ? names[kind] : "together";
}

/* ---- counting ---- */

void cf_op_times_begin_step(cf_op_times *times)
{
    if (times == NULL)
        return;
    memset(times->step, 0, sizeof(times->step));
    times->counted_s = 0;
}

void cf_op_times_add(cf_op_times *times, cf_time_kind kind, double seconds)
{
    if (times == NULL)
        return;
    times->step[kind] += seconds;
    times->counted_s += seconds;
}

cf_time_mark cf_op_times_mark(const cf_op_times *times)
{
    if (times == NULL)
        return (cf_time_mark){0};
    return (cf_time_mark){.at_s = cf_clock_s(), .counted_s = times->counted_s};
}

void cf_op_times_count(cf_op_times *times, cf_time_kind kind, cf_time_mark mark)
{
    if (times == NULL)
        return;
    cf_op_times_add(times, kind,
                    cf_clock_s() - mark.at_s -
                        (times->counted_s - mark.counted_s));
}

void cf_op_times_end_step(cf_op_times *times, double step_s)
{
    if (times == NULL)
        return;
    cf_op_times_add(times, CF_TIME_OTHER, step_s - times->counted_s);
    for (int i = 0; i < CF_TIME_KINDS; i++)
        times->run[i] += times->step[i];
    times->n_steps++;
}

/* ---- the operations ---- */

/* Call an operation of the table inside, and count its time. */
#define TIMED(kind, op, ...)                               \
    do {                                                   \
        cf_op_times *times = k->backend;                   \
        const cf_time_mark mark = cf_op_times_mark(times); \
                                                           \
        times->inner.op(&times->inner, __VA_ARGS__);       \
        cf_op_times_count(times, kind, mark);              \
    } while (0)

static const cf_kernels *inside(const cf_kernels *k)
{
    const cf_op_times *times = k->backend;

    return &times->inner;
}

static cf_status status(const cf_kernels *k)
{
    return inside(k)->status(inside(k));
}

static void zero(const cf_kernels *k, void *x, size_t bytes)
{
    TIMED(CF_TIME_COPIES, zero, x, bytes);
}

static void copy(const cf_kernels *k, const void *src, void *dst, size_t bytes)
{
    TIMED(CF_TIME_COPIES, copy, src, dst, bytes);
}

static const void *as_act(const cf_kernels *k, size_t n, const void *src,
                          void *dst)
{
    cf_op_times *times = k->backend;
    const cf_time_mark mark = cf_op_times_mark(times);
    const void *x = times->inner.as_act(&times->inner, n, src, dst);

    cf_op_times_count(times, CF_TIME_COPIES, mark);
    return x;
}

static void rows_gather(const cf_kernels *k, size_t n_rows, size_t n,
                        const uint32_t *rows, const void *x, void *y)
{
    TIMED(CF_TIME_COPIES, rows_gather, n_rows, n, rows, x, y);
}

static void rows_scatter(const cf_kernels *k, size_t n_rows, size_t n_tok,
                         size_t n, const uint32_t *rows, const void *x, void *y)
{
    TIMED(CF_TIME_COPIES, rows_scatter, n_rows, n_tok, n, rows, x, y);
}

static size_t first_bad_row(const cf_kernels *k, size_t n_rows, size_t n,
                            const void *x)
{
    cf_op_times *times = k->backend;
    const cf_time_mark mark = cf_op_times_mark(times);
    const size_t row = times->inner.first_bad_row(&times->inner, n_rows, n, x);

    cf_op_times_count(times, CF_TIME_COPIES, mark);
    return row;
}

static size_t weight_packed_bytes(const cf_kernels *k, size_t n_out,
                                  size_t n_in)
{
    return inside(k)->weight_packed_bytes(inside(k), n_out, n_in);
}

static void weight_pack(const cf_kernels *k, cf_weight *w)
{
    TIMED(CF_TIME_OPTIMIZER, weight_pack, w);
}

static size_t linear_scratch_bytes(const cf_kernels *k, size_t n_tok,
                                   size_t n_out, size_t n_in)
{
    return inside(k)->linear_scratch_bytes(inside(k), n_tok, n_out, n_in);
}

static void linear_forward(const cf_kernels *k, const cf_weight *w,
                           size_t n_tok, const void *x, void *y, void *scratch)
{
    TIMED(CF_TIME_GEMM_FORWARD, linear_forward, w, n_tok, x, y, scratch);
}

static void linear_forward_residual(const cf_kernels *k, const cf_weight *w,
                                    size_t n_tok, const void *x, void *y,
                                    void *scratch)
{
    TIMED(CF_TIME_GEMM_FORWARD, linear_forward_residual, w, n_tok, x, y,
          scratch);
}

static void linear_forward_add(const cf_kernels *k, const cf_weight *w,
                               size_t n_tok, const void *x, void *y,
                               void *scratch)
{
    TIMED(CF_TIME_GEMM_FORWARD, linear_forward_add, w, n_tok, x, y, scratch);
}

static void linear_backward(const cf_kernels *k, const cf_weight *w,
                            size_t n_tok, const void *dy, const void *x,
                            void *dx, void *dw, void *db, void *scratch)
{
    TIMED(CF_TIME_GEMM_BACKWARD, linear_backward, w, n_tok, dy, x, dx, dw, db,
          scratch);
}

static void rmsnorm_forward(const cf_kernels *k, size_t n_tok, size_t n,
                            double eps, const void *x, const void *weight,
                            void *y, void *rstd)
{
    TIMED(CF_TIME_NORMS, rmsnorm_forward, n_tok, n, eps, x, weight, y, rstd);
}

static void rmsnorm_backward(const cf_kernels *k, size_t n_tok, size_t n,
                             const void *x, const void *weight,
                             const void *rstd, const void *dy, void *dx,
                             void *dweight, void *scratch)
{
    TIMED(CF_TIME_NORMS, rmsnorm_backward, n_tok, n, x, weight, rstd, dy, dx,
          dweight, scratch);
}

static size_t rmsnorm_backward_scratch_bytes(const cf_kernels *k, size_t n_tok,
                                             size_t n)
{
    return inside(k)->rmsnorm_backward_scratch_bytes(inside(k), n_tok, n);
}

static void rope_table(const cf_kernels *k, size_t n_tok,
                       const uint32_t *positions, size_t n_freq,
                       const double *inv_freq, double factor, void *cos,
                       void *sin)
{
    TIMED(CF_TIME_ROPE_QKV, rope_table, n_tok, positions, n_freq, inv_freq,
          factor, cos, sin);
}

static void qkv_forward(const cf_kernels *k, const cf_qkv_params *p,
                        const cf_attn_batch *batch, const void *qkv,
                        void *q_out)
{
    TIMED(CF_TIME_ROPE_QKV, qkv_forward, p, batch, qkv, q_out);
}

static void qkv_backward(const cf_kernels *k, const cf_qkv_params *p,
                         const cf_attn_batch *batch, const void *qkv,
                         const void *dq, void *dqkv, void *d_q_norm,
                         void *d_k_norm, void *scratch)
{
    TIMED(CF_TIME_ROPE_QKV, qkv_backward, p, batch, qkv, dq, dqkv, d_q_norm,
          d_k_norm, scratch);
}

static size_t qkv_backward_scratch_bytes(const cf_kernels *k,
                                         const cf_attn_shape *shape,
                                         size_t n_tok)
{
    return inside(k)->qkv_backward_scratch_bytes(inside(k), shape, n_tok);
}

static void attention_forward(const cf_kernels *k, const cf_attn_shape *shape,
                              const cf_attn_batch *batch, uint32_t key_begin,
                              uint32_t key_end, const void *q, void *o,
                              void *lse, void *scratch)
{
    TIMED(CF_TIME_ATTENTION_FORWARD, attention_forward, shape, batch, key_begin,
          key_end, q, o, lse, scratch);
}

static void attention_backward(const cf_kernels *k, const cf_attn_shape *shape,
                               const cf_attn_batch *batch, uint32_t key_begin,
                               uint32_t key_end, const void *q, const void *o,
                               const void *lse, const void *d_o, void *dq,
                               void *scratch)
{
    TIMED(CF_TIME_ATTENTION_BACKWARD, attention_backward, shape, batch,
          key_begin, key_end, q, o, lse, d_o, dq, scratch);
}

static size_t attention_scratch_bytes(const cf_kernels *k,
                                      const cf_attn_shape *shape, size_t n_tok,
                                      size_t n_pieces)
{
    return inside(k)->attention_scratch_bytes(inside(k), shape, n_tok,
                                              n_pieces);
}

static void swiglu_forward(const cf_kernels *k, size_t n_tok, size_t n_ff,
                           const void *gate_up, void *a)
{
    TIMED(CF_TIME_SWIGLU, swiglu_forward, n_tok, n_ff, gate_up, a);
}

static void swiglu_backward(const cf_kernels *k, size_t n_tok, size_t n_ff,
                            const void *gate_up, const void *da,
                            void *d_gate_up)
{
    TIMED(CF_TIME_SWIGLU, swiglu_backward, n_tok, n_ff, gate_up, da, d_gate_up);
}

static void embedding_forward(const cf_kernels *k, size_t n_tok, size_t n,
                              const uint32_t *ids, const void *w, void *x)
{
    TIMED(CF_TIME_EMBEDDING, embedding_forward, n_tok, n, ids, w, x);
}

static void embedding_backward(const cf_kernels *k, size_t n_tok, size_t n,
                               const uint32_t *ids, const void *dx, void *dw)
{
    TIMED(CF_TIME_EMBEDDING, embedding_backward, n_tok, n, ids, dx, dw);
}

static void head_forward(const cf_kernels *k, const cf_weight *w, size_t n_rows,
                         const void *x, const uint32_t *targets, double *loss,
                         void *scratch)
{
    TIMED(CF_TIME_HEAD, head_forward, w, n_rows, x, targets, loss, scratch);
}

static void head_backward(const cf_kernels *k, const cf_weight *w,
                          size_t n_rows, const void *x, const uint32_t *targets,
                          double scale, double *loss, void *dx, void *dw,
                          void *scratch)
{
    TIMED(CF_TIME_HEAD, head_backward, w, n_rows, x, targets, scale, loss, dx,
          dw, scratch);
}

static size_t head_scratch_bytes(const cf_kernels *k, size_t n_rows,
                                 size_t n_vocab, size_t n_in)
{
    return inside(k)->head_scratch_bytes(inside(k), n_rows, n_vocab, n_in);
}

static void sum_squares(const cf_kernels *k, size_t n, const void *x,
                        double *partials)
{
    TIMED(CF_TIME_REDUCTIONS, sum_squares, n, x, partials);
}

static void add(const cf_kernels *k, size_t n, const void *x, void *y)
{
    TIMED(CF_TIME_REDUCTIONS, add, n, x, y);
}

static void add_act(const cf_kernels *k, size_t n, const void *x, void *y)
{
    TIMED(CF_TIME_GEMM_BACKWARD, add_act, n, x, y);
}

static void adamw(const cf_kernels *k, size_t n, const cf_adamw_params *p,
                  const void *g, void *w, void *m, void *v)
{
    TIMED(CF_TIME_OPTIMIZER, adamw, n, p, g, w, m, v);
}

void cf_op_times_install(cf_op_times *times, cf_kernels *kernels)
{
    cf_kernels timed = {
        .status = status,
        .zero = zero,
        .copy = copy,
        .as_act = as_act,
        .rows_gather = rows_gather,
        .rows_scatter = rows_scatter,
        .first_bad_row = first_bad_row,
        .weight_packed_bytes = weight_packed_bytes,
        .weight_pack = weight_pack,
        .linear_scratch_bytes = linear_scratch_bytes,
        .linear_forward = linear_forward,
        .linear_forward_residual = linear_forward_residual,
        .linear_forward_add = linear_forward_add,
        .linear_backward = linear_backward,
        .rmsnorm_forward = rmsnorm_forward,
        .rmsnorm_backward = rmsnorm_backward,
        .rmsnorm_backward_scratch_bytes = rmsnorm_backward_scratch_bytes,
        .rope_table = rope_table,
        .qkv_forward = qkv_forward,
        .qkv_backward = qkv_backward,
        .qkv_backward_scratch_bytes = qkv_backward_scratch_bytes,
        .attention_forward = attention_forward,
        .attention_backward = attention_backward,
        .attention_scratch_bytes = attention_scratch_bytes,
        .swiglu_forward = swiglu_forward,
        .swiglu_backward = swiglu_backward,
        .embedding_forward = embedding_forward,
        .embedding_backward = embedding_backward,
        .head_forward = head_forward,
        .head_backward = head_backward,
        .head_scratch_bytes = head_scratch_bytes,
        .sum_squares = sum_squares,
        .add = add,
        .add_act = add_act,
        .adamw = adamw,
    };

    /* What stands in front of the operations is data: the same in both. */
    memcpy(&timed, kernels, offsetof(cf_kernels, status));
    timed.backend = times;
    *times = (cf_op_times){.inner = *kernels};
    *kernels = timed;
}

/* ---- telling ---- */

enum {
    TENTH_MS_PER_S = 10000
};

/* Whether it would be told as 0.0000. */
static int is_nothing(double seconds)
{
    return seconds < 0.5 / TENTH_MS_PER_S;
}

static double sum_of(const double *seconds)
{
    double sum = 0;

    for (int i = 0; i < CF_TIME_KINDS; i++)
        sum += seconds[i];
    return sum;
}

static double percent(double part, double whole)
{
    return whole > 0 ? 100 * part / whole : 0;
}

const char *cf_op_times_format(const double seconds[CF_TIME_KINDS], char *buf,
                               size_t size)
{
    const double whole = sum_of(seconds);
    size_t n = 0;

    buf[0] = '\0';
    for (int i = 0; i < CF_TIME_KINDS && n < size; i++)
        if (!is_nothing(seconds[i]))
            n += (size_t)snprintf(buf + n, size - n, "%s%s %.4f s %.1f %%",
                                  n > 0 ? ", " : "",
                                  cf_time_kind_str((cf_time_kind)i), seconds[i],
                                  percent(seconds[i], whole));
    return buf;
}

const char *cf_op_times_format_row(const double *all, uint32_t n_stages,
                                   cf_time_kind kind, char *buf, size_t size)
{
    size_t n = (size_t)snprintf(buf, size, "  %-18s", cf_time_kind_str(kind));
    int nowhere = 1;

    for (uint32_t i = 0; i < n_stages && n < size; i++) {
        const double *seconds = all + (size_t)i * CF_TIME_KINDS;
        const double whole = sum_of(seconds);
        const double s = kind < CF_TIME_KINDS ? seconds[kind] : whole;

        nowhere = nowhere && is_nothing(s);
        n += (size_t)snprintf(buf + n, size - n, " %10.4f s %5.1f %%", s,
                              percent(s, whole));
    }
    if (nowhere)
        buf[0] = '\0';
    return buf;
}
