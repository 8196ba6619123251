"""prepare: chat and text JSONL to token ids with a loss mask.

Reads line by line, tokenises in batches over all cores, writes as it goes:
memory does not grow with the file but for four bytes a sequence.
"""

import collections
import json
import os
import re

os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")

import numpy

import chat
import megatron
from common import (EXIT_USAGE, Failure, Options, run, write_whole)
from tokens import Tokens

BATCH_CHARS = 1 << 20
BATCH_ROWS = 1 << 10
ROLES = {"human": "user", "gpt": "assistant", "observation": "tool",
         "function": "tool", "function_response": "tool", "function_call": "assistant"}
SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
NO_TARGET, ALL_TARGETS = "none", "all"

# A stretch of text that is tokenised on its own. `targets` is NO_TARGET,
# ALL_TARGETS, or spans of the text: a token that begins in one is a target.
Piece = collections.namedtuple("Piece", "alphabet text targets")
# One sequence to be: pieces and ready-made ids (of BOS and EOS).
Row = collections.namedtuple("Row", "line parts")


class Rows:
    """JSON rows to Row objects."""

    def __init__(self, folder, loss_on):
        self.folder = folder
        self.tokens = Tokens(folder)
        self.loss_on = loss_on
        self.templates = {}

    def row(self, line, value):
        if not isinstance(value, dict):
            raise Failure("not a JSON object")
        if "messages" in value:
            parts = self._chat(value, value["messages"], "role", "content")
        elif "conversations" in value:
            parts = self._chat(value, value["conversations"], "from",
                               "value")
        elif "prompt" in value and "completion" in value:
            parts = self._plain([(self._text(value, "prompt"), NO_TARGET),
                                 (self._text(value, "completion"),
                                  ALL_TARGETS)])
        elif "text" in value:
            parts = self._plain([(self._text(value, "text"), ALL_TARGETS)])
        elif "input_ids" in value:
            raise Failure("is tokenised already: give the file to "
                          "chunkflow --data as it is")
        else:
            raise Failure("has no messages, conversations, prompt and "
                          "completion, or text")
        return Row(line, parts)

    @staticmethod
    def _text(value, key):
        if not isinstance(value[key], str):
            raise Failure(f"{key} is not a string")
        return value[key]

    def _plain(self, texts):
        eos = self.tokens.control_id("eos_token")
        if eos is None:
            raise Failure(f"the tokenizer in {self.folder} names no "
                          "eos_token to end a text with")
        alphabet = self.tokens.alphabet_for([text for text, _ in texts])
        parts = [Piece(alphabet, text,
                       ALL_TARGETS if self.loss_on == "all" else targets)
                 for text, targets in texts]
        if self.tokens.bos_id is not None:
            parts.insert(0, self.tokens.bos_id)
        return parts + [eos]

    def _chat(self, value, turns, role_key, content_key):
        messages = self._messages(turns, role_key, content_key)
        tools = value.get("tools") or None
        if isinstance(tools, str):
            try:
                tools = json.loads(tools)
            except ValueError as error:
                raise Failure(f"tools is not JSON: {error}") from error
        template = self._template(tools is not None)
        alphabet, text, spans = template.chat(messages, tools,
                                              self.loss_on != "all")
        return [Piece(alphabet, text,
                      ALL_TARGETS if spans is None else spans)]

    def _messages(self, turns, role_key, content_key):
        if not isinstance(turns, list) or not turns:
            raise Failure("the conversation is not a list of messages")
        messages = []
        for number, turn in enumerate(turns, 1):
            where = f"message {number}"
            if not isinstance(turn, dict):
                raise Failure(f"{where} is not an object")
            role, content = turn.get(role_key), turn.get(content_key)
            if not isinstance(role, str) or not role:
                raise Failure(f"{where} has no {role_key}")
            if self.tokens.control_re.search(role):
                raise Failure(f"{where}: {role_key} spells a control token")
            if content is None and not turn.get("tool_calls"):
                raise Failure(f"{where} has no {content_key}")
            if content is not None and not isinstance(content, (str, list)):
                raise Failure(f"{where}: {content_key} is not a string")
            message = dict(turn)
            if role_key == "from":
                del message["from"]
                message.pop("value", None)
                role = ROLES.get(role, role)
            messages.append({**message, "role": role, "content": content})
        return messages

    def _template(self, with_tools):
        if with_tools not in self.templates:
            source = chat.read_template(self.folder, self.tokens.settings,
                                        with_tools)
            if source is None:
                raise Failure(f"the model folder {self.folder} has no chat "
                              "template; write the data as prompt and "
                              "completion, or text")
            self.templates[with_tools] = chat.ChatTemplate(source,
                                                           self.tokens)
        return self.templates[with_tools]


def encode(rows):
    """(line, ids, mask) of each row, tokenised together."""
    pieces = [part for row in rows for part in row.parts
              if isinstance(part, Piece)]
    encodings = {}
    groups = collections.defaultdict(list)
    for piece in pieces:
        spans = piece.targets not in (NO_TARGET, ALL_TARGETS)
        groups[(id(piece.alphabet), spans)].append(piece)
    for (_, spans), group in groups.items():
        tokenizer = group[0].alphabet.tokenizer
        call = (tokenizer.encode_batch if spans
                else tokenizer.encode_batch_fast)
        results = call([piece.text for piece in group],
                       add_special_tokens=False)
        encodings.update(zip(map(id, group), results))

    for row in rows:
        ids, mask = [], []
        for part in row.parts:
            if not isinstance(part, Piece):  # BOS, or EOS at the end
                ids.append(numpy.array([part], dtype=numpy.int32))
                mask.append(numpy.array([len(ids) > 1], dtype=numpy.uint8))
                continue
            encoding = encodings.pop(id(part))
            try:
                ids.append(part.alphabet.real_ids(encoding))
            except Failure as failure:
                raise BadLine(row.line, failure) from failure
            mask.append(target_mask(encoding, len(ids[-1]), part.targets))
        ids, mask = numpy.concatenate(ids), numpy.concatenate(mask)
        mask[:1] = 0  # nothing predicts the first token
        yield ids, mask


