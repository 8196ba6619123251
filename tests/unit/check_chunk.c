/* check_chunk.c - chunk plans that a reader can verify by hand. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <chunkflow/chunk.h>

#define MAX_SEQS 16

static cf_chunk_plan plan_open(cf_chunk_bound bound)
{
    cf_chunk_plan plan = {.capacity = bound};

    /* To the element, so that a sanitizer sees one too many. */
    plan.chunks = calloc(bound.n_chunks, sizeof(cf_chunk));
    plan.pieces = calloc(bound.n_pieces, sizeof(cf_piece));
    plan.scratch = calloc(bound.scratch_bytes, 1);
    ck_assert(bound.n_chunks == 0 ||
              (plan.chunks && plan.pieces && plan.scratch));
    return plan;
}

static void plan_close(cf_chunk_plan *plan)
{
    free(plan->chunks);
    free(plan->pieces);
    free(plan->scratch);
}

/* "[0 2] [1] 3:0+4 3:4+1": whole sequences in a standalone chunk; sequence,
 * first token and number of tokens of a dependent one. */
static void plan_format(const cf_chunk_plan *plan, char *text, size_t size)
{
    size_t at = 0;

    text[0] = '\0';
    for (size_t c = 0; c < plan->n_chunks; c++) {
        const cf_chunk *chunk = &plan->chunks[c];
        const cf_piece *piece = &plan->pieces[chunk->first_piece];
        const char *before = c == 0 ? "" : " ";

        if (chunk->kind == CF_CHUNK_DEPENDENT) {
            at += (size_t)snprintf(text + at, size - at, "%s%u:%u+%u", before,
                                   piece->seq, piece->first_tok, piece->n_tok);
            continue;
        }
        at += (size_t)snprintf(text + at, size - at, "%s[", before);
        for (uint32_t i = 0; i < chunk->n_pieces; i++)
            at += (size_t)snprintf(text + at, size - at, i ? " %u" : "%u",
                                   piece[i].seq);
        at += (size_t)snprintf(text + at, size - at, "]");
    }
}

static const struct {
    const char *why;
    const char *plan;
    uint32_t chunk_size_tok;
    uint32_t n_seqs;
    uint32_t len_tok[MAX_SEQS];
} plans[] = {
    {"no sequence", "", 4, 0, {0}},
    {"one short sequence", "[0]", 4, 1, {3}},
    {"exactly the chunk size is alone", "[1] [0]", 4, 2, {1, 4}},
    {"one more is a group of two", "0:0+4 0:4+1", 4, 1, {5}},
    {"twice the chunk size has no rest", "0:0+4 0:4+4", 4, 1, {8}},
    {"chunk size 1", "[1] 0:0+1 0:1+1", 1, 2, {2, 1}},
    {"the paper's toy, chunk size 2",
     "[1] [2 3] 0:0+2 0:2+2",
     2,
     4,
     {4, 2, 1, 1}},
    {"the paper's toy, chunk size 4", "[0] [1 2 3]", 4, 4, {4, 2, 1, 1}},
    {"groups in batch order",
     "[1 3] 0:0+3 0:3+1 2:0+3 2:3+2",
     3,
     4,
     {4, 2, 5, 1}},
    {"pieces in batch order", "[0 1 2]", 9, 3, {2, 3, 4}},
    {"equal lengths in batch order", "[0 1] [2 3] [4]", 4, 5, {2, 2, 2, 2, 2}},
    {"equal lengths that fill a chunk fill it",
     "[0 4] [1 2 3]",
     12,
     5,
     {6, 4, 4, 4, 1}},
    {"unless that costs a chunk",
     "[0 3] [1 4] [2 5]",
     12,
     6,
     {8, 8, 8, 4, 4, 4}},
    {"fewer than first-fit-decreasing",
     "[0 2 3] [1 4 5]",
     13,
     6,
     {5, 5, 4, 4, 4, 4}},
    {"the largest lengths",
     "[1] 0:0+2147483648 0:2147483648+2147483647",
     UINT32_C(1) << 31,
     2,
     {UINT32_MAX, UINT32_C(1) << 31}},
    {"the largest chunk size",
     "[0] [1 2]",
     UINT32_MAX,
     3,
     {UINT32_MAX, UINT32_MAX - 1, 1}},
};

