/* fuzz_safetensors_index.c - any bytes as a model.safetensors.index.json and its
 * two shards: refused, or tensors that are where it says.
 *
 * u16 bytes of the index, u16 bytes of a.safetensors, the two, and what is left
 * is b.safetensors.  A shard of no bytes is not there.
 */
#include "src/safetensors.h"

#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

static void shard_write(const char *name, fuzz_input shard)
{
    if (shard.n > 0)
        free(fuzz_file_write(name, shard.at, shard.n));
    else
        fuzz_file_remove(name);
}

static bool is_shard(const char *path)
{
    const char *name = strrchr(path, '/') + 1;

    return strcmp(name, "a.safetensors") == 0 ||
           strcmp(name, "b.safetensors") == 0 ||
           strcmp(name, "model.safetensors.index.json") == 0;
}

static void check_tensors(const cf_tensors *tensors, size_t n)
{
    const char *last = "";

    fuzz_require(cf_tensors_count(tensors) > 0 &&
                     cf_tensors_count(tensors) <= n,
                 "there are tensors, not more than bytes");
    for (size_t i = 0; i < cf_tensors_count(tensors); i++) {
        const cf_tensor *t = cf_tensors_at(tensors, i);
        double x;

        fuzz_require(i == 0 || strcmp(last, t->name) < 0,
                     "names are different and in order");
        fuzz_require(cf_tensors_find(tensors, t->name) == t,
                     "a tensor is found by its name");
        fuzz_require(is_shard(t->path), "no other file is opened");
        last = t->name;
        if (t->n == 0)
            continue;
        cf_tensor_read(t, 0, 1, CF_COMPUTE_FP64, &x);
        cf_tensor_read(t, t->n - 1, 1, CF_COMPUTE_FP64, &x);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    fuzz_input input = {bytes, n};
    const uint16_t index_bytes = fuzz_read_u16(&input);
    const uint16_t first_bytes = fuzz_read_u16(&input);
    const fuzz_input index = fuzz_read_bytes(&input, index_bytes);
    cf_tensors *tensors;
    cf_status status;

    free(fuzz_file_write("model.safetensors.index.json", index.at, index.n));
    shard_write("a.safetensors", fuzz_read_bytes(&input, first_bytes));
    shard_write("b.safetensors", input);
    fuzz_call_begin(n);
    status = cf_tensors_open_folder(fuzz_folder(), &tensors);
    fuzz_call_end(status);
    if (status == CF_OK) {
        check_tensors(tensors, n);
        cf_tensors_close(tensors);
    }
    return 0;
}
