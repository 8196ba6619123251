/* fuzz_model_config.c - any bytes as a config.json: refused, or a shape that
 * can be computed; and what is valid is edited into something valid. */
#include "src/model_config.h"
#include "src/model_config_text.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static void edit(const uint8_t *bytes, size_t n)
{
    char *text = strndup((const char *)bytes, n), *edited;
    json_t *config = json_loads(text, JSON_REJECT_DUPLICATES, NULL);

    if (json_is_object(config) && json_object_size(config) > 0) {
        json_t *again;

        edited = cf_config_text_with_dtype(text, "bfloat16");
        again = json_loads(edited, JSON_REJECT_DUPLICATES, NULL);
        if (again == NULL)
            abort();
        json_decref(again);
        free(edited);
    }
    json_decref(config);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    char folder[] = "/tmp/chunkflow-fuzz-XXXXXX", path[64];
    cf_model_config config;
    double inv_freq[128], factor;
    FILE *file;

    if (mkdtemp(folder) == NULL)
        abort();
    snprintf(path, sizeof(path), "%s/config.json", folder);
    file = fopen(path, "w");
    if (file == NULL || fwrite(bytes, 1, n, file) != n || fclose(file) != 0)
        abort();
    if (cf_model_config_read(folder, &config) == CF_OK)
        cf_rope_frequencies(&config.rope, config.head_dim, inv_freq, &factor);
    unlink(path);
    rmdir(folder);
    edit(bytes, n);
    return 0;
}
