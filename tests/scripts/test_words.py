"""words.py: looking words up gives what the library gives, token by token, on
texts made to break it."""

import json
import os
import random
import tempfile
import unittest

import fixtures  # puts scripts/lib on the path

import tokenizers

import words

PIECES = ("hello", "world", "user", "HELLO", "n't", "'s", "it's", "I'll", " ",
          "  ", "\t", "\n", "\r\n", " \n ", ".", ",", "!?", "1", "2024", "é",
          "e\u0301", "\u0301", "ß", "中文", "\u00a0", "\u3000", "\u200d", "<think>",
          "<thin", "😀", "_", "-", "a", "Z", "\x00", "ﬁ",
          "(a)", "x=1", "a/b", "-b", '"q"', ";", ": ", "\U00100001")


def text_of(rng):
    return "".join(rng.choice(PIECES) + rng.choice(("", " ", " ", "a"))
                   for _ in range(rng.randrange(40)))


class Words(unittest.TestCase):
    def specifications(self):
        """Of the kinds that are cut, and of some that are not."""
        with tempfile.TemporaryDirectory() as folder:
            fixtures.write_folder(folder)
            with open(os.path.join(folder, "tokenizer.json"),
                      encoding="utf-8") as file:
                plain = json.load(file)
        plain["post_processor"] = None
        level = plain["pre_tokenizer"]
        bare = dict(level, use_regex=False)
        digits = {"type": "Digits", "individual_digits": True}
        for expected, first in (
                [(True, [level]), (True, [digits, level]), (False, [bare]),
                 (False, [dict(level, add_prefix_space=True)])] +
                [(True, [{"type": "Split", "pattern": {"Regex": regex},
                          "behavior": "Isolated", "invert": False}, bare])
                 for regex in words.SPLITS] +
                [(False, [{"type": "Split", "pattern": {"Regex": "[a-z ]+"},
                           "behavior": "Isolated", "invert": False}, bare])]):
            for normalizer in (None, {"type": "NFC"}):
                yield expected, dict(
                    plain, normalizer=normalizer, pre_tokenizer={
                        "type": "Sequence", "pretokenizers": first})
        yield False, dict(plain, normalizer={"type": "NFKC"})
        for change in ({"lstrip": True}, {"content": "a b"}):
            added = [dict(token) for token in plain["added_tokens"]]
            added[-1].update(change)
            yield False, dict(plain, added_tokens=added)

    def test_tokens_and_where_they_begin_are_the_librarys(self):
        seed = int(os.environ.get("CF_TEST_SEED") or
                   random.SystemRandom().randrange(1 << 30))
        print(f"# CF_TEST_SEED={seed}")
        rng = random.Random(seed)
        for expected, specification in self.specifications():
            self.assertEqual(words.can_cut(specification), expected)
            library = tokenizers.Tokenizer.from_str(json.dumps(specification))
            found = words.Words(library, expected)
            for _ in range(20):
                texts = [text_of(rng) for _ in range(20)] + [""]
                for text, (ids, starts), (again, none) in zip(
                        texts, found.encode(texts, True),
                        found.encode(texts, False)):
                    wanted = library.encode(text, add_special_tokens=False)
                    self.assertEqual(ids.tolist(), wanted.ids, repr(text))
                    self.assertEqual(starts.tolist(),
                                     [first for first, _ in wanted.offsets],
                                     repr(text))
                    self.assertEqual(again.tolist(), wanted.ids)
                    self.assertIsNone(none)

    def test_only_short_parts_are_kept_and_not_without_end(self):
        specification = next(self.specifications())[1]
        found = words.Words(tokenizers.Tokenizer.from_str(
            json.dumps(specification)), True)
        texts = [f"hello world{'x' * i} a" for i in range(60)]
        found.encode(texts, True)
        self.assertEqual(max(map(len, found.known)), words.PART_CHARS)
        self.addCleanup(setattr, words, "PARTS_MAX", words.PARTS_MAX)
        words.PARTS_MAX = len(found.known)
        found.encode(["user hello"], True)
        self.assertEqual(len(found.known), words.PARTS_MAX)


if __name__ == "__main__":
    unittest.main()
