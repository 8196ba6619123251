/* check_onednn_ops.c - what layers and the head ask of oneDNN, and make of it.
 *
 * The linker puts a library of plain loops in oneDNN's place (--wrap), in fp32
 * and in bf16, so that this runs on every processor and in every build.  It can
 * be made to lack some products, and notes the shapes that it is asked for.
 */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/onednn.h"
#include "tests/lib/arrays.h"
#include "tests/lib/close.h"

/* ---- the library of plain loops ---- */

/* Products by what they are for. */
enum {
    FORWARD = 1,  /* packed, b turned */
    RESIDUAL = 2, /* the same, added */
    INPUT = 4,    /* packed, b as it lies */
    GRADIENT = 8, /* not packed */
    PACKING = 16
};

typedef struct plain_library {
    int lacks;
    size_t n_multiplied;
    size_t n_packed;
    size_t shapes[64]; /* rows of the products so far, each once */
    size_t n_shapes;
} plain_library;

static int kind_of(const cf_product *p)
{
    if (!p->packed)
        return GRADIENT;
    if (p->b_col == 1 && p->b_row != 1)
        return INPUT;
    return p->add ? RESIDUAL : FORWARD;
}

static double element(cf_gemm_type type, const void *x, size_t i)
{
    uint32_t bits;
    float value;

    if (type == CF_GEMM_FP32)
        return ((const float *)x)[i];
    bits = (uint32_t)((const uint16_t *)x)[i] << 16;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static void element_put(cf_gemm_type type, void *x, size_t i, double value)
{
    float single = (float)value;
    uint32_t bits;

    if (type == CF_GEMM_FP32) {
        ((float *)x)[i] = single;
        return;
    }
    single = (float)nearest_bf16(single);
    memcpy(&bits, &single, sizeof(bits));
    ((uint16_t *)x)[i] = (uint16_t)(bits >> 16);
}

cf_status __wrap_cf_onednn_status(cf_onednn *library);
size_t __wrap_cf_onednn_packed_bytes(cf_onednn *library, cf_gemm_type type,
                                     size_t k, size_t n, size_t b_row,
                                     size_t b_col);
void __wrap_cf_onednn_pack(cf_onednn *library, cf_gemm_type type, size_t k,
                           size_t n, size_t b_row, size_t b_col, const void *b,
                           void *packed);
bool __wrap_cf_onednn_has(cf_onednn *library, const cf_product *product);
void __wrap_cf_onednn_multiply(cf_onednn *library, const cf_product *product,
                               const void *a, const void *b, const void *bias,
                               void *c);

cf_status __wrap_cf_onednn_status(cf_onednn *library)
{
    (void)library;
    return CF_NO_MEMORY; /* to be seen */
}

size_t __wrap_cf_onednn_packed_bytes(cf_onednn *library, cf_gemm_type type,
                                     size_t k, size_t n, size_t b_row,
                                     size_t b_col)
{
    const plain_library *plain = (const plain_library *)(void *)library;

    ck_assert((b_row == 1 && b_col == k) || (b_row == n && b_col == 1));
    if (plain->lacks & PACKING)
        return 0;
    return (k * n * (type == CF_GEMM_BF16 ? 2 : 4) + 63) / 64 * 64;
}

void __wrap_cf_onednn_pack(cf_onednn *library, cf_gemm_type type, size_t k,
                           size_t n, size_t b_row, size_t b_col, const void *b,
                           void *packed)
{
    plain_library *plain = (plain_library *)(void *)library;

    plain->n_packed++;
    ck_assert_uint_eq((uintptr_t)packed % 64, 0);
    for (size_t l = 0; l < k; l++)
        for (size_t j = 0; j < n; j++)
            element_put(type, packed, l * n + j,
                        ((const float *)b)[l * b_row + j * b_col]);
}

bool __wrap_cf_onednn_has(cf_onednn *library, const cf_product *p)
{
    return (((const plain_library *)(const void *)library)->lacks &
            kind_of(p)) == 0;
}

static void shape_note(plain_library *plain, size_t n_rows)
{
    for (size_t i = 0; i < plain->n_shapes; i++)
        if (plain->shapes[i] == n_rows)
            return;
    ck_assert_uint_lt(plain->n_shapes, 64);
    plain->shapes[plain->n_shapes++] = n_rows;
}

void __wrap_cf_onednn_multiply(cf_onednn *library, const cf_product *p,
                               const void *a, const void *b, const void *bias,
                               void *c)
{
    plain_library *plain = (plain_library *)(void *)library;
    const size_t b_row = p->packed ? p->n : p->b_row;
    const size_t b_col = p->packed ? 1 : p->b_col;

    ck_assert(__wrap_cf_onednn_has(library, p));
    plain->n_multiplied++;
    shape_note(plain, kind_of(p) == GRADIENT ? p->k : p->m);
    for (size_t i = 0; i < p->m; i++)
        for (size_t j = 0; j < p->n; j++) {
            double sum = p->add ? element(p->out, c, i * p->c_row + j) : 0;

            if (p->bias)
                sum += ((const float *)bias)[j];
            for (size_t l = 0; l < p->k; l++)
                sum += element(p->in, a, i * p->a_row + l * p->a_col) *
                       element(p->in, b, l * b_row + j * b_col);
            element_put(p->out, c, i * p->c_row + j, sum);
        }
}

/* ---- operations on it ---- */

static const cf_compute computes[] = {CF_COMPUTE_FP32, CF_COMPUTE_BF16};

/* A table by this library; NULL: by OpenBLAS. */
static cf_kernels table_of(cf_compute compute, plain_library *plain)
{
    cf_kernels k = kernels_of(compute);

    k.backend = plain;
    return k;
}

static const size_t row_counts[] = {0,   1,   63,  64,  100,
                                    511, 512, 513, 700, 1024};
enum {
    N_ROW_COUNTS = sizeof(row_counts) / sizeof(row_counts[0])
};

typedef struct result {
    void *y, *sum, *dx, *dw;
    double *loss, *loss_forward;
    void *head_dx, *head_dw;
} result;

enum {
    N_OUT = 12,
    N_IN = 10,
    N_VOCAB = 30
};

static void layer_run(const cf_kernels *k, size_t n_tok, uint64_t state,
                      result *r)
{
    const size_t n_y = n_tok * N_OUT, n_x = n_tok * N_IN, n_w = N_OUT * N_IN;
    void *x = act_of(k, n_x, random_acts(k, &state, n_x, 1));
    void *dy = act_of(k, n_y, random_acts(k, &state, n_y, 1));
    cf_weight w = weight_of(k, N_OUT, N_IN, random_acts(k, &state, n_w, 1),
                            random_values(&state, N_OUT, 1));
    void *scratch = array_bytes(k->linear_scratch_bytes(k, n_tok, N_OUT, N_IN));

    r->y = act_out(k, n_y);
    r->sum = array_of(k, n_y, random_values(&state, n_y, 1));
    r->dx = act_out(k, n_x);
    r->dw = array_of(k, n_w, random_values(&state, n_w, 1));
    k->linear_forward(k, &w, n_tok, x, r->y, scratch);
    k->linear_forward_residual(k, &w, n_tok, x, r->sum, scratch);
    k->linear_backward(k, &w, n_tok, dy, x, r->dx, r->dw, NULL, scratch);
    k->linear_backward(k, &w, n_tok, dy, x, r->dx, NULL, NULL, scratch);
}

static void head_run(const cf_kernels *k, size_t n_rows, uint64_t state,
                     result *r)
{
    const size_t n_x = n_rows * N_IN, n_w = N_VOCAB * N_IN;
    void *x = act_of(k, n_x, random_acts(k, &state, n_x, 1));
    cf_weight w =
        weight_of(k, N_VOCAB, N_IN, random_acts(k, &state, n_w, 1), NULL);
    void *scratch =
        array_bytes(k->head_scratch_bytes(k, n_rows, N_VOCAB, N_IN));
    uint32_t *targets = array_u32(n_rows);

    for (size_t i = 0; i < n_rows; i++)
        targets[i] = random_below(&state, N_VOCAB);
    r->loss = array_double(n_rows);
    r->loss_forward = array_double(n_rows);
    r->head_dx = act_out(k, n_x);
    r->head_dw = array_of(k, n_w, random_values(&state, n_w, 1));
    k->head_forward(k, &w, n_rows, x, targets, r->loss_forward, scratch);
    k->head_backward(k, &w, n_rows, x, targets, 0.25, r->loss, r->head_dx,
                     r->head_dw, scratch);
}

static result run(const cf_kernels *k, size_t n_rows)
{
    result r;

    layer_run(k, n_rows, n_rows, &r);
    head_run(k, n_rows, n_rows, &r);
    return r;
}

static void check_agreement(const cf_kernels *k, size_t n, const result *got,
                            const result *want)
{
    const double act = act_bound_of(k, 2e-6, 0);
    const size_t n_y = n * N_OUT, n_x = n * N_IN;

    ck_assert(close_arrays("y", n_y, act_values_of(k, n_y, got->y),
                           act_values_of(k, n_y, want->y), act, n));
    ck_assert(close_arrays("sum", n_y, values_of(k, n_y, got->sum),
                           values_of(k, n_y, want->sum), 2e-6, n));
    ck_assert(close_arrays("dx", n_x, act_values_of(k, n_x, got->dx),
                           act_values_of(k, n_x, want->dx), act, n));
    ck_assert(close_arrays("dw", N_OUT * N_IN,
                           values_of(k, N_OUT * N_IN, got->dw),
                           values_of(k, N_OUT * N_IN, want->dw), 2e-6, n));
    ck_assert_mem_eq(got->loss, got->loss_forward, n * sizeof(double));
    ck_assert(close_arrays("loss", n, got->loss, want->loss, 4e-6, n));
    /* The gradient of the logits is rounded to act. */
    ck_assert(close_arrays("head dx", n_x, act_values_of(k, n_x, got->head_dx),
                           act_values_of(k, n_x, want->head_dx), 2 * act, n));
    ck_assert(close_arrays(
        "head dw", N_VOCAB * N_IN, values_of(k, N_VOCAB * N_IN, got->head_dw),
        values_of(k, N_VOCAB * N_IN, want->head_dw), act, n));
}

START_TEST(results_are_those_of_openblas_whatever_the_library_lacks)
{
    static const int lacks[] = {
        0,          FORWARD,          RESIDUAL,        INPUT,
        GRADIENT,   INPUT | GRADIENT, FORWARD | INPUT, PACKING,
        PACKING - 1};

    for (size_t i = 0; i < N_ROW_COUNTS; i++)
        for (size_t j = 0; j < sizeof(lacks) / sizeof(lacks[0]); j++) {
            plain_library plain = {.lacks = lacks[j]};
            const cf_kernels k = table_of(computes[_i], &plain);
            const cf_kernels blas = table_of(computes[_i], NULL);
            result got = run(&k, row_counts[i]);
            result want = run(&blas, row_counts[i]);

            check_agreement(&k, row_counts[i], &got, &want);
            ck_assert_int_eq(plain.n_multiplied > 0,
                             row_counts[i] > 0 && lacks[j] < PACKING - 1);
            ck_assert_int_eq(plain.n_packed > 0, lacks[j] != PACKING);
            arrays_close();
        }
}
END_TEST

START_TEST(few_shapes_serve_any_number_of_rows)
{
    plain_library plain = {.lacks = 0};
    const cf_kernels k = table_of(computes[_i], &plain);

    for (size_t n = 1; n <= 1600; n += n < 130 ? 1 : 37) {
        (void)run(&k, n);
        arrays_close();
    }
    for (size_t i = 0; i < plain.n_shapes; i++)
        ck_assert_uint_eq(plain.shapes[i] % CF_ROWS_STEP, 0);
    ck_assert_uint_le(plain.n_shapes,
                      1600 / CF_ROWS_BLOCK + CF_ROWS_BLOCK / CF_ROWS_STEP);
}
END_TEST

START_TEST(room_does_not_shrink_as_rows_grow)
{
    plain_library plain = {.lacks = 0};
    const cf_kernels k = table_of(computes[_i], &plain);
    size_t layer = 0, head = 0;

    for (size_t n = 0; n < 1100; n++) {
        size_t bytes = k.linear_scratch_bytes(&k, n, N_OUT, N_IN);

        ck_assert_uint_ge(bytes, layer);
        layer = bytes;
        bytes = k.head_scratch_bytes(&k, n, N_VOCAB, N_IN);
        ck_assert_uint_ge(bytes, head);
        head = bytes;
    }
}
END_TEST

START_TEST(a_failure_of_the_library_is_the_status_of_the_table)
{
    plain_library plain = {.lacks = 0};
    const cf_kernels k = table_of(computes[_i], &plain);

    ck_assert_int_eq(k.status(&k), CF_NO_MEMORY);
}
END_TEST

static Suite *onednn_ops_suite(void)
{
    Suite *suite = suite_create("onednn_ops");
    TCase *tc = tcase_create("operations");

    tcase_add_checked_fixture(tc, NULL, arrays_close);
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(
        tc, results_are_those_of_openblas_whatever_the_library_lacks, 0, 2);
    tcase_add_loop_test(tc, few_shapes_serve_any_number_of_rows, 0, 2);
    tcase_add_loop_test(tc, room_does_not_shrink_as_rows_grow, 0, 2);
    tcase_add_loop_test(tc, a_failure_of_the_library_is_the_status_of_the_table,
                        0, 2);
    suite_add_tcase(suite, tc);
    return suite;
}

int main(void)
{
    SRunner *runner = srunner_create(onednn_ops_suite());

    srunner_run_all(runner, CK_NORMAL);

    int failed = srunner_ntests_failed(runner);

    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
