/* report_page.h - a run as one HTML page that needs nothing else. */
#ifndef CF_REPORT_PAGE_H
#define CF_REPORT_PAGE_H

#include <chunkflow/base.h>

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "src/history.h"

typedef struct cf_report_page {
    const char *folder;
    json_t *facts;  /* run.json; NULL: none, as on the next */
    json_t *ledger; /* ledger.json */
    cf_history history;
    bool is_finished;
    double idle_s; /* since metrics.jsonl was written */
} cf_report_page;

/* A cf_file_fill. */
CF_MUST_USE cf_status cf_report_page_write(FILE *file, const void *page);

#endif