START_TEST(plan_is_the_one_written_beside_it)
{
    const uint32_t *len = plans[_i].len_tok;
    size_t n = plans[_i].n_seqs;
    char text[512];
    cf_chunk_bound bound;

    ck_assert_int_eq(
        cf_chunk_plan_bound(len, n, plans[_i].chunk_size_tok, &bound), CF_OK);

    cf_chunk_plan plan = plan_open(bound);

    ck_assert_int_eq(
        cf_chunk_plan_build(len, n, plans[_i].chunk_size_tok, &plan), CF_OK);
    plan_format(&plan, text, sizeof text);
    ck_assert_msg(strcmp(text, plans[_i].plan) == 0, "%s: %s, not %s",
                  plans[_i].why, text, plans[_i].plan);
    ck_assert_int_eq(cf_chunk_plan_check(&plan, len, n), CF_OK);
    plan_close(&plan);
}
END_TEST

START_TEST(groups_prefixes_and_positions_are_numbered)
{
    static const uint32_t len[] = {7, 2, 5, 1};
    static const cf_chunk expected[] = {
        {CF_CHUNK_STANDALONE, 0, 2, 3, 0, 0, 0},
        {CF_CHUNK_DEPENDENT, 2, 1, 3, 0, 1, 0},
        {CF_CHUNK_DEPENDENT, 3, 1, 3, 3, 1, 1},
        {CF_CHUNK_DEPENDENT, 4, 1, 1, 6, 1, 2},
        {CF_CHUNK_DEPENDENT, 5, 1, 3, 0, 2, 0},
        {CF_CHUNK_DEPENDENT, 6, 1, 2, 3, 2, 1},
    };
    cf_chunk_bound bound;

    ck_assert_int_eq(cf_chunk_plan_bound(len, 4, 3, &bound), CF_OK);

    cf_chunk_plan plan = plan_open(bound);

    ck_assert_int_eq(cf_chunk_plan_build(len, 4, 3, &plan), CF_OK);
    ck_assert_uint_eq(plan.n_chunks, 6);
    ck_assert_uint_eq(plan.n_pieces, 7);
    ck_assert_uint_eq(plan.n_groups, 3);
    ck_assert_uint_eq(plan.chunk_size_tok, 3);
    ck_assert_mem_eq(plan.chunks, expected, sizeof expected);
    plan_close(&plan);
}
END_TEST

START_TEST(bound_names_what_it_refuses)
{
    static const uint32_t with_zero[] = {3, 0};
    static const uint32_t longest[] = {UINT32_MAX, UINT32_MAX};
    cf_chunk_bound bound = {1, 2, 3};

    ck_assert_int_eq(cf_chunk_plan_bound(longest, 1, 0, &bound), CF_INVALID);
    ck_assert_int_eq(cf_chunk_plan_bound(with_zero, 2, 2, &bound), CF_INVALID);
    ck_assert_int_eq(cf_chunk_plan_bound(longest, 2, 1, &bound), CF_OVERFLOW);
#if SIZE_MAX > UINT32_MAX
    ck_assert_int_eq(
        cf_chunk_plan_bound(longest, (size_t)UINT32_MAX + 1, 1, &bound),
        CF_OVERFLOW);
#endif
    ck_assert_uint_eq(bound.n_chunks, 1); /* written only on success */
    ck_assert_uint_eq(bound.n_pieces, 2);
    ck_assert_uint_eq(bound.scratch_bytes, 3);

    ck_assert_int_eq(cf_chunk_plan_bound(longest, 1, 1, &bound), CF_OK);
    ck_assert_uint_eq(bound.n_chunks, UINT32_MAX);
    ck_assert_uint_eq(bound.n_pieces, UINT32_MAX);
}
END_TEST

