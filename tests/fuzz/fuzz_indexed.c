/* fuzz_indexed.c - any bytes as a Megatron .idx, its .bin and its .mask.
 *
 * u16 bytes of the .idx, u16 bytes of the .bin, the two, and what is left is
 * the .mask; there is none when nothing is left.
 */
#include "tests/fuzz/dataset_laws.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    fuzz_input input = {bytes, n};
    const uint16_t idx_bytes = fuzz_read_u16(&input);
    const uint16_t bin_bytes = fuzz_read_u16(&input);
    const fuzz_input idx = fuzz_read_bytes(&input, idx_bytes);
    const fuzz_input bin = fuzz_read_bytes(&input, bin_bytes);
    char *path = fuzz_file_write("data.idx", idx.at, idx.n);

    free(fuzz_file_write("data.bin", bin.at, bin.n));
    if (input.n > 0)
        free(fuzz_file_write("data.mask", input.at, input.n));
    else
        fuzz_file_remove("data.mask");
    dataset_laws_hold(path, n);
    free(path);
    return 0;
}
