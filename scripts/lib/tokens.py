"""The tokenizer of a model folder, with control tokens set apart.

Rules:
 1. A control token (an added token marked special) comes only from the
    caller, never from text: text that spells one is tokenised as text.
 2. For text that spells none, the ids are those of transformers.

How: in our copy of tokenizer.json each control token is spelled by one
private-use character, its *mark*. The caller writes marks where control
tokens belong; everything else, whatever it spells, is text to the tokenizer.
Text that itself holds private-use characters gets marks of another plane.
"""

import json
import os
import re

import numpy
import tokenizers

from common import Failure
from words import Words, can_cut

PLANES = (0x100000, 0xF0000)
PLANE_PATTERNS = tuple(re.compile(f"[{chr(plane)}-{chr(plane + 0xFFFD)}]")
                       for plane in PLANES)
# Layout of a plane: marks, then shields (chat.py hides control tokens spelled
# by content behind them while a template runs), then two brackets.
MARKS_MAX = 0x6000
NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
         "cls_token", "mask_token")


def read_json(folder, name, required=False):
    path = os.path.join(folder, name)
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except FileNotFoundError:
        if required:
            raise Failure(f"{path} is missing; the model folder needs a "
                          "fast tokenizer") from None
        return {}
    except (OSError, ValueError) as error:
        raise Failure(f"{path}: {error}") from error
    if not isinstance(value, dict):
        raise Failure(f"{path}: not a JSON object")
    return value


