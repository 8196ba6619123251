/* rope_config.c - the rotary part of config.json, in both spellings:
 * rope_theta + rope_scaling, and rope_parameters.
 *
 * (1) As transformers resolves it: a theta inside the object or beside it, the
 *     original context from max_position_embeddings when it is left out.
 * (2) Fields that contradict each other, and fields that the rope type does not
 *     have, are errors: transformers would drop one of them with a warning, and
 *     the run would start from a model that nobody trained.
 */
#include "src/rope_config.h"

#include <math.h>
#include <string.h>

/* Each rope type and the fields that it may have beside the common ones. */
static const struct rope_type {
    const char *name;
    cf_rope_kind kind;
    const char *fields[8];
} ROPE_TYPES[] = {
    {"default", CF_ROPE_DEFAULT, {NULL}},
    {"linear", CF_ROPE_LINEAR, {"factor", NULL}},
    {"llama3",
     CF_ROPE_LLAMA3,
     {"factor", "low_freq_factor", "high_freq_factor",
      "original_max_position_embeddings", NULL}},
    {"yarn",
     CF_ROPE_YARN,
     {"factor", "attention_factor", "beta_fast", "beta_slow", "mscale",
      "mscale_all_dim", "truncate", "original_max_position_embeddings"}},
};

static const char *const ROPE_COMMON[] = {"rope_type", "type", "rope_theta",
                                          "partial_rotary_factor"};

