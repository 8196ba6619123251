/* training.h - a training run in memory: what train.c, which has the order of
 * events, and its helpers share.
 *
 * training_size.c   what the run needs: bounds, memory, time
 * training_choice.c what the planner decides where an option is auto
 * training_print.c  what a person is told before the first step
 * training_facts.c  what is written of it for the eye: run.json and pictures
 * training_steps.c  the steps, with what stands between two of them
 */
#ifndef CF_TRAINING_H
#define CF_TRAINING_H

#include <stdbool.h>

#include "src/costs.h"
#include "src/forecast.h"
#include "src/kv_file.h"
#include "src/pictures.h"
#include "src/run.h"
#include "src/saver.h"
#include "src/step.h"
#include "src/trace.h"
#include "src/validation.h"

/* What each rank says between two steps. */
typedef struct cf_step_end {
    uint64_t signal;   /* that it has noted; 0: none */
    uint64_t save_due; /* rank 0 decides, as on the next */
    uint64_t draw_due; /* the pictures */
} cf_step_end;

typedef struct cf_training {
    const cf_options *options; /* those below */
    cf_options resolved;       /* with what was chosen; borrows its strings */
    cf_comm *comm;
    cf_run run;
    cf_batches batches;
    cf_longest longest; /* of its sequences */
    cf_costs costs;
    char choice[512]; /* what the planner chose, and why; "" nothing */
    char basis[96];   /* of the forecast */
    cf_step_plan_need need;
    cf_step_plan plan;
    cf_engine engine;
    cf_op_times times; /* with --verbose */
    cf_step_shares shares;
    cf_reduction reduction;
    struct {
        double *cost; /* [n_batch]; NULL with one replica, as the next two */
        double *load; /* [n_replicas] */
        void *scratch;
        size_t scratch_bytes;
    } placing;
    cf_step_end *ends; /* [n_ranks] */
    int signal;        /* that ends the run, agreed on */
    cf_validation validation;
    cf_forecast forecast;
    cf_arena sizes;         /* what was predicted */
    size_t predicted_bytes; /* most over ranks */
    cf_metrics *metrics;
    cf_trace trace;
    cf_pictures pictures;
    cf_kv_file kv_file; /* with --kv-dir */
    cf_saver saver;
    cf_ledger ledger;
    uint64_t n_updates;
    struct {
        uint64_t step;
        size_t ops_done;
        size_t chunks_done; /* whose backward has run */
        double flop_done;   /* by cf_forecast_op_flop, as the next */
        double flop;        /* of the step on this stage; 0: not counted yet */
        double forecast_s;  /* of the step, as first forecast */
    } progress;
    size_t peak_bytes;
} cf_training;

/* Rank 0 writes what has one writer, and speaks. */
static inline bool cf_training_is_root(const cf_training *t)
{
    return cf_comm_rank(t->comm) == 0;
}

/* ---- training_size.c ---- */

/* Options of this run, and its ranks; everything else is 0. */
void cf_training_begin(const cf_options *options, cf_comm *comm,
                       cf_training *t);
/* After a failure too. */
void cf_training_end(cf_training *t);

/* What of the KV state is in a file, and that file.  Errors, logged: CF_IO. */
size_t cf_training_kv_file_bytes(const cf_training *t);
CF_MUST_USE cf_status cf_training_open_kv_file(cf_training *t);

/* Batches, and the data to evaluate on.  Errors, logged. */
CF_MUST_USE cf_status cf_training_open_data(cf_training *t);

/* Bound every step on the rank that t->run.grid says, under the options as they
 * are.  Errors, logged. */
CF_MUST_USE cf_status cf_training_bound(cf_training *t);

/* The same, and hold the memory against the budget.  Errors, logged. */
CF_MUST_USE cf_status cf_training_size_up(cf_training *t);

/* What is left of the run will take, told from the lengths of its sequences.
 * Errors, logged. */
CF_MUST_USE cf_status cf_training_open_forecast(cf_training *t);

/* What the ranks need, so that rank 0 can tell the most of them.  Errors,
 * logged. */
CF_MUST_USE cf_status cf_training_share_predicted(cf_training *t);

/* Place everything; the engine alone, after an evaluation had its memory. */
void cf_training_carve(void *training, cf_arena *arena);
void cf_training_carve_engine(void *training, cf_arena *arena);

/* ---- training_choice.c ---- */

/* Put numbers where the options say auto, equal on all ranks: the ChunkSize of the
 * state to go on from, or what the planner says.  All ranks call it.  Errors,
 * logged. */
CF_MUST_USE cf_status cf_training_choose(cf_training *t);

/* Log what this rank's memory is too little for, and what would help; after a
 * carve that did not fit.  Returns CF_NO_MEMORY. */
CF_MUST_USE cf_status cf_training_refuse(cf_training *t, size_t budget);

/* Tell the forecast how long a step takes by measured costs, where there are
 * some.  Errors, logged. */
CF_MUST_USE cf_status cf_training_use_costs(cf_training *t);

/* ---- training_print.c ---- */

void cf_training_introduce(const cf_training *t);
void cf_training_print_forecast(const cf_training *t, const char *basis);

/* With --verbose, where the time of all steps went, stage by stage.  All ranks
 * call it.  Errors, logged: CF_NO_MEMORY, CF_COMM. */
CF_MUST_USE cf_status cf_training_print_times(const cf_training *t);

/* ---- training_facts.c ---- */

/* What the run is, into run.json: versions, model, data, plan, memory.  Errors,
 * logged: CF_IO, CF_NO_MEMORY. */
CF_MUST_USE cf_status cf_training_write_facts(const cf_training *t,
                                              const char *path);

/* lengths.svg; loss.svg and memory.svg as they are by now. */
void cf_training_draw_lengths(cf_training *t);
void cf_training_draw_curves(cf_training *t);

/* ---- training_steps.c ---- */

/* The signal that ends the run, 0 when there is none: with several ranks one
 * that all know of. */
int cf_training_signal(const cf_training *t);

/* Whether step `number` is to be run. */
bool cf_training_goes_on(const cf_training *t, uint64_t number);

/* The evaluation that follows a step, if one does.  Errors, logged. */
CF_MUST_USE cf_status cf_training_validate(cf_training *t, uint64_t step);

/* Runs up to the last step, to the one in which a signal comes, or to where
 * --patience ends.  Errors, logged. */
CF_MUST_USE cf_status cf_training_run_steps(cf_training *t);

#endif
