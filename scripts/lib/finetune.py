"""finetune: from a chat file to a fine-tuned model in one line.

 1. The options of training are those of `chunkflow train`, which looks at them
    before anything is prepared; here is no second table of them.
 2. The run goes on from its state when RUN has one: the same command line is
    right for the first start and for every other.
 3. The first SIGINT, SIGTERM or SIGUSR1 lets the step be finished and saved,
    a second one ends the program at once. Whatever ends this process ends
    the training.
 4. Prepared data and imported models are kept in a cache, under names made of
    the hash of what they come from.
"""

import argparse
import ctypes
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys

import samples
from common import EXIT_USAGE, Failure, Options, run
from rows import LOSS_ON

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM = os.environ.get("CHUNKFLOW") or os.path.join(HERE, "..", "..", "src",
                                                      "chunkflow")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
REPEATED = 2, 3, 4, 6, 7    # exit codes of what would fail again
EXIT_MEMORY = 4
PR_SET_PDEATHSIG = 1
HELP = """\
All other options are those of chunkflow train, such as --chunk-size,
--learning-rate, --epochs, --save-every: chunkflow train --help.
Data that is tokenised already is taken as it is."""


def cache_folder(*names):
    base = os.environ.get("CHUNKFLOW_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"),
        "chunkflow")
    return os.path.join(base, *names)


def parse(arguments):
    """(our options, the others)."""
    options = Options(prog="finetune", epilog=HELP,
                      formatter_class=argparse.RawDescriptionHelpFormatter,
                      description="Fine-tune a model on a file of chats or "
                      "texts; the same command goes on with a run that was "
                      "stopped.")
    options.add_argument("--model", metavar="DIR", required=True,
                         help="Hugging Face folder, or a GGUF file")
    options.add_argument("--data", metavar="FILE", required=True,
                         action="append", help=".jsonl, .jsonl.gz or a folder "
                         "of them; repeatable")
    options.add_argument("--eval-data", metavar="FILE", action="append",
                         default=[], help="the same, to evaluate on; "
                         "repeatable")
    options.add_argument("--output", metavar="RUN", required=True,
                         help="run folder")
    options.add_argument("-n", metavar="RANKS", type=int, default=1,
                         dest="n_ranks", help="processes to train on (1)")
    options.add_argument("--hostfile", metavar="FILE",
                         help="machines to train on, as mpirun reads it")
    options.add_argument("--loss-on", choices=LOSS_ON, default="assistant",
                         help="as scripts/prepare has it")
    options.add_argument("--skip-bad", action="store_true",
                         help="as scripts/prepare has it")
    ours, others = options.parse_known_args(arguments)
    if ours.n_ranks < 1:
        raise Failure(f"-n {ours.n_ranks}: must be at least 1", EXIT_USAGE)
    if ours.hostfile and not os.path.isfile(ours.hostfile):
        raise Failure(f"--hostfile {ours.hostfile}: no such file", EXIT_USAGE)
    return ours, others


# ---- the model and the data ----

def model_folder(path):
    """The Hugging Face folder of --model; of a GGUF file it is made once."""
    if not os.path.isfile(path):
        return path
    name = os.path.splitext(os.path.basename(path))[0]
    folder = cache_folder("models",
                          f"{name}-{samples.content_hash(path)[:12]}")
    if not os.path.exists(os.path.join(folder, "config.json")):
        print(f"importing {path}", flush=True)
        made = subprocess.run([sys.executable,
                               os.path.join(HERE, "gguf_import.py"), path,
                               folder], stdout=subprocess.DEVNULL,
                              check=False)
        if made.returncode:
            sys.exit(made.returncode)
    return folder


def is_tokenised(path):
    """Whether chunkflow reads it without scripts/prepare."""
    if os.path.isdir(path):
        return False
    if path.endswith(".bin") or os.path.exists(f"{path}.idx"):
        return True
    for batch in samples.Reader([path]):
        for line in batch.lines:
            try:
                if line.strip():
                    return "input_ids" in json.loads(line)
            except (ValueError, TypeError):
                return False
    return False


class Data:
    """One --data or --eval-data: where its tokens are, or will be."""

    def __init__(self, option, path, model, options):
        self.option, self.job = option, None
        self.prefix = path
        if is_tokenised(path):
            return
        from prepare import Job     # only now: it loads the tokenizers
        self.job = Job(model, [path], options.loss_on, options.skip_bad)
        self.key = self.job.key()
        name = os.path.basename(os.path.normpath(path)).partition(".")[0]
        self.prefix = cache_folder("prepared", f"{name}-{self.key[:12]}",
                                   "data")

    def prepare(self):
        if self.job is None:
            return
        from prepare import prepare
        text, made = prepare(self.job, self.prefix, self.key)
        if made:
            print(text, flush=True)
        else:
            print(f"{self.job.data[0]} is prepared already: "
                  f"{self.prefix}.summary.txt", flush=True)


# ---- training ----

