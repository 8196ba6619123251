"""What one sequence costs, predicted and measured, over length and K.

Cuts a model to a few layers, makes one sequence of each length, and for each
K asks `chunkflow train --dry-run` for the prediction and runs one real step.
The columns of the table:

    activations   of the retained chunks, and of the one layer that is
                  computed: follows ChunkSize x K, not the length
    KV state      with its gradients: follows the length
    rest          weights, gradients, optimizer, head, scratch
    predicted     the sum of these; the total of the dry run
    used          peak_bytes of the step: the high water of the arena
    resident      VmHWM of the process
    over          resident - predicted: what the table leaves out

Fails when the step used more or less than predicted. Standard library only.
"""

import json
import os
import re
import sys
import tempfile

import cut_model
import long_sequence
import measured
from common import EXIT_USAGE, Failure, Options, run

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
CHUNKFLOW = os.path.join(ROOT, "src", "chunkflow")
CACHE = os.path.join(ROOT, ".cache")
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
MEMORY_ROW = re.compile(r"  (\S.*?)\s+(?:run|group|chunk|op)? +"
                        r"([0-9.]+) (B|KiB|MiB|GiB)$")
COLUMNS = "{:>8}{:>4}" + 7 * "{:>13}"


def count(text):
    match = re.fullmatch(r"(\d+)(K?)", text)
    if not match or int(match[1]) == 0:
        raise Failure(f"{text} is not a number of 1 or more (4096, 4K)",
                      EXIT_USAGE)
    return int(match[1]) * (1024 if match[2] else 1)


def options_parse():
    parser = Options(prog="memory-table",
                     description="Memory of one sequence, over length and K.")
    add = parser.add_argument
    add("--model", required=True, help="Hugging Face folder")
    add("--layers", type=int, default=2, help="layers to keep [2]")
    add("--lengths", default="4K,8K,16K,32K", help="[4K,8K,16K,32K]")
    add("--retain-chunks", default="1,2", help="[1,2]")
    add("--chunk-size", default="2K", help="[2K]")
    add("--tokens", default=os.path.join(CACHE, "demo", "pages"),
        help="what is repeated: prefix or .jsonl [the demo's pages]")
    add("--dry-run", action="store_true", help="predictions only")
    options = parser.parse_args()
    options.lengths = [count(text) for text in options.lengths.split(",")]
    options.chunk_size = count(options.chunk_size)
    options.retain_chunks = [count(text) for text
                             in options.retain_chunks.split(",")]
    if not os.access(CHUNKFLOW, os.X_OK):
        raise Failure(f"{CHUNKFLOW} is missing: run scripts/setup first")
    return options


def train(command, *more):
    done = measured.run([*command, *more], measured.free_bytes())
    if done.failure():
        raise Failure(f"chunkflow train: {done.failure()}")
    return done


def predict(command):
    """Bytes by kind, read from the table of --dry-run, whose rows have two
    digits after the point."""
    kinds = {"activations": 0, "kv_state": 0, "rest": 0}
    total = None
    for _, line in train(command, "--dry-run").lines:
        match = MEMORY_ROW.match(line)
        if not match:
            continue
        name, size = match[1], float(match[2]) * UNITS[match[3]]
        if name == "total":
            total = size
        elif "KV state" in name:
            kinds["kv_state"] += size
        elif "activations" in name:
            kinds["activations"] += size
        else:
            kinds["rest"] += size
    if total is None:
        raise Failure("chunkflow train --dry-run printed no memory table")
    predicted = sum(kinds.values())
    if abs(predicted - total) > total / 100:
        raise Failure("the rows of the memory table do not add up to its "
                      "total: a row was not understood")
    return {**kinds, "predicted": predicted}


def step(command, output):
    """One real step: (peak_bytes, VmHWM)."""
    done = train(command, "--steps", "1", "--overwrite")
    with open(os.path.join(output, "metrics.jsonl"), encoding="utf-8") as file:
        used = json.loads(file.readline())["peak_bytes"]
    return used, done.peak_rss_bytes


def mib(value):
    return f"{value / (1 << 20):.1f} MiB"


def line_print(length, retain, row, used, resident):
    cells = [row["activations"], row["kv_state"], row["rest"],
             row["predicted"]]
    if used is not None:
        cells += [used, resident, resident - row["predicted"]]
    cells = [mib(cell) for cell in cells] + ["-"] * (7 - len(cells))
    print(COLUMNS.format(length, retain, *cells), flush=True)
    # Rows of a GiB and more are rounded to 5 MiB.
    if used is not None and abs(used - row["predicted"]) > \
            max(row["predicted"] / 1000, 0.006 * UNITS["GiB"]):
        raise Failure(f"the step used {used} bytes, predicted were "
                      f"{row['predicted']:.0f}", 1)


def main():
    options = options_parse()
    os.makedirs(CACHE, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="memory-") as folder:
        model = os.path.join(folder, "model")
        output = os.path.join(folder, "run")
        cut_model.cut(options.model, model, options.layers)
        print(f"{options.layers} layers of {options.model}, one sequence, "
              f"chunks of {options.chunk_size} tokens")
        print(COLUMNS.format("tokens", "K", "activations", "KV state", "rest",
                             "predicted", "used", "resident", "over"),
              flush=True)
        for length in options.lengths:
            prefix = os.path.join(folder, str(length))
            long_sequence.write(options.tokens, length, prefix)
            for retain in options.retain_chunks:
                command = [CHUNKFLOW, "train", "--model", model,
                           "--data", prefix, "--output", output,
                           "--chunk-size", str(options.chunk_size),
                           "--retain-chunks", str(retain)]
                row = predict(command)
                used, resident = ((None, None) if options.dry_run
                                  else step(command, output))
                line_print(length, retain, row, used, resident)
    sys.stdout.flush()


if __name__ == "__main__":
    run(main)
