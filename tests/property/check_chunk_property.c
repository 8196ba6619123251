/* check_chunk_property.c - what holds for every chunk plan.
 *
 * Small scope first: every case up to 5 sequences of 1 to 9 tokens and chunk
 * size 1 to 5, and every multiset of up to 8 short sequences for small chunk
 * sizes.  Then random ones; CF_TEST_SEED repeats a run.
 *
 * Plans are judged by an oracle that shares nothing with the library: it counts
 * how often each token of each sequence is in the plan.  cf_chunk_plan_check
 * must agree with it, on what build makes and on every damaged copy.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <chunkflow/chunk.h>

#define RANDOM_CASES  3000
#define RANDOM_SEQS   400
#define EXACT_SEQS    8
#define MILLION       1000000
#define SMALL_SEQS    5
#define SMALL_LEN     9
#define SMALL_CHUNK   5
#define MULTISET_SIZE 10

typedef struct problem {
    const uint32_t *len_tok;
    size_t n;
    uint32_t chunk_size_tok;
} problem;

static uint64_t random_state;
static uint64_t seed;

/* xorshift64*, after Vigna. */
static uint32_t random_below(uint32_t limit)
{
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return (uint32_t)(random_state * UINT64_C(2685821657736338717) >> 32) %
           limit;
}

static void *get(size_t n, size_t size)
{
    void *p = calloc(n + 1, size);

    if (p == NULL)
        ck_abort_msg("out of memory");
    return p;
}

static void say(const problem *in, const char *what)
{
    fprintf(stderr, "%s; seed %llu, chunk size %u, %zu lengths:", what,
            (unsigned long long)seed, in->chunk_size_tok, in->n);
    for (size_t i = 0; i < in->n && i < 100; i++)
        fprintf(stderr, " %u", in->len_tok[i]);
    fprintf(stderr, "\n");
}

/* ck_assert() writes to a file each time, which is too slow for millions. */
static void require(int holds, const problem *in, const char *what)
{
    if (!holds) {
        say(in, what);
        ck_abort_msg("%s", what);
    }
}

static cf_chunk_plan plan_open(const problem *in)
{
    cf_chunk_plan plan = {0};
    cf_status status = cf_chunk_plan_bound(in->len_tok, in->n,
                                           in->chunk_size_tok, &plan.capacity);

    require(status == CF_OK, in, "no bound");
    plan.chunks = get(plan.capacity.n_chunks, sizeof(cf_chunk));
    plan.pieces = get(plan.capacity.n_pieces, sizeof(cf_piece));
    /* To the byte, so that a sanitizer sees one too many. */
    plan.scratch = malloc(plan.capacity.scratch_bytes);
    return plan;
}

static void plan_close(cf_chunk_plan *plan)
{
    free(plan->chunks);
    free(plan->pieces);
    free(plan->scratch);
}

/* --- the oracle ------------------------------------------------------- */

/* Are the pieces of all chunks, in order, all pieces? */
static const char *judge_ranges(const cf_chunk_plan *plan)
{
    uint64_t next = 0;

    for (size_t c = 0; c < plan->n_chunks; c++) {
        if (plan->chunks[c].first_piece != next)
            return "a piece is skipped or used twice";
        if (plan->chunks[c].n_pieces == 0)
            return "an empty chunk";
        next += plan->chunks[c].n_pieces;
        if (next > plan->n_pieces)
            return "a chunk runs over the pieces";
    }
    return next == plan->n_pieces ? NULL : "pieces are left over";
}

/* Is every token of every sequence in some piece, exactly once? */
static const char *judge_tokens(const cf_chunk_plan *plan, const problem *in)
{
    uint64_t total = 0;
    uint64_t *first = get(in->n, sizeof *first);
    const char *wrong = NULL;

    for (size_t s = 0; s < in->n; s++) {
        first[s] = total;
        total += in->len_tok[s];
    }

    unsigned char *times = get(total, 1);

    for (size_t p = 0; p < plan->n_pieces && wrong == NULL; p++) {
        const cf_piece *piece = &plan->pieces[p];

        if (piece->seq >= in->n || (uint64_t)piece->first_tok + piece->n_tok >
                                       in->len_tok[piece->seq]) {
            wrong = "a piece outside its sequence";
            break;
        }
        for (uint32_t t = 0; t < piece->n_tok; t++)
            if (times[first[piece->seq] + piece->first_tok + t]++ != 0)
                wrong = "a token twice";
    }
    for (uint64_t t = 0; t < total && wrong == NULL; t++)
        if (times[t] == 0)
            wrong = "a token is missing";
    free(first);
    free(times);
    return wrong;
}

