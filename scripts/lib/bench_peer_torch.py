"""The peer of scripts/bench-peer: transformers on PyTorch, the same steps.

Trains as a careful user of the two would: SDPA attention without a mask,
fused AdamW, gradients accumulated over the micro-batches of a step, the loss
a mean over all target tokens of the step. Prints a JSON line about itself,
then one a step; bench_peer.py reads them as they come.

Padding goes to the right, where causal attention never sees it, so that no
mask is needed and SDPA keeps its fast path.
"""

import argparse
import json
import struct
import time

import torch
import transformers

IGNORED = -100
TOKEN_TYPES = {4: torch.int32, 8: torch.uint16}
PRECISIONS = {"fp32": torch.float32, "autocast": torch.float32,
              "bf16": torch.bfloat16}


class Sequences:
    """The sequences of PREFIX.bin, mapped."""

    def __init__(self, prefix):
        with open(f"{prefix}.idx", "rb") as file:
            index = file.read()
        magic, version, code, n, _ = struct.unpack_from("<9sQBQQ", index)
        if magic != b"MMIDIDX\0\0" or version != 1 or code not in TOKEN_TYPES:
            raise SystemExit(f"{prefix}.idx: not an index of int32 or uint16 "
                             "tokens")
        self.lengths = struct.unpack_from(f"<{n}i", index, 34)
        self.first = [0]
        for length in self.lengths:
            self.first.append(self.first[-1] + length)
        self.tokens = torch.from_file(f"{prefix}.bin", size=self.first[-1],
                                      dtype=TOKEN_TYPES[code])
        try:
            self.mask = torch.from_file(f"{prefix}.mask", dtype=torch.uint8,
                                        size=self.first[-1])
        except RuntimeError:
            self.mask = None

    def __len__(self):
        return len(self.lengths)

    def pair(self, i):
        """Ids and labels, aligned."""
        place = slice(self.first[i], self.first[i + 1])
        ids = self.tokens[place].long()
        labels = ids.clone()
        if self.mask is not None:
            labels[self.mask[place] == 0] = IGNORED
        labels[:1] = IGNORED
        return ids, labels


def micro_batches(pairs, padded_tok):
    """Groups of pairs, longest first: as many as `padded_tok` tokens hold,
    padding included, and never less than one."""
    pairs = sorted(pairs, key=lambda pair: -len(pair[0]))
    while pairs:
        n = max(1, padded_tok // len(pairs[0][0]))
        yield pairs[:n]
        pairs = pairs[n:]


def padded(tensors, value):
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True,
                                           padding_value=value)


def model_open(options):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        options.model, dtype=PRECISIONS[options.precision],
        attn_implementation="sdpa")
    model.config.use_cache = False
    if options.checkpoint:
        model.gradient_checkpointing_enable(
            gradient_checkpointing_kwargs={"use_reentrant": False})
    return model.train()


def optimizer_open(model, options):
    """AdamW as the trainer of transformers groups it: no decay on vectors."""
    parameters = list(model.parameters())
    groups = [{"params": [p for p in parameters if p.dim() >= 2],
               "weight_decay": options.weight_decay},
              {"params": [p for p in parameters if p.dim() < 2],
               "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=options.learning_rate,
                             betas=(0.9, 0.999), eps=1e-8, fused=True)


def step_run(model, optimizer, pairs, options):
    """One optimizer step; its loss, None without a target."""
    pairs = [pair for pair in pairs if (pair[1] != IGNORED).any()]
    n_targets = sum(int((labels != IGNORED).sum()) for _, labels in pairs)
    if n_targets == 0:
        return None
    total = 0.0
    for batch in micro_batches(pairs, options.padded_tokens):
        ids = padded([pair[0] for pair in batch], 0)
        labels = padded([pair[1] for pair in batch], IGNORED)
        with torch.autocast("cpu", torch.bfloat16,
                            enabled=options.precision == "autocast"):
            loss = model(input_ids=ids, labels=labels,
                         num_items_in_batch=n_targets).loss
        loss.backward()
        total += loss.item()
    torch.nn.utils.clip_grad_norm_(model.parameters(), options.grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return total


def say(**fields):
    print(json.dumps(fields), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--precision", choices=PRECISIONS, required=True)
    parser.add_argument("--checkpoint", action="store_true")
    parser.add_argument("--padded-tokens", type=int, default=0)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--global-batch", type=int, required=True)
    parser.add_argument("--learning-rate", type=float, required=True)
    parser.add_argument("--weight-decay", type=float, required=True)
    parser.add_argument("--grad-clip", type=float, required=True)
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    say(torch=torch.__version__, transformers=transformers.__version__,
        isa=torch.backends.cpu.get_cpu_capability(),
        threads=torch.get_num_threads())
    sequences = Sequences(options.data)
    model = model_open(options)
    optimizer = optimizer_open(model, options)
    epoch = range(len(sequences))
    position = 0
    for number in range(1, options.steps + 1):
        begin = time.monotonic()
        batch = epoch[position:position + options.global_batch]
        position = 0 if batch.stop == len(sequences) else batch.stop
        loss = step_run(model, optimizer,
                        [sequences.pair(i) for i in batch], options)
        say(step=number, loss=loss, step_s=time.monotonic() - begin,
            tokens=sum(sequences.lengths[i] for i in batch))


if __name__ == "__main__":
    main()
