/* fuzz_state.c - any bytes as the state.json of a training state: refused with a
 * reason, or a state that is written and read back the same.
 *
 * When the first byte is odd the checksum is appended that makes the rest
 * believable: few mutations get past it otherwise.
 */
#include "src/checkpoint_state.h"
#include "src/hash.h"

#include "tests/fuzz/fuzz.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The text to be parsed; of exactly its size. */
static char *text_of(const fuzz_input *input, bool believable, size_t *n_p)
{
    char tail[64] = "";
    size_t n_tail;
    char *text;

    if (believable) {
        cf_hash hash;

        cf_hash_begin(&hash);
        cf_hash_append(&hash, input->at, input->n);
        (void)snprintf(tail, sizeof(tail),
                       "\"checksum\": \"%016" PRIx64 "\"\n}\n",
                       cf_hash_end(&hash));
    }
    n_tail = strlen(tail);
    text = fuzz_allocate(input->n + n_tail, 1, 0);
    if (input->n > 0)
        memcpy(text, input->at, input->n);
    if (n_tail > 0)
        memcpy(text + input->n, tail, n_tail);
    *n_p = input->n + n_tail;
    return text;
}

static cf_status parse(const char *text, size_t n, cf_checkpoint_state *state_p)
{
    const char *why = NULL;
    cf_status status;

    fuzz_call_begin(n);
    status = cf_checkpoint_state_parse(text, n, state_p, &why);
    fuzz_call_end(CF_OK); /* the caller logs */
    fuzz_require(status == CF_OK || status == CF_MALFORMED,
                 "a text is a state or malformed");
    fuzz_require((status == CF_OK) == (why == NULL), "a refusal has a reason");
    return status;
}

static void check_round_trip(const cf_checkpoint_state *state)
{
    char *buf = fuzz_allocate(CF_CHECKPOINT_STATE_BYTES_MAX, 1, 'x');
    const size_t n =
        cf_checkpoint_state_format(state, buf, CF_CHECKPOINT_STATE_BYTES_MAX);
    cf_checkpoint_state again;

    fuzz_require(n > 0, "a state fits");
    fuzz_require(parse(buf, n, &again) == CF_OK,
                 "what was written can be read");
    fuzz_require(memcmp(state, &again, sizeof(again)) == 0,
                 "what was written is read back the same");
    fuzz_require(cf_checkpoint_state_format(state, buf, n) == 0,
                 "one byte less is too little");
    free(buf);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    fuzz_input input = {bytes, n};
    const bool believable = fuzz_read_u8(&input) % 2 == 1;
    cf_checkpoint_state state;
    size_t n_text;
    char *text = text_of(&input, believable, &n_text);

    if (parse(text, n_text, &state) == CF_OK)
        check_round_trip(&state);
    free(text);
    return 0;
}
