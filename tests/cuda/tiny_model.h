/* tiny_model.h - a small model trained on one long sequence, by any backend.
 *
 * Two layers with biases and q/k norms, a tied head, AdamW with clipping; the
 * sequence is cut into two chunks whose second one sees the first one's keys, both
 * retained.  The layers are those of src/layer.c.  All arrays of the ops are in the
 * memory of the backend, so that it serves a device as well as the host.
 */
#ifndef TINY_MODEL_H
#define TINY_MODEL_H

#include "kernels/kernels.h"

/* Memory of a backend. */
typedef struct tiny_memory {
    void *(*take)(const cf_kernels *k, size_t bytes);
    void (*put)(const cf_kernels *k, const void *from, size_t bytes, void *to);
    void (*get)(const cf_kernels *k, const void *from, size_t bytes, void *to);
} tiny_memory;

/* The host's: for the CPU. */
extern const tiny_memory tiny_host;

typedef struct tiny_model tiny_model;

/* Never freed: tests run in a process of their own. */
tiny_model *tiny_model_open(const cf_kernels *k, const tiny_memory *memory);

/* One step; returns the mean loss in front of it. */
double tiny_model_step(tiny_model *model);

/* How many parameters it has, and a copy of them. */
size_t tiny_model_n(void);
void tiny_model_get(const tiny_model *model, float *masters);

#endif
