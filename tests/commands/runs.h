/* runs.h - the tests of what a run leaves behind (check_runs.c). */
#ifndef RUNS_H
#define RUNS_H

#include <check.h>

TCase *run_folder_tests(void);

#endif
