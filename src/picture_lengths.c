/* picture_lengths.c - see picture.h: how long the sequences are, and where their
 * tokens lie.  A bin is a power of two. */
#include "src/picture.h"

#include <inttypes.h>
#include <math.h>

#include "src/svg.h"

enum {
    LEFT = 70,
    WIDTH = 900,
    PLOT_WIDTH = WIDTH - LEFT - 30,
    TOP = 124,
    PLOT_HEIGHT = 230,
    BOTTOM = TOP + PLOT_HEIGHT,
    HEIGHT = BOTTOM + 60,
    N_BINS = 33
};

typedef struct histogram {
    double sequences[N_BINS]; /* bin b: up to 2^b tokens, above half of it */
    double tokens[N_BINS];
    double n_tok, n_long;
    uint32_t longest;
    unsigned first, end; /* bins in use */
} histogram;

static unsigned bin_of(uint32_t len_tok)
{
    unsigned bin = 0;

    while (bin + 1 < N_BINS && UINT64_C(1) << bin < len_tok)
        bin++;
    return bin;
}

static histogram histogram_make(const cf_picture_lengths *picture)
{
    histogram h = {.first = N_BINS, .end = 0};

    for (size_t i = 0; i < picture->n; i++) {
        const uint32_t n = picture->len_tok[picture->sequences[i]];
        const unsigned bin = bin_of(n);

        h.sequences[bin]++;
        h.tokens[bin] += n;
        h.n_tok += n;
        h.n_long += n > picture->chunk_size_tok;
        if (n > h.longest)
            h.longest = n;
        if (bin < h.first)
            h.first = bin;
        if (bin + 1 > h.end)
            h.end = bin + 1;
    }
    if (h.end == 0) {
        h.first = 0;
        h.end = 1;
    }
    return h;
}

/* "4K" for 4096. */
static void format_tokens(uint64_t n, char *buf, size_t size)
{
    if (n >= 1 << 20)
        (void)snprintf(buf, size, "%" PRIu64 "M", n >> 20);
    else if (n >= 1 << 10)
        (void)snprintf(buf, size, "%" PRIu64 "K", n >> 10);
    else
        (void)snprintf(buf, size, "%" PRIu64, n);
}

static void draw_bar(FILE *file, const char *kind, double x, double width,
                     double share, double most)
{
    const double height = share / most * PLOT_HEIGHT;

    if (share <= 0)
        return;
    (void)fprintf(file,
                  "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" "
                  "height=\"%.1f\"/>\n",
                  kind, x, BOTTOM - height, width, height);
    /* Above its bar, where there is room for it. */
    if (width >= 20)
        (void)fprintf(file,
                      "<text class=\"m\" x=\"%.1f\" y=\"%.1f\">%.*f</text>\n",
                      x + width / 2, BOTTOM - height - 5,
                      100 * share < 9.95 ? 1 : 0, 100 * share);
}

static void draw_bins(FILE *file, const cf_picture_lengths *picture,
                      const histogram *h)
{
    const double pitch = (double)PLOT_WIDTH / (h->end - h->first);
    const double width = fmin(pitch * 0.4, 60);
    double most = 0;

    for (unsigned b = h->first; b < h->end; b++)
        most = fmax(most, fmax(h->sequences[b] / (double)picture->n,
                               h->tokens[b] / h->n_tok));
    for (unsigned b = h->first; b < h->end; b++) {
        const double middle = LEFT + (b - h->first + 0.5) * pitch;
        char label[16];

        draw_bar(file, "c1", middle - width, width,
                 h->sequences[b] / (double)picture->n, most);
        draw_bar(file, "c2", middle, width, h->tokens[b] / h->n_tok, most);
        format_tokens(UINT64_C(1) << b, label, sizeof(label));
        (void)fprintf(file,
                      "<text class=\"s m\" x=\"%.1f\" y=\"%d\">%s</text>\n",
                      middle, BOTTOM + 20, label);
    }
}

/* Where a sequence begins to need several chunks. */
static void draw_chunk_size(FILE *file, const cf_picture_lengths *picture,
                            const histogram *h)
{
    const double pitch = (double)PLOT_WIDTH / (h->end - h->first);
    const double bins = log2(picture->chunk_size_tok) + 1 - h->first;
    const double x = LEFT + bins * pitch;

    if (bins < 0 || x > LEFT + PLOT_WIDTH)
        return;
    (void)fprintf(file,
                  "<path class=\"n3\" d=\"M%.1f %dV%d\"/><text class=\"%s\" "
                  "x=\"%.1f\" y=\"%d\">ChunkSize %" PRIu32 "</text>\n",
                  x, TOP - 38, BOTTOM, x > WIDTH / 2 ? "e" : "",
                  x > WIDTH / 2 ? x - 8 : x + 8, TOP - 27,
                  picture->chunk_size_tok);
}

static void draw_headings(FILE *file, const cf_picture_lengths *picture,
                          const histogram *h)
{
    char line[160], below[160];

    (void)snprintf(line, sizeof(line),
                   "%zu sequences, %.0f tokens; the longest has %" PRIu32,
                   picture->n, h->n_tok, h->longest);
    (void)snprintf(below, sizeof(below),
                   "%.0f of them are longer than a chunk of %" PRIu32
                   " tokens (%.3g %%)",
                   h->n_long, picture->chunk_size_tok,
                   picture->n > 0 ? 100 * h->n_long / (double)picture->n : 0);
    cf_svg_heading(file, LEFT, line);
    cf_svg_subheading(file, LEFT, below);
    (void)fprintf(file,
                  "<rect class=\"c1\" x=\"%d\" y=\"60\" width=\"14\" height=\""
                  "12\"/><text x=\"%d\" y=\"71\">of the sequences, in %%</text>"
                  "<rect class=\"c2\" x=\"%d\" y=\"60\" width=\"14\" height=\""
                  "12\"/><text x=\"%d\" y=\"71\">of the tokens, in %%</text>\n",
                  LEFT, LEFT + 20, LEFT + 190, LEFT + 210);
}

cf_status cf_picture_write_lengths(FILE *file, const void *content)
{
    const cf_picture_lengths *picture = content;
    const histogram h = histogram_make(picture);

    cf_svg_begin(file, WIDTH, HEIGHT);
    draw_headings(file, picture, &h);
    if (h.n_tok > 0)
        draw_bins(file, picture, &h);
    (void)fprintf(file,
                  "<path class=\"t\" d=\"M%d %dh%d\"/><text class=\"s e\" "
                  "x=\"%d\" y=\"%d\">tokens of a sequence, up to</text>\n",
                  LEFT, BOTTOM, PLOT_WIDTH, LEFT + PLOT_WIDTH, BOTTOM + 42);
    draw_chunk_size(file, picture, &h);
    cf_svg_end(file);
    return ferror(file) ? CF_IO : CF_OK;
}
