/* arena.h - all memory of a run, sized before it starts.
 *
 * The same code carves twice: from a dry arena, whose base is NULL and which
 * only counts, then from a real one of exactly that size.  So what is predicted
 * and what is used cannot drift apart.
 *
 * (1) Nothing is given back before close.  What comes and goes inside a step
 *     (pages of KV state, activations of retained chunks) lives in a pool that
 *     was carved whole.
 * (2) Every take has a lifetime and a name, for the table printed at start.
 */
#ifndef CF_ARENA_H
#define CF_ARENA_H

#include <chunkflow/base.h>

#include <stdbool.h>
#include <stdio.h>

typedef enum cf_lifetime {
    CF_LIFETIME_RUN,   /* weights, gradients, optimizer state */
    CF_LIFETIME_GROUP, /* KV state and its gradients */
    CF_LIFETIME_CHUNK, /* activations of the retained chunks */
    CF_LIFETIME_OP,    /* scratch */
    CF_LIFETIME_COUNT
} cf_lifetime;

enum {
    CF_ARENA_ALIGN = 64,
    CF_ARENA_LINES_MAX = 32
};

typedef struct cf_arena_line {
    cf_lifetime lifetime;
    const char *what; /* static text */
    size_t bytes;
} cf_arena_line;

typedef struct cf_arena {
    char *base; /* NULL: dry */
    size_t capacity;
    size_t used;
    bool overflow; /* sticky: a size did not fit size_t */
    cf_arena_line lines[CF_ARENA_LINES_MAX];
    size_t n_lines;
} cf_arena;

void cf_arena_open_dry(cf_arena *arena);

/* Zero-filled memory of this size.  Errors, logged: CF_NO_MEMORY. */
CF_MUST_USE cf_status cf_arena_open(size_t bytes, cf_arena *arena);
void cf_arena_close(cf_arena *arena);

/* n elements of elem_bytes, aligned; NULL from a dry arena.  A real arena that
 * is asked for more than it was opened with is a programmer's error. */
void *cf_arena_take(cf_arena *arena, cf_lifetime lifetime, const char *what,
                    size_t n, size_t elem_bytes);

/* Carves something out of an arena: once dry, once for real. */
typedef void (*cf_arena_carver)(void *owner, cf_arena *arena);

/* Let carve take its memory where everything from offset `from` on lies, for
 * two that take turns.  What it needs beyond that becomes a line `what`. */
void cf_arena_overlay(cf_arena *arena, size_t from, const char *what,
                      cf_arena_carver carve, void *owner);

/* The turn of one of them: the memory that carve takes from offset `from` on is
 * cleared, then carved again. */
void cf_arena_take_turn(const cf_arena *arena, size_t from,
                        cf_arena_carver carve, void *owner);

/* base + bytes; NULL stays NULL. */
void *cf_at(void *base, size_t bytes);

/* The table "what, lifetime, bytes", one line each and the total. */
void cf_arena_print(const cf_arena *arena, FILE *file);

/* 1610612736 as "1.50 GiB".  Returns buf. */
const char *cf_bytes_format(size_t bytes, char *buf, size_t size);

#endif
