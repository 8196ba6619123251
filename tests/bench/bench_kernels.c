/* bench_kernels.c - how fast every operation of the CPU backend is, beside what
 * the machine and the library reach in the same run (scripts/bench-kernels).
 */
#include <getopt.h>
#include <jansson.h>
#include <omp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/kernel_cases.h"
#include "tests/bench/peaks.h"

enum {
    LIST_MAX = 8,
    REPEATS_MIN = 3,
    REPEATS_MAX = 15,
    SMALL_MIB = 16,
    LARGE_MIB = 256
};

typedef struct settings {
    size_t tokens[LIST_MAX];
    size_t n_tokens;
    size_t threads[LIST_MAX];
    size_t n_threads;
    cf_compute compute;
    const char *op; /* NULL: all */
    bool quick;
    bool json;
    double seconds; /* for the repeats of a case, when they are many */
} settings;

/* What was reached at best by so many threads. */
typedef struct peaks {
    double gflops[PEAK_ISAS]; /* in acc; 0: not there */
    double small_gbs, large_gbs;
} peaks;

typedef struct result {
    double s, library_s; /* medians; 0: there is no such product */
    int n_repeats;
} result;

static const case_model models[] = {
    {"SmolLM2-135M", 576, 1536, 49152, {9, 3, 64, 0.125}, false},
    {"head_dim 128", 1024, 3072, 49152, {16, 8, 128, 0.0883883476483184}, true},
};
static const case_layout layouts[] = {
    {1, 1024, 8192}, {1, 1024, 65536}, {8, 256, 0}, {64, 32, 0}};

static const case_model quick_models[] = {
    {"tiny", 64, 96, 256, {4, 2, 16, 0.25}, false},
    {"tiny, normed", 64, 96, 256, {4, 2, 32, 0.176776695296637}, true},
};
static const case_layout quick_layouts[] = {{1, 64, 100}, {2, 32, 0}};

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

/* ---- options ---- */

static void fail(const char *, ...)
    __attribute__((format(printf, 1, 2), noreturn));

static void fail(const char *format, ...)
{
    va_list args;

    (void)fputs("bench-kernels: error: ", stderr);
    va_start(args, format);
    (void)vfprintf(stderr, format, args);
    va_end(args);
    (void)fputc('\n', stderr);
    exit(2);
}

static size_t list_parse(const char *option, const char *text, size_t most,
                         size_t list[LIST_MAX])
{
    size_t n = 0;

    for (const char *at = text;; at++) {
        char *end;
        const unsigned long value = strtoul(at, &end, 10);

        if (*at < '0' || *at > '9' || value == 0 || value > most ||
            n == LIST_MAX || (*end != ',' && *end != '\0'))
            fail("%s '%s' is not a list of 1 to %d numbers from 1 to %zu",
                 option, text, LIST_MAX, most);
        list[n++] = value;
        at = end;
        if (*end == '\0')
            return n;
    }
}

static cf_compute compute_parse(const char *text)
{
    static const char *const names[] = {"fp32", "fp64", "bf16"};
    static const cf_compute types[] = {CF_COMPUTE_FP32, CF_COMPUTE_FP64,
                                       CF_COMPUTE_BF16};

    for (size_t i = 0; i < LENGTH(names); i++)
        if (strcmp(text, names[i]) == 0)
            return types[i];
    fail("--compute '%s' is none of fp32, fp64, bf16", text);
}

static void help(void)
{
    puts("scripts/bench-kernels [OPTIONS]\n"
         "\n"
         "How fast every operation of the CPU backend is, beside what the "
         "processor and\n"
         "OpenBLAS reach in the same run (docs/benchmarks.md).\n"
         "\n"
         "  --op NAME        this one alone, as in linear_forward\n"
         "  --tokens A,B     rows of a call [1024,2048]\n"
         "  --threads A,B    [as OMP_NUM_THREADS, or the cores]\n"
         "  --compute TYPE   fp32, fp64, bf16 [fp32]\n"
         "  --json           for programs, instead of the table\n"
         "  --quick          tiny shapes, once: checks this, measures nothing\n"
         "  --help           this page");
}

static settings settings_parse(int argc, char **argv)
{
    static const struct option options[] = {
        {"op", required_argument, NULL, 'o'},
        {"tokens", required_argument, NULL, 't'},
        {"threads", required_argument, NULL, 'n'},
        {"compute", required_argument, NULL, 'c'},
        {"json", no_argument, NULL, 'j'},
        {"quick", no_argument, NULL, 'q'},
        {"help", no_argument, NULL, 'h'},
        {0},
    };
    settings s = {.tokens = {1024, 2048},
                  .n_tokens = 2,
                  .threads = {(size_t)omp_get_max_threads()},
                  .n_threads = 1,
                  .seconds = 1};
    int option;

    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1)
        switch (option) {
        case 'o':
            s.op = optarg;
            break;
        case 't':
            s.n_tokens = list_parse("--tokens", optarg, 1 << 20, s.tokens);
            break;
        case 'n':
            s.n_threads = list_parse("--threads", optarg, 1024, s.threads);
            break;
        case 'c':
            s.compute = compute_parse(optarg);
            break;
        case 'j':
            s.json = true;
            break;
        case 'q':
            s.quick = true;
            s.tokens[0] = 64;
            s.n_tokens = 1;
            s.seconds = 0;
            break;
        case 'h':
            help();
            exit(EXIT_SUCCESS);
        default:
            exit(2); /* getopt has said why */
        }
    if (optind < argc)
        fail("'%s' is no option", argv[optind]);
    if (s.op != NULL && !kernel_op_is_known(s.op))
        fail("--op '%s' is no operation of kernels/kernels.h", s.op);
    return s;
}

