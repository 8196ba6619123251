#!/usr/bin/env python3
"""Have Megatron write indexed data, and look at what chunkflow reads.

    check-megatron.py [--chunkflow PROGRAM] [--keep FOLDER]

Writes .bin/.idx pairs with IndexedDatasetBuilder of megatron-core, which
Megatron's preprocess_data.py writes with: int32 and uint16, documents of one and
of several sequences, empty sequences and an empty document among them; and two
pairs merged, as its merge_datasets.py does.  chunkflow must count the same
sequences and tokens, lose the same as on JSONL of the same tokens, to the last
bit, and refuse a multimodal pair, whose index has one more array.  --keep writes
the pairs to FOLDER and leaves them there.  For developers: needs torch, numpy
and megatron-core; run from the repository's root.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import warnings
from importlib.metadata import version
from pathlib import Path

import numpy
import torch

warnings.simplefilter("ignore")
# pylint: disable-next=wrong-import-position
from megatron.core.datasets.indexed_dataset import (  # noqa: E402
    IndexedDataset, IndexedDatasetBuilder)

MODEL = Path("tests/parity/fixtures/qwen2-tied")
VOCAB = json.loads((MODEL / "config.json").read_text())["vocab_size"]
TYPES = {"int32": numpy.int32, "uint16": numpy.uint16}
SEED = 4


def random_documents(generator, n):
    """Lists of sequences of ids; every fourth document has several."""
    documents = []
    for number in range(n):
        n_sequences = generator.randint(2, 5) if number % 4 == 0 else 1
        documents.append([
            [generator.randrange(VOCAB)
             for _ in range(generator.choice([0, 1, 2, 30, 90]))]
            for _ in range(n_sequences)])
    return documents + [[]]


def pair_write(prefix, documents, dtype):
    """One half through add_item and end_document, one through add_document."""
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype)
    for number, document in enumerate(documents):
        if number % 2 == 0:
            for ids in document:
                builder.add_item(torch.tensor(ids, dtype=torch.int64))
            builder.end_document()
        else:
            builder.add_document(
                torch.tensor([tok for ids in document for tok in ids],
                             dtype=torch.int64),
                [len(ids) for ids in document])
    builder.finalize(f"{prefix}.idx")


def pair_merge(prefix, others, dtype):
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype)
    for other in others:
        builder.add_index(str(other))
    builder.finalize(f"{prefix}.idx")


def pair_write_multimodal(prefix):
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=numpy.int32,
                                    multimodal=True)
    builder.add_item(torch.tensor([1, 2, 3]), mode=1)
    builder.end_document()
    builder.finalize(f"{prefix}.idx")


def jsonl_write(path, sequences):
    path.write_text("".join(json.dumps({"input_ids": ids}) + "\n"
                            for ids in sequences))


def evaluate(program, data, **options):
    return subprocess.run(
        [program, "eval", "--model", str(MODEL), "--data", str(data), "--json",
         "--quiet", "--chunk-size", "32"],
        capture_output=True, text=True, check=False, **options)


def check_pair(program, prefix, sequences):
    """Megatron, chunkflow and chunkflow on JSONL agree on the pair."""
    mine = IndexedDataset(str(prefix))
    if [mine[i].tolist() for i in range(len(mine))] != sequences:
        raise SystemExit(f"check-megatron: {prefix}: Megatron itself reads "
                         "something else")
    plain = prefix.with_name(prefix.name + "-plain.jsonl")
    jsonl_write(plain, sequences)
    read, wanted = evaluate(program, prefix), evaluate(program, plain)
    if wanted.returncode != 0 or read.stdout != wanted.stdout:
        raise SystemExit(f"check-megatron: {prefix}: chunkflow says\n"
                         f"{read.stdout}{read.stderr}not\n{wanted.stdout}"
                         f"{wanted.stderr}")
    result = json.loads(read.stdout)
    counts = (len(sequences), sum(len(ids) for ids in sequences))
    if (result["sequences"], result["tokens"]) != counts:
        raise SystemExit(f"check-megatron: {prefix}: {counts} sequences and "
                         f"tokens, but chunkflow says {read.stdout}")
    plain.unlink()
    print(f"ok  {prefix.name}: {counts[0]} sequences, {counts[1]} tokens, "
          f"loss {result['loss']}")


def check_all(program, folder):
    generator = random.Random(SEED)
    for name, dtype in TYPES.items():
        parts = []
        for number in range(2):
            documents = random_documents(generator, 9)
            prefix = folder / f"{name}-{number}"
            pair_write(prefix, documents, dtype)
            parts.append([ids for document in documents for ids in document])
            check_pair(program, prefix, parts[-1])
        merged = folder / f"{name}-merged"
        pair_merge(merged, [folder / f"{name}-{i}" for i in range(2)], dtype)
        check_pair(program, merged, parts[0] + parts[1])
    multimodal = folder / "multimodal"
    pair_write_multimodal(multimodal)
    refused = evaluate(program, multimodal)
    if refused.returncode != 3 or ".idx: offset " not in refused.stderr:
        raise SystemExit("check-megatron: a multimodal pair must be refused: "
                         f"{refused.returncode} {refused.stderr}")
    print(f"ok  multimodal: {refused.stderr.strip()}")
    print(f"megatron-core {version('megatron-core')}, seed {SEED}")


def main():
    parser = argparse.ArgumentParser(
        description="chunkflow against data that Megatron writes")
    parser.add_argument("--chunkflow", default="src/chunkflow")
    parser.add_argument("--keep", type=Path, metavar="FOLDER")
    arguments = parser.parse_args()

    if arguments.keep is not None:
        arguments.keep.mkdir(parents=True, exist_ok=True)
        check_all(arguments.chunkflow, arguments.keep)
    else:
        with tempfile.TemporaryDirectory() as folder:
            check_all(arguments.chunkflow, Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
