"""tokenizer: the other end of `chunkflow generate`.

A line of JSON at a time: first it writes the prompt's token ids; then it reads
new ids, and answers to each with the text that is complete by now; at the end
of its input it writes the rest. Control tokens are no text.
"""

import json
import os
import sys

import tokenizers

import rows
from common import Failure, Options, run
from samples import BOM

# Tokens of the prompt that new text is decoded after: what a first token looks
# like may depend on the one before it.
BEFORE = 8
UNFINISHED = "\N{REPLACEMENT CHARACTER}"


class Text:
    """The text of tokens as they come, whole characters at a time."""

    def __init__(self, folder, control_ids, ids):
        path = os.path.join(folder, "tokenizer.json")
        self.tokenizer = tokenizers.Tokenizer.from_file(path)
        self.control_ids = control_ids
        self.ids = [i for i in ids[-BEFORE:] if i not in control_ids]
        self.shown = self._decode()

    def _decode(self):
        return self.tokenizer.decode(self.ids, skip_special_tokens=False)

    def add(self, number):
        """What is new with one more token."""
        if number not in self.control_ids:
            self.ids.append(number)
        text = self._decode()
        return "" if text.endswith(UNFINISHED) else self._show(text)

    def rest(self):
        return self._show(self._decode())

    def _show(self, text):
        new = text[len(self.shown):]
        if new:     # keep as many tokens as a later one may depend on
            self.ids = self.ids[-BEFORE:]
            self.shown = self._decode()
        return new


def read_chat(path):
    """The chat in a file: a list of messages, or an object with them."""
    try:
        with open(path, "rb") as file:
            value = rows.parse(file.read().removeprefix(BOM))
    except OSError as error:
        raise Failure(error.strerror) from error
    return {"messages": value} if isinstance(value, list) else value


def prompt_ids(maker, options):
    if options.messages is None:
        row = maker.beginning(options.prompt)
    else:
        try:
            row = maker.question(read_chat(options.messages))
        except Failure as failure:
            raise Failure(f"{options.messages}: {failure}") from failure
    (ids, why), = rows.encode([row])
    if ids is None:
        raise why
    return ids.tolist()


def say(value):
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def main():
    options = Options(prog="tokenizer", description="For chunkflow generate: "
                      "a prompt to tokens, tokens to text.")
    options.add_argument("--model", metavar="DIR", required=True)
    prompt = options.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--prompt", metavar="TEXT")
    prompt.add_argument("--messages", metavar="FILE")
    options = options.parse_args()
    maker = rows.Rows(options.model, "all")
    ids = prompt_ids(maker, options)
    say(ids)
    tokens = maker.tokens
    text = Text(options.model, {tokens.ids[t] for t in tokens.control}, ids)
    for line in sys.stdin:
        say(text.add(int(line)))
    say(text.rest())


if __name__ == "__main__":
    run(main)
