/* onednn.c - oneDNN, loaded at run time: its primitives and packed layouts.
 *
 * The headers say which API this is compiled for; the library is loaded by the
 * name that goes with it.  What API 2 and 3 call differently stands in one place,
 * under `layout`.
 *
 * (5) oneDNN and we must share one OpenMP, or each region would start threads of
 *     its own: a library of another one is not used.
 * (6) oneDNN's reference implementations take any shape, a thousand times as
 *     slowly as ours: they count as not there.
 *
 * The library, its primitives and their number are the process's: they stay in
 * one static object, and a lock is held while it is used.
 */
#include "kernels/cpu/onednn.h"

#include <dlfcn.h>
#include <dnnl.h>
#include <omp.h>
#include <pthread.h>
#include <string.h>

enum {
    N_PRIMITIVES = 512,
    N_PACKINGS = 64
};

#define AS_TEXT(x)  #x
#define TEXT_OF(x)  AS_TEXT(x)
#define SONAME      "libdnnl.so." TEXT_OF(DNNL_VERSION_MAJOR)
#define NEEDED      "bf16 on AMX needs oneDNN, and " SONAME " "
#define ALTERNATIVE "; until then --compute fp32 is faster"

/* ---- the calls ---- */

#if DNNL_VERSION_MAJOR >= 3
#define CALLS_OF_VERSION_MAP(X)        \
    X(memory_desc_create_with_strides) \
    X(memory_desc_create_with_tag)     \
    X(memory_desc_clone)               \
    X(memory_desc_destroy)             \
    X(matmul_primitive_desc_create)
#else
#define CALLS_OF_VERSION_MAP(X)    \
    X(memory_desc_init_by_strides) \
    X(memory_desc_init_by_tag)     \
    X(matmul_desc_init)            \
    X(primitive_desc_create)
#endif

#define CALLS_MAP(X)                 \
    CALLS_OF_VERSION_MAP(X)          \
    X(get_effective_cpu_isa)         \
    X(engine_create)                 \
    X(stream_create)                 \
    X(stream_wait)                   \
    X(memory_desc_get_size)          \
    X(memory_create)                 \
    X(memory_set_data_handle)        \
    X(memory_destroy)                \
    X(primitive_attr_create)         \
    X(primitive_attr_set_post_ops)   \
    X(primitive_attr_destroy)        \
    X(post_ops_create)               \
    X(post_ops_append_sum)           \
    X(post_ops_destroy)              \
    X(reorder_primitive_desc_create) \
    X(primitive_desc_query)          \
    X(primitive_desc_query_md)       \
    X(primitive_desc_destroy)        \
    X(primitive_create)              \
    X(primitive_execute)             \
    X(primitive_destroy)

typedef struct calls {
#define CALLS_MEMBER(name) __typeof__(&dnnl_##name) name;
    CALLS_MAP(CALLS_MEMBER)
#undef CALLS_MEMBER
} calls;

static bool calls_find(void *handle, calls *to)
{
    static const struct {
        const char *name;
        size_t at;
    } all[] = {
#define CALLS_ENTRY(name) {"dnnl_" #name, offsetof(calls, name)},
        CALLS_MAP(CALLS_ENTRY)
#undef CALLS_ENTRY
    };

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        void *call = dlsym(handle, all[i].name);

        if (call == NULL)
            return false;
        memcpy((char *)to + all[i].at, &call, sizeof(call));
    }
    return true;
}

/* ---- layouts: types, dimensions and places of a matrix's elements ---- */

#if DNNL_VERSION_MAJOR >= 3

typedef dnnl_memory_desc_t layout; /* owned; NULL is none */
typedef const_dnnl_memory_desc_t layout_arg;

static layout_arg arg_of(const layout *x)
{
    return *x;
}

static dnnl_status_t layout_open(const calls *call, dnnl_data_type_t type,
                                 const dnnl_dims_t dims,
                                 const dnnl_dims_t strides, layout *to)
{
    return call->memory_desc_create_with_strides(to, 2, dims, type, strides);
}

static dnnl_status_t layout_open_any(const calls *call, dnnl_data_type_t type,
                                     const dnnl_dims_t dims, layout *to)
{
    return call->memory_desc_create_with_tag(to, 2, dims, type,
                                             dnnl_format_tag_any);
}

