/* check_onednn.c - matrix products by oneDNN, held against OpenBLAS in double.
 *
 * Compiled once a type (CHECK_ONEDNN_BF16).  fp32 runs on every processor, so that
 * all of onednn.c is tested where none has AMX; bf16 is skipped there, and says
 * so.  Products of each shape come in all layouts that the callers use, with rows
 * of c that are farther apart than they are long: what lies between must not be
 * touched.
 *
 * The program runs itself with the argument "open", to see what a process is told
 * that finds no library.
 */
#include <cblas.h>
#include <check.h>
#include <dirent.h>
#include <limits.h>
#include <omp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cpu/onednn.h"
#include "tests/lib/arrays.h"
#include "tests/lib/close.h"
#include "tests/lib/temp_folder.h"

#if CHECK_ONEDNN_BF16
#define TYPE    CF_GEMM_BF16
#define COMPUTE CF_COMPUTE_BF16
#else
#define TYPE    CF_GEMM_FP32
#define COMPUTE CF_COMPUTE_FP32
#endif

enum {
    SKIPPED = 77,
    N_LAYOUTS = 1 << 6
};

static const struct {
    size_t m, n, k;
} shapes[] = {
    {1, 1, 1},       {1, 7, 3},      {3, 5, 2},       {17, 130, 257},
    {5, 1030, 12},   {64, 64, 512},  {48, 64, 512},   {27, 64, 512},
    {65, 576, 576},  {33, 960, 576}, {64, 3072, 576}, {70, 576, 1536},
    {128, 384, 576}, {512, 96, 64},  {513, 31, 64},
};
enum {
    N_SHAPES = sizeof(shapes) / sizeof(shapes[0])
};

/* fp32 and bf16 as arrays.h has them. */
static const cf_kernels single = {
    .compute = CF_COMPUTE_FP32, .act_bytes = 4, .acc_bytes = 4};
static const cf_kernels half = {
    .compute = CF_COMPUTE_BF16, .act_bytes = 2, .acc_bytes = 4};

static const cf_kernels *words_of(cf_gemm_type type)
{
    return type == CF_GEMM_BF16 ? &half : &single;
}

static cf_onednn *library_of_test(void)
{
    const char *why = "";
    cf_onednn *library = cf_onednn_open(TYPE, &why);

    ck_assert_msg(library != NULL, "%s", why);
    return library;
}

/* ---- one product ---- */

/* A matrix [rows, columns] in memory, at stride row and col. */
typedef struct matrix {
    size_t rows, columns, row, col;
    double *values; /* dense */
    void *data;
} matrix;

static size_t elements_of(const matrix *x)
{
    return (x->rows - 1) * x->row + (x->columns - 1) * x->col + 1;
}

/* NaN between its rows. */
static void matrix_fill(matrix *x, cf_gemm_type type, double *values)
{
    const cf_kernels *k = words_of(type);

    x->values = values;
    x->data = act_out(k, elements_of(x));
    for (size_t i = 0; i < x->rows; i++)
        for (size_t j = 0; j < x->columns; j++)
            act_put(k, x->data, i * x->row + j * x->col,
                    values[i * x->columns + j]);
}

static double *matrix_values(const matrix *x, cf_gemm_type type)
{
    double *values = array_double(x->rows * x->columns);

    for (size_t i = 0; i < x->rows; i++)
        for (size_t j = 0; j < x->columns; j++)
            values[i * x->columns + j] =
                act_get(words_of(type), x->data, i * x->row + j * x->col);
    return values;
}

static bool gaps_are_untouched(const matrix *x, cf_gemm_type type)
{
    const size_t bytes = words_of(type)->act_bytes;
    const unsigned char *p = x->data;

    for (size_t i = 0; i + 1 < x->rows; i++)
        for (size_t j = x->columns * bytes; j < x->row * bytes; j++)
            if (p[i * x->row * bytes + j] != 0xff)
                return false;
    return true;
}

typedef struct product_case {
    cf_product product;
    matrix a, b, c;
    double *bias;
    double *want; /* [m, n] */
} product_case;

