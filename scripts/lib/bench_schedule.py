"""The state-aware pipeline against 1F1B with whole sequences, recomputed.

 1. Cuts a model to a few layers and trains it on two ranks with a trace, on
    sequences of every length: what an op costs on each stage, by least squares.
 2. Trains two steps of an LMSYS-like mix, one of them with a sequence of the
    longest length, under both schedules.  ChunkSize and K are the best of a
    grid by simulation.  Every step is also simulated, with costs from steps
    before and behind: same plan, makespan within some per cent.
 3. Simulates the whole model on more stages with these costs, its layers split
    as chunkflow would, and the published figures with costs like the paper's.

Lengths are divided by --scale: attention and the linear layers of a small model
cost alike at a context that is so much shorter.  Memory: no schedule may keep
more tokens of activations than 1F1B keeps of the longest sequence, nor more than
8K * (4 + stages - 1) / scale.

Fails when a plan, bytes sent or a bubble ratio is not as it must be; missed
targets of time are only told.  Standard library only.
"""

import array
import json
import os
import random
import re
import shutil
import subprocess
import tempfile

import cut_model
import length_mixes
import measured
import megatron
import pipeline_costs
from common import EXIT_USAGE, Failure, Options, run, write_whole

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
CHUNKFLOW = os.environ.get("CHUNKFLOW",
                           os.path.join(ROOT, "src", "chunkflow"))
CACHE = os.path.join(ROOT, ".cache")

BASELINE = "1f1b-recompute"
OURS = ("state-aware", "state-aware-long-first")
MEASURED_STAGES, MORE_STAGES = 2, (4, 8)
BATCH = 256  # of the simulated steps, as in the paper
PAPER = {32768: 2.38, 262144: 4.53}  # longest: speed-up on 4 stages
PAPER_STAGES = 4
# Fixed cost of an op, in linear forwards of 1K tokens on one stage: of the
# paper's system as its other figures imply it, and of one that is lean.
FIXED = {"like the paper's (1.33)": 1.33, "lean (0.05)": 0.05}
CONTEXT = 32500  # where attention costs as much as the linear layers, 7B
MAKESPAN_TARGET, WAIT_TARGET = 0.10, 0.05
BUBBLE_TOLERANCE = 0.01


def options_parse():
    parser = Options(prog="bench-schedule",
                     description="The state-aware pipeline against 1F1B.")
    add = parser.add_argument
    add("--model", default=os.path.join(CACHE, "SmolLM2-135M-Instruct"),
        help="Hugging Face folder [the demo's]")
    add("--layers", type=int, default=8, help="to keep when measuring [8]")
    add("--scale", type=int, default=8, help="that divides lengths [8]")
    add("--sequences", type=int, default=96, help="of a measured step [96]")
    add("--lengths", help="file to draw them from, one a line [LMSYS-like]")
    add("--quick", action="store_true",
        help="so few layers, lengths and sequences that the figures mean "
             "little")
    add("--json", action="store_true", help="one JSON object, no tables")
    options = parser.parse_args()
    if options.quick:
        options.layers, options.scale, options.sequences = 3, 64, 24
    if min(options.layers - 1, options.scale, options.sequences - 1) < 1:
        raise Failure("--scale takes 1 or more, --layers and --sequences 2",
                      EXIT_USAGE)
    if not os.access(CHUNKFLOW, os.X_OK):
        raise Failure(f"{CHUNKFLOW} is missing: run scripts/setup first")
    if shutil.which("mpirun") is None:
        raise Failure("there is no mpirun: apt install openmpi-bin")
    options.pool = options.lengths and lengths_read(options.lengths)
    return options


def lengths_read(path):
    try:
        with open(path, encoding="ascii") as file:
            return [int(line) for line in file]
    except (OSError, ValueError) as error:
        raise Failure(f"{path}: not one length a line: {error}") from error


