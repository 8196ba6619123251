"""What users of other engines met, tried on this one: see faults.md.

usage: faults.py [NAME...]; CHUNKFLOW names the program.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM = os.environ.get("CHUNKFLOW") or os.path.join(
    HERE, "..", "..", "src", "chunkflow")
MODEL = os.path.join(HERE, "..", "parity", "fixtures", "llama-mha")
with open(os.path.join(MODEL, "config.json"), encoding="utf-8") as config:
    VOCABULARY = json.load(config)["vocab_size"]


class Faults(unittest.TestCase):
    def setUp(self):
        self.random = random.Random(50)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def sequence(self, n_tok, density=1.0):
        """n_tok random tokens; a share of them are targets, one at least."""
        ids = [self.random.randrange(VOCABULARY) for _ in range(n_tok)]
        labels = [token if self.random.random() < density else -100
                  for token in ids]
        if n_tok > 1 and density > 0:
            labels[1] = ids[1]
        return {"input_ids": ids, "labels": labels}

    def data(self, sequences):
        path = os.path.join(self.folder, "data.jsonl")
        with open(path, "w", encoding="ascii") as file:
            file.writelines(json.dumps(s) + "\n" for s in sequences)
        return path

    def program(self, command, sequences, *options, code=0):
        done = subprocess.run(
            [PROGRAM, command, "--model", MODEL, "--data",
             self.data(sequences), "--threads", "1", *options],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            check=False)
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def expect_exact(self, sequences, chunk_size):
        """Loss and every gradient of chunks are those of the whole."""
        done = self.program(
            "verify", sequences, "--no-shuffle", "--compute", "fp64",
            "--tolerance", "1e-10", "--global-batch", str(len(sequences)),
            "--chunk-size", str(chunk_size))
        self.assertIn("verify: chunked == unsplit", done.stdout)

    def train(self, sequences, *options):
        """The metrics of the steps, and the ledger."""
        run = os.path.join(self.folder, "run")
        self.program("train", sequences, "--output", run, "--overwrite",
                     "--quiet", *options)
        with open(os.path.join(run, "metrics.jsonl"), encoding="utf-8") as f:
            steps = [json.loads(line) for line in f]
        with open(os.path.join(run, "ledger.json"), encoding="utf-8") as f:
            return steps, json.load(f)

    def loss(self, sequences, *options):
        result = json.loads(self.program(
            "eval", sequences, "--json", "--compute", "fp64", *options).stdout)
        return result["loss"], result["target_tokens"]

    # ---- chunks ----

    def test_every_length_around_the_chunk_size_is_exact(self):
        c = 16
        for n_tok in (c - 1, c, c + 1, 2 * c, 2 * c + 1, 4 * c + 1):
            self.expect_exact([self.sequence(n_tok)], c)

    def test_no_target_is_lost_at_a_chunks_edge(self):
        steps, ledger = self.train([self.sequence(2049)], "--chunk-size",
                                   "512")
        self.assertEqual(steps[0]["target_tokens"], 2048)
        self.assertEqual(ledger["trained"]["target_tokens"], 2048)
        self.assertEqual(steps[0]["chunks"], 5)

    def test_every_chunk_size_is_exact(self):
        sequences = [self.sequence(n) for n in (90, 3, 40)]
        for chunk_size in (1, 3, 7, 64, 90):
            self.expect_exact(sequences, chunk_size)

    def test_an_epoch_of_nothing_but_long_sequences_ends(self):
        lengths = [17, 40, 100, 33, 16]
        steps, ledger = self.train([self.sequence(n) for n in lengths],
                                   "--chunk-size", "8", "--global-batch", "2")
        self.assertEqual(len(steps), 3)
        self.assertEqual(ledger["trained"]["tokens"], sum(lengths))
        self.assertEqual(ledger["read"]["sequences"], len(lengths))

    def test_chunk_sizes_that_divide_nothing_are_exact(self):
        for n_tok, chunk_size in ((200, 48), (192, 48), (384, 96)):
            self.expect_exact([self.sequence(n_tok)], chunk_size)

    # ---- leaks ----

    def test_packing_changes_no_loss(self):
        sequences = [self.sequence(n) for n in (9, 30, 4, 17, 22)]
        packed, n_targets = self.loss(sequences, "--chunk-size", "128")
        alone = [self.loss([s], "--chunk-size", "128") for s in sequences]
        self.assertEqual(n_targets, sum(n for _, n in alone))
        self.assertAlmostEqual(
            packed, sum(loss * n for loss, n in alone) / n_targets, places=12)

    def test_thousands_of_tiny_documents_share_a_chunk(self):
        sequences = [self.sequence(2) for _ in range(3000)]
        sequences += [self.sequence(1) for _ in range(3000)]
        steps, ledger = self.train(sequences, "--chunk-size", "8192",
                                   "--global-batch", "6000")
        self.assertEqual([s["chunks"] for s in steps], [1])
        self.assertEqual(ledger["trained"]["sequences"], 3000)
        self.assertEqual(ledger["masked"]["sequences"], 3000)
        self.expect_exact(sequences[:50], 8)

    # ---- loss ----

    def test_the_loss_of_a_batch_is_weighted_by_targets(self):
        sequences = [self.sequence(n, d) for n, d in
                     ((3, 1), (900, .01), (60, .5), (250, 1))]
        whole, n_targets = self.loss(sequences, "--chunk-size", "64")
        alone = [self.loss([s], "--chunk-size", "64") for s in sequences]
        wanted = sum(loss * n for loss, n in alone) / n_targets
        self.assertAlmostEqual(whole, wanted, places=12)
        steps, _ = self.train(sequences, "--chunk-size", "64", "--compute",
                              "fp64", "--no-shuffle")
        self.assertAlmostEqual(steps[0]["loss"], wanted, places=12)

    def test_every_density_of_targets_is_exact(self):
        for density in (0.01, 0.5, 0.99, 1):
            self.expect_exact([self.sequence(n, density)
                               for n in (70, 5, 33)] +
                              [self.sequence(20, 0)], 16)

    # ---- small inputs ----

    def test_tiny_files_train_or_are_refused(self):
        chunk_size = 16
        steps, _ = self.train([self.sequence(chunk_size - 1)], "--chunk-size",
                              str(chunk_size))
        self.assertEqual(steps[0]["target_tokens"], chunk_size - 2)
        for sequences in ([], [self.sequence(0)], [self.sequence(1)]):
            run = os.path.join(self.folder, "none")
            done = self.program("train", sequences, "--output", run, code=3)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
            self.assertTrue(done.stderr.startswith("chunkflow: error: "))
            self.assertFalse(os.path.exists(run))


class Lines(unittest.TextTestResult):
    """A line "ok NAME" or "not ok NAME" for each test."""

    def startTest(self, test):
        unittest.TestResult.startTest(self, test)

    def addSuccess(self, test):
        unittest.TestResult.addSuccess(self, test)
        self.stream.writeln(f"ok {test.id().split('.')[-1]}")

    def addFailure(self, test, err):
        unittest.TestResult.addFailure(self, test, err)
        self.stream.writeln(f"not ok {test.id().split('.')[-1]}")

    def addError(self, test, err):
        unittest.TestResult.addError(self, test, err)
        self.stream.writeln(f"not ok {test.id().split('.')[-1]}")


if __name__ == "__main__":
    unittest.main(testRunner=unittest.TextTestRunner(
        stream=sys.stdout, resultclass=Lines))
