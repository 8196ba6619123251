/* picture_memory.c - see picture.h: what was predicted part by part, and what the
 * steps used. */
#include "src/picture.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "src/svg.h"

enum {
    LEFT = 70,
    WIDTH = 900,
    PLOT_WIDTH = WIDTH - LEFT - 30,
    PARTS_TOP = 84,
    PART_PITCH = 24,
    BAR = 16,
    BAR_LEFT = LEFT + 256,
    BAR_WIDTH = PLOT_WIDTH - 256 - 90,
    PARTS_MAX = 10, /* the smaller ones are one */
    STEPS_HEIGHT = 150
};

typedef struct part {
    const char *what;
    double bytes;
} part;

static int larger_first(const void *a, const void *b)
{
    const double x = ((const part *)a)->bytes, y = ((const part *)b)->bytes;

    return (x < y) - (x > y);
}

/* The lines of an arena from the largest on; gives their number. */
static size_t parts_sort(const cf_arena *sizes, part *parts)
{
    size_t n = 0;

    for (size_t i = 0; i < sizes->n_lines; i++)
        if (sizes->lines[i].bytes > 0)
            parts[n++] =
                (part){sizes->lines[i].what, (double)sizes->lines[i].bytes};
    qsort(parts, n, sizeof(parts[0]), larger_first);
    for (; n > PARTS_MAX; n--) {
        parts[n - 2].what = "everything else";
        parts[n - 2].bytes += parts[n - 1].bytes;
    }
    return n;
}

static void draw_parts(FILE *file, const part *parts, size_t n, double most)
{
    for (size_t i = 0; i < n; i++) {
        const int y = PARTS_TOP + (int)i * PART_PITCH;
        const double width = fmax(1, parts[i].bytes / most * BAR_WIDTH);
        char bytes[32];

        (void)fprintf(
            file,
            "<text x=\"%d\" y=\"%d\">%s</text><rect class=\"c1\" x=\"%d\" "
            "y=\"%d\" width=\"%.1f\" height=\"%d\"/><text x=\"%.1f\" "
            "y=\"%d\">%s</text>\n",
            LEFT, y + BAR - 3, parts[i].what, BAR_LEFT, y, width, BAR,
            BAR_LEFT + width + 8, y + BAR - 3,
            cf_bytes_format((size_t)parts[i].bytes, bytes, sizeof(bytes)));
    }
}

/* The unit in which the axis has small numbers. */
static double unit_of(double bytes, const char **name_p)
{
    static const char *const names[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    double unit = 1;
    size_t i = 0;

    while (bytes / unit >= 2048 && i < 4) {
        unit *= 1024;
        i++;
    }
    *name_p = names[i];
    return unit;
}

/* The measured steps against the line that was predicted. */
static cf_status draw_steps(FILE *file, const cf_picture_memory *picture,
                            int top)
{
    const cf_history *h = picture->history;
    const double *steps = h->columns[CF_HISTORY_STEP];
    const double last = h->n_steps > 0 ? steps[h->n_steps - 1] : 0;
    const double predicted = (double)picture->predicted_bytes;
    const char *name;
    const double unit = unit_of(predicted, &name);
    cf_panel panel = {.file = file,
                      .left = LEFT,
                      .top = top,
                      .width = PLOT_WIDTH,
                      .height = STEPS_HEIGHT,
                      .x_low = last > 1 ? 1 : 0,
                      .x_high = last > 1 ? last : 2,
                      .y_low = 0,
                      .y_high = predicted / unit};
    double *used = malloc((h->n_steps + 1) * sizeof(*used));
    char title[96];
    double y;

    if (used == NULL)
        return CF_NO_MEMORY;
    for (size_t i = 0; i < h->n_steps; i++) {
        used[i] = h->columns[CF_HISTORY_PEAK_BYTES][i] / unit;
        cf_range_add(used[i], &panel.y_low, &panel.y_high);
    }
    panel.y_high *= 1.1;
    (void)snprintf(title, sizeof(title),
                   "used by each step, most over ranks, in %s", name);
    cf_panel_draw_y(&panel, title);
    cf_panel_draw_x(&panel, "step");
    cf_panel_draw_line(&panel, "n1", steps, used, h->n_steps);
    if (h->n_steps <= 60)
        cf_panel_draw_points(&panel, "c1", steps, used, h->n_steps);
    free(used);
    y = cf_panel_y(&panel, predicted / unit);
    (void)fprintf(file,
                  "<path class=\"n3\" d=\"M%d %.1fh%d\"/><text class=\"e\" "
                  "x=\"%d\" y=\"%.1f\">predicted</text>\n",
                  LEFT, y, PLOT_WIDTH, LEFT + PLOT_WIDTH, y - 6);
    return CF_OK;
}

static void draw_headings(FILE *file, const cf_picture_memory *picture)
{
    const cf_history *h = picture->history;
    double used = 0;
    char a[32], b[32], line[160];

    for (size_t i = 0; i < h->n_steps; i++)
        used = fmax(used, h->columns[CF_HISTORY_PEAK_BYTES][i]);
    (void)snprintf(line, sizeof(line), "Memory: %s used of %s predicted",
                   cf_bytes_format((size_t)used, a, sizeof(a)),
                   cf_bytes_format(picture->predicted_bytes, b, sizeof(b)));
    cf_svg_heading(file, LEFT, line);
    if (picture->n_ranks > 1)
        (void)snprintf(line, sizeof(line),
                       "%" PRIu32 " ranks; most over ranks, and the parts of "
                       "rank 0:",
                       picture->n_ranks);
    else
        (void)snprintf(line, sizeof(line), "predicted, part by part:");
    cf_svg_subheading(file, LEFT, line);
}

cf_status cf_picture_write_memory(FILE *file, const void *content)
{
    const cf_picture_memory *picture = content;
    part parts[CF_ARENA_LINES_MAX];
    const size_t n = parts_sort(picture->sizes, parts);
    const int steps_top = PARTS_TOP + (int)n * PART_PITCH + 40;
    cf_status status;

    cf_svg_begin(file, WIDTH, steps_top + STEPS_HEIGHT + 50);
    draw_headings(file, picture);
    if (n > 0)
        draw_parts(file, parts, n, parts[0].bytes);
    status = draw_steps(file, picture, steps_top);
    cf_svg_end(file);
    return status == CF_OK && ferror(file) ? CF_IO : status;
}
