"""Tokenising by looking words up, where that is exact.

Most of a text is words that came before. Where a tokenizer never joins a letter
with a blank, a digit or one of some marks behind it, the tokens of a text are
those of its parts, cut at such places, and the parts are looked up; the library
tokenises only the others. That holds for byte-level BPE behind the regular
expressions below and GPT-2's, in which

 1. every match with a letter in it ends with a letter, and nothing looks back,
    so that a part is split as it is within the text;
 2. white space alone looks ahead, and a part ends with a letter.

NFC joins nothing across an ASCII character that is no letter. Added tokens must
have no such place in them. All other tokenizers go to the library as a whole.
"""

import itertools
import operator
import re

import numpy

BEHIND = "[ \\n\\r\\t.,;:!?()\"=/0-9-]"
CUT = re.compile(f"(?<=[A-Za-z])(?={BEHIND})")
INNER = re.compile(f"{BEHIND}.*[A-Za-z]\\Z", re.DOTALL)   # cut on both sides
PART_CHARS = 32         # longer parts are not kept
PARTS_MAX = 1 << 17     # kept ones; some 50 MB
CALL_CHARS = 1 << 11    # the library costs much a text, and more on long ones

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLITS = (CONTRACTIONS + r"\p{N}" + REST,         # Qwen
          CONTRACTIONS + r"\p{N}{1,3}" + REST)    # Llama 3


def can_cut(specification):
    """Whether a tokenizer.json, as an object, is of the kind above."""
    model = specification["model"]
    if model.get("type") != "BPE" or model.get("dropout"):
        return False
    if (specification.get("normalizer") or {"type": "NFC"})["type"] != "NFC":
        return False
    for token in specification["added_tokens"]:
        if (token.get("lstrip") or token.get("rstrip") or
                token.get("single_word") or CUT.search(token["content"])):
            return False
    first = specification.get("pre_tokenizer") or {"type": None}
    parts = first["pretokenizers"] if first["type"] == "Sequence" else [first]
    return all(map(_is_known, parts)) and any(map(_cuts, parts))


def _is_known(part):
    return (part["type"] == "Digits" or
            part["type"] == "ByteLevel" and
            not part.get("add_prefix_space", True) or
            part["type"] == "Split" and
            part["pattern"].get("Regex") in SPLITS and
            part["behavior"] == "Isolated" and not part.get("invert"))


def _cuts(part):
    return (part["type"] == "Split" or
            part["type"] == "ByteLevel" and part.get("use_regex", True))


class Words:
    """A tokenizer of texts; `cuts` as can_cut() has it."""

    def __init__(self, tokenizer, cuts):
        self.tokenizer, self.cuts = tokenizer, cuts
        self.known = {}

    def encode(self, texts, with_starts):
        """(ids, starts) of each text, as arrays: the characters at which the
        tokens begin, or None."""
        if not self.cuts:
            return [(numpy.array(ids, dtype=numpy.int64),
                     numpy.array(starts) if with_starts else None)
                    for ids, starts in self._encode(texts, with_starts)]
        cut = [CUT.split(text) for text in texts]
        new = list({part for parts in cut for part in parts
                    if part not in self.known})
        found = self._encode_parts(new)
        known = self.known
        result = [join(parts, [known.get(part) or found[part]
                               for part in parts], with_starts)
                  for parts in cut]
        if len(known) < PARTS_MAX:
            known.update((part, tokens) for part, tokens in found.items()
                         if len(part) <= PART_CHARS)
        return result

    def _encode(self, texts, with_starts):
        call = (self.tokenizer.encode_batch if with_starts
                else self.tokenizer.encode_batch_fast)
        for encoding in call(texts, add_special_tokens=False):
            yield encoding.ids, ([first for first, _ in encoding.offsets]
                                 if with_starts else None)

    def _encode_parts(self, parts):
        """{part: (ids, starts)}. Parts that may stand side by side, as in a
        text that is cut there, are tokenised together."""
        alone, runs, chars = [], [[]], 0
        for part in parts:
            if not INNER.match(part):
                alone.append(part)
                continue
            if chars >= CALL_CHARS:
                runs.append([])
                chars = 0
            runs[-1].append(part)
            chars += len(part)
        found = dict(zip(alone, self._encode(alone, True)))
        for run, (ids, starts) in zip(runs, self._encode(
                ["".join(run) for run in runs], True)):
            edges = [0, *itertools.accumulate(map(len, run))]
            at = numpy.searchsorted(starts, edges).tolist()
            for part, edge, first, last in zip(run, edges, at, at[1:]):
                found[part] = (ids[first:last],
                               [start - edge for start in starts[first:last]])
        return found


def join(parts, tokens, with_starts):
    """The tokens of a text from those of its parts."""
    of_ids, of_starts = operator.itemgetter(0), operator.itemgetter(1)
    chain = itertools.chain.from_iterable
    counts = numpy.fromiter(map(len, map(of_ids, tokens)), numpy.int64,
                            len(tokens))
    n_tok = int(counts.sum())
    ids = numpy.fromiter(chain(map(of_ids, tokens)), numpy.int64, n_tok)
    if not with_starts:
        return ids, None
    starts = numpy.fromiter(chain(map(of_starts, tokens)), numpy.int64, n_tok)
    lengths = numpy.fromiter(map(len, parts), numpy.int64, len(parts))
    return ids, starts + numpy.repeat(numpy.cumsum(lengths) - lengths, counts)
