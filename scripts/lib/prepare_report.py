"""What prepare tells about its data: counts, lengths, what limits would cut.

The text goes to the terminal and to PREFIX.summary.txt, the picture to
PREFIX.lengths.svg. Memory does not grow with the data.
"""

import collections
import heapq

LIMITS = (1024, 2048, 4096)
LONGEST = 10
BAD_SHOWN = 10
BAR = 40


def short(power):
    """2 to the power, as 512, 4K, 1M."""
    for unit, bits in (("M", 20), ("K", 10)):
        if power >= bits:
            return f"{1 << (power - bits)}{unit}"
    return str(1 << power)


class Report:
    """Counts sequence by sequence; buckets of lengths are powers of two."""

    def __init__(self):
        self.sequences = self.tokens = self.targets = 0
        self.without_target = 0
        self.buckets = collections.Counter()
        self.bucket_tokens = collections.Counter()
        self.cut = {limit: [0, 0, 0] for limit in LIMITS}
        self.longest = []
        self.bad = []
        self.n_bad = 0

    def count(self, where, mask):
        """One sequence, of FILE:LINE."""
        n_tok, n_targets = len(mask), int(mask.sum())
        self.sequences += 1
        self.tokens += n_tok
        self.targets += n_targets
        self.without_target += n_targets == 0
        bucket = max(n_tok - 1, 0).bit_length()
        self.buckets[bucket] += 1
        self.bucket_tokens[bucket] += n_tok
        for limit, counts in self.cut.items():
            if n_tok > limit:
                counts[0] += 1
                counts[1] += n_tok - limit
                counts[2] += int(mask[limit:].sum())
        entry = (n_tok, -self.sequences, where)  # of equals, the first
        if len(self.longest) < LONGEST:
            heapq.heappush(self.longest, entry)
        elif entry > self.longest[0]:
            heapq.heapreplace(self.longest, entry)

    def leave_out(self, where, reason):
        self.n_bad += 1
        if len(self.bad) < BAD_SHOWN:
            self.bad.append((where, reason))

    def text(self, head):
        """`head` is a list of (name, value) that comes first."""
        lines = [f"{name:<11} {value}" for name, value in head] + [""]
        share = 100 * self.targets / max(self.tokens, 1)
        longest = max(self.longest, default=(0,))[0]
        lines += [
            f"sequences   {self.sequences:>14,}",
            f"tokens      {self.tokens:>14,}",
            f"targets     {self.targets:>14,}  ({share:.1f} % of the tokens)",
            f"no target   {self.without_target:>14,}  sequences",
            f"left out    {self.n_bad:>14,}  bad samples",
            f"longest     {longest:>14,}  tokens",
            f"mean        {self.tokens / max(self.sequences, 1):>14,.1f}"
            "  tokens"]
        lines += self._histogram() + self._limits() + self._extremes()
        return "\n".join(lines) + "\n"

    def _histogram(self):
        lines = ["", "length (tokens)       sequences"]
        most = max(self.buckets.values(), default=1)
        for power in self._powers():
            n = self.buckets[power]
            bar = "#" * -(-BAR * n // most)
            lines.append(f"  <= {1 << power:>11,} {n:>14,}  {bar}".rstrip())
        return lines

    def _powers(self):
        return range(min(self.buckets, default=0),
                     max(self.buckets, default=-1) + 1)

    def _limits(self):
        lines = ["", "a limit of   would cut off tokens          of them "
                 "targets    in sequences"]
        for limit, (n, tokens, targets) in self.cut.items():
            share = 100 * tokens / max(self.tokens, 1)
            target_share = 100 * targets / max(self.targets, 1)
            lines.append(f"  {limit:>8,} {tokens:>14,} ({share:>4.1f} %) "
                         f"{targets:>14,} ({target_share:>4.1f} %)"
                         f" {n:>15,}")
        lines.append("chunkflow cuts off nothing")
        return lines

    def _extremes(self):
        lines = ["", "longest (tokens)"]
        for n_tok, _, where in sorted(self.longest, reverse=True):
            lines.append(f"  {n_tok:>14,}  {where}")
        if self.bad:
            lines += ["", "left out"]
            lines += [f"  {where}: {reason}" for where, reason in self.bad]
            if self.n_bad > len(self.bad):
                lines.append(f"  and {self.n_bad - len(self.bad):,} more")
        return lines

    def svg(self):
        """A picture: what share of the sequences, and of the tokens, lies in
        each bucket of lengths."""
        powers = list(self._powers())
        step = 640 / max(len(powers), 1)
        shares = [(100 * self.buckets[p] / max(self.sequences, 1),
                   100 * self.bucket_tokens[p] / max(self.tokens, 1))
                  for p in powers]
        top = max([10] + [-(-int(s + 0.999) // 10) * 10
                          for pair in shares for s in pair])
        parts = [SVG_HEAD, f'<text x="60" y="30" class="title">'
                 f"{self.sequences:,} sequences, {self.tokens:,} tokens, by "
                 "length</text>"]
        for share in range(0, top + 1, 10 if top <= 50 else 20):
            y = 320 - 240 * share / top
            parts.append(f'<path class="grid" d="M60 {y:.1f}H700"/>'
                         f'<text x="52" y="{y + 4:.1f}" class="end">'
                         f"{share} %</text>")
        for i, (power, pair) in enumerate(zip(powers, shares)):
            x = 60 + i * step
            for k, share in enumerate(pair):
                height = 240 * share / top
                parts.append(
                    f'<rect class="{("sequences", "tokens")[k]}" '
                    f'x="{x + step * (0.1 + 0.4 * k):.1f}" '
                    f'y="{320 - height:.1f}" width="{step * 0.38:.1f}" '
                    f'height="{height:.1f}"><title>up to {1 << power:,} '
                    f"tokens: {share:.2f} %</title></rect>")
            parts.append(f'<text x="{x + step / 2:.1f}" y="338" '
                         f'class="middle">{short(power)}</text>')
        parts += [f'<path class="axis" d="M60 320H700"/>', SVG_TAIL]
        return "\n".join(parts) + "\n"


SVG_HEAD = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 380" width="720" \
height="380" role="img" aria-label="Lengths of the sequences">
<style>
svg { background: #fff; }
text { font: 13px sans-serif; fill: #333; }
.title { font-size: 16px; font-weight: bold; }
.end { text-anchor: end; }
.middle { text-anchor: middle; }
.grid { stroke: #ddd; fill: none; }
.axis { stroke: #333; fill: none; }
.sequences { fill: #3b6fb6; }
.tokens { fill: #d9822b; }
@media (prefers-color-scheme: dark) {
  svg { background: #16181c; }
  text { fill: #ddd; }
  .grid { stroke: #333; }
  .axis { stroke: #ddd; }
}
</style>"""

SVG_TAIL = """\
<text x="380" y="364" class="middle">tokens of a sequence, up to</text>
<rect class="sequences" x="60" y="46" width="12" height="12"/>
<text x="78" y="57">share of the sequences</text>
<rect class="tokens" x="250" y="46" width="12" height="12"/>
<text x="268" y="57">share of the tokens</text>
</svg>"""