/* A case of shape [m, n, k]; the bits of layout choose the rest. */
static product_case case_of(size_t m, size_t n, size_t k, int layout,
                            uint64_t *state)
{
    const bool a_turned = layout & 1, b_turned = layout & 2;
    product_case x = {
        .a = {m, k, a_turned ? 1 : k + 2, a_turned ? m + 1 : 1, NULL, NULL},
        .b = {k, n, b_turned ? 1 : n + 1, b_turned ? k + 3 : 1, NULL, NULL},
        .c = {m, n, n + 5, 1, NULL, NULL},
        .bias = random_values(state, n, 1),
        .want = array_double(m * n),
    };

    x.product = (cf_product){.m = m,
                             .n = n,
                             .k = k,
                             .a_row = x.a.row,
                             .a_col = x.a.col,
                             .b_row = x.b.row,
                             .b_col = x.b.col,
                             .c_row = x.c.row,
                             .in = TYPE,
                             .out = layout & 4 ? CF_GEMM_FP32 : TYPE,
                             .packed = (layout & 8) != 0,
                             .bias = (layout & 16) != 0,
                             .add = (layout & 32) != 0};
    matrix_fill(&x.a, TYPE, random_acts(words_of(TYPE), state, m * k, 1));
    /* A packed b comes from fp32, here from values that need no rounding. */
    matrix_fill(&x.b, x.product.packed ? CF_GEMM_FP32 : TYPE,
                random_acts(words_of(TYPE), state, k * n, 1));
    matrix_fill(&x.c, x.product.out,
                random_acts(words_of(x.product.out), state, m * n, 1));

    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j++)
            x.want[i * n + j] = (x.product.bias ? x.bias[j] : 0) +
                                (x.product.add ? x.c.values[i * n + j] : 0);
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)m, (int)n,
                (int)k, 1, x.a.values, (int)k, x.b.values, (int)n, 1, x.want,
                (int)n);
    return x;
}

/* b as the product reads it; NULL: it cannot be packed. */
static void *b_of(cf_onednn *library, const product_case *x)
{
    const cf_product *p = &x->product;
    size_t bytes;
    void *packed;

    if (!p->packed)
        return x->b.data;
    bytes =
        cf_onednn_packed_bytes(library, TYPE, p->k, p->n, p->b_row, p->b_col);
    ck_assert_uint_eq(bytes % 64, 0);
    if (bytes == 0)
        return NULL;
    packed = array_bytes(bytes);
    cf_onednn_pack(library, TYPE, p->k, p->n, p->b_row, p->b_col, x->b.data,
                   packed);
    return packed;
}

static void case_run(cf_onednn *library, const product_case *x, const void *b)
{
    cf_onednn_multiply(library, &x->product, x->a.data, b,
                       array_of(&single, x->product.n, x->bias), x->c.data);
    ck_assert_int_eq(cf_onednn_status(library), CF_OK);
}

static bool case_is_right(const product_case *x)
{
    const cf_gemm_type out = x->product.out;

    return close_arrays("c", x->product.m * x->product.n,
                        matrix_values(&x->c, out), x->want,
                        act_bound_of(words_of(out), 2e-6, 0), 1) &&
           gaps_are_untouched(&x->c, out);
}

START_TEST(a_product_is_what_openblas_makes_of_it)
{
    cf_onednn *library = library_of_test();
    uint64_t state = 1;
    size_t n_there = 0;

    omp_set_num_threads(_i);
    for (size_t i = 0; i < N_SHAPES; i++)
        for (int layout = 0; layout < N_LAYOUTS; layout++) {
            product_case x =
                case_of(shapes[i].m, shapes[i].n, shapes[i].k, layout, &state);
            void *b = b_of(library, &x);

            if (b != NULL && cf_onednn_has(library, &x.product)) {
                n_there++;
                case_run(library, &x, b);
                ck_assert_msg(case_is_right(&x), "%zu x %zu x %zu, layout %d",
                              shapes[i].m, shapes[i].n, shapes[i].k, layout);
            }
            arrays_close();
        }
    /* What is not there is not tested, so nearly all must be. */
    ck_assert_uint_ge(n_there, N_SHAPES * N_LAYOUTS * 9 / 10);
}
END_TEST

START_TEST(a_packed_matrix_serves_any_number_of_rows_or_says_no)
{
    static const size_t n_rows[] = {64, 1, 27, 48, 65, 128, 448, 512, 1024};
    static const size_t widths[][2] = {
        {64, 512}, {960, 576}, {576, 576}, {3072, 576}, {576, 1536}};
    cf_onednn *library = library_of_test();
    uint64_t state = 2;

    for (size_t i = 0; i < sizeof(widths) / sizeof(widths[0]); i++)
        for (size_t j = 0; j < sizeof(n_rows) / sizeof(n_rows[0]); j++) {
            product_case x =
                case_of(n_rows[j], widths[i][0], widths[i][1], 2 + 8, &state);
            void *b = b_of(library, &x);
            bool has;

            ck_assert_ptr_nonnull(b);
            has = cf_onednn_has(library, &x.product);
            ck_assert(has || n_rows[j] % CF_ROWS_STEP != 0);
            if (has) {
                case_run(library, &x, b);
                ck_assert(case_is_right(&x));
            }
            arrays_close();
        }
}
END_TEST

