"""Runs a program under a memory cap and tells what it cost.

The cap is RLIMIT_DATA: the private memory a process may write. It leaves out
what the kernel can drop again (mapped files, libraries), so it is close to
what counts against the machine, where RLIMIT_AS would also count the
gigabytes of address space that PyTorch reserves and never touches. Should
the machine run out all the same, the kernel ends this program first.
"""

import os
import re
import resource
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field

GIB = 1 << 30
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30,
         "KB": 10**3, "MB": 10**6, "GB": 10**9}
NO_MEMORY = re.compile("allocate memory|MemoryError|bad_alloc|out of memory|"
                       "insufficient memory|failed to map segment",
                       re.IGNORECASE)


@dataclass
class Run:
    """One finished process."""

    returncode: int = 0
    wall_s: float = 0.0
    peak_rss_bytes: int = 0  # its VmHWM
    timed_out: bool = False
    # (seconds since the start of the process, line), both streams
    lines: list = field(default_factory=list)

    def failure(self):
        """Why it failed, in a few words; None when it did not."""
        if self.timed_out:
            return f"given up after {self.wall_s:.0f} s"
        if self.returncode == 0:
            return None
        told = [line for _, line in self.lines if line.strip()]
        if (self.returncode == -signal.SIGKILL
                or any(NO_MEMORY.search(line) for line in told[-20:])):
            return "out of memory"
        last = told[-1] if told else "no word"
        return f"exit {self.returncode}: {last}"


def size(text):
    """Bytes of a size as the command line has it: 16GiB, 800MB, 4096."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]i?B)?", text)
    if not match:
        raise ValueError(text)
    return int(float(match[1]) * UNITS.get(match[2], 1))


def free_bytes():
    """What the machine, or the cgroup of this process, can still give."""
    with open("/proc/meminfo", encoding="ascii") as file:
        free = int(re.search(r"MemAvailable:\s+(\d+) kB",
                             file.read())[1]) << 10
    try:
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as file:
            limit = file.read().strip()
        return free if limit == "max" else min(free, int(limit))
    except OSError:
        return free


def run(command, cap_bytes, environment=None, limit_s=None):
    """Run `command`, at most `limit_s` seconds; `environment` adds to ours."""
    def bound():
        resource.setrlimit(resource.RLIMIT_DATA, (cap_bytes, cap_bytes))
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write("1000")

    done = Run()
    begin = time.monotonic()
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace",
        env={**os.environ, **(environment or {})}, preexec_fn=bound)

    def give_up():
        done.timed_out = True
        process.kill()

    timer = threading.Timer(limit_s, give_up) if limit_s else None
    try:
        if timer:
            timer.start()
        for line in process.stdout:
            done.lines.append((time.monotonic() - begin, line.rstrip("\n")))
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    finally:
        if timer:
            timer.cancel()
        if process.returncode is None:
            process.kill()
            process.wait()
        process.stdout.close()
    done.wall_s = time.monotonic() - begin
    done.returncode = process.returncode
    done.peak_rss_bytes = usage.ru_maxrss << 10
    return done
