/* resumed.h - runs that are stopped and gone on with, against one that is not.
 *
 * A work is a folder with an uninterrupted run of three epochs (ref), to which
 * other runs of the same command line (run) must come to be equal: weights,
 * moments, metrics but for times and memory, ledger.
 */
#ifndef RESUMED_H
#define RESUMED_H

#include "tests/parity/parity.h"

enum {
    RESUMED_STEPS = 12 /* of resumed_open's run: three epochs of four */
};

/* How a run of three epochs makes up its batches, and what it does besides. */
typedef struct resumed_setting {
    const char *fixture;
    const char *compute;
    const char *words[6]; /* of the command line; NULL behind the last */
    bool mixes;           /* a second --data, drawn half as often */
    bool evaluates;       /* the --data of the fixture, and keeps the best */
} resumed_setting;

typedef struct resumed_work {
    resumed_setting setting;
    parity_fixture fixture;
    char *folder;     /* holds ref/ and run/ */
    unsigned n_steps; /* of ref */
} resumed_work;

/* Runs ref.  The last batch of an epoch is short, and the first three steps
 * warm up. */
resumed_work resumed_open_as(const resumed_setting *setting);

/* The same in batches of two sequences: some steps have no target. */
resumed_work resumed_open(const char *fixture, const char *compute);
void resumed_close(resumed_work *work);

/* The command line for FOLDER/NAME with everything that decides the numbers,
 * and these Ks.  Add --resume, --save-every ... to it. */
parity_command resumed_command(const resumed_work *work, const char *name,
                               unsigned k);

/* Fails, showing the command, unless run is equal to ref. */
void expect_equal_run(const resumed_work *work, const parity_command *command);

/* Complete lines of run's metrics.jsonl; its newest state; 0 when there is
 * none. */
size_t resumed_lines(const resumed_work *work);
unsigned resumed_newest(const resumed_work *work);

/* Remove what is in the folder run, or only the states behind a step. */
void resumed_clear(const resumed_work *work);
void resumed_forget(const resumed_work *work, unsigned step);

/* Cut run's metrics.jsonl behind the line of a step, before the line of its
 * evaluation if it has one, with half a line behind the cut. */
void resumed_cut_metrics(const resumed_work *work, unsigned step);

bool path_exists(const resumed_work *work, const char *name);

#endif
