/* plan_input.h - a batch of lengths and its plan, out of fuzz input. */
#ifndef CF_PLAN_INPUT_H
#define CF_PLAN_INPUT_H

#include <chunkflow/schedule.h>
#include <chunkflow/simulate.h>

#include "tests/fuzz/fuzz.h"

/* All arrays have exactly the size that was asked for. */
typedef struct plan_input {
    cf_schedule_params params;
    uint32_t chunk_size_tok;
    uint32_t *len_tok; /* [n_seqs] */
    size_t n_seqs;
} plan_input;

/* u8 stages (1 .. 8) and kind of schedule, u8 K (1 .. 255, or the largest), u8
 * bytes of a length (1, 2 or 4), then the chunk size and up to seqs_max lengths
 * of that size. */
plan_input plan_input_open(fuzz_input *input, size_t seqs_max);
void plan_input_close(plan_input *input);

/* The plan of the input in arrays filled with a byte beforehand, of whole
 * sequences for 1F1B.  Not CF_OK when the lengths are refused, as they must be,
 * or ask for much: nothing to close then. */
cf_status fuzz_plan_open(const plan_input *input, int fill,
                         cf_chunk_plan *plan_p);
void fuzz_plan_close(cf_chunk_plan *plan);

cf_schedule fuzz_schedule_open(const cf_chunk_plan *plan,
                               cf_schedule_params params, int fill);
/* Simulate at linear cost, in arrays of exactly the size needed.  Whether that
 * ended well, with ratios that are ratios. */
bool fuzz_simulate(const cf_chunk_plan *plan, const cf_schedule *schedule);
void fuzz_schedule_close(cf_schedule *schedule);

#endif
