"""The planner against the engine, on the user's machine and model.

1. Measures the costs of this machine (chunkflow plan --calibrate) into a cache
   of its own.
2. Draws random configurations: a number of layers, ChunkSize, K, recompute
   policy, and sequences as conversations are long, one of them much longer.
   plan predicts each, train runs it, `--rounds` times, every second round
   backwards, so that a machine that gets slower does not decide. Bytes must be
   equal; of the step time the error of the median round is told.
3. Runs every (ChunkSize, K, policy) of a grid that fits `--memory`, and the
   planner's choice among them, once in every round: the choice's tokens/s over
   the best's of the same round. With `--data` on real sequences.

A step that is timed has run before, or stands behind one: the first of a run
also pays for pages that become real. Fails when bytes differ. Standard library
only.
"""

import array
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile

import cut_model
import length_mixes
import megatron
from common import EXIT_INTERNAL, EXIT_USAGE, Failure, Options, run

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
POLICIES = ("none", "selective", "layer")
BATCHES_PLANNED = 16  # at most


def numbers(text):
    try:
        return [int(word) for word in text.split(",")]
    except ValueError as error:
        raise Failure(f"{text} is not a list of numbers, such as 256,512",
                      EXIT_USAGE) from error


def options_parse():
    parser = Options(prog="bench-planner",
                     description="Predictions and choice of the planner, "
                                 "against measured runs.")
    add = parser.add_argument
    add("--model", required=True, help="Hugging Face folder")
    add("--data", help="of the grid: prefix or .jsonl [made up]")
    add("--program", default=os.environ.get("CHUNKFLOW") or os.path.join(
        ROOT, "src", "chunkflow"), help="[src/chunkflow]")
    add("--configurations", type=int, default=20, help="random ones [20]")
    add("--layers", default="1,2,4", help="of the models drawn [1,2,4]")
    add("--sizes", default="256,512,1024,2048", help="ChunkSizes drawn, and "
        "of the grid [256,512,1024,2048]")
    add("--retained", default="1,2,4", help="Ks, likewise [1,2,4]")
    add("--longest", default="1024,2048,4096", help="longest sequences, "
        "likewise [1024,2048,4096]")
    add("--grid-layers", type=int, default=2, help="0: no grid [2]")
    add("--memory", default="4GiB", help="budget of the choice [4GiB]")
    add("--global-batch", type=int, default=8, help="[8]")
    add("--steps", type=int, default=3, help="that are timed, 8 at most [3]")
    add("--rounds", type=int, default=2, help="[2]")
    add("--threads", type=int, default=1, help="[1]")
    add("--seed", type=int, default=1, help="of what is drawn [1]")
    options = parser.parse_args()
    for name in ("layers", "sizes", "retained", "longest"):
        setattr(options, name, numbers(getattr(options, name)))
    if not 1 <= options.steps <= BATCHES_PLANNED // 2:
        raise Failure(f"--steps {options.steps} is not from 1 to "
                      f"{BATCHES_PLANNED // 2}", EXIT_USAGE)
    if not os.access(options.program, os.X_OK):
        raise Failure(f"{options.program} is missing: run scripts/setup first")
    return options


