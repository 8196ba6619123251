/* cost_fit.c - see cost_fit.h. */
#include "src/cost_fit.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#define CLOCK_S 1e-6 /* below it errors are those of the clock */

enum {
    N_TERMS = 3,
    N_FITS = 6 /* until the weights are those of the fit */
};

/* Rows and columns of the terms that are looked for, and the right side. */
typedef struct normal {
    double matrix[N_TERMS][N_TERMS];
    double right[N_TERMS];
    size_t n;
} normal;

static void column_of(const cf_cost_sample *sample, double column[N_TERMS])
{
    column[0] = 1;
    column[1] = sample->n_tok;
    column[2] = sample->n_pairs;
}

static double dot(const double a[N_TERMS], const double b[N_TERMS])
{
    double sum = 0;

    for (size_t i = 0; i < N_TERMS; i++)
        sum += a[i] * b[i];
    return sum;
}

static void swap_rows(normal *m, size_t a, size_t b)
{
    double row[N_TERMS];
    const double right = m->right[a];

    memcpy(row, m->matrix[a], sizeof(row));
    memcpy(m->matrix[a], m->matrix[b], sizeof(row));
    memcpy(m->matrix[b], row, sizeof(row));
    m->right[a] = m->right[b];
    m->right[b] = right;
}

static size_t pivot_of(const normal *m, size_t from)
{
    size_t best = from;

    for (size_t i = from + 1; i < m->n; i++)
        if (fabs(m->matrix[i][from]) > fabs(m->matrix[best][from]))
            best = i;
    return best;
}

/* Gauss with pivots, in place; false: it is singular. */
static bool solve(normal *m)
{
    for (size_t i = 0; i < m->n; i++) {
        swap_rows(m, i, pivot_of(m, i));
        if (fabs(m->matrix[i][i]) < 1e-12)
            return false;
        for (size_t k = 0; k < m->n; k++) {
            const double factor = m->matrix[k][i] / m->matrix[i][i];

            if (k == i)
                continue;
            for (size_t j = 0; j < m->n; j++)
                m->matrix[k][j] -= factor * m->matrix[i][j];
            m->right[k] -= factor * m->right[i];
        }
    }
    for (size_t i = 0; i < m->n; i++)
        m->right[i] /= m->matrix[i][i];
    return true;
}

/* A weighted problem, its columns scaled to 1. */
typedef struct problem {
    const cf_cost_sample *samples;
    size_t n;
    double scale[N_TERMS];
    double terms[N_TERMS]; /* of the last fit, unscaled */
    bool is_first;         /* there is none: weigh by what was measured */
} problem;

static double weight_of(const problem *p, const cf_cost_sample *sample)
{
    double column[N_TERMS];
    double seconds = sample->seconds;

    column_of(sample, column);
    if (!p->is_first)
        seconds = dot(p->terms, column);
    return 1 / fmax(seconds, CLOCK_S);
}

/* The terms with a bit in `chosen`; false: there is no solution by (1). */
static bool solve_for(const problem *p, unsigned chosen, double found[N_TERMS])
{
    size_t at[N_TERMS];
    normal m = {.n = 0};

    for (size_t i = 0; i < N_TERMS; i++)
        if (chosen & 1U << i)
            at[m.n++] = i;
    for (size_t s = 0; s < p->n; s++) {
        const double w = weight_of(p, &p->samples[s]);
        double column[N_TERMS];

        column_of(&p->samples[s], column);
        for (size_t i = 0; i < m.n; i++) {
            const double x = column[at[i]] / p->scale[at[i]] * w;

            for (size_t j = 0; j < m.n; j++)
                m.matrix[i][j] += x * column[at[j]] / p->scale[at[j]];
            m.right[i] += x * p->samples[s].seconds;
        }
    }
    if (!solve(&m))
        return false;
    memset(found, 0, N_TERMS * sizeof(*found));
    for (size_t i = 0; i < m.n; i++) {
        if (m.right[i] < 0)
            return false;
        found[at[i]] = m.right[i] / p->scale[at[i]];
    }
    return true;
}

static double error_of(const problem *p, const double terms[N_TERMS])
{
    double sum = 0;

    for (size_t s = 0; s < p->n; s++) {
        double column[N_TERMS], off;

        column_of(&p->samples[s], column);
        off = dot(terms, column) - p->samples[s].seconds;
        sum += weight_of(p, &p->samples[s]) * off * off;
    }
    return sum;
}

static void fit_once(problem *p)
{
    double best[N_TERMS] = {0};
    double best_error = INFINITY;

    for (unsigned chosen = 1; chosen < 1U << N_TERMS; chosen++) {
        double found[N_TERMS];

        if (solve_for(p, chosen, found) && error_of(p, found) < best_error) {
            best_error = error_of(p, found);
            memcpy(best, found, sizeof(best));
        }
    }
    memcpy(p->terms, best, sizeof(best));
    p->is_first = false;
}

cf_cost_terms cf_cost_fit(const cf_cost_sample *samples, size_t n)
{
    problem p = {.samples = samples, .n = n, .is_first = true};

    for (size_t s = 0; s < n; s++) {
        double column[N_TERMS];

        column_of(&samples[s], column);
        for (size_t i = 0; i < N_TERMS; i++)
            p.scale[i] = fmax(p.scale[i], column[i]);
    }
    for (size_t i = 0; i < N_TERMS; i++)
        if (p.scale[i] <= 0)
            p.scale[i] = 1;
    for (int i = 0; n > 0 && i < N_FITS; i++)
        fit_once(&p);
    return (cf_cost_terms){
        .per_op = p.terms[0], .per_tok = p.terms[1], .per_pair = p.terms[2]};
}

double cf_cost_terms_s(const cf_cost_terms *terms, double n_tok, double n_pairs)
{
    return terms->per_op + terms->per_tok * n_tok + terms->per_pair * n_pairs;
}

cf_cost_terms cf_cost_terms_sum(cf_cost_terms a, cf_cost_terms b)
{
    return (cf_cost_terms){.per_op = a.per_op + b.per_op,
                           .per_tok = a.per_tok + b.per_tok,
                           .per_pair = a.per_pair + b.per_pair};
}

cf_cost_terms cf_cost_terms_times(cf_cost_terms terms, double n)
{
    return (cf_cost_terms){.per_op = n * terms.per_op,
                           .per_tok = n * terms.per_tok,
                           .per_pair = n * terms.per_pair};
}
