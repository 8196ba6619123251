#!/usr/bin/env python3
"""Ask transformers for the loss of a model folder.

    check-transformers.py MODEL DATA [--double] [--expect LOSS]
                          [--tolerance 1e-4]

Prints the loss (the sum of the cross-entropy of all target tokens divided by
their count, as `chunkflow eval` has it) of pre-tokenised JSONL or of the prefix
of .bin/.idx (and .mask), in float32, or with --double in float64 to the last
angle, as make_fixtures.py has it.  Fails when transformers says anything while
it loads the folder, or when the loss is not LOSS to the relative tolerance.
For developers: needs torch, transformers and safetensors.

The cross-entropy of float32 logits is taken in float64: PyTorch's own, on a
CPU, adds up the exponentials of 49,152 logits with an error of 5e-6 of the loss,
always to the same side, which is more than all the rest of the model adds.
"""

import argparse
import contextlib
import json
import logging
import struct
import sys
import warnings
from array import array
from pathlib import Path

import torch
import transformers
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

from make_fixtures import float64_islands

IGNORED = -100
HEAD_TILE_TOK = 1024    # the logits of a long sequence need not exist at once
# Megatron's numbers for the type of a token, as array has them.
TOKEN_TYPES = {1: "B", 2: "b", 3: "h", 4: "i", 5: "q", 8: "H"}


class Complaints(logging.Handler):
    """Collects what transformers says at warning level and above."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def jsonl_sequences(path):
    """(ids, labels) of every line."""
    with open(path, encoding="utf-8") as file:
        for line in file:
            fields = json.loads(line)
            ids = fields["input_ids"]
            yield ids, list(fields.get("labels", ids))


def megatron_sequences(prefix):
    """(ids, labels) of every sequence of prefix.bin."""
    index = Path(f"{prefix}.idx").read_bytes()
    magic, version, code, n_sequences, _ = struct.unpack_from("<9sQBQQ", index)
    if magic != b"MMIDIDX\x00\x00" or version != 1 or code not in TOKEN_TYPES:
        raise SystemExit(f"check-transformers: {prefix}.idx: not an index "
                         "of Megatron's first version")
    sizes = struct.unpack_from(f"<{n_sequences}i", index, 34)
    mask_path = Path(f"{prefix}.mask")
    mask = mask_path.read_bytes() if mask_path.exists() else None
    first = 0
    with open(f"{prefix}.bin", "rb") as tokens:
        for size in sizes:
            ids = array(TOKEN_TYPES[code])
            ids.fromfile(tokens, size)
            labels = ids.tolist() if mask is None else [
                token if kept else IGNORED
                for token, kept in zip(ids, mask[first:first + size])]
            yield ids.tolist(), labels
            first += size


def sequences_of(data):
    if data.endswith(".jsonl"):
        return jsonl_sequences(data)
    return megatron_sequences(data)


def load(folder, dtype):
    """The model in dtype; anything transformers says about it is an error."""
    complaints = Complaints()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.add_handler(complaints)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model, info = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, output_loading_info=True)
    lines = complaints.lines + [str(entry.message) for entry in caught]
    lines += [f"{key}: {value}" for key, value in info.items() if value]
    for line in lines:
        print(f"check-transformers: {folder}: {line}", file=sys.stderr)
    if lines:
        raise SystemExit(1)
    return model.eval()


def sum_of_losses(model, ids, labels):
    """(sum of cross-entropy in double, number of targets) of one sequence."""
    targets = torch.tensor(labels[1:], dtype=torch.long)
    n_targets = int((targets != IGNORED).sum())
    if n_targets == 0:
        return 0.0, 0
    hidden = model.model(input_ids=torch.tensor([ids]),
                         use_cache=False).last_hidden_state[0, :-1]
    total = 0.0
    for tile, wanted in zip(hidden.split(HEAD_TILE_TOK),
                            targets.split(HEAD_TILE_TOK)):
        total += float(cross_entropy(model.lm_head(tile).double(), wanted,
                                     ignore_index=IGNORED, reduction="sum"))
    return total, n_targets


def main():
    parser = argparse.ArgumentParser(
        description="transformers' loss of a model folder")
    parser.add_argument("model")
    parser.add_argument("data", help=".jsonl, or prefix of .bin/.idx")
    parser.add_argument("--double", action="store_true",
                        help="in float64, not in float32")
    parser.add_argument("--expect", type=float, metavar="LOSS")
    parser.add_argument("--tolerance", type=float, default=1e-4)
    arguments = parser.parse_args()

    dtype = torch.float64 if arguments.double else torch.float32
    islands = float64_islands if arguments.double else contextlib.nullcontext
    total, n_targets = 0.0, 0
    with torch.no_grad(), islands():
        model = load(arguments.model, dtype)
        for ids, labels in sequences_of(arguments.data):
            part, count = sum_of_losses(model, ids, labels)
            total += part
            n_targets += count
    if n_targets == 0:
        print("check-transformers: no target token in the data",
              file=sys.stderr)
        return 1
    loss = total / n_targets
    print(f"{loss:.17g}" if arguments.double else f"{loss:.9g}")
    if arguments.expect is None:
        return 0
    difference = abs(loss - arguments.expect) / abs(loss)
    if not difference <= arguments.tolerance:
        print(f"check-transformers: expected {arguments.expect:.9g}: off by "
              f"{difference:.1e}, more than {arguments.tolerance:.1e}",
              file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
