"""Measures chunkflow against PyTorch and transformers, in one run.

The same model folder, sequences, order and AdamW on both sides. For each case
(a length, or a data set) every configuration of the peer is tried once; then
chunkflow and the fastest of them take turns. Rules:

 1. Each run is a process of its own, under the same memory cap.
 2. The first step is warm-up and left out of tokens/s, on both sides.
 3. A step ends when its line arrives; both write theirs after the update.
 4. The loss of step 1 must agree in every run, trials included: both did the
    same work. A disagreement ends the benchmark with exit code 6.

Standard library only; PyTorch runs in the interpreter of scripts/peer-env.
"""

import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile

import long_sequence
import measured
from common import EXIT_USAGE, Failure, Options, run, write_whole

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
CHUNKFLOW = os.path.join(ROOT, "src", "chunkflow")
CACHE = os.path.join(ROOT, ".cache")

LEARNING_RATE = 2e-5
WEIGHT_DECAY = 0.01
GRAD_CLIP = 1.0
EXIT_DIFFERENCE = 6
# Of the loss of step 1, relative; a bf16 side rounds activations to 8 bits.
TOLERANCE_FP32 = 1e-3
TOLERANCE_BF16 = 2e-2

TRIAL_STEPS = 3
TRIAL_GRACE_S = 60
PADDED_TOKENS = 8192
# OpenBLAS asks for buffers of this size outside of chunkflow's table, and
# waits for ever where the cap leaves no room for them.
BLAS_BUFFER_BYTES = 128 << 20
CONFIGURATIONS = ["fp32", "fp32+checkpoint", "autocast", "autocast+checkpoint",
                  "bf16", "bf16+checkpoint"]
ISA_FLAGS = ["avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve",
             "bf16"]


def options_parse():
    arguments = sys.argv[1:]
    train = []
    if "--" in arguments:
        place = arguments.index("--")
        arguments, train = arguments[:place], arguments[place + 1:]
    parser = Options(
        prog="bench-peer",
        description="Measures chunkflow against PyTorch and transformers.",
        epilog="What follows -- goes to chunkflow train, as in "
               "-- --chunk-size 4K --retain-chunks 2.")
    add = parser.add_argument
    add("--model", required=True, help="Hugging Face folder")
    case = parser.add_mutually_exclusive_group(required=True)
    case.add_argument("--lengths", help="cases of one sequence a step, of "
                      "these tokens: 1024,2048,8192")
    case.add_argument("--data", help="prefix of .bin/.idx: one epoch of it")
    case.add_argument("--quick", action="store_true",
                      help="one length of 256, 2 steps, fp32: checks the "
                           "script, measures nothing")
    add("--tokens", default=os.path.join(CACHE, "demo", "pages"),
        help="what --lengths repeats: prefix or .jsonl [the demo's pages]")
    add("--compute", choices=["fp32", "bf16"], default="fp32",
        help="of chunkflow [fp32]")
    add("--peer", default=",".join(CONFIGURATIONS),
        help="configurations of the peer to try [%(default)s]")
    add("--steps", type=int, default=4,
        help="of each run, with --lengths [4]")
    add("--global-batch", type=int, default=8,
        help="sequences per step, with --data [8]")
    add("--runs", type=int, default=2, help="of each side, in turns [2]")
    add("--threads", type=int, default=len(os.sched_getaffinity(0)),
        help="[cores]")
    add("--memory", help="cap of each process [9/10 of what is free]")
    add("--output", default=os.path.join(CACHE, "bench-peer.json"),
        help="JSON file [%(default)s]")
    options = parser.parse_args(arguments)
    options.train = train
    options_check(options)
    return options


