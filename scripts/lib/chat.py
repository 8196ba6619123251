"""Chats to text with the model folder's template, and where the loss goes.

Rules:
 1. The template is rendered once a chat (twice for templates of kind C), as
    transformers renders it.
 2. A control token spelled inside a chat's strings is hidden behind a shield
    character while the template runs, so every control token in the output
    is the template's own. Shields become plain text afterwards.
 3. The assistant's part of the output is found by the first way that fits:
    A. `{% generation %}` blocks of the template;
    B. the generation prompt (what add_generation_prompt adds) opens a turn,
       the control token after an assistant's turn closes it: headers with
       control tokens, such as ChatML and Llama 3;
    C. brackets around each assistant's content, when the output without them
       is the unbracketed one: headers of plain text, such as Llama 2.
    A chat that none fits is an error, never a guess.
"""

import contextlib
import datetime
import json
import os
import re

import jinja2
import jinja2.ext
import jinja2.sandbox

from common import Failure
from tokens import read_json

REASONING = ("reasoning_content", "thinking", "reasoning")
GENERATION_TAG = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
EDGES = re.compile(r"(\s*)(.*?)(\s*)\Z", re.DOTALL)


class GenerationTracker(jinja2.ext.Extension):
    """`{% generation %}`: remembers where its blocks lie in the output."""

    tags = {"generation"}

    def __init__(self, environment):
        super().__init__(environment)
        environment.extend(generation=self)
        self.reset()

    def reset(self):
        self.length = 0
        self.spans = []

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"],
                                       drop_needle=True)
        call = self.call_method("_record")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _record(self, caller):
        text = caller()
        self.spans.append((self.length, self.length + len(text)))
        return text


def read_template(folder, settings, with_tools):
    """The chat template of a model folder, or None."""
    path = os.path.join(folder, "chat_template.jinja")
    if os.path.exists(path):
        try:
            with open(path, encoding="utf-8") as file:
                return file.read()
        except (OSError, ValueError) as error:
            raise Failure(f"{path}: {error}") from error
    template = settings.get("chat_template")
    if template is None:
        template = read_json(folder, "chat_template.json").get(
            "chat_template")
    if isinstance(template, list):
        named = {entry["name"]: entry["template"] for entry in template}
        template = named.get("tool_use") if with_tools else None
        template = template or named.get("default")
    return template


def _environment():
    def raise_exception(message):
        raise jinja2.TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None,
               sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent,
                          separators=separators, sort_keys=sort_keys)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True,
        extensions=[GenerationTracker, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = (
        lambda format: datetime.datetime.now().strftime(format))
    return environment


def _map_strings(value, change):
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_map_strings(item, change) for item in value]
    if isinstance(value, dict):
        return {key: _map_strings(item, change)
                for key, item in value.items()}
    return value


def strings_of(value):
    """All strings of a JSON value, keys left out."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from strings_of(item)


def normal_messages(messages):
    """Messages as transformers hands them to a template."""
    result = []
    for message in messages:
        message = {k: v for k, v in message.items() if v is not None}
        thought = next((message[k] for k in REASONING if k in message), None)
        if thought is not None:
            message = {"thinking": thought, **message,
                       "reasoning_content": thought}
        result.append(message)
    return result


def since(spans, first_turn, n_turns):
    """Those of the assistant's spans that belong to first_turn and later."""
    if first_turn == 0 or n_turns == 0:
        return spans
    if len(spans) != n_turns:
        raise Failure(f"the chat template marks {len(spans)} parts of the "
                      f"assistant's {n_turns} turns: they cannot be told "
                      "apart; take --loss-on assistant or all")
    return spans[first_turn:]


