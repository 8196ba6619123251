/* model_split.c - a rank's part of the parameter table: what its stage holds and
 * owns, and what of that its replica's shard has.
 *
 * (1) A tensor keeps its place within an aligned row of elements in every
 *     layout, so that GEMM groups stay together and aligned.
 * (2) Where the shards of n replicas are cut follows from the table alone: all
 *     replicas of a stage find the same cuts.
 */
#include "src/model.h"

#include <assert.h>

/* The first place at or behind `used` that agrees with this one by (1). */
static size_t place_behind(size_t used, size_t place)
{
    return used + (place - used) % CF_PARAM_ALIGN;
}

/* ---- stages ---- */

/* The last stage uses a tied embedding, as its head, and does not own it. */
static void hold(const cf_model *model, cf_param *p)
{
    const cf_stage *s = &model->stage;

    if (p->layer != UINT32_MAX)
        p->owned = p->layer >= s->first_layer && p->layer < s->end_layer;
    else
        p->owned = p->parts & CF_PART_EMBEDDINGS ? s->is_first : s->is_last;
    p->held = p->owned || (s->is_last && (p->parts & CF_PART_HEAD));
}

void cf_model_take_stage(cf_model *model, const cf_stage *stage)
{
    model->stage = *stage;
    model->n_elements = 0;
    for (size_t i = 0; i < model->n_params; i++) {
        cf_param *p = &model->params[i];

        hold(model, p);
        if (!p->held)
            continue;
        p->offset = place_behind(model->n_elements, p->offset);
        model->n_elements = p->offset + p->n;
    }
    cf_model_lay_out_trained(model);
}

static size_t blocks_of(const cf_param *p)
{
    return (p->n + CF_NORM_BLOCK - 1) / CF_NORM_BLOCK;
}

void cf_model_lay_out_trained(cf_model *model)
{
    model->n_trained_elements = 0;
    model->n_norm_partials = 0;
    model->first_backward_layer = model->config.n_layers;
    for (size_t i = 0; i < model->n_params; i++) {
        cf_param *p = &model->params[i];

        if (!p->trained)
            continue;
        if (p->owned) {
            p->trained_offset =
                place_behind(model->n_trained_elements, p->offset);
            model->n_trained_elements = p->trained_offset + p->n;
        }
        p->first_partial = model->n_norm_partials;
        model->n_norm_partials += blocks_of(p);
        if (p->parts & CF_PART_EMBEDDINGS)
            model->first_backward_layer = 0;
        else if (p->layer < model->first_backward_layer)
            model->first_backward_layer = p->layer;
    }
    cf_model_take_shard(model, 0, 1);
}

/* ---- shards ---- */

/* The last trained tensor of the stage that begins at or before an element of
 * the gradients, and in *next_p where the one behind it begins, or all end. */
static const cf_param *tensor_at(const cf_model *model, size_t element,
                                 size_t *next_p)
{
    const cf_param *found = NULL;

    *next_p = model->n_trained_elements;
    for (size_t i = 0; i < model->n_params; i++) {
        const cf_param *p = &model->params[i];

        if (!p->trained || !p->owned)
            continue;
        if (p->trained_offset > element) {
            *next_p = p->trained_offset;
            break;
        }
        found = p;
    }
    return found;
}

/* The place nearest to the even cut where a block or a tensor begins. */
size_t cf_model_shard_at(const cf_model *model, uint32_t index, uint32_t n)
{
    const size_t all = model->n_trained_elements;
    const size_t even = all / n * index + all % n * index / n;
    size_t below, above;
    const cf_param *p;

    assert(index <= n);
    if (index == 0 || index == n)
        return even;
    p = tensor_at(model, even, &above);
    if (p == NULL) /* the stage trains nothing */
        return 0;
    if (even >= p->trained_offset + p->n) /* between two tensors */
        return above;
    below = even - (even - p->trained_offset) % CF_NORM_BLOCK;
    if (below - p->trained_offset + CF_NORM_BLOCK < p->n)
        above = below + CF_NORM_BLOCK;
    return even - below < above - even ? below : above;
}

void cf_model_take_shard(cf_model *model, uint32_t index, uint32_t n)
{
    model->shard = index;
    model->shard_begin = cf_model_shard_at(model, index, n);
    model->shard_end = cf_model_shard_at(model, index + 1, n);
}

cf_extent cf_model_shard_of(const cf_model *model, const cf_param *p)
{
    size_t begin = p->trained_offset;
    size_t end = p->trained_offset + p->n;

    if (!p->trained || !p->owned)
        return (cf_extent){0};
    if (begin < model->shard_begin)
        begin = model->shard_begin;
    if (end > model->shard_end)
        end = model->shard_end;
    if (begin >= end)
        return (cf_extent){0};
    return (cf_extent){.first = begin - p->trained_offset, .n = end - begin};
}

void *cf_model_moment_at(const cf_model *model, void *moment, const cf_param *p)
{
    const size_t first = p->trained_offset + cf_model_shard_of(model, p).first;

    assert(cf_model_shard_of(model, p).n > 0);
    return cf_at(moment,
                 (first - model->shard_begin) * model->kernels->acc_bytes);
}
