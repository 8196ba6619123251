/* timeline_svg.c - see timeline.h: the picture.
 *
 * Kinds of forwards differ in their filling besides their colour, and every box
 * that has room carries its letter.
 */
#include "src/timeline.h"

#include <inttypes.h>
#include <math.h>

#include "src/svg.h"

enum {
    LEFT = 70,
    TOP = 68,
    PLOT_WIDTH = 1200,
    LANE = 34, /* height of a box */
    GAP = 12,
    LETTER = 8 /* width of one, about */
};

typedef struct canvas {
    FILE *file;
    const cf_timeline *timeline;
    double width_per_unit;
} canvas;

static int lane_top(uint32_t stage)
{
    return TOP + (int)stage * (LANE + GAP);
}

static void draw_box(void *context, const cf_timeline_op *op)
{
    const canvas *c = context;
    const double x = LEFT + op->time.start * c->width_per_unit;
    const double width = (op->time.end - op->time.start) * c->width_per_unit;
    const int y = lane_top(op->stage);
    const int n_letters = 2 + (op->index > 9) + (op->index > 99);

    (void)fprintf(c->file,
                  "<rect class=\"%c\" x=\"%.2f\" y=\"%d\" width=\"%.2f\" "
                  "height=\"%d\"><title>%c%" PRIu32 ": %.6g to %.6g, %" PRIu32
                  " tokens, group %" PRIu32 "</title></rect>\n",
                  op->letter, x, y, width, LANE, op->letter, op->index,
                  op->time.start, op->time.end, op->chunk->n_tok,
                  op->chunk->group);
    /* The bars of neighbouring groups differ. */
    if (cf_timeline_in_group(c->timeline, op->index))
        (void)fprintf(c->file,
                      "<rect class=\"g%u\" x=\"%.2f\" y=\"%d\" width=\"%.2f\" "
                      "height=\"4\"/>\n",
                      (unsigned)(op->chunk->group % 2), x, y + LANE + 2, width);
    if (width > n_letters * LETTER)
        (void)fprintf(c->file,
                      "<text class=\"m%s\" x=\"%.2f\" y=\"%d\">%c%" PRIu32
                      "</text>\n",
                      op->letter == 'K'   ? " w"
                      : op->letter == 'B' ? " k"
                                          : "",
                      x + width / 2, y + LANE / 2 + 4, op->letter, op->index);
}

static void draw_lanes(const canvas *c, uint32_t n_stages)
{
    for (uint32_t s = 0; s < n_stages; s++)
        (void)fprintf(c->file,
                      "<text class=\"e\" x=\"%d\" y=\"%d\">stage %" PRIu32
                      "</text>\n<rect class=\"i\" x=\"%d\" y=\"%d\" "
                      "width=\"%d\" height=\"%d\"/>\n",
                      LEFT - 8, lane_top(s) + LANE / 2 + 4, s, LEFT,
                      lane_top(s), PLOT_WIDTH, LANE);
}

static void draw_axis(const canvas *c, double makespan, int y)
{
    const double tick = cf_svg_tick(makespan);

    for (int i = 0; i * tick <= makespan; i++) {
        double x = LEFT + i * tick * c->width_per_unit;

        (void)fprintf(c->file,
                      "<path class=\"t\" d=\"M%.2f %dv5\"/><text class=\"m\" "
                      "x=\"%.2f\" y=\"%d\">%.6g%s%s</text>\n",
                      x, y, x, y + 18, i * tick,
                      c->timeline->unit != NULL ? " " : "",
                      c->timeline->unit != NULL ? c->timeline->unit : "");
    }
}

static void draw_legend(const canvas *c)
{
    static const struct {
        char letter;
        int x;
        const char *text;
    } keys[] = {
        {'K', 0, "forward, activations kept"},
        {'F', 205, "forward, dropped"},
        {'R', 355, "recompute"},
        {'B', 460, "backward"},
    };

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        (void)fprintf(c->file,
                      "<rect class=\"%c\" x=\"%d\" y=\"40\" width=\"16\" "
                      "height=\"12\"/><text x=\"%d\" y=\"51\">%s</text>\n",
                      keys[i].letter, LEFT + keys[i].x, LEFT + keys[i].x + 22,
                      keys[i].text);
    (void)fprintf(c->file,
                  "<rect class=\"i\" x=\"%d\" y=\"40\" width=\"16\" height=\""
                  "12\"/><text x=\"%d\" y=\"51\">idle</text>\n<rect class=\""
                  "g0\" x=\"%d\" y=\"45\" width=\"16\" height=\"4\"/><text "
                  "x=\"%d\" y=\"51\">chunk of a long sequence</text>\n",
                  LEFT + 560, LEFT + 582, LEFT + 630, LEFT + 652);
}

static void draw_title(const canvas *c)
{
    const cf_simulation *simulation = c->timeline->simulation;
    const char *unit = c->timeline->unit;
    char heading[128], line[256];

    (void)cf_timeline_heading(c->timeline, heading, sizeof(heading));
    (void)snprintf(line, sizeof(line),
                   "%s%s: bubble %.1f %%, makespan %.4g%s%s",
                   c->timeline->what != NULL ? c->timeline->what : "", heading,
                   100 * simulation->bubble_ratio, simulation->makespan,
                   unit != NULL ? " " : "", unit != NULL ? unit : "");
    cf_svg_heading(c->file, LEFT, line);
}

cf_status cf_timeline_write_svg(FILE *file, const void *content)
{
    const cf_timeline *timeline = content;
    const double makespan = timeline->simulation->makespan;
    const uint32_t n_stages = timeline->schedule->params.n_stages;
    const int bottom = lane_top(n_stages);
    canvas c = {.file = file,
                .timeline = timeline,
                .width_per_unit = makespan > 0 ? PLOT_WIDTH / makespan : 0};

    cf_svg_begin(file, LEFT + PLOT_WIDTH + 30, bottom + 30);
    draw_title(&c);
    draw_legend(&c);
    draw_lanes(&c, n_stages);
    cf_timeline_visit(timeline, draw_box, &c);
    if (makespan > 0)
        draw_axis(&c, makespan, bottom);
    cf_svg_end(file);
    return ferror(file) ? CF_IO : CF_OK;
}
