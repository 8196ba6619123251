/* costs_file.c - see costs_file.h. */
#include "src/costs_file.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "src/file_write.h"
#include "src/files.h"
#include "src/hash.h"
#include "src/log.h"
#include "src/machine.h"

enum {
    FORMAT = 2
};

/* ---- the key ---- */

static json_t *model_key(const cf_model *model)
{
    const cf_model_config *c = &model->config;

    return json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:b, s:b}", "hidden",
                     (int)c->hidden, "heads", (int)c->n_heads, "kv_heads",
                     (int)c->n_kv_heads, "head_dim", (int)c->head_dim, "ffn",
                     (int)c->ffn, "vocabulary", (int)c->vocab, "qk_norm",
                     (int)c->qk_norm, "tied", (int)c->tied);
}

/* NULL when out of memory. */
static json_t *key_of(const cf_model *model)
{
    char cpu[128];

    return json_pack("{s:s, s:i, s:s, s:o, s:i, s:i, s:s, s:s}", "processor",
                     cf_machine_cpu(cpu, sizeof(cpu)), "threads",
                     omp_get_max_threads(), "kernels", model->kernels->name,
                     "model", model_key(model), "adapter_rank",
                     (int)model->adapter.rank, "adapter_targets",
                     (int)model->adapter.targets, "chunkflow", CF_VERSION,
                     "compiler", __VERSION__);
}

/* ---- the path ---- */

static cf_status hash_of_key(const cf_model *model, uint64_t *hash_p)
{
    json_t *key = key_of(model);
    char *text =
        key != NULL ? json_dumps(key, JSON_COMPACT | JSON_SORT_KEYS) : NULL;

    json_decref(key);
    if (text == NULL)
        return cf_log_no_memory("the name of a cost file");
    *hash_p = cf_hash_of(text, strlen(text), 0);
    free(text);
    return CF_OK;
}

cf_status cf_costs_path(const cf_model *model, char **path_p)
{
    const char *folder = getenv("XDG_CACHE_HOME");
    const char *within = "";
    char name[64];
    uint64_t hash;
    cf_status status;

    if (folder == NULL || *folder == '\0') {
        folder = getenv("HOME");
        within = ".cache/";
    }
    *path_p = NULL;
    if (folder == NULL || *folder == '\0')
        return CF_OK;
    status = hash_of_key(model, &hash);
    if (status != CF_OK)
        return status;
    (void)snprintf(name, sizeof(name), "%schunkflow/costs-%016" PRIx64 ".json",
                   within, hash);
    *path_p = cf_path_join(folder, "/", name);
    return *path_p != NULL ? CF_OK : CF_NO_MEMORY;
}

/* ---- out ---- */

static json_t *terms_json(const cf_cost_terms *terms)
{
    return json_pack("{s:f, s:f, s:f}", "op", terms->per_op, "token",
                     terms->per_tok, "pair", terms->per_pair);
}

static json_t *policies_json(const cf_costs *costs)
{
    json_t *object = json_object();

    for (int i = 0; i < CF_RECOMPUTES; i++)
        (void)json_object_set_new(object, cf_recompute_str((cf_recompute)i),
                                  terms_json(&costs->backward[i]));
    return object;
}

/* NULL when out of memory. */
static json_t *costs_json(const cf_model *model, const cf_costs *costs)
{
    const time_t now = time(NULL);
    char when[32] = "";
    struct tm utc;

    if (gmtime_r(&now, &utc) != NULL)
        (void)strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", &utc);
    return json_pack(
        "{s:i, s:s, s:o, s:f, s:{s:o, s:o, s:o, s:o}, s:o, s:{s:o, s:o}, s:f}",
        "format", FORMAT, "measured", when, "key", key_of(model), "error",
        costs->error, "layer", "forward", terms_json(&costs->forward),
        "attention", terms_json(&costs->attention), "forward_kv",
        terms_json(&costs->forward_kv), "backward", policies_json(costs),
        "head", terms_json(&costs->head), "chunk", "forward",
        terms_json(&costs->chunk_forward), "backward",
        terms_json(&costs->chunk_backward), "update", costs->update_element_s);
}

