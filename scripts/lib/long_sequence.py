"""One sequence of any length, made of real tokens.

The tokens come from the front of pre-tokenised data (JSONL, or the prefix of
a Megatron pair) and are repeated when the data has fewer. Every token but the
first is a target. Speed and memory do not depend on which tokens they are.
"""

import array
import json
import struct

import megatron
from common import Failure

TYPES = {4: "i", 8: "H"}


def _jsonl_tokens(path, n):
    tokens = array.array("i")
    with open(path, encoding="utf-8") as file:
        for line in file:
            if len(tokens) >= n:
                break
            tokens.extend(json.loads(line)["input_ids"])
    return tokens[:n]


def _megatron_tokens(prefix, n):
    with open(f"{prefix}.idx", "rb") as file:
        header = file.read(18)
    if header[:9] != megatron.MAGIC or header[17] not in TYPES:
        raise Failure(f"{prefix}.idx is not a Megatron index of int32 or "
                      "uint16 tokens")
    kind = TYPES[header[17]]
    with open(f"{prefix}.bin", "rb") as file:
        data = file.read(n * struct.calcsize(kind))
    return array.array("i", array.array(kind, data))


def write(source, length, prefix):
    """Write PREFIX.bin, .idx and .mask with one sequence of `length`."""
    try:
        read = (_jsonl_tokens if source.endswith(".jsonl")
                else _megatron_tokens)
        tokens = read(source, length)
    except OSError as error:
        raise Failure(f"{error.filename}: {error.strerror}; --tokens wants "
                      "pre-tokenised data") from error
    except (ValueError, KeyError) as error:
        raise Failure(f"{source}: not pre-tokenised data: {error}") from error
    if not tokens:
        raise Failure(f"{source} has no tokens")
    repeated = (tokens * (length // len(tokens) + 1))[:length]
    writer = megatron.Writer(prefix)
    try:
        writer.append(repeated, array.array("B", b"\1" * length))
        writer.close()
    finally:
        writer.discard()