static const struct {
    cf_status status;
    uint32_t chunk_size_tok;
    cf_chunk_bound missing; /* below the bound */
    uint32_t len_tok[3];
} refusals[] = {
    {CF_INVALID, 0, {0, 0, 0}, {5, 1, 2}},
    {CF_INVALID, 2, {0, 0, 0}, {5, 1, 0}},
    {CF_OVERFLOW, 1, {0, 0, 0}, {UINT32_MAX, 1, 1}},
    {CF_NO_SPACE, 2, {1, 0, 0}, {5, 1, 2}},
    {CF_NO_SPACE, 2, {0, 1, 0}, {5, 1, 2}},
    {CF_NO_SPACE, 2, {0, 0, 1}, {5, 1, 2}},
};

START_TEST(a_refused_build_writes_nothing)
{
    static const uint32_t valid[] = {5, 1, 2};
    cf_chunk_bound bound;

    ck_assert_int_eq(cf_chunk_plan_bound(valid, 3, 2, &bound), CF_OK);

    cf_chunk_plan plan = plan_open(bound);

    memset(plan.chunks, 0xa5, bound.n_chunks * sizeof(cf_chunk));
    memset(plan.pieces, 0xa5, bound.n_pieces * sizeof(cf_piece));
    memset(plan.scratch, 0xa5, bound.scratch_bytes);
    plan.capacity.n_chunks -= refusals[_i].missing.n_chunks;
    plan.capacity.n_pieces -= refusals[_i].missing.n_pieces;
    plan.capacity.scratch_bytes -= refusals[_i].missing.scratch_bytes;
    plan.n_chunks = 77;

    cf_chunk_plan before = plan;

    ck_assert_int_eq(cf_chunk_plan_build(refusals[_i].len_tok, 3,
                                         refusals[_i].chunk_size_tok, &plan),
                     refusals[_i].status);
    ck_assert_uint_eq(plan.n_chunks, before.n_chunks);
    ck_assert_uint_eq(plan.n_pieces, before.n_pieces);
    ck_assert_uint_eq(plan.n_groups, before.n_groups);
    ck_assert_uint_eq(plan.chunk_size_tok, before.chunk_size_tok);
    for (size_t i = 0; i < bound.n_chunks * sizeof(cf_chunk); i++)
        ck_assert_uint_eq(((unsigned char *)plan.chunks)[i], 0xa5);
    for (size_t i = 0; i < bound.n_pieces * sizeof(cf_piece); i++)
        ck_assert_uint_eq(((unsigned char *)plan.pieces)[i], 0xa5);
    for (size_t i = 0; i < bound.scratch_bytes; i++)
        ck_assert_uint_eq(((unsigned char *)plan.scratch)[i], 0xa5);
    plan_close(&plan);
}
END_TEST

START_TEST(an_empty_plan_needs_no_arrays)
{
    cf_chunk_bound bound = {1, 1, 1};
    cf_chunk_plan plan = {0};

    ck_assert_int_eq(cf_chunk_plan_bound(NULL, 0, 8, &bound), CF_OK);
    ck_assert_uint_eq(bound.n_chunks, 0);
    ck_assert_uint_eq(bound.n_pieces, 0);
    ck_assert_uint_eq(bound.scratch_bytes, 0);
    ck_assert_int_eq(cf_chunk_plan_build(NULL, 0, 8, &plan), CF_OK);
    ck_assert_int_eq(cf_chunk_plan_check(&plan, NULL, 0), CF_OK);
}
END_TEST

