/* cpu_ops.h - every op of the table, declared under its name in this variant.
 *
 * One list declares the ops and fills the table (table.c), and each declaration
 * takes its type from the member of cf_kernels: a new op is one line here, and a
 * signature that drifts from kernels.h does not compile.
 */
#ifndef CF_CPU_OPS_H
#define CF_CPU_OPS_H

#include "kernels/cpu/cpu.h"

#define CF_CPU_OPS_MAP(X)             \
    X(status)                         \
    X(zero)                           \
    X(copy)                           \
    X(as_act)                         \
    X(rows_gather)                    \
    X(rows_scatter)                   \
    X(first_bad_row)                  \
    X(weight_packed_bytes)            \
    X(weight_pack)                    \
    X(linear_scratch_bytes)           \
    X(linear_forward)                 \
    X(linear_forward_residual)        \
    X(linear_forward_add)             \
    X(linear_backward)                \
    X(rmsnorm_forward)                \
    X(rmsnorm_backward)               \
    X(rmsnorm_backward_scratch_bytes) \
    X(rope_table)                     \
    X(qkv_forward)                    \
    X(qkv_backward)                   \
    X(qkv_backward_scratch_bytes)     \
    X(attention_forward)              \
    X(attention_backward)             \
    X(attention_scratch_bytes)        \
    X(swiglu_forward)                 \
    X(swiglu_backward)                \
    X(embedding_forward)              \
    X(embedding_backward)             \
    X(head_forward)                   \
    X(head_backward)                  \
    X(head_scratch_bytes)             \
    X(sum_squares)                    \
    X(add)                            \
    X(add_act)                        \
    X(adamw)

#define CF_CPU_DECLARE(name) __typeof__(*((cf_kernels *)0)->name) CF_CPU(name);
CF_CPU_OPS_MAP(CF_CPU_DECLARE)
#undef CF_CPU_DECLARE

/* The table of this variant. */
void CF_CPU(table)(cf_kernels *kernels_p);

#endif
