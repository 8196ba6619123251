#!/usr/bin/env python3
"""Make the parity fixtures: what PyTorch and transformers say of tiny models.

    python3 scripts/make_fixtures.py            write tests/parity/fixtures,
                                                adapters and generations
    python3 scripts/make_fixtures.py --check    compare them with a fresh run
    python3 scripts/make_fixtures.py --only adapters [--check]

Needs torch, transformers, safetensors and, for the adapters, peft; the tests
that read the fixtures need none of them.  tests/parity/README.md says what each
file holds.

Three rules make the numbers a reference:

(1) Every sequence runs alone: no padding, no packing, no chunks.
(2) The loss of a batch is the sum of the cross-entropy of its target tokens
    divided by their count.
(3) float64 means float64.  transformers keeps float32 islands under
    .double(): RMSNorm, the rotary angles and the softmax name torch.float32.
    Its modules see a torch here whose float32 is float64 (Float64Torch), and
    OnlyFloat64 watches every operation, so an island that a later version
    adds is an error, not a wrong reference.  In float32 the patched model
    must agree with the one transformers ships.
"""

import argparse
import contextlib
import json
import logging
import math
import random
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import transformers
import transformers.modeling_rope_utils
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.llama import modeling_llama
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen3 import modeling_qwen3

PARITY = Path(__file__).resolve().parent.parent / "tests/parity"
FOLDER = PARITY / "fixtures"
IGNORED = -100
DTYPES = {"float32": torch.float32, "float16": torch.float16,
          "bfloat16": torch.bfloat16}
PATCHED_MODULES = (transformers.modeling_rope_utils, modeling_llama,
                   modeling_qwen2, modeling_qwen3)
PATCH_TOLERANCE = 1e-5      # patched against shipped, both in float32
CHECK_TOLERANCE = 1e-12     # committed against fresh

# --- the fixtures ----------------------------------------------------------

# One sequence each: (kind of labels, length).  Lengths lie at, just below and
# just above the ChunkSizes 7, 16 and 64 of the test; INTERFACE section 4
# counts sequences of 0 or 1 token, or without a target, and never drops them.
SEQUENCES = [
    ("all", 130), ("sparse", 17), ("all", 1), ("edges", 100), ("none", 40),
    ("unlabelled", 3), ("early", 130), ("tail", 40), ("all", 2),
    ("all", 64), ("none", 100), ("all", 65), ("sparse", 5), ("all", 16),
    ("edges", 71), ("unlabelled", 7), ("tail", 33), ("all", 0),
]


def rotated(n):
    return SEQUENCES[n:] + SEQUENCES[:n]


