/* print.c - a schedule as text, into the caller's buffer.
 *
 * The one file of the room that may call snprintf.  All sizes follow its rules:
 * the length needed is returned, without the final NUL.
 */
#include <stdio.h>

#include "pipeline.h"

/* Letters of cf_op_kind, and a mark for what is none. */
static const char op_letters[] = "FKRB><{}";

static char op_letter(cf_op_kind kind)
{
    return (unsigned)kind < CF_OP_KIND_COUNT ? op_letters[(unsigned)kind] : '?';
}

static bool is_compute(cf_op_kind kind)
{
    return kind == CF_OP_FORWARD || kind == CF_OP_FORWARD_KEEP ||
           kind == CF_OP_RECOMPUTE || kind == CF_OP_BACKWARD;
}

/* Where text goes; len runs on when the buffer is full. */
struct text {
    char *buf;
    size_t size;
    size_t len;
};

static char *text_end(const struct text *text)
{
    return text->len < text->size ? text->buf + text->len : NULL;
}

static size_t text_room(const struct text *text)
{
    return text->len < text->size ? text->size - text->len : 0;
}

static void text_add(struct text *text, int n_written)
{
    text->len += n_written > 0 ? (size_t)n_written : 0;
}

size_t cf_op_format(const cf_op *op, uint32_t stage, char *buf, size_t size)
{
    int n = snprintf(buf, size, "%lu%c%lu", (unsigned long)stage,
                     op_letter(op->kind), (unsigned long)op->chunk);

    return n > 0 ? (size_t)n : 0;
}

static void format_stage(const cf_schedule *schedule, uint32_t stage,
                         struct text *text)
{
    size_t first = schedule->first_op[stage];
    size_t end = schedule->first_op[stage + 1];

    text_add(text, snprintf(text_end(text), text_room(text),
                            "stage %lu:", (unsigned long)stage));
    for (size_t i = first; i < end; i++) {
        const cf_op *op = &schedule->ops[i];

        if (is_compute(op->kind))
            text_add(text,
                     snprintf(text_end(text), text_room(text), " %c%lu",
                              op_letter(op->kind), (unsigned long)op->chunk));
    }
    text_add(text, snprintf(text_end(text), text_room(text), "\n"));
}

size_t cf_schedule_format(const cf_schedule *schedule, char *buf, size_t size)
{
    struct text text = {.buf = buf, .size = size};

    for (uint32_t stage = 0; stage < schedule->params.n_stages; stage++)
        format_stage(schedule, stage, &text);
    return text.len;
}
