"""Rows of JSON to token ids with a loss mask.

A row that cannot be rendered or tokenised is a bad sample, with a reason; it
never stops the others.
"""

import collections
import json
import re

import numpy

import chat
from common import Failure
from tokens import Tokens

LOSS_ON = ("assistant", "last", "all")
ROLES = {"human": "user", "gpt": "assistant", "observation": "tool",
         "function": "tool", "function_response": "tool",
         "function_call": "assistant"}
SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
NO_TARGET, ALL_TARGETS = "none", "all"

# A stretch of text that is tokenised on its own. `targets` is NO_TARGET,
# ALL_TARGETS, or spans of the text: a token that begins in one is a target.
Piece = collections.namedtuple("Piece", "alphabet text targets")
# One sequence to be: pieces and ready-made ids (of BOS and EOS).
Row = collections.namedtuple("Row", "line parts")
# What became of a batch: sequences one after the other, and (line, reason) of
# each bad sample.
Result = collections.namedtuple("Result", "path lines lengths ids mask bad")


class Rows:
    """JSON rows to Row objects."""

    def __init__(self, folder, loss_on):
        self.folder = folder
        self.tokens = Tokens(folder)
        self.loss_on = loss_on
        self.templates = {}

    def row(self, line, value):
        if not isinstance(value, dict):
            raise Failure("not a JSON object" + (
                ": the file is one JSON array; write an object a line, as "
                "jq -c '.[]' does" if isinstance(value, list) and line == 1
                else ""))
        prompt, completion = value.get("prompt"), value.get("completion")
        if "messages" in value:
            parts = self._chat(value, value["messages"], "role", "content")
        elif "conversations" in value:
            parts = self._chat(value, value["conversations"], "from",
                               "value")
        elif isinstance(prompt, list) and isinstance(completion, list):
            answers = sum(isinstance(turn, dict) and
                          turn.get("role") == "assistant" for turn in prompt)
            parts = self._chat(value, prompt + completion, "role", "content",
                               answers)
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

    def beginning(self, text):
        """The Row of a text that a model is to go on with."""
        parts = [Piece(self.tokens.alphabet_for([text]), text, ALL_TARGETS)]
        if self.tokens.bos_id is not None:
            parts.insert(0, self.tokens.bos_id)
        return Row(1, parts)

    def question(self, value):
        """The Row of a chat that a model is to answer."""
        if not isinstance(value, dict) or "messages" not in value:
            raise Failure("has no messages")
        return Row(1, self._chat(value, value["messages"], "role", "content",
                                 answer=True))

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

    def _chat(self, value, turns, role_key, content_key, first_turn=0,
              answer=False):
        messages = self._messages(turns, role_key, content_key)
        if isinstance(value.get("system"), str) and value["system"]:
            messages.insert(0, {"role": "system",
                                "content": value["system"]})
        tools = value.get("tools") or None
        if isinstance(tools, str):
            try:
                tools = json.loads(tools) or None
            except ValueError as error:
                raise Failure(f"tools is not JSON: {error}") from error
        template = self._template(tools is not None)
        if role_key == "from":
            messages = [sharegpt_message(message, template.takes_tool_calls)
                        for message in messages]
        first_turn = {"all": None, "last": -1}.get(self.loss_on, first_turn)
        alphabet, text, spans = template.chat(messages, tools, first_turn,
                                              answer)
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
            messages.append({**turn, "role": role, "content": content})
        return messages

    def _template(self, with_tools):
        if with_tools not in self.templates:
            source = chat.read_template(self.folder, self.tokens.settings,
                                        with_tools)
            if source is None:
                raise Failure(f"the model folder {self.folder} has no chat "
                              "template; give it text instead of chats")
            self.templates[with_tools] = chat.ChatTemplate(source,
                                                           self.tokens)
        return self.templates[with_tools]

    def batch(self, batch):
        """The Result of a samples.Batch."""
        rows, bad = [], []
        for line, data in enumerate(batch.lines, batch.first):
            if not data.strip():
                continue
            try:
                rows.append(self.row(line, parse(data)))
            except (Failure, ValueError) as error:
                bad.append((line, str(error)))
        lines, ids, mask = [], [], []
        for row, (row_ids, row_mask) in zip(rows, encode(rows)):
            if row_ids is None:
                bad.append((row.line, str(row_mask)))
                continue
            lines.append(row.line)
            ids.append(row_ids)
            mask.append(row_mask)
        none = [numpy.empty(0, dtype=numpy.int32)]
        return Result(batch.path, lines, [len(part) for part in ids],
                      numpy.concatenate(ids or none),
                      numpy.concatenate(mask or none).astype(numpy.uint8),
                      sorted(bad))