static bool is_among(const char *name, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n && names[i] != NULL; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

/* A typing error in an optional field would otherwise change the angles without
 * a word. */
static void refuse_unknown_rope_fields(cf_json_reader *rope,
                                       const struct rope_type *type)
{
    const char *field;
    json_t *value;

    json_object_foreach ((json_t *)rope->object, field, value) {
        if (!is_among(field, ROPE_COMMON, 4) &&
            !is_among(field, type->fields, 8))
            cf_json_error(rope, field,
                          "is not known for rope_type \"%s\"; remove or "
                          "correct it",
                          type->name);
    }
}

static const struct rope_type *read_rope_type(cf_json_reader *rope)
{
    const char *type = NULL, *old_type = NULL;

    cf_json_read_string(rope, "rope_type", &type);
    cf_json_read_string(rope, "type", &old_type);
    if (type != NULL && old_type != NULL && strcmp(type, old_type) != 0)
        cf_json_error(rope, "type",
                      "is \"%s\", but rope_type is \"%s\"; remove one of them",
                      old_type, type);
    if (type == NULL)
        type = old_type == NULL ? "default" : old_type;
    for (size_t i = 0; i < sizeof(ROPE_TYPES) / sizeof(ROPE_TYPES[0]); i++)
        if (strcmp(type, ROPE_TYPES[i].name) == 0)
            return &ROPE_TYPES[i];
    cf_json_error(rope, "rope_type",
                  "is \"%s\", which is not supported; use default, linear, "
                  "llama3 or yarn",
                  type);
    return NULL;
}

/* A field that may stand inside the rope object, outside or in both places,
 * then with one value. */
static void read_rope_shared(cf_json_reader *top, cf_json_reader *rope,
                             const char *field, double min, double *value_p)
{
    double outside;

    cf_json_read_above(top, field, min, value_p);
    outside = *value_p;
    cf_json_read_above(rope, field, min, value_p);
    if (cf_json_get(top, field) != NULL && *value_p != outside)
        cf_json_error(rope, field,
                      "is %g, but %s beside it is %g; remove one of them",
                      *value_p, field, outside);
}

static double yarn_mscale(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

static void read_yarn(cf_json_reader *rope, double max_position,
                      cf_rope_config *config)
{
    double mscale = 0, mscale_all_dim = 0;

    /* A factor of null, unlike none, is the ratio of the two contexts. */
    config->factor = max_position / config->original_max_position;
    if (json_object_get(rope->object, "factor") == NULL)
        cf_json_require(rope, "factor");
    cf_json_read_above(rope, "factor", 0, &config->factor);

    config->beta_fast = 32;
    config->beta_slow = 1;
    cf_json_read_above(rope, "beta_fast", 0, &config->beta_fast);
    cf_json_read_above(rope, "beta_slow", 0, &config->beta_slow);
    if (config->beta_fast < config->beta_slow)
        cf_json_error(rope, "beta_fast",
                      "is %g, below beta_slow %g; correct one of them",
                      config->beta_fast, config->beta_slow);
    config->truncate = true;
    cf_json_read_bool(rope, "truncate", &config->truncate);

    config->attention_factor = yarn_mscale(config->factor, 1);
    cf_json_read_above(rope, "mscale", 0, &mscale);
    cf_json_read_above(rope, "mscale_all_dim", 0, &mscale_all_dim);
    if (mscale != 0 && mscale_all_dim != 0)
        config->attention_factor = yarn_mscale(config->factor, mscale) /
                                   yarn_mscale(config->factor, mscale_all_dim);
    cf_json_read_above(rope, "attention_factor", 0, &config->attention_factor);
}

static void read_llama3(cf_json_reader *rope, cf_rope_config *config)
{
    cf_json_require(rope, "factor");
    cf_json_read_above(rope, "factor", 0, &config->factor);
    cf_json_require(rope, "low_freq_factor");
    cf_json_read_above(rope, "low_freq_factor", 0, &config->low_freq_factor);
    cf_json_require(rope, "high_freq_factor");
    cf_json_read_above(rope, "high_freq_factor", 0, &config->high_freq_factor);
    if (config->high_freq_factor <= config->low_freq_factor)
        cf_json_error(rope, "high_freq_factor",
                      "is %g, not above low_freq_factor %g; correct one of "
                      "them",
                      config->high_freq_factor, config->low_freq_factor);
}

static void refuse_partial_rotary(cf_json_reader *reader)
{
    double part = 1;

    cf_json_read_above(reader, "partial_rotary_factor", 0, &part);
    if (part != 1)
        cf_json_error(reader, "partial_rotary_factor",
                      "is %g: heads that are rotated in part are not "
                      "supported; use a model with 1",
                      part);
}

/* One rope object, which may be NULL: plain rotary embeddings then. */
static void read_rope_object(cf_json_reader *top, const char *prefix,
                             const json_t *object, double max_position,
                             cf_rope_config *config)
{
    cf_json_reader rope = {top->path, prefix, object, top->status};
    const struct rope_type *type = read_rope_type(&rope);

    memset(config, 0, sizeof(*config));
    config->theta = 10000;
    config->factor = 1;
    config->attention_factor = 1;
    read_rope_shared(top, &rope, "rope_theta", 1, &config->theta);
    refuse_partial_rotary(&rope);
    if (top->status == CF_OK)
        top->status = rope.status;
    if (top->status != CF_OK)
        return;

    config->kind = type->kind;
    refuse_unknown_rope_fields(&rope, type);
    if (type->kind == CF_ROPE_LLAMA3 || type->kind == CF_ROPE_YARN) {
        config->original_max_position = max_position;
        read_rope_shared(top, &rope, "original_max_position_embeddings", 0,
                         &config->original_max_position);
    }
    if (type->kind == CF_ROPE_LINEAR) {
        cf_json_require(&rope, "factor");
        cf_json_read_above(&rope, "factor", 0, &config->factor);
    } else if (type->kind == CF_ROPE_LLAMA3) {
        read_llama3(&rope, config);
    } else if (type->kind == CF_ROPE_YARN) {
        read_yarn(&rope, max_position, config);
    }
    if (top->status == CF_OK)
        top->status = rope.status;
}

/* NULL when it is left out or empty. */
static const json_t *get_rope_object(cf_json_reader *reader, const char *field)
{
    const json_t *object = cf_json_get(reader, field);

    if (object != NULL && !json_is_object(object))
        cf_json_error(reader, field, "must be an object; correct it");
    return json_object_size(object) == 0 ? NULL : object;
}

static bool rope_equal(const cf_rope_config *a, const cf_rope_config *b)
{
    return a->kind == b->kind && a->theta == b->theta &&
           a->factor == b->factor && a->low_freq_factor == b->low_freq_factor &&
           a->high_freq_factor == b->high_freq_factor &&
           a->original_max_position == b->original_max_position &&
           a->beta_fast == b->beta_fast && a->beta_slow == b->beta_slow &&
           a->attention_factor == b->attention_factor &&
           a->truncate == b->truncate;
}

void cf_rope_config_read(cf_json_reader *reader, double max_position,
                         cf_rope_config *config)
{
    const json_t *scaling = get_rope_object(reader, "rope_scaling");
    const json_t *parameters = get_rope_object(reader, "rope_parameters");
    cf_rope_config other;

    cf_json_read_above(reader, "max_position_embeddings", 0, &max_position);
    refuse_partial_rotary(reader);
    if (reader->status != CF_OK)
        return;
    if (scaling == NULL) {
        read_rope_object(reader, "rope_parameters.", parameters, max_position,
                         config);
        return;
    }
    read_rope_object(reader, "rope_scaling.", scaling, max_position, config);
    if (parameters == NULL || reader->status != CF_OK)
        return;
    read_rope_object(reader, "rope_parameters.", parameters, max_position,
                     &other);
    if (reader->status == CF_OK && !rope_equal(config, &other))
        cf_json_error(reader, "rope_parameters",
                      "and rope_scaling say different things; remove one of "
                      "them");
}