/* Kind, capacity and inner order of one chunk; its pieces are in range. */
static const char *judge_chunk(const cf_chunk_plan *plan, const problem *in,
                               const cf_chunk *chunk)
{
    const cf_piece *piece = &plan->pieces[chunk->first_piece];
    uint32_t size = plan->chunk_size_tok;
    uint32_t len = in->len_tok[piece->seq];
    uint64_t n_tok = 0;

    for (uint32_t i = 0; i < chunk->n_pieces; i++) {
        n_tok += piece[i].n_tok;
        if (piece[i].n_tok == 0)
            return "an empty piece";
        if (i > 0 && piece[i].seq <= piece[i - 1].seq)
            return "pieces out of batch order";
        if (in->len_tok[piece[i].seq] > size && chunk->n_pieces > 1)
            return "a long sequence shares a chunk";
    }
    if (n_tok != chunk->n_tok || n_tok > size)
        return "wrong sum, or over capacity";
    if (chunk->kind != (len > size ? CF_CHUNK_DEPENDENT : CF_CHUNK_STANDALONE))
        return "wrong kind";
    if (chunk->prefix_tok != piece->first_tok)
        return "wrong prefix"; /* a whole sequence has none */
    if (len > size && piece->first_tok % size != 0)
        return "a cut not at a multiple of the chunk size";
    if (n_tok < size && piece->first_tok + piece->n_tok != len &&
        chunk->kind == CF_CHUNK_DEPENDENT)
        return "an inner chunk is not full";
    return NULL;
}

/* Order of the chunks, and the numbers of groups and positions. */
static const char *judge_groups(const cf_chunk_plan *plan)
{
    uint64_t group = 0;
    uint32_t in_group = 0;

    for (size_t c = 0; c < plan->n_chunks; c++) {
        const cf_chunk *chunk = &plan->chunks[c];
        const cf_chunk *before = c > 0 ? chunk - 1 : NULL;
        uint32_t seq = plan->pieces[chunk->first_piece].seq;

        if (before != NULL && before->kind == CF_CHUNK_DEPENDENT) {
            const cf_piece *last = &plan->pieces[before->first_piece];

            if (chunk->kind == CF_CHUNK_STANDALONE || seq < last->seq)
                return "chunks out of order";
            in_group = seq == last->seq ? in_group + 1 : 0;
            if (seq == last->seq &&
                chunk->prefix_tok != last->first_tok + last->n_tok)
                return "a group out of order";
        }
        group += before != NULL && in_group == 0;
        if (chunk->group != group || chunk->in_group != in_group)
            return "wrong group or position";
    }
    group += plan->n_chunks > 0;
    return plan->n_groups == group ? NULL : "wrong number of groups";
}

/* NULL when the plan is legal, else what is wrong with it. */
static const char *judge(const cf_chunk_plan *plan, const problem *in)
{
    const char *wrong = NULL;

    if (plan->chunk_size_tok == 0)
        return "chunk size 0";
    if (plan->n_chunks > plan->capacity.n_chunks ||
        plan->n_pieces > plan->capacity.n_pieces)
        return "over the arrays";
    wrong = judge_ranges(plan);
    wrong = wrong != NULL ? wrong : judge_tokens(plan, in);
    for (size_t c = 0; c < plan->n_chunks && wrong == NULL; c++)
        wrong = judge_chunk(plan, in, &plan->chunks[c]);
    return wrong != NULL ? wrong : judge_groups(plan);
}

/* --- numbers of chunks, found the slow way ---------------------------- */

static size_t count_standalone(const cf_chunk_plan *plan)
{
    size_t n = 0;

    while (n < plan->n_chunks && plan->chunks[n].kind == CF_CHUNK_STANDALONE)
        n++;
    return n;
}

/* The fewest chunks for up to EXACT_SEQS short sequences: for every subset, the
 * fewest full chunks and the least in the last one, over every order. */