def target_mask(encoding, n_tok, targets):
    if targets == ALL_TARGETS:
        return numpy.ones(n_tok, dtype=numpy.uint8)
    mask = numpy.zeros(n_tok, dtype=numpy.uint8)
    if targets == NO_TARGET or not targets:
        return mask
    starts = numpy.fromiter((first for first, _ in encoding.offsets),
                            dtype=numpy.int64, count=n_tok)
    edges = numpy.searchsorted(starts, numpy.array(targets))
    for first, last in edges:
        mask[first:last] = 1
    return mask


def check_surrogates(value):
    """Half of a surrogate pair can only come from a \\ud800 escape."""
    for text in chat.strings_of(value):
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise Failure("holds half of a surrogate pair (\\ud800 to "
                          "\\udfff), which is no text") from error


class BadLine(Exception):
    def __init__(self, line, reason):
        super().__init__(str(reason))
        self.line = line


def read_rows(path, rows):
    """Batches of rows. Lines end at \\n and nowhere else."""
    try:
        file = open(path, "rb")
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}") from error
    with file:
        batch, chars = [], 0
        for line, data in enumerate(file, 1):
            if line == 1 and data.startswith(b"\xef\xbb\xbf"):
                data = data[3:]
            if not data.strip():
                continue
            try:
                value = json.loads(data.decode("utf-8"))
                if SURROGATE_ESCAPE.search(data):
                    check_surrogates(value)
                row = rows.row(line, value)
            except UnicodeDecodeError as error:
                raise BadLine(line, f"not UTF-8 at byte {error.start}"
                              ) from error
            except json.JSONDecodeError as error:
                raise BadLine(line, f"not JSON: {error.msg} at column "
                              f"{error.colno}") from error
            except RecursionError as error:
                raise BadLine(line, "nested too deeply") from error
            except (Failure, ValueError) as error:
                raise BadLine(line, error) from error
            batch.append(row)
            chars += len(data)
            if chars >= BATCH_CHARS or len(batch) >= BATCH_ROWS:
                yield batch
                batch, chars = [], 0
        if batch:
            yield batch


class Summary:
    """Counts, and a histogram of lengths in powers of two."""

    BAR = 40

    def __init__(self):
        self.sequences = self.tokens = self.targets = 0
        self.without_target = self.longest = 0
        self.histogram = collections.Counter()

    def count(self, n_tok, n_targets):
        self.sequences += 1
        self.tokens += n_tok
        self.targets += n_targets
        self.without_target += n_targets == 0
        self.longest = max(self.longest, n_tok)
        self.histogram[max(n_tok - 1, 0).bit_length()] += 1

    def text(self, options):
        share = 100 * self.targets / max(self.tokens, 1)
        lines = [
            f"data        {options.data}",
            f"model       {options.model}",
            f"output      {options.output}.bin .idx .mask",
            f"loss on     {options.loss_on}", "",
            f"sequences   {self.sequences:>14,}",
            f"tokens      {self.tokens:>14,}",
            f"targets     {self.targets:>14,}  ({share:.1f} % of the tokens)",
            f"no target   {self.without_target:>14,}  sequences",
            f"longest     {self.longest:>14,}  tokens",
            f"mean        {self.tokens / max(self.sequences, 1):>14,.1f}"
            "  tokens", "", "length (tokens)       sequences"]
        most = max(self.histogram.values(), default=1)
        for power in range(min(self.histogram, default=0),
                           max(self.histogram, default=-1) + 1):
            n = self.histogram[power]
            bar = "#" * -(-self.BAR * n // most)
            lines.append(f"  <= {1 << power:>11,} {n:>14,}  {bar}".rstrip())
        return "\n".join(lines) + "\n"


def main():
    options = Options(prog="prepare", description="Tokenise chat or text "
                      "JSONL with a model folder's tokenizer into "
                      "PREFIX.bin, .idx and .mask for chunkflow --data.")
    options.add_argument("--model", metavar="DIR", required=True,
                         help="Hugging Face folder with the tokenizer")
    options.add_argument("--data", metavar="FILE", required=True,
                         help="JSONL: messages, conversations, prompt and "
                         "completion, or text")
    options.add_argument("--output", metavar="PREFIX", required=True)
    options.add_argument("--loss-on", choices=("assistant", "all"),
                         default="assistant",
                         help="which tokens of a chat are targets")
    options = options.parse_args()
    if os.path.isdir(options.output) or options.output.endswith("/"):
        raise Failure(f"--output {options.output} is a folder; name a prefix",
                      EXIT_USAGE)

    rows = Rows(options.model, options.loss_on)
    summary = Summary()
    writer = megatron.Writer(options.output)
    try:
        for batch in read_rows(options.data, rows):
            for ids, mask in encode(batch):
                writer.append(ids, mask)
                summary.count(len(ids), int(mask.sum()))
        if not summary.sequences:
            raise Failure(f"{options.data}: holds no data")
        writer.close()
    except BadLine as bad:
        raise Failure(f"{options.data}:{bad.line}: {bad}") from bad
    finally:
        writer.discard()
    text = summary.text(options)
    write_whole(f"{options.output}.summary.txt", text)
    print(text, end="")


if __name__ == "__main__":
    run(main)