static cf_status fill(FILE *file, const void *object)
{
    if (json_dumpf(object, file, JSON_INDENT(2) | JSON_REAL_PRECISION(17)) !=
            0 ||
        fputc('\n', file) == EOF)
        return CF_IO;
    return CF_OK;
}

/* Every folder above a file, that there may be. */
static cf_status folders_make(const char *path)
{
    char *folder = strdup(path);

    if (folder == NULL)
        return cf_log_no_memory(path);
    for (char *at = folder + 1; (at = strchr(at, '/')) != NULL; at++) {
        *at = '\0';
        if (mkdir(folder, 0777) != 0 && errno != EEXIST) {
            cf_status status = cf_io_error(folder, "make the folder", 0);

            free(folder);
            return status;
        }
        *at = '/';
    }
    free(folder);
    return CF_OK;
}

cf_status cf_costs_write(const char *path, const cf_model *model,
                         const cf_costs *costs)
{
    json_t *object = costs_json(model, costs);
    cf_status status;

    if (object == NULL)
        return cf_log_no_memory(path);
    status = folders_make(path);
    if (status == CF_OK)
        status = cf_file_write(path, fill, object);
    json_decref(object);
    return status;
}

/* ---- in ---- */

static double number_in(const json_t *object, const char *field, bool *bad)
{
    const json_t *value = json_object_get(object, field);
    const double number = json_number_value(value);

    if (!json_is_number(value) || !isfinite(number) || number < 0)
        *bad = true;
    return number;
}

static cf_cost_terms terms_in(const json_t *object, const char *field,
                              bool *bad)
{
    const json_t *terms = json_object_get(object, field);

    return (cf_cost_terms){.per_op = number_in(terms, "op", bad),
                           .per_tok = number_in(terms, "token", bad),
                           .per_pair = number_in(terms, "pair", bad)};
}

/* False: it is not such a file. */
static bool costs_of(const json_t *object, cf_costs *costs)
{
    const json_t *layer = json_object_get(object, "layer");
    const json_t *backward = json_object_get(layer, "backward");
    const json_t *chunk = json_object_get(object, "chunk");
    bool bad = json_integer_value(json_object_get(object, "format")) != FORMAT;

    *costs = (cf_costs){
        .forward = terms_in(layer, "forward", &bad),
        .attention = terms_in(layer, "attention", &bad),
        .forward_kv = terms_in(layer, "forward_kv", &bad),
        .head = terms_in(object, "head", &bad),
        .chunk_forward = terms_in(chunk, "forward", &bad),
        .chunk_backward = terms_in(chunk, "backward", &bad),
        .update_element_s = number_in(object, "update", &bad),
        .error = number_in(object, "error", &bad),
        .is_measured = true,
    };
    for (int i = 0; i < CF_RECOMPUTES; i++)
        costs->backward[i] =
            terms_in(backward, cf_recompute_str((cf_recompute)i), &bad);
    return !bad;
}

void cf_costs_read(const char *path, const cf_model *model, cf_costs *costs,
                   bool *found_p)
{
    json_error_t error;
    json_t *object = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    json_t *key = key_of(model);
    cf_costs read;

    *found_p = false;
    if (object != NULL && key != NULL &&
        json_equal(json_object_get(object, "key"), key) &&
        costs_of(object, &read)) {
        *costs = read;
        *found_p = true;
    } else if (object != NULL ||
               json_error_code(&error) != json_error_cannot_open_file) {
        cf_log_warn("%s is not a cost file of this version: measure again with "
                    "plan --calibrate",
                    path);
    }
    json_decref(key);
    json_decref(object);
}
