/* cost_file.c - see cost_file.h. */
#include "src/cost_file.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/json.h"
#include "src/log.h"

/* A misspelt field would cost nothing, in silence. */
static void refuse_others(cf_json_reader *reader, const char *const *fields)
{
    const char *key;
    const json_t *value;

    json_object_foreach ((json_t *)reader->object, key, value) {
        const char *const *field = fields;

        while (*field != NULL && strcmp(*field, key) != 0)
            field++;
        if (*field == NULL)
            cf_json_error(reader, key, "is not known here; correct it");
    }
}

/* The object in a field of the reader's; an empty one when it is left out. */
static const json_t *read_object(cf_json_reader *reader, const char *field)
{
    const json_t *value = cf_json_get(reader, field);

    if (value != NULL && !json_is_object(value))
        cf_json_error(reader, field, "must be an object; correct it");
    return value;
}

static void read_term(cf_json_reader *reader, const char *field, double *term)
{
    const json_t *value = cf_json_get(reader, field);
    const double number = json_number_value(value);

    if (value == NULL)
        return;
    if (!json_is_number(value) || !isfinite(number) || number < 0)
        cf_json_error(reader, field, "must be a number, 0 or more; correct it");
    *term = number;
}

/* Terms that are left out keep what the caller put there. */
static void read_terms(cf_json_reader *reader, const char *field,
                       const char *const *names, cf_cost_terms *terms)
{
    char prefix[96];
    cf_json_reader inner = {.path = reader->path,
                            .prefix = prefix,
                            .object = read_object(reader, field)};

    if (reader->status != CF_OK || inner.object == NULL)
        return;
    (void)snprintf(prefix, sizeof(prefix), "%s%s.", reader->prefix, field);
    *terms = (cf_cost_terms){0};
    refuse_others(&inner, names);
    read_term(&inner, "op", &terms->per_op);
    read_term(&inner, "token", &terms->per_tok);
    read_term(&inner, "pair", &terms->per_pair);
    reader->status = inner.status;
}

static void read_stage(cf_json_reader *reader, cf_stage_cost *stage)
{
    static const char *const fields[] = {"forward", "forward_kept", "recompute",
                                         "backward", NULL};
    static const char *const names[] = {"op", "token", "pair", NULL};
    cf_cost_terms *terms = stage->terms;

    refuse_others(reader, fields);
    cf_json_require(reader, "forward");
    cf_json_require(reader, "backward");
    read_terms(reader, "forward", names, &terms[CF_OP_FORWARD]);
    terms[CF_OP_FORWARD_KEEP] = terms[CF_OP_FORWARD];
    read_terms(reader, "forward_kept", names, &terms[CF_OP_FORWARD_KEEP]);
    terms[CF_OP_RECOMPUTE] = terms[CF_OP_FORWARD_KEEP];
    read_terms(reader, "recompute", names, &terms[CF_OP_RECOMPUTE]);
    read_terms(reader, "backward", names, &terms[CF_OP_BACKWARD]);
}

static void read_stages(cf_json_reader *reader, cf_measured_cost *cost)
{
    const json_t *list = cf_json_get(reader, "stages");

    cf_json_require(reader, "stages");
    if (reader->status == CF_OK && !json_is_array(list))
        cf_json_error(reader, "stages", "must be an array; correct it");
    if (reader->status == CF_OK && json_array_size(list) != cost->n_stages)
        cf_json_error(reader, "stages",
                      "has %zu entries for --pipeline-stages %" PRIu32
                      "; give one for each stage",
                      json_array_size(list), cost->n_stages);
    for (uint32_t s = 0; reader->status == CF_OK && s < cost->n_stages; s++) {
        char name[32], prefix[40];
        cf_json_reader inner = {.path = reader->path,
                                .prefix = prefix,
                                .object = json_array_get(list, s)};

        (void)snprintf(name, sizeof(name), "stages[%" PRIu32 "]", s);
        (void)snprintf(prefix, sizeof(prefix), "%s.", name);
        if (json_is_object(inner.object))
            read_stage(&inner, &cost->stages[s]);
        else
            cf_json_error(reader, name, "must be an object; correct it");
        if (reader->status == CF_OK)
            reader->status = inner.status;
    }
}

static void read_file(cf_json_reader *reader, cf_measured_cost *cost)
{
    static const char *const fields[] = {"stages", "message", NULL};
    static const char *const names[] = {"op", "token", NULL};

    refuse_others(reader, fields);
    read_stages(reader, cost);
    read_terms(reader, "message", names, &cost->message);
}

static void average(cf_measured_cost *cost)
{
    for (uint32_t s = 0; s < cost->n_stages; s++) {
        const cf_cost_terms *f = &cost->stages[s].terms[CF_OP_FORWARD_KEEP];
        const cf_cost_terms *b = &cost->stages[s].terms[CF_OP_BACKWARD];

        cost->sequence.per_tok += (f->per_tok + b->per_tok) / cost->n_stages;
        cost->sequence.per_pair += (f->per_pair + b->per_pair) / cost->n_stages;
    }
}

cf_status cf_measured_cost_open(const char *path, uint32_t n_stages,
                                cf_measured_cost *cost)
{
    cf_json_reader reader = {.path = path, .prefix = ""};
    json_t *object;
    cf_status status = cf_json_load(path, &object);

    *cost = (cf_measured_cost){.n_stages = n_stages};
    if (status != CF_OK)
        return status;
    cost->stages = calloc(n_stages, sizeof(*cost->stages));
    if (cost->stages == NULL) {
        cf_log_error("%s: no memory for the costs of %" PRIu32 " stages", path,
                     n_stages);
        json_decref(object);
        return CF_NO_MEMORY;
    }
    reader.object = object;
    read_file(&reader, cost);
    json_decref(object);
    if (reader.status == CF_OK)
        average(cost);
    else
        cf_measured_cost_close(cost);
    return reader.status;
}

void cf_measured_cost_close(cf_measured_cost *cost)
{
    free(cost->stages);
    *cost = (cf_measured_cost){0};
}

double cf_measured_cost_compute(const void *context, const cf_chunk_plan *plan,
                                uint32_t stage, cf_op op)
{
    const cf_measured_cost *cost = context;
    const cf_cost_terms terms = cost->stages[stage].terms[op.kind];
    const cf_cost_table table = {.forward = terms, .backward = terms};

    return cf_cost_compute(&table, plan, stage, op);
}

double cf_measured_cost_message(const void *context, const cf_chunk_plan *plan,
                                uint32_t stage, cf_op op)
{
    const cf_cost_terms *terms = &((const cf_measured_cost *)context)->message;

    (void)stage;
    return terms->per_op + terms->per_tok * plan->chunks[op.chunk].n_tok;
}