def sharegpt_message(message, as_tool_calls):
    """A message with `from` and `value` under the names of templates; a
    function_call is text to a template without tool calls."""
    sender = message.get("from", message["role"])
    message = {**message, "role": ROLES.get(sender, sender)}
    message.pop("from", None)
    message.pop("value", None)
    if sender != "function_call" or not as_tool_calls:
        return message
    try:
        calls = json.loads(message["content"])
    except (TypeError, ValueError) as error:
        raise Failure(f"function_call is not JSON: {error}") from error
    calls = calls if isinstance(calls, list) else [calls]
    if not all(isinstance(call, dict) and "name" in call for call in calls):
        raise Failure("function_call has no name")
    return {**message, "content": "",
            "tool_calls": [{"type": "function", "function": {
                "name": call["name"],
                "arguments": call.get("arguments", {})}} for call in calls]}


def parse(data):
    """The JSON value of a line of bytes."""
    try:
        value = json.loads(data.decode("utf-8"))
        if SURROGATE_ESCAPE.search(data):
            check_surrogates(value)
        return value
    except UnicodeDecodeError as error:
        raise Failure(f"not UTF-8 at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise Failure(f"not JSON: {error.msg} at column {error.colno}" + (
            "; a sample is one line of JSON" if data.strip() in (b"[", b"{")
            else "")) from error
    except RecursionError as error:
        raise Failure("nested too deeply") from error


def check_surrogates(value):
    """Half of a surrogate pair can only come from a \\ud800 escape."""
    for text in chat.strings_of(value):
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise Failure("holds half of a surrogate pair (\\ud800 to "
                          "\\udfff), which is no text") from error


def encode(rows):
    """(ids, mask) of each row, tokenised together; (None, why) of a bad
    one."""
    pieces = [part for row in rows for part in row.parts
              if isinstance(part, Piece)]
    encodings = {}
    groups = collections.defaultdict(list)
    for piece in pieces:
        spans = piece.targets not in (NO_TARGET, ALL_TARGETS)
        groups[(id(piece.alphabet), spans)].append(piece)
    for (_, spans), group in groups.items():
        results = group[0].alphabet.words.encode(
            [piece.text for piece in group], spans)
        encodings.update(zip(map(id, group), results))

    for row in rows:
        try:
            yield encode_row(row, encodings)
        except Failure as failure:
            yield None, failure


def encode_row(row, encodings):
    ids, mask = [], []
    for part in row.parts:
        if not isinstance(part, Piece):  # BOS, or EOS at the end
            ids.append(numpy.array([part], dtype=numpy.int32))
            mask.append(numpy.array([len(ids) > 1], dtype=numpy.uint8))
            continue
        own_ids, starts = encodings.pop(id(part))
        ids.append(part.alphabet.real_ids(own_ids))
        mask.append(target_mask(starts, len(own_ids), part.targets))
    ids, mask = numpy.concatenate(ids), numpy.concatenate(mask)
    mask[:1] = 0  # nothing predicts the first token
    return ids, mask


def target_mask(starts, n_tok, targets):
    if targets == ALL_TARGETS:
        return numpy.ones(n_tok, dtype=numpy.uint8)
    mask = numpy.zeros(n_tok, dtype=numpy.uint8)
    if targets == NO_TARGET or not targets:
        return mask
    edges = numpy.searchsorted(starts, numpy.array(targets))
    for first, last in edges:
        mask[first:last] = 1
    return mask
