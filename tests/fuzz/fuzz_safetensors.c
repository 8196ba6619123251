/* fuzz_safetensors.c - any bytes as a safetensors file: refused, or readable. */
#include "src/safetensors_header.h"

#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    cf_tensor_list list = {0};
    cf_status status;

    fuzz_call_begin(n);
    status = cf_tensor_list_append(&list, "fuzz", 0, bytes, n);
    fuzz_call_end(status);
    for (size_t i = 0; status == CF_OK && i < list.n; i++) {
        const cf_tensor *t = &list.entries[i].tensor;
        double x;
        float y;

        if (t->n == 0)
            continue;
        cf_tensor_read(t, 0, 1, CF_COMPUTE_FP64, &x);
        cf_tensor_read(t, t->n - 1, 1, CF_COMPUTE_FP64, &x);
        cf_tensor_read(t, t->n - 1, 1, CF_COMPUTE_FP32, &y);
    }
    cf_tensor_list_close(&list);
    return 0;
}