/* Also once its primitive had to make room for others. */
START_TEST(a_product_has_the_same_bits_from_call_to_call)
{
    enum {
        N_OTHERS = 600
    };
    cf_onednn *library = library_of_test();
    uint64_t state = 3;

    omp_set_num_threads(_i);
    for (size_t i = 0; i < N_SHAPES; i++) {
        const int layout = 2 + 8;
        uint64_t seed = state;
        product_case x[2];

        for (int turn = 0; turn < 2; turn++) {
            void *b;

            seed = state;
            x[turn] =
                case_of(shapes[i].m, shapes[i].n, shapes[i].k, layout, &seed);
            b = b_of(library, &x[turn]);
            if (b == NULL || !cf_onednn_has(library, &x[turn].product))
                break;
            case_run(library, &x[turn], b);
            if (turn == 1)
                ck_assert_mem_eq(x[0].c.data, x[1].c.data,
                                 elements_of(&x[0].c) *
                                     words_of(TYPE)->act_bytes);
            for (size_t other = 1; i % 5 == 0 && other <= N_OTHERS; other++) {
                cf_product p = {.m = other,
                                .n = 2,
                                .k = 2,
                                .a_row = 2,
                                .a_col = 1,
                                .b_row = 2,
                                .b_col = 1,
                                .c_row = 2,
                                .in = TYPE,
                                .out = CF_GEMM_FP32};

                (void)cf_onednn_has(library, &p);
            }
        }
        state = seed;
        arrays_close();
    }
}
END_TEST

/* ---- any number of rows ---- */

static const size_t row_counts[] = {0,   1,   63,  64,  65,   447,  511,
                                    512, 513, 575, 576, 1024, 1100, 1537};
enum {
    N_ROW_COUNTS = sizeof(row_counts) / sizeof(row_counts[0])
};

START_TEST(any_number_of_rows_is_multiplied)
{
    enum {
        N = 70,
        K = 52
    };
    cf_onednn *library = library_of_test();
    const cf_kernels *in = words_of(TYPE);
    uint64_t state = 4;

    for (size_t i = 0; i < 4 * N_ROW_COUNTS; i++) {
        const size_t m = row_counts[i / 4];
        const bool add = i & 1, bias = i & 2;
        const cf_gemm_type out = add ? CF_GEMM_FP32 : TYPE;
        const size_t room = cf_onednn_rest_rows(m);
        double *a = random_acts(in, &state, m * K, 1);
        double *b = random_acts(in, &state, K * N, 1);
        double *c = random_values(&state, m * N, 1);
        double *b0 = random_values(&state, N, 1), *want = array_double(m * N);
        void *got = act_of(words_of(out), m * N, c);
        cf_product p = {.n = N,
                        .k = K,
                        .a_row = K,
                        .a_col = 1,
                        .b_row = N,
                        .b_col = 1,
                        .c_row = N,
                        .in = TYPE,
                        .out = out,
                        .bias = bias,
                        .add = add};

        for (size_t j = 0; j < m * N; j++)
            want[j] = (bias ? b0[j % N] : 0) + (add ? c[j] : 0);
        if (m > 0)
            cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)m, N, K,
                        1, a, K, b, N, 1, want, N);
        ck_assert(cf_onednn_rows_multiply(
            library, &p, m, act_of(in, m * K, a), act_of(in, K * N, b),
            array_of(&single, N, b0), got,
            array_bytes(room *
                        (K * in->act_bytes + N * words_of(out)->act_bytes))));
        ck_assert(close_arrays("c", m * N,
                               act_values_of(words_of(out), m * N, got), want,
                               act_bound_of(words_of(out), 2e-6, 0), 4));
        arrays_close();
    }
}
END_TEST