static size_t fewest_chunks(const problem *in)
{
    uint32_t full[1 << EXACT_SEQS] = {0};
    uint32_t last[1 << EXACT_SEQS] = {0};
    uint32_t len[EXACT_SEQS];
    size_t n = 0;

    for (size_t s = 0; s < in->n; s++)
        if (in->len_tok[s] <= in->chunk_size_tok)
            len[n++] = in->len_tok[s];

    for (size_t set = 1; set < (size_t)1 << n; set++) {
        full[set] = UINT32_MAX;
        for (size_t s = 0; s < n; s++) {
            size_t rest = set & ~((size_t)1 << s);

            if (rest == set)
                continue;

            int fits = rest != 0 && last[rest] + len[s] <= in->chunk_size_tok;
            uint32_t f = full[rest] + (rest != 0 && !fits);
            uint32_t l = fits ? last[rest] + len[s] : len[s];

            if (f < full[set] || (f == full[set] && l < last[set])) {
                full[set] = f;
                last[set] = l;
            }
        }
    }
    return n == 0 ? 0 : full[((size_t)1 << n) - 1] + 1;
}

static int longer_first(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a;
    uint32_t y = *(const uint32_t *)b;

    return (x < y) - (x > y);
}

/* Bins of first-fit-decreasing as the textbook has it. */
static size_t first_fit_decreasing(const problem *in)
{
    uint32_t *len = get(in->n, sizeof *len);
    uint32_t *used = get(in->n, sizeof *used);
    size_t n_bins = 0;

    if (in->n > 0)
        memcpy(len, in->len_tok, in->n * sizeof *len);
    qsort(len, in->n, sizeof *len, longer_first);
    for (size_t i = 0; i < in->n; i++) {
        size_t b = 0;

        if (len[i] > in->chunk_size_tok)
            continue;
        while (used[b] + len[i] > in->chunk_size_tok)
            b++;
        used[b] += len[i];
        n_bins = b < n_bins ? n_bins : b + 1;
    }
    free(len);
    free(used);
    return n_bins;
}

/* --- the properties --------------------------------------------------- */

static int check_passes(const cf_chunk_plan *plan, const problem *in)
{
    return cf_chunk_plan_check(plan, in->len_tok, in->n) == CF_OK;
}

static void plan_build(const problem *in, cf_chunk_plan *plan)
{
    cf_status status =
        cf_chunk_plan_build(in->len_tok, in->n, in->chunk_size_tok, plan);

    require(status == CF_OK, in, "no plan");
}

static int same_plan(const cf_chunk_plan *a, const cf_chunk_plan *b)
{
    return a->n_chunks == b->n_chunks && a->n_pieces == b->n_pieces &&
           a->n_groups == b->n_groups &&
           memcmp(a->chunks, b->chunks, a->n_chunks * sizeof(cf_chunk)) == 0 &&
           memcmp(a->pieces, b->pieces, a->n_pieces * sizeof(cf_piece)) == 0;
}

/* Builds, judges, checks, builds again.  Returns the standalone chunks. */
static size_t hold(const problem *in)
{
    cf_chunk_plan plan = plan_open(in);
    cf_chunk_plan again = plan_open(in);

    plan_build(in, &plan);

    const char *wrong = judge(&plan, in);
    size_t n = count_standalone(&plan);

    require(wrong == NULL, in, wrong);
    require(plan.chunk_size_tok == in->chunk_size_tok, in, "chunk size lost");
    require(check_passes(&plan, in), in, "refused by check");

    if (again.scratch != NULL)
        memset(again.scratch, 0xa5, again.capacity.scratch_bytes);
    plan_build(in, &again);
    require(same_plan(&plan, &again), in, "another plan the second time");
    plan_close(&plan);
    plan_close(&again);
    return n;
}

static void hold_fewest(const problem *in)
{
    require(hold(in) == fewest_chunks(in), in, "not the fewest chunks");
}

START_TEST(every_small_case_is_legal_and_uses_the_fewest_chunks)
{
    uint32_t len[SMALL_SEQS];
    problem in = {len, 0, (uint32_t)_i};

    for (in.n = 0; in.n <= SMALL_SEQS; in.n++) {
        size_t at;

        for (size_t i = 0; i < in.n; i++)
            len[i] = 1;
        do { /* count with digits 1 .. SMALL_LEN */
            hold_fewest(&in);
            for (at = 0; at < in.n && len[at] == SMALL_LEN; at++)
                len[at] = 1;
            if (at < in.n)
                len[at]++;
        } while (at < in.n);
    }
}
END_TEST