# name -> config.json, sequences, and the options of the training curve.
# Shapes are awkward on purpose; every way of writing a config appears once.
FIXTURES = {
    "llama-mha": dict(
        config=dict(
            architectures=["LlamaForCausalLM"], model_type="llama",
            hidden_size=24, intermediate_size=36, num_hidden_layers=2,
            num_attention_heads=3, hidden_act="silu", vocab_size=53,
            max_position_embeddings=256, rms_norm_eps=1e-5,
            rope_theta=10000.0, tie_word_embeddings=False,
            torch_dtype="float32"),
        sequences=SEQUENCES, global_batch=4, steps=5,
        learning_rate=0.01, lr_schedule="cosine", warmup_steps=2,
        min_learning_rate=0.001, weight_decay=0.1, grad_clip=2.0),
    "llama-gqa-llama3": dict(
        config=dict(
            architectures=["LlamaForCausalLM"], model_type="llama",
            hidden_size=20, intermediate_size=36, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, head_dim=12,
            hidden_act="silu", vocab_size=61, max_position_embeddings=512,
            rms_norm_eps=1e-5, rope_theta=10000.0,
            rope_scaling=dict(
                factor=8.0, high_freq_factor=4.0, low_freq_factor=1.0,
                original_max_position_embeddings=64, rope_type="llama3"),
            tie_word_embeddings=True, torch_dtype="bfloat16"),
        sequences=rotated(3), global_batch=5, steps=5,
        learning_rate=0.004, lr_schedule="linear", warmup_steps=1,
        min_learning_rate=0.0, weight_decay=0.05, grad_clip=3.7),
    "llama-bias": dict(
        config=dict(
            architectures=["LlamaForCausalLM"], model_type="llama",
            hidden_size=20, intermediate_size=28, num_hidden_layers=2,
            num_attention_heads=5, num_key_value_heads=1, head_dim=10,
            attention_bias=True, mlp_bias=True, hidden_act="silu",
            vocab_size=50, max_position_embeddings=256, rms_norm_eps=1e-4,
            rope_theta=500.0, tie_word_embeddings=False,
            torch_dtype="float16"),
        sequences=rotated(6), global_batch=6, steps=5,
        learning_rate=0.01, lr_schedule="cosine", warmup_steps=0,
        min_learning_rate=0.0, weight_decay=0.2, grad_clip=1.1),
    "llama-linear-sharded": dict(
        config=dict(
            architectures=["LlamaForCausalLM"], model_type="llama",
            hidden_size=24, intermediate_size=31, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=4,
            hidden_act="silu", vocab_size=67, max_position_embeddings=256,
            rms_norm_eps=1e-5, rope_theta=700.0,
            rope_scaling=dict(type="linear", factor=2.5),
            tie_word_embeddings=False, torch_dtype="float32"),
        sequences=rotated(11), global_batch=4, steps=5, shards=3,
        learning_rate=0.02, lr_schedule="linear", warmup_steps=3,
        min_learning_rate=0.002, weight_decay=0.0, grad_clip=2.3),
    "llama-yarn": dict(
        config=dict(
            architectures=["LlamaForCausalLM"], model_type="llama",
            hidden_size=20, intermediate_size=36, num_hidden_layers=2,
            num_attention_heads=5, num_key_value_heads=1, head_dim=12,
            hidden_act="silu", vocab_size=57, max_position_embeddings=128,
            rms_norm_eps=1e-6, rope_theta=10000.0,
            rope_scaling=dict(
                rope_type="yarn", factor=4.0,
                original_max_position_embeddings=32),
            tie_word_embeddings=False, torch_dtype="float32"),
        sequences=rotated(9), global_batch=32, epochs=5,
        learning_rate=0.01, lr_schedule="cosine", warmup_steps=1,
        min_learning_rate=0.0005, weight_decay=0.1, grad_clip=0.9),
    "qwen2-tied": dict(
        config=dict(
            architectures=["Qwen2ForCausalLM"], model_type="qwen2",
            hidden_size=24, intermediate_size=36, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2,
            hidden_act="silu", vocab_size=59, max_position_embeddings=256,
            max_window_layers=2, sliding_window=64,
            use_sliding_window=False, rms_norm_eps=1e-6,
            rope_theta=1000000.0, tie_word_embeddings=True,
            torch_dtype="float32"),
        # The third step has no target at all: nothing moves, the learning
        # rate does, and the epochs follow one another.
        sequences=[("edges", 100), ("tail", 17), ("all", 3),
                   ("all", 64), ("sparse", 40), ("none", 5),
                   ("none", 40)],
        global_batch=3, steps=5,
        learning_rate=0.01, lr_schedule="linear", warmup_steps=0,
        min_learning_rate=0.001, weight_decay=0.1, grad_clip=4.5),
    "qwen3-untied": dict(
        config=dict(
            architectures=["Qwen3ForCausalLM"], model_type="qwen3",
            hidden_size=20, intermediate_size=36, num_hidden_layers=3,
            num_attention_heads=4, num_key_value_heads=2, head_dim=8,
            attention_bias=False, hidden_act="silu", vocab_size=51,
            max_position_embeddings=256, max_window_layers=3,
            sliding_window=None, use_sliding_window=False, rms_norm_eps=1e-6,
            rope_scaling=None, rope_theta=5000.0,
            tie_word_embeddings=False, torch_dtype="float32"),
        sequences=rotated(14), global_batch=4, epochs=1,
        learning_rate=0.008, lr_schedule="cosine", warmup_steps=1,
        min_learning_rate=0.0, weight_decay=0.3, grad_clip=1.5,
        adam_beta1=0.8, adam_beta2=0.95, adam_eps=1e-6),
    "qwen3-mqa-new-spelling": dict(
        config=dict(
            architectures=["Qwen3ForCausalLM"], model_type="qwen3",
            dtype="float32", hidden_size=24, intermediate_size=29,
            num_hidden_layers=2, num_attention_heads=5,
            num_key_value_heads=1, head_dim=10, attention_bias=False,
            hidden_act="silu", vocab_size=55, max_position_embeddings=192,
            layer_types=["full_attention", "full_attention"],
            max_window_layers=2, sliding_window=None,
            use_sliding_window=False, rms_norm_eps=1e-5,
            rope_parameters=dict(
                rope_type="yarn", rope_theta=2000.0, factor=2.0,
                original_max_position_embeddings=96,
                attention_factor=1.25, beta_fast=8.0, beta_slow=2.0),
            tie_word_embeddings=True),
        sequences=rotated(2), global_batch=4, steps=5,
        learning_rate=0.01, lr_schedule="cosine", warmup_steps=2,
        min_learning_rate=0.0, weight_decay=0.1, grad_clip=5.5),
    "qwen3-mqa-old-spelling": dict(
        config=dict(
            architectures=["Qwen3ForCausalLM"], model_type="qwen3",
            attention_bias=True, hidden_size=20, intermediate_size=36,
            num_hidden_layers=2, num_attention_heads=5,
            num_key_value_heads=1, head_dim=6, hidden_act="silu",
            vocab_size=63, max_position_embeddings=256,
            max_window_layers=2, sliding_window=None,
            use_sliding_window=False, rms_norm_eps=1e-6,
            rope_theta=1000.0,
            rope_scaling=dict(rope_type="linear", factor=3.0),
            tie_word_embeddings=True, torch_dtype="float32"),
        # The file carries the head beside the embedding, equal to it.
        copied_head=True,
        sequences=rotated(7), global_batch=7, steps=5,
        learning_rate=0.01, lr_schedule="linear", warmup_steps=2,
        min_learning_rate=0.0, weight_decay=0.1, grad_clip=2.0),
}

