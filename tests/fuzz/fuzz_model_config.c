/* fuzz_model_config.c - any bytes as a config.json: refused, or a shape that
 * can be computed, and tokens that end a text; and what is valid is edited into
 * something valid. */
#include "src/generation_config.h"
#include "src/model_config.h"
#include "src/model_config_text.h"

#include "tests/fuzz/fuzz.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static void edit(const uint8_t *bytes, size_t n)
{
    char *text = strndup((const char *)bytes, n), *edited;
    json_t *config = json_loads(text, JSON_REJECT_DUPLICATES, NULL);

    if (json_is_object(config) && json_object_size(config) > 0) {
        json_t *again;

        edited = cf_config_text_with_dtype(text, "bfloat16");
        again = json_loads(edited, JSON_REJECT_DUPLICATES, NULL);
        fuzz_require(again != NULL, "an edited config is valid JSON");
        json_decref(again);
        free(edited);
    }
    json_decref(config);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    char *path = fuzz_file_write("config.json", bytes, n);
    cf_generation_config generation;
    cf_model_config config;
    cf_status status;
    double inv_freq[128], factor;

    fuzz_call_begin(n);
    status = cf_model_config_read(fuzz_folder(), &config);
    fuzz_call_end(status);
    if (status == CF_OK) {
        fuzz_require(config.head_dim / 2 <= 128, "head_dim is bounded");
        cf_rope_frequencies(&config.rope, config.head_dim, inv_freq, &factor);
    }
    fuzz_call_begin(n);
    status =
        cf_generation_config_read(fuzz_folder(), CF_FAMILY_LLAMA, &generation);
    fuzz_call_end(status);
    fuzz_require(status != CF_OK || generation.n_eos <= CF_EOS_MAX,
                 "there is room for the end tokens");
    free(path);
    edit(bytes, n);
    return 0;
}