static dnnl_status_t layout_open_as(const calls *call, layout_arg from,
                                    layout *to)
{
    return call->memory_desc_clone(to, from);
}

static void layout_close(const calls *call, layout *x)
{
    if (*x != NULL)
        (void)call->memory_desc_destroy(*x);
    *x = NULL;
}

static dnnl_status_t append_sum(const calls *call, dnnl_post_ops_t ops)
{
    return call->post_ops_append_sum(ops, 1, 0, dnnl_data_type_undef);
}

static dnnl_status_t matmul_desc_open(const calls *call, dnnl_engine_t engine,
                                      const layout *a, const layout *b,
                                      const layout *bias, const layout *c,
                                      dnnl_primitive_attr_t attr,
                                      dnnl_primitive_desc_t *to)
{
    return call->matmul_primitive_desc_create(
        to, engine, *a, *b, bias != NULL ? *bias : NULL, *c, attr);
}

#else

typedef dnnl_memory_desc_t layout; /* a value; all zeros is none */
typedef const dnnl_memory_desc_t *layout_arg;

static layout_arg arg_of(const layout *x)
{
    return x;
}

static dnnl_status_t layout_open(const calls *call, dnnl_data_type_t type,
                                 const dnnl_dims_t dims,
                                 const dnnl_dims_t strides, layout *to)
{
    return call->memory_desc_init_by_strides(to, 2, dims, type, strides);
}

static dnnl_status_t layout_open_any(const calls *call, dnnl_data_type_t type,
                                     const dnnl_dims_t dims, layout *to)
{
    return call->memory_desc_init_by_tag(to, 2, dims, type,
                                         dnnl_format_tag_any);
}

static dnnl_status_t layout_open_as(const calls *call, layout_arg from,
                                    layout *to)
{
    (void)call;
    *to = *from;
    return dnnl_success;
}

static void layout_close(const calls *call, layout *x)
{
    (void)call, (void)x;
}

static dnnl_status_t append_sum(const calls *call, dnnl_post_ops_t ops)
{
    return call->post_ops_append_sum(ops, 1);
}

static dnnl_status_t matmul_desc_open(const calls *call, dnnl_engine_t engine,
                                      const layout *a, const layout *b,
                                      const layout *bias, const layout *c,
                                      dnnl_primitive_attr_t attr,
                                      dnnl_primitive_desc_t *to)
{
    dnnl_matmul_desc_t matmul;
    dnnl_status_t status = call->matmul_desc_init(&matmul, a, b, bias, c);

    if (status != dnnl_success)
        return status;
    return call->primitive_desc_create(to, &matmul, attr, engine, NULL);
}

#endif

/* ---- what is kept ---- */

typedef enum argument {
    ARG_A,
    ARG_B,
    ARG_C,
    ARG_BIAS, /* last: it may not be there */
    N_ARGS
} argument;

typedef struct primitive {
    cf_product product;
    int n_threads;
    uint64_t used;        /* when last; 0: the place is free */
    dnnl_primitive_t run; /* NULL: oneDNN has none */
    dnnl_memory_t arg[N_ARGS];
} primitive;

/* A layout and the way into it. */
typedef struct packing {
    cf_gemm_type type;
    size_t k, n, b_row, b_col;
    layout packed;
    size_t bytes;
    dnnl_primitive_t run; /* NULL: there is no such packing */
    dnnl_memory_t from, to;
} packing;

struct cf_onednn {
    pthread_mutex_t lock;
    bool tried;
    const char *why_not; /* NULL once it is open */
    calls call;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    uint64_t now; /* in calls */
    primitive primitives[N_PRIMITIVES];
    packing packings[N_PACKINGS];
    size_t n_packings;
    cf_status failure;
};

static dnnl_data_type_t data_type(cf_gemm_type type)
{
    return type == CF_GEMM_BF16 ? dnnl_bf16 : dnnl_f32;
}

/* ---- primitives ---- */

