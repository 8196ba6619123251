"""The pictures of a run, and chunkflow report: whole, well formed, and there
however the run ended."""

import html.parser
import json
import os
import shutil
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree

import fixtures

PROGRAM = os.environ.get("CHUNKFLOW") or os.path.join(
    fixtures.HERE, "..", "..", "src", "chunkflow")
FIXTURE = os.path.join(fixtures.HERE, "..", "parity", "fixtures", "llama-mha")
PICTURES = ["loss.svg", "lengths.svg", "memory.svg", "schedule.svg"]
VOID = {"meta", "link", "br", "img"}


class Page(html.parser.HTMLParser):
    """Fails where an element is not closed; collects what a page asks for."""

    def __init__(self):
        super().__init__()
        self.open, self.text, self.wants, self.n_svg = [], [], [], 0

    def handle_starttag(self, tag, attrs):
        self.n_svg += tag == "svg"
        self.wants += [value for name, value in attrs
                       if name in ("src", "href", "data")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        if self.open.pop() != tag:
            raise AssertionError(f"</{tag}> closes another element")

    def handle_data(self, data):
        self.text.append(data)


@unittest.skipUnless(os.access(PROGRAM, os.X_OK), "chunkflow is not built")
class Report(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.run_folder = os.path.join(folder.name, "a & b <run>")

    def path(self, name):
        return os.path.join(self.run_folder, name)

    def train(self, *options):
        data = os.path.join(FIXTURE, "data.jsonl")
        subprocess.run(
            [PROGRAM, "train", "--model", FIXTURE, "--data", data, "--output",
             self.run_folder, "--global-batch", "2", "--chunk-size", "8",
             "--steps", "3", "--eval-data", data, "--quiet", "--threads", "1",
             *options], check=True)

    def report(self):
        done = subprocess.run([PROGRAM, "report", self.run_folder],
                              stdout=subprocess.PIPE, text=True, check=True)
        self.assertEqual(done.stdout, self.path("report.html") + "\n")
        with open(self.path("report.html"), encoding="utf-8") as file:
            text = file.read()
        page = Page()
        page.feed(text)
        self.assertEqual(page.open, [])
        # Nothing from elsewhere: it can be mailed.
        self.assertEqual(page.wants, [])
        self.assertNotIn("http://", text.replace(
            "http://www.w3.org/2000/svg", ""))
        return page

    def texts(self, name):
        """The texts of a picture, in their order."""
        root = xml.etree.ElementTree.parse(self.path(name)).getroot()
        spaced = "{http://www.w3.org/2000/svg}"
        self.assertEqual(root.tag, spaced + "svg")
        style = root.find(spaced + "style").text
        self.assertIn("prefers-color-scheme:dark", style)
        return [element.text for element in root.iter(spaced + "text")]

    def test_a_run_leaves_four_pictures_that_say_what_it_did(self):
        self.train()
        self.assertTrue(self.texts("loss.svg")[1].startswith(
            "at step 3 of 3; evaluation "))
        self.assertIn("predicted", self.texts("memory.svg")[0])
        lengths = self.texts("lengths.svg")
        with open(os.path.join(FIXTURE, "data.jsonl"), encoding="ascii") as f:
            n_tok = [len(json.loads(line)["input_ids"]) for line in f]
        self.assertEqual(lengths[0], f"{len(n_tok)} sequences, {sum(n_tok)} "
                         f"tokens; the longest has {max(n_tok)}")
        n_long = sum(n > 8 for n in n_tok)
        self.assertTrue(lengths[1].startswith(f"{n_long} of them are longer"))
        self.assertRegex(self.texts("schedule.svg")[0],
                         r"Step \d: state-aware, 1 stage, ChunkSize 8, K 1: "
                         r"bubble \S+ %, makespan \S+ s")
        self.assertEqual([name for name in os.listdir(self.run_folder)
                          if ".tmp" in name], [])

    def test_a_finished_run_is_one_page_with_everything(self):
        self.train()
        page = self.report()
        self.assertEqual(page.n_svg, 4)
        text = "".join(page.text)
        for part in ("Finished; step 3 of 3", "a & b <run>", "Ledger\n",
                     "retain chunks", "Versions", "learning_rate: ",
                     "tokens a second"):
            self.assertIn(part, text)

    def test_a_run_that_goes_on_or_died_is_a_page_too(self):
        self.train()
        os.remove(self.path("ledger.json"))
        shutil.rmtree(self.path("model"))
        text = "".join(self.report().text)
        self.assertIn("Not finished: the last step was done", text)
        self.assertIn("Ledger of an epoch", text)
        # Killed within the first step, or within a write.
        with open(self.path("metrics.jsonl"), "w", encoding="ascii") as file:
            file.write('{"step": 1, "lo')
        for name in PICTURES:
            os.remove(self.path(name))
        with open(self.path("run.json"), "w", encoding="ascii") as file:
            file.write('{"pl')
        page = self.report()
        text = "".join(page.text)
        self.assertIn("no step is done yet", text)
        self.assertIn("schedule.svg is not there yet", text)
        self.assertEqual(page.n_svg, 1)

    def test_what_is_no_run_is_an_error(self):
        done = subprocess.run([PROGRAM, "report", FIXTURE],
                              stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr, r"^chunkflow: error: '.*llama-mha' is no "
                         r"run folder: .*\n$")

    def test_an_overwritten_run_leaves_no_old_page(self):
        self.train()
        self.report()
        self.train("--overwrite")
        self.assertFalse(os.path.exists(self.path("report.html")))


if __name__ == "__main__":
    unittest.main()
