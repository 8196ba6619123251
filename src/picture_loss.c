/* picture_loss.c - see picture.h: loss, norm of the gradient, learning rate.
 *
 * A long run has more steps than a picture has columns: neighbours are shown as
 * their mean.
 */
#include "src/picture.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "src/svg.h"

enum {
    LEFT = 70,
    WIDTH = 900,
    PLOT_WIDTH = WIDTH - LEFT - 30,
    LOSS_TOP = 92,
    LOSS_HEIGHT = 220,
    SMALL_HEIGHT = 64,
    BETWEEN = 36,
    NORM_TOP = LOSS_TOP + LOSS_HEIGHT + BETWEEN,
    RATE_TOP = NORM_TOP + SMALL_HEIGHT + BETWEEN,
    HEIGHT = RATE_TOP + SMALL_HEIGHT + 50,
    COLUMNS_MAX = 600,
    POINTS_MAX = 60,  /* fewer steps are shown as points */
    TREND_PARTS = 25, /* the trend is a mean over this part of the columns */
    EVAL_POINTS_MAX = 200
};

/* One quantity over the steps of the run. */
typedef struct curve {
    size_t n;
    double x[COLUMNS_MAX], y[COLUMNS_MAX];
} curve;

/* The mean of from[first .. end) that is finite. */
static double mean(const double *from, size_t first, size_t end)
{
    double sum = 0;
    size_t n = 0;

    for (size_t i = first; i < end; i++) {
        if (isfinite(from[i])) {
            sum += from[i];
            n++;
        }
    }
    return n > 0 ? sum / (double)n : NAN;
}

static void curve_make(const cf_history *h, cf_history_column column, curve *c)
{
    const size_t n = h->n_steps;

    c->n = n < COLUMNS_MAX ? n : COLUMNS_MAX;
    for (size_t i = 0; i < c->n; i++) {
        const size_t first = n * i / c->n, end = n * (i + 1) / c->n;

        c->x[i] = mean(h->columns[CF_HISTORY_STEP], first, end);
        c->y[i] = mean(h->columns[column], first, end);
    }
}

/* A mean over what lies around each column. */
static void trend_make(const curve *c, curve *trend)
{
    const size_t reach = c->n / TREND_PARTS / 2 + 1;

    trend->n = c->n;
    for (size_t i = 0; i < c->n; i++) {
        const size_t first = i > reach ? i - reach : 0;
        const size_t end = i + reach + 1 < c->n ? i + reach + 1 : c->n;

        trend->x[i] = c->x[i];
        trend->y[i] = mean(c->y, first, end);
    }
}

static void range_of(const double *y, size_t n, double *low, double *high)
{
    for (size_t i = 0; i < n; i++)
        cf_range_add(y[i], low, high);
}

static cf_panel panel_at(FILE *file, const cf_picture_loss *picture, int top,
                         int height)
{
    const cf_history *h = picture->history;
    double last = (double)picture->n_steps;

    if (h->n_steps > 0 && h->columns[CF_HISTORY_STEP][h->n_steps - 1] > last)
        last = h->columns[CF_HISTORY_STEP][h->n_steps - 1];
    return (cf_panel){.file = file,
                      .left = LEFT,
                      .top = top,
                      .width = PLOT_WIDTH,
                      .height = height,
                      .x_low = last > 1 ? 1 : 0,
                      .x_high = last > 1 ? last : 2,
                      .y_low = INFINITY,
                      .y_high = -INFINITY};
}

static void draw_curve(const cf_panel *panel, const curve *c)
{
    curve trend;

    if (c->n <= POINTS_MAX) {
        cf_panel_draw_line(panel, "n1", c->x, c->y, c->n);
        cf_panel_draw_points(panel, "c1", c->x, c->y, c->n);
        return;
    }
    trend_make(c, &trend);
    cf_panel_draw_line(panel, "n4", c->x, c->y, c->n);
    cf_panel_draw_line(panel, "n1", trend.x, trend.y, trend.n);
}