# name -> base fixture, what PEFT is asked for, and the options of the curve
# where they are not those of the base.
ADAPTERS = {
    "all-targets": dict(
        base="llama-bias", rank=4, alpha=6,
        targets=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj",
                 "up_proj", "down_proj"],
        learning_rate=0.01, weight_decay=0.2, grad_clip=3.0),
    # Of each fused group one target is left out.
    "holes": dict(
        base="qwen3-untied", rank=3, alpha=7.5,
        targets=["q_proj", "v_proj", "up_proj", "down_proj"],
        learning_rate=0.008, weight_decay=0.0, grad_clip=3.0),
    # A tied model, a rank larger than a side, and a step without a target.
    "one-of-each": dict(
        base="qwen2-tied", rank=13, alpha=13,
        targets=["k_proj", "o_proj", "gate_proj"],
        learning_rate=0.01, weight_decay=0.1, grad_clip=3.0),
}

# What the models say, greedily: of every fixture, and of one with an adapter in
# its weights.
GENERATIONS = {**{name: dict(base=name) for name in FIXTURES},
               "adapter-all-targets": dict(base="llama-bias",
                                           adapter="all-targets")}
PROMPT_LENGTHS = (1, 17, 64, 250)   # the last one leaves its page on the way
NEW_TOKENS = 24
# The likeliest token leads by so much everywhere, so that rounding in float32
# chooses no other one.
MARGIN = 0.01

OPTIMIZER_OPTIONS = ("learning_rate", "lr_schedule", "warmup_steps",
                     "min_learning_rate", "weight_decay", "grad_clip",
                     "adam_beta1", "adam_beta2", "adam_eps")


# --- float64 without islands -----------------------------------------------

class Float64Torch:
    """torch, but what a module calls torch.float32 is torch.float64."""

    def __getattr__(self, name):
        if name in ("float", "float32"):
            return torch.float64
        return getattr(torch, name)


@contextlib.contextmanager
def float64_islands():
    """Inside, transformers' float32 islands and AdamW's are float64."""
    for module in PATCHED_MODULES:
        module.torch = Float64Torch()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)
        for module in PATCHED_MODULES:
            module.torch = torch


class OnlyFloat64(TorchDispatchMode):
    """Fails on the first operation that makes floating point of another type.

    One exception: positions, integers that transformers turns into float32
    on their way to a product with float64 frequencies.  Exact below 2^24.
    """

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (list, tuple)) else [result]:
            if not isinstance(tensor, torch.Tensor):
                continue
            if not tensor.is_floating_point() or tensor.dtype == torch.float64:
                continue
            positions = (function is torch.ops.aten._to_copy.default
                         and not args[0].is_floating_point())
            if not positions:
                raise RuntimeError(f"make_fixtures: {function} made "
                                 f"{tensor.dtype}: an island is not patched")
        return result


class NoWarnings(logging.Handler):
    """A warning in transformers' log is an error."""

    def emit(self, record):
        if record.levelno >= logging.WARNING:
            raise RuntimeError(f"make_fixtures: {record.getMessage()}")


