/* dataset_made.c - sequences of made-up tokens, for a calibration, which needs
 * lengths that the user's data may not have (dataset_part.h).
 *
 * The ids are a fixed function of place and sequence, spread over the
 * vocabulary.
 */
#include "src/dataset_part.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

typedef struct made {
    cf_made_sequence *sequences; /* owned */
    size_t n;
    uint32_t vocab;
} made;

static void made_close(void *state)
{
    made *m = state;

    free(m->sequences);
    free(m);
}

static uint32_t id_at(const made *m, size_t sequence, uint32_t place)
{
    uint32_t x = (uint32_t)sequence * 2654435761u + place * 40503u + 1;

    x = (x ^ x >> 15) * 2246822519u;
    x = (x ^ x >> 13) * 3266489917u;
    return (x ^ x >> 16) % m->vocab;
}

static void made_read(const void *state, size_t sequence, uint32_t first_tok,
                      uint32_t n_tok, uint32_t *ids, uint32_t *targets)
{
    const made *m = state;
    const cf_made_sequence *s = &m->sequences[sequence];

    for (uint32_t i = 0; i < n_tok; i++) {
        const uint32_t place = first_tok + i;
        const uint32_t n_behind = s->n_tok - 1 - place;

        ids[i] = id_at(m, sequence, place);
        targets[i] = n_behind > 0 && n_behind <= s->n_targets
                         ? id_at(m, sequence, place + 1)
                         : CF_NO_TARGET;
    }
}

static size_t made_where(const void *state, size_t sequence, char *buf,
                         size_t size)
{
    (void)state;
    return (size_t)snprintf(buf, size, "made-up sequence %zu", sequence);
}

cf_status cf_dataset_part_open_made(const cf_made_sequence *sequences, size_t n,
                                    uint32_t vocab, cf_sequence_table *table,
                                    cf_dataset_part *part_p)
{
    made *m = calloc(1, sizeof(*m));
    cf_status status = CF_OK;

    if (m == NULL)
        return CF_NO_MEMORY;
    *m = (made){.n = n, .vocab = vocab};
    m->sequences = malloc(n * sizeof(*m->sequences));
    if (m->sequences == NULL) {
        free(m);
        return CF_NO_MEMORY;
    }
    memcpy(m->sequences, sequences, n * sizeof(*sequences));
    for (size_t i = 0; status == CF_OK && i < n; i++) {
        const cf_sequence_info info = {.n_tok = sequences[i].n_tok,
                                       .n_targets = sequences[i].n_targets};

        assert(info.n_targets < info.n_tok);
        status = cf_sequence_table_append(table, &info);
    }
    if (status != CF_OK) {
        made_close(m);
        return status;
    }
    *part_p = (cf_dataset_part){.state = m,
                                .close = made_close,
                                .read = made_read,
                                .where = made_where};
    return CF_OK;
}