class Bench:
    """Runs of the program in a folder that goes away."""

    def __init__(self, options, folder):
        self.options = options
        self.folder = folder
        self.models = {}
        self.environment = {**os.environ,
                            "XDG_CACHE_HOME": os.path.join(folder, "cache")}

    def model(self, layers):
        if layers not in self.models:
            path = os.path.join(self.folder, f"model-{layers}")
            cut_model.cut(self.options.model, path, layers)
            self.models[layers] = path
        return self.models[layers]

    def data(self, longest, seed):
        """An epoch of `--steps` batches, one sequence of them that long."""
        path = os.path.join(self.folder, f"data-{longest}-{seed}")
        if os.path.exists(f"{path}.idx"):
            return path
        n = self.options.global_batch * self.options.steps
        lengths = length_mixes.batch(length_mixes.LMSYS, seed, longest,
                                     (longest,), n)
        rng = random.Random(seed)
        pool = array.array("i", (rng.randrange(50) for _ in range(longest)))
        writer = megatron.Writer(path)
        try:
            for length in lengths:
                writer.append(pool[:length], array.array("B", b"\1" * length))
            writer.close()
        finally:
            writer.discard()
        return path

    def chunkflow(self, command, layers, data, *more):
        options = self.options
        done = subprocess.run(
            [options.program, command, "--model", self.model(layers),
             "--data", data, "--threads", str(options.threads),
             "--global-batch", str(options.global_batch), "--no-shuffle",
             *more],
            env=self.environment, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            raise Failure(f"chunkflow {command}: {done.stderr.strip()}",
                          EXIT_INTERNAL)
        return done.stdout

    def plan(self, layers, data, *more, memory="1TiB"):
        return json.loads(self.chunkflow("plan", layers, data, "--memory",
                                         memory, "--json", *more))

    def train(self, setting, *more):
        """The records of a run's steps."""
        layers, size, retained, policy, kept, data = setting
        output = os.path.join(self.folder, "run")
        self.chunkflow("train", layers, data, "--output", output,
                       "--overwrite", "--quiet", "--learning-rate", "0",
                       "--memory", "1TiB", "--chunk-size", str(size),
                       "--retain-chunks", str(retained), "--recompute",
                       policy, *(["--keep-attention"] if kept else []), *more)
        with open(os.path.join(output, "metrics.jsonl"),
                  encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    def train_twice(self, setting):
        """(seconds a step, most bytes) of an epoch that runs for the second
        time."""
        steps = self.train(setting, "--epochs", "2")
        warm = steps[len(steps) // 2:]
        return (statistics.mean(step["step_s"] for step in warm),
                max(step["peak_bytes"] for step in steps))

    def train_behind(self, setting):
        """Tokens a second of the steps behind the first."""
        steps = self.train(setting, *self.behind())[1:]
        return (sum(step["tokens"] for step in steps)
                / sum(step["step_s"] for step in steps))

    def behind(self):
        return ("--steps", str(self.options.steps + 1))

    def rounds(self, settings, train):
        """For each round {setting: what train gives}, every second one
        backwards."""
        for number in range(self.options.rounds):
            order = settings if number % 2 == 0 else settings[::-1]
            yield {setting: train(setting) for setting in order}


def drawn(bench):
    """[(layers, ChunkSize, K, policy, attention kept, data)]"""
    options = bench.options
    rng = random.Random(options.seed)
    return [(rng.choice(options.layers), rng.choice(options.sizes),
             rng.choice(options.retained), rng.choice(POLICIES),
             rng.random() < 0.5, bench.data(rng.choice(options.longest), rng.randrange(3)))
            for _ in range(options.configurations)]


def predicted(bench, setting):
    layers, size, retained, policy, kept, data = setting
    plan = bench.plan(layers, data, "--chunk-size", str(size),
                      "--retain-chunks", str(retained))
    points = [point for point in plan["candidates"]
              if point["recompute"] == policy]
    # Where nothing is dropped there is nothing to keep.
    return max(points, key=lambda point: point["keep_attention"] == kept)


def predictions_check(bench):
    options = bench.options
    settings = drawn(bench)
    planned = {setting: predicted(bench, setting) for setting in settings}
    rounds = list(bench.rounds(sorted(set(settings)), bench.train_twice))
    print(f"{'layers':>6} {'longest':>7} {'ChunkSize':>9} {'K':>3} "
          f"{'recompute':>9} {'kept':>4} {'bytes':>12} {'used':>12} {'predicted s':>11} "
          f"{'s a step':>10} {'error':>7}", flush=True)
    errors, differ = [], 0
    for setting in settings:
        layers, size, retained, policy, kept, data = setting
        wanted = planned[setting]["predicted_bytes"]
        seconds = planned[setting]["step_s"]
        measured = statistics.median(one[setting][0] for one in rounds)
        used = max(one[setting][1] for one in rounds)
        errors.append(seconds / measured - 1)
        differ += used != wanted
        print(f"{layers:>6} {data.split('-')[-2]:>7} {size:>9} {retained:>3} "
              f"{policy:>9} {'yes' if kept else '-':>4} {wanted:>12} {used:>12} {seconds:>11.3f} "
              f"{measured:>10.3f} {errors[-1]:>+7.1%}", flush=True)
    sizes = sorted(abs(error) for error in errors)
    print(f"{len(settings)} configurations: step time off by "
          f"{statistics.median(sizes):.1%} (median), {sizes[-1]:.1%} (worst); "
          f"bytes differ in {differ}\n", flush=True)
    return differ


def grid_check(bench):
    options = bench.options
    layers = options.grid_layers
    data = options.data or bench.data(max(options.longest), 0)
    best = bench.plan(layers, data, *bench.behind(), memory=options.memory)
    chosen = (layers, best["chunk_size"], best["retain_chunks"],
              best["recompute"], best["keep_attention"], data)
    settings = {chosen}
    for size in options.sizes:
        for retained in options.retained:
            plan = bench.plan(layers, data, *bench.behind(), "--chunk-size",
                              str(size), "--retain-chunks", str(retained),
                              memory=options.memory)
            settings.update((layers, size, retained, point["recompute"],
                             point["keep_attention"], data)
                            for point in plan["candidates"] if point["fits"])
    settings = sorted(settings)
    shares = {setting: [] for setting in settings}
    for speeds in bench.rounds(settings, bench.train_behind):
        fastest = max(speeds.values())
        for setting, speed in speeds.items():
            shares[setting].append(speed / fastest)
    print(f"{'ChunkSize':>9} {'K':>3} {'recompute':>9} {'kept':>4} "
          f"{'of the best':>11}")
    for setting in sorted(settings, key=lambda s: -statistics.median(
            shares[s])):
        _, size, retained, policy, kept, _ = setting
        print(f"{size:>9} {retained:>3} {policy:>9} "
              f"{'yes' if kept else '-':>4} "
              f"{statistics.median(shares[setting]):>11.1%}"
              f"{'  chosen' if setting == chosen else ''}")
    print(f"{len(settings)} settings within {options.memory}: the choice has "
          f"{statistics.median(shares[chosen]):.1%} of the best tokens/s of "
          "its round", flush=True)


def main():
    options = options_parse()
    with tempfile.TemporaryDirectory(prefix="bench-planner-") as folder:
        bench = Bench(options, folder)
        costs = bench.plan(max(options.layers),
                           bench.data(max(options.longest), 0), "--calibrate")
        print(f"costs measured on this machine, within {costs['error']:.1%}, "
              f"{options.threads} threads\n", flush=True)
        differ = predictions_check(bench) if options.configurations else 0
        if options.grid_layers:
            grid_check(bench)
    if differ:
        raise Failure("predicted and used bytes differ", EXIT_INTERNAL)
    sys.stdout.flush()


if __name__ == "__main__":
    run(main)