def load_model(folder, dtype):
    """The model of folder in dtype; a warning of transformers is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model, info = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation="eager",
            output_loading_info=True)
    problems = {key: value for key, value in info.items() if value}
    if problems:
        raise SystemExit(f"make_fixtures: {folder}: {problems}")
    return model.train()


# --- weights and data ------------------------------------------------------

def random_weights(config, generator):
    """Weights large enough that attention and gates are far from flat."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    tied = config.tie_word_embeddings
    weights = {}
    for name, like in sorted(model.state_dict().items()):
        if tied and name == "lm_head.weight":
            continue
        if name.endswith("norm.weight"):
            centre, spread = 1.0, 0.3
        elif name.endswith(".bias"):
            centre, spread = 0.0, 0.3
        elif "embed_tokens" in name:
            centre, spread = 0.0, 0.4 if tied else 1.0
        else:
            centre, spread = 0.0, 1.2 / math.sqrt(like.shape[1])
        values = [generator.gauss(centre, spread)
                  for _ in range(like.numel())]
        weights[name] = torch.tensor(
            values, dtype=torch.float64).reshape(like.shape)
    return weights


def make_sequence(kind, length, vocab_size, generator):
    """One line of data.jsonl; labels as Hugging Face has them."""
    ids = [generator.randrange(vocab_size) for _ in range(length)]
    if kind == "unlabelled":
        return {"input_ids": ids}
    kept = {
        # labels[0] is no target whatever it says.
        "all": set(range(length)),
        "none": {0},
        "sparse": {i for i in range(length) if generator.random() < 0.3}
        | {length - 1},
        "tail": set(range(length - length // 3, length)),
        # Targets of the last tokens of chunks of 7, 16 and 64, and of the
        # tokens beside them.
        "edges": {7, 13, 14, 16, 32, 63, 64, 65, 70},
        # Chunks behind the last target, in a group that has some.
        "early": set(range(1, 20)),
    }[kind]
    return {"input_ids": ids,
            "labels": [ids[i] if i in kept else IGNORED
                       for i in range(length)]}


def targets_of(sequence):
    """labels as the loss sees them: position 0 is never a target."""
    labels = sequence.get("labels", sequence["input_ids"])
    return [IGNORED] + labels[1:]


def n_targets(batch):
    return sum(label != IGNORED
               for sequence in batch for label in targets_of(sequence))


def n_tokens(batch):
    return sum(len(sequence["input_ids"]) for sequence in batch)


def write_model(folder, spec, weights):
    """config.json and the safetensors, in the fixture's type and shards."""
    config = spec["config"]
    dtype = DTYPES[config.get("dtype", config.get("torch_dtype"))]
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tensors = {name: value.to(dtype) for name, value in weights.items()}
    if spec.get("copied_head"):
        tensors["lm_head.weight"] = \
            tensors["model.embed_tokens.weight"].clone()
    n_shards = spec.get("shards", 1)
    if n_shards == 1:
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        return
    names = sorted(tensors)
    weight_map = {}
    for shard in range(n_shards):
        file = f"model-{shard + 1:05}-of-{n_shards:05}.safetensors"
        # Dealt round, so that no shard holds whole layers.
        part = {name: tensors[name] for name in names[shard::n_shards]}
        save_file(part, folder / file, {"format": "pt"})
        weight_map.update({name: file for name in part})
    size = sum(t.numel() * t.element_size() for t in tensors.values())
    index = {"metadata": {"total_size": size},
             "weight_map": dict(sorted(weight_map.items()))}
    (folder / "model.safetensors.index.json").write_text(
        json.dumps(index, indent=2) + "\n")


# --- the reference ---------------------------------------------------------

def loss_of(model, batch):
    """Rules (1) and (2); None for a batch without a target."""
    total = None
    for sequence in batch:
        targets = torch.tensor(targets_of(sequence)[1:], dtype=torch.long)
        if not bool((targets != IGNORED).any()):
            continue
        ids = torch.tensor([sequence["input_ids"]])
        logits = model(input_ids=ids, use_cache=False).logits[0, :-1]
        part = cross_entropy(logits, targets, ignore_index=IGNORED,
                             reduction="sum")
        total = part if total is None else total + part
    return None if total is None else total / n_targets(batch)


def gradients_of(model, batch):
    """(loss, norm over all tensors, {name: gradient}) of one batch."""
    model.zero_grad()
    loss = loss_of(model, batch)
    loss.backward()
    gradients = {name: parameter.grad.detach().clone()
                 for name, parameter in model.named_parameters()
                 if parameter.requires_grad}
    norm = math.sqrt(sum(float((g.double() ** 2).sum())
                         for g in gradients.values()))
    return float(loss.detach()), norm, gradients


def learning_rate(spec, step, n_steps):
    """INTERFACE section 2; steps count from 1."""
    top, low = spec["learning_rate"], spec["min_learning_rate"]
    warmup = spec["warmup_steps"]
    if step <= warmup:
        return top * step / warmup
    t = (step - warmup) / (n_steps - warmup)
    if spec["lr_schedule"] == "linear":
        return top + (low - top) * t
    return low + (top - low) * (1 + math.cos(math.pi * t)) / 2


def batches_of(spec, data):
    """The batches of every step: file order, epochs one after the other, the
    last of an epoch short."""
    size = spec["global_batch"]
    epoch = [data[i:i + size] for i in range(0, len(data), size)]
    if "epochs" in spec:
        return epoch * spec["epochs"]
    n_epochs = -(-spec["steps"] // len(epoch))
    return (epoch * n_epochs)[:spec["steps"]]


def train(model, spec, data):
    """The training curve; the model holds the weights after it."""
    trained = [p for p in model.parameters() if p.requires_grad]
    matrices = [p for p in trained if p.dim() >= 2]
    vectors = [p for p in trained if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": spec["weight_decay"]},
         {"params": vectors, "weight_decay": 0.0}],
        betas=(spec.get("adam_beta1", 0.9), spec.get("adam_beta2", 0.999)),
        eps=spec.get("adam_eps", 1e-8), foreach=False, fused=False)
    batches = batches_of(spec, data)
    curve = []
    for step, batch in enumerate(batches, start=1):
        rate = learning_rate(spec, step, len(batches))
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        norm = None
        if loss is not None:
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(
                trained, spec["grad_clip"], foreach=False)
            optimizer.step()
        curve.append({
            "step": step,
            "loss": None if loss is None else float(loss.detach()),
            "grad_norm": None if norm is None else float(norm),
            "learning_rate": rate,
            "sequences": len(batch),
            "tokens": n_tokens(batch),
            "target_tokens": n_targets(batch),
        })
    return curve


def train_options(spec):
    """The curve's options, as the command line has them."""
    names = ["global_batch", "epochs", "steps", *OPTIMIZER_OPTIONS]
    options = ["--no-shuffle"]
    for name in names:
        if name in spec:
            options += ["--" + name.replace("_", "-"), str(spec[name])]
    return options


def ledger_of(batches):
    """What INTERFACE section 3 wants of ledger.json, over all epochs."""
    sequences = [sequence for batch in batches for sequence in batch]
    trained = [s for s in sequences if n_targets([s]) > 0]
    masked = [s for s in sequences if n_targets([s]) == 0]
    return {
        "read": {"sequences": len(sequences), "tokens": n_tokens(sequences)},
        "trained": {"sequences": len(trained), "tokens": n_tokens(trained),
                    "target_tokens": n_targets(trained)},
        "masked": {"sequences": len(masked), "tokens": n_tokens(masked)},
        "skipped": {"sequences": 0, "tokens": 0},
    }


def loss_as_exported(model, folder, data, dtype):
    """The float64 loss of the weights once they are rounded to dtype."""
    rounded = {name: value.to(dtype).double()
               for name, value in model.state_dict().items()}
    with float64_islands():
        other = load_model(folder, torch.float64)
        other.load_state_dict(rounded)
        with torch.no_grad(), OnlyFloat64():
            return float(loss_of(other, data))


def relative(a, b):
    """max|a-b| / max|b|, the measure of chunkflow verify."""
    top = float(b.double().abs().max())
    return float((a.double() - b.double()).abs().max()) / (top or 1.0)


def check_patch(name, folder, batch):
    """Rule (3): in float32 the patch changes nothing but rounding."""
    loss, norm, gradients = gradients_of(load_model(folder, torch.float32),
                                         batch)
    with float64_islands():
        patched = gradients_of(load_model(folder, torch.float32), batch)
    worst = max(abs(loss - patched[0]) / loss, abs(norm - patched[1]) / norm,
                *(relative(patched[2][key], gradients[key])
                  for key in gradients))
    if worst > PATCH_TOLERANCE:
        raise SystemExit(f"make_fixtures: {name}: the patched model differs "
                         f"from transformers' own by {worst:.1e}")
    return loss, norm, gradients


def check_coverage(name, spec, curve):
    """A curve that never clips, or always does, proves half of the rule."""
    clipped = [point["grad_norm"] > spec["grad_clip"] for point in curve
               if point["grad_norm"] is not None]
    if all(clipped) or not any(clipped):
        norms = [point["grad_norm"] for point in curve]
        raise SystemExit(f"make_fixtures: {name}: grad_clip "
                         f"{spec['grad_clip']} divides nothing of {norms}")


def make_fixture(folder, name, spec):
    generator = random.Random(f"chunkflow {name}")
    vocab_size = spec["config"]["vocab_size"]
    data = [make_sequence(kind, length, vocab_size, generator)
            for kind, length in spec["sequences"]]
    (folder / "data.jsonl").write_text(
        "".join(json.dumps(line, separators=(",", ":")) + "\n"
                for line in data))

    config_file = folder / "config.json"
    config_file.write_text(json.dumps(spec["config"]))
    config = AutoConfig.from_pretrained(folder)
    write_model(folder, spec, random_weights(config, generator))

    batches = batches_of(spec, data)
    shipped_loss, shipped_norm, shipped = check_patch(name, folder, batches[0])
    shipped_curve = train(load_model(folder, torch.float32), spec, data)

    with float64_islands():
        model = load_model(folder, torch.float64)
        with OnlyFloat64():
            loss, norm, gradients = gradients_of(model, batches[0])
            with torch.no_grad():
                loss_of_data = float(loss_of(model, data))
            curve = train(model, spec, data)
    check_coverage(name, spec, curve)
    save_file(gradients, folder / "gradients.safetensors", {"format": "pt"})

    exported = DTYPES[spec["config"].get("dtype",
                                         spec["config"].get("torch_dtype"))]
    expected = {
        "made_with": {"torch": torch.__version__.split("+")[0],
                      "transformers": transformers.__version__},
        "global_batch": spec["global_batch"],
        "train_options": train_options(spec),
        "batch": {"loss": loss, "grad_norm": norm,
                  "tokens": n_tokens(batches[0]),
                  "target_tokens": n_targets(batches[0])},
        "data": {"loss": loss_of_data, "sequences": len(data),
                 "tokens": n_tokens(data), "target_tokens": n_targets(data)},
        "curve": curve,
        "ledger": ledger_of(batches),
        "loss_of_data_after_curve": {
            "export_model": loss_as_exported(model, folder, data, exported),
            "export_fp32": loss_as_exported(model, folder, data,
                                            torch.float32)},
        # For information: how far PyTorch's own float32 is from float64.
        "pytorch_fp32": {
            "loss": shipped_loss, "grad_norm": shipped_norm,
            "gradients_max_rel": max(relative(shipped[key], gradients[key])
                                     for key in gradients),
            "curve": [{"loss": point["loss"],
                       "grad_norm": point["grad_norm"]}
                      for point in shipped_curve]},
    }
    (folder / "expected.json").write_text(json.dumps(expected, indent=1)
                                          + "\n")
    report(name, spec, expected)


# --- adapters --------------------------------------------------------------

def saved_name(name):
    """The name of a parameter of PEFT's in its files."""
    return name.replace(".default.weight", ".weight")


def make_peft(folder, spec, dtype):
    """The base of the adapter with PEFT's layers in it, B zero."""
    import peft  # the other fixtures need none

    config = peft.LoraConfig(
        r=spec["rank"], lora_alpha=spec["alpha"], lora_dropout=0.0,
        target_modules=spec["targets"], task_type="CAUSAL_LM")
    model = peft.get_peft_model(load_model(folder, dtype), config,
                                autocast_adapter_dtype=False)
    model.peft_config["default"].base_model_name_or_path = spec["base"]
    return model


def set_random(model, generator):
    """A and B of float32 values, B far from zero."""
    for name, parameter in sorted(model.named_parameters()):
        if not parameter.requires_grad:
            continue
        spread = 1 / math.sqrt(parameter.shape[1])
        values = [generator.gauss(0, spread) for _ in range(parameter.numel())]
        parameter.data = torch.tensor(values, dtype=torch.float32) \
            .reshape(parameter.shape).to(parameter.dtype)


def save_adapter(model, folder):
    """As PEFT saves it, but in float32 and with its targets in one order."""
    model.save_pretrained(folder, save_embedding_layers=False)
    (folder / "README.md").unlink()
    config = json.loads((folder / "adapter_config.json").read_text())
    config["target_modules"].sort()
    (folder / "adapter_config.json").write_text(
        json.dumps(config, indent=2) + "\n")
    file = folder / "adapter_model.safetensors"
    save_file({name: value.float() for name, value in load_file(file).items()},
              file, {"format": "pt"})


def make_adapter(folder, name, spec):
    generator = random.Random(f"chunkflow adapter {name}")
    base = FOLDER / spec["base"]
    curve_spec = {**FIXTURES[spec["base"]], **spec}
    data = [json.loads(line)
            for line in (base / "data.jsonl").read_text().splitlines()]
    batches = batches_of(curve_spec, data)

    with float64_islands():
        model = make_peft(base, spec, torch.float64)
        set_random(model, generator)
        save_adapter(model, folder / "adapter")
        with OnlyFloat64():
            loss, norm, gradients = gradients_of(model, batches[0])
            with torch.no_grad():
                loss_of_data = float(loss_of(model, data))
            curve = train(model, curve_spec, data)
            with torch.no_grad():
                loss_after_curve = float(loss_of(model, data))
    check_coverage(name, curve_spec, curve)
    save_file({saved_name(key): value for key, value in gradients.items()},
              folder / "gradients.safetensors", {"format": "pt"})
    save_file({saved_name(key): parameter.detach().clone()
               for key, parameter in model.named_parameters()
               if parameter.requires_grad},
              folder / "after_curve.safetensors", {"format": "pt"})
    expected = {
        "made_with": {"torch": torch.__version__.split("+")[0],
                      "transformers": transformers.__version__,
                      "peft": __import__("peft").__version__},
        "base": spec["base"],
        "rank": spec["rank"], "alpha": spec["alpha"],
        "targets": ",".join(spec["targets"]),
        "global_batch": curve_spec["global_batch"],
        "train_options": train_options(curve_spec),
        "batch": {"loss": loss, "grad_norm": norm},
        "loss_of_data": loss_of_data,
        "curve": curve,
        "loss_of_data_after_curve": loss_after_curve,
    }
    (folder / "expected.json").write_text(json.dumps(expected, indent=1)
                                          + "\n")
    norms = ["-" if p["grad_norm"] is None else f"{p['grad_norm']:.2f}"
             for p in curve]
    print(f"{name}: loss {loss:.3f}, norm {' '.join(norms)} "
          f"(clip {curve_spec['grad_clip']})")


# --- generations -----------------------------------------------------------

def add_adapter(model, folder):
    """W += alpha / rank B A, for every target of an adapter."""
    config = json.loads((folder / "adapter_config.json").read_text())
    scale = config["lora_alpha"] / config["r"]
    tensors = load_file(folder / "adapter_model.safetensors")
    weights = dict(model.named_parameters())
    for name in tensors:
        head, is_a, tail = name.partition(".lora_A")
        if not is_a:
            continue
        a, b = tensors[name], tensors[f"{head}.lora_B{tail}"]
        weight = weights[head.removeprefix("base_model.model.") + ".weight"]
        weight.data += scale * b.to(weight.dtype) @ a.to(weight.dtype)


def greedy(model, prompt):
    """(tokens, logits behind the prompt, smallest lead), the whole sequence
    run again for every token."""
    ids, first, lead = list(prompt), None, math.inf
    for _ in range(NEW_TOKENS):
        logits = model(input_ids=torch.tensor([ids]),
                       use_cache=False).logits[0, -1]
        first = logits if first is None else first
        best, second = torch.topk(logits, 2).values
        lead = min(lead, float(best - second))
        ids.append(int(torch.argmax(logits)))
    return ids[len(prompt):], first.tolist(), lead


def check_greedy(name, model, prompt, tokens):
    """transformers' own generate says the same, where it does not warn of
    positions."""
    if len(prompt) + NEW_TOKENS > model.config.max_position_embeddings:
        return
    ids = torch.tensor([prompt])
    said = model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids),
        generation_config=transformers.GenerationConfig(
            max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None,
            pad_token_id=0))
    if said[0, len(prompt):].tolist() != tokens:
        raise SystemExit(f"make_fixtures: {name}: transformers' generate says "
                         f"something else after {len(prompt)} tokens")


