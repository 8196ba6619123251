"""How far a long preparation is: a bar on a terminal, else a plain line now and
then; nothing at all when it is over at once."""

import os
import shutil
import sys
import time

FIRST_S = 1.0           # a shorter one is not worth a bar
TERMINAL_EVERY_S = 0.2
PLAIN_EVERY_S = 10.0


def clock(seconds):
    minutes, seconds = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return (f"{hours}:{minutes:02}:{seconds:02}" if hours
            else f"{minutes}:{seconds:02}")


class Progress:
    def __init__(self, what, total_bytes, stream=None):
        self.what, self.total = what, max(total_bytes, 1)
        self.stream = stream or sys.stderr
        self.terminal = (self.stream.isatty() and
                         os.environ.get("TERM") != "dumb")
        self.begin = time.monotonic()
        self.next = self.begin + (FIRST_S if self.terminal
                                  else PLAIN_EVERY_S)
        self.drawn = False

    def show(self, position, n_samples):
        now = time.monotonic()
        if now < self.next:
            return
        self.next = now + (TERMINAL_EVERY_S if self.terminal
                           else PLAIN_EVERY_S)
        share = min(position / self.total, 1)
        spent = max(now - self.begin, 1e-9)
        left = (f", {clock(spent / share - spent)} left"
                if 0 < share < 1 else "")
        text = (f"{100 * share:3.0f} %  {n_samples:,} samples, "
                f"{position / spent / 1e6:.1f} MB/s{left}")
        if not self.terminal:
            print(f"{self.what} {text}", file=self.stream, flush=True)
            return
        width = shutil.get_terminal_size().columns - 1
        room = min(width - len(self.what) - len(text) - 5, 40)
        bar = (f"[{'#' * int(room * share):<{room}}] " if room >= 8 else "")
        line = f"{self.what} {bar}{text}"[:width]
        print(f"\r{line}\x1b[K", end="", file=self.stream, flush=True)
        self.drawn = True

    def clear(self):
        """Take the bar away, so that a line can be written."""
        if self.drawn:
            print("\r\x1b[K", end="", file=self.stream, flush=True)
            self.drawn = False
