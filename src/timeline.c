/* timeline.c - see timeline.h: the text and the trace. */
#include "src/timeline.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum {
    COLUMNS_MAX = 64,
    LABEL_BYTES = 16
};

static char letter_of(cf_op_kind kind)
{
    switch (kind) {
    case CF_OP_FORWARD:
        return 'F';
    case CF_OP_FORWARD_KEEP:
        return 'K';
    case CF_OP_RECOMPUTE:
        return 'R';
    case CF_OP_BACKWARD:
        return 'B';
    default:
        return '\0'; /* a message */
    }
}

static void visit_stage(const cf_timeline *timeline, uint32_t stage,
                        void (*visit)(void *, const cf_timeline_op *),
                        void *context)
{
    const cf_schedule *schedule = timeline->schedule;

    for (size_t i = schedule->first_op[stage];
         i < schedule->first_op[stage + 1]; i++) {
        const cf_op op = schedule->ops[i];
        const cf_timeline_op drawn = {
            .stage = stage,
            .letter = letter_of(op.kind),
            .chunk = &timeline->plan->chunks[op.chunk],
            .index = op.chunk,
            .time = timeline->simulation->times[i],
        };

        if (drawn.letter != '\0')
            visit(context, &drawn);
    }
}

void cf_timeline_visit(const cf_timeline *timeline,
                       void (*visit)(void *, const cf_timeline_op *),
                       void *context)
{
    for (uint32_t s = 0; s < timeline->schedule->params.n_stages; s++)
        visit_stage(timeline, s, visit, context);
}

bool cf_timeline_in_group(const cf_timeline *timeline, uint32_t chunk)
{
    const cf_chunk *chunks = timeline->plan->chunks;

    return chunks[chunk].in_group > 0 ||
           (chunk + (size_t)1 < timeline->plan->n_chunks &&
            chunks[chunk + 1].group == chunks[chunk].group);
}

size_t cf_timeline_heading(const cf_timeline *timeline, char *buf, size_t size)
{
    const cf_schedule_params *params = &timeline->schedule->params;
    const char *kind = cf_schedule_kind_str(params->kind);
    const char *plural = params->n_stages > 1 ? "s" : "";
    int n;

    if (params->kind == CF_SCHEDULE_1F1B ||
        params->kind == CF_SCHEDULE_1F1B_RECOMPUTE)
        n = snprintf(buf, size, "%s, %" PRIu32 " stage%s, whole sequences",
                     kind, params->n_stages, plural);
    else
        n = snprintf(
            buf, size,
            "%s, %" PRIu32 " stage%s, ChunkSize %" PRIu32 ", K %" PRIu32, kind,
            params->n_stages, plural, timeline->plan->chunk_size_tok,
            params->retained_chunks_max);
    return n > 0 ? (size_t)n : 0;
}

static cf_status written(FILE *file)
{
    return ferror(file) ? CF_IO : CF_OK;
}

/* ---- text ---- */

typedef struct row {
    double columns_per_unit;
    char text[COLUMNS_MAX + 1];
} row;

/* An op from its first column to the one before the next: its letter and
 * number where they fit, its letter alone where not, nothing without a column
 * of its own. */
static void draw_text(void *context, const cf_timeline_op *op)
{
    row *r = context;
    size_t first = (size_t)lround(op->time.start * r->columns_per_unit);
    size_t end = (size_t)lround(op->time.end * r->columns_per_unit);
    char label[LABEL_BYTES];
    size_t n;

    if (end > COLUMNS_MAX)
        end = COLUMNS_MAX;
    if (first >= end)
        return;
    n = (size_t)snprintf(label, sizeof(label), "%c%" PRIu32, op->letter,
                         op->index);
    if (n > end - first)
        n = 1;
    memset(r->text + first, op->letter == 'B' ? '=' : '-', end - first);
    memcpy(r->text + first, label, n);
}

/* As many columns as there are units, if that is a whole number and fits. */
static size_t columns_of(double makespan)
{
    if (makespan >= 1 && makespan <= COLUMNS_MAX && floor(makespan) == makespan)
        return (size_t)makespan;
    return COLUMNS_MAX;
}

cf_status cf_timeline_write_text(FILE *file, const void *content)
{
    const cf_timeline *timeline = content;
    const double makespan = timeline->simulation->makespan;
    const size_t n_columns = columns_of(makespan);
    row r = {.columns_per_unit = makespan > 0 ? n_columns / makespan : 0};

    for (uint32_t s = 0; s < timeline->schedule->params.n_stages; s++) {
        memset(r.text, ' ', n_columns);
        r.text[n_columns] = '\0';
        visit_stage(timeline, s, draw_text, &r);
        (void)fprintf(file, "stage %-3" PRIu32 " |%s|\n", s, r.text);
    }
    (void)fprintf(file,
                  "          one column = %.6g; F forward, dropped  K kept  "
                  "R recompute  B backward\n",
                  makespan / (double)n_columns);
    return written(file);
}

/* ---- trace ---- */

static void write_event(void *context, const cf_timeline_op *op)
{
    static const char *const names[] = {"forward", "forward, kept", "recompute",
                                        "backward"};
    const char *name = names[strchr("FKRB", op->letter) - "FKRB"];

    (void)fprintf(context,
                  ",\n{\"name\": \"%c%" PRIu32 "\", \"cat\": \"%s\", \"ph\": "
                  "\"X\", \"pid\": 0, \"tid\": %" PRIu32
                  ", \"ts\": %.17g, \"dur\": %.17g, \"args\": {\"chunk\": "
                  "%" PRIu32 ", \"tokens\": %" PRIu32 ", \"prefix\": %" PRIu32
                  ", \"group\": %" PRIu32 "}}",
                  op->letter, op->index, name, op->stage, op->time.start,
                  op->time.end - op->time.start, op->index, op->chunk->n_tok,
                  op->chunk->prefix_tok, op->chunk->group);
}

cf_status cf_timeline_write_trace(FILE *file, const void *content)
{
    const cf_timeline *timeline = content;

    (void)fputs("{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n"
                "{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": 0, "
                "\"args\": {\"name\": \"chunkflow\"}}",
                file);
    for (uint32_t s = 0; s < timeline->schedule->params.n_stages; s++)
        (void)fprintf(file,
                      ",\n{\"name\": \"thread_name\", \"ph\": \"M\", \"pid\": "
                      "0, \"tid\": %" PRIu32
                      ", \"args\": {\"name\": \"stage %" PRIu32 "\"}}",
                      s, s);
    cf_timeline_visit(timeline, write_event, file);
    (void)fputs("\n]}\n", file);
    return written(file);
}
