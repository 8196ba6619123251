/* engine.h - runs chunks on a stage of a model: the callbacks of execute.h, bound
 * to kernels, KV state, activations and messages.
 *
 * (1) The head runs inside the backward of a chunk, so a loss is counted once
 *     and discarding and keeping forwards do the same work for every K.
 * (2) The loss of a piece is summed in double in token order; a step's loss is
 *     the sum over the pieces in plan order, whatever the order of execution.
 * (3) Nothing is allocated between carve and close.
 * (4) A forward of a chunk whose keys are there is a recompute.
 * (5) A stage below everything that is trained has no backward: there a backward
 *     only gives back, and a recompute on the spot does nothing.
 */
#ifndef CF_ENGINE_H
#define CF_ENGINE_H

#include <chunkflow/execute.h>

#include "src/activations.h"
#include "src/chunk_input.h"
#include "src/dataset.h"
#include "src/dropped.h"
#include "src/exchange.h"
#include "src/kv_state.h"
#include "src/model.h"
#include "src/op_times.h"

/* The most of everything that any step of the run needs (see step_plan.h). */
typedef struct cf_engine_need {
    cf_kv_need kv;
    uint32_t n_slots;     /* retained chunks; 0 in evaluation */
    uint32_t n_dropped;   /* chunks between forward and recompute */
    bool keep_attention;  /* of them too */
    size_t n_plan_pieces; /* of one step */
} cf_engine_need;

/* One global batch on its way through the engine; borrowed for the step. */
typedef struct cf_engine_batch {
    const cf_dataset *dataset;
    const uint32_t *sequences; /* plan index -> data set index */
    const uint32_t *tokens;    /* of the plan's one sequence, in place of those
                                * of a data set; else NULL */
    uint64_t step;             /* for messages */
    double loss_scale;         /* 1 / target tokens of the step */
    cf_comm *comm;             /* NULL: there is one rank */
    uint32_t stage;            /* this rank's, among those of the schedule */
} cf_engine_batch;

/* Called after every op of a step; for progress.  May be NULL. */
typedef void (*cf_engine_observer)(void *observer);

typedef struct cf_engine {
    const cf_kernels *kernels; /* borrowed */
    cf_model *model;           /* borrowed */
    cf_gradients gradients;
    cf_kv_state kv;
    cf_activations acts;
    cf_chunk_input input;
    cf_layer_grads grads;
    cf_adapter_rows adapter_rows;
    cf_dropped dropped;
    cf_exchange exchange;
    void *stream_out; /* of the chunk whose forward was the last */
    void *cos, *sin;  /* acc [n_tok, head_dim / 2] of the current chunk */
    struct {
        void *x;    /* acc [n_targets, hidden]: gathered, and their gradient */
        void *n;    /* act [n_targets, hidden]: normalised */
        void *rstd; /* acc [n_targets] */
        void *dn;   /* act [n_targets, hidden] */
        void *dx;   /* acc [n_targets, hidden] */
        double *loss; /* [n_targets] */
    } head;
    void *scratch;
    size_t scratch_bytes;
    double *piece_loss; /* [pieces of the plan] */
    size_t fixed_bytes; /* what is not in a pool */
    cf_engine_batch batch;
    bool inputs_come_again; /* a recompute receives as its forward did */

    /* Of the step so far, in seconds. */
    double begin_s;  /* by cf_clock_s */
    double busy_s;   /* in forwards, recomputes and backwards */
    double span_s;   /* to the end of the last op */
    double op_begin; /* of the last op, as span_s is its end */
    cf_engine_observer observe;
    void *observer;
    cf_op_times *times; /* borrowed; NULL: nobody wants them */
} cf_engine;

/* Whether a backward does anything on this stage. */
static inline bool cf_engine_has_backward(const cf_engine *engine)
{
    return engine->model->stage.is_last ||
           cf_n_backward_layers(engine->model) > 0;
}

/* Place everything that the engine needs beside the model.  Called on a dry
 * arena, then on the real one. */
void cf_engine_carve(cf_engine *engine, cf_model *model,
                     const cf_engine_need *need, cf_recompute policy,
                     cf_gradients gradients, cf_arena *arena);

/* Start a step: piece losses to zero, high water of the pools too, the first
 * receives posted.  Errors, logged: CF_COMM. */
CF_MUST_USE cf_status cf_engine_begin_step(cf_engine *engine,
                                           const cf_engine_batch *batch,
                                           const cf_chunk_plan *plan,
                                           const cf_schedule *schedule);

/* The last op has run: wait for what is still being sent.  Errors, logged:
 * CF_COMM. */
CF_MUST_USE cf_status cf_engine_end_step(cf_engine *engine);

/* The callbacks for cf_execute; engine is a cf_engine. */
extern const cf_engine_ops cf_engine_callbacks;

/* Start a pass in which these chunks will be evaluated; a group as a whole.
 * Ends as a step does. */
CF_MUST_USE cf_status cf_engine_begin_pass(cf_engine *engine,
                                           const cf_engine_batch *batch,
                                           const cf_chunk_plan *plan,
                                           uint32_t first_chunk,
                                           uint32_t end_chunk);

/* Forward and, on the last stage, losses of the next chunk, without
 * gradients. */
CF_MUST_USE cf_status cf_engine_evaluate(cf_engine *engine,
                                         const cf_chunk_plan *plan,
                                         uint32_t chunk);

/* Forward of the next chunk of a batch of tokens, on one stage that is all of the
 * model: leaves its last row, as the head reads it, act [hidden], in head.n until
 * the next op.  Its group stays alive. */
CF_MUST_USE cf_status cf_engine_last_row(cf_engine *engine,
                                         const cf_chunk_plan *plan,
                                         uint32_t chunk);

/* Sum of the losses of the step's pieces, in plan order; only the last stage has
 * them. */
double cf_engine_loss(const cf_engine *engine, const cf_chunk_plan *plan);

/* High water of the step: everything carved, less what the pools never gave. */
size_t cf_engine_peak_bytes(const cf_engine *engine);

#endif