/* ---- the machine ---- */

/* As in /proc/cpuinfo; "unknown" where that says nothing. */
static const char *processor(char *buf, size_t size)
{
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[256];

    (void)snprintf(buf, size, "unknown");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL)
        if (strncmp(line, "model name", 10) == 0 && strchr(line, ':') != NULL) {
            (void)snprintf(buf, size, "%s", strchr(line, ':') + 2);
            buf[strcspn(buf, "\n")] = '\0';
            break;
        }
    if (file != NULL)
        (void)fclose(file);
    return buf;
}

static peaks peaks_measure(const settings *s, int n_threads)
{
    const size_t mib = (size_t)1 << 20;
    const size_t small = (s->quick ? 1 : SMALL_MIB) * mib;
    const size_t large = (s->quick ? 4 : LARGE_MIB) * mib;
    char *memory = malloc(large);
    peaks p = {.gflops = {0}};

    if (memory == NULL)
        fail("no memory to read");
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < large; i++)
        memory[i] = (char)i;
    for (int isa = 0; isa < PEAK_ISAS; isa++)
        if (peak_isa_is_there((peak_isa)isa))
            p.gflops[isa] =
                peak_gflops((peak_isa)isa, s->compute == CF_COMPUTE_FP64,
                            n_threads, s->quick ? 1e-4 : 0.1);
    p.small_gbs = peak_read_gbs(memory, small, n_threads);
    p.large_gbs = peak_read_gbs(memory, large, n_threads);
    free(memory);
    return p;
}

/* ---- measuring ---- */

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof(*x), compare);
    return x[n / 2];
}

typedef void (*case_run)(const case_room *room, const kernel_case *c);

static double time_of(case_run run, const case_room *room, const kernel_case *c)
{
    const double start = peak_clock_s();

    run(room, c);
    return peak_clock_s() - start;
}

/* The library's product takes turns with ours, so that a busy moment of the
 * machine is one of both. */
static result measure(case_room *room, const kernel_case *c, double seconds)
{
    const bool is_gemm = kernel_case_is_gemm(c);
    double own[REPEATS_MAX], library[REPEATS_MAX], spent = 0;
    result r = {0};

    kernel_case_prepare(room, c);
    if (seconds > 0) { /* once for nothing */
        kernel_case_run(room, c);
        if (is_gemm)
            kernel_case_run_library(room, c);
    }
    do {
        own[r.n_repeats] = time_of(kernel_case_run, room, c);
        library[r.n_repeats] =
            is_gemm ? time_of(kernel_case_run_library, room, c) : 0;
        spent += own[r.n_repeats] + library[r.n_repeats];
        r.n_repeats++;
    } while (seconds > 0 && r.n_repeats < REPEATS_MAX &&
             (r.n_repeats < REPEATS_MIN || spent < seconds));
    r.s = median(own, r.n_repeats);
    r.library_s = is_gemm ? median(library, r.n_repeats) : 0;
    return r;
}

/* ---- telling ---- */

/* The instruction set that the kernels' name ends with. */
static peak_isa isa_of(const cf_kernels *k)
{
    return strstr(k->name, "avx512") != NULL ? PEAK_AVX512 : PEAK_AVX2;
}

/* Of what the machine reaches: in registers, or reading as much memory. */
static double share_of_peak(const kernel_case *c, const result *r,
                            const peaks *p, peak_isa isa)
{
    const double small_bytes = (double)((size_t)SMALL_MIB << 20);

    if (c->flop > 0)
        return c->flop / r->s * 1e-9 / p->gflops[isa];
    return c->bytes / r->s * 1e-9 /
           (c->bytes > 4 * small_bytes ? p->large_gbs : p->small_gbs);
}

static json_t *case_json(const case_room *room, const kernel_case *c,
                         const result *r, const peaks *p, int n_threads)
{
    const double share = share_of_peak(c, r, p, isa_of(room->k));
    json_t *json =
        json_pack("{s:s, s:s, s:s, s:i, s:f, s:i}", "op", c->op, "model",
                  room->model->name, "shape", c->shape, "threads", n_threads,
                  "ms", 1e3 * r->s, "repeats", r->n_repeats);

    if (c->flop > 0)
        json_object_set_new(json, "gflop_per_s",
                            json_real(c->flop / r->s * 1e-9));
    if (c->bytes > 0)
        json_object_set_new(json, "gb_per_s",
                            json_real(c->bytes / r->s * 1e-9));
    if (c->flop > 0 || c->bytes > 0)
        json_object_set_new(json, "share_of_peak", json_real(share));
    if (r->library_s > 0)
        json_object_set_new(json, "share_of_library",
                            json_real(r->library_s / r->s));
    return json;
}

