/* checkpoint_read.c - training states found by their content, and read.
 *
 * A state is complete when its state.json parses, carries its own checksum and
 * a format that is known, and the files beside it have the sizes and hashes
 * that it says.
 */
#include "src/checkpoint.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/checkpoint_folder.h"
#include "src/checkpoint_tensors.h"
#include "src/files.h"
#include "src/log.h"

enum {
    STEPS_MAX = 1 << 16 /* folders that are looked at, the largest steps */
};

/* ---- one state ---- */

/* A reason, static text, when the file is not as state.json says. */
static const char *file_check(const char *folder, const char *name,
                              const cf_checkpoint_file *said)
{
    char *path = cf_path_join(folder, "/", name);
    const char *why = path != NULL ? cf_checkpoint_tensors_check(path, said)
                                   : "out of memory";

    free(path);
    return why;
}

/* The bytes of state.json, at most one more than it may have. */
static const char *state_read(const char *folder, char *text, size_t *n_p)
{
    char *path = cf_path_join(folder, "/", "state.json");
    const char *why = NULL;
    FILE *file = path != NULL ? fopen(path, "re") : NULL;

    if (file == NULL) {
        why = "state.json is missing or cannot be read";
    } else {
        *n_p = fread(text, 1, CF_CHECKPOINT_STATE_BYTES_MAX + 1, file);
        if (ferror(file))
            why = "state.json cannot be read";
        fclose(file);
    }
    free(path);
    return why;
}

/* NULL, or why the state is not complete. */
static const char *state_check(const char *folder, uint64_t step, char *text,
                               cf_checkpoint_state *state_p)
{
    const char *why;
    size_t n;

    why = state_read(folder, text, &n);
    if (why == NULL)
        (void)!cf_checkpoint_state_parse(text, n, state_p, &why);
    if (why == NULL && state_p->step != step)
        why = "it is of another step than its name says";
    if (why == NULL)
        why = file_check(folder, "weights.safetensors", &state_p->weights);
    if (why == NULL)
        why = file_check(folder, "moments.safetensors", &state_p->moments);
    return why;
}

/* ---- the newest ---- */

static cf_status find_among(const char *checkpoints, const uint64_t *steps,
                            size_t n_steps, uint64_t wanted, char *text,
                            char **path_p, cf_checkpoint_state *state_p)
{
    for (size_t i = 0; i < n_steps; i++) {
        char name[32];
        const char *why;
        char *path;

        if (wanted != CF_CHECKPOINT_NEWEST && steps[i] != wanted)
            continue;
        (void)snprintf(name, sizeof(name), "step-%" PRIu64, steps[i]);
        path = cf_path_join(checkpoints, "/", name);
        if (path == NULL)
            return CF_NO_MEMORY;
        why = state_check(path, steps[i], text, state_p);
        if (why == NULL) {
            *path_p = path;
            return CF_OK;
        }
        if (wanted != CF_CHECKPOINT_NEWEST)
            cf_log_error("%s: not a complete training state: %s; choose "
                         "another --step",
                         path, why);
        else
            cf_log_warn("%s: skipped, not a complete training state: %s", path,
                        why);
        free(path);
        if (wanted != CF_CHECKPOINT_NEWEST)
            return CF_MALFORMED;
    }
    return CF_OK;
}

cf_status cf_checkpoint_find(const char *output, uint64_t step, char **path_p,
                             cf_checkpoint_state *state_p)
{
    char *checkpoints = cf_path_join(output, "/", "checkpoints");
    uint64_t *steps = malloc(STEPS_MAX * sizeof(*steps));
    char *text = malloc(CF_CHECKPOINT_STATE_BYTES_MAX + 1);
    cf_status status = CF_NO_MEMORY;

    *path_p = NULL;
    if (checkpoints != NULL && steps != NULL && text != NULL)
        status = find_among(checkpoints, steps,
                            cf_checkpoint_steps(checkpoints, steps, STEPS_MAX),
                            step, text, path_p, state_p);
    if (status == CF_NO_MEMORY)
        cf_log_error("no memory to look for training states in '%s'", output);
    free(text);
    free(steps);
    free(checkpoints);
    return status;
}

