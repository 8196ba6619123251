/* Costs: built in, measured, kept in a file, and spread over stages. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/calibration.h"
#include "src/costs_file.h"
#include "tests/lib/bench.h"
#include "tests/lib/scratch.h"
#include "tests/lib/temp_folder.h"

static const bench_setting setting = {
    .fixture = "llama-gqa-llama3",
    .compute = CF_COMPUTE_FP32,
    .policy = CF_RECOMPUTE_SELECTIVE,
    .chunk_size_tok = 32,
    .retained_chunks_max = 1,
};

static bool terms_are_sane(const cf_cost_terms *terms)
{
    return isfinite(terms->per_op) && terms->per_op >= 0 &&
           isfinite(terms->per_tok) && terms->per_tok >= 0 &&
           isfinite(terms->per_pair) && terms->per_pair >= 0;
}

/* On a busy machine a fit of few ops may leave any one term out. */
static bool terms_cost_something(const cf_cost_terms *terms)
{
    return terms_are_sane(terms) && terms->per_op + terms->per_tok > 0;
}

static void check_same_terms(const cf_cost_terms *a, const cf_cost_terms *b)
{
    ck_assert_int_eq(memcmp(a, b, sizeof(*a)), 0);
}

static void check_same(const cf_costs *a, const cf_costs *b)
{
    check_same_terms(&a->forward, &b->forward);
    check_same_terms(&a->attention, &b->attention);
    check_same_terms(&a->forward_kv, &b->forward_kv);
    for (int i = 0; i < CF_RECOMPUTES; i++)
        check_same_terms(&a->backward[i], &b->backward[i]);
    check_same_terms(&a->head, &b->head);
    check_same_terms(&a->chunk_forward, &b->chunk_forward);
    check_same_terms(&a->chunk_backward, &b->chunk_backward);
    ck_assert_double_eq(a->update_element_s, b->update_element_s);
    ck_assert_double_eq(a->error, b->error);
}

START_TEST(stages_together_cost_what_one_stage_does)
{
    const cf_kept kept = {CF_RECOMPUTE_LAYER, _i == 1};
    bench b;
    cf_costs costs;
    cf_stage_cost whole, sum = {0};
    cf_model *m;

    bench_open(&b, &setting);
    m = &b.run.model;
    costs = cf_costs_built_in(m);
    whole = cf_costs_stage(&costs, m, kept, 0.5);
    for (uint32_t i = 0; i < m->config.n_layers; i++) {
        const cf_stage stage = {.first_layer = i,
                                .end_layer = i + 1,
                                .is_first = i == 0,
                                .is_last = i + 1 == m->config.n_layers};
        cf_stage_cost one;

        cf_model_take_stage(m, &stage);
        one = cf_costs_stage(&costs, m, kept, 0.5);
        for (int k = 0; k <= CF_OP_BACKWARD; k++) {
            sum.terms[k].per_op += one.terms[k].per_op;
            sum.terms[k].per_tok += one.terms[k].per_tok;
            sum.terms[k].per_pair += one.terms[k].per_pair;
        }
    }
    for (int k = 0; k <= CF_OP_BACKWARD; k++) {
        const cf_cost_terms *w = &whole.terms[k], *s = &sum.terms[k];

        ck_assert_double_eq_tol(w->per_op, s->per_op, 1e-9 * w->per_op);
        ck_assert_double_eq_tol(w->per_tok, s->per_tok, 1e-9 * w->per_tok);
        ck_assert_double_eq_tol(w->per_pair, s->per_pair,
                                1e-9 * w->per_pair + 1e-30);
    }
    ck_assert(whole.terms[CF_OP_FORWARD].per_tok <
              whole.terms[CF_OP_FORWARD_KEEP].per_tok);
    ck_assert_int_eq(whole.terms[CF_OP_RECOMPUTE].per_pair <= 0,
                     kept.attention);
    bench_close(&b);
}
END_TEST

