/* svg.h - what all pictures share: paper and ink, light and dark, and axes.
 *
 * The two colours are told apart by every eye (Okabe and Ito 2008) and by a
 * printer, which sees dark and light.  All pictures have one style sheet, so
 * that several of them can stand in one page.
 */
#ifndef CF_SVG_H
#define CF_SVG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* Head, style and paper; then the picture, up to its end. */
void cf_svg_begin(FILE *file, int width, int height);
void cf_svg_end(FILE *file);

/* The heading of a picture, and the smaller line below it. */
void cf_svg_heading(FILE *file, int x, const char *text);
void cf_svg_subheading(FILE *file, int x, const char *text);

/* Text that came from elsewhere, for a file of markup. */
void cf_markup_write(FILE *file, const char *text);

/* A rectangle in which two quantities are drawn. */
typedef struct cf_panel {
    FILE *file;
    double left, top, width, height; /* in the picture */
    double x_low, x_high, y_low, y_high;
} cf_panel;

double cf_panel_x(const cf_panel *panel, double value);
double cf_panel_y(const cf_panel *panel, double value);

/* Widen low .. high to take value in; from INFINITY .. -INFINITY. */
void cf_range_add(double value, double *low, double *high);

/* Make both ends different, with some air. */
void cf_range_pad(double *low, double *high);

/* Lines across with their values, and the title above. */
void cf_panel_draw_y(const cf_panel *panel, const char *title);

/* Marks below with their values: whole numbers, with what they count. */
void cf_panel_draw_x(const cf_panel *panel, const char *unit);

/* A line of class `kind` through the points whose y is finite. */
void cf_panel_draw_line(const cf_panel *panel, const char *kind,
                        const double *x, const double *y, size_t n);
void cf_panel_draw_points(const cf_panel *panel, const char *kind,
                          const double *x, const double *y, size_t n);

/* 1, 2 or 5 times a power of ten: five to twelve of them in a range. */
double cf_svg_tick(double range);

#endif
