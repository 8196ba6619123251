/* ledger.h - every sequence and token of the input, accounted for.
 *
 * read = trained + masked + skipped, in sequences and in tokens.  A sequence is
 * trained when it has a target, with all its tokens; masked when it has none
 * (those of 0 or 1 token included); skipped only for a reason.
 */
#ifndef CF_LEDGER_H
#define CF_LEDGER_H

#include <chunkflow/base.h>

#include <stdbool.h>

typedef struct cf_ledger_count {
    uint64_t sequences;
    uint64_t tokens;
} cf_ledger_count;

typedef struct cf_ledger {
    cf_ledger_count read;
    cf_ledger_count trained;
    uint64_t trained_target_tokens;
    cf_ledger_count masked;
    cf_ledger_count skipped_max_length;
} cf_ledger;

/* Count one sequence.  max_length_tok 0 = none. */
void cf_ledger_add(cf_ledger *ledger, uint32_t n_tok, uint32_t n_targets,
                   uint32_t max_length_tok);

/* One line for a person, as in
 * "read 40 sequences, 39510 tokens = trained 38 (39490) + masked 2 (20) + ..." */
size_t cf_ledger_format(const cf_ledger *ledger, char *buf, size_t size);

/* PATH as INTERFACE section 3 has it, by way of a temporary name.  Errors,
 * logged: CF_IO. */
CF_MUST_USE cf_status cf_ledger_write(const cf_ledger *ledger,
                                      const char *path);

/* Whether the file at path is what cf_ledger_write would write. */
bool cf_ledger_is_written(const cf_ledger *ledger, const char *path);

#endif
