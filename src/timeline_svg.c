/* timeline_svg.c - see timeline.h: the picture.
 *
 * The two colours are told apart by every eye (Okabe and Ito 2008) and by a
 * printer, which sees dark and light; kinds of forwards differ in their filling
 * besides, and every box that has room carries its letter.
 */
#include "src/timeline.h"

#include <inttypes.h>
#include <math.h>

enum {
    LEFT = 70,
    TOP = 64,
    PLOT_WIDTH = 1200,
    LANE = 34, /* height of a box */
    GAP = 12,
    LETTER = 8 /* width of one, about */
};

static const char head[] =
    "<style>text{font:12px sans-serif}.h{font-size:15px}.m{text-anchor:middle}"
    ".e{text-anchor:end}.w{fill:#fff}.i{fill:#eee}.F,.K,.R,.B{stroke:#fff;"
    "stroke-width:.6}.K{fill:#0072b2}.B{fill:#e69f00}.F{fill:#fff;stroke:"
    "#0072b2;stroke-dasharray:3 2}.R{fill:url(#r);stroke:#0072b2}.g0{fill:#000}"
    ".g1{fill:#999}.t{stroke:#666}</style>\n"
    "<defs><pattern id=\"r\" width=\"6\" height=\"6\" patternUnits=\""
    "userSpaceOnUse\" patternTransform=\"rotate(45)\"><rect width=\"6\" "
    "height=\"6\" fill=\"#fff\"/><rect width=\"2\" height=\"6\" fill=\"#7fb8d8"
    "\"/></pattern></defs>\n";

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
                      op->letter == 'K' ? " w" : "", x + width / 2,
                      y + LANE / 2 + 4, op->letter, op->index);
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

/* 1, 2 or 5 times a power of ten: 5 to 12 of them in the whole. */
static double tick_of(double makespan)
{
    double power = pow(10, floor(log10(makespan)));

    if (makespan / power < 2.5)
        return power / 5;
    return makespan / power < 5 ? power / 2 : power;
}

static void draw_axis(const canvas *c, double makespan, int y)
{
    const double tick = tick_of(makespan);

    for (int i = 0; i * tick <= makespan; i++) {
        double x = LEFT + i * tick * c->width_per_unit;

        (void)fprintf(c->file,
                      "<path class=\"t\" d=\"M%.2f %dv5\"/><text class=\"m\" "
                      "x=\"%.2f\" y=\"%d\">%.6g</text>\n",
                      x, y, x, y + 18, i * tick);
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
        {'F', 190, "forward, dropped"},
        {'R', 330, "recompute"},
        {'B', 430, "backward"},
    };

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        (void)fprintf(c->file,
                      "<rect class=\"%c\" x=\"%d\" y=\"36\" width=\"16\" "
                      "height=\"12\"/><text x=\"%d\" y=\"46\">%s</text>\n",
                      keys[i].letter, LEFT + keys[i].x, LEFT + keys[i].x + 22,
                      keys[i].text);
    (void)fprintf(c->file,
                  "<rect class=\"i\" x=\"%d\" y=\"36\" width=\"16\" height=\""
                  "12\"/><text x=\"%d\" y=\"46\">idle</text>\n<rect class=\""
                  "g0\" x=\"%d\" y=\"41\" width=\"16\" height=\"4\"/><text "
                  "x=\"%d\" y=\"46\">chunk of a long sequence</text>\n",
                  LEFT + 520, LEFT + 542, LEFT + 590, LEFT + 612);
}

static void draw_title(const canvas *c)
{
    const cf_simulation *simulation = c->timeline->simulation;
    char heading[128];

    (void)cf_timeline_heading(c->timeline, heading, sizeof(heading));
    (void)fprintf(c->file,
                  "<text class=\"h\" x=\"%d\" y=\"22\">%s: bubble %.1f %%, "
                  "makespan %.6g</text>\n",
                  LEFT, heading, 100 * simulation->bubble_ratio,
                  simulation->makespan);
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

    (void)fprintf(file,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d "
                  "%d\" width=\"%d\">\n<rect width=\"100%%\" height=\"100%%\" "
                  "fill=\"#fff\"/>\n%s",
                  LEFT + PLOT_WIDTH + 30, bottom + 30, LEFT + PLOT_WIDTH + 30,
                  head);
    draw_title(&c);
    draw_legend(&c);
    draw_lanes(&c, n_stages);
    cf_timeline_visit(timeline, draw_box, &c);
    if (makespan > 0)
        draw_axis(&c, makespan, bottom);
    (void)fputs("</svg>\n", file);
    return ferror(file) ? CF_IO : CF_OK;
}