def make_generation(folder, name, spec):
    base = FOLDER / spec["base"]
    vocab_size = FIXTURES[spec["base"]]["config"]["vocab_size"]
    generator = random.Random(f"chunkflow generation {name}")
    cases = []
    with float64_islands(), torch.no_grad():
        model = load_model(base, torch.float64).eval()
        if "adapter" in spec:
            add_adapter(model, PARITY / "adapters" / spec["adapter"]
                        / "adapter")
        for length in PROMPT_LENGTHS:
            lead = 0
            while lead < MARGIN:
                prompt = [generator.randrange(vocab_size)
                          for _ in range(length)]
                tokens, logits, lead = greedy(model, prompt)
            check_greedy(name, model, prompt, tokens)
            cases.append({"prompt": prompt, "tokens": tokens,
                          "logits": logits})
    expected = {"made_with": {"torch": torch.__version__.split("+")[0],
                              "transformers": transformers.__version__},
                **spec, "cases": cases}
    (folder / "expected.json").write_text(json.dumps(expected) + "\n")
    print(f"{name}: {[case['tokens'][:6] for case in cases]}")


def report(name, spec, expected):
    """One line a fixture: the reference and PyTorch's float32 beside it."""
    def worst(key):
        return max(abs(a[key] - b[key]) / abs(b[key]) for a, b in
                   zip(expected["pytorch_fp32"]["curve"], expected["curve"])
                   if b[key] is not None)

    norms = ["-" if p["grad_norm"] is None else f"{p['grad_norm']:.2f}"
             for p in expected["curve"]]
    losses = ["-" if p["loss"] is None else f"{p['loss']:.2f}"
              for p in expected["curve"]]
    print(f"{name}: loss {' '.join(losses)}, norm {' '.join(norms)} "
          f"(clip {spec['grad_clip']}); PyTorch fp32 off by "
          f"loss {worst('loss'):.0e}, norm {worst('grad_norm'):.0e}, "
          f"gradients {expected['pytorch_fp32']['gradients_max_rel']:.0e}")