START_TEST(every_small_multiset_of_eight_uses_the_fewest_chunks)
{
    uint32_t len[EXACT_SEQS];
    uint32_t size = (uint32_t)_i;
    problem in = {len, EXACT_SEQS, size};
    size_t better = 0;
    size_t at;

    for (size_t i = 0; i < in.n; i++)
        len[i] = 1;
    do { /* count with digits that never rise */
        cf_chunk_plan plan = plan_open(&in);

        plan_build(&in, &plan);

        size_t n = count_standalone(&plan);

        require(n == fewest_chunks(&in), &in, "not the fewest chunks");
        better += n < first_fit_decreasing(&in);
        plan_close(&plan);

        for (at = 0; at < in.n && len[at] == size; at++)
            continue;
        if (at < in.n) {
            len[at]++;
            for (size_t i = 0; i < at; i++)
                len[i] = len[at];
        }
    } while (at < in.n);
    /* Where first-fit-decreasing is always as good the test proves little. */
    require((better > 0) == (size >= 7), &in, "no case needs the search");
}
END_TEST

/* Lengths of many shapes: any, few distinct, fractions of the chunk, nearly
 * full, long tailed. */
static void draw_lengths(uint32_t *len, size_t n, uint32_t size)
{
    uint32_t shape = random_below(6);

    for (size_t i = 0; i < n; i++) {
        uint32_t some = 1 + random_below(size);

        switch (shape) {
        case 0:
            len[i] = some;
            break;
        case 1:
            len[i] = 1 + random_below(3) * (size / 3);
            break;
        case 2:
            len[i] = size / (1 + random_below(8));
            break;
        case 3:
            len[i] = size / 4 + 1 + random_below(size / 4 + 1);
            break;
        case 4:
            len[i] = random_below(10) == 0 ? some * 5 : 1 + some / 10;
            break;
        default:
            len[i] = random_below(20) == 0 ? size * (1 + random_below(4))
                                           : size - random_below(size / 8 + 1);
            break;
        }
        len[i] += len[i] == 0;
    }
}

START_TEST(every_random_case_is_legal_and_as_good_as_first_fit_decreasing)
{
    static uint32_t len[RANDOM_SEQS];
    size_t better = 0;

    for (int i = 0; i < RANDOM_CASES; i++) {
        problem in = {len, random_below(RANDOM_SEQS + 1), 0};

        in.chunk_size_tok = 1 + random_below(1u << random_below(13));
        draw_lengths(len, in.n, in.chunk_size_tok);

        size_t n = hold(&in);
        size_t ffd = first_fit_decreasing(&in);

        require(n <= ffd, &in, "worse than first-fit-decreasing");
        better += n < ffd;
    }
    printf("%zu of %d random cases better than first-fit-decreasing\n", better,
           RANDOM_CASES);
}
END_TEST

START_TEST(random_cases_of_eight_use_the_fewest_chunks)
{
    uint32_t len[EXACT_SEQS];

    for (int i = 0; i < RANDOM_CASES; i++) {
        problem in = {len, random_below(EXACT_SEQS + 1), 0};

        in.chunk_size_tok = 1 + random_below(1u << random_below(8));
        draw_lengths(len, in.n, in.chunk_size_tok);
        hold_fewest(&in);
    }
}
END_TEST

START_TEST(equal_lengths_that_fill_chunks_fill_them)
{
    static uint32_t len[1024];
    const uint32_t size = 240; /* 20 divisors */

    for (int i = 0; i < 500; i++) {
        problem in = {len, 0, size};

        for (uint32_t parts = 1; parts <= size; parts++)
            if (size % parts == 0 && random_below(3) == 0)
                for (uint32_t k = 0; k < parts; k++)
                    len[in.n++] = size / parts;
        for (size_t s = in.n; s > 1; s--) { /* in any order */
            size_t with = random_below((uint32_t)s);
            uint32_t was = len[s - 1];

            len[s - 1] = len[with];
            len[with] = was;
        }

        cf_chunk_plan plan = plan_open(&in);
        uint64_t tokens = 0;

        for (size_t s = 0; s < in.n; s++)
            tokens += len[s];
        plan_build(&in, &plan);
        require(plan.n_chunks == tokens / size, &in, "chunks not full");
        for (size_t c = 0; c < plan.n_chunks; c++) {
            const cf_piece *piece = &plan.pieces[plan.chunks[c].first_piece];

            require(plan.chunks[c].n_tok == size &&
                        plan.chunks[c].n_pieces == size / piece->n_tok,
                    &in, "not filled by equal lengths");
        }
        plan_close(&plan);
    }
}
END_TEST