class ChatTemplate:
    def __init__(self, source, tokens):
        self.tokens = tokens
        self.environment = _environment()
        try:
            self.template = self.environment.from_string(source)
        except jinja2.TemplateError as error:
            raise Failure(f"the chat template of the model folder: {error}"
                          ) from error
        self.takes_tool_calls = "tool_calls" in source
        self.takes_tools = "tools" in source
        self.has_generation = bool(GENERATION_TAG.search(source))
        self.header, self.ends, self.tails = "", set(), []
        if not self.has_generation:
            self._probe()

    def chat(self, messages, tools, first_turn, answer=False):
        """(alphabet, text, spans): the rendered chat with marks for control
        tokens, and the spans of the text that the assistant wrote from its
        turn `first_turn` on (0 is the first, -1 the last); for None no spans
        are looked for. With `answer` it ends where the assistant is to go
        on."""
        self._check_tools(messages, tools)
        messages = normal_messages(messages)
        texts = list(strings_of(messages)) + list(strings_of(tools))
        alphabet = self.tokens.alphabet_for(texts)
        if any(self.tokens.control_re.search(text) for text in texts):
            def hide(text):
                return self.tokens.control_re.sub(
                    lambda match: alphabet.shield[match.group()], text)
            messages = _map_strings(messages, hide)
            tools = _map_strings(tools, hide)

        rendered, blocks = self._render(messages, tools, answer)
        if first_turn is None:
            return alphabet, self._finish(rendered, alphabet), None
        n_turns = sum(message["role"] == "assistant" for message in messages)
        if self.has_generation:
            return (alphabet, *self._cut(rendered, alphabet,
                                         since(blocks, first_turn, n_turns)))
        text = self._finish(rendered, alphabet)
        spans = self._spans_by_header(text, alphabet, n_turns)
        if spans is not None:
            return alphabet, text, since(spans, first_turn, n_turns)
        spans = self._spans_by_brackets(rendered, alphabet, messages, tools)
        return (alphabet, *self._cut(rendered, alphabet,
                                     since(spans, first_turn, n_turns)))

    def _check_tools(self, messages, tools):
        """A template that knows of no tools would leave them out."""
        if tools and not self.takes_tools:
            raise Failure("the chat template leaves out tools; take them out "
                          "of the data, or use a model that has them")
        if not self.takes_tool_calls and any(message.get("tool_calls")
                                             for message in messages):
            raise Failure("the chat template leaves out tool_calls; write "
                          "them as content, or use a model that has them")

    def _render(self, messages, tools=None, add_generation_prompt=False):
        tracker = self.environment.generation
        tracker.reset()
        output = []
        try:
            for block in self.template.generate(
                    **{**self.tokens.named, "messages": messages,
                       "tools": tools, "documents": None,
                       "add_generation_prompt": add_generation_prompt}):
                output.append(block)
                tracker.length += len(block)
        except Exception as error:  # templates may fail in any way
            raise Failure("the chat template refuses this conversation: "
                          f"{error}") from error
        return "".join(output), tracker.spans

    def _finish(self, rendered, alphabet):
        """Marks for the template's control tokens, text for the shields."""
        return alphabet.unshielded(self.tokens.control_re.sub(
            lambda match: alphabet.mark[match.group()], rendered))

    def _cut(self, rendered, alphabet, spans):
        """_finish() that keeps spans of the rendered text in place."""
        parts, length, moved, at = [], 0, [], 0
        for first, last in spans:
            for start, stop in ((at, first), (first, last)):
                parts.append(self._finish(rendered[start:stop], alphabet))
                length += len(parts[-1])
            moved.append((length - len(parts[-1]), length))
            at = last
        parts.append(self._finish(rendered[at:], alphabet))
        return "".join(parts), moved

    def _probe(self):
        """Learn how the template opens and closes an assistant's turn."""
        asked = [{"role": "user", "content": "qzkprobeone"}]
        chat = asked + [{"role": "assistant", "content": "qzkprobetwo"},
                        {"role": "user", "content": "qzkprobethree"},
                        {"role": "assistant", "content": "qzkprobefour"}]
        with contextlib.suppress(Failure):
            plain = self._render(asked)[0]
            prompted = self._render(asked, None, True)[0]
            if prompted.startswith(plain):
                self.header = prompted[len(plain):]
        try:
            text = self._render(chat)[0]
        except Failure:
            return
        tails = []
        for content, after in (("qzkprobetwo", "qzkprobethree"),
                               ("qzkprobefour", None)):
            if content not in text:
                return
            tail = text.partition(content)[2]
            tail = tail.partition(after)[0] if after else tail
            found = self.tokens.control_re.search(tail)
            tails.append((tail[:found.end()], found.group()) if found
                         else None)
        if tails[1]:  # without an end token the first tail is a header
            tails = [tail for tail in tails if tail]
            self.tails = sorted((text for text, _ in tails), key=len,
                                reverse=True)
            self.ends = {token for _, token in tails}

    def _spans_by_header(self, text, alphabet, n_turns):
        """Way B; None when it does not fit."""
        opener = self.tokens.control_re.search(self.header)
        if not opener or not self.ends:
            return None
        opening = alphabet.mark[opener.group()]
        header = self._finish(self.header, alphabet)
        ends = {alphabet.mark[token] for token in self.ends}
        spans = []
        at = text.find(header)
        while at >= 0:
            first = at + len(header)
            last = text.find(opening, first)
            last = len(text) if last < 0 else last
            found = list(alphabet.marks_re.finditer(text, first, last))
            closing = next((m for m in found if m.group() in ends),
                           found[-1] if found else None)
            if closing:
                last = closing.end()
            spans.append((first, last))
            at = text.find(header, last)
        return spans if len(spans) == n_turns else None

    def _spans_by_brackets(self, rendered, alphabet, messages, tools):
        """Way C, in positions of the rendered text."""
        bracketed = []
        for message in messages:
            content = message.get("content")
            if message["role"] == "assistant" and isinstance(content, str):
                before, core, after = EDGES.match(content).groups()
                if core:
                    content = (before + alphabet.open + core +
                               alphabet.close + after)
                    message = dict(message, content=content)
            bracketed.append(message)
        output = self._render(bracketed, tools)[0]
        pieces = re.split(f"([{alphabet.open}{alphabet.close}])", output)
        if ("".join(pieces[0::2]) != rendered or
                "".join(pieces[1::2]).replace(
                    alphabet.open + alphabet.close, "")):
            raise Failure("cannot tell the assistant's tokens apart under "
                          "this chat template; add {% generation %} marks "
                          "to it, or take --loss-on all")
        spans, at = [], 0
        for i, piece in enumerate(pieces[0::2]):
            if i % 2 == 1:
                last = at + len(piece)
                tail = next((tail for tail in self.tails
                             if rendered.startswith(tail, last)), "")
                spans.append((at, last + len(tail)))
            at += len(piece)
        return spans