def token_text(value):
    """A token in a tokenizer configuration is text, or an object with it."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) and value else None


class Alphabet:
    """The marks of one plane and the tokenizer that knows them."""

    def __init__(self, plane, specification, control):
        self.mark = {token: chr(plane + i) for i, token in enumerate(control)}
        self.shield = {token: chr(plane + MARKS_MAX + i)
                       for i, token in enumerate(control)}
        self.marks_re = re.compile(
            f"[{chr(plane)}-{chr(plane + MARKS_MAX - 1)}]")
        self._shields_re = re.compile(
            f"[{chr(plane + MARKS_MAX)}-{chr(plane + 2 * MARKS_MAX - 1)}]")
        self._unshield = {s: t for t, s in self.shield.items()}
        self.open, self.close = chr(plane + 0xFFF0), chr(plane + 0xFFF1)
        self._spec = specification
        self._words = None

    def unshielded(self, text):
        return self._shields_re.sub(
            lambda match: self._unshield[match.group()], text)

    @property
    def words(self):
        """The tokenizer; what it gives are ids for real_ids()."""
        if self._words is None:
            self._build()
        return self._words

    def _build(self):
        added = [dict(token, content=self.mark.get(token["content"],
                                                   token["content"]))
                 for token in self._spec["added_tokens"]]
        text = json.dumps(dict(self._spec, added_tokens=added,
                               post_processor=None, truncation=None,
                               padding=None), ensure_ascii=False)
        tokenizer = tokenizers.Tokenizer.from_str(text)
        self._words = Words(tokenizer, can_cut(self._spec))

        # The marks sit at ids of their own; `real` leads back to the ids of
        # the folder. `forged` are ids of control tokens that only the model
        # itself could make out of text (rule 1): an error, not a token.
        size = 1 + max(tokenizer.get_vocab(True).values(), default=0)
        self._real = numpy.arange(size, dtype=numpy.int32)
        self._forged = numpy.zeros(size, dtype=bool)
        own_ids = set()
        for token, original in zip(added, self._spec["added_tokens"]):
            own = tokenizer.token_to_id(token["content"])
            own_ids.add(own)
            self._real[own] = original["id"]
        unknown = self._spec["model"].get("unk_token")
        for token in self._spec["added_tokens"]:
            spelled = token["content"] in self.mark
            if (spelled and token["id"] < size and token["id"] not in own_ids
                    and token["content"] != unknown):
                self._forged[token["id"]] = True

    def real_ids(self, own):
        """The folder's ids of the tokenizer's, an int32 array."""
        if self._forged[own].any():
            forged = own[self._forged[own]][0]
            raise Failure("the tokenizer makes the control token "
                          f"{self._words.tokenizer.id_to_token(int(forged))} "
                          "out of plain text")
        return self._real[own]


class Tokens:
    """What prepare needs to know of the tokenizer files of a folder."""

    def __init__(self, folder):
        if not os.path.isdir(folder):
            raise Failure(f"{folder}: no such folder")
        specification = read_json(folder, "tokenizer.json", required=True)
        self.settings = read_json(folder, "tokenizer_config.json")
        named = read_json(folder, "special_tokens_map.json")
        named.update({key: value for key, value in self.settings.items()
                      if key in NAMED})
        self.named = {key: token_text(named[key]) for key in NAMED
                      if token_text(named.get(key))}

        path = os.path.join(folder, "tokenizer.json")
        try:
            self._complete(specification)
            self.control = [token["content"]
                            for token in specification["added_tokens"]
                            if token["special"]]
            self.ids = {token["content"]: token["id"]
                        for token in specification["added_tokens"]}
            self.bos_id = self._bos_id(specification)
            if len(self.control) > MARKS_MAX:
                raise ValueError("too many special tokens")
            self.alphabets = [Alphabet(plane, specification, self.control)
                              for plane in PLANES]
            self.alphabets[0].words  # build now: a bad file fails here
        except Failure:
            raise
        except Exception as error:  # tokenizers raises bare Exception
            raise Failure(f"{path}: {error}") from error
        self.control_re = re.compile(
            "|".join(re.escape(token) for token in
                     sorted(self.control, key=len, reverse=True)) or "(?!)")

    def _complete(self, specification):
        """Add the control tokens that only the configuration names, as
        transformers does when it loads the folder."""
        added = specification.setdefault("added_tokens", [])
        present = {token["content"]: token for token in added}
        vocabulary = specification["model"]["vocab"]
        if not isinstance(vocabulary, dict):  # Unigram: a list of pairs
            vocabulary = {pair[0]: i for i, pair in enumerate(vocabulary)}
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip",
                               "normalized"), False)
        listed = self.settings.get("added_tokens_decoder") or {}
        for number, token in sorted(listed.items(), key=lambda x: int(x[0])):
            if token["content"] not in present:
                token = {**flags, "special": False, **token}
                token["id"] = int(number)
                added.append(token)
                present[token["content"]] = token
        for content in self.named.values():
            if content in present:
                present[content]["special"] = True
            elif content in vocabulary:
                token = dict(flags, content=content, special=True,
                             id=vocabulary[content])
                added.append(token)
                present[content] = token

    def _bos_id(self, specification):
        """The id that the tokenizer's own settings put first, or None."""
        bos = self.named.get("bos_token")
        wanted = self.settings.get("add_bos_token")
        if wanted is None and "add_eos_token" not in self.settings:
            wanted = bos and _first_token(
                specification.get("post_processor")) == bos
        return self.ids.get(bos) if wanted else None

    def control_id(self, name):
        """The id of a named token such as eos_token, or None."""
        return self.ids.get(self.named.get(name))

    def alphabet_for(self, texts):
        """An alphabet none of whose characters is in the list of texts."""
        for alphabet, pattern in zip(self.alphabets, PLANE_PATTERNS):
            if not any(not text.isascii() and pattern.search(text)
                       for text in texts):
                return alphabet
        raise Failure("the text uses both private planes of Unicode; remove "
                      "the characters above U+F0000")


def _first_token(processor):
    """The token that a post-processor of tokenizer.json puts first."""
    if not processor:
        return None
    if processor["type"] == "Sequence":
        for part in processor["processors"]:
            first = _first_token(part)
            if first:
                return first
        return None
    if processor["type"] == "TemplateProcessing":
        first = processor["single"][0] if processor["single"] else {}
        return first.get("SpecialToken", {}).get("id")
    if processor["type"] in ("BertProcessing", "RobertaProcessing"):
        return processor["cls"][0]
    return None
