#!/usr/bin/env python3
"""Compare scripts/prepare with transformers' apply_chat_template.

    check-chats.py MODEL DATA [--every N]

For each N-th conversation of DATA (.jsonl or .jsonl.gz with `messages`, and `tools`
where there are) compares, under the chat template of the folder MODEL (if it
has one) and under ChatML (where the tokenizer has its two tokens),

 1. the token ids with those of apply_chat_template;
 2. under ChatML, the targets with return_assistant_tokens_mask of the same
    template with {% generation %} marks, in which prepare must find them both
    with and without the marks.

What differs by rule is counted, and no failure: a conversation that spells a
control token (transformers makes a control token of it), and a token that
begins in the header of a turn and ends in its content (a target there, none
here).  For developers: needs transformers, jinja2 and tokenizers.
"""

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "lib"))

import samples
from rows import Rows, encode
from transformers import AutoTokenizer

CHATML = ("{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
          "{% if m['role'] == 'assistant' %}OPEN{{ m['content'] + "
          "'<|im_end|>' }}CLOSE{% else %}{{ m['content'] + '<|im_end|>' }}"
          "{% endif %}{{ '\n' }}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
          "{% endif %}")
PLAIN = CHATML.replace("OPEN", "").replace("CLOSE", "")
MARKED = CHATML.replace("OPEN", "{% generation %}").replace(
    "CLOSE", "{% endgeneration %}")


def with_template(model, folder, template):
    """A folder with the tokenizer of model and another template."""
    shutil.copytree(model, folder, ignore=shutil.ignore_patterns(
        "*.safetensors", "chat_template*", "*.gguf"))
    path = Path(folder) / "tokenizer_config.json"
    settings = json.loads(path.read_text()) if path.exists() else {}
    settings["chat_template"] = template
    path.write_text(json.dumps(settings))
    return folder


def ours(rows, value):
    (ids, mask), = encode([rows.row(1, value)])
    if ids is None:
        raise mask
    return ids.tolist(), mask.tolist()


def theirs(tokenizer, value, with_mask=False):
    found = tokenizer.apply_chat_template(
        value["messages"], tools=value.get("tools") or None, tokenize=True,
        return_dict=True, return_assistant_tokens_mask=with_mask)
    return found["input_ids"], found.get("assistant_masks")


class Comparison:
    def __init__(self, model, room):
        self.counts = dict.fromkeys((
            "conversations", "tokens", "targets", "spell a control token",
            "tokens across a header's end", "differ"), 0)
        self.own = None
        self.plain = Rows(with_template(model, f"{room}/plain", PLAIN),
                          "assistant")
        self.control = self.plain.tokens.control_re
        own = AutoTokenizer.from_pretrained(model)
        if own.chat_template:
            self.own = Rows(model, "assistant"), own
        self.marked = None
        if {"<|im_start|>", "<|im_end|>"} <= set(self.plain.tokens.control):
            folder = with_template(model, f"{room}/marked", MARKED)
            self.marked = (Rows(folder, "assistant"),
                           AutoTokenizer.from_pretrained(folder))
        if not (self.own or self.marked):
            raise SystemExit("check-chats: neither a chat template nor "
                             "ChatML's tokens in " + model)

    def conversation(self, where, value):
        if self.control.search(json.dumps(value, ensure_ascii=False)):
            self.counts["spell a control token"] += 1
            return
        self.counts["conversations"] += 1
        wrong = []
        if self.own:
            ids, mask = ours(self.own[0], value)
            if ids != theirs(self.own[1], value)[0]:
                wrong.append("ids under its own template")
        if self.marked:
            ids, mask = ours(self.marked[0], value)
            if ours(self.plain, value) != (ids, mask):
                wrong.append("marks found in two ways")
            their_ids, their_mask = theirs(self.marked[1], value, True)
            if ids != their_ids:
                wrong.append("ids under ChatML")
            elif mask != their_mask and not self.across(mask, their_mask):
                wrong.append("targets")
        self.counts["tokens"] += len(ids)
        self.counts["targets"] += sum(mask)
        if wrong:
            self.counts["differ"] += 1
            print(f"{where}: {', '.join(wrong)}", file=sys.stderr)

    def across(self, mask, their_mask):
        """Whether the masks differ only where a turn begins."""
        for i, (mine, other) in enumerate(zip(mask, their_mask)):
            if mine != other and not (other and not their_mask[i - 1]):
                return False
            self.counts["tokens across a header's end"] += mine != other
        return True


def main():
    parser = argparse.ArgumentParser(
        description="prepare against apply_chat_template")
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--every", type=int, default=1, metavar="N",
                        help="take the first of each N lines")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as room:
        comparison = Comparison(arguments.model, room)
        for batch in samples.Reader([arguments.data]):
            for line, data in enumerate(batch.lines, batch.first):
                if line % arguments.every != 1 % arguments.every:
                    continue
                comparison.conversation(f"{arguments.data}:{line}",
                                        json.loads(data))
    for name, count in comparison.counts.items():
        print(f"{name:<30} {count:>12,}")
    return comparison.counts["differ"] != 0


if __name__ == "__main__":
    sys.exit(main())
