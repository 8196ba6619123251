"""import-gguf: a llama, qwen2 or qwen3 GGUF to a Hugging Face folder.

Rules:
 1. What is not understood is refused: an unknown architecture, metadata of
    the architecture, tensor, pre-tokenizer. Silence would be a wrong model.
 2. Weights are dequantised by the `gguf` package and rounded once, to
    nearest even, into the type asked for.
 3. llama.cpp stores the q and k rows of llama models in another order (RoPE
    on adjacent pairs); it is undone here, row for row.
"""

import json
import os
import re

import gguf
import numpy

import gguf_tokenizer
import safetensors_file
from common import Failure, Options, output_errors, run, whole_folder

CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM",
           "qwen3": "Qwen3ForCausalLM"}
DTYPES = {"bf16": ("BF16", "bfloat16"), "f16": ("F16", "float16"),
          "f32": ("F32", "float32")}
GLOBAL_NAMES = {"token_embd.weight": "model.embed_tokens.weight",
                "output_norm.weight": "model.norm.weight",
                "output.weight": "lm_head.weight"}
LAYER_NAMES = {"attn_norm": "input_layernorm",
               "ffn_norm": "post_attention_layernorm",
               "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
               "attn_v": "self_attn.v_proj",
               "attn_output": "self_attn.o_proj",
               "attn_q_norm": "self_attn.q_norm",
               "attn_k_norm": "self_attn.k_norm",
               "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
               "ffn_down": "mlp.down_proj"}
LAYER_RE = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
KNOWN_KEYS = {
    "block_count", "context_length", "embedding_length",
    "feed_forward_length", "vocab_size", "attention.head_count",
    "attention.head_count_kv", "attention.key_length",
    "attention.value_length", "attention.layer_norm_rms_epsilon",
    "attention.causal", "attention.sliding_window", "expert_count",
    "expert_used_count", "rope.dimension_count", "rope.freq_base",
    "rope.scale_linear", "rope.scaling.type", "rope.scaling.factor",
    "rope.scaling.original_context_length", "rope.scaling.attn_factor",
    "rope.scaling.finetuned", "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow"}


class Gguf:
    """The metadata and tensors of one file."""

    def __init__(self, path):
        try:
            with open(path, "rb"):
                pass
        except OSError as error:
            raise Failure(f"{path}: {error.strerror}") from error
        try:
            self.reader = gguf.GGUFReader(path)
            self.values = {name: field.contents() for name, field
                           in self.reader.fields.items()}
        except Exception as error:  # the reader fails in many ways
            raise Failure(f"{path}: not a readable GGUF file ({error}); "
                          "is it whole?") from error
        self.path = path
        self.family = self.get("general.architecture", str)
        if self.family not in CLASSES:
            raise self.failure(f"architecture {self.family} is not "
                               f"supported ({', '.join(CLASSES)} are)")
        self.tensors = {tensor.name: tensor for tensor
                        in self.reader.tensors}
        for key in self.values:
            family, _, name = key.partition(".")
            if family == self.family and name not in KNOWN_KEYS:
                raise self.failure(f"metadata {key} is not understood")

    def failure(self, message):
        return Failure(f"{self.path}: {message}")

    def get(self, key, kind, default=None, required=True):
        """A metadata value; keys that begin with a dot are the family's."""
        key = self.family + key if key.startswith(".") else key
        value = self.values.get(key, default)
        if value is None:
            if required:
                raise self.failure(f"metadata {key} is missing")
            return None
        if kind is float and isinstance(value, int):
            value = float(value)
        if isinstance(value, bool) != (kind is bool) or not isinstance(
                value, kind):
            raise self.failure(f"metadata {key} is not of type "
                               f"{kind.__name__}")
        return shortest(value) if kind is float else value


def shortest(value):
    """The float that was meant: metadata is float32, 1e-05 is stored as
    9.999999747378752e-06."""
    return float(str(numpy.float32(value)))


def shape_of(tensor):
    return tuple(int(extent) for extent in reversed(tensor.shape))


