/* model_config.h - the shape of a model, read from a Hugging Face config.json.
 *
 * Families: llama (Llama, SmolLM2), qwen2, qwen3.  What a config leaves out
 * takes the default that transformers has for its family.  Anything not
 * understood or not supported (MoE, an active sliding window, dynamic NTK,
 * quantised weights, an unknown model_type or rope type ...) is an error that
 * names the file and the field.
 */
#ifndef CF_MODEL_CONFIG_H
#define CF_MODEL_CONFIG_H

#include <chunkflow/base.h>

#include <stdbool.h>

typedef enum cf_family {
    CF_FAMILY_LLAMA,
    CF_FAMILY_QWEN2,
    CF_FAMILY_QWEN3
} cf_family;

typedef enum cf_rope_kind {
    CF_ROPE_DEFAULT,
    CF_ROPE_LINEAR,
    CF_ROPE_LLAMA3,
    CF_ROPE_YARN
} cf_rope_kind;

/* Both spellings of configs end up here: rope_theta + rope_scaling, and
 * rope_parameters. */
typedef struct cf_rope_config {
    cf_rope_kind kind;
    double theta;
    double factor;
    double low_freq_factor, high_freq_factor; /* llama3 */
    double original_max_position;             /* llama3, yarn */
    double beta_fast, beta_slow;              /* yarn */
    double attention_factor;                  /* yarn; resolved, never unset */
    bool truncate;                            /* yarn */
} cf_rope_config;

typedef struct cf_model_config {
    cf_family family;
    uint32_t hidden;
    uint32_t n_layers;
    uint32_t n_heads;
    uint32_t n_kv_heads;
    uint32_t head_dim;
    uint32_t ffn; /* intermediate_size */
    uint32_t vocab;
    double rms_norm_eps;
    bool tied;             /* tie_word_embeddings */
    bool attention_bias;   /* of q, k and v */
    bool attention_o_bias; /* of o */
    bool mlp_bias;
    bool qk_norm;
    cf_rope_config rope;
} cf_model_config;

/* Read FOLDER/config.json.  Errors, logged: CF_MALFORMED. */
CF_MUST_USE cf_status cf_model_config_read(const char *folder,
                                           cf_model_config *config_p);

/* The head_dim / 2 inverse frequencies, in double throughout, and the factor
 * that cos and sin are multiplied with (1 but for YaRN). */
void cf_rope_frequencies(const cf_rope_config *rope, uint32_t head_dim,
                         double *inv_freq, double *factor_p);

#endif
