/* svg.c - see svg.h. */
#include "src/svg.h"

#include <math.h>

/* Plain colours first: a reader of SVG that knows no media queries shows the
 * light picture. */
static const char style[] =
    "<style>text{font:13px system-ui,sans-serif;fill:#1f2328}.h{font-size:17px;"
    "font-weight:600}.s{fill:#59636e}.m{text-anchor:middle}.e{text-anchor:end}"
    ".w{fill:#fff}.p{fill:#fff}.i{fill:#eceef1}.x{stroke:#d9dde2}.t{stroke:#666"
    "}.c1{fill:#0072b2}.c2{fill:#e69f00}.c3{fill:#d55e00}.n1,.n2,.n3,.n4{fill:"
    "none;stroke-width:2;stroke-linejoin:round}.n1{stroke:#0072b2}.n2{stroke:"
    "#b77b00}.n3{stroke:#d55e00;stroke-dasharray:7 4}.n4{stroke:#0072b2;"
    "stroke-width:1;opacity:.35}.F,.K,.R,.B{stroke:#fff;stroke-width:.6}.K{"
    "fill:#0072b2}.B{fill:#e69f00}.F{fill:#fff;stroke:#0072b2;"
    "stroke-dasharray:3 2}.R{fill:url(#r);stroke:#0072b2}.r0{fill:#fff}.r1{"
    "fill:#7fb8d8}.g0{fill:#000}.g1{fill:#999}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.s{fill:#9aa4ae}.p{"
    "fill:#0d1117}.i{fill:#21262d}.x{stroke:#30363d}.t{stroke:#9aa4ae}.w,.k{"
    "fill:#000}.c1{fill:#56b4e9}.c3{fill:#ff7b39}.n1,.n4{stroke:#56b4e9}.n2{"
    "stroke:#e69f00}.n3{stroke:#ff7b39}.F,.K,.R,.B{stroke:#0d1117}.K{fill:"
    "#56b4e9}.F{fill:#0d1117;stroke:#56b4e9}.R{stroke:#56b4e9}.r0{fill:#0d1117"
    "}.r1{fill:#3f84ab}.g0{fill:#fff}.g1{fill:#777}}</style>\n"
    "<defs><pattern id=\"r\" width=\"6\" height=\"6\" patternUnits=\""
    "userSpaceOnUse\" patternTransform=\"rotate(45)\"><rect class=\"r0\" "
    "width=\"6\" height=\"6\"/><rect class=\"r1\" width=\"2\" height=\"6\"/>"
    "</pattern></defs>\n"
    "<rect class=\"p\" width=\"100%\" height=\"100%\"/>\n";

void cf_svg_begin(FILE *file, int width, int height)
{
    (void)fprintf(file,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d "
                  "%d\" width=\"%d\" style=\"max-width:100%%;height:auto\">\n",
                  width, height, width);
    (void)fputs(style, file);
}

void cf_svg_end(FILE *file)
{
    (void)fputs("</svg>\n", file);
}

void cf_markup_write(FILE *file, const char *text)
{
    for (; *text != '\0'; text++) {
        switch (*text) {
        case '&':
            (void)fputs("&amp;", file);
            break;
        case '<':
            (void)fputs("&lt;", file);
            break;
        case '>':
            (void)fputs("&gt;", file);
            break;
        case '"':
            (void)fputs("&quot;", file);
            break;
        default:
            (void)fputc(*text, file);
        }
    }
}

static void line_at(FILE *file, const char *kind, int x, int y,
                    const char *text)
{
    (void)fprintf(file, "<text class=\"%s\" x=\"%d\" y=\"%d\">", kind, x, y);
    cf_markup_write(file, text);
    (void)fputs("</text>\n", file);
}

void cf_svg_heading(FILE *file, int x, const char *text)
{
    line_at(file, "h", x, 26, text);
}

void cf_svg_subheading(FILE *file, int x, const char *text)
{
    line_at(file, "s", x, 46, text);
}

