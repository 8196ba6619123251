/* layer.c - one pre-norm transformer layer:
 *
 *     n1 = norm(x)    q, k, v = n1 Wqkv    o = attention(rope(q), rope(k), v)
 *     x2 = x + o Wo
 *     n2 = norm(x2)   gate, up = n2 Wgu    a = silu(gate) up
 *     x' = x2 + a Wdown
 *
 * The forward is cut into the steps that a backward may have to run again, so
 * that a recomputed activation has the bits of the first one.
 */
#include "src/layer.h"

static size_t stream_bytes(const cf_layer_call *c)
{
    return c->batch.n_tok * c->config->hidden * c->kernels->acc_bytes;
}

/* ---- the steps ---- */

/* What an adapter adds to the output of a linear layer: y act. */
static void adapter_forward(const cf_layer_call *c, const cf_linear *linear,
                            const void *x, void *y)
{
    cf_adapter_forward(c->kernels, &linear->adapter, &c->adapter_rows,
                       c->batch.n_tok, x, y, c->scratch);
}

/* The same to the residual stream: y acc. */
static void adapter_forward_residual(const cf_layer_call *c,
                                     const cf_linear *linear, const void *x,
                                     void *y)
{
    cf_adapter_forward_residual(c->kernels, &linear->adapter, &c->adapter_rows,
                                c->batch.n_tok, x, y, c->scratch);
}

static void attention_norm(const cf_layer_call *c, const cf_layer_acts *acts)
{
    const cf_kernels *k = c->kernels;

    k->rmsnorm_forward(k, c->batch.n_tok, c->config->hidden,
                       c->config->rms_norm_eps, acts->x,
                       c->layer->attention_norm.weight, acts->n1, acts->rstd1);
}

/* Writes K and V into their pages; again in a recompute, with the same bits. */
static void project_qkv(const cf_layer_call *c, const cf_layer_acts *acts)
{
    const cf_kernels *k = c->kernels;

    k->linear_forward(k, &c->layer->qkv.weight, c->batch.n_tok, acts->n1,
                      acts->qkv, c->scratch);
    adapter_forward(c, &c->layer->qkv, acts->n1, acts->qkv);
    k->qkv_forward(k, &c->qkv, &c->batch, acts->qkv, acts->q);
}

static void attention(const cf_layer_call *c, const cf_layer_acts *acts)
{
    const cf_kernels *k = c->kernels;

    k->attention_forward(k, &c->qkv.shape, &c->batch, 0, UINT32_MAX, acts->q,
                         acts->o, acts->lse, c->scratch);
}

static void project_o(const cf_layer_call *c, const cf_layer_acts *acts)
{
    const cf_kernels *k = c->kernels;

    k->copy(k, acts->x, acts->x2, stream_bytes(c));
    k->linear_forward_residual(k, &c->layer->o.weight, c->batch.n_tok, acts->o,
                               acts->x2, c->scratch);
    adapter_forward_residual(c, &c->layer->o, acts->o, acts->x2);
}

static void mlp_norm(const cf_layer_call *c, const cf_layer_acts *acts)
{
    const cf_kernels *k = c->kernels;

    k->rmsnorm_forward(k, c->batch.n_tok, c->config->hidden,
                       c->config->rms_norm_eps, acts->x2,
                       c->layer->mlp_norm.weight, acts->n2, acts->rstd2);
}

static void project_gate_up(const cf_layer_call *c, const cf_layer_acts *acts)
{
    const cf_kernels *k = c->kernels;

    k->linear_forward(k, &c->layer->gate_up.weight, c->batch.n_tok, acts->n2,
                      acts->gate_up, c->scratch);
    adapter_forward(c, &c->layer->gate_up, acts->n2, acts->gate_up);
}

static void swiglu(const cf_layer_call *c, const cf_layer_acts *acts)
{
    const cf_kernels *k = c->kernels;

    k->swiglu_forward(k, c->batch.n_tok, c->config->ffn, acts->gate_up,
                      acts->a);
}

static void project_down(const cf_layer_call *c, const cf_layer_acts *acts,
                         void *x_next)
{
    const cf_kernels *k = c->kernels;

    k->copy(k, acts->x2, x_next, stream_bytes(c));
    k->linear_forward_residual(k, &c->layer->down.weight, c->batch.n_tok,
                               acts->a, x_next, c->scratch);
    adapter_forward_residual(c, &c->layer->down, acts->a, x_next);
}

/* ---- forward ---- */

void cf_layer_forward_kv(const cf_layer_call *call, const cf_layer_acts *acts)
{
    attention_norm(call, acts);
    project_qkv(call, acts);
}

void cf_layer_forward_attention(const cf_layer_call *call,
                                const cf_layer_acts *acts)
{
    cf_layer_forward_kv(call, acts);
    attention(call, acts);
}

