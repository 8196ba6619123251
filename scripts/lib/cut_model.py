"""Cuts a model folder down to its first layers.

    cut_model.py MODEL DIR --layers N

Writes config.json and the weights, bytes as they are, without the later
layers: a model that computes nonsense, at the real sizes of the layers that
are left. For measurements. Standard library only.
"""

import glob
import json
import mmap
import os
import re
import shutil
import struct

import safetensors_file
from common import EXIT_USAGE, Failure, Options, run, whole_folder

LAYER = re.compile(r"^model\.layers\.(\d+)\.")


def json_read(path):
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise Failure(f"{path}: {error}") from error


def weight_files(folder):
    """model.safetensors, or the shards that its index names."""
    whole = os.path.join(folder, "model.safetensors")
    if os.path.exists(whole):
        return [whole]
    index = json_read(f"{whole}.index.json")
    return [os.path.join(folder, name)
            for name in sorted(set(index["weight_map"].values()))]


def tensors_open(folder):
    """(name, dtype, shape, bytes) of every tensor, in file order."""
    for path in weight_files(folder):
        with open(path, "rb") as file:
            data = memoryview(mmap.mmap(file.fileno(), 0,
                                        access=mmap.ACCESS_READ))
        try:
            size, = struct.unpack_from("<Q", data)
            header = json.loads(bytes(data[8:8 + size]))
            header.pop("__metadata__", None)
            for name, entry in header.items():
                first, end = entry["data_offsets"]
                yield (name, entry["dtype"], entry["shape"],
                       data[8 + size + first:8 + size + end])
        except (struct.error, ValueError, KeyError, TypeError) as error:
            raise Failure(f"{path} is not a safetensors file: {error}") \
                from error


def cut(source, target, n_layers):
    path = os.path.join(source, "config.json")
    config = json_read(path)
    have = config.get("num_hidden_layers")
    if not isinstance(have, int):
        raise Failure(f"{path} has no num_hidden_layers")
    if not 1 <= n_layers <= have:
        raise Failure(f"--layers {n_layers}: the model has {have}", EXIT_USAGE)

    config["num_hidden_layers"] = n_layers
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"][:n_layers]
    kept = []
    for name, dtype, shape, data in tensors_open(source):
        match = LAYER.match(name)
        if not match or int(match[1]) < n_layers:
            kept.append((name, dtype, shape, data))
    dtypes = {tensor[1] for tensor in kept}
    if len(dtypes) != 1 or not dtypes <= set(safetensors_file.ITEM_BYTES):
        raise Failure(f"{source} has tensors of type "
                      f"{', '.join(sorted(dtypes))}; one of "
                      f"{', '.join(safetensors_file.ITEM_BYTES)} is wanted")

    with whole_folder(target) as folder:
        with open(os.path.join(folder, "config.json"), "w",
                  encoding="utf-8") as file:
            json.dump(config, file, indent=2)
        safetensors_file.write(
            folder, [(name, shape, lambda data=data: data)
                     for name, _, shape, data in kept], dtypes.pop())
        for path in glob.glob(os.path.join(source, "*token*.json")):
            shutil.copy(path, folder)


def main():
    parser = Options(prog="cut-model", description="Keep the first layers.")
    parser.add_argument("model", help="Hugging Face folder")
    parser.add_argument("folder", help="the one to write")
    parser.add_argument("--layers", type=int, required=True)
    options = parser.parse_args()
    cut(options.model, options.folder, options.layers)


if __name__ == "__main__":
    run(main)