START_TEST(a_calibration_measures_every_term)
{
    bench b;
    cf_costs costs;

    bench_open(&b, &setting);
    ck_assert_int_eq(cf_calibrate(&b.options, &b.run.kernels, 0.3, &costs),
                     CF_OK);
    ck_assert(costs.is_measured);
    ck_assert(terms_cost_something(&costs.forward));
    for (int i = 0; i < CF_RECOMPUTES; i++)
        ck_assert(terms_cost_something(&costs.backward[i]));
    ck_assert(terms_are_sane(&costs.attention));
    ck_assert(costs.forward.per_pair >= costs.attention.per_pair);
    ck_assert(terms_cost_something(&costs.head));
    ck_assert(costs.update_element_s > 0);
    ck_assert(isfinite(costs.error) && costs.error >= 0);
    bench_close(&b);
}
END_TEST

static const char damages[][64] = {
    "",
    "{",
    "[]",
    "{\"format\": 1}",
};

START_TEST(a_file_gives_back_what_was_written_and_refuses_damage)
{
    char *folder = temp_folder_open();
    char *path;
    cf_costs costs, found = {0};
    bool is_found = true;
    captured_log log;
    bench b;

    bench_open(&b, &setting);
    ck_assert_int_eq(setenv("XDG_CACHE_HOME", folder, 1), 0);
    costs = cf_costs_built_in(&b.run.model);
    costs.error = 0.1;
    ck_assert_int_eq(cf_costs_path(&b.run.model, &path), CF_OK);
    ck_assert_ptr_eq(strstr(path, folder), path);
    cf_costs_read(path, &b.run.model, &found, &is_found);
    ck_assert(!is_found);
    ck_assert_int_eq(cf_costs_write(path, &b.run.model, &costs), CF_OK);
    cf_costs_read(path, &b.run.model, &found, &is_found);
    ck_assert(is_found && found.is_measured);
    check_same(&found, &costs);

    /* Another layer is another key. */
    b.run.model.config.ffn++;
    captured_log_begin(&log);
    cf_costs_read(path, &b.run.model, &found, &is_found);
    captured_log_end(&log);
    ck_assert(!is_found);
    ck_assert_ptr_nonnull(strstr(log.text, "warning"));
    b.run.model.config.ffn--;

    for (size_t i = 0; i < sizeof(damages) / sizeof(damages[0]); i++) {
        FILE *file = fopen(path, "w");

        ck_assert_ptr_nonnull(file);
        ck_assert_int_ge(fputs(damages[i], file), 0);
        ck_assert_int_eq(fclose(file), 0);
        captured_log_begin(&log);
        cf_costs_read(path, &b.run.model, &found, &is_found);
        captured_log_end(&log);
        ck_assert(!is_found);
        ck_assert_ptr_nonnull(strstr(log.text, "--calibrate"));
    }
    free(path);
    bench_close(&b);
    temp_folder_close(folder);
}
END_TEST

START_TEST(without_a_home_there_is_no_place)
{
    char *path = NULL;
    bench b;

    bench_open(&b, &setting);
    ck_assert_int_eq(unsetenv("XDG_CACHE_HOME"), 0);
    ck_assert_int_eq(unsetenv("HOME"), 0);
    ck_assert_int_eq(cf_costs_path(&b.run.model, &path), CF_OK);
    ck_assert_ptr_null(path);
    ck_assert_int_eq(setenv("HOME", "/home/x", 1), 0);
    ck_assert_int_eq(cf_costs_path(&b.run.model, &path), CF_OK);
    ck_assert_ptr_eq(strstr(path, "/home/x/.cache/chunkflow/costs-"), path);
    free(path);
    bench_close(&b);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("costs");
    TCase *tcase = tcase_create("costs");
    SRunner *runner = srunner_create(suite);
    int n_failed;

    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, stages_together_cost_what_one_stage_does, 0, 2);
    tcase_add_test(tcase, a_calibration_measures_every_term);
    tcase_add_test(tcase,
                   a_file_gives_back_what_was_written_and_refuses_damage);
    tcase_add_test(tcase, without_a_home_there_is_no_place);
    suite_add_tcase(suite, tcase);
    srunner_run_all(runner, CK_NORMAL);
    n_failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return n_failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