/* 8 + 4 fits a chunk of 12, and so does 4 + 4 + 4, which leaves the 8s alone.
 * The full ones make it too large for the search to set right. */
START_TEST(filling_chunks_with_equal_lengths_never_costs_a_chunk)
{
    static uint32_t len[3006];
    problem in = {len, 3006, 12};

    for (size_t s = 0; s < in.n; s++)
        len[s] = s < 3000 ? 12 : s % 2 == 0 ? 8 : 4;
    require(hold(&in) == 3003, &in, "a chunk too many");
}
END_TEST

/* --- damage ----------------------------------------------------------- */

/* Damage one 32-bit field in every way we can think of: check must report it
 * and the oracle must agree that it is damage. */
static void damage(const problem *in, cf_chunk_plan *plan, uint32_t *field,
                   const char *name)
{
    const uint32_t was = *field;
    const uint32_t values[] = {was + 1, was - 1,    was + 2,  was ^ 1, 0,
                               1,       UINT32_MAX, 1u << 31, was * 2};

    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        if (values[i] == was)
            continue;
        *field = values[i];
        require(judge(plan, in) != NULL, in, name);
        require(!check_passes(plan, in), in, name);
    }
    *field = was;
}

static void damage_size(const problem *in, cf_chunk_plan *plan, size_t *field,
                        const char *name)
{
    const size_t was = *field;
    const size_t values[] = {was + 1, was - 1, 0, SIZE_MAX,
                             plan->capacity.n_pieces};

    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        if (values[i] == was)
            continue;
        *field = values[i];
        require(!check_passes(plan, in), in, name);
    }
    *field = was;
}

/* A plan may be legal for another chunk size too, or with two entries swapped:
 * there the oracle decides. */
static void agree(const problem *in, const cf_chunk_plan *plan,
                  const char *name)
{
    require((judge(plan, in) == NULL) == check_passes(plan, in), in, name);
}

static void damage_swaps(const problem *in, cf_chunk_plan *plan)
{
    for (size_t c = 1; c < plan->n_chunks; c++) {
        cf_chunk was = plan->chunks[c];

        plan->chunks[c] = plan->chunks[c - 1];
        plan->chunks[c - 1] = was;
        agree(in, plan, "two chunks swapped");
        plan->chunks[c - 1] = plan->chunks[c];
        agree(in, plan, "a chunk doubled over its neighbour");
        plan->chunks[c] = was;
    }
    for (size_t p = 1; p < plan->n_pieces; p++) {
        cf_piece was = plan->pieces[p];

        plan->pieces[p] = plan->pieces[p - 1];
        plan->pieces[p - 1] = was;
        agree(in, plan, "two pieces swapped");
        plan->pieces[p - 1] = plan->pieces[p];
        plan->pieces[p] = was;
    }
}

static void damage_all(const problem *in)
{
    cf_chunk_plan plan = plan_open(in);

    plan_build(in, &plan);
    for (size_t c = 0; c < plan.n_chunks; c++) {
        cf_chunk *chunk = &plan.chunks[c];
        cf_chunk_kind kind = chunk->kind;

        chunk->kind = kind == CF_CHUNK_STANDALONE ? CF_CHUNK_DEPENDENT
                                                  : CF_CHUNK_STANDALONE;
        require(judge(&plan, in) != NULL, in, "chunk.kind");
        require(!check_passes(&plan, in), in, "chunk.kind");
        chunk->kind = kind;
        damage(in, &plan, &chunk->first_piece, "chunk.first_piece");
        damage(in, &plan, &chunk->n_pieces, "chunk.n_pieces");
        damage(in, &plan, &chunk->n_tok, "chunk.n_tok");
        damage(in, &plan, &chunk->prefix_tok, "chunk.prefix_tok");
        damage(in, &plan, &chunk->group, "chunk.group");
        damage(in, &plan, &chunk->in_group, "chunk.in_group");
    }
    for (size_t p = 0; p < plan.n_pieces; p++) {
        damage(in, &plan, &plan.pieces[p].seq, "piece.seq");
        damage(in, &plan, &plan.pieces[p].first_tok, "piece.first_tok");
        damage(in, &plan, &plan.pieces[p].n_tok, "piece.n_tok");
    }
    damage(in, &plan, &plan.n_groups, "plan.n_groups");
    damage_size(in, &plan, &plan.n_chunks, "plan.n_chunks");
    damage_size(in, &plan, &plan.n_pieces, "plan.n_pieces");
    damage_swaps(in, &plan);
    for (uint32_t size = 0; size < 2 * in->chunk_size_tok + 2; size++) {
        plan.chunk_size_tok = size;
        agree(in, &plan, "plan.chunk_size_tok");
    }
    plan_close(&plan);
}