def options_check(options):
    if options.quick:
        options.lengths, options.steps, options.runs = "256", 2, 1
        options.peer = "fp32"
    options.peer = options.peer.split(",")
    for name in options.peer:
        if name not in CONFIGURATIONS:
            raise Failure(f"--peer {name}: choose from "
                          f"{','.join(CONFIGURATIONS)}", EXIT_USAGE)
    try:
        options.lengths = [int(length) for length
                           in (options.lengths or "").split(",") if length]
        options.memory = (measured.size(options.memory) if options.memory
                          else measured.free_bytes() * 9 // 10)
    except ValueError as error:
        raise Failure(f"bench-peer: not a number: {error}",
                      EXIT_USAGE) from error
    if not options.data and min(options.lengths, default=0) < 2:
        raise Failure("--lengths takes numbers of 2 or more", EXIT_USAGE)
    if options.steps < 2:
        raise Failure("--steps must be 2 or more: the first is warm-up",
                      EXIT_USAGE)
    if min(options.runs, options.threads, options.global_batch) < 1:
        raise Failure("--runs, --threads and --global-batch must be 1 or "
                      "more", EXIT_USAGE)
    if not os.access(CHUNKFLOW, os.X_OK):
        raise Failure(f"{CHUNKFLOW} is missing: run scripts/setup first")


# ---- one run of either side ----

def result(name, done, steps):
    """What a run comes to. `steps` are its step records in order; a line's
    arrival stands in `end_s`."""
    summary = {"configuration": name, "failure": done.failure(),
               "wall_s": done.wall_s, "peak_rss_bytes": done.peak_rss_bytes}
    if summary["failure"]:
        return summary
    steady_s = sum(step["step_s"] for step in steps[1:])
    summary.update(
        tokens_per_s=sum(step["tokens"] for step in steps[1:]) / steady_s,
        first_step_begin_s=steps[0]["end_s"] - steps[0]["step_s"],
        first_step_end_s=steps[0]["end_s"],
        loss_first=steps[0]["loss"], loss_last=steps[-1]["loss"],
        steps=steps)
    return summary


def environment(options):
    threads = str(options.threads)
    return {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads,
            "HF_HUB_OFFLINE": "1"}


def chunkflow_run(case, steps, options, machine):
    """chunkflow train: the arrival of a step's line on standard error, and
    the rest from metrics.jsonl."""
    room = options.memory - (options.threads + 1) * BLAS_BUFFER_BYTES
    with tempfile.TemporaryDirectory(dir=case["folder"]) as output:
        done = measured.run(
            [CHUNKFLOW, "train", "--model", options.model,
             "--data", case["data"], "--output", output,
             "--no-shuffle", "--lr-schedule", "constant",
             "--learning-rate", str(LEARNING_RATE),
             "--weight-decay", str(WEIGHT_DECAY),
             "--grad-clip", str(GRAD_CLIP), "--compute", options.compute,
             "--global-batch", str(case["global_batch"]),
             "--steps", str(steps), "--threads", str(options.threads),
             "--memory", str(max(room, 1)), *options.train],
            options.memory, environment(options))
        records = []
        if done.returncode == 0:
            with open(os.path.join(output, "metrics.jsonl"),
                      encoding="utf-8") as file:
                records = [json.loads(line) for line in file]
            records = [record for record in records if "step_s" in record]
    ends = {}
    for end_s, line in done.lines:
        match = re.match(r"step (\d+)/", line)
        if match:
            ends[int(match[1])] = end_s
        match = re.search(r"; backend (.+)$", line)
        if match:
            machine["chunkflow_backend"] = match[1]
    keep = ("step", "loss", "step_s", "tokens", "peak_bytes")
    return result(f"chunkflow {options.compute}", done,
                  [{**{key: record[key] for key in keep},
                    "end_s": ends[record["step"]]} for record in records])


def peer_run(case, name, steps, options, machine, limit_s=None):
    precision, *extra = name.split("+")
    command = [machine["peer_python"],
               os.path.join(HERE, "bench_peer_torch.py"),
               "--model", options.model, "--data", case["data"],
               "--precision", precision, "--threads", str(options.threads),
               "--steps", str(steps),
               "--global-batch", str(case["global_batch"]),
               "--learning-rate", str(LEARNING_RATE),
               "--weight-decay", str(WEIGHT_DECAY),
               "--grad-clip", str(GRAD_CLIP)]
    if "checkpoint" in extra:
        command += ["--checkpoint"]
    if "padded" in extra:
        command += ["--padded-tokens", str(PADDED_TOKENS)]
    done = measured.run(command, options.memory, environment(options),
                        limit_s)
    records = []
    for end_s, line in done.lines:
        if not line.startswith("{"):
            continue
        record = json.loads(line)
        if "step" in record:
            records.append({**record, "end_s": end_s})
        else:
            machine["peer"] = record
    return result(name, done, records)


def same_work(ours, theirs):
    """Rule 4, and the token counts of every step both ran."""
    both_fp32 = (ours["configuration"].endswith("fp32")
                 and theirs["configuration"].startswith("fp32"))
    tolerance = TOLERANCE_FP32 if both_fp32 else TOLERANCE_BF16
    a, b = ours["loss_first"], theirs["loss_first"]
    if a is None or b is None or not abs(a - b) <= tolerance * abs(a):
        raise Failure(f"the loss of step 1 is {a} in chunkflow and {b} in "
                      f"the peer's {theirs['configuration']}: not the same "
                      "work, so not compared", EXIT_DIFFERENCE)
    for x, y in zip(ours["steps"], theirs["steps"]):
        if x["tokens"] != y["tokens"]:
            raise Failure(f"step {x['step']} has {x['tokens']} tokens in "
                          f"chunkflow and {y['tokens']} in the peer: not the "
                          "same work, so not compared", EXIT_DIFFERENCE)


# ---- a case ----

def say(text):
    print(text, file=sys.stderr, flush=True)


def trials(case, ours, options, machine):
    """Every configuration of the peer once, for a few steps; one that takes
    three times as long as the best so far is given up."""
    tried = []
    steps = min(case["steps"], TRIAL_STEPS)

    def best():
        return max((t for t in tried if not t["failure"]),
                   key=lambda t: t["tokens_per_s"], default=None)

    def one(name):
        limit_s = best() and 3 * best()["wall_s"] + TRIAL_GRACE_S
        say(f"{case['name']}: trying {name}")
        tried.append(peer_run(case, name, steps, options, machine, limit_s))
        if not tried[-1]["failure"]:
            same_work(ours, tried[-1])

    for name in options.peer:
        one(name)
    if case["global_batch"] > 1 and best():
        one(best()["configuration"] + "+padded")
    return tried


def ranked(tried):
    return [t["configuration"] for t
            in sorted((t for t in tried if not t["failure"]),
                      key=lambda t: -t["tokens_per_s"])]


def take_turns(case, name, options, machine):
    """A B A B. Stops at the first failure of either side."""
    ours, theirs = [], []
    for number in range(1, options.runs + 1):
        say(f"{case['name']}: run {number} of {options.runs}, chunkflow")
        ours.append(chunkflow_run(case, case["steps"], options, machine))
        if ours[-1]["failure"]:
            break
        say(f"{case['name']}: run {number} of {options.runs}, {name}")
        theirs.append(peer_run(case, name, case["steps"], options, machine))
        if theirs[-1]["failure"]:
            break
        same_work(ours[-1], theirs[-1])
    return ours, theirs


def failed(runs):
    return next((r["failure"] for r in runs if r["failure"]), None)


def case_run(case, options, machine):
    """Trials, then turns; a configuration that got through its trial and
    fails now makes room for the next fastest."""
    say(f"{case['name']}: trying chunkflow")
    ours = chunkflow_run(case, min(case["steps"], TRIAL_STEPS), options,
                         machine)
    if ours["failure"]:
        raise Failure(f"{case['name']}: chunkflow failed: {ours['failure']}")
    tried = trials(case, ours, options, machine)
    report = {"case": case["name"], "steps": case["steps"],
              "sequences_per_step": case["global_batch"], "trials": tried,
              "chunkflow": [ours], "peer": []}
    for name in ranked(tried):
        ours, theirs = take_turns(case, name, options, machine)
        if failed(ours):
            raise Failure(f"{case['name']}: chunkflow failed: {failed(ours)}")
        report["chunkflow"] = ours
        if not failed(theirs):
            report["peer"] = theirs
            break
        trial = next(t for t in tried if t["configuration"] == name)
        trial["failure"] = f"{failed(theirs)}, in the whole run"
    return report


# ---- what is printed ----

COLUMNS = "{:<28}{:>10}{:>12}{:>13}{:>13}{:>11}{:>11}"


def middle(runs, key):
    return statistics.median(r[key] for r in runs)


def row(label, runs):
    return COLUMNS.format(
        label, f"{middle(runs, 'tokens_per_s'):.1f}",
        f"{middle(runs, 'peak_rss_bytes') / measured.GIB:.2f} GiB",
        f"{middle(runs, 'first_step_begin_s'):.2f} s",
        f"{middle(runs, 'first_step_end_s'):.2f} s",
        f"{runs[0]['loss_first']:.6f}", f"{runs[0]['loss_last']:.6f}")


def ratios(report):
    """chunkflow / peer of the medians."""
    keys = ("tokens_per_s", "peak_rss_bytes", "first_step_begin_s",
            "first_step_end_s")
    return {key: middle(report["chunkflow"], key) / middle(report["peer"], key)
            for key in keys}


def case_print(report):
    print(f"\n{report['case']}: {report['steps']} steps, the first left out "
          "of tokens/s")
    print(COLUMNS.format("", "tokens/s", "peak RSS", "to step 1",
                         "to its end", "loss 1", "loss last"))
    for trial in report["trials"]:
        name = f"trial: {trial['configuration']}"
        print(f"{name:<28}  {trial['failure']}" if trial["failure"]
              else row(name, [trial]))
    print(row(report["chunkflow"][0]["configuration"], report["chunkflow"]))
    if not report["peer"]:
        print("peer: no configuration got through")
        return
    print(row(f"peer {report['peer'][0]['configuration']}", report["peer"]))
    cells = [f"{value:.3g}x" for value in report["ratios"].values()]
    print(COLUMNS.format("chunkflow / peer", *cells, "", ""), flush=True)


def machine_describe(options):
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        cpuinfo = file.read()
    model = re.search(r"^model name\s*:\s*(.*)$", cpuinfo, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", cpuinfo,
                      re.MULTILINE)
    flags = flags[1].split() if flags else []
    peer_python = subprocess.run([os.path.join(ROOT, "scripts", "peer-env")],
                                 stdout=subprocess.PIPE, text=True,
                                 check=False)
    if peer_python.returncode != 0:
        sys.exit(peer_python.returncode)
    version = subprocess.run([CHUNKFLOW, "--version"], check=True,
                             stdout=subprocess.PIPE, text=True)
    return {"processor": model[1] if model else platform.machine(),
            "cores": len(os.sched_getaffinity(0)),
            "isa": [flag for flag in ISA_FLAGS if flag in flags],
            "threads": options.threads, "memory_cap_bytes": options.memory,
            "load_average": os.getloadavg()[0],
            "chunkflow": version.stdout.strip(),
            "peer_python": peer_python.stdout.strip()}


def machine_print(machine):
    peer = machine.get("peer")  # it may have died before its first word
    versions = (f"torch {peer['torch']} ({peer['isa']}), transformers "
                f"{peer['transformers']}" if peer else "versions unknown")
    print(f"{machine['processor']}, {machine['cores']} cores, "
          f"{' '.join(machine['isa'])}; {machine['threads']} threads; cap "
          f"{machine['memory_cap_bytes'] / measured.GIB:.1f} GiB\n"
          f"{machine['chunkflow']}, {machine['chunkflow_backend']}; peer: "
          f"{versions}", flush=True)
    if machine["load_average"] > 0.5:
        say(f"bench-peer: the load was {machine['load_average']:.1f} when "
            "this began: others were computing, so do not quote the figures")


def cases_make(options, folder):
    if options.data:
        try:
            with open(f"{options.data}.idx", "rb") as file:
                n = int.from_bytes(file.read(26)[18:], "little")
        except OSError as error:
            raise Failure(f"{error.filename}: {error.strerror}; --data wants "
                          "the prefix of .bin and .idx") from error
        steps = -(-n // options.global_batch)
        if steps < 2:
            raise Failure(f"{options.data} has {n} sequences, one step of "
                          f"--global-batch {options.global_batch}: the first "
                          "step is warm-up, use a smaller one", EXIT_USAGE)
        name = f"{os.path.basename(options.data)} by {options.global_batch}"
        return [{"name": name, "data": options.data, "folder": folder,
                 "steps": steps, "global_batch": options.global_batch}]
    cases = []
    for length in options.lengths:
        prefix = os.path.join(folder, f"{length}")
        long_sequence.write(options.tokens, length, prefix)
        cases.append({"name": f"{length} tokens", "data": prefix,
                      "folder": folder, "steps": options.steps,
                      "global_batch": 1})
    return cases


def main():
    options = options_parse()
    os.makedirs(CACHE, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="bench-") as folder:
        cases = cases_make(options, folder)
        machine = machine_describe(options)
        reports = []
        for case in cases:
            report = case_run(case, options, machine)
            if report["peer"]:
                report["ratios"] = ratios(report)
            if not reports:
                machine_print(machine)
            reports.append(report)
            case_print(report)
            write_whole(options.output, json.dumps(
                {"machine": machine, "cases": reports}, indent=1) + "\n")
    say(f"all of it: {options.output}")


if __name__ == "__main__":
    run(main)
