/* freeze.c - --freeze LIST: which tensors of the table are not trained.
 *
 *     list = item {"," item}
 *     item = a part | "layers:" A ["-" B]
 *
 * (1) Items add up: a tensor that any of them names is frozen.
 * (2) An item that names no tensor of the model is an error, so that nobody
 *     trains what they believe to be frozen.
 */
#include <stdio.h>
#include <string.h>

#include "src/log.h"
#include "src/model.h"

/* One item: tensors of a part, or of a range of layers. */
typedef struct selection {
    unsigned parts; /* 0: by layer */
    uint32_t first_layer, last_layer;
} selection;

static const struct {
    const char *name;
    cf_part part;
} parts[] = {
    {"embeddings", CF_PART_EMBEDDINGS},
    {"head", CF_PART_HEAD},
    {"norms", CF_PART_NORMS},
    {"attention", CF_PART_ATTENTION},
    {"mlp", CF_PART_MLP},
    {"biases", CF_PART_BIASES},
};

static const char layers_prefix[] = "layers:";

/* A whole number without sign, at *text, which moves behind it. */
static bool number_parse(const char **text, uint32_t *value_p)
{
    uint64_t value = 0;
    const char *at = *text;

    for (; *at >= '0' && *at <= '9' && value <= UINT32_MAX; at++)
        value = 10 * value + (uint64_t)(*at - '0');
    if (at == *text || value > UINT32_MAX)
        return false;
    *text = at;
    *value_p = (uint32_t)value;
    return true;
}

/* "A" or "A-B". */
static bool layers_parse(const char *text, selection *s)
{
    if (!number_parse(&text, &s->first_layer))
        return false;
    s->last_layer = s->first_layer;
    if (*text == '-') {
        text++;
        if (!number_parse(&text, &s->last_layer))
            return false;
    }
    return *text == '\0';
}

static cf_status item_parse(const cf_model *model, const char *item,
                            selection *s)
{
    const size_t n_prefix = sizeof(layers_prefix) - 1;
    const uint32_t n_layers = model->config.n_layers;

    *s = (selection){0};
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        if (strcmp(item, parts[i].name) == 0)
            s->parts = parts[i].part;
    if (s->parts != 0)
        return CF_OK;
    if (strncmp(item, layers_prefix, n_prefix) != 0 ||
        !layers_parse(item + n_prefix, s)) {
        cf_log_error("--freeze: '%s' is not one of embeddings, head, norms, "
                     "attention, mlp, biases, layers:A, layers:A-B",
                     item);
        return CF_INVALID;
    }
    if (s->first_layer <= s->last_layer && s->last_layer < n_layers)
        return CF_OK;
    cf_log_error("--freeze: '%s': the model has layers 0 to %u, and a range "
                 "goes upwards",
                 item, (unsigned)n_layers - 1);
    return CF_INVALID;
}

static bool is_selected(const cf_param *p, const selection *s)
{
    if (s->parts != 0)
        return (p->parts & s->parts) != 0;
    return p->layer >= s->first_layer && p->layer <= s->last_layer;
}

static cf_status item_freeze(cf_model *model, const char *item)
{
    bool found = false;
    selection s;
    cf_status status = item_parse(model, item, &s);

    if (status != CF_OK)
        return status;
    for (size_t i = 0; i < model->n_params; i++)
        if (is_selected(&model->params[i], &s)) {
            model->params[i].trained = false;
            found = true;
        }
    if (found)
        return CF_OK;
    cf_log_error("--freeze: the model has no %s", item);
    return CF_INVALID;
}

cf_status cf_model_freeze(cf_model *model, const char *list)
{
    char item[64]; /* cut off in a message, and then no item we know */
    size_t n;

    for (const char *at = list;; at += n + 1) {
        cf_status status;

        n = strcspn(at, ",");
        (void)snprintf(item, sizeof(item), "%.*s", (int)(n < 64 ? n : 64), at);
        status = item_freeze(model, item);
        if (status != CF_OK)
            return status;
        if (at[n] == '\0')
            break;
    }
    cf_model_lay_out_trained(model);
    if (model->n_norm_partials > 0)
        return CF_OK;
    cf_log_error("--freeze %s: nothing is left to train", list);
    return CF_INVALID;
}
