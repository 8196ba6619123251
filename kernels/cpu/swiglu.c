/* swiglu.c - a = silu(gate) * up, and its gradient; one pass each. */
#include "kernels/cpu/loops.h"

/* sigmoid(x) and 1 - sigmoid(x), both without cancellation.  Below the bound
 * exp(-x) would overflow, and the sigmoid is next to nothing. */
CF_INLINE void sigmoid(vec x, vec *sigmoid_p, vec *rest_p)
{
    const vec bound = vec_splat(CF_DOUBLE ? -708 : -87);
    vec e = vec_exp(-vec_max(bound, x));
    vec s = vec_splat(1) / (vec_splat(1) + e);

    *sigmoid_p = s;
    *rest_p = e * s;
}

void CF_CPU(swiglu_forward)(const cf_kernels *k, size_t n_tok, size_t n_ff,
                            const void *gate_up, void *a)
{
    const act *in = gate_up;
    act *out = a;

    (void)k;
#pragma omp parallel for schedule(static) if (n_tok * n_ff > CF_PARALLEL_MIN)
    for (size_t row = 0; row < n_tok; row++) {
        const act *gate = in + row * 2 * n_ff;
        const act *up = gate + n_ff;

        for (size_t i = 0; i < n_ff; i += VL) {
            size_t left = n_ff - i;
            vec g = load_act(gate + i, left);
            vec s, rest;

            sigmoid(g, &s, &rest);
            store_act(out + row * n_ff + i, left,
                      g * s * load_act(up + i, left));
        }
    }
}

void CF_CPU(swiglu_backward)(const cf_kernels *k, size_t n_tok, size_t n_ff,
                             const void *gate_up, const void *da,
                             void *d_gate_up)
{
    const act *in = gate_up;
    const act *dout = da;
    act *din = d_gate_up;

    (void)k;
#pragma omp parallel for schedule(static) if (n_tok * n_ff > CF_PARALLEL_MIN)
    for (size_t row = 0; row < n_tok; row++) {
        const act *gate = in + row * 2 * n_ff;
        act *dgate = din + row * 2 * n_ff;

        for (size_t i = 0; i < n_ff; i += VL) {
            size_t left = n_ff - i;
            vec g = load_act(gate + i, left);
            vec u = load_act(gate + n_ff + i, left);
            vec d = load_act(dout + row * n_ff + i, left);
            vec s, rest;

            sigmoid(g, &s, &rest);
            store_act(dgate + i, left, d * u * s * (vec_splat(1) + g * rest));
            store_act(dgate + n_ff + i, left, d * g * s);
        }
    }
}
