"""prepare: chat and text JSONL to token ids with a loss mask.

 1. The input is read once, in batches; workers, one a core, render and tokenise
    them; sequences are written in the order of the input. Memory does not
    grow with the data but for four bytes a sequence.
 2. PREFIX.prepared.json is written last, with a key: the hash of the data,
    the tokenizer, the template and this program. What is there under the
    same key is not made again.
 3. A bad sample is named with file and line. Without --skip-bad there is then
    no output.
"""

import collections
import concurrent.futures
import concurrent.futures.process
import ctypes
import glob
import hashlib
import json
import multiprocessing
import os
import signal

# A worker is one core; fork and the threads of tokenizers do not mix.
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import jinja2
import tokenizers

import megatron
import samples
from common import EXIT_USAGE, Failure, Options, run, write_whole
from prepare_report import BAD_SHOWN, Report
from progress import Progress
from rows import LOSS_ON, Rows

HERE = os.path.dirname(os.path.abspath(__file__))
ALONE_BYTES = 1 << 20   # below this, starting workers costs more
BAD_MAX = 1000          # without --skip-bad: where reading on tells nothing
MADE = ("bin", "mask", "idx", "summary.txt", "lengths.svg")
PROGRAM_FILES = ("prepare.py", "samples.py", "rows.py", "chat.py", "tokens.py",
                 "words.py", "megatron.py", "prepare_report.py")
PR_SET_PDEATHSIG = 1


class Job:
    """What to prepare, and from what."""

    def __init__(self, model, data, loss_on="assistant", skip_bad=False,
                 n_workers=None):
        self.model, self.data = model, data
        self.files = samples.files_of(data)
        self.loss_on, self.skip_bad = loss_on, skip_bad
        self.n_workers = n_workers or len(os.sched_getaffinity(0))

    def key(self):
        """Names the output by all that it depends on."""
        program = [os.path.join(HERE, name) for name in PROGRAM_FILES]
        folder = [path for name in ("tokenizer*.json", "chat_template.*",
                                    "special_tokens_map.json")
                  for path in sorted(glob.glob(os.path.join(
                      glob.escape(self.model), name)))]
        told = {"program": [samples.content_hash(path) for path in program],
                "versions": [tokenizers.__version__, jinja2.__version__],
                "model": [(os.path.basename(path),
                           samples.content_hash(path)) for path in folder],
                "data": [samples.content_hash(path) for path in self.files],
                "loss_on": self.loss_on, "skip_bad": self.skip_bad}
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()


def stamp_path(prefix):
    return f"{prefix}.prepared.json"


def is_made(prefix, key):
    """Whether PREFIX holds the output of this key."""
    try:
        with open(stamp_path(prefix), encoding="utf-8") as file:
            stamp = json.load(file)
        return stamp["key"] == key and all(
            os.path.getsize(f"{prefix}.{kind}") == stamp["bytes"][kind]
            for kind in MADE)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def prepare(job, prefix, key=None):
    """Make PREFIX of a job unless it is there; (report text, whether made)."""
    key = key or job.key()
    if is_made(prefix, key):
        with open(f"{prefix}.summary.txt", encoding="utf-8") as file:
            return file.read(), False
    rows = Rows(job.model, job.loss_on)
    report = Report()
    writer = megatron.Writer(prefix)
    try:
        write_sequences(job, rows, writer, report)
        if os.path.exists(stamp_path(prefix)):
            os.unlink(stamp_path(prefix))
        writer.close()
    finally:
        writer.discard()
    text = report.text([
        ("data", ", ".join(job.data) +
         (f" ({len(job.files)} files)" if len(job.files) > 1 else "")),
        ("model", job.model), ("output", f"{prefix}.bin .idx .mask"),
        ("loss on", job.loss_on)])
    write_whole(f"{prefix}.summary.txt", text)
    write_whole(f"{prefix}.lengths.svg", report.svg())
    write_whole(stamp_path(prefix), json.dumps(
        {"key": key, "sequences": report.sequences, "tokens": report.tokens,
         "targets": report.targets, "left_out": report.n_bad,
         "bytes": {kind: os.path.getsize(f"{prefix}.{kind}")
                   for kind in MADE}}, indent=2) + "\n")
    return text, True


