"""The documents: links lead somewhere, and lists of keys are those of files."""

import glob
import json
import os
import re
import subprocess
import tempfile
import unittest

import fixtures

ROOT = os.path.abspath(os.path.join(fixtures.HERE, "..", ".."))
PROGRAM = os.path.abspath(os.environ.get("CHUNKFLOW") or os.path.join(
    ROOT, "src", "chunkflow"))
MODEL = os.path.join(ROOT, "tests", "parity", "fixtures", "qwen2-tied")
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"```.*?```", re.DOTALL)


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def anchors(path):
    """Of the headings of a page, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", CODE.sub("", read(path)), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
            for title in titles}


def section(page, title):
    """The text below a heading, up to the next one of its rank or above."""
    text = read(os.path.join(ROOT, "docs", page))
    level = re.search(rf"^(#+) {re.escape(title)}$", text, re.MULTILINE)
    rest = text[level.end():]
    end = re.search(rf"^#{{1,{len(level[1])}}} ", rest, re.MULTILINE)
    return rest[:end.start()] if end else rest


def keys(text, table=0):
    """The names in the first column of a table of `key | meaning`."""
    rows = text.split("| key | meaning |")[table + 1].split("\n\n")[0]
    return [name for line in rows.splitlines()[2:]
            for name in re.findall(r"`([^`]+)`", line.split("|")[1])]


class Links(unittest.TestCase):
    def test_every_link_leads_to_a_page_and_a_heading(self):
        pages = [os.path.join(ROOT, name)
                 for name in ("README.md", "CONTRIBUTING.md")]
        pages += glob.glob(os.path.join(ROOT, "docs", "*.md"))
        self.assertGreater(len(pages), 12)
        broken = []
        for page in pages:
            for link in LINK.findall(CODE.sub("", read(page))):
                if "://" in link:
                    continue
                path, _, anchor = link.partition("#")
                target = os.path.join(os.path.dirname(page), path) \
                    if path else page
                if not os.path.exists(target) or (
                        anchor and anchor not in anchors(target)):
                    broken.append(f"{os.path.relpath(page, ROOT)}: {link}")
        self.assertEqual(broken, [])

    def test_every_page_is_named_in_the_readme(self):
        readme = read(os.path.join(ROOT, "README.md"))
        for page in glob.glob(os.path.join(ROOT, "docs", "*.md")):
            self.assertIn(f"(docs/{os.path.basename(page)})", readme)

    def test_what_the_comparison_rests_on_is_there(self):
        text = read(os.path.join(ROOT, "docs", "comparison.md"))
        named = re.findall(r"`((?:scripts|tests)/[^` ]*)", text)
        self.assertGreater(len(named), 8)
        for path in named:
            self.assertTrue(os.path.exists(os.path.join(ROOT, path)), path)


@unittest.skipUnless(os.access(PROGRAM, os.X_OK), "chunkflow is not built")
class Formats(unittest.TestCase):
    """docs/formats.md against a run."""

    @classmethod
    def setUpClass(cls):
        room = tempfile.TemporaryDirectory()
        cls.addClassCleanup(room.cleanup)
        cls.run_folder = os.path.join(room.name, "run")
        data = os.path.join(MODEL, "data.jsonl")
        subprocess.run(
            [PROGRAM, "train", "--model", MODEL, "--data", data, "--output",
             cls.run_folder, "--chunk-size", "32", "--steps", "2",
             "--global-batch", "4", "--threads", "1", "--quiet",
             "--eval-data", data, "--max-length", "90"], check=True)

    def file(self, *names):
        return read(os.path.join(self.run_folder, *names))

    def test_keys_of_metrics(self):
        lines = [json.loads(line) for line in
                 self.file("metrics.jsonl").splitlines()]
        steps = [line for line in lines if "eval" not in line]
        evals = [line for line in lines if "eval" in line]
        text = section("formats.md", "metrics.jsonl")
        several = {"bubble_ratio", "load_max_over_mean", "sent_bytes",
                   "waited_s"}
        self.assertEqual(list(steps[0]),
                         [key for key in keys(text) if key not in several])
        self.assertEqual(set(evals[0]), set(keys(text, 1)) - {"sources"})

    def test_keys_of_the_ledger(self):
        self.assertEqual(list(json.loads(self.file("ledger.json"))),
                         keys(section("formats.md", "ledger.json")))

    def test_keys_of_run_json(self):
        found = json.loads(self.file("run.json"))
        text = section("formats.md", "run.json")
        self.assertEqual(list(found), keys(text))
        for part in ("model", "plan", "memory", "versions"):
            row = re.search(rf"^\| `{part}` \| (.*) \|$", text, re.MULTILINE)
            self.assertEqual(
                list(found[part]),
                [name for name in re.findall(r"`(\w+)`", row[1])])

    def test_keys_of_a_state(self):
        found = json.loads(self.file("checkpoints", "step-2", "state.json"))
        self.assertEqual(list(found),
                         keys(section("formats.md", "checkpoints/step-N")))


if __name__ == "__main__":
    unittest.main()
