"""The files the scripts write, read back byte by byte; the demo's sources."""

import array
import json
import os
import struct
import subprocess
import tempfile
import unittest

import fixtures
import man_pages
import megatron
from test_import_gguf import read_safetensors


class Files(unittest.TestCase):
    def setUp(self):
        self.room = tempfile.TemporaryDirectory()
        self.addCleanup(self.room.cleanup)

    def path(self, name):
        return os.path.join(self.room.name, name)

    def test_the_index_is_megatrons(self):
        writer = megatron.Writer(self.path("x"))
        writer.append(array.array("i", [7, 8, 9]), bytes([0, 1, 1]))
        writer.append(array.array("i", [5]), bytes([0]))
        self.assertFalse(os.path.exists(self.path("x.idx")))
        writer.close()
        with open(self.path("x.idx"), "rb") as file:
            self.assertEqual(file.read(), b"MMIDIDX\0\0" + struct.pack(
                "<QBQQ2i2q3q", 1, 4, 2, 3, 3, 1, 0, 12, 0, 1, 2))
        with open(self.path("x.bin"), "rb") as file:
            self.assertEqual(file.read(), struct.pack("<4i", 7, 8, 9, 5))
        with open(self.path("x.mask"), "rb") as file:
            self.assertEqual(file.read(), bytes([0, 1, 1, 0]))

    def test_a_discarded_dataset_leaves_nothing(self):
        writer = megatron.Writer(self.path("x"))
        writer.append(array.array("i", [1]), bytes([0]))
        writer.discard()
        self.assertEqual(os.listdir(self.room.name), [])

    def test_a_folder_that_cannot_be_made_is_one_line(self):
        with open(self.path("file"), "w", encoding="utf-8"):
            pass
        folder = fixtures.write_folder(self.path("model"))
        data = fixtures.write_lines(self.path("d"), [{"text": "x"}])
        code, error = fixtures.script(
            "prepare.py", "--model", folder, "--data", data, "--output",
            self.path("file/out"))
        self.assertEqual((code, error.count("\n")), (2, 1))
        self.assertIn("cannot write", error)

    def test_the_sample_names_pages_of_known_packages_once(self):
        sample = man_pages.read_sample()
        self.assertEqual({row[0] for row in sample}, {"train", "held-out"})
        self.assertLessEqual({row[1] for row in sample},
                             set(man_pages.PACKAGES))
        self.assertEqual(len({row[1:] for row in sample}), len(sample))

    def test_pages_are_plain_text(self):
        page = self.path("x.1")
        with open(page, "w", encoding="utf-8") as file:
            file.write(".TH X 1\n.SH NAME\nx \\- a \\fBbold\\fP page\n")
        try:
            text = man_pages.render(page)
        except FileNotFoundError:
            self.skipTest("mandoc is not installed")
        self.assertIn("a bold page", text)
        self.assertNotIn("\b", text)
        chat = man_pages.chat("pkg", "x.1", text)
        self.assertEqual(chat["messages"][0]["content"],
                         "Write the manual page x(1).")
        self.assertEqual(chat["source"], "pkg")

    def test_the_offline_model_fits_its_configuration(self):
        code, error = fixtures.script("offline_demo.py", self.path("demo"))
        if "holds no documents" in error:
            self.skipTest("no documents in this tree")
        self.assertEqual((code, error), (0, ""))
        weights = read_safetensors(self.path("demo/model/model.safetensors"))
        with open(self.path("demo/model/config.json"),
                  encoding="utf-8") as file:
            config = json.load(file)
        self.assertEqual(weights["model.embed_tokens.weight"].shape,
                         (config["vocab_size"], config["hidden_size"]))
        self.assertEqual(len(weights), 2 + 9 * config["num_hidden_layers"])
        with open(self.path("demo/train.jsonl"), encoding="utf-8") as file:
            rows = [json.loads(line)["input_ids"] for line in file]
        self.assertLess(max(map(max, rows)), config["vocab_size"])
        self.assertGreater(max(map(len, rows)), 2048)

    def test_the_shell_scripts_refuse_unknown_arguments(self):
        for name in ("demo", "python-env", "prepare", "import-gguf",
                     "man-pages"):
            done = subprocess.run(
                [os.path.join(fixtures.SCRIPTS, name), "--bogus"],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                check=False)
            self.assertEqual(done.returncode, 2, name)
            self.assertTrue(done.stderr.startswith("chunkflow: error: "),
                            done.stderr)


if __name__ == "__main__":
    unittest.main()