/* ---- tensors ---- */

/* Elements of a tensor, into an array of them. */
typedef struct place {
    cf_extent extent;
    void *data; /* NULL: none */
} place;

static place place_of(const cf_model *model, const cf_param *p, void *array)
{
    place part = {.extent = {.n = p->n}};

    if (array == model->masters) {
        part.data = p->in_state ? cf_model_at(model, array, p) : NULL;
        return part;
    }
    part.extent = cf_model_shard_of(model, p);
    if (part.extent.n > 0)
        part.data = cf_model_moment_at(model, array, p);
    return part;
}

/* A tensor that is not as this model has it: the checksums were right, so the
 * model folder is another. */
static cf_status param_read(const cf_model *model, const cf_param *p,
                            const cf_tensors *tensors, const char *path,
                            const char *prefix, place part)
{
    const size_t acc_bytes = model->kernels->acc_bytes;
    const cf_dtype dtype =
        acc_bytes == sizeof(double) ? CF_DTYPE_F64 : CF_DTYPE_F32;
    char *name = cf_path_join(prefix, "", p->name);
    const cf_tensor *tensor;
    cf_status status = CF_NO_MEMORY;

    if (name == NULL) {
        cf_log_error("no memory to read '%s'", p->name);
        return status;
    }
    tensor = cf_tensors_find(tensors, name);
    if (tensor == NULL || tensor->dtype != dtype ||
        tensor->n_dims != p->n_dims ||
        memcmp(tensor->dims, p->dims, p->n_dims * sizeof(p->dims[0])) != 0) {
        cf_log_error("%s: tensor '%s' is missing, or not of the shape and type "
                     "that this model needs: name the model of the run",
                     path, name);
        status = CF_MALFORMED;
    } else {
        cf_tensor_read(tensor, part.extent.first, part.extent.n,
                       model->kernels->compute, part.data);
        cf_tensor_release(tensor);
        status = CF_OK;
    }
    free(name);
    return status;
}

static cf_status array_read(const cf_model *model, const cf_tensors *tensors,
                            const char *path, const char *prefix, void *array)
{
    cf_status status = CF_OK;

    for (size_t i = 0; i < model->n_params && status == CF_OK; i++) {
        const cf_param *p = &model->params[i];
        const place part = place_of(model, p, array);

        if (part.data != NULL)
            status = param_read(model, p, tensors, path, prefix, part);
    }
    return status;
}

static cf_status file_read(const cf_model *model, const char *folder,
                           const char *name, const char *const *prefixes,
                           void *const *arrays, size_t n_arrays)
{
    char *path = cf_path_join(folder, "/", name);
    cf_tensors *tensors;
    cf_status status = CF_NO_MEMORY;

    if (path == NULL)
        return status;
    status = cf_tensors_open_file(path, &tensors);
    if (status == CF_OK) {
        for (size_t i = 0; i < n_arrays && status == CF_OK; i++)
            status = array_read(model, tensors, path, prefixes[i], arrays[i]);
        cf_tensors_close(tensors);
    }
    free(path);
    return status;
}

cf_status cf_checkpoint_load(const char *path, cf_model *model)
{
    static const char *const plain[] = {""};
    static const char *const adam[] = {"exp_avg.", "exp_avg_sq."};
    void *const masters[] = {model->masters};
    void *const moments[] = {model->moment1, model->moment2};
    cf_status status =
        file_read(model, path, "weights.safetensors", plain, masters, 1);

    if (status == CF_OK && model->moment1 != NULL)
        status =
            file_read(model, path, "moments.safetensors", adam, moments, 2);
    if (status == CF_OK)
        cf_model_pack(model);
    return status;
}
