/* adapter_gemms.c - see adapter_gemms.h. */
#include "src/adapter_gemms.h"

#include "src/adapter.h"

void cf_adapter_rows_carve(cf_adapter_rows *rows, const cf_model *model,
                           size_t n_tok, cf_gradients gradients,
                           cf_arena *arena)
{
    static const char what[] = "rows of the adapter";
    const cf_kernels *k = model->kernels;
    const size_t n = n_tok * cf_adapter_rank_max(model);

    *rows = (cf_adapter_rows){0};
    if (!cf_model_has_adapter(model))
        return;
    rows->h = cf_arena_take(arena, CF_LIFETIME_OP, what, n, k->act_bytes);
    if (gradients == CF_GRADIENTS_NO)
        return;
    rows->dh = cf_arena_take(arena, CF_LIFETIME_OP, what, n, k->act_bytes);
    rows->dx = cf_arena_take(arena, CF_LIFETIME_OP, what,
                             n_tok * cf_adapter_input_max(model), k->act_bytes);
    rows->db_blocks = cf_arena_take(arena, CF_LIFETIME_OP, what,
                                    cf_adapter_blocks_max(model), k->acc_bytes);
}

size_t cf_adapter_scratch_bytes(const cf_model *model, size_t n_tok)
{
    const cf_kernels *k = model->kernels;
    const size_t n_rank = cf_adapter_rank_max(model);
    const size_t n_in = cf_adapter_input_max(model);
    const size_t n_out = cf_adapter_output_max(model);
    size_t of_a, of_b;

    if (n_rank == 0)
        return 0;
    of_a = k->linear_scratch_bytes(k, n_tok, n_rank, n_in);
    of_b = k->linear_scratch_bytes(k, n_tok, n_out, n_rank);
    return of_a > of_b ? of_a : of_b;
}

void cf_adapter_forward(const cf_kernels *k, const cf_adapter *adapter,
                        const cf_adapter_rows *rows, size_t n_tok,
                        const void *x, void *y, void *scratch)
{
    if (adapter->n_rank == 0)
        return;
    k->linear_forward(k, &adapter->a, n_tok, x, rows->h, scratch);
    k->linear_forward_add(k, &adapter->b, n_tok, rows->h, y, scratch);
}

void cf_adapter_forward_residual(const cf_kernels *k, const cf_adapter *adapter,
                                 const cf_adapter_rows *rows, size_t n_tok,
                                 const void *x, void *y, void *scratch)
{
    if (adapter->n_rank == 0)
        return;
    k->linear_forward(k, &adapter->a, n_tok, x, rows->h, scratch);
    k->linear_forward_residual(k, &adapter->b, n_tok, rows->h, y, scratch);
}

/* dB is formed of all targets against all; what a target has of it is one
 * block. */
void cf_adapter_backward(const cf_kernels *k, const cf_adapter *adapter,
                         const cf_adapter_rows *rows, size_t n_tok,
                         const void *dy, const void *x, void *dx, void *scratch)
{
    const cf_weight *a = &adapter->a, *b = &adapter->b;

    if (adapter->n_rank == 0)
        return;
    k->linear_forward(k, a, n_tok, x, rows->h, scratch);
    k->zero(k, rows->db_blocks, b->n_out * b->n_in * k->acc_bytes);
    k->linear_backward(k, b, n_tok, dy, rows->h, rows->dh, rows->db_blocks,
                       NULL, scratch);
    for (size_t i = 0; i < adapter->n_parts; i++)
        cf_adapter_part_add(k, adapter, i, rows->db_blocks);
    k->linear_backward(k, a, n_tok, rows->dh, x, rows->dx, adapter->d_a, NULL,
                       scratch);
    k->add_act(k, n_tok * a->n_in, rows->dx, dx);
}
