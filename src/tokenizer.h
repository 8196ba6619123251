/* tokenizer.h - a model folder's tokenizer, in a process of its own.
 *
 * Tokenizers and chat templates are Hugging Face's, in Python: scripts/tokenizer,
 * which is found beside the program, or as $CHUNKFLOW_TOKENIZER.  It is started
 * with
 *
 *     tokenizer --model DIR (--prompt=TEXT | --messages=FILE)
 *
 * and speaks JSON, a line at a time, over its standard input and output:
 *
 *     it:  [1, 4093, 198]     the prompt's tokens
 *     we:  28                 a new token, as often as there is one
 *     it:  " wor"             the text that is complete by now; may be empty
 *     we:  (the end)
 *     it:  "ld"               what was waiting for the rest of a character
 *
 * What is wrong with folder or prompt it tells itself, in one line on standard
 * error, and exits as the interface says.
 */
#ifndef CF_TOKENIZER_H
#define CF_TOKENIZER_H

#include <chunkflow/base.h>

#include <jansson.h>
#include <stdio.h>
#include <sys/types.h>

typedef struct cf_tokenizer {
    pid_t pid;     /* 0: there is none */
    int questions; /* socket; -1: closed for us */
    FILE *answers; /* NULL: not open */
} cf_tokenizer;

/* What the model is to go on with: one of the two, the other NULL. */
typedef struct cf_prompt {
    const char *text;
    const char *messages; /* file */
} cf_prompt;

/* Start it.  Errors, logged: CF_IO, CF_NO_MEMORY.  Close it in any case. */
CF_MUST_USE cf_status cf_tokenizer_open(const char *model,
                                        const cf_prompt *prompt,
                                        cf_tokenizer *tokenizer);
/* Waits until it has ended. */
void cf_tokenizer_close(cf_tokenizer *tokenizer);

/* The prompt's tokens, an array of one number or more, each below vocab;
 * json_decref() it.  Errors, logged, by the process or here: CF_INVALID,
 * CF_MALFORMED, CF_IO. */
CF_MUST_USE cf_status cf_tokenizer_prompt(cf_tokenizer *tokenizer,
                                          uint32_t vocab, json_t **tokens_p);

/* The text that a new token completes, a string; json_decref() it.  Errors, as
 * above. */
CF_MUST_USE cf_status cf_tokenizer_text(cf_tokenizer *tokenizer, uint32_t token,
                                        json_t **text_p);

/* The text that is left when no token follows, likewise. */
CF_MUST_USE cf_status cf_tokenizer_end(cf_tokenizer *tokenizer,
                                       json_t **text_p);

#endif