# --- command ---------------------------------------------------------------

def difference(fresh, old, key=""):
    """Largest relative difference of two JSON values; a change of shape,
    text or whole number counts as infinite."""
    if isinstance(fresh, float) and isinstance(old, float):
        return abs(fresh - old) / max(abs(old), 1e-300), key
    if isinstance(fresh, dict) and isinstance(old, dict) \
            and fresh.keys() == old.keys():
        parts = [difference(fresh[k], old[k], f"{key}.{k}") for k in fresh
                 if k not in ("made_with", "pytorch_fp32")]
        return max(parts, default=(0.0, key))
    if isinstance(fresh, list) and isinstance(old, list) \
            and len(fresh) == len(old):
        parts = [difference(a, b, f"{key}[{i}]")
                 for i, (a, b) in enumerate(zip(fresh, old))]
        return max(parts, default=(0.0, key))
    return (0.0 if fresh == old else math.inf), key


def file_difference(fresh, old):
    if fresh.suffix == ".json":
        return difference(json.loads(fresh.read_text()),
                          json.loads(old.read_text()))
    if fresh.suffix == ".safetensors":
        a, b = load_file(fresh), load_file(old)
        if a.keys() != b.keys() or \
                any(a[k].shape != b[k].shape or a[k].dtype != b[k].dtype
                    for k in a):
            return math.inf, "tensors"
        with safe_open(fresh, "pt") as x, safe_open(old, "pt") as y:
            if x.metadata() != y.metadata():
                return math.inf, "metadata"
        return max((relative(a[k], b[k]), k) for k in a)
    return (0.0 if fresh.read_bytes() == old.read_bytes() else math.inf), ""


