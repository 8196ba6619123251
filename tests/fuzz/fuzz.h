/* fuzz.h - what the fuzz targets share.
 *
 * A target is one file fuzz_NAME.c: it takes any bytes for an input of the
 * program and holds laws against what comes of them.  libFuzzer drives it
 * (scripts/fuzz), and replay.c with the inputs in corpus/NAME (make check).
 *
 * By the linker's --wrap, log lines are counted instead of shown, allocations of
 * our own code are watched between fuzz_call_begin and fuzz_call_end, and a
 * mapped file is a copy of exactly its size, so that a read past its end is seen.
 */
#ifndef CF_FUZZ_H
#define CF_FUZZ_H

#include <chunkflow/base.h>

#include <stdbool.h>

/* libFuzzer's name for a target. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

/* End the program, saying which law is broken. */
void fuzz_require(bool law, const char *law_text);

/* ---- the input, from the front; past its end come zeros ---- */

typedef struct fuzz_input {
    const uint8_t *at;
    size_t n;
} fuzz_input;

uint8_t fuzz_read_u8(fuzz_input *input);
uint16_t fuzz_read_u16(fuzz_input *input);
uint32_t fuzz_read_u32(fuzz_input *input);

/* Up to n bytes of what is left; borrowed. */
fuzz_input fuzz_read_bytes(fuzz_input *input, size_t n);

/* ---- files ---- */

/* The folder of this process, in memory where there is /dev/shm; removed at
 * exit. */
const char *fuzz_folder(void);

/* A file of that folder, replaced; its path, to be freed. */
char *fuzz_file_write(const char *name, const void *bytes, size_t n);
void fuzz_file_remove(const char *name);

/* ---- calls that can fail ---- */

/* From here on no single allocation may pass what an input of n bytes can be
 * worth. */
void fuzz_call_begin(size_t n);

/* A call that failed has logged one error, one that did not has logged none,
 * and memory never was the reason. */
void fuzz_call_end(cf_status status);

/* An allocation of the target's own. */
void *fuzz_allocate(size_t n, size_t size, int fill);

#endif