/* ---- panels ---- */

double cf_panel_x(const cf_panel *panel, double value)
{
    return panel->left + (value - panel->x_low) /
                             (panel->x_high - panel->x_low) * panel->width;
}

double cf_panel_y(const cf_panel *panel, double value)
{
    return panel->top + (panel->y_high - value) /
                            (panel->y_high - panel->y_low) * panel->height;
}

void cf_range_add(double value, double *low, double *high)
{
    if (!isfinite(value))
        return;
    if (value < *low)
        *low = value;
    if (value > *high)
        *high = value;
}

void cf_range_pad(double *low, double *high)
{
    double air;

    if (!(*low <= *high)) { /* nothing came */
        *low = 0;
        *high = 1;
    }
    air = (*high - *low) * 0.05;
    if (air == 0)
        air = *high != 0 ? fabs(*high) * 0.05 : 1;
    *low -= air;
    *high += air;
}

double cf_svg_tick(double range)
{
    const double power = pow(10, floor(log10(range)));

    if (range / power < 2.5)
        return power / 5;
    return range / power < 5 ? power / 2 : power;
}

/* Fewer where a panel is low. */
static double tick_y(const cf_panel *panel)
{
    const double tick = cf_svg_tick(panel->y_high - panel->y_low);

    if (panel->height < 100)
        return tick * 5;
    return panel->height < 200 ? tick * 2 : tick;
}

void cf_panel_draw_y(const cf_panel *panel, const char *title)
{
    const double tick = tick_y(panel);
    const double right = panel->left + panel->width;

    line_at(panel->file, "s", (int)panel->left, (int)panel->top - 8, title);
    for (double at = ceil(panel->y_low / tick); at * tick <= panel->y_high;
         at++) {
        const double y = cf_panel_y(panel, at * tick);

        (void)fprintf(panel->file,
                      "<path class=\"x\" d=\"M%.1f %.1fH%.1f\"/><text "
                      "class=\"s e\" x=\"%.1f\" y=\"%.1f\">%.4g</text>\n",
                      panel->left, y, right, panel->left - 8, y + 4.5,
                      at * tick);
    }
}

void cf_panel_draw_x(const cf_panel *panel, const char *unit)
{
    const double tick = fmax(1, cf_svg_tick(panel->x_high - panel->x_low));
    const double bottom = panel->top + panel->height;

    for (double at = ceil(panel->x_low / tick); at * tick <= panel->x_high;
         at++) {
        const double x = cf_panel_x(panel, at * tick);

        (void)fprintf(panel->file,
                      "<path class=\"t\" d=\"M%.1f %.1fv5\"/><text class=\"s "
                      "m\" x=\"%.1f\" y=\"%.1f\">%.0f</text>\n",
                      x, bottom, x, bottom + 19, at * tick);
    }
    (void)fprintf(panel->file,
                  "<text class=\"s e\" x=\"%.1f\" y=\"%.1f\">%s</text>\n",
                  panel->left + panel->width, bottom + 36, unit);
}

void cf_panel_draw_line(const cf_panel *panel, const char *kind,
                        const double *x, const double *y, size_t n)
{
    char move = 'M';

    (void)fprintf(panel->file, "<path class=\"%s\" d=\"", kind);
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(y[i]))
            continue;
        (void)fprintf(panel->file, "%c%.1f %.1f", move, cf_panel_x(panel, x[i]),
                      cf_panel_y(panel, y[i]));
        move = 'L';
    }
    (void)fputs("\"/>\n", panel->file);
}

void cf_panel_draw_points(const cf_panel *panel, const char *kind,
                          const double *x, const double *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (isfinite(y[i]))
            (void)fprintf(panel->file,
                          "<circle class=\"%s\" cx=\"%.1f\" cy=\"%.1f\" "
                          "r=\"3\"><title>%.0f: %.6g</title></circle>\n",
                          kind, cf_panel_x(panel, x[i]),
                          cf_panel_y(panel, y[i]), x[i], y[i]);
}