def check(fresh, committed):
    """True when both folders hold the same files with the same numbers."""
    def files(top):
        return {p.relative_to(top) for p in top.rglob("*") if p.is_file()}

    same = True
    for file in sorted(files(fresh) ^ files(committed)):
        where = "committed" if (committed / file).exists() else "fresh"
        print(f"make_fixtures: {file}: only in the {where} fixtures")
        same = False
    for file in sorted(files(fresh) & files(committed)):
        worst, where = file_difference(fresh / file, committed / file)
        if worst > CHECK_TOLERANCE:
            print(f"make_fixtures: {file}{where}: differs by {worst:.1e}")
            same = False
    return same


PARTS = {
    "fixtures": (FOLDER, FIXTURES, make_fixture),
    "adapters": (PARITY / "adapters", ADAPTERS, make_adapter),
    "generations": (PARITY / "generations", GENERATIONS, make_generation),
}


def main():
    parser = argparse.ArgumentParser(
        description="Make the PyTorch parity fixtures.")
    parser.add_argument("--check", action="store_true",
                        help="compare the committed fixtures with fresh ones")
    parser.add_argument("--only", choices=PARTS, help="one of the folders")
    arguments = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.add_handler(NoWarnings())
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)

    for part in [arguments.only] if arguments.only else PARTS:
        folder, specs, make = PARTS[part]
        with tempfile.TemporaryDirectory() as temporary:
            fresh = Path(temporary) / part
            for name, spec in specs.items():
                (fresh / name).mkdir(parents=True)
                make(fresh / name, name, spec)
            if not arguments.check:
                shutil.rmtree(folder, ignore_errors=True)
                shutil.copytree(fresh, folder)
            elif not check(fresh, folder):
                return 1
    if arguments.check:
        print("make_fixtures: the committed fixtures are what this script "
              "makes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