def batch(options, longest, seed, n, with_longest):
    """n lengths of at most `longest`, one of them that long on demand; all
    divided by the scale."""
    long_ones = (longest,) if with_longest else ()
    if options.pool:
        rng = random.Random(seed)
        lengths = [min(length, longest)
                   for length in rng.choices(options.pool, k=n)]
        lengths[n - len(long_ones):] = long_ones
    else:
        lengths = length_mixes.batch(length_mixes.LMSYS, seed, longest,
                                     long_ones, n)
    return [max(4, length // options.scale) for length in lengths]


# ---- running chunkflow ----

class Bench:
    def __init__(self, options, folder):
        self.options = options
        self.folder = folder
        self.model = os.path.join(folder, "model")
        cut_model.cut(options.model, self.model, options.layers)
        self.config = cut_model.json_read(
            os.path.join(self.model, "config.json"))

    def path(self, name):
        return os.path.join(self.folder, name)

    def say(self, text):
        if not self.options.json:
            print(text, flush=True)

    def mpirun(self, ranks, *arguments):
        command = ["mpirun", "-n", str(ranks), CHUNKFLOW,
                   *map(str, arguments)]
        done = measured.run(command, measured.free_bytes(), {
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_rmaps_base_oversubscribe": "1"})
        if done.failure():
            told = [line for _, line in done.lines if ": error: " in line]
            raise Failure(f"{' '.join(command[:5])} ...: "
                          f"{told[0] if told else done.failure()}")
        return [line for _, line in done.lines]

    def write(self, name, batches):
        """Sequences of random tokens: which they are costs nothing."""
        rng = random.Random(1)
        pool = array.array("i", (rng.randrange(self.config["vocab_size"])
                                 for _ in range(max(map(max, batches)))))
        writer = megatron.Writer(self.path(name))
        try:
            for length in (length for lengths in batches
                           for length in lengths):
                writer.append(pool[:length],
                              array.array("B", b"\1" * length))
            writer.close()
        finally:
            writer.discard()

    def train(self, batches, plan):
        """The steps behind the first, which warms up: [(record, ops)]."""
        self.write("data", batches)
        output, trace = self.path("run"), self.path("trace.json")
        self.mpirun(
            MEASURED_STAGES,
            "train", "--model", self.model, "--data", self.path("data"),
            "--output", output, "--overwrite", "--steps", len(batches),
            "--global-batch", len(batches[0]), "--no-shuffle", "--quiet",
            "--pipeline-stages", MEASURED_STAGES, "--trace", trace, *plan)
        with open(os.path.join(output, "metrics.jsonl"),
                  encoding="utf-8") as file:
            records = [json.loads(line) for line in file]
        traced = pipeline_costs.trace_read(trace)
        return [(record, traced[record["step"]]) for record in records[1:]]

    def simulate(self, lengths, stages, plan, cost):
        write_whole(self.path("lengths"),
                    "".join(f"{length}\n" for length in lengths))
        if isinstance(cost, dict):
            write_whole(self.path("cost.json"), json.dumps(cost))
            cost = ("--cost-file", self.path("cost.json"))
        done = subprocess.run(
            [CHUNKFLOW, "simulate", "--lengths", self.path("lengths"),
             "--json", "--pipeline-stages", str(stages), *map(str, plan),
             *cost], stdout=subprocess.PIPE, check=False)
        if done.returncode != 0:
            raise Failure("chunkflow simulate failed", done.returncode)
        return json.loads(done.stdout)

    def plan(self, lengths, plan):
        """(ops of every stage, {chunk: pairs}) of the simulator's plan: a pair
        of tokens is what a forward is charged."""
        trace = self.path("plan.json")
        self.simulate(lengths, MEASURED_STAGES, (*plan, "--trace", trace),
                      ("--cost", "0,0,1"))
        ops = pipeline_costs.trace_read(trace)[0]
        return ops, {op.chunk: 1e6 * (op.end - op.start)
                     for op in ops[0] if op.kind in "FK"}

    def split(self, model, stages):
        """Layers of each stage, as chunkflow splits them."""
        if not os.path.exists(self.path("data.idx")):
            self.write("data", [[64]])
        lines = self.mpirun(
            stages, "train", "--model", model, "--data", self.path("data"),
            "--output", self.path("split"), "--dry-run", "--pipeline-stages",
            stages, "--memory", "1024GiB")
        for line in lines:
            found = re.search(r"layers of the stages: ([-0-9, ]+)", line)
            if found:
                ends = [list(map(int, part.split("-")))
                        for part in found[1].split(", ")]
                return [part[-1] - part[0] + 1 for part in ends]
        raise Failure("chunkflow train --dry-run told no layers of the stages")


# ---- calibration ----

def calibration_lengths(options):
    """A batch of every length and a draw of the mix, none that is measured:
    all lengths of the ladder are round, and those are faster than others."""
    longest = 32768 // options.scale
    lengths = [max(4, longest >> i) for i in range(8)]
    lengths += batch(options, 32768, 101, options.sequences // 2 - 8, False)
    return lengths + [4] * (options.sequences - len(lengths))


def warm_lengths(options):
    longest = 32768 // options.scale
    return [longest // 2] + [4] * (options.sequences - 1)


def calibrate(bench):
    """The costs of both stages, of sequences whole and in chunks."""
    lengths = calibration_lengths(bench.options)
    chunk = max(8, 32768 // bench.options.scale // 16)
    steps = []
    for plan in (("--schedule", BASELINE),
                 ("--schedule", "state-aware", "--chunk-size", chunk,
                  "--retain-chunks", 2)):
        _, pairs = bench.plan(lengths, plan)
        for _, ops in bench.train([warm_lengths(bench.options), lengths],
                                  plan):
            steps.append((ops, pairs))
    return pipeline_costs.fit_pipeline(steps)


def cost_print(bench, cost, layers):
    bench.say(f"\nCosts of two stages of {layers[0]} and {layers[1]} layers, "
              "by least squares\n")
    bench.say(f"{'stage':>6}{'kind':>14}{'ms an op':>12}{'us a token':>12}"
              f"{'ns a pair':>12}")
    for number, stage in enumerate(cost["stages"]):
        for field, terms in stage.items():
            bench.say(f"{number:>6}{field:>14}{1e3 * terms['op']:>12.2f}"
                      f"{1e6 * terms['token']:>12.2f}"
                      f"{1e9 * terms['pair']:>12.3f}")
    message = cost["message"]
    bench.say(f"{'':>6}{'message':>14}{1e3 * message['op']:>12.2f}"
              f"{1e6 * message['token']:>12.2f}")


# ---- the best plan ----

def cap_of(longest, stages, scale):
    return min(longest, 8192 * (4 + stages - 1)) // scale


def total(results, share=None):
    """Of the makespans; with a share, the stage-time that it is of them."""
    return sum(result["makespan"] * (result[share] if share else 1)
               for result in results)


def best(bench, batches, stages, cost, cap):
    """The plan with the least sum of makespans over the batches, of those that
    keep at most `cap` tokens: (results, plan)."""
    found = []
    longest = max(map(max, batches))
    retained = (1, 4) if bench.options.quick else (1, 2, 4, 8, 16)
    sizes = [size // bench.options.scale
             for size in (1024, 2048, 4096, 8192, 16384, 32768)]
    for schedule in OURS:
        for size in (size for size in sizes if 4 <= size <= cap):
            for retain in (k for k in retained
                           if k * size <= cap and (k - 1) * size < longest):
                plan = ("--schedule", schedule, "--chunk-size", size,
                        "--retain-chunks", retain)
                results = [bench.simulate(lengths, stages, plan, cost)
                           for lengths in batches]
                if max(max(r["peak_tokens"]) for r in results) <= cap:
                    found.append((results, plan))
    if not found:
        raise Failure(f"no ChunkSize keeps {cap} tokens a stage on {stages} "
                      "stages")
    return min(found, key=lambda entry: total(entry[0]))


# ---- measured ----

def bytes_expected(config, tokens, stages):
    """Of a step: each token over each link and back in fp32, and the two
    messages of a tied embedding."""
    tied = config.get("tie_word_embeddings", False) and stages > 1
    return 4 * config["hidden_size"] * (
        2 * tokens * (stages - 1) + 2 * tied * config["vocab_size"])


def step_report(bench, name, lengths, plan, cost, record, ops):
    planned, _ = bench.plan(lengths, plan)
    same = all([op.what() for op in stage if op.computes()]
               == [op.what() for op in wanted]
               for stage, wanted in zip(ops, planned))
    took = pipeline_costs.makespan(ops)
    simulated = bench.simulate(lengths, MEASURED_STAGES, plan, cost)
    bubble = 1 - pipeline_costs.busy(ops) / (MEASURED_STAGES * took)
    report = {
        "step": name, "schedule": plan[1], "tokens": record["tokens"],
        "step_s": record["step_s"], "measured_s": took,
        "simulated_s": simulated["makespan"],
        "error": simulated["makespan"] / took - 1,
        "bubble_ratio": record["bubble_ratio"],
        "bubble_ratio_simulated": simulated["bubble_ratio"],
        "waited_share": 1 - pipeline_costs.replay(ops) / took,
        "sent_bytes": record["sent_bytes"],
        "sent_bytes_expected": bytes_expected(
            bench.config, record["tokens"], MEASURED_STAGES),
        "same_plan": same}
    report["wrong"] = []
    if not same:
        report["wrong"].append("the ops are not those of the simulator")
    if report["sent_bytes"] != report["sent_bytes_expected"]:
        report["wrong"].append(
            f"sent {report['sent_bytes']} bytes, "
            f"{report['sent_bytes_expected']} expected")
    if abs(bubble - record["bubble_ratio"]) > BUBBLE_TOLERANCE:
        report["wrong"].append(
            f"bubble ratio {record['bubble_ratio']:.4f}, {bubble:.4f} by the "
            "trace")
    return report


def measure(bench, cost):
    """Two steps under both schedules, the second chosen with a first cost: a
    plain draw, and one with a sequence of the longest length.  Steps around
    them calibrate again, each run for itself: a machine's speed drifts more in
    minutes than the simulator may err."""
    options, longest = bench.options, 32768
    n = options.sequences
    names = ("plain", "one longest")
    batches = [batch(options, longest, 301 + i, n, i == 1) for i in range(2)]
    cap = cap_of(longest, MEASURED_STAGES, options.scale)
    _, plan = best(bench, batches, MEASURED_STAGES, cost, cap)
    around = calibration_lengths(options)
    reports, all_around = [], []
    for chosen in (("--schedule", BASELINE), plan):
        first, *steps, last = bench.train(
            [warm_lengths(options), around, *batches, around], chosen)
        _, pairs = bench.plan(around, chosen)
        steps_around = [(ops, pairs) for _, ops in (first, last)]
        all_around += steps_around
        cost = pipeline_costs.fit_pipeline(steps_around)
        reports += [step_report(bench, name, lengths, chosen, cost, *step)
                    for name, lengths, step in zip(names, batches, steps)]
    return {"plan": plan_text(plan), "cap_tokens": cap,
            "cost": pipeline_costs.fit_pipeline(all_around),
            "steps": reports, "speed_up": speed_ups(reports, names)}


def speed_ups(reports, names):
    def both(key, name):
        times = [r[key] for r in reports if r["step"] == name]
        return times[0] / times[1]

    return [{"step": name, "measured": both("measured_s", name),
             "simulated": both("simulated_s", name),
             "whole_step": both("step_s", name)} for name in names]


def plan_text(plan):
    return (f"{plan[1]}, ChunkSize {plan[3]}, K {plan[5]}" if len(plan) > 2
            else plan[1])


def measured_print(bench, result):
    bench.say(f"\nMeasured on {MEASURED_STAGES} ranks, {result['plan']} against "
              f"{BASELINE}; at most {result['cap_tokens']} tokens kept\n")
    bench.say(f"{'step':<12}{'schedule':<24}{'tokens':>7}{'measured':>10}"
              f"{'simulated':>10}{'error':>8}{'bubble':>8}{'by sim.':>8}"
              f"{'waited':>8}  sent")
    for r in result["steps"]:
        sent = ("ok" if r["sent_bytes"] == r["sent_bytes_expected"]
                else "WRONG")
        bench.say(f"{r['step']:<12}{r['schedule']:<24}{r['tokens']:>7}"
                  f"{r['measured_s']:>9.2f}s{r['simulated_s']:>9.2f}s"
                  f"{100 * r['error']:>+7.1f}%{100 * r['bubble_ratio']:>7.1f}%"
                  f"{100 * r['bubble_ratio_simulated']:>7.1f}%"
                  f"{100 * r['waited_share']:>7.1f}%  {sent}")
    for r in result["speed_up"]:
        bench.say(f"{r['step']}: {r['measured']:.2f}x as fast, "
                  f"{r['simulated']:.2f}x simulated; "
                  f"{r['whole_step']:.2f}x with optimizer and reductions")
    worst = max(abs(r["error"]) for r in result["steps"])
    waited = max(r["waited_share"] for r in result["steps"])
    bench.say(f"largest error {100 * worst:.1f} % (target "
              f"{100 * MAKESPAN_TARGET:.0f}), waited beyond the schedule "
              f"{100 * waited:.1f} % (target {100 * WAIT_TARGET:.0f})"
              + ("" if worst <= MAKESPAN_TARGET and waited <= WAIT_TARGET
                 else ": TARGET MISSED"))


# ---- simulated ----

def paper_cost(fixed):
    return ("--cost", f"{fixed},{1 / 1024!r},{1 / CONTEXT / 1024!r},512")


def versus(bench, longest, with_longest, stages, cost):
    """Both schedules on steps of 256: how many times as fast."""
    batches = [batch(bench.options, longest, 501 + i, BATCH, with_longest)
               for i in range(1 if bench.options.quick else 3)]
    cap = cap_of(longest, stages, bench.options.scale)
    theirs = [bench.simulate(lengths, stages, ("--schedule", BASELINE), cost)
              for lengths in batches]
    ours, plan = best(bench, batches, stages, cost, cap)
    return {"longest": longest, "one_in_every_step": with_longest,
            "stages": stages, "speed_up": total(theirs) / total(ours),
            "limit": total(theirs) / total(ours, "useful"),
            "idle_of_theirs": total(theirs, "bubble_ratio") / total(theirs),
            "idle_of_ours": total(ours, "bubble_ratio") / total(ours),
            "plan": plan_text(plan), "cap_tokens": cap}


def headline(bench, cost, layers):
    """With the measured costs, scaled; and with the paper's, not scaled."""
    rows = []
    whole = bench.options.model
    for stages in (MEASURED_STAGES, *MORE_STAGES):
        split = bench.split(whole, stages)
        spread = pipeline_costs.spread(cost, layers, split)
        rows += [{"costs": "measured", "layers": split,
                  **versus(bench, longest, with_longest, stages, spread)}
                 for longest in PAPER for with_longest in (False, True)]
    scale, bench.options.scale = bench.options.scale, 1
    for name, fixed in FIXED.items():
        rows += [{"costs": name,
                  **versus(bench, longest, with_longest, PAPER_STAGES,
                           paper_cost(fixed))}
                 for longest in PAPER for with_longest in (False, True)]
    bench.options.scale = scale
    return rows


def verdict(row):
    paper = PAPER[row["longest"]]
    if row["speed_up"] > paper:
        return "above"
    return "below" if row["limit"] > paper else "out of reach"


def headline_print(bench, rows):
    bench.say(f"""
Simulated steps of {BATCH}: how many times as fast as {BASELINE}, and at most with
chunks of that size if no stage ever idled or ran a chunk forward twice; the paper
has {PAPER[32768]}x at a longest of 32K and {PAPER[262144]}x at 256K
""")
    bench.say(f"{'costs':<24}{'longest':>8}{'stages':>7}{'idle':>14}"
              f"{'speed-up':>9}{'at most':>9}  {'':<14}with")
    for r in rows:
        longest = (f"{r['longest'] // 1024}K"
                   + ("" if r["one_in_every_step"] else " *"))
        idle = (f"{100 * r['idle_of_theirs']:.0f} -> "
                f"{100 * r['idle_of_ours']:.0f} %")
        bench.say(f"{r['costs']:<24}{longest:>8}{r['stages']:>7}{idle:>14}"
                  f"{r['speed_up']:>8.2f}x{r['limit']:>8.2f}x  "
                  f"{verdict(r):<14}{r['plan']}")
    bench.say("* only by chance; otherwise one so long in every step")
    splits = {r["stages"]: r["layers"] for r in rows if "layers" in r}
    for stages, split in splits.items():
        bench.say(f"measured costs on {stages} stages: layers "
                  f"{'+'.join(map(str, split))}, the head on the last")


# ---- all of it ----

def main():
    options = options_parse()
    load = os.getloadavg()[0]
    os.makedirs(CACHE, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="bench-") as folder:
        bench = Bench(options, folder)
        bench.say(f"load average at the start {load:.2f}"
                  + (": others are computing, do not quote the figures"
                     if load > 0.5 else ""))
        bench.say(f"{options.layers} layers of {options.model}, lengths "
                  f"divided by {options.scale}")
        layers = bench.split(bench.model, MEASURED_STAGES)
        result = measure(bench, calibrate(bench))
        cost = result["cost"]
        cost_print(bench, cost, layers)
        measured_print(bench, result)
        rows = headline(bench, cost, layers)
        headline_print(bench, rows)
    if options.json:
        print(json.dumps({"load_average": load, "layers": layers,
                          "measured": result, "simulated": rows}))
    wrong = [f"{r['step']}, {r['schedule']}: {text}"
             for r in result["steps"] for text in r["wrong"]]
    if wrong:
        raise Failure("; ".join(wrong), 1)


if __name__ == "__main__":
    run(main)