START_TEST(check_names_bad_arguments)
{
    static const uint32_t len[] = {3, 4, 9};
    static const uint32_t with_zero[] = {3, 0, 9};
    cf_chunk_bound bound;

    ck_assert_int_eq(cf_chunk_plan_bound(len, 3, 4, &bound), CF_OK);

    cf_chunk_plan plan = plan_open(bound);

    ck_assert_int_eq(cf_chunk_plan_build(len, 3, 4, &plan), CF_OK);
    ck_assert_int_eq(cf_chunk_plan_check(&plan, len, 3), CF_OK);
    ck_assert_int_eq(cf_chunk_plan_check(&plan, with_zero, 3), CF_INVALID);
    ck_assert_int_eq(cf_chunk_plan_check(&plan, len, 2), CF_MALFORMED);
#if SIZE_MAX > UINT32_MAX
    ck_assert_int_eq(cf_chunk_plan_check(&plan, len, (size_t)UINT32_MAX + 1),
                     CF_OVERFLOW);
#endif
    plan.capacity.scratch_bytes = 7; /* a bit a sequence, in words of 64 */
    memset(plan.scratch, 0xa5, bound.scratch_bytes);
    ck_assert_int_eq(cf_chunk_plan_check(&plan, len, 3), CF_NO_SPACE);
    ck_assert_uint_eq(*(unsigned char *)plan.scratch, 0xa5);
    plan.capacity.scratch_bytes = bound.scratch_bytes;
    plan.capacity.n_pieces = plan.n_pieces - 1;
    ck_assert_int_eq(cf_chunk_plan_check(&plan, len, 3), CF_MALFORMED);
    plan.capacity.n_pieces = bound.n_pieces;
    plan.chunk_size_tok = 0;
    ck_assert_int_eq(cf_chunk_plan_check(&plan, len, 3), CF_INVALID);
    plan_close(&plan);
}
END_TEST

/* Each plan is consistent but for the one thing it is named for. */
static const struct {
    const char *why;
    size_t n_chunks;
    size_t n_pieces;
    cf_chunk last_chunk;
    cf_piece last_piece;
    cf_status status;
} frauds[] = {
    {"none", 3, 3, {CF_CHUNK_STANDALONE, 2, 1, 1, 0, 2, 0}, {1, 0, 1}, CF_OK},
    {"a sequence is missing", 2, 2, {0}, {0}, CF_MALFORMED},
    {"a sequence comes twice",
     4,
     4,
     {CF_CHUNK_STANDALONE, 3, 1, 1, 0, 3, 0},
     {1, 0, 1},
     CF_MALFORMED},
    {"a chunk is empty",
     4,
     3,
     {CF_CHUNK_STANDALONE, 3, 0, 0, 0, 3, 0},
     {1, 0, 1},
     CF_MALFORMED},
    {"a piece is in no chunk",
     3,
     4,
     {CF_CHUNK_STANDALONE, 2, 1, 1, 0, 2, 0},
     {1, 0, 1},
     CF_MALFORMED},
    {"a chunk runs over the pieces",
     3,
     3,
     {CF_CHUNK_STANDALONE, 2, UINT32_MAX, 1, 0, 2, 0},
     {1, 0, 1},
     CF_MALFORMED},
};

START_TEST(check_sees_through_a_consistent_fraud)
{
    static const uint32_t len[] = {2, 1, 2};
    cf_chunk_bound bound;

    ck_assert_int_eq(cf_chunk_plan_bound(len, 3, 2, &bound), CF_OK);
    bound.n_chunks = 4;
    bound.n_pieces = frauds[_i].n_pieces < 3 ? 3 : frauds[_i].n_pieces;

    cf_chunk_plan plan = plan_open(bound);

    ck_assert_int_eq(cf_chunk_plan_build(len, 3, 2, &plan), CF_OK);
    ck_assert_uint_eq(plan.n_chunks, 3); /* [0] [2] [1] */
    plan.n_chunks = frauds[_i].n_chunks;
    plan.n_pieces = frauds[_i].n_pieces;
    plan.n_groups = (uint32_t)plan.n_chunks;
    if (plan.n_chunks >= 3) {
        plan.chunks[plan.n_chunks - 1] = frauds[_i].last_chunk;
        plan.pieces[plan.n_pieces - 1] = frauds[_i].last_piece;
    }
    ck_assert_msg(cf_chunk_plan_check(&plan, len, 3) == frauds[_i].status, "%s",
                  frauds[_i].why);
    plan_close(&plan);
}
END_TEST