def write_sequences(job, rows, writer, report):
    total = samples.total_bytes(job.files)
    reader = samples.Reader(job.files)
    progress = Progress("prepare", total)
    try:
        for result in results(rows, reader,
                              job.n_workers if total > ALONE_BYTES else 1):
            first = 0
            for line, length in zip(result.lines, result.lengths):
                mask = result.mask[first:first + length]
                writer.append(result.ids[first:first + length], mask)
                report.count(f"{result.path}:{line}", mask)
                first += length
            for line, reason in result.bad:
                report.leave_out(f"{result.path}:{line}", reason)
            if report.n_bad >= BAD_MAX and not job.skip_bad:
                break
            progress.show(reader.position, report.sequences)
    finally:
        progress.clear()
    if report.n_bad and not job.skip_bad:
        raise refusal(report)
    if not report.sequences:
        raise Failure(", ".join(job.data) + ": holds no data" + (
            f" but {report.n_bad:,} bad samples, the first in "
            f"{report.bad[0][0]}: {report.bad[0][1]}" if report.bad else ""))


def refusal(report):
    """The Failure for bad samples; the first ones are printed before it."""
    where, reason = report.bad[0]
    if report.n_bad == 1:
        return Failure(f"{where}: {reason}; mend it, or leave it out with "
                       "--skip-bad")
    from sys import stderr
    for place, why in report.bad:
        print(f"chunkflow: {place}: {why}", file=stderr)
    more = " and more" if report.n_bad >= BAD_MAX else ""
    return Failure(f"{where}: {reason}; {report.n_bad:,}{more} bad samples in "
                   f"all, {min(report.n_bad, BAD_SHOWN)} are named above: mend "
                   "them, or leave them out with --skip-bad")


# ---- workers ----

the_rows = None     # of a worker


def begin_worker(rows, parent):
    """A worker ends with its parent, whatever ends that."""
    global the_rows
    the_rows = rows
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def work(batch):
    return the_rows.batch(batch)


def results(rows, batches, n_workers):
    """The result of each batch, in order; a few more are under way."""
    if n_workers == 1:
        yield from map(rows.batch, batches)
        return
    pool = concurrent.futures.ProcessPoolExecutor(
        n_workers, multiprocessing.get_context("fork"), begin_worker,
        (rows, os.getpid()))
    try:
        under_way = collections.deque()
        for batch in batches:
            under_way.append(pool.submit(work, batch))
            if len(under_way) > 2 * n_workers:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
    except concurrent.futures.process.BrokenProcessPool as error:
        raise Failure("a worker was ended from outside, by lack of memory most "
                      "likely; try again with --jobs 1") from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def main():
    options = Options(prog="prepare", description="Tokenise chat or text "
                      "JSONL with a model folder's tokenizer into "
                      "PREFIX.bin, .idx and .mask for chunkflow --data.")
    options.add_argument("--model", metavar="DIR", required=True,
                         help="Hugging Face folder with the tokenizer")
    options.add_argument("--data", metavar="FILE", required=True,
                         action="append", nargs="+",
                         help=".jsonl, .jsonl.gz or a folder of them, with "
                         "messages, conversations, prompt and completion, or "
                         "text; one or more")
    options.add_argument("--output", metavar="PREFIX", required=True)
    options.add_argument("--loss-on", choices=LOSS_ON, default="assistant",
                         help="which tokens of a chat are targets: what the "
                         "assistant says, its last turn only, or all")
    options.add_argument("--skip-bad", action="store_true",
                         help="leave out samples that cannot be rendered, and "
                         "count them")
    options.add_argument("--jobs", metavar="N", type=int,
                         help="workers (default: one a core)")
    options = options.parse_args()
    if os.path.isdir(options.output) or options.output.endswith("/"):
        raise Failure(f"--output {options.output} is a folder; name a prefix",
                      EXIT_USAGE)
    if options.jobs is not None and options.jobs < 1:
        raise Failure(f"--jobs {options.jobs}: must be at least 1", EXIT_USAGE)

    job = Job(options.model, sum(options.data, []), options.loss_on,
              options.skip_bad, options.jobs)
    text, made = prepare(job, options.output)
    print(text, end="")
    if not made:
        print("\nunchanged: data, tokenizer and template are those of "
              f"{options.output}")


if __name__ == "__main__":
    run(main)
