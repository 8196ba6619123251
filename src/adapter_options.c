/* adapter_options.c - see adapter_options.h. */
#include "src/adapter_options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/adapter_folder.h"
#include "src/log.h"

static unsigned target_named(const char *name, size_t n)
{
    for (unsigned t = 0; t < CF_ADAPTER_TARGETS; t++)
        if (strlen(cf_adapter_target_names[t]) == n &&
            memcmp(cf_adapter_target_names[t], name, n) == 0)
            return 1U << t;
    return 0;
}

/* "q_proj,v_proj". */
static cf_status targets_parse(const char *list, unsigned *targets_p)
{
    size_t n;

    *targets_p = 0;
    for (const char *at = list;; at += n + 1) {
        unsigned target;

        n = strcspn(at, ",");
        target = target_named(at, n);
        if (target == 0) {
            cf_log_error("--lora-targets: '%.*s' is not one of q_proj, k_proj, "
                         "v_proj, o_proj, gate_proj, up_proj, down_proj",
                         (int)(n < 64 ? n : 64), at);
            return CF_INVALID;
        }
        if ((*targets_p & target) != 0) {
            cf_log_error("--lora-targets: '%.*s' is given twice", (int)n, at);
            return CF_INVALID;
        }
        *targets_p |= target;
        if (at[n] == '\0')
            return CF_OK;
    }
}

const char *cf_adapter_targets_format(unsigned targets, char *buf)
{
    size_t n = 0;

    buf[0] = '\0';
    for (unsigned t = 0; t < CF_ADAPTER_TARGETS; t++)
        if ((targets & 1U << t) != 0)
            n += (size_t)snprintf(buf + n, CF_ADAPTER_TARGETS_BYTES_MAX - n,
                                  "%s%s", n > 0 ? "," : "",
                                  cf_adapter_target_names[t]);
    return buf;
}

cf_status cf_adapter_options_spec(const cf_options *options,
                                  cf_adapter_spec *spec_p)
{
    cf_adapter_spec spec = {
        .rank = options->lora_rank,
        .alpha = options->lora_alpha > 0 ? options->lora_alpha
                                         : 2.0 * options->lora_rank,
        .targets = CF_ADAPTER_ALL_TARGETS,
    };
    cf_status status = CF_OK;

    if (spec.rank == 0)
        spec.targets = 0;
    else if (options->lora_targets != NULL)
        status = targets_parse(options->lora_targets, &spec.targets);
    if (status == CF_OK)
        *spec_p = spec;
    return status;
}

/* An option that would do nothing is an error. */
static cf_status options_check(const cf_options *options)
{
    const char *alone = options->lora_alpha > 0         ? "--lora-alpha"
                        : options->lora_targets != NULL ? "--lora-targets"
                        : options->merge                ? "--merge"
                                                        : NULL;

    if (options->lora_rank == 0) {
        if (alone == NULL)
            return CF_OK;
        cf_log_error(
            "%s needs --lora-rank R or --init-adapter DIR: there is no "
            "adapter",
            alone);
        return CF_INVALID;
    }
    if (options->freeze == NULL)
        return CF_OK;
    cf_log_error(
        "--freeze and an adapter: beside an adapter all of the model is "
        "frozen; leave --freeze out");
    return CF_INVALID;
}

static cf_status differ(const cf_options *options, const char *name,
                        const char *has)
{
    cf_log_error("--%s: the adapter '%s' has %s; leave it out", name,
                 options->adapter, has);
    return CF_INVALID;
}

/* What is given beside a folder has to be what the folder has. */
static cf_status folder_check(const cf_options *options,
                              const cf_adapter_spec *folder)
{
    char has[CF_ADAPTER_TARGETS_BYTES_MAX];
    unsigned targets = folder->targets;
    cf_status status = CF_OK;

    if (options->lora_rank > 0 && options->lora_rank != folder->rank) {
        snprintf(has, sizeof(has), "rank %u", (unsigned)folder->rank);
        return differ(options, "lora-rank", has);
    }
    if (options->lora_alpha > 0 && (options->lora_alpha < folder->alpha ||
                                    options->lora_alpha > folder->alpha)) {
        snprintf(has, sizeof(has), "alpha %g", folder->alpha);
        return differ(options, "lora-alpha", has);
    }
    if (options->lora_targets != NULL)
        status = targets_parse(options->lora_targets, &targets);
    if (status != CF_OK || targets == folder->targets)
        return status;
    (void)cf_adapter_targets_format(folder->targets, has);
    return differ(options, "lora-targets", has);
}

static cf_status folder_take(cf_options *options)
{
    const bool trains = options->command == CF_COMMAND_TRAIN ||
                        options->command == CF_COMMAND_VERIFY;
    char targets[CF_ADAPTER_TARGETS_BYTES_MAX];
    cf_adapter_spec spec;
    cf_status status = cf_adapter_config_read(
        options->adapter, trains ? CF_ADAPTER_TRAIN : CF_ADAPTER_APPLY, &spec);

    if (status == CF_OK)
        status = folder_check(options, &spec);
    if (status != CF_OK)
        return status;
    options->lora_rank = spec.rank;
    options->lora_alpha = spec.alpha;
    (void)cf_adapter_targets_format(spec.targets, targets);
    free(options->lora_targets);
    options->lora_targets = strdup(targets);
    return options->lora_targets != NULL ? CF_OK
                                         : cf_log_no_memory("--lora-targets");
}

cf_status cf_adapter_options_resolve(cf_options *options)
{
    cf_status status = CF_OK;

    /* export looks into the training state. */
    if (options->command == CF_COMMAND_EXPORT)
        return CF_OK;
    if (options->adapter != NULL)
        status = folder_take(options);
    return status == CF_OK ? options_check(options) : status;
}