/* The layouts of a product, but for a packed b. */
static dnnl_status_t layouts_open(const calls *call, const cf_product *p,
                                  layout layouts[N_ARGS])
{
    const dnnl_dim_t m = (dnnl_dim_t)p->m, n = (dnnl_dim_t)p->n;
    const dnnl_dim_t k = (dnnl_dim_t)p->k;
    const dnnl_dims_t a = {m, k}, b = {k, n}, c = {m, n}, bias = {1, n};
    const dnnl_dims_t a_by = {(dnnl_dim_t)p->a_row, (dnnl_dim_t)p->a_col};
    const dnnl_dims_t b_by = {(dnnl_dim_t)p->b_row, (dnnl_dim_t)p->b_col};
    const dnnl_dims_t c_by = {(dnnl_dim_t)p->c_row, 1}, bias_by = {n, 1};
    dnnl_status_t status =
        layout_open(call, data_type(p->in), a, a_by, &layouts[ARG_A]);

    if (status == dnnl_success && !p->packed)
        status = layout_open(call, data_type(p->in), b, b_by, &layouts[ARG_B]);
    if (status == dnnl_success)
        status = layout_open(call, data_type(p->out), c, c_by, &layouts[ARG_C]);
    if (status == dnnl_success && p->bias)
        status = layout_open(call, dnnl_f32, bias, bias_by, &layouts[ARG_BIAS]);
    return status;
}

static void layouts_close(const calls *call, layout layouts[N_ARGS])
{
    for (int i = 0; i < N_ARGS; i++)
        layout_close(call, &layouts[i]);
}

/* With the sum of (4), where it is asked for. */
static dnnl_status_t attr_open(const calls *call, bool add,
                               dnnl_primitive_attr_t *attr_p)
{
    dnnl_post_ops_t ops;
    dnnl_status_t status = call->primitive_attr_create(attr_p);

    if (status != dnnl_success || !add)
        return status;
    status = call->post_ops_create(&ops);
    if (status == dnnl_success) {
        status = append_sum(call, ops);
        if (status == dnnl_success)
            status = call->primitive_attr_set_post_ops(*attr_p, ops);
        (void)call->post_ops_destroy(ops);
    }
    if (status != dnnl_success)
        (void)call->primitive_attr_destroy(*attr_p);
    return status;
}

/* The best implementation of a product; dnnl_unimplemented for (6). */
static dnnl_status_t product_desc_open(const cf_onednn *d, const cf_product *p,
                                       const layout layouts[N_ARGS],
                                       dnnl_primitive_desc_t *desc_p)
{
    const calls *call = &d->call;
    const char *name = "";
    dnnl_primitive_attr_t attr;
    dnnl_status_t status = attr_open(call, p->add, &attr);

    if (status != dnnl_success)
        return status;
    status = matmul_desc_open(call, d->engine, &layouts[ARG_A], &layouts[ARG_B],
                              p->bias ? &layouts[ARG_BIAS] : NULL,
                              &layouts[ARG_C], attr, desc_p);
    (void)call->primitive_attr_destroy(attr);
    if (status != dnnl_success)
        return status;
    status =
        call->primitive_desc_query(*desc_p, dnnl_query_impl_info_str, 0, &name);
    if (status == dnnl_success && strncmp(name, "ref", 3) != 0)
        return dnnl_success;
    (void)call->primitive_desc_destroy(*desc_p);
    return dnnl_unimplemented;
}

static void primitive_close(const cf_onednn *d, primitive *x)
{
    for (int i = 0; i < N_ARGS; i++)
        if (x->arg[i] != NULL)
            (void)d->call.memory_destroy(x->arg[i]);
    if (x->run != NULL)
        (void)d->call.primitive_destroy(x->run);
    memset(x->arg, 0, sizeof(x->arg));
    x->run = NULL;
}

static const packing *packing_of(cf_onednn *d, cf_gemm_type type, size_t k,
                                 size_t n, size_t b_row, size_t b_col);