START_TEST(any_number_of_rows_gives_its_gradient)
{
    enum {
        M = 33,
        N = 70
    };
    cf_onednn *library = library_of_test();
    const cf_kernels *in = words_of(TYPE);
    uint64_t state = 5;

    for (size_t i = 0; i < N_ROW_COUNTS; i++) {
        const size_t n_rows = row_counts[i], room = cf_onednn_rest_rows(n_rows);
        double *a = random_acts(in, &state, n_rows * M, 1);
        double *b = random_acts(in, &state, n_rows * N, 1);
        double *want = random_values(&state, M * N, 1);
        void *got = array_of(&single, M * N, want);

        if (n_rows > 0)
            cblas_dgemm(CblasRowMajor, CblasTrans, CblasNoTrans, M, N,
                        (int)n_rows, 1, a, M, b, N, 1, want, N);
        ck_assert(cf_onednn_rows_gradient(
            library, TYPE, n_rows, M, N, act_of(in, n_rows * M, a),
            act_of(in, n_rows * N, b), got,
            array_bytes(room * (M + N) * in->act_bytes)));
        ck_assert(close_arrays("c", M * N, values_of(&single, M * N, got), want,
                               2e-6, 5));
        arrays_close();
    }
}
END_TEST

/* ---- threads ---- */

static size_t count_threads(void)
{
    DIR *folder = opendir("/proc/self/task");
    size_t n = 0;

    ck_assert_ptr_nonnull(folder);
    for (const struct dirent *entry = readdir(folder); entry != NULL;
         entry = readdir(folder))
        n += entry->d_name[0] != '.';
    closedir(folder);
    return n;
}

START_TEST(all_libraries_share_the_threads_of_openmp)
{
    enum {
        N = 300
    };
    cf_onednn *library = library_of_test();
    uint64_t state = 6;
    size_t n_threads = 0;

    omp_set_num_threads(2);
    for (int round = 0; round < 4; round++) {
        product_case x = case_of(N, N, N, 2 + 8, &state);
        int seen = 0;

        cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, N, N, N, 1,
                    x.a.values, N, x.b.values, N, 0, x.c.values, N);
#pragma omp parallel reduction(+ : seen)
        seen++;
        ck_assert_int_eq(seen, 2);
        if (round == 0)
            n_threads = count_threads();
        case_run(library, &x, b_of(library, &x));
        ck_assert(case_is_right(&x));
        ck_assert_int_eq(omp_get_max_threads(), 2);
        ck_assert_uint_eq(count_threads(), n_threads);
        arrays_close();
    }
}
END_TEST

typedef struct caller {
    cf_onednn *library;
    product_case *x;
    void *b;
} caller;

static void *call_often(void *argument)
{
    const caller *c = argument;

    omp_set_num_threads(1);
    for (int i = 0; i < 50; i++)
        cf_onednn_multiply(c->library, &c->x->product, c->x->a.data, c->b, NULL,
                           c->x->c.data);
    return NULL;
}

START_TEST(callers_take_turns)
{
    enum {
        N_CALLERS = 4
    };
    cf_onednn *library = library_of_test();
    product_case x[N_CALLERS];
    caller callers[N_CALLERS];
    pthread_t threads[N_CALLERS];
    uint64_t state = 7;

    for (int i = 0; i < N_CALLERS; i++) {
        x[i] = case_of(40, 50, 60, 2 + 8, &state);
        callers[i] = (caller){library, &x[i], b_of(library, &x[i])};
        ck_assert_int_eq(
            pthread_create(&threads[i], NULL, call_often, &callers[i]), 0);
    }
    for (int i = 0; i < N_CALLERS; i++)
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    for (int i = 0; i < N_CALLERS; i++)
        ck_assert(case_is_right(&x[i]));
    ck_assert_int_eq(cf_onednn_status(library), CF_OK);
}
END_TEST

/* ---- the operations ---- */

/* The table with products by oneDNN, and without. */
static cf_kernels table_of(cf_onednn *library)
{
    cf_kernels k = kernels_of(COMPUTE);

    k.backend = library;
    return k;
}

typedef struct layer_result {
    void *y, *sum, *dx, *dw, *db;
} layer_result;

