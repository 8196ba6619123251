/* generation_config.c - see generation_config.h. */
#include "src/generation_config.h"

#include <stdlib.h>
#include <unistd.h>

#include "src/files.h"
#include "src/json.h"

static const char EOS[] = "eos_token_id";

enum {
    LLAMA_EOS = 2 /* of LlamaConfig; the others have none */
};

static void eos_append(cf_json_reader *reader, const json_t *value,
                       cf_generation_config *config)
{
    const json_int_t id = json_integer_value(value);

    if (!json_is_integer(value) || id < 0 || id >= UINT32_MAX) {
        cf_json_error(reader, EOS,
                      "must be the number of a token, or a list of them; "
                      "correct it");
        return;
    }
    if (config->n_eos == CF_EOS_MAX) {
        cf_json_error(reader, EOS, "has more than %d tokens; leave some out",
                      CF_EOS_MAX);
        return;
    }
    config->eos[config->n_eos++] = (uint32_t)id;
}

static void eos_read(cf_json_reader *reader, cf_generation_config *config)
{
    const json_t *value = cf_json_get(reader, EOS);
    const json_t *one;
    size_t i;

    if (value == NULL)
        return;
    if (!json_is_array(value)) {
        eos_append(reader, value, config);
        return;
    }
    json_array_foreach (value, i, one)
        eos_append(reader, one, config);
}

/* Null is an answer too: nothing. */
static bool says_nothing(const cf_json_reader *reader)
{
    return json_object_get(reader->object, EOS) == NULL;
}

/* What a file of the folder says, beside what is known already; *is_known: what
 * ends a text is. */
static cf_status file_read(const char *folder, const char *name, bool *is_known,
                           cf_generation_config *config)
{
    char *path = cf_path_join(folder, "/", name);
    json_t *object;
    cf_status status = CF_NO_MEMORY;

    if (path == NULL)
        return status;
    status = cf_json_load(path, &object);
    if (status == CF_OK) {
        cf_json_reader reader = {path, "", object, CF_OK};

        if (!*is_known)
            eos_read(&reader, config);
        *is_known |= !says_nothing(&reader);
        cf_json_read_uint(&reader, "max_position_embeddings", 1, UINT32_MAX,
                          &config->max_position_tok);
        status = reader.status;
        json_decref(object);
    }
    free(path);
    return status;
}

static bool is_there(const char *folder, const char *name)
{
    char *path = cf_path_join(folder, "/", name);
    const bool is = path != NULL && access(path, F_OK) == 0;

    free(path);
    return is;
}

cf_status cf_generation_config_read(const char *folder, cf_family family,
                                    cf_generation_config *config_p)
{
    static const char own[] = "generation_config.json";
    cf_generation_config config = {.max_position_tok = UINT32_MAX};
    bool is_known = false;
    cf_status status = CF_OK;

    if (is_there(folder, own))
        status = file_read(folder, own, &is_known, &config);
    if (status == CF_OK)
        status = file_read(folder, "config.json", &is_known, &config);
    if (status != CF_OK)
        return status;
    if (!is_known && family == CF_FAMILY_LLAMA)
        config.eos[config.n_eos++] = LLAMA_EOS;
    *config_p = config;
    return CF_OK;
}

bool cf_generation_config_ends(const cf_generation_config *config,
                               uint32_t token)
{
    for (size_t i = 0; i < config->n_eos; i++)
        if (config->eos[i] == token)
            return true;
    return false;
}