/* x from its product.  What fails is left for primitive_close. */
static dnnl_status_t primitive_open(cf_onednn *d, primitive *x)
{
    const calls *call = &d->call;
    const cf_product *p = &x->product;
    layout layouts[N_ARGS];
    dnnl_primitive_desc_t desc;
    dnnl_status_t status;

    memset(layouts, 0, sizeof(layouts));
    status = layouts_open(call, p, layouts);
    if (status == dnnl_success && p->packed) {
        const packing *into =
            packing_of(d, p->in, p->k, p->n, p->b_row, p->b_col);

        status = into != NULL ? layout_open_as(call, arg_of(&into->packed),
                                               &layouts[ARG_B])
                              : dnnl_unimplemented;
    }
    if (status == dnnl_success)
        status = product_desc_open(d, p, layouts, &desc);
    if (status == dnnl_success) {
        status = call->primitive_create(&x->run, desc);
        (void)call->primitive_desc_destroy(desc);
    }
    for (int i = 0; i < N_ARGS && status == dnnl_success; i++)
        if (i != ARG_BIAS || p->bias)
            status = call->memory_create(&x->arg[i], arg_of(&layouts[i]),
                                         d->engine, DNNL_MEMORY_NONE);
    layouts_close(call, layouts);
    return status;
}

static bool same_product(const cf_product *x, const cf_product *y)
{
    return x->m == y->m && x->n == y->n && x->k == y->k &&
           x->a_row == y->a_row && x->a_col == y->a_col &&
           x->b_row == y->b_row && x->b_col == y->b_col &&
           x->c_row == y->c_row && x->in == y->in && x->out == y->out &&
           x->packed == y->packed && x->bias == y->bias && x->add == y->add;
}

/* Found, or made in the place of the one that was used the longest ago. */
static primitive *primitive_of(cf_onednn *d, const cf_product *p)
{
    const int n_threads = omp_get_max_threads();
    primitive *oldest = &d->primitives[0];

    d->now++;
    for (size_t i = 0; i < N_PRIMITIVES; i++) {
        primitive *x = &d->primitives[i];

        if (x->used > 0 && x->n_threads == n_threads &&
            same_product(&x->product, p)) {
            x->used = d->now;
            return x;
        }
        if (x->used < oldest->used)
            oldest = x;
    }
    primitive_close(d, oldest);
    *oldest =
        (primitive){.product = *p, .n_threads = n_threads, .used = d->now};
    if (primitive_open(d, oldest) != dnnl_success)
        primitive_close(d, oldest);
    return oldest;
}

/* ---- packings ---- */

/* The layout that oneDNN likes best for a block of rows. */
static dnnl_status_t layout_find(const cf_onednn *d, const packing *x,
                                 layout *to)
{
    const calls *call = &d->call;
    const dnnl_dims_t b = {(dnnl_dim_t)x->k, (dnnl_dim_t)x->n};
    const cf_product p = {.m = CF_ROWS_BLOCK,
                          .n = x->n,
                          .k = x->k,
                          .a_row = x->k,
                          .a_col = 1,
                          .c_row = x->n,
                          .in = x->type,
                          .out = x->type,
                          .packed = true};
    layout layouts[N_ARGS];
    dnnl_primitive_desc_t desc;
    dnnl_status_t status;

    memset(layouts, 0, sizeof(layouts));
    status = layouts_open(call, &p, layouts);
    if (status == dnnl_success)
        status = layout_open_any(call, data_type(x->type), b, &layouts[ARG_B]);
    if (status == dnnl_success)
        status = product_desc_open(d, &p, layouts, &desc);
    if (status == dnnl_success) {
        status = layout_open_as(
            call, call->primitive_desc_query_md(desc, dnnl_query_weights_md, 0),
            to);
        (void)call->primitive_desc_destroy(desc);
    }
    layouts_close(call, layouts);
    return status;
}

