"""offline-demo: a small random model and data, for a demo without network.

The model is a two-layer llama over bytes (ids 0 to 255 are bytes, 256 ends a
text); the data are the repository's own documents as pre-tokenised JSONL.
Standard library only.
"""

import array
import json
import os
import random
import sys

import safetensors_file
from common import Failure, Options, output_errors, run, whole_folder

END = 256
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False,
    "bos_token_id": None, "eos_token_id": END, "head_dim": 32,
    "hidden_act": "silu", "hidden_size": 128, "initializer_range": 0.02,
    "intermediate_size": 352, "max_position_embeddings": 32768,
    "mlp_bias": False, "model_type": "llama", "num_attention_heads": 4,
    "num_hidden_layers": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-05,
    "rope_scaling": None, "rope_theta": 100000.0,
    "tie_word_embeddings": True, "torch_dtype": "float32", "use_cache": True,
    "vocab_size": 288}
HELD_OUT_EVERY = 5
PART_BYTES = 12000  # the longest sequence; several chunks of 2,048


def tensors():
    """(name, shape, produce) of every tensor, random from a fixed seed."""
    generator = random.Random(0)
    hidden, inner = CONFIG["hidden_size"], CONFIG["intermediate_size"]
    kv = CONFIG["num_key_value_heads"] * CONFIG["head_dim"]
    shapes = {"model.embed_tokens.weight": (CONFIG["vocab_size"], hidden)}
    for layer in range(CONFIG["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        shapes.update({
            prefix + "input_layernorm.weight": (hidden,),
            prefix + "self_attn.q_proj.weight": (hidden, hidden),
            prefix + "self_attn.k_proj.weight": (kv, hidden),
            prefix + "self_attn.v_proj.weight": (kv, hidden),
            prefix + "self_attn.o_proj.weight": (hidden, hidden),
            prefix + "post_attention_layernorm.weight": (hidden,),
            prefix + "mlp.gate_proj.weight": (inner, hidden),
            prefix + "mlp.up_proj.weight": (inner, hidden),
            prefix + "mlp.down_proj.weight": (hidden, inner)})
    shapes["model.norm.weight"] = (hidden,)

    def producer(shape):
        def produce():
            if len(shape) == 1:
                values = array.array("f", [1.0]) * shape[0]
            else:
                values = array.array("f", (
                    generator.gauss(0.0, CONFIG["initializer_range"])
                    for _ in range(shape[0] * shape[1])))
            if sys.byteorder == "big":
                values.byteswap()
            return values.tobytes()
        return produce

    return [(name, shape, producer(shape)) for name, shape in shapes.items()]


def documents(root):
    """The repository's texts, cut into parts of at most PART_BYTES."""
    paths = []
    for folder in (root, os.path.join(root, "docs")):
        if os.path.isdir(folder):
            paths += [os.path.join(folder, name)
                      for name in sorted(os.listdir(folder))
                      if name.endswith(".md") or name == "LICENSE"]
    for path in paths:
        with open(path, "rb") as file:
            text = file.read()
        for first in range(0, len(text), PART_BYTES):
            part = text[first:first + PART_BYTES]
            # Pieces of several lengths, so that there is a long tail.
            yield part
            for short in range(0, len(part), PART_BYTES // 8):
                yield part[short:short + PART_BYTES // 8]


def main():
    options = Options(prog="offline-demo", description="Write a small random "
                      "model and the repository's documents as data.")
    options.add_argument("folder", metavar="DIR")
    options = options.parse_args()
    root = os.path.dirname(os.path.dirname(os.path.dirname(
        os.path.abspath(__file__))))
    rows = [json.dumps({"input_ids": [*part, END]}) + "\n"
            for part in documents(root)]
    if len(rows) < HELD_OUT_EVERY:
        raise Failure(f"{root} holds no documents to train on")
    with whole_folder(options.folder) as folder, output_errors(folder):
        model = os.path.join(folder, "model")
        os.mkdir(model)
        with open(os.path.join(model, "config.json"), "w",
                  encoding="utf-8") as file:
            json.dump(CONFIG, file, indent=2)
        safetensors_file.write(model, tensors(), "F32")
        for name, chosen in (("train", lambda i: i % HELD_OUT_EVERY),
                             ("held-out", lambda i: not i % HELD_OUT_EVERY)):
            with open(os.path.join(folder, f"{name}.jsonl"), "w",
                      encoding="utf-8") as file:
                file.writelines(row for i, row in enumerate(rows)
                                if chosen(i))


if __name__ == "__main__":
    run(main)
