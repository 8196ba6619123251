/* lengths.c - see lengths.h. */
#include "src/lengths.h"

#include "src/log.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SHOWN_BYTES = 40 /* of a bad line */
};

typedef struct lengths {
    uint32_t *len_tok;
    size_t n;
    size_t capacity;
} lengths;

/* The number on a line of n bytes, blanks around it allowed. */
static bool parse(const char *line, size_t n, uint32_t *len_tok_p)
{
    uint64_t value = 0;
    size_t i = 0;
    size_t first;

    while (n > 0 && isspace((unsigned char)line[n - 1]))
        n--;
    while (i < n && isspace((unsigned char)line[i]))
        i++;
    for (first = i; i < n && isdigit((unsigned char)line[i]); i++) {
        value = 10 * value + (uint64_t)(line[i] - '0');
        if (value > UINT32_MAX)
            return false;
    }
    if (i == first || i < n || value == 0)
        return false;
    *len_tok_p = (uint32_t)value;
    return true;
}

static cf_status refuse(const char *path, size_t number, const char *line,
                        size_t n)
{
    char shown[SHOWN_BYTES + 1];
    size_t i = 0;

    for (; i < n && i < SHOWN_BYTES && line[i] != '\n'; i++)
        shown[i] = isprint((unsigned char)line[i]) ? line[i] : '?';
    shown[i] = '\0';
    cf_log_error("%s:%zu: \"%s\" is not a length: write one whole number of "
                 "tokens a line, from 1 to %lu",
                 path, number, shown, (unsigned long)UINT32_MAX);
    return CF_MALFORMED;
}

static cf_status append(lengths *all, uint32_t len_tok)
{
    if (all->n == all->capacity) {
        size_t capacity = all->capacity > 0 ? 2 * all->capacity : 256;
        uint32_t *longer = realloc(all->len_tok, capacity * sizeof(*longer));

        if (longer == NULL)
            return CF_NO_MEMORY;
        all->len_tok = longer;
        all->capacity = capacity;
    }
    all->len_tok[all->n++] = len_tok;
    return CF_OK;
}

static cf_status read_lines(FILE *file, const char *path, lengths *all)
{
    char *line = NULL;
    size_t line_bytes = 0;
    cf_status status = CF_OK;
    ssize_t n;

    while (status == CF_OK && (n = getline(&line, &line_bytes, file)) >= 0) {
        uint32_t len_tok;

        if (!parse(line, (size_t)n, &len_tok))
            status = refuse(path, all->n + 1, line, (size_t)n);
        else
            status = append(all, len_tok);
        if (status == CF_NO_MEMORY)
            cf_log_error("%s: no memory for more than %zu lengths", path,
                         all->n);
    }
    free(line);
    if (status == CF_OK && ferror(file)) {
        cf_log_error("%s: cannot be read: %s", path, strerror(errno));
        status = CF_MALFORMED;
    }
    return status;
}

cf_status cf_lengths_read(const char *path, uint32_t **len_tok_p, size_t *n_p)
{
    FILE *file = fopen(path, "re");
    lengths all = {0};
    cf_status status;

    if (file == NULL) {
        cf_log_error("%s: cannot be read: %s", path, strerror(errno));
        return CF_MALFORMED;
    }
    status = read_lines(file, path, &all);
    (void)fclose(file);
    if (status == CF_OK && all.n == 0) {
        cf_log_error("%s: holds no lengths: write one a line", path);
        status = CF_MALFORMED;
    }
    if (status != CF_OK) {
        free(all.len_tok);
        return status;
    }
    *len_tok_p = all.len_tok;
    *n_p = all.n;
    return CF_OK;
}