/* x from its shape; x->run stays NULL when that fails. */
static void packing_open(cf_onednn *d, packing *x)
{
    const calls *call = &d->call;
    const dnnl_dims_t b = {(dnnl_dim_t)x->k, (dnnl_dim_t)x->n};
    const dnnl_dims_t b_by = {(dnnl_dim_t)x->b_row, (dnnl_dim_t)x->b_col};
    layout plain;
    dnnl_primitive_desc_t desc;

    if (layout_find(d, x, &x->packed) != dnnl_success)
        return;
    memset(&plain, 0, sizeof(plain));
    if (layout_open(call, dnnl_f32, b, b_by, &plain) != dnnl_success)
        goto close_packed;
    if (call->memory_create(&x->from, arg_of(&plain), d->engine,
                            DNNL_MEMORY_NONE) != dnnl_success)
        goto close_plain;
    if (call->memory_create(&x->to, arg_of(&x->packed), d->engine,
                            DNNL_MEMORY_NONE) != dnnl_success)
        goto destroy_from;
    if (call->reorder_primitive_desc_create(&desc, arg_of(&plain), d->engine,
                                            arg_of(&x->packed), d->engine,
                                            NULL) != dnnl_success)
        goto destroy_to;
    if (call->primitive_create(&x->run, desc) != dnnl_success)
        x->run = NULL;
    (void)call->primitive_desc_destroy(desc);
    if (x->run == NULL)
        goto destroy_to;
    x->bytes = call->memory_desc_get_size(arg_of(&x->packed));
    layout_close(call, &plain);
    return;

destroy_to:
    (void)call->memory_destroy(x->to);
destroy_from:
    (void)call->memory_destroy(x->from);
close_plain:
    layout_close(call, &plain);
close_packed:
    layout_close(call, &x->packed);
}

/* NULL: there is none, or too many are there already. */
static const packing *packing_of(cf_onednn *d, cf_gemm_type type, size_t k,
                                 size_t n, size_t b_row, size_t b_col)
{
    packing *x = d->packings;

    for (; x < d->packings + d->n_packings; x++)
        if (x->type == type && x->k == k && x->n == n && x->b_row == b_row &&
            x->b_col == b_col)
            return x->run != NULL ? x : NULL;
    if (d->n_packings == N_PACKINGS)
        return NULL;
    d->n_packings++;
    *x =
        (packing){.type = type, .k = k, .n = n, .b_row = b_row, .b_col = b_col};
    packing_open(d, x);
    return x->run != NULL ? x : NULL;
}

/* ---- the library ---- */

/* (5): what ours is told, theirs knows. */
static bool is_our_openmp(void *handle)
{
    const int n_threads = omp_get_max_threads();
    void *call = dlsym(handle, "omp_get_max_threads");
    int (*theirs)(void);
    bool same;

    if (call == NULL)
        return false;
    memcpy(&theirs, &call, sizeof(theirs));
    omp_set_num_threads(n_threads + 1);
    same = theirs() == n_threads + 1;
    omp_set_num_threads(n_threads);
    return same;
}

/* NULL, or why it is not open. */
static const char *library_open(cf_onednn *d)
{
    void *handle = dlopen(SONAME, RTLD_NOW | RTLD_LOCAL);

    if (handle == NULL)
        return NEEDED "cannot be loaded: install that package" ALTERNATIVE;
    if (!calls_find(handle, &d->call))
        return NEEDED "lacks functions: install another build" ALTERNATIVE;
    if (!is_our_openmp(handle))
        return NEEDED "is not built for this program's OpenMP: install one of "
                      "its distribution" ALTERNATIVE;
    if (d->call.engine_create(&d->engine, dnnl_cpu, 0) != dnnl_success ||
        d->call.stream_create(&d->stream, d->engine,
                              dnnl_stream_default_flags) != dnnl_success)
        return NEEDED "does not start: look for memory" ALTERNATIVE;
    return NULL;
}

/* One of each kind that a layer takes. */
static bool has_products(cf_onednn *d, cf_gemm_type type)
{
    const size_t n = CF_ROWS_STEP;
    const cf_product forward = {.m = n,
                                .n = n,
                                .k = n,
                                .a_row = n,
                                .a_col = 1,
                                .b_row = 1,
                                .b_col = n,
                                .c_row = n,
                                .in = type,
                                .out = type,
                                .packed = true};
    cf_product residual = forward, gradient;

    residual.out = CF_GEMM_FP32;
    residual.add = true;
    gradient = residual;
    gradient.a_row = 1;
    gradient.a_col = n;
    gradient.packed = false;
    return primitive_of(d, &forward)->run != NULL &&
           primitive_of(d, &residual)->run != NULL &&
           primitive_of(d, &gradient)->run != NULL;
}