class Training:
    """The command line of train, on one rank or under mpirun."""

    def __init__(self, options, others, model, data):
        self.n_ranks, self.hostfile = options.n_ranks, options.hostfile
        self.others = list(others)
        self.output = options.output
        self.places = ["--model", model, "--output", options.output]
        for one in data:
            self.places += [one.option, one.prefix]
        self.data = data
        if not any(self.has(name) for name in ("resume", "overwrite")):
            self.places.append("--resume")

    def has(self, name):
        return any(word.split("=")[0] == f"--{name}" for word in self.others)

    def command(self, *more):
        return [PROGRAM, "train", *self.places, *self.others, *more]

    def dry_run(self, *more):
        """(exit code, what was said) of the counts alone."""
        if not self.has("dry-run"):
            more += ("--dry-run",)
        done = subprocess.run(self.launcher() + self.command(*more),
                              stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True,
                              check=False, env=self.environment())
        return done.returncode, done.stdout

    def check(self):
        """Let train look at its options before the data is there."""
        code, said = self.dry_run()
        waits = any(f"{one.prefix}.idx: " in said for one in self.data
                    if one.job is not None)
        if code not in (0, EXIT_MEMORY) and not waits:
            refuse(code, said)

    def launcher(self):
        if self.n_ranks == 1 and not self.hostfile:
            return []
        if not shutil.which("mpirun"):
            raise Failure("there is no mpirun: apt install openmpi-bin",
                          EXIT_USAGE)
        launcher = ["mpirun", "-n", str(self.n_ranks)]
        if self.hostfile:
            launcher += ["--hostfile", self.hostfile]
        elif "SLURM_JOB_ID" not in os.environ:
            launcher.append("--oversubscribe")
        return launcher

    def environment(self):
        """mpirun wants root, as containers have it, to insist."""
        environment = dict(os.environ)
        if os.geteuid() == 0:
            environment["OMPI_ALLOW_RUN_AS_ROOT"] = "1"
            environment["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
        return environment

    def choose_stages(self):
        """As few pipeline stages as fit into memory, where none are given."""
        if (self.n_ranks == 1 or self.has("pipeline-stages") or
                self.has("config") or self.has("layers-per-stage")):
            return
        for n in range(1, self.n_ranks + 1):
            if self.n_ranks % n:
                continue
            stages = ["--pipeline-stages", str(n)]
            code, said = self.dry_run(*stages)
            if code == 0:
                self.others += stages
                print(f"{self.n_ranks} ranks: {self.n_ranks // n} replicas of "
                      f"{n} stages", flush=True)
                return
            if code != EXIT_MEMORY:
                break
        refuse(code, said)

    def run(self):
        """Train; the exit code, and whether a signal stopped it."""
        launcher, child, noted = self.launcher(), None, []

        def forward(number, _):
            # mpirun hands SIGUSR1 on; at the others it kills its ranks.
            to_mpirun = signal.SIGTERM if noted else signal.SIGUSR1
            noted.append(number)
            if child is not None and child.poll() is None:
                child.send_signal(to_mpirun if launcher else number)

        handle(forward)
        child = subprocess.Popen(
            launcher + self.command(), stdin=subprocess.DEVNULL,
            env=self.environment(), start_new_session=True,
            preexec_fn=end_with_parent)
        if noted:   # before there was a child
            child.terminate()
        return child.wait(), bool(noted)


def refuse(code, said):
    """Exit as train did, with its errors."""
    lines = said.splitlines()
    errors = [line for line in lines if line.startswith("chunkflow: error")]
    print("\n".join(errors or lines), file=sys.stderr)
    sys.exit(code if code > 0 else 128 - code)


def end_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def program_name():
    """As the user would type it."""
    on_path = shutil.which("chunkflow")
    if on_path and os.path.samefile(on_path, PROGRAM):
        return "chunkflow"
    return os.path.relpath(PROGRAM)


def tell_adapter(adapter, base):
    print(f"""
{adapter} is an adapter for PEFT; load it with
    chunkflow     {program_name()} eval --model {shlex.quote(base)} --adapter {shlex.quote(adapter)} --data FILE
                  {program_name()} generate --model {shlex.quote(base)} --adapter {shlex.quote(adapter)} --prompt TEXT
    PEFT          PeftModel.from_pretrained(MODEL, {adapter!r})""")


def tell_end(output, base, finished):
    model = os.path.join(output, "model")
    adapter = os.path.join(output, "adapter")
    if finished and os.path.exists(
            os.path.join(adapter, "adapter_config.json")):
        tell_adapter(adapter, base)
    if finished and os.path.exists(os.path.join(model, "config.json")):
        print(f"""
{model} is a Hugging Face folder; load it with
    chunkflow     {program_name()} eval --model {shlex.quote(model)} --data FILE
                  {program_name()} generate --model {shlex.quote(model)} --prompt TEXT
    transformers  AutoModelForCausalLM.from_pretrained({model!r})
                  AutoTokenizer.from_pretrained({model!r})""")
    elif not finished:
        print(f"\nstopped; the same command goes on:\n    {same_command()}")


def same_command():
    program = os.environ.get("CHUNKFLOW_FINETUNE", "scripts/finetune")
    return shlex.join([program, *sys.argv[1:]])


def tell_lost(output, code):
    """After a failure that the next try may not have, where there is a state."""
    states = os.path.join(output, "checkpoints")
    if code in REPEATED or not os.path.isdir(states) or not os.listdir(states):
        return
    print(f"\nfailed; the same command goes on from the newest state in "
          f"{states}:\n    {same_command()}", file=sys.stderr)


def handle(handler):
    """Handle what whoever started this has not turned off."""
    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


def interrupted(number, _):
    raise KeyboardInterrupt


def main():
    options, others = parse(sys.argv[1:])
    handle(interrupted)     # until training takes the signals over
    model = model_folder(options.model)
    data = [Data(option, path, model, options)
            for option, paths in (("--data", options.data),
                                  ("--eval-data", options.eval_data))
            for path in paths]
    training = Training(options, others, model, data)
    training.check()
    for one in data:
        one.prepare()
    training.choose_stages()
    code, stopped = training.run()
    if code:
        tell_lost(options.output, code)
        sys.exit(code if code > 0 else 128 - code)
    if not training.has("dry-run"):
        tell_end(options.output, options.model, not stopped)


if __name__ == "__main__":
    run(main)
