/* fuzz_jsonl.c - any bytes as the lines of a pre-tokenised JSONL file. */
#include "tests/fuzz/dataset_laws.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    char *path = fuzz_file_write("data.jsonl", bytes, n);

    dataset_laws_hold(path, n);
    free(path);
    return 0;
}