/* What comes behind attention. */
static void forward_rest(const cf_layer_call *c, const cf_layer_acts *acts,
                         void *x_next)
{
    project_o(c, acts);
    mlp_norm(c, acts);
    project_gate_up(c, acts);
    swiglu(c, acts);
    project_down(c, acts, x_next);
}

void cf_layer_forward(const cf_layer_call *call, const cf_layer_acts *acts,
                      void *x_next)
{
    cf_layer_forward_attention(call, acts);
    forward_rest(call, acts, x_next);
}

void cf_layer_forward_attended(const cf_layer_call *call,
                               const cf_layer_acts *acts, void *x_next)
{
    cf_layer_forward_kv(call, acts);
    forward_rest(call, acts, x_next);
}

/* ---- backward ---- */

static void restore(const cf_layer_call *c, const cf_layer_acts *acts,
                    cf_layer_missing missing)
{
    const cf_kernels *k = c->kernels;

    switch (missing) {
    case CF_LAYER_MISSING_NOTHING:
        return;
    case CF_LAYER_MISSING_POINTWISE:
        attention_norm(c, acts);
        if (c->config->qk_norm)
            k->qkv_forward(k, &c->qkv, &c->batch, acts->qkv, acts->q);
        mlp_norm(c, acts);
        swiglu(c, acts);
        return;
    case CF_LAYER_MISSING_LINEAR:
        attention_norm(c, acts);
        project_qkv(c, acts);
        project_o(c, acts);
        mlp_norm(c, acts);
        project_gate_up(c, acts);
        swiglu(c, acts);
        return;
    }
}

/* dx act [n_tok, n_in] of a linear layer from dy; its gradients accumulate,
 * unless it is frozen. */
static void linear_backward(const cf_layer_call *c, const cf_linear *linear,
                            const void *dy, const void *x, void *dx)
{
    c->kernels->linear_backward(c->kernels, &linear->weight, c->batch.n_tok, dy,
                                x, dx, linear->d_weight, linear->d_bias,
                                c->scratch);
    cf_adapter_backward(c->kernels, &linear->adapter, &c->adapter_rows,
                        c->batch.n_tok, dy, x, dx, c->scratch);
}

static void norm_backward(const cf_layer_call *c, const cf_scale *scale,
                          const void *x, const void *rstd,
                          const cf_layer_grads *grads)
{
    const cf_kernels *k = c->kernels;

    k->rmsnorm_backward(k, c->batch.n_tok, c->config->hidden, x, scale->weight,
                        rstd, grads->dn, grads->dx, scale->d_weight,
                        c->scratch);
}

static void mlp_backward(const cf_layer_call *c, const cf_layer_acts *acts,
                         const cf_layer_grads *grads)
{
    const cf_kernels *k = c->kernels;
    const size_t n_tok = c->batch.n_tok;
    const void *dy =
        k->as_act(k, n_tok * c->config->hidden, grads->dx, grads->dy);

    linear_backward(c, &c->layer->down, dy, acts->a, grads->da);
    k->swiglu_backward(k, n_tok, c->config->ffn, acts->gate_up, grads->da,
                       acts->gate_up);
    linear_backward(c, &c->layer->gate_up, acts->gate_up, acts->n2, grads->dn);
    norm_backward(c, &c->layer->mlp_norm, acts->x2, acts->rstd2, grads);
}

static void attention_backward(const cf_layer_call *c,
                               const cf_layer_acts *acts,
                               const cf_layer_grads *grads)
{
    const cf_kernels *k = c->kernels;
    const void *dy =
        k->as_act(k, c->batch.n_tok * c->config->hidden, grads->dx, grads->dy);

    linear_backward(c, &c->layer->o, dy, acts->o, grads->d_o);
    k->attention_backward(k, &c->qkv.shape, &c->batch, 0, UINT32_MAX, acts->q,
                          acts->o, acts->lse, grads->d_o, grads->dq,
                          c->scratch);
    k->qkv_backward(k, &c->qkv, &c->batch, acts->qkv, grads->dq, grads->dqkv,
                    c->layer->q_norm.d_weight, c->layer->k_norm.d_weight,
                    c->scratch);
    linear_backward(c, &c->layer->qkv, grads->dqkv, acts->n1, grads->dn);
    norm_backward(c, &c->layer->attention_norm, acts->x, acts->rstd1, grads);
}

void cf_layer_backward(const cf_layer_call *call, const cf_layer_acts *acts,
                       cf_layer_missing missing, const cf_layer_grads *grads)
{
    restore(call, acts, missing);
    mlp_backward(call, acts, grads);
    attention_backward(call, acts, grads);
}