static layer_result layer_run(const cf_kernels *k, size_t n_tok, size_t n_out,
                              size_t n_in, uint64_t state)
{
    const size_t n_y = n_tok * n_out, n_x = n_tok * n_in, n_w = n_out * n_in;
    void *x = act_of(k, n_x, random_acts(k, &state, n_x, 1));
    void *dy = act_of(k, n_y, random_acts(k, &state, n_y, 1));
    /* Weights that packing does not round. */
    cf_weight w = weight_of(k, n_out, n_in, random_acts(k, &state, n_w, 1),
                            random_values(&state, n_out, 1));
    layer_result r = {
        .y = act_out(k, n_y),
        .sum = array_of(k, n_y, random_values(&state, n_y, 1)),
        .dx = act_out(k, n_x),
        .dw = array_of(k, n_w, random_values(&state, n_w, 1)),
        .db = array_of(k, n_out, random_values(&state, n_out, 1)),
    };
    void *scratch = array_bytes(k->linear_scratch_bytes(k, n_tok, n_out, n_in));

    k->linear_forward(k, &w, n_tok, x, r.y, scratch);
    k->linear_forward_residual(k, &w, n_tok, x, r.sum, scratch);
    k->linear_backward(k, &w, n_tok, dy, x, r.dx, r.dw, r.db, scratch);
    ck_assert_int_eq(k->status(k), CF_OK);
    return r;
}

static bool acts_agree(const cf_kernels *k, const char *name, size_t n,
                       const void *got, const void *want)
{
    return close_arrays(name, n, act_values_of(k, n, got),
                        act_values_of(k, n, want), act_bound_of(k, 2e-6, 0), 0);
}

static bool accs_agree(const cf_kernels *k, const char *name, size_t n,
                       const void *got, const void *want, double bound)
{
    return close_arrays(name, n, values_of(k, n, got), values_of(k, n, want),
                        bound, 0);
}

START_TEST(a_layer_has_the_results_that_it_has_by_openblas)
{
    static const size_t widths[][2] = {{9, 7}, {96, 64}, {52, 130}};
    const cf_kernels k = table_of(library_of_test()), plain = table_of(NULL);

    for (size_t i = 0; i < 3 * N_ROW_COUNTS; i++) {
        const size_t n_tok = row_counts[i / 3];
        const size_t n_out = widths[i % 3][0], n_in = widths[i % 3][1];
        layer_result got = layer_run(&k, n_tok, n_out, n_in, i);
        layer_result want = layer_run(&plain, n_tok, n_out, n_in, i);

        ck_assert(acts_agree(&k, "y", n_tok * n_out, got.y, want.y));
        ck_assert(
            accs_agree(&k, "sum", n_tok * n_out, got.sum, want.sum, 2e-6));
        ck_assert(acts_agree(&k, "dx", n_tok * n_in, got.dx, want.dx));
        ck_assert(accs_agree(&k, "dw", n_out * n_in, got.dw, want.dw, 4e-6));
        ck_assert_mem_eq(got.db, want.db, n_out * k.acc_bytes);
        arrays_close();
    }
}
END_TEST

typedef struct head_result {
    double *loss, *loss_forward;
    void *dx, *dw;
} head_result;

static head_result head_run(const cf_kernels *k, size_t n_rows, size_t n_vocab,
                            size_t n_in, uint64_t state)
{
    const size_t n_x = n_rows * n_in, n_w = n_vocab * n_in;
    void *x = act_of(k, n_x, random_acts(k, &state, n_x, 1));
    cf_weight w =
        weight_of(k, n_vocab, n_in, random_acts(k, &state, n_w, 1), NULL);
    uint32_t *targets = array_u32(n_rows);
    head_result r = {
        .loss = array_double(n_rows),
        .loss_forward = array_double(n_rows),
        .dx = act_out(k, n_x),
        .dw = array_of(k, n_w, random_values(&state, n_w, 1)),
    };
    void *scratch =
        array_bytes(k->head_scratch_bytes(k, n_rows, n_vocab, n_in));

    for (size_t i = 0; i < n_rows; i++)
        targets[i] = random_below(&state, (uint32_t)n_vocab);
    k->head_forward(k, &w, n_rows, x, targets, r.loss_forward, scratch);
    k->head_backward(k, &w, n_rows, x, targets, 0.25, r.loss, r.dx, r.dw,
                     scratch);
    ck_assert_int_eq(k->status(k), CF_OK);
    return r;
}