static void draw_loss(FILE *file, const cf_picture_loss *picture)
{
    const cf_history *h = picture->history;
    cf_panel panel = panel_at(file, picture, LOSS_TOP, LOSS_HEIGHT);
    curve c;

    curve_make(h, CF_HISTORY_LOSS, &c);
    range_of(c.y, c.n, &panel.y_low, &panel.y_high);
    range_of(h->eval_loss, h->n_evals, &panel.y_low, &panel.y_high);
    cf_range_pad(&panel.y_low, &panel.y_high);
    cf_panel_draw_y(&panel, "loss");
    draw_curve(&panel, &c);
    if (h->n_evals == 0)
        return;
    cf_panel_draw_line(&panel, "n3", h->eval_step, h->eval_loss, h->n_evals);
    if (h->n_evals <= EVAL_POINTS_MAX)
        cf_panel_draw_points(&panel, "c3", h->eval_step, h->eval_loss,
                             h->n_evals);
    (void)fprintf(file,
                  "<path class=\"n1\" d=\"M%d 70h26\"/><text x=\"%d\" y=\"75\">"
                  "training</text><path class=\"n3\" d=\"M%d 70h26\"/><text "
                  "x=\"%d\" y=\"75\">evaluation</text>\n",
                  LEFT + 520, LEFT + 554, LEFT + 640, LEFT + 674);
}

static void draw_small(FILE *file, const cf_picture_loss *picture, int top,
                       cf_history_column column, const char *title)
{
    cf_panel panel = panel_at(file, picture, top, SMALL_HEIGHT);
    curve c;

    curve_make(picture->history, column, &c);
    panel.y_low = 0;
    range_of(c.y, c.n, &panel.y_low, &panel.y_high);
    cf_range_pad(&panel.y_low, &panel.y_high);
    panel.y_low = 0;
    cf_panel_draw_y(&panel, title);
    cf_panel_draw_line(&panel, "n2", c.x, c.y, c.n);
    if (column == CF_HISTORY_LEARNING_RATE)
        cf_panel_draw_x(&panel, "step");
}

/* The last of an array that is finite, NAN without one. */
static double last_of(const double *y, size_t n)
{
    while (n > 0 && !isfinite(y[n - 1]))
        n--;
    return n > 0 ? y[n - 1] : NAN;
}

static void draw_headings(FILE *file, const cf_picture_loss *picture)
{
    const cf_history *h = picture->history;
    const double step = last_of(h->columns[CF_HISTORY_STEP], h->n_steps);
    const double loss = last_of(h->columns[CF_HISTORY_LOSS], h->n_steps);
    char line[160] = "Loss", below[160] = "no step has run yet";
    size_t best = 0;

    for (size_t i = 1; i < h->n_evals; i++)
        if (h->eval_loss[i] < h->eval_loss[best])
            best = i;
    if (isfinite(loss))
        (void)snprintf(line, sizeof(line), "Loss %.4g", loss);
    if (isfinite(step) && picture->n_steps > 0)
        (void)snprintf(below, sizeof(below), "at step %.0f of %" PRIu64, step,
                       picture->n_steps);
    else if (isfinite(step))
        (void)snprintf(below, sizeof(below), "at step %.0f", step);
    if (h->n_evals > 0) {
        const size_t n = strlen(below);

        (void)snprintf(below + n, sizeof(below) - n,
                       "; evaluation %.4g, the best %.4g after step %.0f",
                       h->eval_loss[h->n_evals - 1], h->eval_loss[best],
                       h->eval_step[best]);
    }
    cf_svg_heading(file, LEFT, line);
    cf_svg_subheading(file, LEFT, below);
}

cf_status cf_picture_write_loss(FILE *file, const void *content)
{
    const cf_picture_loss *picture = content;

    cf_svg_begin(file, WIDTH, HEIGHT);
    draw_headings(file, picture);
    draw_loss(file, picture);
    draw_small(file, picture, NORM_TOP, CF_HISTORY_GRAD_NORM,
               "norm of the gradient");
    draw_small(file, picture, RATE_TOP, CF_HISTORY_LEARNING_RATE,
               "learning rate");
    cf_svg_end(file);
    return ferror(file) ? CF_IO : CF_OK;
}
