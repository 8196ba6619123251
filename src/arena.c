/* arena.c - see arena.h. */
#include "src/arena.h"

#include <assert.h>
#include <string.h>
#include <sys/mman.h>

#include "src/log.h"

static const char *const lifetime_names[CF_LIFETIME_COUNT] = {
    [CF_LIFETIME_RUN] = "run",
    [CF_LIFETIME_GROUP] = "group",
    [CF_LIFETIME_CHUNK] = "chunk",
    [CF_LIFETIME_OP] = "op",
};

void cf_arena_open_dry(cf_arena *arena)
{
    memset(arena, 0, sizeof(*arena));
}

cf_status cf_arena_open(size_t bytes, cf_arena *arena)
{
    char text[32];
    void *base = mmap(NULL, bytes > 0 ? bytes : 1, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    memset(arena, 0, sizeof(*arena));
    if (base == MAP_FAILED) {
        cf_log_error("cannot map %s of memory: use a smaller --chunk-size or "
                     "--retain-chunks",
                     cf_bytes_format(bytes, text, sizeof(text)));
        return CF_NO_MEMORY;
    }
    arena->base = base;
    arena->capacity = bytes;
    return CF_OK;
}

void cf_arena_close(cf_arena *arena)
{
    if (arena->base != NULL)
        munmap(arena->base, arena->capacity > 0 ? arena->capacity : 1);
    memset(arena, 0, sizeof(*arena));
}

/* Takes of one name and lifetime share a line. */
static void line_add(cf_arena *arena, cf_lifetime lifetime, const char *what,
                     size_t bytes)
{
    cf_arena_line *line = arena->lines;
    const cf_arena_line *end = line + arena->n_lines;

    while (line < end &&
           (line->lifetime != lifetime || strcmp(line->what, what) != 0))
        line++;
    if (line == end) {
        assert(arena->n_lines < CF_ARENA_LINES_MAX);
        *line = (cf_arena_line){.lifetime = lifetime, .what = what};
        arena->n_lines++;
    }
    line->bytes += bytes;
}

void *cf_arena_take(cf_arena *arena, cf_lifetime lifetime, const char *what,
                    size_t n, size_t elem_bytes)
{
    size_t bytes, end;
    void *at;

    if (__builtin_mul_overflow(n, elem_bytes, &bytes) ||
        __builtin_add_overflow(bytes, CF_ARENA_ALIGN - 1, &bytes) ||
        __builtin_add_overflow(arena->used, bytes, &end)) {
        arena->overflow = true;
        return NULL;
    }
    bytes -= bytes % CF_ARENA_ALIGN;
    end = arena->used + bytes;
    assert(arena->base == NULL || end <= arena->capacity);

    at = cf_at(arena->base, arena->used);
    line_add(arena, lifetime, what, bytes);
    arena->used = end;
    return at;
}

void cf_arena_overlay(cf_arena *arena, size_t from, const char *what,
                      cf_arena_carver carve, void *owner)
{
    cf_arena over = *arena;

    over.used = from;
    carve(owner, &over);
    arena->overflow |= over.overflow;
    if (over.used > arena->used)
        cf_arena_take(arena, CF_LIFETIME_GROUP, what, over.used - arena->used,
                      1);
}

void cf_arena_take_turn(const cf_arena *arena, size_t from,
                        cf_arena_carver carve, void *owner)
{
    cf_arena dry = {.used = from};
    cf_arena turn = *arena;

    carve(owner, &dry);
    assert(!dry.overflow && dry.used <= arena->used);
    memset(arena->base + from, 0, dry.used - from);
    turn.used = from;
    carve(owner, &turn);
}

void *cf_at(void *base, size_t bytes)
{
    return base == NULL ? NULL : (char *)base + bytes;
}

void cf_arena_print(const cf_arena *arena, FILE *file)
{
    char text[32];

    fprintf(file, "%-34s %-8s %12s\n", "memory", "lifetime", "bytes");
    for (int lifetime = 0; lifetime < CF_LIFETIME_COUNT; lifetime++)
        for (size_t i = 0; i < arena->n_lines; i++) {
            const cf_arena_line *line = &arena->lines[i];

            if ((int)line->lifetime != lifetime || line->bytes == 0)
                continue;
            fprintf(file, "  %-32s %-8s %12s\n", line->what,
                    lifetime_names[lifetime],
                    cf_bytes_format(line->bytes, text, sizeof(text)));
        }
    fprintf(file, "  %-32s %-8s %12s\n", "total", "",
            cf_bytes_format(arena->used, text, sizeof(text)));
}

const char *cf_bytes_format(size_t bytes, char *buf, size_t size)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    size_t unit = 0;

    while (value >= 1024 && unit + 1 < sizeof(units) / sizeof(units[0])) {
        value /= 1024;
        unit++;
    }
    snprintf(buf, size, unit == 0 ? "%.0f %s" : "%.2f %s", value, units[unit]);
    return buf;
}
