"""Turn a llama2.c model file ("version 0" layout) into a Hugging Face folder.

llama2.c rotates neighbours (2i, 2i+1) of a head, Hugging Face rotates i and
i + head_dim/2: the rows of the q and k projections change places.  Weights
stay float32.  Standard library only.
"""

import json
import os
import struct

import safetensors_file
from common import Failure, Options, run, whole_folder

FIELDS = ("dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads",
          "vocab_size", "seq_len")


class Reader:
    """Takes float32 tensors off the front of the file, one after another."""

    def __init__(self, path):
        try:
            with open(path, "rb") as file:
                data = file.read()
        except OSError as error:
            raise Failure(f"{path}: {error.strerror}") from error
        header = struct.calcsize("<7i")
        if len(data) < header:
            raise Failure(f"{path}: shorter than its header")
        self.sizes = dict(zip(FIELDS, struct.unpack_from("<7i", data)))
        # A negative vocabulary says that the head has its own weights.
        self.tied = self.sizes["vocab_size"] > 0
        self.sizes["vocab_size"] = abs(self.sizes["vocab_size"])
        if min(self.sizes.values()) <= 0 or \
                self.sizes["dim"] % self.sizes["n_heads"] != 0:
            raise Failure(f"{path}: not a llama2.c version 0 header")
        self.path = path
        self.data = memoryview(data)[header:]
        self.first = 0

    def floats(self, count):
        end = self.first + 4 * count
        if end > len(self.data):
            raise Failure(f"{self.path}: truncated")
        part = self.data[self.first:end]
        self.first = end
        return bytes(part)

    def end(self):
        if self.first != len(self.data):
            raise Failure(f"{self.path}: {len(self.data) - self.first} "
                               "bytes behind the last tensor")


def half_split(rows, head_dim, row_bytes):
    """From neighbours to halves: row 2i of a head goes to i, row 2i+1 to
    i + head_dim/2."""
    out = []
    for head in range(0, len(rows) // row_bytes, head_dim):
        for odd in (0, 1):
            for i in range(odd, head_dim, 2):
                first = (head + i) * row_bytes
                out.append(rows[first:first + row_bytes])
    return b"".join(out)


def read_tensors(reader):
    """{name: (shape, bytes)} in Hugging Face's names and order of rows."""
    s = reader.sizes
    dim, ffn, n_layers = s["dim"], s["hidden_dim"], s["n_layers"]
    head_dim = dim // s["n_heads"]
    kv_dim = head_dim * s["n_kv_heads"]
    tensors = {}

    def read(name, *shape):
        count = 1
        for size in shape:
            count *= size
        tensors[name] = (shape, reader.floats(count))

    def read_layers(name, *shape):
        for layer in range(n_layers):
            read(f"model.layers.{layer}.{name}.weight", *shape)

    read("model.embed_tokens.weight", s["vocab_size"], dim)
    read_layers("input_layernorm", dim)
    read_layers("self_attn.q_proj", dim, dim)
    read_layers("self_attn.k_proj", kv_dim, dim)
    read_layers("self_attn.v_proj", kv_dim, dim)
    read_layers("self_attn.o_proj", dim, dim)
    read_layers("post_attention_layernorm", dim)
    read_layers("mlp.gate_proj", ffn, dim)
    read_layers("mlp.down_proj", dim, ffn)
    read_layers("mlp.up_proj", ffn, dim)
    read("model.norm.weight", dim)
    # Tables of cosines and sines that a config's rope_theta replaces.
    reader.floats(s["seq_len"] * head_dim)
    if not reader.tied:
        read("lm_head.weight", s["vocab_size"], dim)
    reader.end()

    for name, (shape, data) in tensors.items():
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            tensors[name] = (shape, half_split(data, head_dim, 4 * dim))
    return tensors


def config_of(reader):
    s = reader.sizes
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": s["dim"],
        "intermediate_size": s["hidden_dim"],
        "max_position_embeddings": s["seq_len"],
        "num_attention_heads": s["n_heads"],
        "num_hidden_layers": s["n_layers"],
        "num_key_value_heads": s["n_kv_heads"],
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": reader.tied,
        "torch_dtype": "float32",
        "vocab_size": s["vocab_size"],
    }


def main():
    options = Options(prog="import-llama2c",
                      description="a llama2.c model as a Hugging Face folder")
    options.add_argument("model", metavar="MODEL.bin")
    options.add_argument("folder", metavar="DIR")
    arguments = options.parse_args()

    reader = Reader(arguments.model)
    tensors = [(name, shape, lambda data=data: data)
               for name, (shape, data) in read_tensors(reader).items()]
    with whole_folder(arguments.folder) as folder:
        safetensors_file.write(folder, tensors, "F32")
        with open(os.path.join(folder, "config.json"), "w",
                  encoding="utf-8") as file:
            json.dump(config_of(reader), file, indent=2)
            file.write("\n")


if __name__ == "__main__":
    run(main)