def read_config(file, dtype):
    """config.json, and a check of every size against it."""
    family = file.family
    if file.get(".expert_count", int, 0):
        raise file.failure("mixture of experts is not supported")
    heads = file.get(".attention.head_count", int)
    hidden = file.get(".embedding_length", int)
    if min(heads, hidden) < 1 or hidden % heads:
        raise file.failure(f"embedding_length {hidden} is not a multiple of "
                           f"head_count {heads}")
    head_dim = file.get(".attention.key_length", int, hidden // heads)
    for key in (".attention.value_length", ".rope.dimension_count"):
        if file.get(key, int, head_dim) != head_dim:
            raise file.failure(f"metadata {family}{key} is not the head "
                               f"dimension {head_dim}")
    if not file.get(".attention.causal", bool, True):
        raise file.failure("attention is not causal")
    context = file.get(".context_length", int)
    if file.get(".attention.sliding_window", int, context) < context:
        raise file.failure("sliding window attention is not supported")
    if "token_embd.weight" not in file.tensors:
        raise file.failure("tensor token_embd.weight is missing")

    config = {
        "architectures": [CLASSES[family]],
        "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": file.get("tokenizer.ggml.bos_token_id", int,
                                 required=False),
        "eos_token_id": file.get("tokenizer.ggml.eos_token_id", int,
                                 required=False),
        "head_dim": head_dim, "hidden_act": "silu", "hidden_size": hidden,
        "initializer_range": 0.02,
        "intermediate_size": file.get(".feed_forward_length", int),
        "max_position_embeddings": context, "mlp_bias": False,
        "model_type": family, "num_attention_heads": heads,
        "num_hidden_layers": file.get(".block_count", int),
        "num_key_value_heads": file.get(".attention.head_count_kv", int,
                                        heads),
        "rms_norm_eps": file.get(".attention.layer_norm_rms_epsilon", float),
        "rope_scaling": rope_scaling(file, head_dim),
        "rope_theta": file.get(".rope.freq_base", float, 10000.0),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "torch_dtype": DTYPES[dtype][1], "use_cache": True,
        "vocab_size": shape_of(file.tensors["token_embd.weight"])[0]}
    pad = file.get("tokenizer.ggml.padding_token_id", int, required=False)
    if pad is not None:
        config["pad_token_id"] = pad
    biased = {part for part in ("attn_q", "attn_k", "attn_v", "attn_output",
                                "ffn_gate", "ffn_up", "ffn_down")
              if f"blk.0.{part}.bias" in file.tensors}
    attention = {"attn_q", "attn_k", "attn_v"}
    if family == "qwen2":
        del config["attention_bias"], config["mlp_bias"], config["head_dim"]
        config.update(use_sliding_window=False, sliding_window=None)
        if head_dim * heads != hidden or biased != attention:
            raise file.failure("not a Qwen2 as transformers knows it (bias "
                               "on q, k, v alone; heads of hidden/heads)")
        return config
    attention.add("attn_output")
    config["attention_bias"] = attention <= biased
    if family == "llama":
        config["mlp_bias"] = {"ffn_gate", "ffn_up", "ffn_down"} <= biased
        config["pretraining_tp"] = 1
        biased -= {"ffn_gate", "ffn_up", "ffn_down"} if config[
            "mlp_bias"] else set()
    else:
        del config["mlp_bias"]
        config.update(use_sliding_window=False, sliding_window=None)
    if config["attention_bias"]:
        biased -= attention
    if biased:
        raise file.failure(f"bias on {', '.join(sorted(biased))} alone is "
                           f"not a {family} as transformers knows it")
    return config


def rope_scaling(file, head_dim):
    kind = file.get(".rope.scaling.type", str, "none")
    context = file.get(".rope.scaling.original_context_length", int,
                       required=False)
    if "rope_freqs.weight" in file.tensors:
        if kind != "none":
            raise file.failure("both rope_freqs.weight and rope.scaling")
        return llama3_scaling(file, head_dim)
    if kind == "none":
        factor = file.get(".rope.scale_linear", float, 1.0)
        return None if factor == 1.0 else {"rope_type": "linear",
                                           "factor": factor}
    factor = file.get(".rope.scaling.factor", float)
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind != "yarn" or context is None:
        raise file.failure(f"rope scaling {kind} is not understood")
    scaling = {"rope_type": "yarn", "factor": factor,
               "original_max_position_embeddings": context}
    for key, name in (("attn_factor", "attention_factor"),
                      ("yarn_beta_fast", "beta_fast"),
                      ("yarn_beta_slow", "beta_slow")):
        value = file.get(f".rope.scaling.{key}", float, required=False)
        if value is not None:
            scaling[name] = value
    return scaling


def llama3_scaling(file, head_dim):
    """The parameters behind the factors that llama.cpp has stored: those of
    Llama 3.1 and 3.2, which are the only ones published, checked against
    every factor."""
    stored = file.tensors["rope_freqs.weight"].data.astype(numpy.float64)
    theta = file.get(".rope.freq_base", float, 10000.0)
    low, high, context = 1.0, 4.0, 8192
    factor = shortest(stored.max(initial=1.0))
    wavelength = 2 * numpy.pi * theta ** (
        numpy.arange(0, head_dim, 2) / head_dim)
    smooth = (context / wavelength - low) / (high - low)
    smooth = numpy.clip(smooth, 0.0, 1.0)
    expected = 1.0 / ((1 - smooth) / factor + smooth)
    if stored.shape != expected.shape or not numpy.allclose(
            stored, expected, rtol=1e-4):
        raise file.failure("rope_freqs.weight holds other factors than "
                           "those of Llama 3")
    return {"rope_type": "llama3", "factor": factor, "low_freq_factor": low,
            "high_freq_factor": high,
            "original_max_position_embeddings": context}


def expected_shapes(config):
    """Every tensor of the folder and its shape."""
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    inner, head_dim = config["intermediate_size"], config.get(
        "head_dim", hidden // config["num_attention_heads"])
    q = config["num_attention_heads"] * head_dim
    kv = config["num_key_value_heads"] * head_dim
    layer = {"input_layernorm.weight": (hidden,),
             "self_attn.q_proj.weight": (q, hidden),
             "self_attn.k_proj.weight": (kv, hidden),
             "self_attn.v_proj.weight": (kv, hidden),
             "self_attn.o_proj.weight": (hidden, q),
             "post_attention_layernorm.weight": (hidden,),
             "mlp.gate_proj.weight": (inner, hidden),
             "mlp.up_proj.weight": (inner, hidden),
             "mlp.down_proj.weight": (hidden, inner)}
    if config["model_type"] == "qwen3":
        layer["self_attn.q_norm.weight"] = (head_dim,)
        layer["self_attn.k_norm.weight"] = (head_dim,)
    if config["model_type"] == "qwen2" or config["attention_bias"]:
        layer.update({"self_attn.q_proj.bias": (q,),
                      "self_attn.k_proj.bias": (kv,),
                      "self_attn.v_proj.bias": (kv,)})
    if config.get("attention_bias"):
        layer["self_attn.o_proj.bias"] = (hidden,)
    if config.get("mlp_bias"):
        layer.update({"mlp.gate_proj.bias": (inner,),
                      "mlp.up_proj.bias": (inner,),
                      "mlp.down_proj.bias": (hidden,)})
    shapes = {"model.embed_tokens.weight": (vocabulary, hidden)}
    for number in range(config["num_hidden_layers"]):
        shapes.update({f"model.layers.{number}.{name}": shape
                       for name, shape in layer.items()})
    shapes["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocabulary, hidden)
    return shapes


def name_of(file, name):
    """The folder's name of a tensor of the file."""
    if name in GLOBAL_NAMES:
        return GLOBAL_NAMES[name]
    match = LAYER_RE.fullmatch(name)
    if not match or match[2] not in LAYER_NAMES:
        raise file.failure(f"tensor {name} is not understood")
    return f"model.layers.{match[1]}.{LAYER_NAMES[match[2]]}.{match[3]}"


def plan_tensors(file, config, dtype):
    """The list that safetensors_file.write() takes, in its final order."""
    shapes = expected_shapes(config)
    found = {}
    for name, tensor in file.tensors.items():
        if name == "rope_freqs.weight":
            continue
        found[name_of(file, name)] = tensor
    for name, tensor in found.items():
        if name not in shapes:
            raise file.failure(f"tensor {tensor.name} has no place in a "
                               f"{file.family} of this shape")
    for name, shape in shapes.items():
        if name not in found:
            raise file.failure(f"tensor for {name} is missing")
        if shape_of(found[name]) != shape:
            raise file.failure(f"tensor {found[name].name} has shape "
                               f"{list(shape_of(found[name]))}, not "
                               f"{list(shape)}")
    return [(name, shape, producer(file, config, found[name], dtype))
            for name, shape in shapes.items()]


def producer(file, config, tensor, dtype):
    """A function that makes the bytes of one tensor."""
    def produce():
        try:
            values = gguf.dequantize(tensor.data, tensor.tensor_type)
        except Exception as error:  # unknown or broken quantisation
            raise file.failure(f"tensor {tensor.name} of type "
                               f"{tensor.tensor_type.name}: {error}"
                               ) from error
        values = values.astype(numpy.float32, copy=False).reshape(
            shape_of(tensor))
        if not numpy.isfinite(values).all():
            raise file.failure(f"tensor {tensor.name} holds NaN or Inf")
        if file.family == "llama":
            if ".attn_q." in tensor.name:
                values = unpermute(values, config["num_attention_heads"])
            elif ".attn_k." in tensor.name:
                values = unpermute(values, config["num_key_value_heads"])
        return rounded(numpy.ascontiguousarray(values), dtype).data
    return produce


def unpermute(values, n_heads):
    """Rows from adjacent pairs back to halves, within each head."""
    half = values.shape[0] // n_heads // 2
    pairs = values.reshape(n_heads, half, 2, *values.shape[1:])
    return pairs.swapaxes(1, 2).reshape(values.shape)


def rounded(values, dtype):
    """float32 to the type of the file, to nearest even."""
    if dtype == "f32":
        return values
    if dtype == "f16":
        return values.astype(numpy.float16)
    bits = values.view(numpy.uint32)
    bits = bits + (0x7FFF + ((bits >> 16) & 1))
    return (bits >> 16).astype(numpy.uint16)


def write_json(folder, name, value):
    with output_errors(folder), open(os.path.join(folder, name), "w",
                                     encoding="utf-8") as file:
        json.dump(value, file, indent=2, ensure_ascii=False)
        file.write("\n")


def main():
    options = Options(prog="import-gguf", description="Make a Hugging Face "
                      "folder of a llama, qwen2 or qwen3 GGUF file.")
    options.add_argument("gguf", metavar="GGUF")
    options.add_argument("folder", metavar="DIR",
                         help="new folder to write")
    options.add_argument("--dtype", choices=DTYPES, default="bf16",
                         help="type of the weights (default bf16)")
    options = options.parse_args()

    file = Gguf(options.gguf)
    config = read_config(file, options.dtype)
    config = dict(sorted(config.items()))
    tensors = plan_tensors(file, config, options.dtype)
    tokenizer = gguf_tokenizer.convert(file, config["vocab_size"])
    generation = {"_from_model_config": True}
    generation.update({key: config[key] for key in
                       ("bos_token_id", "eos_token_id", "pad_token_id")
                       if config.get(key) is not None})
    with whole_folder(options.folder) as folder:
        write_json(folder, "config.json", config)
        write_json(folder, "generation_config.json", generation)
        for name, value in tokenizer.items():
            write_json(folder, name, value)
        safetensors_file.write(folder, tensors, DTYPES[options.dtype][0])
    print(options.folder)


if __name__ == "__main__":
    run(main)
