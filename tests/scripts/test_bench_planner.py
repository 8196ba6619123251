"""bench-planner on a tiny model: the bytes are equal, and the choice is ranked
among the settings of the grid.  Times of a toy say nothing."""

import os
import re
import subprocess
import unittest

import fixtures

PROGRAM = os.environ.get("CHUNKFLOW") or os.path.join(
    fixtures.HERE, "..", "..", "src", "chunkflow")
BENCH = os.path.join(fixtures.HERE, "..", "..", "scripts", "bench-planner")
MODEL = os.path.join(fixtures.HERE, "..", "parity", "fixtures", "qwen2-tied")


@unittest.skipUnless(os.access(PROGRAM, os.X_OK), "chunkflow is not built")
class BenchPlanner(unittest.TestCase):
    def bench(self, *options):
        return subprocess.run(
            [BENCH, "--program", PROGRAM, "--model", MODEL, *options],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            check=False)

    def test_bytes_are_equal_and_the_choice_is_in_the_grid(self):
        done = self.bench(
            "--configurations", "4", "--layers", "1,2", "--sizes", "64,256",
            "--retained", "1,2", "--longest", "300", "--grid-layers", "2",
            "--memory", "3MB", "--global-batch", "3", "--steps", "1",
            "--rounds", "1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("4 configurations: step time off by", done.stdout)
        self.assertIn("bytes differ in 0", done.stdout)
        self.assertEqual(len(re.findall(r"%  chosen$", done.stdout,
                                        re.MULTILINE)), 1)
        self.assertRegex(done.stdout, r"the choice has [0-9.]+% of the best")

    def test_bad_options_are_one_line(self):
        for options in (("--steps", "0"), ("--sizes", "big"),
                        ("--program", "/nowhere")):
            done = self.bench(*options)
            self.assertNotEqual(done.returncode, 0)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