START_TEST(the_head_has_the_results_that_it_has_by_openblas)
{
    const cf_kernels k = table_of(library_of_test()), plain = table_of(NULL);
    /* By oneDNN the gradient of the logits is rounded to act. */
    const double bound = act_bound_of(&k, 4e-6, 0);

    for (size_t i = 0; i < N_ROW_COUNTS; i++) {
        enum {
            N_VOCAB = 130,
            N_IN = 20
        };
        const size_t n = row_counts[i];
        head_result got = head_run(&k, n, N_VOCAB, N_IN, i);
        head_result want = head_run(&plain, n, N_VOCAB, N_IN, i);

        ck_assert_mem_eq(got.loss, got.loss_forward, n * sizeof(double));
        ck_assert(close_arrays("loss", n, got.loss, want.loss, 4e-6, i));
        ck_assert(
            close_arrays("dx", n * N_IN, act_values_of(&k, n * N_IN, got.dx),
                         act_values_of(&k, n * N_IN, want.dx), 2 * bound, i));
        ck_assert(accs_agree(&k, "dw", N_VOCAB * N_IN, got.dw, want.dw, bound));
        arrays_close();
    }
}
END_TEST

/* ---- no library ---- */

START_TEST(a_process_without_the_library_is_told_what_to_do)
{
    char *folder = temp_folder_open();
    char program[PATH_MAX] = "", command[2 * PATH_MAX], line[512] = "";
    FILE *out;

    ck_assert_int_gt(readlink("/proc/self/exe", program, PATH_MAX - 1), 0);
    temp_file_write_text(folder, "libdnnl.so.2", "no library\n");
    temp_file_write_text(folder, "libdnnl.so.3", "no library\n");
    ck_assert_int_lt(snprintf(command, sizeof(command),
                              "LD_LIBRARY_PATH='%s' '%s' open", folder,
                              program),
                     (int)sizeof(command));
    out = popen(command, "r");
    ck_assert_ptr_nonnull(out);
    ck_assert_ptr_nonnull(fgets(line, sizeof(line), out));
    ck_assert_int_eq(WEXITSTATUS(pclose(out)), SKIPPED);
    ck_assert_msg(strstr(line, "cannot be loaded: install") != NULL &&
                      strstr(line, "--compute fp32") != NULL,
                  "%s", line);
    temp_folder_close(folder);
}
END_TEST

/* Two tables of a process have one library. */
START_TEST(the_library_is_opened_once)
{
    ck_assert_ptr_eq(library_of_test(), library_of_test());
}
END_TEST

static Suite *onednn_suite(void)
{
    Suite *suite = suite_create("onednn");
    TCase *tc = tcase_create("products");

    tcase_add_checked_fixture(tc, NULL, arrays_close);
    tcase_set_timeout(tc, 300);
    tcase_add_test(tc, the_library_is_opened_once);
    tcase_add_test(tc, a_process_without_the_library_is_told_what_to_do);
    tcase_add_loop_test(tc, a_product_is_what_openblas_makes_of_it, 1, 3);
    tcase_add_test(tc, a_packed_matrix_serves_any_number_of_rows_or_says_no);
    tcase_add_loop_test(tc, a_product_has_the_same_bits_from_call_to_call, 1,
                        3);
    tcase_add_test(tc, any_number_of_rows_is_multiplied);
    tcase_add_test(tc, any_number_of_rows_gives_its_gradient);
    tcase_add_test(tc, all_libraries_share_the_threads_of_openmp);
    tcase_add_test(tc, callers_take_turns);
    tcase_add_test(tc, a_layer_has_the_results_that_it_has_by_openblas);
    tcase_add_test(tc, the_head_has_the_results_that_it_has_by_openblas);
    suite_add_tcase(suite, tc);
    return suite;
}

/* Whether there is something to test; in a process of its own, since the tests
 * are to open the library after they have been forked. */
static bool is_there(const char *program)
{
    char command[2 * PATH_MAX];

    if (snprintf(command, sizeof(command), "'%s' open", program) >=
        (int)sizeof(command))
        return true;
    return WEXITSTATUS(system(command)) != SKIPPED;
}

/* The leak detector of gcc 12 crashes over the thread-local data of a library that
 * was loaded late, when a second thread has some. */
int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
    return 1;
}

int main(int argc, char **argv)
{
    SRunner *runner;
    int failed;

    if (argc == 2 && strcmp(argv[1], "open") == 0) {
        const char *why = NULL;

        if (cf_onednn_open(TYPE, &why) != NULL)
            return 0;
        puts(why);
        return SKIPPED;
    }
    if (!is_there(argv[0])) {
        puts(
            TYPE == CF_GEMM_BF16
                ? "this processor has no AMX for us: bf16 GEMM of oneDNN not run"
                : "there is no oneDNN here: fp32 GEMM of oneDNN not run");
        return SKIPPED;
    }
    runner = srunner_create(onednn_suite());
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