START_TEST(check_reports_every_damage_of_every_small_plan)
{
    uint32_t len[3];
    problem in = {len, 3, 0};

    for (in.chunk_size_tok = 1; in.chunk_size_tok <= 4; in.chunk_size_tok++)
        for (uint32_t code = 0; code < 7 * 7 * 7; code++) {
            len[0] = 1 + code % 7;
            len[1] = 1 + code / 7 % 7;
            len[2] = 1 + code / 49;
            damage_all(&in);
        }
}
END_TEST

START_TEST(check_reports_every_damage_of_random_plans)
{
    uint32_t len[24];

    for (int i = 0; i < RANDOM_CASES / 8; i++) {
        problem in = {len, random_below(25), 0};

        in.chunk_size_tok = 1 + random_below(20);
        draw_lengths(len, in.n, in.chunk_size_tok);
        damage_all(&in);
    }
}
END_TEST

/* The time limit of the test case fails anything quadratic. */
START_TEST(a_million_sequences_take_no_quadratic_time)
{
    static const uint32_t sizes[] = {1, 2048, 1u << 20};
    uint32_t *len = get(MILLION, sizeof *len);
    problem in = {len, MILLION, sizes[_i]};

    for (int shape = 0; shape < 2; shape++) {
        for (size_t s = 0; s < in.n; s++)
            len[s] = shape == 0 ? 1 + random_below(in.chunk_size_tok)
                                : in.chunk_size_tok / (1 + random_below(5)) + 1;

        cf_chunk_plan plan = plan_open(&in);

        plan_build(&in, &plan);
        require(check_passes(&plan, &in), &in, "refused by check");
        plan_close(&plan);
    }
    free(len);
}
END_TEST

static void begin(void)
{
    const char *text = getenv("CF_TEST_SEED");

    seed = text != NULL ? strtoull(text, NULL, 10) : 20250303;
    random_state = seed * 2 + 1; /* never 0 */
}

int main(void)
{
    Suite *suite = suite_create("chunk_property");
    TCase *small = tcase_create("small scope");
    TCase *random = tcase_create("random");
    TCase *check = tcase_create("damage");
    TCase *large = tcase_create("large");

    begin();
    printf("CF_TEST_SEED=%llu\n", (unsigned long long)seed);

    tcase_set_timeout(small, 300);
    tcase_add_loop_test(small,
                        every_small_case_is_legal_and_uses_the_fewest_chunks, 1,
                        SMALL_CHUNK + 1);
    tcase_add_loop_test(small,
                        every_small_multiset_of_eight_uses_the_fewest_chunks, 1,
                        MULTISET_SIZE + 1);
    tcase_set_timeout(random, 300);
    tcase_add_test(
        random, every_random_case_is_legal_and_as_good_as_first_fit_decreasing);
    tcase_add_test(random, random_cases_of_eight_use_the_fewest_chunks);
    tcase_add_test(random, equal_lengths_that_fill_chunks_fill_them);
    tcase_add_test(random,
                   filling_chunks_with_equal_lengths_never_costs_a_chunk);
    tcase_set_timeout(check, 300);
    tcase_add_test(check, check_reports_every_damage_of_every_small_plan);
    tcase_add_test(check, check_reports_every_damage_of_random_plans);
    tcase_set_timeout(large, 60);
    tcase_add_loop_test(large, a_million_sequences_take_no_quadratic_time, 0,
                        3);
    suite_add_tcase(suite, small);
    suite_add_tcase(suite, random);
    suite_add_tcase(suite, check);
    suite_add_tcase(suite, large);

    SRunner *runner = srunner_create(suite);

    srunner_run_all(runner, CK_NORMAL);

    int failed = srunner_ntests_failed(runner);

    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