START_TEST(whole_sequences_stand_alone_in_batch_order)
{
    static const uint32_t len_tok[] = {4, UINT32_MAX, 1, 1};
    static const char *const wanted[] = {"", "[0]", "[0] [1]", "[0] [1] [2]",
                                         "[0] [1] [2] [3]"};
    cf_chunk_bound bound;
    cf_chunk_plan plan;
    char text[128];

    for (size_t n = 0; n <= 4; n++) {
        ck_assert_int_eq(cf_chunk_plan_bound_whole(n, &bound), CF_OK);
        ck_assert_uint_eq(bound.n_chunks, n);
        ck_assert_uint_eq(bound.n_pieces, n);
        plan = plan_open(bound);
        ck_assert_int_eq(cf_chunk_plan_build_whole(len_tok, n, &plan), CF_OK);
        plan_format(&plan, text, sizeof(text));
        ck_assert_str_eq(text, wanted[n]);
        ck_assert_int_eq(cf_chunk_plan_check(&plan, len_tok, n), CF_OK);
        ck_assert_uint_eq(plan.n_groups, n);
        for (size_t c = 0; c < n; c++) {
            ck_assert_uint_eq(plan.chunks[c].n_tok, len_tok[c]);
            ck_assert_uint_eq(plan.chunks[c].group, c);
        }
        plan_close(&plan);
    }
}
END_TEST

START_TEST(a_refused_whole_build_writes_nothing)
{
    static const uint32_t zero[] = {4, 0};
    static const uint32_t good[] = {4, 2};
    cf_chunk_bound bound;
    cf_chunk_plan plan;

    ck_assert_int_eq(cf_chunk_plan_bound_whole((size_t)1 << 40, &bound),
                     CF_OVERFLOW);
    ck_assert_int_eq(cf_chunk_plan_bound_whole(2, &bound), CF_OK);
    plan = plan_open(bound);
    plan.n_chunks = 7;
    ck_assert_int_eq(cf_chunk_plan_build_whole(zero, 2, &plan), CF_INVALID);
    plan.capacity.n_pieces = 1;
    ck_assert_int_eq(cf_chunk_plan_build_whole(good, 2, &plan), CF_NO_SPACE);
    plan.capacity.n_pieces = 2;
    plan.capacity.n_chunks = 1;
    ck_assert_int_eq(cf_chunk_plan_build_whole(good, 2, &plan), CF_NO_SPACE);
    ck_assert_uint_eq(plan.n_chunks, 7);
    ck_assert_uint_eq(plan.chunks[0].n_tok, 0);
    ck_assert_uint_eq(plan.pieces[0].n_tok, 0);
    plan_close(&plan);
}
END_TEST

START_TEST(every_status_has_a_text_of_its_own)
{
    for (int a = 0; a <= CF_STATUS_COUNT; a++) {
        ck_assert_uint_gt(strlen(cf_status_str((cf_status)a)), 0);
        for (int b = 0; b < a; b++)
            ck_assert_str_ne(cf_status_str((cf_status)a),
                             cf_status_str((cf_status)b));
    }
    ck_assert_str_eq(cf_status_str(CF_OK), "success");
    ck_assert_str_eq(cf_status_str(CF_STATUS_COUNT), "unknown status");
    ck_assert_str_eq(cf_status_str((cf_status)1000), "unknown status");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("chunk");
    TCase *build = tcase_create("cf_chunk_plan_build");
    TCase *check = tcase_create("cf_chunk_plan_check");
    TCase *status = tcase_create("cf_status_str");

    tcase_add_loop_test(build, plan_is_the_one_written_beside_it, 0,
                        sizeof plans / sizeof plans[0]);
    tcase_add_test(build, groups_prefixes_and_positions_are_numbered);
    tcase_add_test(build, bound_names_what_it_refuses);
    tcase_add_loop_test(build, a_refused_build_writes_nothing, 0,
                        sizeof refusals / sizeof refusals[0]);
    tcase_add_test(build, an_empty_plan_needs_no_arrays);
    tcase_add_test(build, whole_sequences_stand_alone_in_batch_order);
    tcase_add_test(build, a_refused_whole_build_writes_nothing);
    tcase_add_test(check, check_names_bad_arguments);
    tcase_add_loop_test(check, check_sees_through_a_consistent_fraud, 0,
                        sizeof frauds / sizeof frauds[0]);
    tcase_add_test(status, every_status_has_a_text_of_its_own);
    suite_add_tcase(suite, build);
    suite_add_tcase(suite, check);
    suite_add_tcase(suite, status);

    SRunner *runner = srunner_create(suite);

    srunner_run_all(runner, CK_NORMAL);

    int failed = srunner_ntests_failed(runner);

    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