cf_onednn *cf_onednn_open(cf_gemm_type type, const char **why_p)
{
    static cf_onednn library = {.lock = PTHREAD_MUTEX_INITIALIZER};
    const char *why;

    (void)pthread_mutex_lock(&library.lock);
    if (!library.tried)
        library.why_not = library_open(&library);
    library.tried = true;
    why = library.why_not;
    if (why == NULL && type == CF_GEMM_BF16 &&
        (library.call.get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core_amx) !=
            dnnl_cpu_isa_avx512_core_amx)
        why =
            "oneDNN may not use AMX here (DNNL_MAX_CPU_ISA, the system or the "
            "virtual machine): bf16 is computed by fp32 units, and --compute "
            "fp32 is faster";
    if (why == NULL && !has_products(&library, type))
        why =
            NEEDED "lacks a matrix product: install another build" ALTERNATIVE;
    (void)pthread_mutex_unlock(&library.lock);
    if (why == NULL)
        return &library;
    *why_p = why;
    return NULL;
}

cf_status cf_onednn_status(cf_onednn *library)
{
    cf_status status;

    (void)pthread_mutex_lock(&library->lock);
    status = library->failure;
    library->failure = CF_OK;
    (void)pthread_mutex_unlock(&library->lock);
    return status;
}

/* ---- products ---- */

/* A primitive that exists fails only for want of memory. */
static void note(cf_onednn *d, dnnl_status_t status)
{
    if (status != dnnl_success)
        d->failure = CF_NO_MEMORY;
}

static dnnl_status_t primitive_run(const cf_onednn *d, dnnl_primitive_t run,
                                   int n, const dnnl_exec_arg_t *args,
                                   void *const *data)
{
    dnnl_status_t status = dnnl_success;

    for (int i = 0; i < n && status == dnnl_success; i++)
        status = d->call.memory_set_data_handle(args[i].memory, data[i]);
    if (status == dnnl_success)
        status = d->call.primitive_execute(run, d->stream, n, args);
    if (status == dnnl_success)
        status = d->call.stream_wait(d->stream);
    return status;
}

size_t cf_onednn_packed_bytes(cf_onednn *library, cf_gemm_type type, size_t k,
                              size_t n, size_t b_row, size_t b_col)
{
    const packing *x;
    size_t bytes;

    (void)pthread_mutex_lock(&library->lock);
    x = packing_of(library, type, k, n, b_row, b_col);
    bytes = x != NULL ? (x->bytes + 63) / 64 * 64 : 0;
    (void)pthread_mutex_unlock(&library->lock);
    return bytes;
}

void cf_onednn_pack(cf_onednn *library, cf_gemm_type type, size_t k, size_t n,
                    size_t b_row, size_t b_col, const void *b, void *packed)
{
    const packing *x;

    (void)pthread_mutex_lock(&library->lock);
    x = packing_of(library, type, k, n, b_row, b_col);
    if (x != NULL)
        note(library,
             primitive_run(library, x->run, 2,
                           (dnnl_exec_arg_t[]){{DNNL_ARG_FROM, x->from},
                                               {DNNL_ARG_TO, x->to}},
                           (void *[]){(void *)b, packed}));
    (void)pthread_mutex_unlock(&library->lock);
}

bool cf_onednn_has(cf_onednn *library, const cf_product *product)
{
    bool has;

    (void)pthread_mutex_lock(&library->lock);
    has = primitive_of(library, product)->run != NULL;
    (void)pthread_mutex_unlock(&library->lock);
    return has;
}

void cf_onednn_multiply(cf_onednn *library, const cf_product *product,
                        const void *a, const void *b, const void *bias, void *c)
{
    const primitive *x;

    (void)pthread_mutex_lock(&library->lock);
    x = primitive_of(library, product);
    note(library,
         x->run == NULL
             ? dnnl_unimplemented
             : primitive_run(
                   library, x->run, product->bias ? N_ARGS : ARG_BIAS,
                   (dnnl_exec_arg_t[N_ARGS]){{DNNL_ARG_SRC, x->arg[ARG_A]},
                                             {DNNL_ARG_WEIGHTS, x->arg[ARG_B]},
                                             {DNNL_ARG_DST, x->arg[ARG_C]},
                                             {DNNL_ARG_BIAS, x->arg[ARG_BIAS]}},
                   (void *[]){(void *)a, (void *)b, c, (void *)bias}));
    (void)pthread_mutex_unlock(&library->lock);
}
