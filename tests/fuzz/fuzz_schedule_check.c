/* fuzz_schedule_check.c - plans and schedules with any damage: the checks end
 * without harm, and say of a schedule what the tests' oracle says.
 *
 * u8 lengths (up to 12), a plan's input (plan_input.h), then edits of four bytes
 * each.
 */
#include "tests/fuzz/plan_input.h"
#include "tests/lib/schedule_oracle.h"

#include <stdlib.h>
#include <string.h>

typedef enum edit_kind {
    EDIT_OP_KIND,
    EDIT_OP_CHUNK,
    EDIT_SWAP_OPS,
    EDIT_DROP_OP,
    EDIT_FIRST_OP,
    EDIT_PARAMS,
    EDIT_CHUNK,
    EDIT_PIECE,
    EDIT_COUNT,
    EDIT_KIND_COUNT
} edit_kind;

/* at: where; value: near 0, or near UINT32_MAX for the upper half of a byte. */
typedef struct plan_edit {
    edit_kind kind;
    size_t at;
    uint32_t value;
} plan_edit;

static plan_edit read_edit(fuzz_input *input)
{
    plan_edit edit;

    edit.kind = (edit_kind)(fuzz_read_u8(input) % (unsigned)EDIT_KIND_COUNT);
    edit.at = fuzz_read_u16(input);
    edit.value = (uint32_t)(int32_t)(int8_t)fuzz_read_u8(input);
    return edit;
}

static void swap_ops(cf_op *a, cf_op *b)
{
    const cf_op op = *a;

    *a = *b;
    *b = op;
}

/* One op less for the stage that has it; the others keep theirs. */
static void drop_op(cf_schedule *schedule, size_t op)
{
    size_t *first_op = schedule->first_op;
    const size_t n_stages = schedule->params.n_stages;

    memmove(&schedule->ops[op], &schedule->ops[op + 1],
            (schedule->ops_capacity - op - 1) * sizeof(cf_op));
    for (size_t s = 0; s <= n_stages; s++)
        first_op[s] -= first_op[s] > op;
}

static void edit_schedule(const plan_edit *edit, cf_schedule *schedule)
{
    const size_t n = schedule->ops_capacity;
    cf_op *op = n > 0 ? &schedule->ops[edit->at % n] : NULL;

    switch (edit->kind) {
    case EDIT_FIRST_OP:
        schedule->first_op[edit->at % (schedule->params.n_stages + 1)] =
            (size_t)(int32_t)edit->value;
        break;
    case EDIT_PARAMS:
        if (edit->at % 2 == 0)
            schedule->params.retained_chunks_max = edit->value;
        else
            schedule->params.kind = (cf_schedule_kind)edit->value;
        break;
    case EDIT_OP_KIND:
        if (op != NULL)
            op->kind = (cf_op_kind)edit->value;
        break;
    case EDIT_OP_CHUNK:
        if (op != NULL)
            op->chunk = edit->value;
        break;
    case EDIT_SWAP_OPS:
        if (op != NULL)
            swap_ops(op, &schedule->ops[(edit->at + edit->value) % n]);
        break;
    case EDIT_DROP_OP:
        if (op != NULL)
            drop_op(schedule, edit->at % n);
        break;
    default:
        break;
    }
}

/* A field of an array of structures that are all uint32_t and enums. */
static void edit_field(void *array, size_t bytes, const plan_edit *edit)
{
    const size_t n = bytes / sizeof(edit->value);

    if (n > 0)
        memcpy((char *)array + edit->at % n * sizeof(edit->value), &edit->value,
               sizeof(edit->value));
}

static void edit_plan(const plan_edit *edit, cf_chunk_plan *plan)
{
    switch (edit->kind) {
    case EDIT_CHUNK:
        edit_field(plan->chunks, plan->capacity.n_chunks * sizeof(cf_chunk),
                   edit);
        break;
    case EDIT_PIECE:
        edit_field(plan->pieces, plan->capacity.n_pieces * sizeof(cf_piece),
                   edit);
        break;
    case EDIT_COUNT:
        if (edit->at % 4 == 0)
            plan->n_groups = edit->value;
        else if (edit->at % 4 == 1)
            plan->chunk_size_tok = edit->value;
        else if (edit->at % 4 == 2)
            plan->n_pieces = (size_t)(int32_t)edit->value;
        else if (edit->value <= plan->capacity.n_chunks)
            plan->n_chunks = edit->value; /* schedules trust it */
        break;
    default:
        break;
    }
}

/* What a check that passes promises: each token is there as often as once. */
static void check_coverage(const plan_input *lengths, const cf_chunk_plan *plan)
{
    uint64_t *n_tok = fuzz_allocate(lengths->n_seqs, sizeof(*n_tok), 0);

    for (size_t i = 0; i < plan->n_pieces; i++) {
        fuzz_require(plan->pieces[i].first_tok == n_tok[plan->pieces[i].seq],
                     "pieces of a sequence are in order");
        n_tok[plan->pieces[i].seq] += plan->pieces[i].n_tok;
    }
    for (size_t i = 0; i < lengths->n_seqs; i++)
        fuzz_require(n_tok[i] == lengths->len_tok[i], "every token is there");
    free(n_tok);
}

static bool is_sound(const cf_schedule *schedule)
{
    const size_t *first_op = schedule->first_op;
    bool sound = first_op[0] == 0;

    for (size_t s = 0; s < schedule->params.n_stages; s++)
        sound = sound && first_op[s] <= first_op[s + 1] &&
                first_op[s + 1] <= schedule->ops_capacity;
    return sound;
}

static void check_verdict(const cf_chunk_plan *plan,
                          const cf_schedule *schedule)
{
    cf_op_ref where;
    const cf_status status = cf_schedule_check(plan, schedule, &where);
    const bool judged =
        status == CF_OK || status == CF_MALFORMED || status == CF_DEADLOCK;

    fuzz_require((where.rule != NULL) == (judged && status != CF_OK),
                 "what is broken has a rule");
    if (judged && !is_sound(schedule))
        fuzz_require(status == CF_MALFORMED, "lists lie behind each other");
    else if (judged) {
        const bool simulated = fuzz_simulate(plan, schedule);

        fuzz_require(status != CF_OK || simulated,
                     "what passes can be simulated");
        fuzz_require((oracle_judge(plan, schedule) == NULL) ==
                         (status == CF_OK),
                     "checker and oracle agree");
    }
}

static void check_damaged(fuzz_input *input, const plan_input *lengths,
                          cf_chunk_plan *plan, cf_schedule *schedule)
{
    char text[16];

    while (input->n > 0) {
        const plan_edit edit = read_edit(input);

        edit_schedule(&edit, schedule);
        edit_plan(&edit, plan);
    }
    if (cf_chunk_plan_check(plan, lengths->len_tok, lengths->n_seqs) == CF_OK)
        check_coverage(lengths, plan);
    check_verdict(plan, schedule);
    if (!is_sound(schedule))
        return;
    (void)cf_schedule_format(schedule, text, sizeof(text));
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    fuzz_input input = {bytes, n};
    const uint8_t seqs_max = fuzz_read_u8(&input) % 13;
    plan_input lengths = plan_input_open(&input, seqs_max);
    cf_chunk_plan plan;

    if (fuzz_plan_open(&lengths, 0, &plan) == CF_OK) {
        cf_schedule schedule = fuzz_schedule_open(&plan, lengths.params, 0);

        check_damaged(&input, &lengths, &plan, &schedule);
        fuzz_schedule_close(&schedule);
        fuzz_plan_close(&plan);
    }
    plan_input_close(&lengths);
    return 0;
}