static void case_print(const case_room *room, const kernel_case *c,
                       const result *r, const peaks *p)
{
    const double share = share_of_peak(c, r, p, isa_of(room->k));

    printf("%-24s%-30s%10.3f", c->op, c->shape, 1e3 * r->s);
    if (c->flop > 0)
        printf("%9.1f GF/s %4.0f %%", c->flop / r->s * 1e-9, 100 * share);
    else if (c->bytes > 0)
        printf("%9.1f GB/s %4.0f %%", c->bytes / r->s * 1e-9, 100 * share);
    if (r->library_s > 0)
        printf(" %6.0f %%", 100 * r->library_s / r->s);
    printf("\n");
    (void)fflush(stdout);
}

static json_t *peaks_json(const peaks *p, int n_threads)
{
    json_t *json = json_pack("{s:i, s:f, s:f}", "threads", n_threads,
                             "read_16_mib_gb_per_s", p->small_gbs,
                             "read_256_mib_gb_per_s", p->large_gbs);

    for (int isa = 0; isa < PEAK_ISAS; isa++) {
        char key[32];

        (void)snprintf(key, sizeof(key), "%s_gflop_per_s",
                       peak_isa_str((peak_isa)isa));
        if (p->gflops[isa] > 0)
            json_object_set_new(json, key, json_real(p->gflops[isa]));
    }
    return json;
}

static void peaks_print(const peaks *p, const cf_kernels *k, int n_threads)
{
    char name[128];

    printf("%s; %s, %d thread%s\n", processor(name, sizeof(name)), k->name,
           n_threads, n_threads == 1 ? "" : "s");
    printf("at best:");
    for (int isa = 0; isa < PEAK_ISAS; isa++)
        if (p->gflops[isa] > 0)
            printf(" %.0f GF/s with %s,", p->gflops[isa],
                   peak_isa_str((peak_isa)isa));
    printf(" reading %.1f GB/s of %d MiB, %.1f of %d MiB\n", p->small_gbs,
           SMALL_MIB, p->large_gbs, LARGE_MIB);
}

/* ---- all of it ---- */

static void model_run(const settings *s, const cf_kernels *k,
                      const case_model *model, const peaks *p, int n_threads,
                      json_t *results)
{
    const case_sizes sizes = {
        .tokens = s->tokens,
        .n_tokens = s->n_tokens,
        .attention = s->quick ? quick_layouts : layouts,
        .n_attention = s->quick ? LENGTH(quick_layouts) : LENGTH(layouts),
    };
    case_room room;
    kernel_case *cases;
    size_t n;

    case_room_open(&room, k, model, &sizes);
    cases = kernel_cases_list(&room, &sizes, s->op, &n);
    if (!s->json)
        printf("\n%-54s%10s%14s%7s %8s\n", model->name, "ms", "rate", "of peak",
               "of OpenBLAS");
    for (size_t i = 0; i < n; i++) {
        const result r = measure(&room, &cases[i], s->seconds);

        if (s->json)
            json_array_append_new(
                results, case_json(&room, &cases[i], &r, p, n_threads));
        else
            case_print(&room, &cases[i], &r, p);
    }
    free(cases);
    case_room_close(&room);
}

static void threads_run(const settings *s, const cf_kernels *k, int n_threads,
                        json_t *at_best, json_t *results)
{
    const case_model *all = s->quick ? quick_models : models;
    const size_t n = s->quick ? LENGTH(quick_models) : LENGTH(models);
    peaks p;

    omp_set_num_threads(n_threads);
    p = peaks_measure(s, n_threads);
    if (s->json)
        json_array_append_new(at_best, peaks_json(&p, n_threads));
    else
        peaks_print(&p, k, n_threads);
    for (size_t i = 0; i < n; i++)
        model_run(s, k, &all[i], &p, n_threads, results);
}

int main(int argc, char **argv)
{
    const settings s = settings_parse(argc, argv);
    json_t *at_best = json_array(), *results = json_array(), *json;
    const char *why = "";
    char name[128];
    cf_kernels k;

    if (cf_cpu_kernels(s.compute, &k, &why) != CF_OK)
        fail("%s", why);
    for (size_t i = 0; i < s.n_threads; i++)
        threads_run(&s, &k, (int)s.threads[i], at_best, results);
    json = json_pack("{s:s, s:s, s:o, s:o}", "processor",
                     processor(name, sizeof(name)), "kernels", k.name, "peaks",
                     at_best, "results", results);
    if (s.json && (json_dumpf(json, stdout, JSON_INDENT(1)) != 0 ||
                   puts("") == EOF || fflush(stdout) != 0))
        fail("the result cannot be written");
    json_decref(json);
    return EXIT_SUCCESS;
}
