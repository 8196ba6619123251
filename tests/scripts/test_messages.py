"""docs/troubleshooting.md quotes what the sources really say."""

import ast
import glob
import os
import re
import unittest

import fixtures

ROOT = os.path.join(fixtures.HERE, "..", "..")
VARIABLE = "\N{HORIZONTAL ELLIPSIS}"
LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"|(PRI[a-zA-Z0-9]+)')
CONVERSION = re.compile(r"%[-0-9.*#+ ]*(?:hh|h|ll|l|z|j)?[a-zA-Z]|%(?=$)")
QUOTED = re.compile(r"^\| `(.*?)`", re.MULTILINE)


def c_texts(path):
    """The string literals of every call, one behind the other, with a mark for
    whatever printf puts in."""
    with open(path, encoding="utf-8") as file:
        source = file.read()
    for statement in re.split(r"[;{}]\s*\n", source):
        text = ""
        for literal, macro in LITERAL.findall(statement):
            text = (text.removesuffix("%") + VARIABLE if macro else
                    text + literal)
        yield CONVERSION.sub(VARIABLE, text.replace('\\"', '"'))


def python_texts(path):
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant)
                          else VARIABLE for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def shell_texts(path):
    with open(path, encoding="utf-8") as file:
        source = file.read().replace('" \\\n', '"\\\n')
    yield re.sub(r'"\\\n\s*"', " ", source)


def has_parts(text, parts):
    at = 0
    for part in parts:
        at = text.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return True


class Messages(unittest.TestCase):
    def setUp(self):
        texts = []
        for pattern, read in (("src/*.[ch]", c_texts),
                              ("scripts/lib/*.py", python_texts),
                              ("scripts/python-env", shell_texts),
                              ("scripts/lib/*.sh", shell_texts)):
            for path in glob.glob(os.path.join(ROOT, pattern)):
                texts += read(path)
        self.texts = [text for text in texts if text]
        path = os.path.join(ROOT, "docs", "troubleshooting.md")
        with open(path, encoding="utf-8") as file:
            self.quoted = QUOTED.findall(file.read())

    def is_said(self, message):
        parts = [part.strip() for part in message.split(VARIABLE)]
        parts = [part for part in parts if re.search(r"\w", part)]
        return bool(parts) and any(has_parts(text, parts)
                                   for text in self.texts)

    def test_every_message_of_the_page_is_in_the_sources(self):
        self.assertGreater(len(self.quoted), 80)
        wrong = [m for m in self.quoted if not self.is_said(m)]
        self.assertEqual(wrong, [])

    def test_a_message_that_is_not_there_is_found(self):
        self.assertTrue(self.is_said("needs … of memory, …"))
        self.assertFalse(self.is_said("needs … of memory, but not this"))
        self.assertFalse(self.is_said("…: …"))


if __name__ == "__main__":
    unittest.main()
