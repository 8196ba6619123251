"""A writer of safetensors that streams one tensor at a time.

Format: eight bytes of header length, a JSON header (name -> dtype, shape,
offsets), the tensors one after the other. Above SHARD_BYTES the tensors are
spread over files with an index, as transformers does. Standard library only:
the offline demo writes its random model with it.
"""

import json
import os
import struct

from common import Failure, output_errors

SHARD_BYTES = 5 * 10**9
ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}


def tensor_bytes(shape, dtype):
    size = ITEM_BYTES[dtype]
    for extent in shape:
        size *= extent
    return size


def write(folder, tensors, dtype):
    """Write `tensors`, a list of (name, shape, produce), into `folder`;
    produce() returns the bytes of one tensor when its turn has come."""
    shards = [[]]
    filled = 0
    for tensor in tensors:
        size = tensor_bytes(tensor[1], dtype)
        if shards[-1] and filled + size > SHARD_BYTES:
            shards.append([])
            filled = 0
        shards[-1].append(tensor)
        filled += size

    if len(shards) == 1:
        _write_file(os.path.join(folder, "model.safetensors"), shards[0],
                    dtype)
        return
    index = {"metadata": {"total_size": sum(tensor_bytes(shape, dtype)
                                            for _, shape, _ in tensors)},
             "weight_map": {}}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        _write_file(os.path.join(folder, name), shard, dtype)
        index["weight_map"].update({tensor[0]: name for tensor in shard})
    with open(os.path.join(folder, "model.safetensors.index.json"), "w",
              encoding="utf-8") as file:
        json.dump(index, file, indent=2)


def _write_file(path, tensors, dtype):
    header = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape, _ in tensors:
        end = offset + tensor_bytes(shape, dtype)
        header[name] = {"dtype": dtype, "shape": list(shape),
                        "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with output_errors(path), open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        for name, shape, produce in tensors:
            data = memoryview(produce()).cast("B")
            if len(data) != tensor_bytes(shape, dtype):
                raise Failure(f"tensor {name} has {len(data)} bytes, "
                              f"not those of shape {list(shape)}")
            file.write(data)
        file.flush()
        os.fsync(file.fileno())
